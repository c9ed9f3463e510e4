"""What bodies hold of further parts: tiles and sums that a cluster exchanges, descriptors, tokens, barriers of roles,
raw code."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import attrs

from tmapipe.barrier import Role
from tmapipe.base.tensor_map import Along, along, rank_stride
from tmapipe.errors import InputError, ScopeError
from tmapipe.isa.exchange import ClusterExchange, Exchange
from tmapipe.isa.fragment import Carried, Fragment, SlotRef, is_index
from tmapipe.isa.ops import Isa
from tmapipe.parts.matmul import RegisterTile
from tmapipe.parts.stages import DescriptorStage, L2Stage, PeerStage, ReducedStage, ReductionScratch, SentStage
from tmapipe.plan.model import Load, Peer, Store
from tmapipe.plan.rings import HeldTile
from tmapipe.protocol.matmuls import Accumulator, BoundRegisterTile, TileValues
from tmapipe.protocol.ring import Slot
from tmapipe.protocol.slots import PartInSlot, SlotPart
from tmapipe.protocol.tile import (
    Tile,
    checked_values,
    cluster_coordinate,
    layout_of,
    peer_mask,
    peer_rank,
    share_index,
    stands_for,
)
from tmapipe.stage import SharedStage
from tmapipe.store_pipeline import StoredStage

# ---- peers -----------------------------------------------------------------------------------------------------------
#
# The tile of a `PeerStage` in an open slot: as other tiles, and sent to other CTAs of the cluster.


class GroupInSlot(PartInSlot):
    """The tile of a stage in one open slot, of which CTAs of a group have one each."""

    @property
    def axes(self) -> tuple[Along, ...]:
        """Along which the CTAs of the group lie."""
        raise NotImplementedError

    @property
    def rank(self) -> Any:
        """The calling CTA's index among those of its group, from 0 on."""
        return share_index(self.part.isa, self.axes)

    @property
    def peers(self) -> int:
        """How many CTAs are in the group."""
        return math.prod(each.ctas for each in self.axes)


@stands_for(SharedStage)
class SharedInSlot(GroupInSlot):
    """The tile of a `SharedStage` in one open slot, and those of the other CTAs in theirs."""

    @property
    def axes(self) -> tuple[Along, ...]:
        name, plan = self.part.buffer.name, self.part.isa.plan
        if name not in plan.read_by_peers:
            rule = (
                f"is a SharedStage with a group of CTAs, of a cluster with several; the cluster is {dict(plan.cluster)}"
            )
            raise InputError(f"slot.{name}", name, rule, "declare its group=, and the cluster")
        return plan.read_by_peers[name]

    def read_from(
        self, peer: Any, *, like: Fragment | None = None, tile: tuple[int, int] | None = None, at: Any = None
    ) -> Fragment:
        """The elements of the tile in the same slot of a CTA of the group, as of `read`.

        Args:
            peer: Its index in the group.
            like: Distributed as this fragment is.
            tile: Only a part of the tile, of these (rows, columns).
            at: Where a part begins (row, column).

        Raises:
            InputError: There is no such CTA, or no such part.
        """
        isa, buffer, name = self.part.isa, self.part.buffer, f"slot.{self.part.buffer.name}.read_from"
        if not is_index(peer, self.peers):
            raise InputError(f"{name}(peer)", peer, f"is an index into the group's {self.peers} CTAs", "count from 0")
        self.by_threads()
        whole = tile is None and like is None
        layout, begin = self._part_layout(name, like, buffer.tile if whole else tile, (0, 0) if at is None else at)
        return isa.fragments.read_peer(self.ref, peer_rank(isa, self.axes, peer), layout, begin)


