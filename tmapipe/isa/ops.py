"""Isa, the interface of the instruction set, with all operations. The operations on descriptors and on global memory are
declared here, the others in `barriers` and `copies`.

Rings, stages, stores and tile schedulers are written in it.
"""

# mypy: disable-error-code="empty-body"
# ruff: noqa: F403, F405 - declarations are written in the vocabulary of `tmapipe.isa`, all of it

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tmapipe.errors import InputError
from tmapipe.isa import *
from tmapipe.isa.barriers import *
from tmapipe.isa.barriers import BarrierInstructions, ComputeInstructions, Lowering
from tmapipe.isa.copies import *
from tmapipe.isa.copies import ON_BAR, CopyInstructions, PeerInstructions, RowInstructions
from tmapipe.isa.fragment import Block, Carried, Cells, Condition, Fragment, Holds, Span, Value
from tmapipe.isa.fragments import Fragments
from tmapipe.plan.model import Load, Store
from tmapipe.plan.rings import Barrier, Buffer, Ring

# ---- descriptors that a kernel changes -------------------------------------------------------------------------------

#: Methods that arrive at mbarriers; methods that end a group of asynchronous operations, with the unit that then works on it.
ARRIVALS = ("mbarrier_arrive", "mbarrier_arrive_cluster", "mbarrier_arrive_expect_tx")
COMMITS = {"wgmma_commit": "wgmma", "bulk_commit_group": "bulk"}


@operation(
    "tensormap.replace.tile.global_address.shared::cta.b1024.b64",
    "writes a descriptor of {load} to {slot}",
    Access(write=True),
    Tile("load", inside=False),
)
class DescriptorWrite(NamedTuple):
    """Makes it a descriptor of some rows of the load's tensor: `at` is (first row, how many rows). Facts: None."""

    load: Name
    slot: Slot
    at: At = ()


@operation(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned",
    "hands the descriptor in {slot} over to the TMA engine",
    FenceProxy(),
)
class DescriptorRelease(NamedTuple):
    """Copies the descriptor to global memory, where the engine reads it, and fences. Facts: None."""

    slot: Slot
    lanes: Lanes = ALL_LANES


@operation("fence.proxy.tensormap::generic.acquire.gpu", "acquires the descriptor in {slot}", Access())
class DescriptorAcquire(NamedTuple):
    """Comes before loads through the descriptor. Facts: None."""

    slot: Slot


@operation(
    "cp.async.bulk.tensor.global.mbarrier::complete_tx::bytes",
    "starts the TMA load of {load} through {source} into {slot}, {nbytes} bytes that complete on {bar}",
    Start("slot", ON_BAR, write=True, mask="mask", share="share", shares="shares"),
    Start("source", ON_BAR, mask="mask"),
    Tile("load", inside=False),
)
class TmaLoadThrough(NamedTuple):
    """A `TmaLoad` through the descriptor in slot `source` of the own CTA. The load reads the descriptor until it is over.
    Facts: tuple of `Flight`, one for each destination CTA."""

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
    """Instructions on descriptors in slots. A load through descriptors has the buffer of these slots as `Load.through`."""

    def descriptor_write(self, load: Load, buffer: Buffer, stage: Value, first: Value, rows: Value) -> None:
        """``tensormap.replace`` in shared memory, then ``tensormap.cp_fenceproxy``: makes the descriptor in slot *stage* show
        *rows* rows of the load's tensor, from row *first* on: one or more rows, all of them in the tensor. Each slot has a
        place in global memory, where the engine reads its descriptor. Generic proxy, released to the proxy of descriptors."""
        slot = self.slot(buffer, stage)
        self.emit(DescriptorWrite(load.name, slot, (self.plain(first), self.plain(rows))))
        self.emit(DescriptorRelease(slot))

    def descriptor_acquire(self, buffer: Buffer, stage: Value) -> None:
        """``fence.proxy.tensormap::generic.acquire``: comes before this warp's loads through the descriptor in slot *stage*.
        The warp has waited for the slot."""
        self.emit(DescriptorAcquire(self.slot(buffer, stage)))

    def tma_load_through(
        self, load: Load, stage: Value, at: Sequence[Value], barrier: Barrier, through: Value, mask: Value, share: Value
    ) -> None:
        """A `tma_load` through the descriptor in slot *through*: *at* counts from the descriptor's first row, and beyond its
        last row there are zeros. The descriptor is read until the bytes have been counted."""
        assert load.through is not None
        slot, bar = self.slot(load.buffer, stage), self.bar(barrier, stage)
        nbytes, source = load.buffer.slot_bytes // load.peers, self.slot(load.through, through)
        self.emit(TmaLoadThrough(load.name, slot, bar, nbytes, mask, source, share, load.peers, self.start(load, at)))


