"""Who reads the slots of a ring without threads: by wgmma, or by the TMA engine."""

from __future__ import annotations

from collections.abc import Callable

from tmapipe.plan.declarations import Declarations
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["readers_of"]


def readers_of(
    ring: str, declared: Declarations, matmul_roles: dict[str, str], storing_role: Callable[[str, TmaStoreStage], str]
) -> tuple[dict[str, int], dict[str, tuple[str, ...]], tuple[str, ...]]:
    """`lag`, `readers` and `fenced` of the `Ring` called *ring*.

    Args:
        matmul_roles: Matmul -> the role that executes it.
        storing_role: The role that executes a store.
    """
    lag: dict[str, int] = {}
    readers: dict[str, list[str]] = {}
    fenced: dict[str, None] = {}
    for name, mma in declared.matmuls.items():
        inside = [stage for stage in mma.stages if declared.name_of(stage.ring) == ring]
        if inside:
            role = matmul_roles[name]
            fenced |= {role: None} if any(stage.filled_by == "threads" for stage in inside) else {}
            readers[role] = ["wgmma"]
            lag[role] = max(lag.get(role, mma.in_flight), mma.in_flight)
    for name, store in declared.stores.items():
        source = store.slot
        if source is not None and declared.name_of(source.ring) == ring and not source.ring.held:
            role = storing_role(name, store)
            fenced |= {role: None} if source.filled_by == "threads" else {}
            kinds = readers.setdefault(role, [])
            if "tma" not in kinds:
                kinds.append("tma")
            lag[role] = max(lag.get(role, store.stages), store.stages)
    return lag, {role: tuple(kinds) for role, kinds in readers.items()}, tuple(fenced)