@stands_for(PeerStage)
class PeerInSlot(GroupInSlot):
    """The tile of a `PeerStage` in one open slot."""

    @property
    def peer(self) -> Peer:
        """What is sent to it."""
        return next(peer for peer in self.part.isa.plan.sends if peer.name == self.part.buffer.name)

    @property
    def axes(self) -> tuple[Along, ...]:
        return self.peer.axes

    def send(self, to: Any, *, part: Any = None, into: Any = 0) -> None:
        """Starts to copy the source's tile to a CTA of the group, where it is this stage's tile in the same slot.

        In each slot every CTA gets one tile: all send to different ones, such as their right neighbours.

        Args:
            to: Its index in the group.
            part: Only this one of as many equal parts, along the tile's first extent, as the group has CTAs. Each CTA then
                sends so many, and gets so many.
            into: Which part it becomes there.

        Raises:
            ScopeError: In a role other than the sender.
            InputError: An index is outside the group.
        """
        isa, peer, name = self.part.isa, self.peer, f"slot.{self.peer.name}.send"
        self._check(name, to=to, part=0 if part is None else part, into=into)
        if part is not None:
            units = 8 if peer.buffer.swizzle else 1
            row = peer.buffer.tile[-1] * peer.buffer.dtype.bytes
            if peer.buffer.tile[0] % (peer.peers * units) or (units > 1 and row > peer.buffer.swizzle):
                rule = f"has {peer.peers} equal parts, each in one piece of memory"
                fix = "give the stage such a tile, or send all of it"
                raise InputError(f"{name}(part)", peer.buffer.tile, rule, fix)
        isa.peer_copy(peer, self.slot.index, peer_rank(isa, peer.axes, to), self.end.signalled, part, into)

    def _check(self, name: str, **indices: Any) -> None:
        """Raises an error unless the sender sends, to indices in the group."""
        peer = self.peer
        self.slot._check_open(peer.name)
        if self.part.role != peer.role:
            raise ScopeError(f"{name} in role {self.part.role!r}. Only its sender, {peer.role!r}, sends.")
        for argument, index in indices.items():
            if not is_index(index, peer.peers):
                rule, fix = f"is an index into the group's {peer.peers} CTAs", "(slot.x.rank + 1) % slot.x.peers"
                raise InputError(f"{name}({argument})", index, rule, f"count from 0, e.g. {fix}")


@stands_for(ReducedStage)
class ReducedInSlot(PeerInSlot):
    """The tile of a `ReducedStage` in one open slot."""

    def send(self, to: Any) -> None:  # type: ignore[override]
        """Starts to reduce part *to* of the source into the tile of the CTA of this index, in the same slot. All CTAs do so
        once for each of the group.

        Raises:
            ScopeError: In a role other than the sender.
            InputError: The index is outside the group.
        """
        isa, peer = self.part.isa, self.peer
        self._check(f"slot.{peer.name}.send", to=to)
        isa.peer_copy(peer, self.slot.index, peer_rank(isa, peer.axes, to), self.end.signalled, to)


@stands_for(SentStage)
class SentInSlot(PeerInSlot):
    """The tile of a `SentStage` in one open slot."""

    def send(self, values: Fragment, to: Any) -> None:  # type: ignore[override]
        """Writes the tile of another CTA, in the same slot. All CTAs send to different ones.

        Args:
            values: A fragment of as many rows and columns, of which each thread has four bytes or more side by side.
            to: The CTA's index in the group.

        Raises:
            ScopeError: In a role other than the sender.
            InputError: The fragment has other extents, or the index is outside the group.
        """
        isa, peer, name = self.part.isa, self.peer, f"slot.{self.peer.name}.send"
        self._check(name, to=to)
        values = checked_values(name, peer.buffer, values)
        layout = layout_of(name, values)
        if values.along != "tile" or layout.width * peer.buffer.dtype.bytes % 4:
            rule = "is a whole tile, of which each thread has four bytes or more side by side"
            raise InputError(name, values, rule, "read it in its own distribution, or send it as fp32")
        isa.fragments.send_tile(values, self.ref, self.end.signalled, peer_rank(isa, peer.axes, to))


# ---- cluster sum -----------------------------------------------------------------------------------------------------
#
# A `ClusterSum` in its role: parts of a sum go from each CTA to its peers by st.async.


