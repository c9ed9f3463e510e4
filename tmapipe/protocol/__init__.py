"""What the bodies of roles work with: the objects that stand for declared parts as ``k.<name>`` and ``slot.<name>``.

This file has tiles and sums that a cluster exchanges, tokens, descriptors, ``k.sync()`` and ``k.raw()``. Other files: `ring`
has the ends of rings, `slots` the tiles in open slots, `stores` the stores of results, `matmuls` the matmuls and their
accumulators, and `tile` the places of tiles.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import attrs

from tmapipe.barrier import Role
from tmapipe.errors import InputError, ScopeError, permit, require
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


@stands_for(SharedStage)
class SharedInSlot(PartInSlot):
    """The tile of a `SharedStage` in an open slot. Through it a CTA also reads or writes the tiles of the other CTAs in its
    group, in the same slot."""

    @property
    def exchange(self) -> Exchanged:
        """What the CTAs of the group exchange.

        Raises:
            InputError: The stage has no group, or the group has only one CTA.
        """
        name, plan = self.part.buffer.name, self.part.isa.plan
        exchange = plan.exchange(name)
        if exchange is None:
            rule = f"must have a group of several CTAs; the cluster is {dict(plan.cluster)}"
            raise InputError(f"slot.{name}", name, rule, "declare its group=, and the cluster")
        return exchange

    @property
    def rank(self) -> Any:
        """The calling CTA's index in its group, from 0 on."""
        return share_index(self.part.isa, self.exchange.axes)

    @property
    def peers(self) -> int:
        """How many CTAs are in the group."""
        return self.exchange.peers

    def read_from(
        self, peer: Any, *, like: Fragment | None = None, tile: tuple[int, int] | None = None, at: Any = None
    ) -> Fragment:
        """The tile of another CTA of the group, in the same slot, as a fragment. The stage's writer has written it.

        Args:
            peer: The other CTA's index in the group.
            like: A fragment of the same extents. The elements are distributed as its elements are.
            tile: Reads only a part of the tile, of this many (rows, columns).
            at: The (row, column) at which the part begins.

        Raises:
            InputError: There is no such CTA or no such part, or the stage has a sender.
        """
        isa, buffer, name = self.part.isa, self.part.buffer, f"slot.{self.part.buffer.name}.read_from"
        rule = "must be a stage without a sender, since other CTAs write the tiles of this stage"
        require(self.exchange.sender is None, name, buffer.name, rule, "send the tile to the CTAs that read it")
        cta = self._cta(f"{name}(peer)", peer)
        self.by_threads()
        whole = tile is None and like is None
        layout, begin = self._part_layout(name, like, buffer.tile if whole else tile, (0, 0) if at is None else at)
        return isa.fragments.read_peer(self.ref, cta, layout, begin)

    def send(self, to: Any, values: Fragment | None = None, *, part: Any = None, into: Any = 0) -> None:
        """Starts to write the tile of another CTA of the group, in the same slot: copies the source's tile, or *values*, to
        it.

        In each slot every CTA gets exactly one tile. So the CTAs must send to different CTAs, such as their right neighbours.

        Args:
            to: The other CTA's index in the group.
            values: A fragment with the tile's rows and columns, for a stage without a source. Each thread has four bytes or
                more side by side.
            part: Sends only this part of the source. The source has as many equal parts, along its first extent, as the group
                has CTAs; each CTA then sends that many parts, and gets that many.
            into: Which part of the other CTA's tile the sent part becomes.

        Raises:
            ScopeError: In another role than the sender.
            InputError: An index is outside of the group, the fragment has other extents, or the stage is reduced.
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
                rule = f"must be a tile of {exchange.peers} equal parts, each contiguous in memory"
                raise InputError(f"{name}(part)", buffer.tile, rule, "change the stage's tile, or send all of it")
        self.part.isa.peer_copy(exchange, self.slot.index, cta, self.end.signalled, part, into)

    def reduce(self, to: Any, values: Fragment | None = None) -> None:
        """Starts to combine part *to* of the source, or *values*, with the tile of CTA *to* of the group, in the same slot.

        Each CTA of the group calls it once for each CTA of the group.

        Args:
            to: The CTA's index in the group.
            values: A fragment of integers with the tile's rows and columns, for a stage without a source.

        Raises:
            ScopeError: In another role than the sender.
            InputError: The index is outside of the group, the fragment has no integers, or the stage is not reduced.
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
            rule = "must be a whole tile, of which each thread has four bytes or more side by side"
            raise InputError(name, values, rule, "read the values with a larger width=, or send them as fp32")
        self.part.isa.fragments.send_tile(values, self.ref, self.end.signalled, cta)

    def _sent(self, verb: str, values: Any, reduced: bool) -> Exchanged:
        """The exchange. Raises an error unless *verb* is this stage's verb, and the calling role is its sender."""
        exchange, name = self.exchange, f"slot.{self.part.buffer.name}.{verb}"
        self.slot._check_open(exchange.name)
        if exchange.sender is None or (exchange.reduce is not None) != reduced:
            fix = "read_from()" if exchange.sender is None else "reduce()" if exchange.reduce else "send()"
            rule = f"has no {verb}(), as its sender= and reduce= are declared"
            raise InputError(name, exchange.name, rule, f"use {fix}")
        if self.part.role != exchange.sender:
            raise ScopeError(f"{name} in role {self.part.role!r}. Only its sender, {exchange.sender!r}, sends.")
        if (values is None) != (exchange.source is not None):
            rule = "must be None if the stage has a source, and a fragment if it has none"
            raise InputError(f"{name}(values)", values, rule, "leave it out, or declare the stage without source=")
        return exchange

    def _cta(self, argument: str, index: Any) -> Any:
        """The rank of the CTA of this index in the group."""
        self._check_index(argument, index)
        return peer_rank(self.part.isa, self.exchange.axes, index)

    def _check_index(self, argument: str, index: Any) -> None:
        rule, fix = f"must be an index into the group's {self.peers} CTAs", "(slot.x.rank + 1) % slot.x.peers"
        require(is_index(index, self.peers), argument, index, rule, f"count from 0, e.g. {fix}")


