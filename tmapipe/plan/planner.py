"""From declarations to a `Plan`: element types, roles, registers, matmuls, shared memory, in this order."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tmapipe.dtypes import DType, bf16, fp8_e4m3, fp8_e5m2, fp16, fp32, int8, int32, tf32
from tmapipe.errors import InputError
from tmapipe.matmul import Wgmma
from tmapipe.multicast import check_cluster
from tmapipe.plan.arch import Arch, arch_named
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.distributed import WIDEST_OF_THREE
from tmapipe.plan.model import Plan
from tmapipe.plan.placement import place_roles, share_registers
from tmapipe.plan.shared_memory import Layout
from tmapipe.role import Role
from tmapipe.stage import RESERVED, SharedStage, TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["make_plan"]

#: Attributes of what a body gets as `k` (`tmapipe.kernel.KernelContext`), which nothing else in it can be called.
TAKEN = (
    *("begin", "ends", "extent", "finish", "full", "isa", "name_of", "plan", "raw", "role", "steps", "sync", "tiles"),
)
MAX_SLOTS = 12  # rings that fill shared memory stop here: more stages than this hide no more latency


def make_plan(declared: Declarations, dtypes: dict[str, DType], arch: str) -> Plan:
    """Derives every number.

    Args:
        declared: The parts of a schedule.
        dtypes: Element type of each tensor by stage name; bf16 where neither this nor the stage says.
        arch: Name of the target.

    Raises:
        InputError: For declarations that no correct kernel could be built for.
    """
    target = arch_named(arch)
    check_cluster(declared.cluster, target.max_cluster)
    _check_names(declared)
    declared.check_references()
    types = _resolve_types(declared, dtypes)
    roles, warps = place_roles(declared)
    matmul_roles = _check_matmuls(declared, types, target)
    registers, launch = share_registers(declared, roles, warps, target)

    auto = [name for name, ring in declared.rings.items() if ring.stages is None]
    if len(auto) > 1:
        raise InputError(
            "BarrierRing(stages)",
            auto,
            "can be left out for one ring only",
            "give the others a number",
        )
    candidates: Iterable[int] = [0]
    if auto:
        least = 1 + _held_back(declared, auto[0])
        candidates = range(max(MAX_SLOTS, least), least - 1, -1)
    for count in candidates:
        layout = Layout(declared, types, roles, matmul_roles, auto_stages=count)
        if layout.bytes <= target.smem:
            break
    if layout.bytes > target.smem:
        parts = ", ".join(f"{b.name} {b.stages} x {b.pitch}" for b in layout.buffers)
        raise InputError(
            "shared memory",
            layout.bytes,
            f"{target.name} has {target.smem} bytes a CTA; the plan has {parts} and {len(layout.barriers)} barriers",
            "use fewer stages or a smaller tile",
        )
    return Plan(
        name=declared.name,
        arch=target.name,
        cluster=declared.cluster,
        roles=tuple(roles.values()),
        barriers=tuple(layout.barriers),
        named_barriers=tuple(layout.named_barriers),
        buffers=tuple(layout.buffers),
        rings=tuple(layout.rings),
        loads=tuple(layout.loads),
        stores=tuple(layout.stores),
        matmuls=tuple(layout.matmuls),
        held=tuple(layout.held),
        arguments=declared.arguments,
        warps=warps,
        smem_bytes=layout.bytes,
        launch_registers=launch,
        registers=registers,
        queue=layout.queue,
        tables={name: table.dims for name, table in declared.tables.items()},
        relations=declared.relations,
    )


def _held_back(declared: Declarations, ring: str) -> int:
    """Slots of the ring called *ring* that a role holds back while its asynchronous reads of them are in flight."""
    in_flight = [mma.in_flight for mma in declared.matmuls.values() if declared.name_of(mma.a.ring) == ring]
    for store in declared.stores.values():
        if isinstance(store.source, (TmaLoadStage, SharedStage)) and declared.name_of(store.source.ring) == ring:
            in_flight.append(store.stages)
    return max(in_flight, default=0)


def _check_names(declared: Declarations) -> None:
    for name in (*declared.loads, *declared.shared, *declared.stores):
        if name in RESERVED:
            raise InputError("stage name", name, "is taken by the slot's own attributes", "rename the stage")
    k_parts = (
        *declared.rings,
        *declared.tables,
        *declared.scratches,
        *declared.matmuls,
        *declared.stores,
        *declared.turnstiles,
    )
    for name in k_parts:
        if name in TAKEN:
            raise InputError(
                "name",
                name,
                "is taken by what bodies get as k",
                "rename the ring, table, scratch, matmul, store or turnstile",
            )


def _resolve_types(declared: Declarations, dtypes: dict[str, DType]) -> dict[str, DType]:
    types: dict[str, DType] = {}
    parts: dict[str, TmaLoadStage | SharedStage | TmaStoreStage] = {**declared.stages, **declared.stores}
    for name, part in parts.items():
        given = dtypes.get(name)
        if part.dtype is not None and given is not None and given not in (part.dtype, part.dtype.in_memory):
            raise InputError(name, given.name, f"is declared with element type {part.dtype}", "convert the tensor")
        types[name] = part.dtype or given or bf16
    for name, store in declared.stores.items():
        if isinstance(store.source, (TmaLoadStage, SharedStage)):
            loaded = types[declared.name_of(store.source)]
            if name in dtypes and dtypes[name] != loaded.in_memory:
                raise InputError(
                    name, dtypes[name].name, f"is stored from slots of {loaded}", f"use a tensor of {loaded}"
                )
            types[name] = loaded
        elif isinstance(store.source, Wgmma):
            operand = types[declared.name_of(store.source.a)]
            if types[name] not in _types_of_sums(operand):
                rule = f"is no type that sums of {operand} products are stored in"
                fix = f"one of {', '.join(t.name for t in _types_of_sums(operand))}"
                raise InputError(name, types[name].name, rule, fix)
    return types


def _types_of_sums(operand: DType) -> tuple[DType, ...]:
    """The types that sums of products of *operand* are stored in."""
    return (int32, bf16, fp16, fp32) if operand.integer else (bf16, fp16, fp32, fp8_e4m3, fp8_e5m2)


def _check_matmuls(declared: Declarations, types: dict[str, DType], target: Arch) -> dict[str, str]:
    """The role that executes each matmul. Raises `InputError` for shapes, types or roles that wgmma does not take."""
    found: dict[str, str] = {}
    for name, mma in declared.matmuls.items():
        if not target.wgmma:
            raise InputError(f"Wgmma({name})", target.name, "wgmma exists on sm_90a only", "plan for sm_90a")
        phase = mma.a.ring.phases[-1]
        groups = [role for role in phase if role.by_warpgroup]
        if len(groups) != 1:
            raise InputError(
                f"Wgmma({name})",
                [declared.name_of(role) for role in phase],
                "needs one role of warpgroups in the ring's last phase",
                "Role(warpgroups=2)",
            )
        role, (m, k), (n, kb) = groups[0], *mma.extents
        of_a, of_b = declared.name_of(mma.a), declared.name_of(mma.b)
        a, b = types[of_a], types[of_b]
        warpgroups = role.warps // 4 // role.teams
        if k != kb:
            raise InputError(f"{of_b}.tile", mma.b.tile, f"its k extent differs from {of_a}'s {k}", "use one k")
        if not (a == b and a in (bf16, fp16, tf32, int8)) and not {a, b} <= {fp8_e4m3, fp8_e5m2}:
            rule = "takes two operands of one type, bf16, fp16, tf32 or int8, or two of fp8_e4m3 and fp8_e5m2"
            fix = (
                'give both stages dtype="tf32" (a Gemm\'s a and b: Operand(dtype="tf32"))'
                if {a, b} == {fp32}
                else "convert the tensors"
            )
            raise InputError(f"Wgmma({name})", f"{a} x {b}", rule, fix)
        if any(mma.transposed) and a.bytes != 2:
            rule = "takes operands of 8 and 32 bits contiguous along k only (PTX ISA, wgmma.mma_async: imm-trans)"
            raise InputError(f"Wgmma({name})", f"{a} x {b}", rule, "transpose them in memory, or use bf16")
        if mma.promote and a.integer:
            raise InputError(
                f"Wgmma({name}, promote)", True, "is for sums in fp32; those of int8 are exact", "leave it out"
            )
        if m % (64 * warpgroups):
            raise InputError(
                f"{of_a}.tile[{int(mma.transposed[0])}]",
                m,
                f"wgmma takes 64 rows, so a multiple of 64 x {warpgroups} warpgroups",
                "e.g. 128",
            )
        if n % 8 or n > 256:
            rule = "wgmma takes n a multiple of 8 up to 256"
            raise InputError(f"{of_b}.tile[{int(mma.transposed[1])}]", n, rule, "e.g. 128 or 256")
        if a.integer and n % 16 and n not in (8, 24):
            rule = "of int8, wgmma takes n a multiple of 16, 8 or 24 (PTX ISA, wgmma shapes)"
            raise InputError(f"{of_b}.tile[0]", n, rule, "e.g. 128 or 256")
        if k * a.bytes % 32:
            rule = "wgmma takes 32 bytes of k an instruction"
            raise InputError(f"{of_a}.tile[{1 - int(mma.transposed[0])}]", k, rule, "e.g. 64")
        if warpgroups > 2 and n > WIDEST_OF_THREE and mma.transposed[1]:
            rule = f"n is at most {WIDEST_OF_THREE} with three warpgroups where b is contiguous along n: wider tiles take two "
            rule += "instructions, between which its rows of 128 bytes are not cut"
            raise InputError(f"Wgmma({name}) tile", mma.shape[:2], rule, "use two warpgroups, or a narrower tile")
        _check_accumulators(name, mma, m * n // (128 * warpgroups), role)
        found[name] = declared.name_of(role)
    _check_together(declared, found)
    return found


def _check_together(declared: Declarations, roles: dict[str, str]) -> None:
    """Raises `InputError` if the accumulators of one role, such as a gate and what it gates, leave too few of a thread's
    registers for an epilogue of several. *roles*: matmul -> role."""
    for role_name in dict.fromkeys(roles.values()):
        names = [name for name in roles if roles[name] == role_name]
        role = declared.roles[role_name]
        room = {4: 192, 8: 184}.get(role.warps, 112)  # more spills, as the compiler was seen to report
        sums = [math.prod(declared.matmuls[name].shape[:2]) * role.teams // (32 * role.warps) for name in names]
        if len(names) > 1 and sum(sums) > room:
            raise InputError(
                " and ".join(f"Wgmma({name})" for name in names),
                [declared.matmuls[name].shape[:2] for name in names],
                f"need {sum(sums)} accumulator registers a thread together; {room} leave room for an epilogue of several with "
                f"{role.warps // 4} warpgroups",
                "use a smaller tile or more warpgroups",
            )


def _check_accumulators(name: str, mma: Wgmma, sums: int, role: Role) -> None:
    """Raises `InputError` if the accumulators leave too few of a thread's registers: of 232 (one or two warpgroups) or 160
    (three) it needs some 24 to 32 for all else."""
    room, needed = 208 if role.warps <= 8 else 128, sums * (2 if mma.promote else 1)
    if needed > room:
        groups = role.warps // 4
        twice = f", twice {sums} since sums are promoted" if mma.promote else ""
        raise InputError(
            f"Wgmma({name}) tile",
            mma.shape[:2],
            f"needs {needed} accumulator registers a thread{twice}; {room} leave room to work with {groups} warpgroups",
            "use a smaller tile or more warpgroups",
        )