class BoundClusterSum(Carried):
    """All warps of the role tell the peers when the slot is free, send, and add. Its parity is in a register.

    At the end nothing is in flight: a CTA has got all parts, and its peers wait for what it has sent.
    """

    _facts: ClassVar[dict[str, str]] = {"started": "same"}

    def __init__(self, isa: Isa, plan: HeldTile):
        assert plan.sent is not None
        self.isa, self.plan, self.sent = isa, plan, plan.sent
        self.slot, self.parity = SlotRef(plan.sent.buffer, 0), isa.cells(0)
        self.started = False
        isa.follow(self)

    def start(self) -> None:
        """Tells the peers that this CTA can take their parts of the next sum. Once before each `add`: the earlier, the less
        they wait for it."""
        isa, sent = self.isa, self.sent
        if self.started:
            raise ScopeError(f"k.{self.plan.name}.start() a second time. Call add() first.")
        self.started = True
        isa.when(
            isa.warp == self.plan.first_warp,
            lambda: isa.mbarrier_arrive_expect_tx(sent.full, 0, sent.buffer.slot_bytes),
        )
        isa.mbarrier_arrive_cluster(sent.free, 0, peer_mask(isa, along(isa.plan.cluster, [sent.axis])))

    def add(self, acc: Accumulator) -> TileValues:
        """The sums over the CTAs of this CTA's columns of *acc*, as a store takes them. Every peer calls it as often."""
        if not self.started:
            raise ScopeError(f"k.{self.plan.name}.add() without start(). Call that before the mainloop.")
        isa, sent, parity, columns = self.isa, self.sent, self.parity[0], self.plan.shape[1]
        own, stride = cluster_coordinate(isa, sent.axis), rank_stride(isa.plan.cluster, sent.axis)
        isa.mbarrier_wait(sent.free, 0, parity)
        first = isa.cta_rank - own * stride
        for i in range(sent.ctas):
            values = acc.columns(0, i * columns, columns)
            isa.fragments.send(values, self.slot, sent.full, first + i * stride, self._share(own), self._shares)
        isa.mbarrier_wait(sent.full, 0, parity)
        total = functools.reduce(operator.add, map(self._received, range(sent.ctas)))
        isa.fence_proxy_async()
        isa.warp_sync()
        self.parity[0], self.started = parity ^ 1, False
        return TileValues(self.plan, total)

    @property
    def _shares(self) -> int:
        """Parts of the slot: one from each warp of each CTA."""
        return self.sent.ctas * 4 * self.plan.warpgroups

    def _share(self, cta: Any) -> Any:
        """That from the warp of this number in CTA *cta* of the peers."""
        return cta * 4 * self.plan.warpgroups + self.isa.warp - self.plan.first_warp

    def _received(self, cta: int) -> Fragment:
        return self.isa.fragments.received(self.slot, self._share(cta), self._shares)


@stands_for(RegisterTile)
def _of_tile(k: Any, name: str, tile: RegisterTile) -> BoundRegisterTile | BoundClusterSum:
    plan: HeldTile = k.plan.distributed(name)
    return BoundRegisterTile(plan) if plan.sent is None else BoundClusterSum(k.isa, plan)


# ---- exchanges -------------------------------------------------------------------------------------------------------
#
# What a role's `ReductionScratch` is in its warps: numbers exchanged within the CTA, or with others of the cluster.


@stands_for(ReductionScratch)
def _of_scratch(k: Any, name: str, scratch: ReductionScratch) -> None:
    """Fragments find it: bodies have no name for it."""
    isa, role = k.isa, k.role
    buffer = isa.plan.buffer(name)
    peers = buffer.tile[0] // role.warps
    if scratch.group is None or peers == 1:
        found: Exchange = Exchange(isa, buffer, isa.syncs.of([role]))
    else:
        axes = scratch.group.along(isa.plan.cluster)
        full = isa.plan.barrier(f"{name}.full")
        found = ClusterExchange(isa, buffer, full, peer_mask(isa, axes), share_index(isa, axes), peers)
    isa.fragments.exchanges[role.first_warp] = found


# ---- tokens ----------------------------------------------------------------------------------------------------------
#
# Stages without memory in an open slot: prefetches into L2, and what has been stored.


class AheadInSlot(Carried):
    """The tile of an `L2Stage` in an open slot, which is nowhere yet. part: of the stage that it is ahead of."""

    def __init__(self, part: SlotPart, slot: Slot):
        self.tile = PartInSlot(part, slot)

    def prefetch(self, tile: Tile | None = None, **coordinates: Any) -> None:
        """Asks for a tile in L2: a hint, of which nothing waits. Beyond the tensor's end it does nothing.

        Args:
            tile: Its coordinates, in tiles.
            coordinates: Coordinates by dimension, in tiles, instead of those of *tile*.

        Raises:
            ScopeError: In a role other than the ring's producer.
            InputError: A coordinate is missing or unknown.
        """
        self.tile.prefetch(tile, **coordinates)


