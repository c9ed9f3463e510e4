"""Isa, the instruction set that everything is written in: all operations, with those on descriptors and on global
memory."""

# ruff: noqa: F403, F405 - declarations are written in the vocabulary of `tmapipe.isa`, all of it

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tmapipe.errors import InputError
from tmapipe.isa import *
from tmapipe.isa.barriers import *
from tmapipe.isa.barriers import BarrierInstructions, ComputeInstructions, Lowering
from tmapipe.isa.copies import *
from tmapipe.isa.copies import CopyInstructions, PeerInstructions, RowInstructions
from tmapipe.isa.fragment import Block, Carried, Cells, Condition, Fragment, Value
from tmapipe.isa.fragments import Fragments
from tmapipe.plan.model import Load, Store
from tmapipe.plan.rings import Barrier, Buffer, Ring

# ---- descriptors -----------------------------------------------------------------------------------------------------
#
# Operations and instructions on descriptors that a kernel changes.


ON_BAR = Until(bar="bar", nbytes="nbytes")
#: What arrives at mbarriers, and what ends a group of asynchronous operations, with the unit that then works: methods.
ARRIVALS = ("mbarrier_arrive", "mbarrier_arrive_cluster", "mbarrier_arrive_expect_tx")
COMMITS = {"wgmma_commit": "wgmma", "bulk_commit_group": "bulk"}


@operation(
    "tensormap.replace.tile.global_address.shared::cta.b1024.b64",
    "writes a descriptor of {load} to {slot}",
    Access(write=True),
    Tile("load", inside=False),
)
class DescriptorWrite(NamedTuple):
    """Of a part of the load's tensor: `at` is (first row, how many). Facts: None."""

    load: Name
    slot: Slot
    at: At = ()


@operation(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned",
    "hands the descriptor in {slot} over to the TMA engine",
    FenceProxy(),
)
class DescriptorRelease(NamedTuple):
    """Copies it to global memory, where the engine reads it, and fences. Facts: None."""

    slot: Slot
    lanes: Lanes = ALL_LANES


@operation("fence.proxy.tensormap::generic.acquire.gpu", "acquires the descriptor in {slot}", Access())
class DescriptorAcquire(NamedTuple):
    """Before loads through it. Facts: None."""

    slot: Slot


@operation(
    "cp.async.bulk.tensor.global.mbarrier::complete_tx::bytes",
    "starts the TMA load of {load} through {source} into {slot}, {nbytes} bytes that complete on {bar}",
    Start("slot", ON_BAR, write=True, mask="mask", share="share", shares="shares"),
    Start("source", ON_BAR, mask="mask"),
    Tile("load", inside=False),
)
class TmaLoadThrough(NamedTuple):
    """As `TmaLoad`, of the rows that the descriptor in slot `source` of the own CTA says, which it reads until it is over.
    Facts: tuple of `Flight`, one a destination CTA."""

    load: Name
    slot: Slot
    bar: Bar
    nbytes: Bytes
    mask: Mask | None
    source: Slot
    share: Number = 0
    shares: Number = 1
    at: At = ()


class DescriptorInstructions(Lowering):
    """Instructions on descriptors in slots, of loads whose `Load.through` is such a slot's buffer."""

    def descriptor_write(self, load: Load, buffer: Buffer, stage: Value, first: Value, rows: Value) -> None:
        """``tensormap.replace`` in shared memory, then ``tensormap.cp_fenceproxy``: makes the descriptor in slot *stage* one
        of *rows* rows of the load's tensor, from row *first* on; one or more, all of them in the tensor. Each slot has a
        place in global memory, where the engine reads it. Generic proxy, released to that of descriptors."""
        slot = self.slot(buffer, stage)
        self.emit(DescriptorWrite(load.name, slot, (self.plain(first), self.plain(rows))))
        self.emit(DescriptorRelease(slot))

    def descriptor_acquire(self, buffer: Buffer, stage: Value) -> None:
        """``fence.proxy.tensormap::generic.acquire``: before this warp's loads through the descriptor in slot *stage*, for
        which it has waited."""
        self.emit(DescriptorAcquire(self.slot(buffer, stage)))

    def tma_load_through(
        self, load: Load, stage: Value, at: Sequence[Value], barrier: Barrier, through: Value, mask: Value, share: Value
    ) -> None:
        """As `tma_load`, through the descriptor in slot *through*: *at* counts from its first row, and beyond its last one
        there are zeros. The descriptor is read until the bytes have been counted."""
        assert load.through is not None
        slot, bar = self.slot(load.buffer, stage), self.bar(barrier, stage)
        nbytes, source = load.buffer.slot_bytes // load.peers, self.slot(load.through, through)
        self.emit(TmaLoadThrough(load.name, slot, bar, nbytes, mask, source, share, load.peers, self.start(load, at)))