# ---- global memory by threads, and the lanes of a warp ---------------------------------------------------------------
#
# A launch has some counters: int32 in global memory that are 0 when it starts, and must be 0 when it ends. The machine runs
# clusters one after another. So the caller passes the number that an atomic operation would find if clusters took turns.


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
    """All lanes read one entry, or each of the first lanes reads an entry of its own. Facts: None."""

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
        """``griddepcontrol.wait``: waits until the earlier kernels of the stream have ended and their writes are visible. The
        launch does not wait for them. So a warp touches no global memory that they write or read before this instruction. It
        executes the instruction before it returns, since the next kernel waits only for the end of this one."""
        self.emit(GridWait())

    def griddepcontrol_launch_dependents(self) -> None:
        """``griddepcontrol.launch_dependents``: once each CTA has executed it, CTAs of the next kernel may start wherever
        there is room. They execute `griddepcontrol_wait` themselves. Orders no accesses."""
        self.emit(GridLaunch())

    def lane_0(self, body: Callable[[], None], when: Condition = True) -> None:
        """Runs *body* in lane 0 alone, if *when* holds, by predication.

        The body uses only registers, `atomic_add`, `store_counter`, `smid` and control flow. Its conditions may depend on
        values that only lane 0 has.
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
            in_machine: Gives the words in the machine, from the number of clusters.
        """
        return in_machine(self.clusters)

    def atomic_add(self, counter: Value, in_turn: Callable[[], int]) -> Value:
        """``atom.global.add``, relaxed, at GPU scope, by the calling lane: adds 1 to a counter, and returns its value before.

        Args:
            counter: The number of the counter.
            in_turn: Gives this value in the machine, where clusters take turns.
        """
        before = in_turn()
        return self.answer(CounterAdd(counter, before), before)

    def store_counter(self, counter: Value, value: int) -> None:
        """``st.global`` by the calling lane: sets a counter."""
        self.emit(CounterStore(counter, value))

    def store_values(
        self, store: Store, at: Sequence[Value], values: Fragment, surely: Span, mask: Fragment | None
    ) -> None:
        """``st.global`` (each lane): stores the warp's part of *values*, converted, to the tile that starts at element *at*.
        Elements outside the tensor are not written. At most `store.vector` bytes at once, or 16 where the store is `wide`.
        Generic proxy.

        Args:
            surely: (first, end) of the tile's columns that lie inside the tensor for every tile. Where the store is `wide`,
                tiles then start at multiples of 16 bytes.
            mask: A comparison: the elements of which it holds are stored, one at a time; None: all.
        """
        self.emit(TileStore(store.name, self.start(store, at)), values, surely, mask)

    def load_entry(self, table: str, i: Value, without_data: int) -> Value:
        """``ld.global``: entry *i* of a table, in all lanes.

        Args:
            table: The name of the table.
            i: From 0 to the number of entries less 1.
            without_data: The entry in the check, which has no data.
        """
        (entry,) = self.ask(TableLoad(table, (i,)), lambda: (without_data,))
        return entry

    def ballot(self, table: str, first: Value, count: Value, holds: Holds, without_data: int) -> Value:
        """``ld.global`` and ``vote.ballot``: lane i looks at entry *first* + i, if that is less than *count*. Returns, in all
        lanes, for how many of these 32 entries ``holds(index, entry)`` is true.

        Args:
            table: The name of the table.
            first: The index of the first entry.
            count: How many entries of the table may be read.
            holds: Takes an index and an entry; uses arithmetic and comparison only.
            without_data: Every entry in the check, which has no data.
        """
        mine = tuple(range(first, min(first + 32, count)))
        entries = self.ask(TableLoad(table, mine), lambda: [without_data] * len(mine))
        votes = sum(bool(holds(i, entry)) for i, entry in zip(mine, entries, strict=True))
        self.emit(Ballot(votes))
        return votes


# ---- facts, and steps of engines -------------------------------------------------------------------------------------
#
# An operation is what a warp asks of the machine: one immutable record. Its operands are small integers, which
# `tmapipe.model.layout.Layout` numbers and names. ``bar`` is the number of an mbarrier of the CTA, and ``slot`` the number
# of a slot; which CTA it is follows from the warp. `State.apply` answers with *facts*, which the last line of each
# operation's docstring states.


Op = Any  #: one of the operations, each a `NamedTuple` declared in the table


class Counted(NamedTuple):
    """Arrivals or bytes that ``bar`` of CTA `cta` has counted in its phase number `phase` (from 0). completed: whether they
    completed the phase; arrivals: 0 for expect-tx and complete-tx; nbytes: bytes that were armed; negative: that landed.
    """

    cta: int
    bar: int
    phase: int
    arrivals: int
    nbytes: int
    completed: bool


