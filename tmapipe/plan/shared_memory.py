"""Shared memory of a CTA, and what refers to it: barriers, buffers, transfers, matmul operands."""

from __future__ import annotations

import math
from typing import Any

from tmapipe.barrier import BarrierRing
from tmapipe.dtypes import DType
from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.matmul import Wgmma
from tmapipe.multicast import peer_pattern
from tmapipe.peer_stage import PeerStage, SentStage
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.distributed import widest
from tmapipe.plan.model import WARP, Barrier, Buffer, HeldTile, Load, Matmul, NamedBarrier, Peer, RoleWarps, Store
from tmapipe.plan.moves import (
    check_load,
    check_result,
    check_store,
    default_columns,
    even_columns,
    rows_box,
    through_of,
    widest_swizzle,
)
from tmapipe.plan.peers import bytes_of, check_warps, far_phases, group_of, peers_of
from tmapipe.plan.queues import queue_in
from tmapipe.plan.readers import readers_of
from tmapipe.plan.rings import Queue, Ring
from tmapipe.plan.scratches import exchange_barriers, scratch_buffer
from tmapipe.plan.sent import held_tile
from tmapipe.plan.space import Space
from tmapipe.plan.syncs import MAX_NAMED_BARRIERS
from tmapipe.plan.thread_layout import vectors_of
from tmapipe.plan.thread_stores import by_threads
from tmapipe.register_tile import RegisterTile
from tmapipe.stage import SharedStage, SlotStage, TmaLoadStage, as_matrix
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["Layout"]


