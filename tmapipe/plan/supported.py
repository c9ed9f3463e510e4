"""What an architecture lacks of what a schedule declares."""

from __future__ import annotations

from tmapipe.dtypes import DType
from tmapipe.errors import InputError
from tmapipe.plan.arch import Arch
from tmapipe.plan.declarations import Declarations

__all__ = ["check_supported"]


def check_supported(declared: Declarations, types: dict[str, DType], target: Arch) -> None:
    """Raises `InputError` for the first part of a schedule that *target* has no hardware for. (Matmuls and clusters have
    checks of their own.)

    Args:
        declared: The parts.
        types: Element type of each stage by name.
        target: The architecture.
    """
    if not target.tma:
        for name, load in declared.loads.items():
            if not load.vector:
                rule = f"is loaded by an engine that {target.name} lacks"
                raise InputError(f"{type(load).__name__}({name})", target.name, rule, "use a CpAsyncLoadStage")
        for name, store in declared.stores.items():
            if not store.vector:
                rule = f"is stored by an engine that {target.name} lacks"
                raise InputError(f"{type(store).__name__}({name})", target.name, rule, "use a ThreadStoreStage")
        for name, role in declared.roles.items():
            if role.registers:
                rule = f"is set by setmaxnreg, which {target.name} lacks"
                raise InputError(f"Role({name}).registers", role.registers, rule, "leave it out")
        if declared.queue is not None:
            rule = f"is handed on by st.async, which {target.name} lacks"
            raise InputError("Schedule.tiles", target.name, rule, "use PersistentTiles()")
    for name, dtype in types.items():
        if dtype.name.startswith("fp8") and not target.fp8:
            raise InputError(f"{name}.dtype", dtype.name, f"is a type that {target.name} does not convert", "use bf16")