# ---- cluster sum -----------------------------------------------------------------------------------------------------


class BoundClusterSum(Carried):
    """A `ClusterSum` in its role. Each CTA sends parts of its sums to its peers by st.async, and adds the parts that it gets.

    All warps of the role tell the peers when the slot is free, send, and add. A register holds the barriers' parity. When the
    kernel ends, nothing is in flight, since each CTA has waited for all parts that were sent to it.
    """

    _facts: ClassVar[dict[str, str]] = {"started": "same"}

    def __init__(self, isa: Isa, plan: HeldTile, exchange: Exchanged):
        assert exchange.full is not None and exchange.free is not None
        self.isa, self.plan, self.exchange, self.full, self.free = isa, plan, exchange, exchange.full, exchange.free
        self.slot, self.parity = SlotRef(exchange.buffer, 0), isa.cells(0, names=f"{plan.name}.parity")
        self.started = False
        isa.follow(self)

    def start(self) -> None:
        """Tells the peers that this CTA can take their parts of the next sum. It is called once before each `add`; the earlier
        it is called, the less the peers wait."""
        isa, exchange = self.isa, self.exchange
        permit(not self.started, f"k.{self.plan.name}.start() a second time. Call add() first.")
        self.started = True
        arm = functools.partial(isa.mbarrier_arrive_expect_tx, self.full, 0, exchange.buffer.slot_bytes)
        isa.when(isa.warp == self.plan.first_warp, arm)
        isa.mbarrier_arrive_cluster(self.free, 0, peer_mask(isa, exchange.axes))

    def add(self, acc: Accumulator) -> Fragment:
        """This CTA's columns of *acc*, summed over the CTAs, as a fragment for a store. All peers call it equally often."""
        permit(self.started, f"k.{self.plan.name}.add() without start(). Call start() before the mainloop.")
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
        """How many parts the slot has: one from each warp of each CTA."""
        return self.exchange.peers * 4 * self.plan.warpgroups

    def _share(self, cta: Any) -> Any:
        """The number of the part from this warp's counterpart in CTA *cta* of the group."""
        return cta * 4 * self.plan.warpgroups + self.isa.warp - self.plan.first_warp

    def _received(self, cta: int) -> Fragment:
        layout = AccumulatorLayout.of(self.plan)
        return self.isa.fragments.received(self.slot, layout, self._share(cta), self._shares)


@stands_for(RegisterTile)
def _of_tile(k: Any, name: str, tile: RegisterTile) -> BoundRegisterTile | BoundClusterSum:
    plan, exchange = k.plan.distributed(name), k.plan.exchange(name)
    return BoundRegisterTile(plan) if exchange is None else BoundClusterSum(k.isa, plan, exchange)