class Layout:
    """Shared memory from offset 0: all mbarriers (8 bytes each), then the buffers at their alignment.

    Args:
        declared: The parts of a schedule.
        types: Element type of each stage by name.
        roles: Where each role runs.
        matmul_roles: Matmul -> the role that executes it.
        launch: Registers a thread at launch.
        auto_stages: Slots of the ring that says no number.
    """

    def __init__(
        self,
        declared: Declarations,
        types: dict[str, DType],
        roles: dict[str, RoleWarps],
        matmul_roles: dict[str, str],
        launch: int,
        auto_stages: int,
    ):
        self.declared, self.types, self.roles, self.matmul_roles = declared, types, roles, matmul_roles
        self.name_of, self.launch = declared.name_of, launch
        self.barriers: list[Barrier] = []
        self.named_barriers: list[NamedBarrier] = []
        self.buffers: list[Buffer] = []
        self.rings: list[Ring] = []
        self.loads: list[Load] = []
        self.stores: list[Store] = []
        self.matmuls: list[Matmul] = []
        self.held: list[HeldTile] = []
        self.sends: list[Peer] = []
        self.space = Space()
        self.slots = {name: ring.stages or auto_stages for name, ring in declared.rings.items()}
        for name, ring in declared.rings.items():
            self._barriers(name, ring)
        for name, turnstile in declared.turnstiles.items():
            self._turnstile(name, roles[self.name_of(turnstile.role)])
        for name, scratch in declared.scratches.items():
            role = self.name_of(scratch.role)
            self.barriers += exchange_barriers(self.space, name, scratch, declared.cluster, role)
        self.queue = self._queue(*declared.queue) if declared.queue else None
        self.of: dict[str, Buffer] = {}
        for name, part in sorted(declared.stages.items(), key=lambda item: over_of(item[1]) is not None):
            slots, over = self.slots[self.name_of(part.ring)], over_of(part)
            below = None if over is None else self.of[self.name_of(over)]
            self.of[name] = self._buffer(name, slots, part.matrix, self._swizzle(name, part), below=below)
            if isinstance(part, (PeerStage, SentStage)):
                source = None if part.source is None else self.of[self.name_of(part.source)]
                self.sends.append(peers_of(part, declared.cluster, self.of[name], source, self.name_of(part.writer)))
            if isinstance(part, SharedStage) and not isinstance(part, PeerStage) and len(part.tile) > 1:
                vectors_of(name, part.tile, roles[self.name_of(part.writer)])
        for name, scratch in declared.scratches.items():
            self.buffers.append(scratch_buffer(self.space, name, scratch, declared.cluster))
        for name, load in declared.loads.items():
            self._load(name, load)
        for name, mma in declared.matmuls.items():
            self._matmul(name, mma)
        for name, tile in declared.register_tiles.items():
            self.held.append(held_tile(self, name, tile))
        for name, store in declared.stores.items():
            self._store(name, store)

    @property
    def bytes(self) -> int:
        """Of shared memory, in all."""
        return self.space.bytes

    def _barriers(self, name: str, ring: BarrierRing) -> None:
        inside = self.declared.stages_of(name)
        cluster = self.declared.cluster
        groups = {axes: None for part in inside.values() if (axes := group_of(part, cluster))}
        union = 0
        for axes in groups:
            union |= peer_pattern(axes)
        peers = max(1, union.bit_count())
        armed: dict[str, int] = {}
        loads: dict[str, tuple[str, ...]] = {}
        copies: dict[str, int] = {}
        writers: set[str] = set()
        for stage, part in inside.items():
            role = self.name_of(part.filler)
            if part.filled_by == "warps":
                writers.add(role)
                continue
            loads[role] = (*loads.get(role, ()), stage)
            if part.filled_by == "threads":
                copies[role] = copies.get(role, 0) + 1
            else:
                armed[role] = armed.get(role, 0) + bytes_of(part, self.types[stage], cluster)
        check_warps(inside.values(), self.roles, self.name_of)
        phases = tuple(tuple(self.name_of(role) for role in phase) for phase in ring.phases)
        signalling = phases[:-1] if ring.held else phases
        signals = tuple(
            role for p, phase in enumerate(signalling) for role in phase if p or role not in loads or role in writers
        )
        made = []
        far = far_phases(name, phases, [part for part in inside.values() if group_of(part, cluster)], self.name_of)
        slots = self.slots[name]
        for p, phase in enumerate(signalling):
            last = p == len(phases) - 1
            arming = {role: self.roles[role].team_warps for role in phase if role in armed}
            terms = [f"{count} expect-tx ({role})" for role, count in arming.items()]
            taking = {r: self.roles[r].warps if ring.held else self.roles[r].team_warps for r in phase}
            warps = {role: count for role, count in taking.items() if role in signals}
            terms += [f"{count} warps ({role})" for role, count in warps.items()]
            lanes = {role: WARP * count * copies[role] for role, count in taking.items() if role in copies and not p}
            terms += [f"{count} lanes of copies ({role})" for role, count in lanes.items()]
            if p in far and not last:
                warps = {role: count * peers for role, count in warps.items()}
                terms = [f"{term} x {peers} CTAs" if "warps" in term else term for term in terms]
            count = sum(arming.values()) + sum(warps.values()) + sum(lanes.values())
            formula = " + ".join(terms)
            if last and peers > 1:
                count, formula = count * peers, f"({formula}) x {peers} CTAs"
            label = {0: "full", len(phases) - 1: "free"}.get(p, f"ready{p}")
            offset = self.space.take(8 * slots, 8)
            made.append(Barrier(f"{name}.{label}", offset, slots, count, formula))
        self.barriers += made
        lag, readers, fenced = readers_of(name, self.declared, self.matmul_roles, self._storing_role)
        if ring.held:
            lag, readers = {}, {}
        for role, held in lag.items():
            if held >= slots:
                rule = f"role {role} holds back {held} slots while it reads the next, so {held + 1} or more are needed"
                raise InputError(f"BarrierRing({name}).stages", slots, rule, "use more stages or fewer reads in flight")
        how = (armed, signals, lag, readers, tuple(groups), peers, loads, ring.held)
        self.rings.append(Ring(name, slots, phases, tuple(made), *how, self._gone(inside, phases), fenced, far))

    def _gone(self, inside: dict[str, Any], phases: tuple[tuple[str, ...], ...]) -> dict[str, tuple[str, ...]]:
        """Of the stages *inside* a ring's slots, by role, those that phases before the role's have written others over."""
        gone: dict[str, tuple[str, ...]] = {}
        before: tuple[str, ...] = ()
        for phase in phases:
            gone |= {role: before for role in phase if before}
            written = (part.over for part in inside.values() if over_of(part) and self.name_of(part.writer) in phase)
            before += tuple(map(self.name_of, written))
        return gone

    def _turnstile(self, name: str, role: RoleWarps) -> None:
        units, what = (role.teams, "team") if role.teams > 1 else (role.warps // 4, "warpgroup")
        offset, warps = self.space.take(8 * units, 8), role.warps // units
        self.barriers.append(Barrier(f"{name}.turn", offset, units, warps, f"{warps} warps (the {what} before)"))

    def _queue(self, slots: int, words: int) -> Queue:
        warps = sum(role.warps for role in self.roles.values())
        queue = queue_in(self.space, slots, words, warps, math.prod(self.declared.cluster.values()))
        self.barriers += [queue.full, queue.free]
        self.buffers.append(queue.buffer)
        return queue

    def _storing_role(self, name: str, store: TmaStoreStage) -> str:
        if store.slot is not None:
            roles = (store.role,) if store.role is not None else store.slot.ring.phases[-1]
            last = [self.name_of(role) for role in roles]
            if len(last) != 1 or self.roles[last[0]].warps != 1:
                rule = "one role of one warp stores from a slot"
                raise InputError(f"TmaStoreStage({name}).role", last, rule, "Role(warps=1)")
        if store.storing is not None:
            return self.name_of(store.storing)
        assert store.source is not None
        return self.matmul_roles[self.name_of(store.source)]

    def _swizzle(self, name: str, part: TmaLoadStage | SharedStage) -> int:
        """Of a stage's slots (bytes).

        By default the widest span that divides a row, for slots that wgmma or warps read from many rows at once; none for
        others.
        """
        readers = [mma for mma in self.declared.matmuls.values() if part in mma.stages]
        row = part.tile[-1] * self.types[name].bytes
        if part.swizzle is not None:
            if part.swizzle and row % part.swizzle:
                rule = f"must divide a row of the tile ({row} bytes)"
                raise InputError(f"{name}.swizzle", part.swizzle, rule, "leave it out")
            return part.swizzle
        if not readers and (not part.spread or row % 32):
            return 0
        return widest_swizzle(f"{name}.tile", row)

    def _buffer(self, name: str, slots: int, tile: tuple[int, ...], swizzle: int, **how: Any) -> Buffer:
        self.buffers.append(self.space.buffer(name, slots, tile, self.types[name], swizzle, **how))
        return self.buffers[-1]

    def _load(self, name: str, load: TmaLoadStage) -> None:
        axes = group_of(load, self.declared.cluster)
        whole = load.multicast is not None and load.multicast.whole
        peers = 1 if whole else math.prod(each.ctas for each in axes)
        if axes:
            shared = [each.axis for each in axes if each.axis in load.dims]
            if shared:
                rule = f"CTAs along {', '.join(shared)} want different tiles of {name}"
                raise InputError(f"{name}.multicast", load.multicast, rule, "drop that axis")
            unit = 8 if self.of[name].swizzle else 1
            if load.tile[0] % peers or load.matrix[0] % (peers * unit):
                rule = f"{peers} multicast peers each load an equal part, in steps of {unit} rows"
                fix = f"use a multiple of {peers * unit}, or MulticastGroup(..., whole=True)"
                raise InputError(f"{name}.tile[0]", load.tile[0], rule, fix)
        argument = name
        if load.result is not None:
            argument = self.name_of(load.result)
            check_result(name, load, load.result)
        core = len(load.tile if load.windows is None else load.dims)
        own = (peers, axes, peer_pattern(axes), load.outside, load.strides, load.windows)
        also: Any = {field: getattr(load, field) for field in ("parts", "vector", "tensor_map", "l2_hint")}
        through = through_of(self.declared, load, self.of)
        made = Load(name, argument, self.of[name], load.dims, load.extents, *own, through, core=core, **also)
        if load.tensor_map:
            check_load(name, made)
        elif 0 < load.vector < made.buffer.dtype.bytes:
            rule = f"is at least an element of {made.buffer.dtype.bytes} bytes"
            raise InputError(f"{name}.vector", load.vector, rule, f"e.g. vector={made.buffer.dtype.bytes}")
        self.loads.append(made)

    def _matmul(self, name: str, mma: Wgmma) -> None:
        role = self.roles[self.matmul_roles[name]]
        self.matmuls.append(
            Matmul(
                name,
                None if isinstance(mma.a, Wgmma) else self.of[self.name_of(mma.a)],
                self.of[self.name_of(mma.b)],
                mma.shape,
                role.team_warps // 4,
                role.first_warp,
                role.teams,
                mma.promote,
                mma.transposed,
                widest(self.launch),
            )
        )

    def _store(self, name: str, store: TmaStoreStage) -> None:
        dtype = self.types[name]
        if store.vector:
            self._clipped(name, store)
            return self.stores.append(by_threads(name, store, dtype))
        accumulators = store.sums is not None
        if store.slot is not None:
            if store.slot.ring.held:
                rule = "is stored from a slot that is held while its ring is filled once a CTA"
                raise InputError(f"{name}.source", store.source, rule, "store what its role reads, with role=")
            buffer, tile = self.of[self.name_of(store.slot)], store.tile
        else:
            role = self.roles[self._storing_role(name, store)]
            if accumulators:
                owners = (role.team_warps if self._in_turn(store) else role.warps) // 4
                tile = store.parts_tile or (64, self._columns(name, store))
                tile = self._transposed(name, store, tile) if store.transposed else tile
                barrier = (128, role.warps // 4)
            else:
                if role.teams > 1:
                    rule = "has one team, if threads store what they compute: teams are at different tiles"
                    raise InputError(f"{name}.role", role.name, rule, "use two roles, or store a Wgmma's sums")
                tile, owners, barrier = as_matrix(store.tile), 1, (role.threads, 1)
                if len(tile) > 1:  # of one extent, it may hold one number a row
                    vectors_of(name, tile, role)
            row = tile[-1] * dtype.bytes
            spread = accumulators and store.parts_tile is None
            rows = f"{name}.columns" if store.columns else f"{name}.tile"
            swizzle = widest_swizzle(rows, row) if spread and row % 32 == 0 else 0
            buffer = self._buffer(name, owners * store.stages, tile, swizzle, owners=owners)
            if accumulators or role.warps > 1:
                first = 1 + sum(b.instances for b in self.named_barriers)
                if first + barrier[1] > MAX_NAMED_BARRIERS:
                    rule = "a CTA has 16, id 0 its own"
                    raise InputError("named barriers", first + barrier[1], rule, "use fewer stores")
                self.named_barriers.append(NamedBarrier(f"{name}.sync", first, barrier[0], barrier[1]))
        whole: tuple[int, ...] = ()
        if not accumulators:
            tile = store.tile
        elif len(store.tile) > 2 and store.parts_tile is None:
            whole, tile = self._box_of_rows(name, store, tile)
        full = (1,) * (len(store.dims) - len(tile)) + tile
        folded = tuple(store.folded.values())
        how = (store.reduce, folded, self._clipped(name, store), self._in_turn(store), whole, store.transposed)
        also: Any = {field: getattr(store, field) for field in ("parts", "tensor_map", "l2_hint")}
        made = Store(name, name, buffer, store.dims, full, *how, core=len(tile), **also)
        if made.tensor_map:
            check_store(name, made)
        self.stores.append(made)

    def _transposed(self, name: str, store: TmaStoreStage, tile: tuple[int, ...]) -> tuple[int, ...]:
        """A buffer for the transpose of what would fill one of *tile*."""
        dtype = self.types[name]
        if dtype.bytes == 1:
            rule = "is of 16 or 32 bits, where a store transposes accumulators"
            raise InputError(f"{name}.dtype", dtype.name, rule, "use bf16, or dims in the matmul's order")
        if store.parts_tile is not None or store.reduce or len(store.tile) > 2:
            rule = "is stored whole where accumulators are transposed"
            raise InputError(f"{name}.dims", store.dims, rule, "use dims in the matmul's order")
        return tile[::-1]

    def _box_of_rows(self, name: str, store: TmaStoreStage, tile: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """(the whole output tile along the store's dimensions, what one buffer of *tile* holds of it) where the rows of the
        accumulators are those of several dimensions."""
        assert store.sums is not None
        *outer, columns = store.tile
        box = rows_box(tuple(outer), tile[0])
        if box is None or (math.prod(outer), columns) != tuple(store.sums.shape[:2]):
            rule = f"has rows and columns of {store.sums.shape[:2]} accumulators, and every {tile[0]} rows make a box"
            raise InputError(f"{name}.tile", store.tile, rule, "e.g. tile=(8, 16, n) for 128 rows")
        return store.span, (*box, tile[1])

    def _in_turn(self, store: TmaStoreStage) -> bool:
        """Whether teams store in turns, through the same buffers."""
        return any(store in turnstile.stores for turnstile in self.declared.turnstiles.values())

    def _clipped(self, name: str, store: TmaStoreStage) -> bool:
        """Whether tiles have bounds of their own along its dimensions."""
        along = [dim for dim in store.dims if dim in self.declared.bounded]
        if along and not (isinstance(store.source, Wgmma) and len(store.dims) == 2 and along == [store.dims[0]]):
            rule = (
                f"has {along[0]}, along which tiles have bounds of their own: accumulators are stored to two dimensions"
            )
            raise InputError(f"{name}.dims", store.dims, rule, f'store a Wgmma\'s sums to "{along[0]} n"')
        return bool(along)

    def _columns(self, name: str, store: TmaStoreStage) -> int:
        """Of a buffer for accumulators."""
        n, dtype = store.tile[-2 if store.transposed else -1], self.types[name]
        unit = max(8, ALIGNMENT // dtype.bytes)
        if n % unit:
            start = f"TMA starts at multiples of {ALIGNMENT} bytes along a row"
            rule = f"has a multiple of {unit} columns if {dtype} is stored: {start}"
            raise InputError(f"{name}.tile", store.tile, rule, f"use {ceil_div(n, unit) * unit} columns")
        if isinstance(store.source, RegisterTile):  # its role holds it in one piece
            if store.columns not in (None, n):
                raise InputError(f"{name}.columns", store.columns, f"is {n}, all of a RegisterTile's", "leave it out")
            return n
        default = even_columns(n, 128 // dtype.bytes) if store.transposed else default_columns(n, dtype)
        columns = store.columns or default
        if columns > n or columns % unit or (store.reduce and n % columns):
            rule = f"is a multiple of {unit} up to {n}" + (" that divides it, for a reduction" if store.reduce else "")
            raise InputError(f"{name}.columns", columns, rule, "leave it out")
        return columns


def over_of(part: SlotStage) -> SlotStage | None:
    """The stage in whose memory *part* lies."""
    return part.over if isinstance(part, SharedStage) else None
