"""Makes a `Plan` from a schedule's declarations: element types, roles, registers, matmuls and shared memory, in this order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tmapipe.barrier import Role
from tmapipe.base import along, check_cluster
from tmapipe.base.arithmetic import DType, bf16, ceil_div, fp8_e4m3, fp8_e5m2, fp16, fp32, int32
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.errors import InputError, require
from tmapipe.parts import ClusterSum, RegisterTile, SharedStage, Wgmma
from tmapipe.plan import rings
from tmapipe.plan.declarations import Declarations, launch_registers, place_roles, share_registers
from tmapipe.plan.model import Plan, RoleWarps
from tmapipe.plan.rings import Arch, Barrier, Buffer, Exchanged, HeldTile, Matmul, NamedBarrier, Queue, arch_named
from tmapipe.plan.thread_layout import check_matmuls, vectors_of
from tmapipe.plan.transfers import group_of, load_of, readers_of, ring_of, store_of, storing_roles, widest_swizzle
from tmapipe.stage import RESERVED, LoadStage, SlotStage, TokenStage, as_matrix
from tmapipe.store_pipeline import StoreStage

# ---- space -----------------------------------------------------------------------------------------------------------


class Space:
    """Shared memory of a CTA, given out from offset 0 on to mbarriers and to slots.

    bytes: how many bytes are given out, with the gaps that alignment has left. barriers, buffers: who has them, in the order
    in which they were given out.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.barriers: list[Barrier] = []
        self.buffers: list[Buffer] = []
        self.gaps: list[tuple[int, int]] = []  # (start, end) of each gap that alignment has left

    def barrier(self, name: str, stages: int, count: int, formula: str) -> Barrier:
        """Gives memory to *stages* mbarriers. The arguments are those of `Barrier`."""
        made = Barrier(name, self._take(8 * stages, 8), stages, count, formula)
        self.barriers.append(made)
        return made

    def slots(
        self,
        name: str,
        stages: int,
        tile: tuple[int, ...],
        dtype: DType,
        swizzle: int = 0,
        owners: int = 1,
        gap: int = 0,
    ) -> Buffer:
        """Gives memory to the slots of a buffer. The arguments are those of `Buffer`."""
        pitch = math.prod(tile) * dtype.bytes + gap
        place = self._take(stages * pitch, 1024 if swizzle else 128)
        self.buffers.append(Buffer(name, place, stages, tile, dtype, swizzle, owners, gap))
        return self.buffers[-1]

    def _take(self, nbytes: int, alignment: int) -> int:
        """Gives out *nbytes* and returns their offset: in the first gap that has room for them, or at the end."""
        for i, (start, end) in enumerate(self.gaps):
            offset = ceil_div(start, alignment) * alignment
            if offset + nbytes <= end:
                self.gaps[i : i + 1] = [(start, offset), (offset + nbytes, end)]
                return offset
        offset = ceil_div(self.bytes, alignment) * alignment
        self.gaps.append((self.bytes, offset))
        self.bytes = offset + nbytes
        return offset


# ---- shared memory ---------------------------------------------------------------------------------------------------