# ---- exchanges -------------------------------------------------------------------------------------------------------


@stands_for(ReductionScratch)
def _of_scratch(k: Any, name: str, scratch: ReductionScratch) -> None:
    """Makes the exchange of numbers within the CTA or the cluster. Reductions of fragments use it; bodies have no name for
    it."""
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


class AheadInSlot(Carried):
    """An `L2Stage` in an open slot. It has no memory. part: the stage whose tiles it prefetches into L2."""

    def __init__(self, part: SlotPart, slot: Slot):
        self.tile = PartInSlot(part, slot)

    def prefetch(self, tile: Tile | None = None, **coordinates: Any) -> None:
        """Asks the GPU to bring a tile into L2. This is a hint; nothing waits for it. Beyond the tensor's end it does nothing.

        Args:
            tile: The tile's coordinates, counted in tiles.
            coordinates: Coordinates by the dimension's name, counted in tiles. They replace the coordinates of *tile*.

        Raises:
            ScopeError: In another role than the ring's producer.
            InputError: A coordinate is missing or unknown.
        """
        self.tile.prefetch(tile, **coordinates)


@stands_for(L2Stage)
def _ahead(k: Any, name: str, stage: L2Stage) -> Any:
    load = k.plan.load(k.name_of(stage.source))
    buffer = attrs.evolve(load.buffer, name=name)  # errors name the L2Stage
    return functools.partial(AheadInSlot, SlotPart(k.isa, k.role.name, buffer, load))


class StoredInSlot(Carried):
    """A `StoredStage` in an open slot. It has no memory; the slot says that tiles have been stored."""

    def __init__(self, isa: Isa, name: str, store: Store, slot: Slot):
        self.isa, self.name, self.plan, self.slot = isa, name, store, slot

    def publish(self) -> None:
        """Waits until all tiles that this role has stored so far are written. A fence follows, so that the role that enters
        the slot in the next phase can load these tiles.

        Raises:
            ScopeError: In another role than the ring's producer.
        """
        isa, end = self.isa, self.slot.end
        permit(end.phase == 0, f"slot.{self.name}.publish() in role {end.role!r}. Only the ring's producer stores.")
        if not self.plan.vector:
            isa.bulk_wait_group(0, read=False)
        isa.fence_proxy_async_global()
        isa.warp_sync()


@stands_for(StoredStage)
def _stored(k: Any, name: str, stage: StoredStage) -> Any:
    return functools.partial(StoredInSlot, k.isa, name, k.plan.store(k.name_of(stage.store)))


# ---- descriptors -----------------------------------------------------------------------------------------------------
#
# The ring's producer sets the descriptor of a `DescriptorStage`. The role that loads through it acquires it.


class View(Carried):
    """The rows of a tensor that a descriptor shows. Loads take it while the descriptor's slot is open."""

    def __init__(self, load: Load, slot: Slot):
        self.load, self.slot = load, slot