# ---- globals ---------------------------------------------------------------------------------------------------------
#
# Operations and instructions on global memory by threads, such as counters and tables, and among the lanes of a warp.
#
# A launch has some counters: int32 in global memory that are 0 when it starts, and must be 0 when it ends. In the
# machine, clusters run one after another, so the caller passes what an atomic operation finds there, as if clusters
# took turns.


@operation("griddepcontrol.wait", "waits for the end of the kernel before", AwaitGrid())
class GridWait(NamedTuple):
    """Facts: None."""


@operation("griddepcontrol.launch_dependents", "lets the next kernel start")
class GridLaunch(NamedTuple):
    """Facts: None."""


@operation("atom.global.add.u32", "adds 1 to counter {counter}, which was {before}", Global("atomic"))
class CounterAdd(NamedTuple):
    """Facts: None."""

    counter: Data
    before: Data


@operation("st.global.b32", "sets counter {counter} to {value}", Global("write"))
class CounterStore(NamedTuple):
    """Facts: None."""

    counter: Data
    value: Data


@operation("ld.global.b32", "reads entries {entries} of table {table}", Global("read"))
class TableLoad(NamedTuple):
    """Of one entry by all lanes, or of one each by the first ones. Facts: None."""

    table: Name
    entries: At


@operation("st.global", "stores its values of a tile of {store}", Global("write", "store", "at"))
class TileStore(NamedTuple):
    """Each lane stores its own values of the tile that starts at element `at`. Facts: None."""

    store: Name
    at: At = ()


@operation("vote.sync.ballot.b32", "counts {votes} votes of the lanes")
class Ballot(NamedTuple):
    """Facts: None."""

    votes: Data


@operation("shfl.sync.idx.b32", "takes a value from lane 0")
class Shuffle(NamedTuple):
    """Orders no accesses to memory. Facts: None."""


@operation("mov.u32 %smid", "reads the number of its multiprocessor")
class ReadSmid(NamedTuple):
    """Facts: None."""


class GlobalInstructions(Lowering):
    """Instructions on counters, tables and tensors. They may be touched only after `griddepcontrol_wait`."""

    def griddepcontrol_wait(self) -> None:
        """``griddepcontrol.wait``: until the kernels before this one in the stream have ended and their writes are
        visible. A warp may touch nothing in global memory earlier that they write or read, since the launch does not wait for
        them, and waits before it returns, since the next kernel waits only for the end of this one."""
        self.emit(GridWait())

    def griddepcontrol_launch_dependents(self) -> None:
        """``griddepcontrol.launch_dependents``: once each CTA has executed it, the next kernel's CTAs may start wherever
        there is room (and wait there, as above). Orders nothing."""
        self.emit(GridLaunch())

    def lane_0(self, body: Callable[[], None], when: Condition = True) -> None:
        """Runs *body* in lane 0 alone, if *when*, by predication.

        In it only registers, `atomic_add`, `store_counter`, `smid`, and control flow. Conditions may be those of one lane.
        """
        if when:
            body()

    def shuffle(self, value: Value) -> Value:
        """``shfl.sync.idx``: lane 0's *value*, in all lanes."""
        return self.answer(Shuffle(), value, value)

    def smid(self) -> Value:
        """``%smid``: the number of the calling multiprocessor. In the machine, which has one: 0."""
        return self.answer(ReadSmid(), 0)

    def launch_words(self, in_machine: Callable[[int], Sequence[int]]) -> Sequence[Value]:
        """The 32-bit words that the host passed to the launch for the order of tiles.

        Args:
            in_machine: What they are in the machine, of the number of clusters.
        """
        return in_machine(self.clusters)

    def atomic_add(self, counter: Value, in_turn: Callable[[], int]) -> Value:
        """``atom.global.add``, relaxed, at GPU scope, by the calling lane: adds 1 to a counter. Returns what it was before.

        Args:
            counter: Its number.
            in_turn: In the machine, what it was if clusters take turns.
        """
        before = in_turn()
        return self.answer(CounterAdd(counter, before), before)

    def store_counter(self, counter: Value, value: int) -> None:
        """``st.global`` by the calling lane: sets a counter."""
        self.emit(CounterStore(counter, value))

    def store_values(
        self,
        store: Store,
        at: Sequence[Value],
        values: Fragment,
        surely: tuple[int, int] = (0, 0),
        mask: Fragment | None = None,
    ) -> None:
        """``st.global`` (each lane): stores the warp's part of *values*, converted, to the tile that starts at element *at*.
        Elements outside the tensor are not written. At most `store.vector` bytes at once, or 16 where the store is `wide`.
        Generic proxy.

        Args:
            surely: The first, and the one after the last, of the tile's columns that lie inside the tensor in any case, and
                those at multiples of 16 bytes of a tile at such addresses.
            mask: For which elements, one at a time; None: for all.
        """
        self.emit(TileStore(store.name, self.start(store, at)), values, surely, mask)

    def load_entry(self, table: str, i: Value, without_data: int) -> Value:
        """``ld.global``: entry *i* of a table, in all lanes.

        Args:
            table: Its name.
            i: Less than it has entries.
            without_data: What the entry is in the check, which has no data.
        """
        (entry,) = self.ask(TableLoad(table, (i,)), lambda: (without_data,))
        return entry

    def ballot(
        self, table: str, first: Value, count: Value, holds: Callable[[Value, Value], Condition], without_data: int
    ) -> Value:
        """``ld.global`` by lane i of entry *first* + i, if that is less than *count*, and ``vote.ballot``. Returns, in all
        lanes, for how many of these 32 ``holds(index, entry)`` is true.

        Args:
            table: Its name.
            first: The first entry.
            count: Of entries in the table that may be read.
            holds: Takes an index and an entry; uses arithmetic and comparison only.
            without_data: What every entry is in the check, which has no data.
        """
        mine = tuple(range(first, min(first + 32, count)))
        entries = self.ask(TableLoad(table, mine), lambda: [without_data] * len(mine))
        votes = sum(bool(holds(i, entry)) for i, entry in zip(mine, entries, strict=True))
        self.emit(Ballot(votes))
        return votes