@stands_for(L2Stage)
def _ahead(k: Any, name: str, stage: L2Stage) -> Any:
    load = k.plan.load(k.name_of(stage.source))
    buffer = attrs.evolve(load.buffer, name=name)  # errors name the L2Stage
    return functools.partial(AheadInSlot, SlotPart(k.isa, k.role.name, buffer, load))


class StoredInSlot(Carried):
    """A `StoredStage` in an open slot."""

    def __init__(self, isa: Isa, name: str, store: Store, slot: Slot):
        self.isa, self.name, self.plan, self.slot = isa, name, store, slot

    def publish(self) -> None:
        """Waits until all tiles that this role has stored so far are written, and fences, so that whoever enters the slot in
        the next phase can load them.

        Raises:
            ScopeError: In another role than the ring's producer.
        """
        isa, end = self.isa, self.slot.end
        if end.phase != 0:
            raise ScopeError(f"slot.{self.name}.publish() in role {end.role!r}. Only the ring's producer stores.")
        if not self.plan.vector:
            isa.bulk_wait_group(0, read=False)
        isa.fence_proxy_async_global()
        isa.warp_sync()


@stands_for(StoredStage)
def _stored(k: Any, name: str, stage: StoredStage) -> Any:
    return functools.partial(StoredInSlot, k.isa, name, k.plan.store(k.name_of(stage.store)))


# ---- descriptors -----------------------------------------------------------------------------------------------------
#
# The descriptor of a `DescriptorStage` in an open slot: set by the producer, acquired by the role that loads.


class View(Carried):
    """Rows of a tensor that a descriptor shows, for loads through it while its slot is open."""

    def __init__(self, load: Load, slot: Slot):
        self.load, self.slot = load, slot


@stands_for(DescriptorStage)
class DescriptorInSlot(PartInSlot):
    """The descriptor of a `DescriptorStage` in one open slot."""

    @property
    def loaded(self) -> Load:
        """What is loaded through it."""
        return next(load for load in self.part.isa.plan.loads if load.through == self.part.buffer)

    def set(self, first: Any, rows: Any) -> None:
        """Makes the descriptor one of *rows* rows of the stage's tensor, from row *first* on: at least one row, all of them in
        the tensor. (What lies outside, the hardware would load; the model raises `HazardError`.)

        Raises:
            ScopeError: In a role other than the ring's producer.
            InputError: One is no whole number.
        """
        name = f"slot.{self.part.buffer.name}.set"
        if self.end.phase != 0:
            raise ScopeError(f"{name} in role {self.part.role!r}. Only the ring's producer sets descriptors.")
        for argument, value in (("first", first), ("rows", rows)):
            if not is_index(value):
                raise InputError(f"{name}({argument})", value, "is a whole number of rows", "e.g. 0")
        self.by_threads(writes=True)
        self.part.isa.descriptor_write(self.loaded, self.part.buffer, self.slot.index, first, rows)

    def acquire(self) -> View:
        """What loads go through, for the role that loads.

        Raises:
            ScopeError: In another role.
        """
        name = f"slot.{self.part.buffer.name}.acquire"
        isa, load = self.part.isa, self.loaded
        loaders = {role for ring in isa.plan.rings for role, names in ring.loads.items() if load.name in names}
        if self.part.role not in loaders:
            raise ScopeError(f"{name} in role {self.part.role!r}. Only the role that loads {load.name!r} does.")
        self.by_threads()
        isa.descriptor_acquire(self.part.buffer, self.slot.index)
        return View(load, self.slot)


# ---- syncs -----------------------------------------------------------------------------------------------------------
#
# ``k.sync()``: a barrier for the threads of one role, or of several.