@stands_for(DescriptorStage)
class DescriptorInSlot(PartInSlot):
    """The descriptor of a `DescriptorStage` in one open slot."""

    @property
    def loaded(self) -> Load:
        """The load that uses the descriptor."""
        return next(load for load in self.part.isa.plan.loads if load.through == self.part.buffer)

    def set(self, first: Any, rows: Any) -> None:
        """Makes the descriptor show rows [first, first + rows) of the stage's tensor.

        Args:
            first: The first row.
            rows: How many rows: at least one. All must lie in the tensor. (The hardware would load from outside of the tensor;
                the model raises `HazardError`.)

        Raises:
            ScopeError: In another role than the ring's producer.
            InputError: *first* or *rows* is no whole number.
        """
        name = f"slot.{self.part.buffer.name}.set"
        permit(self.end.phase == 0, f"{name} in role {self.part.role!r}. Only the ring's producer sets descriptors.")
        for argument, value in (("first", first), ("rows", rows)):
            require(is_index(value), f"{name}({argument})", value, "must be a whole number of rows", "e.g. 1")
        self.by_threads(writes=True)
        self.part.isa.descriptor_write(self.loaded, self.part.buffer, self.slot.index, first, rows)

    def acquire(self) -> View:
        """The rows that the descriptor shows, for ``slot.x.load_through()``.

        Raises:
            ScopeError: In another role than the role that loads.
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


def sync(k: Any, *others: Role) -> None:
    """``k.sync()``, a ``bar.sync``: waits until all threads of this role, and of the roles *others*, have called it.

    After it, each of these threads sees what all of them wrote before. A team waits for its own threads only.

    Args:
        others: Roles of the schedule.

    Raises:
        InputError: One of *others* is no role of the schedule; a role has teams, but syncs with another role; or the CTA's 16
            named barriers are taken.
    """
    for other in others:
        require(isinstance(other, Role), "k.sync", other, "must be a role of the schedule", "e.g. k.sync(self.load)")
    isa, role = k.isa, k.role
    roles = list(dict.fromkeys([role, *(k.plan.role(k.name_of(other)) for other in others)]))
    if len(roles) > 1 and any(each.teams > 1 for each in roles):
        rule = "must have one team each, since teams are at different tiles"
        raise InputError("k.sync", ", ".join(each.name for each in roles), rule, "use a role of one team")
    if len(roles) == 1 and role.team_warps == 1:
        return isa.warp_sync()
    team: Any = role.team(isa.warp)
    isa.named_barrier_sync(isa.syncs.of(roles), team)


# ---- raw -------------------------------------------------------------------------------------------------------------
#
# Raw CuTe DSL in a body is the only way to use what the library does not cover.
#
# ``k.raw(gpu, cpu, reads=..., writes=..., updates=...)`` calls *gpu* with CuTe tensors while the body is traced, and
# *cpu* with NumPy arrays on the CPU model. The check knows only the declared effects: which slots the calling warps
# access, as threads do. From these effects the ring derives fences and releases, as from ``slot.x.read()`` and
# ``slot.x.write()``. The library does not know how *gpu* distributes a warp's rows over its lanes, so the lanes
# synchronize before and after *gpu*.


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

    Each warp calls *gpu* with CuTe tensors in shared memory, or on the CPU model *cpu* with NumPy arrays. The arguments are
    the tiles in the order reads, writes, updates. All 32 lanes are converged. A function that has a parameter ``role`` also
    gets an object with the role's `name`, its number of `warps`, the calling `warp`, and `extent(dim)`. `check` calls neither
    function; it believes the declaration.

    Args:
        gpu: The function that is called while the body is traced.
        cpu: The function that is called on the CPU model.
        reads: Tiles that the function reads and does not write. It gets the whole tile.
        writes: Tiles that the function overwrites. It gets the warp's share of each: tile[0] / warps rows.
        updates: Tiles that the function reads and writes. It gets the warp's share of each.
        proxy: "generic" for ordinary loads and stores; "async" for TMA and wgmma. *gpu* waits in all lanes until they end.

    Raises:
        InputError: On the CPU model, without *cpu*; or a part is no tile of an open slot.
        ScopeError: A function raised an error. The message names its line.
    """
    isa, role = k.isa, k.role
    accesses: list[tuple[SlotRef, str]] = []
    touched = False
    rule = f"must be one of {', '.join(PROXIES)}"
    require(proxy in PROXIES, "k.raw(proxy)", proxy, rule, "say how gpu accesses shared memory")
    for kind, parts in (("read", reads), ("write", writes), ("update", updates)):
        for part in parts:
            if not isinstance(part, PartInSlot):
                rule = "must be a tile of an open slot"
                raise InputError(f"k.raw({kind}s)", part, rule, "pass a sequence of tiles, e.g. (slot.x,)")
            rows = part.ref.buffer.tile[0]
            rule = f"has {rows} rows, which the {role.team_warps} warps of role {role.name} cannot share evenly"
            fix = "choose a tile whose first extent they divide, or read it whole and write another"
            require(kind == "read" or rows % role.team_warps == 0, f"k.raw({kind}s)", part.ref.buffer.name, rule, fix)
            part.slot._check_open(part.ref.buffer.name)
            copied = part.part.load is not None and part.part.load.vector > 0
            touched = touched | copied | part.slot._touched((part.ref.buffer.name,))
            if proxy == "generic":
                part.by_threads(writes=kind != "read")
            accesses.append((part.ref, kind))
    if proxy == "async":
        isa.when(touched, isa.fence_proxy_async)
    isa.when(touched, isa.warp_sync)  # gpu may distribute the elements over the lanes in another way
    isa.fragments.raw(gpu, cpu, accesses, role, proxy)
    isa.warp_sync()