class Flight(NamedTuple):
    """An asynchronous agent: a load on its way to CTA `cta`, a store, or a wgmma.

    kind: "load", "store" or "wgmma". issuer: the warp that issued it; of a wgmma the number of the warpgroup in the cluster.
    serial: which of the issuer's loads and stores it is, or of the warpgroup's wgmmas: the same in every interleaving.
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
# The trace records calls of these instructions, and two backends carry them out. `tmapipe.gpu` emits a CuTe DSL operation for
# each. `tmapipe.model` makes the operations of the table and executes them on a model of the hardware. The protocol
# (`tmapipe.protocol`) knows only this package. A method without statements is one that the trace, or each backend, has.
#
# **Who executes.** A body runs once per *warp*. All 32 lanes are converged at every instruction. Where the hardware wants one
# thread (an arrive, an expect-tx, a TMA instruction, a bulk group) the backend elects a lane, the same lane each time. Where a
# docstring says "each lane", all lanes execute the instruction.
#
# **Values.** An index, a parity, a coordinate or a rank is an ``int`` in the machine, and elsewhere a value that only the
# kernel knows; both take the usual arithmetic. A condition is a ``bool``, or likewise a value. Python's ``if`` on such a value
# works only in traced bodies, so library code branches with `Isa.when` and selects with `Isa.select`.
#
# **Proxies.** *Generic*: ordinary loads and stores by threads. *Async*: accesses of shared memory by TMA and wgmma. Accesses
# to the same bytes through different proxies are ordered only by a proxy fence, by the completion of an mbarrier (async
# writes, for the threads that wait for it), or by a group wait (async reads and writes, for the thread that started them).


class Isa(
    BarrierInstructions,
    CopyInstructions,
    PeerInstructions,
    RowInstructions,
    DescriptorInstructions,
    ComputeInstructions,
    GlobalInstructions,
):
    """One warp's view of the hardware: control flow, the arguments of the launch, and the instructions of the table.

    `fragments` has the instructions on values that are distributed over threads.
    """

    fragments: Fragments

    def cells(self, *initial: Value, names: str = "cell") -> Cells:
        """Mutable integers, one for each initial value. names: in a listing; one name stands for all."""

    def follow(self, part: Carried) -> None:
        """Takes note of an object of the protocol that has `_facts`. A trace joins the facts where paths meet."""

    def select(self, condition: Condition, then: Value, otherwise: Value) -> Value:
        """``selp``: *then* if *condition* else *otherwise*, without a branch."""

    def advance(self, state: Cells, stages: int, parity: bool = True) -> None:
        """Moves a pipeline state (index, parity) on to the next of *stages* slots. *parity*: whether the state has a
        parity."""
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

    def here(self, value: Value, name: str = "here") -> Value:
        """*value*, which is the same in all lanes, computed at this point of the program and not later where it is used. name:
        in a listing."""

    def when(self, condition: Condition, body: Callable[[], None]) -> None:
        """Runs *body* if *condition*. The condition must be the same in all lanes of the warp."""

    def loop(self, trips: Value, body: Callable[[Value], None]) -> None:
        """Runs ``body(0)`` .. ``body(trips - 1)``."""

    def loop_while(self, state: Cells, body: Callable[[], None], iterations: Callable[[], int] | None = None) -> None:
        """Runs ``body()`` as long as ``state[0]`` is not 0. It is the same number in all lanes that run the loop.

        Args:
            iterations: Gives how often the body runs in the check, which has no data, where data decides it.
        """

    def block(self) -> Block:
        """The block of code that the trace is in. Two points in one block are executed equally often, one after the other."""

    def call(self, body: Callable[..., None], *arguments: Any) -> None:
        """Runs a role's body."""

    def evaluate(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """The result of a method of the schedule that is no body, such as how many slots a tile takes."""
        return function(*arguments)

    def extent(self, argument: str, dim: int) -> Value:
        """Extent (elements) of dimension *dim* of the tensor bound to *argument*; a Python number if it is fixed."""

    def extent_along(self, where: str, dim: str) -> Value:
        """Extent (elements) of the dimension *dim*. Raises `InputError`, for the argument *where*, if no tensor has it."""
        for part in self.plan.transfers:
            if dim in part.dims:
                return self.extent(part.argument, part.dims.index(dim))
        known = ", ".join(dict.fromkeys(d for part in self.plan.transfers for d in part.dims))
        raise InputError(where, dim, f"names a dimension of a tensor ({known})", "name one of them")

    def window_start(self, load: Load, number: Value) -> tuple[Value, ...]:
        """Where window *number* of the load's tensor begins: (image, first element in the image along each dimension)."""
        assert load.windows is not None
        return load.windows.start(number, [self.extent(load.argument, i) for i in range(1, len(load.dims) - 1)])

    def divisors(self, values: dict[str, Value]) -> dict[str, Any]:
        """Each value as a divisor d, for ``x // d`` with x >= 0. The values are the `divisors` of the tile order, the same in
        all CTAs.

        In the machine a divisor is the number. On the GPU it is a multiplier and a shift, which the host has computed, since
        an integer division takes some 150 cycles.
        """
