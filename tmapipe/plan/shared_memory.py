"""Shared memory of a CTA, and what refers to it: barriers, buffers, transfers, matmul operands."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tmapipe.cluster_sum import ClusterSum
from tmapipe.dtypes import DType, fp32, int32
from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.matmul import Wgmma
from tmapipe.peer_stage import PeerStage, ReducedStage, SentStage
from tmapipe.plan.arrivals import group_of, ring_of
from tmapipe.plan.barriers import NamedBarrier, next_id
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.distributed import SentParts, widest
from tmapipe.plan.model import Buffer, HeldTile, Matmul, Peer, RoleWarps
from tmapipe.plan.rings import Queue
from tmapipe.plan.space import Space
from tmapipe.plan.thread_layout import vectors_of
from tmapipe.plan.transfers import load_of, store_of, widest_swizzle
from tmapipe.reduction_scratch import ReductionScratch
from tmapipe.register_tile import RegisterTile
from tmapipe.scratch import Scratch
from tmapipe.stage import SharedStage, SlotStage, TmaLoadStage, as_matrix
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["Layout"]


class Layout:
    """Shared memory from offset 0: all mbarriers (8 bytes each), then the buffers at their alignment.

    Args:
        declared: The parts of a schedule.
        types: Element type of each stage by name.
        roles: Where each role runs.
        matmul_roles: Matmul -> the role that executes it.
        storing_roles: Store -> the role that executes it.
        launch: Registers a thread at launch.
        auto_stages: Slots of the ring that says no number.
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
        for name, scratch in declared.scratches.items():
            if self._peers(scratch) > 1:  # on which numbers from other CTAs complete
                warps, role = scratch.role.warps, declared.name_of(scratch.role)
                self.space.barrier(f"{name}.full", scratch.copies, warps, f"{warps} expect-tx ({role})")
        self.queue = self._queue(*declared.queue) if declared.queue else None
        self.of: dict[str, Buffer] = {}
        self.sends: list[Peer] = []
        for name, part in sorted(declared.stages.items(), key=lambda item: _over_of(item[1]) is not None):
            self._stage(name, part)
        for name, scratch in declared.scratches.items():
            tile = (scratch.tile[0] * self._peers(scratch), *scratch.tile[1:])
            gap = -math.prod(tile) * scratch.dtype.bytes % 128
            self.space.slots(name, scratch.copies, as_matrix(tile), scratch.dtype, gap=gap)
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
        """Slots that the engine moves: in the memory of *below*, or in their own. Raises `InputError` for what TMA does not
        take."""
        dtype = self.types[name]
        row, slot = tile[-1] * dtype.bytes, math.prod(tile) * dtype.bytes
        if row % ALIGNMENT:
            rule = f"a row is {row} bytes, but TMA moves multiples of {ALIGNMENT}"
            raise InputError(f"{name}.tile", tile, rule, "widen the tile")
        if swizzle and (len(tile) != 2 or tile[0] % 8):
            rule = f"repeats every 8 rows, so not in a tile of {tile}"
            raise InputError(f"{name}.swizzle", swizzle, rule, "pass swizzle=0")
        alignment = 1024 if swizzle else 128
        gap = -slot % alignment if slots > 1 else 0
        if gap and swizzle:
            rule = f"a slot is {slot} bytes, but swizzled slots start at multiples of {alignment}"
            raise InputError(f"{name}.tile", tile, rule, "use a larger tile, or pass swizzle=0")
        if below is None:
            return self.space.slots(name, slots, tile, dtype, swizzle, owners, gap)
        gap = below.pitch - slot
        if gap < 0 or (swizzle and (below.offset % alignment or (gap and slots > 1))):
            rule = f"lies over {below.name}, whose slots have {below.slot_bytes} bytes: " + (
                f"it has {slot}" if gap < 0 else "swizzled slots begin at multiples of 1024, with none between"
            )
            raise InputError(f"{name}.tile", tile, rule, "choose another tile or swizzle, or leave over= out")
        made = Buffer(name, below.offset, slots, tile, dtype, swizzle, owners, gap, below.name)
        self.space.buffers.append(made)
        return made

    def sync(self, store: str, threads: int, instances: int = 1) -> None:
        """A named barrier for those who fill buffers of *store*. Raises `InputError` if there is none left."""
        first = next_id(self.named_barriers, instances, "named barriers", store)
        self.named_barriers.append(NamedBarrier(f"{store}.sync", first, threads, instances))

    def _stage(self, name: str, part: TmaLoadStage | SharedStage) -> None:
        name_of, over = self.declared.name_of, _over_of(part)
        below = None if over is None else self.of[name_of(over)]
        slots = self.slots[name_of(part.ring)]
        self.of[name] = made = self.buffer(name, slots, part.matrix, self._swizzle(name, part), below=below)
        if isinstance(part, (PeerStage, SentStage)):
            source = None if part.source is None else self.of[name_of(part.source)]
            self.sends.append(_peers_of(part, self.declared.cluster, made, source, name_of(part.writer)))
        if isinstance(part, SharedStage) and not isinstance(part, PeerStage) and len(part.tile) > 1:
            vectors_of(name, part.tile, self.roles[name_of(part.writer)])

    def _peers(self, scratch: Scratch) -> int:
        """CTAs that send each other numbers in it."""
        group = scratch.group if isinstance(scratch, ReductionScratch) else None
        return 1 if group is None else group.size(self.declared.cluster)

    def _turn(self, name: str, role: RoleWarps) -> None:
        if role.teams > 1:
            warps = role.warps // role.teams
            self.space.barrier(f"{name}.turn", role.teams, warps, f"{warps} warps (the team before)")
            return
        groups = role.warps // 4  # the warpgroup that waits, and the one before
        first = next_id(self.named_barriers, groups, "named barriers", name)
        self.named_barriers.append(NamedBarrier(f"{name}.turn", first, 2 * 128, groups))

    def _queue(self, slots: int, words: int) -> Queue:
        """Slots of whole 16-byte units, which is what one st.async moves."""
        warps, ctas = sum(role.warps for role in self.roles.values()), math.prod(self.declared.cluster.values())
        full = self.space.barrier("tiles.full", slots, 1, "1 expect-tx (scheduler)")
        free = self.space.barrier("tiles.free", slots, warps * ctas, f"{warps} warps x {ctas} CTAs")
        return Queue(self.space.slots("tiles", slots, (ceil_div(words, 4) * 4,), int32), full, free)

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

    def _matmul(self, name: str, mma: Wgmma) -> Matmul:
        role, name_of = self.roles[self.matmul_roles[name]], self.declared.name_of
        return Matmul(
            name,
            None if isinstance(mma.a, Wgmma) else self.of[name_of(mma.a)],
            self.of[name_of(mma.b)],
            mma.shape,
            role.team_warps // 4,
            role.first_warp,
            role.teams,
            mma.promote,
            mma.transposed,
            widest(self.launch),
        )

    def _held(self, name: str, tile: RegisterTile) -> HeldTile:
        role = self.roles[self.declared.name_of(tile.role)]
        sent = self._sent_parts(name, tile, role) if isinstance(tile, ClusterSum) else None
        return HeldTile(name, tile.shape, role.first_warp, role.warps // 4, sent)

    def _sent_parts(self, name: str, tile: ClusterSum, role: RoleWarps) -> SentParts:
        ctas, space = self.declared.cluster.get(tile.axis, 1), self.space
        if ctas != tile.ctas:
            rule = f"is how many CTAs the cluster has along {tile.axis}: {ctas}"
            raise InputError(f"{name}.ctas", tile.ctas, rule, "say the same in both")
        if self.matmul_roles[self.declared.name_of(tile.source)] != role.name:
            raise InputError(f"{name}.role", role.name, "is the role that executes the matmul", "pass that")
        rows, columns = tile.shape
        full = space.barrier(f"{name}.full", 1, 1, "1 expect-tx")
        free = space.barrier(f"{name}.free", 1, role.warps * ctas, f"{role.warps} warps x {ctas} CTAs")
        return SentParts(space.slots(name, 1, (ctas * rows, columns), fp32), full, free, tile.axis, ctas)


def _peers_of(
    part: PeerStage | SentStage, cluster: Mapping[str, int], buffer: Buffer, source: Buffer | None, role: str
) -> Peer:
    """What is known of the copies of a stage.

    Args:
        buffer, source: Of the stage, and of what is copied; None: what threads have in registers.
        role: That sends.

    Raises:
        InputError: The group has one CTA, or the two lie in their slots in different ways.
    """
    axes = group_of(part, cluster)
    if not axes:
        rule = f"names axes of the cluster, which is {dict(cluster)}: along these a CTA has no peers"
        raise InputError(f"{buffer.name}.group", part.group, rule, 'e.g. cluster = {"n": 2}')
    peers, reduce = math.prod(each.ctas for each in axes), part.reduce if isinstance(part, ReducedStage) else None
    if reduce is not None and source is not None:
        rows, *rest = buffer.tile
        whole = (peers * rows, *rest)
        if (source.tile, source.dtype) != (whole, buffer.dtype) or source.swizzle or buffer.swizzle:
            rule = f"is of a source of {whole} {buffer.dtype}, both unswizzled; it has {source.tile} {source.dtype}"
            raise InputError(f"{buffer.name}.tile", buffer.tile, rule, f"give the source {peers} times the rows")
    elif source is not None and (source.tile, source.swizzle) != (buffer.tile, buffer.swizzle):
        rule = f"lies in its slots as {source.name} does: tiles of {source.tile}, swizzled in {source.swizzle} bytes"
        raise InputError(f"{buffer.name}.swizzle", buffer.swizzle, rule, "give the source the same tile and swizzle=")
    return Peer(buffer.name, buffer, source, role, axes, peers, reduce)


def _over_of(part: SlotStage) -> SlotStage | None:
    """The stage in whose memory *part* lies."""
    return part.over if isinstance(part, SharedStage) else None