class Layout:
    """All that lies in shared memory or refers to it: barriers, rings, buffers, exchanges, loads, matmuls, stores.

    All mbarriers (8 bytes each) come first, then the buffers, each at its alignment.

    Args:
        declared: The parts of a schedule.
        types: The element type of each stage, by the stage's name.
        roles: The warps of each role, by the role's name.
        matmul_roles: The role that executes each matmul, both by name.
        storing_roles: The role that executes each store, both by name.
        launch: Registers of a thread at launch.
        auto_stages: How many slots a ring has whose declaration does not say it.
    """

    def __init__(
        self,
        declared: Declarations,
        types: dict[str, DType],
        roles: dict[str, RoleWarps],
        matmul_roles: dict[str, str],
        storing_roles: dict[str, str],
        launch: int,
        auto_stages: int,
    ):
        self.declared, self.types, self.roles, self.launch = declared, types, roles, launch
        self.matmul_roles, self.storing_roles = matmul_roles, storing_roles
        self.space = Space()
        self.named_barriers: list[NamedBarrier] = []
        self.slots = {name: ring.stages or auto_stages for name, ring in declared.rings.items()}
        self.rings = [ring_of(self, name, ring) for name, ring in declared.rings.items()]
        for name, turnstile in declared.turnstiles.items():
            self._turn(name, roles[declared.name_of(turnstile.role)])
        scratches = [(name, each, declared.name_of(each.role)) for name, each in declared.scratches.items()]
        full: dict[str, Barrier] = {}  # that complete when numbers from other CTAs have arrived
        for name, each, role in scratches:
            if group_of(each, declared.cluster):
                warps = each.role.warps
                full[name] = self.space.barrier(f"{name}.full", each.copies, warps, f"{warps} expect-tx ({role})")
        self.queue = self._queue(*declared.queue) if declared.queue else None
        self.of: dict[str, Buffer] = {}
        for name, part in sorted(declared.stages.items(), key=lambda item: item[1].over is not None):
            self._stage(name, part)
        exchanges = [_exchange_of(self.of[name], part, self) for name, part in declared.shared.items()]
        self.exchanges = [each for each in exchanges if each is not None]
        for name, scratch, role in scratches:
            axes = group_of(scratch, declared.cluster)
            tile = (scratch.tile[0] * math.prod(each.ctas for each in axes), *scratch.tile[1:])
            gap = -math.prod(tile) * scratch.dtype.bytes % 128
            made = self.space.slots(name, scratch.copies, as_matrix(tile), scratch.dtype, gap=gap)
            self.exchanges += [Exchanged(name, made, axes, role, full=full[name])] if axes else []
        self.loads = [load_of(self, name, load) for name, load in declared.loads.items()]
        self.matmuls = [self._matmul(name, mma) for name, mma in declared.matmuls.items()]
        self.held = [self._held(name, tile) for name, tile in declared.register_tiles.items()]
        self.stores = [store_of(self, name, store) for name, store in declared.stores.items()]

    def buffer(
        self,
        name: str,
        slots: int,
        tile: tuple[int, ...],
        swizzle: int = 0,
        owners: int = 1,
        below: Buffer | None = None,
    ) -> Buffer:
        """Slots that TMA fills or stores, in the memory of *below* or in their own. Raises `InputError` for a tile or a
        swizzle that TMA cannot move."""
        dtype = self.types[name]
        row, slot = tile[-1] * dtype.bytes, math.prod(tile) * dtype.bytes
        rule = f"a row is {row} bytes, but TMA moves multiples of {ALIGNMENT}"
        require(row % ALIGNMENT == 0, f"{name}.tile", tile, rule, "widen the tile")
        if swizzle and (len(tile) != 2 or tile[0] % 8):
            rule = f"repeats every 8 rows, so a tile of two extents with a multiple of 8 rows is needed; it is {tile}"
            raise InputError(f"{name}.swizzle", swizzle, rule, "pass swizzle=0")
        alignment = 1024 if swizzle else 128
        gap = -slot % alignment if slots > 1 else 0
        rule = f"a slot is {slot} bytes, but swizzled slots start at multiples of {alignment}"
        require(not gap or not swizzle, f"{name}.tile", tile, rule, "use a larger tile, or pass swizzle=0")
        if below is None:
            return self.space.slots(name, slots, tile, dtype, swizzle, owners, gap)
        gap = below.pitch - slot
        if gap < 0 or (swizzle and (below.offset % alignment or (gap and slots > 1))):
            rule = f"lies over {below.name}, whose slots have {below.slot_bytes} bytes: " + (
                f"its own have {slot}" if gap < 0 else "swizzled slots must begin at multiples of 1024, without gaps"
            )
            raise InputError(f"{name}.tile", tile, rule, "choose another tile or swizzle, or leave over= out")
        made = Buffer(name, below.offset, slots, tile, dtype, swizzle, owners, gap, below.name)
        self.space.buffers.append(made)
        return made

    def sync(self, of: str, threads: int, instances: int = 1, what: str = "sync") -> None:
        """Adds named barriers of a store or turnstile, for *threads* threads each. Raises `InputError` if none is left."""
        first = rings.next_id(self.named_barriers, instances, "named barriers", of)
        self.named_barriers.append(NamedBarrier(f"{of}.{what}", first, threads, instances))

    def _stage(self, name: str, part: SlotStage) -> None:
        name_of = self.declared.name_of
        below = None if part.over is None else self.of[name_of(part.over)]
        slots = self.slots[name_of(part.ring)]
        self.of[name] = self.buffer(name, slots, part.matrix, self._swizzle(name, part), below=below)
        if isinstance(part, SharedStage):
            writer = part.writer if part.source is not None or part.writer is not None else part.sender
            if writer is not None and len(part.tile) > 1:
                vectors_of(name, part.tile, self.roles[name_of(writer)])

    def _turn(self, name: str, role: RoleWarps) -> None:
        if role.teams > 1:
            warps = role.warps // role.teams
            self.space.barrier(f"{name}.turn", role.teams, warps, f"{warps} warps (the team before)")
            return
        groups = role.warps // 4  # the warpgroup that waits, and the one before
        self.sync(name, 2 * 128, groups, "turn")

    def _queue(self, slots: int, words: int) -> Queue:
        """The ring through which a scheduler hands out tiles. Its slots are multiples of 16 bytes, which one st.async
        moves."""
        warps, ctas = sum(role.warps for role in self.roles.values()), math.prod(self.declared.cluster.values())
        full = self.space.barrier("tiles.full", slots, 1, "1 expect-tx (scheduler)")
        free = self.space.barrier("tiles.free", slots, warps * ctas, f"{warps} warps x {ctas} CTAs")
        return Queue(self.space.slots("tiles", slots, (ceil_div(words, 4) * 4,), int32), full, free)

    def _swizzle(self, name: str, part: SlotStage) -> int:
        """The swizzle of a stage's slots (bytes), 0 for none.

        If the stage does not say it: the widest span that divides a row, for slots of which wgmma or warps read many rows at
        once; no swizzle for other slots.
        """
        readers = [mma for mma in self.declared.matmuls.values() if part in mma.stages]
        row = part.tile[-1] * self.types[name].bytes
        if part.swizzle is not None:
            rule = f"must divide a row of the tile ({row} bytes)"
            require(not part.swizzle or row % part.swizzle == 0, f"{name}.swizzle", part.swizzle, rule, "leave it out")
            return part.swizzle
        if not readers and (not part.spread or row % 32):
            return 0
        return widest_swizzle(f"{name}.tile", row)

    def _matmul(self, name: str, mma: Wgmma) -> Matmul:
        role, name_of = self.roles[self.matmul_roles[name]], self.declared.name_of
        a = None if isinstance(mma.a, (Wgmma, RegisterTile)) else self.of[name_of(mma.a)]
        place = role.team_warps // 4, role.first_warp, role.teams
        how: dict[str, Any] = {
            "promote": mma.promote,
            "transposed": mma.transposed,
            "widest": rings.widest(self.launch),
        }
        how["in_flight"] = mma.in_flight if mma.in_registers else 0
        return Matmul(name, a, self.of[name_of(mma.b)], mma.shape, *place, **how)

    def _held(self, name: str, tile: RegisterTile) -> HeldTile:
        role = self.roles[self.declared.name_of(tile.role)]
        self.exchanges += [self._parts_of(name, tile, role)] if isinstance(tile, ClusterSum) else []
        return HeldTile(name, tile.shape, role.first_warp, role.warps // 4)

    def _parts_of(self, name: str, tile: ClusterSum, role: RoleWarps) -> Exchanged:
        ctas, space = self.declared.cluster.get(tile.axis, 1), self.space
        rule = f"must be how many CTAs the cluster has along {tile.axis}: {ctas}"
        require(ctas == tile.ctas, f"{name}.ctas", tile.ctas, rule, "change ctas= or the cluster")
        if (owner := self.matmul_roles[self.declared.name_of(tile.source)]) != role.name:
            raise InputError(f"{name}.role", role.name, "must be the role that executes the matmul", f"pass {owner}")
        rows, columns = tile.shape
        full = space.barrier(f"{name}.full", 1, 1, "1 expect-tx")
        free = space.barrier(f"{name}.free", 1, role.warps * ctas, f"{role.warps} warps x {ctas} CTAs")
        buffer, axes = space.slots(name, 1, (ctas * rows, columns), fp32), along(self.declared.cluster, [tile.axis])
        return Exchanged(name, buffer, axes, role.name, full=full, free=free)


def _exchange_of(buffer: Buffer, part: SharedStage, layout: Layout) -> Exchanged | None:
    """What the CTAs of a stage's group exchange; None if each CTA is alone in its group and sends nothing.

    Raises:
        InputError: A CTA that sends is alone in its group, or the source has another tile or swizzle.
    """
    declared, source = layout.declared, None if part.source is None else layout.of[layout.declared.name_of(part.source)]
    axes = group_of(part, declared.cluster)
    if not axes:
        if part.sender is None:
            return None
        rule = f"names axes along which a CTA has no peers in the cluster, which is {dict(declared.cluster)}"
        raise InputError(f"{buffer.name}.group", part.group, rule, 'e.g. cluster = {"n": 2}')
    sender = None if part.sender is None else declared.name_of(part.sender)
    made = Exchanged(buffer.name, buffer, axes, sender, source, part.reduce)
    if part.reduce is not None and source is not None:
        rows, *rest = buffer.tile
        whole = (made.peers * rows, *rest)
        if source.tile != whole or source.swizzle or buffer.swizzle:
            rule = f"needs a source with tiles of {whole}, and no swizzle in both; the source has {source.tile}"
            raise InputError(f"{buffer.name}.tile", buffer.tile, rule, f"give the source {made.peers} times the rows")
    elif source is not None and (source.tile, source.swizzle) != (buffer.tile, buffer.swizzle):
        rule = f"must be as in {source.name}: tiles of {source.tile}, swizzled in {source.swizzle} bytes"
        raise InputError(f"{buffer.name}.swizzle", buffer.swizzle, rule, "give the source the same tile and swizzle=")
    return made


# ---- planner ---------------------------------------------------------------------------------------------------------


#: Attributes of `k`, which bodies get (`tmapipe.kernel.KernelContext`). No declared part can have one of these names.
TAKEN = (
    "begin", "dependency_wait", "end_tile", "ends", "extent", "finish", "full", "isa", "launch_dependents", "name_of", "plan",
    "rank", "raw", "role", "steps", "sync", "tiles", "windows",
)  # fmt: skip
MAX_SLOTS = 12  # rings that fill shared memory stop here: more stages than this hide no more latency


def make_plan(
    declared: Declarations, dtypes: dict[str, DType], arch: str, room: int | None = None, ctas: int = 1
) -> Plan:
    """The plan of a schedule: all numbers that follow from its declarations.

    Args:
        declared: The parts of a schedule.
        dtypes: The element type of each tensor, by the stage's name; bf16 if neither *dtypes* nor the stage says it.
        arch: The name of the target architecture.
        room: How much shared memory (bytes) the plan may fill, if a ring has as many slots as fit; None: all of a CTA's.
        ctas: How many CTAs share a multiprocessor.

    Raises:
        InputError: No correct kernel can be built for the declarations.
    """
    target = arch_named(arch)
    check_cluster(declared.cluster, target.max_cluster)
    _check_names(declared)
    types = _resolve_types(declared, dtypes)
    _check_supported(declared, types, target)
    # ptxas makes a table of jumps of more than two roles and idle warps, which is read from memory before the first load
    shared = ctas > 1 if declared.matmuls else bool(declared.register_tiles) and len(declared.roles) > 2
    roles, warps = place_roles(declared, shared)
    launch = launch_registers(warps, target, ctas if shared else 1)
    matmul_roles = check_matmuls(declared, types, target, launch, shared)
    storing = storing_roles(declared, roles, matmul_roles)
    registers = share_registers(declared, roles, warps, launch, shared)

    auto = [name for name, ring in declared.rings.items() if ring.stages is None]
    rule = "can be left out for one ring only"
    require(len(auto) <= 1, "BarrierRing(stages)", auto, rule, "give the other rings a number")
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
    _check_early(declared, target, layout)
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
        exchanges=tuple(layout.exchanges),
        arguments=declared.arguments,
        warps=warps,
        smem_bytes=layout.space.bytes,
        launch_registers=launch,
        registers=registers,
        queue=layout.queue,
        tables={name: table.dims for name, table in declared.tables.items()},
        vectors={name: table.dtype for name, table in declared.tables.items() if table.dtype is not None},
        relations=declared.relations,
        overlaps=target.tma,
    )