def sync(k: Any, *others: Role) -> None:
    """``bar.sync``: waits until all threads of this role have come here, and those of *others*, which call it likewise.

    Then all see what any of them wrote before. A team waits for its own threads only.

    Args:
        others: Roles of the schedule.

    Raises:
        InputError: For what is no such role, for teams with others, or if the CTA's 16 barriers are taken.
    """
    for other in others:
        if not isinstance(other, Role):
            raise InputError("k.sync", other, "is a role of the schedule", "e.g. k.sync(self.load)")
    isa, role = k.isa, k.role
    roles = list(dict.fromkeys([role, *(k.plan.role(k.name_of(other)) for other in others)]))
    if len(roles) > 1 and any(each.teams > 1 for each in roles):
        rule = "have one team each: teams are at different tiles"
        raise InputError("k.sync", ", ".join(each.name for each in roles), rule, "use a role of one team")
    if len(roles) == 1 and role.team_warps == 1:
        return isa.warp_sync()
    team: Any = role.team(isa.warp)
    isa.named_barrier_sync(isa.syncs.of(roles), team)


# ---- raw -------------------------------------------------------------------------------------------------------------
#
# Raw CuTe DSL in a body: the one way to use what the library does not cover.
#
# ``k.raw(gpu, cpu, reads=..., writes=..., updates=...)`` calls *gpu* with CuTe tensors while the body is traced, and
# *cpu* with NumPy arrays on the CPU model. The check knows only the declared effects: which slots the calling warps
# access, as threads do. The ring derives fences and releases from them, as from ``slot.x.read()`` and
# ``slot.x.write()``. How *gpu* distributes a warp's rows over its lanes is not known, so the lanes synchronize before
# and after it.


PROXIES = ("generic", "async")


def raw(
    k: Any,
    gpu: Callable[..., None],
    cpu: Callable[..., None] | None = None,
    *,
    reads: Sequence[PartInSlot] = (),
    writes: Sequence[PartInSlot] = (),
    updates: Sequence[PartInSlot] = (),
    proxy: str = "generic",
) -> None:
    """Raw CuTe DSL in this role, declared by its effects on tiles of open slots, such as ``slot.x``.

    Each warp calls *gpu* with CuTe tensors in shared memory, or on the CPU model *cpu* with NumPy arrays: one per tile, in
    the order reads, writes, updates. All 32 lanes are converged. A function that has a parameter ``role`` also gets the
    role's `name`, its number of `warps`, the calling `warp`, and `extent(dim)`. `check` needs neither function: it
    believes the declaration.

    Args:
        gpu: Called while the body is traced.
        cpu: Called on the CPU model.
        reads: Tiles of which the function gets the whole, and writes nothing.
        writes: Tiles of which it gets the warp's share (tile[0] / warps rows), and overwrites it.
        updates: The same, read and written.
        proxy: "generic" for ordinary loads and stores; "async" for TMA and wgmma, for whose end *gpu* waits in all lanes.

    Raises:
        InputError: On the CPU model, without *cpu*.
        ScopeError: A function raised an error; names its line.
    """
    isa, role = k.isa, k.role
    accesses: list[tuple[SlotRef, str]] = []
    touched = False
    if proxy not in PROXIES:
        raise InputError("k.raw(proxy)", proxy, f"is one of {', '.join(PROXIES)}", "say how gpu reaches shared memory")
    for kind, parts in (("read", reads), ("write", writes), ("update", updates)):
        for part in parts:
            if not isinstance(part, PartInSlot):
                raise InputError(f"k.raw({kind}s)", part, "is a sequence of tiles of open slots", "e.g. (slot.x,)")
            rows = part.ref.buffer.tile[0]
            if kind != "read" and rows % role.team_warps:
                rule = f"has {rows} rows, which the {role.team_warps} warps of role {role.name} cannot share evenly"
                fix = "choose a tile whose first extent they divide, or read it whole and write another"
                raise InputError(f"k.raw({kind}s)", part.ref.buffer.name, rule, fix)
            part.slot._check_open(part.ref.buffer.name)
            copied = part.part.load is not None and part.part.load.vector > 0
            touched = touched | copied | part.slot._touched((part.ref.buffer.name,))
            if proxy == "generic":
                part.by_threads(writes=kind != "read")
            accesses.append((part.ref, kind))
    if proxy == "async":
        isa.when(touched, isa.fence_proxy_async)
    isa.when(touched, isa.warp_sync)  # the elements are now distributed over the lanes in another way
    isa.fragments.raw(gpu, cpu, accesses, role, proxy)
    isa.warp_sync()
