"""From declarations to a `Plan`: element types, roles, registers, matmuls, shared memory, in this order."""

from __future__ import annotations

from collections.abc import Iterable

from tmapipe.dtypes import DType, bf16, fp8_e4m3, fp8_e5m2, fp16, fp32, int32
from tmapipe.errors import InputError
from tmapipe.matmul import Wgmma
from tmapipe.multicast import check_cluster
from tmapipe.plan.arch import Arch, arch_named
from tmapipe.plan.arrivals import group_of, readers_of
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.matmuls import check_matmuls
from tmapipe.plan.model import Plan
from tmapipe.plan.placement import launch_registers, place_roles, share_registers
from tmapipe.plan.shared_memory import Layout
from tmapipe.plan.transfers import storing_roles
from tmapipe.role import Role
from tmapipe.stage import RESERVED, SharedStage, SlotStage, TmaLoadStage, TokenStage
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["make_plan"]

#: Attributes of what a body gets as `k` (`tmapipe.kernel.KernelContext`), which nothing else in it can be called.
TAKEN = (
    "begin", "end_tile", "ends", "extent", "finish", "full", "isa", "name_of", "plan", "rank", "raw", "role", "steps", "sync",
    "tiles", "windows",
)  # fmt: skip
MAX_SLOTS = 12  # rings that fill shared memory stop here: more stages than this hide no more latency


def make_plan(declared: Declarations, dtypes: dict[str, DType], arch: str, room: int | None = None) -> Plan:
    """Derives every number.

    Args:
        declared: The parts of a schedule.
        dtypes: Element type of each tensor by stage name; bf16 where neither this nor the stage says.
        arch: Name of the target.
        room: Shared memory (bytes) that a ring of as many slots as fit may fill; None: all of a CTA's.

    Raises:
        InputError: For declarations that no correct kernel could be built for.
    """
    target = arch_named(arch)
    check_cluster(declared.cluster, target.max_cluster)
    _check_names(declared)
    types = _resolve_types(declared, dtypes)
    _check_supported(declared, types, target)
    roles, warps = place_roles(declared)
    launch = launch_registers(warps, target)
    matmul_roles = check_matmuls(declared, types, target, launch)
    storing = storing_roles(declared, roles, matmul_roles)
    registers = share_registers(declared, roles, warps, launch)

    auto = [name for name, ring in declared.rings.items() if ring.stages is None]
    if len(auto) > 1:
        rule = "can be left out for one ring only"
        raise InputError("BarrierRing(stages)", auto, rule, "give the others a number")
    candidates: Iterable[int] = [0]
    if auto:
        held_back, *_ = readers_of(auto[0], declared, matmul_roles, storing)
        least = 1 + max(held_back.values(), default=0)
        candidates = range(max(MAX_SLOTS, least), least - 1, -1)
    for count in candidates:
        layout = Layout(declared, types, roles, matmul_roles, storing, launch, auto_stages=count)
        if layout.space.bytes <= (target.smem if room is None else min(room, target.smem)):
            break
    if layout.space.bytes > target.smem:
        parts = ", ".join(f"{b.name} {b.stages} x {b.pitch}" for b in layout.space.buffers if b.over is None)
        rule = f"{target.name} has {target.smem} bytes a CTA; the plan has {parts} and {len(layout.space.barriers)} barriers"
        raise InputError("shared memory", layout.space.bytes, rule, "use fewer stages or a smaller tile")
    return Plan(
        name=declared.name,
        arch=target.name,
        cluster=declared.cluster,
        roles=tuple(roles.values()),
        barriers=tuple(layout.space.barriers),
        named_barriers=tuple(layout.named_barriers),
        buffers=tuple(layout.space.buffers),
        rings=tuple(layout.rings),
        loads=tuple(layout.loads),
        stores=tuple(layout.stores),
        matmuls=tuple(layout.matmuls),
        held=tuple(layout.held),
        sends=tuple(layout.sends),
        read_by_peers={
            name: group_of(part, declared.cluster)
            for name, part in declared.shared.items()
            if part.filled_by == "warps" and group_of(part, declared.cluster)
        },
        arguments=declared.arguments,
        warps=warps,
        smem_bytes=layout.space.bytes,
        launch_registers=launch,
        registers=registers,
        queue=layout.queue,
        tables={name: table.dims for name, table in declared.tables.items()},
        relations=declared.relations,
    )


def _check_names(declared: Declarations) -> None:
    for name, part in declared.parts.items():
        if name in RESERVED and isinstance(part, (SlotStage, TokenStage, TmaStoreStage)):
            raise InputError("stage name", name, "is taken by the slot's own attributes", "rename the stage")
        if name in TAKEN and not isinstance(part, (Role, SlotStage, TokenStage)):
            raise InputError("name", name, "is taken by what bodies get as k", f"rename the {type(part).__name__}")


def _check_supported(declared: Declarations, types: dict[str, DType], target: Arch) -> None:
    """Raises `InputError` for the first part of a schedule that *target* has no hardware for. (Matmuls and clusters have
    checks of their own.)"""
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


def _resolve_types(declared: Declarations, dtypes: dict[str, DType]) -> dict[str, DType]:
    types: dict[str, DType] = {}
    parts: dict[str, TmaLoadStage | SharedStage | TmaStoreStage] = {**declared.stages, **declared.stores}
    for name, part in parts.items():
        given = dtypes.get(name)
        if part.dtype is not None and given is not None and given not in (part.dtype, part.dtype.in_memory):
            raise InputError(name, given.name, f"is declared with element type {part.dtype}", "convert the tensor")
        types[name] = part.dtype or given or bf16
    for name, part in declared.shared.items():
        source = getattr(part, "source", None)
        if source is not None:
            types[name] = types[declared.name_of(source)]
    for name in (declared.name_of(stage) for mma in declared.matmuls.values() for stage in mma.stages):
        types[name].check_held(name)
    for name, store in declared.stores.items():
        if store.slot is not None:
            loaded = types[declared.name_of(store.slot)]
            if name in dtypes and dtypes[name] != loaded.in_memory:
                rule = f"is stored from slots of {loaded}"
                raise InputError(name, dtypes[name].name, rule, f"use a tensor of {loaded}")
            types[name] = loaded
        elif isinstance(store.source, Wgmma):
            operand = types[declared.name_of(store.source.stages[0])]
            if types[name] not in _types_of_sums(operand):
                rule = f"is no type that sums of {operand} products are stored in"
                fix = f"one of {', '.join(t.name for t in _types_of_sums(operand))}"
                raise InputError(name, types[name].name, rule, fix)
        if store.reduce and types[name].name not in store.reducible:
            rule = f"is no type in which TMA stores can {store.reduce}"
            raise InputError(name, types[name].name, rule, f"one of {', '.join(store.reducible)}")
        types |= dict.fromkeys((n for n, load in declared.loads.items() if load.result is store), types[name])
    return types


def _types_of_sums(operand: DType) -> tuple[DType, ...]:
    """The types that sums of products of *operand* are stored in."""
    return (int32, bf16, fp16, fp32) if operand.integer else (bf16, fp16, fp32, fp8_e4m3, fp8_e5m2)