# ---- ops -------------------------------------------------------------------------------------------------------------
#
# All operations, the facts that the machine answers with, and the steps that engines take by themselves.
#
# An operation is what a warp asks of the machine: one immutable record. Its operands are small integers that
# `tmapipe.model.layout.Layout` numbers and names: ``bar`` is a flat number of one mbarrier of the CTA, ``slot`` of
# one slot of shared memory, both without the CTA, which the agent supplies. The last line of each docstring states
# the *facts* with which `State.apply` answers.


Op = Any  #: one of the operations, each a `NamedTuple` declared in the table


class Counted(NamedTuple):
    """Arrivals or bytes counted by ``bar`` of CTA `cta` in its phase number `phase` (from 0), and whether they completed it.

    arrivals: 0 for expect-tx and complete-tx; nbytes: armed, or if negative landed.
    """

    cta: int
    bar: int
    phase: int
    arrivals: int
    nbytes: int
    completed: bool


class Flight(NamedTuple):
    """An asynchronous agent: a load on its way to CTA `cta`, a store, or a wgmma.

    kind: "load", "store" or "wgmma"; issuer: the agent that issued it (a wgmma's: the global warpgroup); serial: counts
    the issuer's loads and stores (a wgmma's: those of the warpgroup), so it is the same in every interleaving.
    """

    kind: str
    issuer: int
    serial: int
    cta: int


# ---- engine steps -----------------------------------------------------------------------------------------------------


class LoadWrite(NamedTuple):
    """The load's bytes land in its destination CTA. Only in states made with ``split_loads``. Facts: None."""


class LoadComplete(NamedTuple):
    """The load's bytes are counted (after they landed). Facts: tuple of one `Counted`."""


class StoreRead(NamedTuple):
    """The store has read its slot. Facts: None."""


class StoreWrite(NamedTuple):
    """The store has written global memory. Facts: None."""


class WgmmaDone(NamedTuple):
    """The oldest wgmma of a warpgroup has read its slots and written its accumulators. Facts: None."""


Step = LoadWrite | LoadComplete | StoreRead | StoreWrite | WgmmaDone
Agent = int | Flight


# ---- interface -------------------------------------------------------------------------------------------------------
#
# Isa: the instruction set that every ring, stage, store and tile scheduler is written in.
#
# Two backends implement it. `tmapipe.gpu` emits the CuTe DSL operation for each instruction while CuTe DSL traces the
# body. `tmapipe.model` makes the operations of the table and carries them out on a model of the hardware. The
# protocol (`tmapipe.protocol`) knows only this package.
#
# **Who executes.** A body runs once per *warp*. All 32 lanes are converged at every instruction. Where the hardware
# wants one thread (an arrive, an expect-tx, a TMA instruction, a bulk group) the backend elects one lane, the same
# one each time. An instruction that says "each lane" is executed by all.
#
# **Values.** An index, a parity, a coordinate or a rank is an ``int`` in the machine and an ``Int32`` when traced;
# both take the usual arithmetic. A condition is a ``bool`` or a ``Boolean``. Python's ``if`` on such a value works
# only in traced bodies, so library code branches with `Isa.when` and selects with `Isa.select`.
#
# **Proxies.** *Generic*: ordinary loads and stores by threads. *Async*: what TMA and wgmma do to shared memory.
# Accesses to the same bytes through different proxies are ordered only by a proxy fence, by an mbarrier completion
# (async writes, for whoever waits), or by a group wait (async reads and writes of one's own).


