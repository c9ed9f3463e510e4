"""What bodies hold. Here: tiles and sums that a cluster exchanges, descriptors, tokens, barriers of roles, raw code.

Other modules: `ring`, the ends of rings; `slots`, tiles in open slots; `stores`; `matmuls`; `tile`, where an output tile lies.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import attrs

from tmapipe.barrier import Role
from tmapipe.errors import InputError, ScopeError
from tmapipe.isa.fragment import Carried, ClusterExchange, Fragment, SlotRef, WarpExchange, is_index
from tmapipe.isa.ops import Isa
from tmapipe.parts import ReductionScratch, RegisterTile, SharedStage
from tmapipe.plan.model import Load, Store
from tmapipe.plan.rings import Exchanged, HeldTile
from tmapipe.plan.thread_layout import AccumulatorLayout
from tmapipe.protocol.matmuls import Accumulator, BoundRegisterTile
from tmapipe.protocol.ring import Slot
from tmapipe.protocol.slots import PartInSlot, SlotPart
from tmapipe.protocol.tile import Tile, checked_values, layout_of, peer_mask, peer_rank, share_index, stands_for
from tmapipe.stage import DescriptorStage, L2Stage
from tmapipe.store_pipeline import StoredStage

# ---- exchange --------------------------------------------------------------------------------------------------------
#
# The tile of a `SharedStage` in an open slot, and what the CTAs of its group do with those of each other.


@stands_for(SharedStage)
class SharedInSlot(PartInSlot):
    """The tile of a `SharedStage` in one open slot, and those of the other CTAs of its group in theirs."""

    @property
    def exchange(self) -> Exchanged:
        """What the CTAs of the group exchange.

        Raises:
            InputError: The stage has no group, or the cluster no CTAs along its axes.
        """
        name, plan = self.part.buffer.name, self.part.isa.plan
        exchange = plan.exchange(name)
        if exchange is None:
            rule = f"has a group of CTAs, of a cluster with several; the cluster is {dict(plan.cluster)}"
            raise InputError(f"slot.{name}", name, rule, "declare its group=, and the cluster")
        return exchange

    @property
    def rank(self) -> Any:
        """The calling CTA's index among those of its group, from 0 on."""
        return share_index(self.part.isa, self.exchange.axes)

    @property
    def peers(self) -> int:
        """How many CTAs are in the group."""
        return self.exchange.peers

    def read_from(
        self, peer: Any, *, like: Fragment | None = None, tile: tuple[int, int] | None = None, at: Any = None
    ) -> Fragment:
        """The elements of the tile in the same slot of a CTA of the group, as of `read`. A writer has written them.

        Args:
            peer: Its index in the group.
            like: Distributed as this fragment is.
            tile: Only a part of the tile, of these (rows, columns).
            at: Where a part begins (row, column).

        Raises:
            InputError: No such CTA, no such part, or a stage whose tiles other CTAs write.
        """
        isa, buffer, name = self.part.isa, self.part.buffer, f"slot.{self.part.buffer.name}.read_from"
        if self.exchange.sender is not None:
            raise InputError(name, buffer.name, "is a stage without a sender", "send the tile to those who read it")
        cta = self._cta(f"{name}(peer)", peer)
        self.by_threads()
        whole = tile is None and like is None
        layout, begin = self._part_layout(name, like, buffer.tile if whole else tile, (0, 0) if at is None else at)
        return isa.fragments.read_peer(self.ref, cta, layout, begin)

    def send(self, to: Any, values: Fragment | None = None, *, part: Any = None, into: Any = 0) -> None:
        """Starts to write the tile of a CTA of the group, in the same slot: copies the source's tile there, or *values*.

        In each slot every CTA gets one tile: all send to different ones, such as their right neighbours.

        Args:
            to: Its index in the group.
            values: For a stage without a source: a fragment of as many rows and columns, of which each thread has four bytes
                or more side by side.
            part: Only this one of as many equal parts of the source, along its first extent, as the group has CTAs. Each CTA
                then sends so many, and gets so many.
            into: Which part it becomes there.

        Raises:
            ScopeError: In a role other than the sender.
            InputError: An index is outside the group, the fragment has other extents, or the stage is reduced.
        """
        exchange, name = self._sent("send", values, False), f"slot.{self.part.buffer.name}.send"
        cta, buffer = self._cta(f"{name}(to)", to), exchange.buffer
        if values is not None:
            return self._send_values(name, values, cta)
        for argument, index in (("part", 0 if part is None else part), ("into", into)):
            self._check_index(f"{name}({argument})", index)
        if part is not None:
            units, row = 8 if buffer.swizzle else 1, buffer.tile[-1] * buffer.dtype.bytes
            if buffer.tile[0] % (exchange.peers * units) or (units > 1 and row > buffer.swizzle):
                rule = f"has {exchange.peers} equal parts, each in one piece of memory"
                raise InputError(f"{name}(part)", buffer.tile, rule, "give the stage such a tile, or send all of it")
        self.part.isa.peer_copy(exchange, self.slot.index, cta, self.end.signalled, part, into)

    def reduce(self, to: Any, values: Fragment | None = None) -> None:
        """Starts to combine part *to* of the source, or *values*, with the tile of the CTA of this index, in the same slot.

        All CTAs do so once for each of the group.

        Args:
            to: Its index in the group.
            values: For a stage without a source: a fragment of as many rows and columns, of integers.

        Raises:
            ScopeError: In a role other than the sender.
            InputError: The index is outside the group, the fragment is of other numbers, or the stage is not reduced.
        """
        exchange = self._sent("reduce", values, True)
        cta = self._cta(f"slot.{exchange.name}.reduce(to)", to)
        if values is not None:
            return self._send_values(f"slot.{exchange.name}.reduce", values, cta)
        self.part.isa.peer_copy(exchange, self.slot.index, cta, self.end.signalled, to)

    def _send_values(self, name: str, values: Fragment, cta: Any) -> None:
        buffer = self.part.buffer
        values = checked_values(name, buffer, values)
        layout = layout_of(name, values)
        if values.along != "tile" or layout.width * buffer.dtype.bytes % 4:
            rule = "is a whole tile, of which each thread has four bytes or more side by side"
            raise InputError(name, values, rule, "read it in its own distribution, or send it as fp32")
        self.part.isa.fragments.send_tile(values, self.ref, self.end.signalled, cta)

    def _sent(self, verb: str, values: Any, reduced: bool) -> Exchanged:
        """What is exchanged. Raises an error unless the sender calls *verb*, as the stage says."""
        exchange, name = self.exchange, f"slot.{self.part.buffer.name}.{verb}"
        self.slot._check_open(exchange.name)
        if exchange.sender is None or (exchange.reduce is not None) != reduced:
            fix = "read_from()" if exchange.sender is None else "reduce()" if exchange.reduce else "send()"
            raise InputError(name, exchange.name, "is a verb that the stage's sender= and reduce= say", f"use {fix}")
        if self.part.role != exchange.sender:
            raise ScopeError(f"{name} in role {self.part.role!r}. Only its sender, {exchange.sender!r}, sends.")
        if (values is None) != (exchange.source is not None):
            rule = "is None where the stage has a source, and else a fragment"
            raise InputError(f"{name}(values)", values, rule, "leave it out, or declare the stage without source=")
        return exchange

    def _cta(self, argument: str, index: Any) -> Any:
        """The rank of a CTA by its index in the group."""
        self._check_index(argument, index)
        return peer_rank(self.part.isa, self.exchange.axes, index)

    def _check_index(self, argument: str, index: Any) -> None:
        if not is_index(index, self.peers):
            rule, fix = f"is an index into the group's {self.peers} CTAs", "(slot.x.rank + 1) % slot.x.peers"
            raise InputError(argument, index, rule, f"count from 0, e.g. {fix}")