def _check_early(declared: Declarations, target: Arch, layout: Layout) -> None:
    """Raises `InputError` if a role starts early, but its threads could touch global memory too early. Only for copies by the
    TMA engine it is proved that they do not."""
    loaded, stored = ({part.argument for part in parts} for parts in (layout.loads, layout.stores))
    for name, role in declared.roles.items():
        wrong = [each for each in role.early if each not in loaded or each in stored]
        rule = f"must name tensors that are loaded and not stored ({', '.join(sorted(loaded - stored))})"
        require(not wrong, f"Role({name}).early", role.early, rule, f"leave {', '.join(wrong)} out")
        own = [store for store in declared.stores.values() if store.vector and store.role is role]
        if role.early and (declared.tables or own or not target.tma):
            rule = "needs a role whose threads touch no global memory, a kernel without tables, and sm_90 or later"
            raise InputError(f"Role({name}).early", role.early, rule, "leave it out")


def _check_names(declared: Declarations) -> None:
    for name, part in declared.parts.items():
        if name in RESERVED and isinstance(part, (SlotStage, TokenStage, StoreStage)):
            raise InputError("stage name", name, "is the name of an attribute that every slot has", "rename the stage")
        if name in TAKEN and not isinstance(part, (Role, SlotStage, TokenStage)):
            raise InputError("name", name, "is the name of an attribute of k", f"rename the {type(part).__name__}")