class Isa(
    BarrierInstructions,
    CopyInstructions,
    PeerInstructions,
    RowInstructions,
    DescriptorInstructions,
    ComputeInstructions,
    GlobalInstructions,
):
    """One warp's view of the hardware: control flow, what a kernel was launched with, and the instructions of the table.

    `fragments` works on values that are distributed over threads.
    """

    fragments: Fragments

    def cells(self, *initial: Value) -> Cells:
        """Mutable integers, one for each initial value."""
        raise NotImplementedError

    def follow(self, part: Carried) -> None:
        """Told of each object of the protocol that has `_facts`: a trace joins them where paths meet. Else of no matter."""

    def select(self, condition: Condition, then: Value, otherwise: Value) -> Value:
        """``selp``: *then* if *condition* else *otherwise*, without a branch."""
        raise NotImplementedError

    def advance(self, state: Cells, stages: int, parity: bool = True) -> None:
        """Moves a pipeline state (index, parity) on to the next of *stages* slots. *parity*: whether it has one."""
        following = state[0] + 1
        wrapped = following == stages
        if parity:
            state[1] = self.select(wrapped, state[1] ^ 1, state[1])
        state[0] = self.select(wrapped, 0, following)

    def skip(self, state: Cells, slots: Value, ring: Ring) -> None:
        """Moves a pipeline state (index, parity) on by *slots* slots of *ring*, 0 or more."""
        index = state[0] + slots
        laps = index // ring.stages
        state[0] = index - laps * ring.stages
        state[1] = state[1] ^ (laps & 1)

    def here(self, value: Value) -> Value:
        """The same value in all lanes, computed at this point of the program and not where it is used."""
        raise NotImplementedError

    def when(self, condition: Condition, body: Callable[[], None]) -> None:
        """Runs *body* if *condition*. The condition must be the same in all lanes of the warp."""
        raise NotImplementedError

    def loop(self, trips: Value, body: Callable[[Value], None]) -> None:
        """Runs ``body(0)`` .. ``body(trips - 1)``."""
        raise NotImplementedError

    def loop_while(self, state: Cells, body: Callable[[], None], iterations: Callable[[], int] | None = None) -> None:
        """Runs ``body()`` as long as ``state[0]``, which is the same in all lanes that run it, is not 0.

        Args:
            iterations: Where data decides that: how often it runs in the check, which has no data.
        """
        raise NotImplementedError

    def block(self) -> Block:
        """The block of code that the calling body is at. Two points in one block are executed equally often, in turn."""
        raise NotImplementedError

    def call(self, body: Callable[..., None], *arguments: Any) -> None:
        """Runs a role's body: traced by CuTe DSL, or called as it is."""
        raise NotImplementedError

    def evaluate(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """What a method of the schedule says outside bodies, e.g. how many slots a tile takes."""
        return function(*arguments)

    def extent(self, argument: str, dim: int) -> Value:
        """Extent (elements) of dimension *dim* of the tensor bound to *argument*; a Python number if it is fixed."""
        raise NotImplementedError

    def extent_along(self, where: str, dim: str) -> Value:
        """Extent of the tensors' dimension of the name *dim*. Raises `InputError`, of *where*, if no tensor has it."""
        for part in self.plan.transfers:
            if dim in part.dims:
                return self.extent(part.argument, part.dims.index(dim))
        known = ", ".join(dict.fromkeys(d for part in self.plan.transfers for d in part.dims))
        raise InputError(where, dim, f"names a dimension of a tensor ({known})", "name one of them")

    def window_start(self, load: Load, number: Value) -> tuple[Value, ...]:
        """(image, where in it) window *number* of the load's tensor begins (elements)."""
        assert load.windows is not None
        return load.windows.start(number, [self.extent(load.argument, i) for i in range(1, len(load.dims) - 1)])

    def divisors(self, values: dict[str, Value]) -> dict[str, Any]:
        """Each value as something to divide by (``x // d`` for x >= 0).

        A number in the machine. When traced, a multiplier and a shift that the host has computed: an integer division takes
        some 150 cycles. The values are those of the order's `divisors`, the same in all CTAs.
        """
        raise NotImplementedError