# ---- cluster sum -----------------------------------------------------------------------------------------------------
#
# A `ClusterSum` in its role: parts of a sum go from each CTA to its peers by st.async.


class BoundClusterSum(Carried):
    """All warps of the role tell the peers when the slot is free, send, and add. Its parity is in a register.

    At the end nothing is in flight: a CTA has got all parts, and its peers wait for what it has sent.
    """

    _facts: ClassVar[dict[str, str]] = {"started": "same"}

    def __init__(self, isa: Isa, plan: HeldTile, exchange: Exchanged):
        assert exchange.full is not None and exchange.free is not None
        self.isa, self.plan, self.exchange, self.full, self.free = isa, plan, exchange, exchange.full, exchange.free
        self.slot, self.parity = SlotRef(exchange.buffer, 0), isa.cells(0)
        self.started = False
        isa.follow(self)

    def start(self) -> None:
        """Tells the peers that this CTA can take their parts of the next sum. Once before each `add`: the earlier, the less
        they wait for it."""
        isa, exchange = self.isa, self.exchange
        if self.started:
            raise ScopeError(f"k.{self.plan.name}.start() a second time. Call add() first.")
        self.started = True
        isa.when(
            isa.warp == self.plan.first_warp,
            lambda: isa.mbarrier_arrive_expect_tx(self.full, 0, exchange.buffer.slot_bytes),
        )
        isa.mbarrier_arrive_cluster(self.free, 0, peer_mask(isa, exchange.axes))

    def add(self, acc: Accumulator) -> Fragment:
        """The sums over the CTAs of this CTA's columns of *acc*, as a store takes them. Every peer calls it as often."""
        if not self.started:
            raise ScopeError(f"k.{self.plan.name}.add() without start(). Call that before the mainloop.")
        isa, exchange, parity, columns = self.isa, self.exchange, self.parity[0], self.plan.shape[1]
        own = self._share(share_index(isa, exchange.axes))
        isa.mbarrier_wait(self.free, 0, parity)
        for i in range(exchange.peers):
            values, to = acc.columns(0, i * columns, columns), peer_rank(isa, exchange.axes, i)
            isa.fragments.send(values, self.slot, self.full, to, own, self._shares)
        isa.mbarrier_wait(self.full, 0, parity)
        total = functools.reduce(operator.add, map(self._received, range(exchange.peers)))
        isa.fence_proxy_async()
        isa.warp_sync()
        self.parity[0], self.started = parity ^ 1, False
        return total

    @property
    def _shares(self) -> int:
        """Parts of the slot: one from each warp of each CTA."""
        return self.exchange.peers * 4 * self.plan.warpgroups

    def _share(self, cta: Any) -> Any:
        """That from the warp of this number in CTA *cta* of the peers."""
        return cta * 4 * self.plan.warpgroups + self.isa.warp - self.plan.first_warp

    def _received(self, cta: int) -> Fragment:
        layout = AccumulatorLayout.of(self.plan)
        return self.isa.fragments.received(self.slot, layout, self._share(cta), self._shares)


@stands_for(RegisterTile)
def _of_tile(k: Any, name: str, tile: RegisterTile) -> BoundRegisterTile | BoundClusterSum:
    plan, exchange = k.plan.distributed(name), k.plan.exchange(name)
    return BoundRegisterTile(plan) if exchange is None else BoundClusterSum(k.isa, plan, exchange)


# ---- exchanges -------------------------------------------------------------------------------------------------------
#
# What a role's `ReductionScratch` is in its warps: numbers exchanged within the CTA, or with others of the cluster.


@stands_for(ReductionScratch)
def _of_scratch(k: Any, name: str, scratch: ReductionScratch) -> None:
    """Fragments find it: bodies have no name for it."""
    isa, role = k.isa, k.role
    buffer = isa.plan.buffer(name)
    of = isa.plan.exchange(name)
    if of is None:
        exchange = WarpExchange(isa, buffer, isa.syncs.of([role]))
    else:
        assert of.full is not None
        exchange = ClusterExchange(isa, buffer, of.full, peer_mask(isa, of.axes), share_index(isa, of.axes), of.peers)
    isa.fragments.exchanges[role.first_warp] = exchange


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
    """``bar.sync``: waits until all threads of this role, and of the roles *others*, have called it.

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