def _check_supported(declared: Declarations, types: dict[str, DType], target: Arch) -> None:
    """Raises `InputError` for the first part of a schedule for which *target* has no hardware. (Matmuls and clusters are
    checked elsewhere.)"""
    if not target.tma:
        moved: dict[str, LoadStage | StoreStage] = {**declared.loads, **declared.stores}
        for name, part in moved.items():
            other = "a CpAsyncLoadStage" if name in declared.loads else "a ThreadStoreStage"
            rule = f"needs the TMA engine, which {target.name} lacks"
            require(part.vector, f"{type(part).__name__}({name})", target.name, rule, f"use {other}")
        for name, role in declared.roles.items():
            rule = f"is set by setmaxnreg, which {target.name} lacks"
            require(not role.registers, f"Role({name}).registers", role.registers, rule, "leave it out")
        rule = f"hands tiles on by st.async, which {target.name} lacks"
        require(declared.queue is None, "Schedule.tiles", target.name, rule, "use PersistentTiles()")
    for name, dtype in types.items():
        if dtype.name.startswith("fp8") and not target.fp8:
            raise InputError(f"{name}.dtype", dtype.name, f"is a type that {target.name} cannot convert", "use bf16")


def _resolve_types(declared: Declarations, dtypes: dict[str, DType]) -> dict[str, DType]:
    types: dict[str, DType] = {}
    parts: dict[str, SlotStage | StoreStage] = {**declared.stages, **declared.stores}
    for name, part in parts.items():
        given = dtypes.get(name)
        if part.dtype is not None and given is not None and given not in (part.dtype, part.dtype.in_memory):
            raise InputError(name, given.name, f"is declared with element type {part.dtype}", "convert the tensor")
        types[name] = part.dtype or given or bf16
    for name, load in declared.loads.items():
        if load.input is not None:
            other = types[declared.name_of(load.input)]
            types[name] = load.dtype or other
            rule = f"must be {other}, as for {declared.name_of(load.input)}, which loads the same tensor"
            require(types[name].in_memory == other.in_memory, f"{name}.dtype", types[name].name, rule, "leave it out")
    for name, part in declared.shared.items():
        if part.source is not None:
            types[name] = types[declared.name_of(part.source)]
    for name in (declared.name_of(stage) for mma in declared.matmuls.values() for stage in mma.stages):
        types[name].check_held(name, multiplied=True)
    for name, store in declared.stores.items():
        if store.slot is not None:
            loaded = types[declared.name_of(store.slot)]
            if name in dtypes and dtypes[name] != loaded.in_memory:
                rule = f"is stored from slots of {loaded}"
                raise InputError(name, dtypes[name].name, rule, f"use a tensor of {loaded}")
            types[name] = loaded
        elif isinstance(store.source, Wgmma):
            operand = types[declared.name_of(store.source.stages[0])]
            rule = f"is no type in which sums of {operand} products can be stored"
            fix = f"one of {', '.join(t.name for t in types_of_sums(operand))}"
            require(types[name] in types_of_sums(operand), name, types[name].name, rule, fix)
        if store.reduce and types[name].name not in store.reducible:
            rule = f"is no type in which TMA stores can {store.reduce}"
            raise InputError(name, types[name].name, rule, f"one of {', '.join(store.reducible)}")
        types |= dict.fromkeys((n for n, load in declared.loads.items() if load.result is store), types[name])
    return types


def types_of_sums(operand: DType) -> tuple[DType, ...]:
    """The types in which sums of products of *operand* can be stored."""
    return (int32, bf16, fp16, fp32) if operand.integer else (bf16, fp16, fp32, fp8_e4m3, fp8_e5m2)
