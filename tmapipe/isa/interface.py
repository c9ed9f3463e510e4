"""The instruction set: the operations at PTX level that every ring, stage and schedule is written over.

Two readings implement it. `tmapipe.gpu` emits the CuTe DSL operation for each call while CuTe DSL traces the body;
`tmapipe.machine` carries each call out on a model of the hardware. The protocol (`barrier`, `stage`, `store_pipeline`,
`schedule`) knows only this file.

**Who executes.** A body runs once a *warp*. All 32 lanes are converged at every call. Where the hardware wants one thread
(an arrive, an expect-tx, a TMA instruction, a bulk group) the reading elects one lane, the same one each time, so the
caller never does. "Each lane" below says otherwise.

**Values.** An index, a parity, a coordinate or a rank is an ``int`` in the model and an ``Int32`` when traced; both take
the usual arithmetic. A condition is a ``bool`` or a ``Boolean``. Python ``if`` on such a value works only in traced
bodies, so library code branches with `Isa.when` and selects with `Isa.select`. A *fragment* is a value spread over the
registers of the threads of a role: a ``TensorSSA`` when traced, a NumPy array (the calling warp's part) in the model.

**Slots.** `SlotRef(buffer, stage)` names one slot of a `plan.Buffer`.

**Proxies.** *Generic*: ordinary loads and stores by threads. *Async*: what TMA and wgmma do to shared memory. Accesses to
the same bytes through different proxies are ordered only by a proxy fence, by an mbarrier completion (async writes, seen
by whoever waits), or by a group wait (async reads and writes of one's own).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from tmapipe.plan.model import Barrier, Buffer, Load, Matmul, NamedBarrier, Plan, RoleWarps, Store

__all__ = ["Carried", "Cells", "Isa", "SlotRef"]

Value = Any
Condition = Any
Fragment = Any


class SlotRef(NamedTuple):
    """One slot: `stage` counts from 0 to ``buffer.stages - 1``."""

    buffer: Buffer
    stage: Value


class Carried:
    """Base of objects that a traced body may use inside run-time loops and branches.

    CuTe DSL carries every local name on which a method is called through the loop, and asks the object for its values.
    The library's objects hold none (mutable state lives in `Cells`), so they answer with nothing and pass through.
    """

    __slots__ = ()

    def __extract_mlir_values__(self) -> list[Any]:
        return []

    def __new_from_mlir_values__(self, values: list[Any]) -> Carried:
        return self


class Cells(Protocol):
    """Mutable integers in registers. Indices are Python ints. Aliases, attributes and closures all see one state."""

    def __getitem__(self, i: int) -> Value: ...
    def __setitem__(self, i: int, value: Value) -> None: ...


class Isa(Protocol):
    """One warp's view of the hardware."""

    plan: Plan
    warp: Value  #: index of the calling warp in the CTA
    cta_rank: Value  #: rank of the CTA in its cluster
    cluster_id: Value  #: index of the cluster in the grid
    clusters: Value  #: number of clusters in the grid

    # ---- structure ------------------------------------------------------------------------------------------------

    def cells(self, *initial: Value) -> Cells:
        """Mutable integers, one for each initial value."""

    def select(self, condition: Condition, then: Value, otherwise: Value) -> Value:
        """``selp``: *then* if *condition* else *otherwise*, without a branch."""

    def here(self, value: Value) -> Value:
        """The same value, the same in all lanes, computed at this point of the program rather than where it is used."""

    def when(self, condition: Condition, body: Callable[[], None]) -> None:
        """Runs *body* if *condition*. The condition must be the same in all lanes of the warp."""

    def loop(self, trips: Value, body: Callable[[Value], None]) -> None:
        """Runs ``body(0)`` .. ``body(trips - 1)``."""

    def loop_while(self, state: Cells, body: Callable[[], None], turns: Callable[[], int]) -> None:
        """Runs ``body()`` as long as ``state[0]`` is not 0, the same in all lanes. turns: with how many of them a
        tile is taken, in the model without data."""

    def call(self, body: Callable[..., None], *arguments: Any) -> None:
        """Runs a role's body: traced by CuTe DSL, or called as it is."""

    def extent(self, argument: str, dim: int) -> Value:
        """Extent (elements) of dimension *dim* of the tensor bound to *argument*."""

    def divisors(self, values: dict[str, Value]) -> dict[str, Any]:
        """Each value as something to divide by (``x // d`` for x >= 0): a number in the model, a multiplier and shift that
        the host computed when traced, since an integer division takes some 150 cycles. The values are those of
        `PersistentTiles.divisors`, the same in all CTAs."""

    # ---- other kernels of the stream ------------------------------------------------------------------------------

    def griddepcontrol_wait(self) -> None:
        """``griddepcontrol.wait``: until the kernels before this one in the stream have ended and their writes are visible.
        Nothing in global memory may be touched earlier, since the launch does not wait for them. On the model: nothing."""

    def griddepcontrol_launch_dependents(self) -> None:
        """``griddepcontrol.launch_dependents``: once each CTA has executed it, the next kernel's CTAs may start wherever
        there is room (and wait there, as above). Orders nothing."""

    # ---- mbarrier -------------------------------------------------------------------------------------------------

    def mbarrier_init(self, barrier: Barrier, stage: int, count: int) -> None:
        """``mbarrier.init.shared::cta.b64``: a phase completes after *count* arrivals and all armed bytes.

        Visible to other threads of the CTA after a CTA barrier; to the async proxy and to peers only after
        `fence_mbarrier_init` and a cluster (or, in a cluster of one, CTA) barrier.
        """

    def fence_mbarrier_init(self) -> None:
        """``fence.mbarrier_init.release.cluster``: releases this thread's inits to the cluster and the async proxy."""

    def mbarrier_wait(self, barrier: Barrier, stage: Value, parity: Value) -> None:
        """``mbarrier.try_wait.parity`` until the phase of that parity has completed (each lane; acquire at CTA scope,
        at cluster scope for remote arrivals). The phase before the first counts as completed with parity 1."""

    def mbarrier_arrive(self, barrier: Barrier, stage: Value, lanes: int = 1, when: Condition = True) -> None:
        """``mbarrier.arrive.shared::cta``: *lanes* (1: one lane, or 32: each) arrive once (release, CTA scope).

        Other lanes' earlier generic accesses are ordered before it only by a `warp_sync`.
        """

    def mbarrier_arrive_cluster(
        self, barrier: Barrier, stage: Value, mask: Value, when: Condition = True, scope: str = "cluster"
    ) -> None:
        """``mapa`` + ``mbarrier.arrive.release.cluster.shared::cluster``: lane *i* arrives once at CTA *i* of the cluster
        for each bit *i* of *mask*. *scope*: "cluster" releases this thread's earlier accesses to the peers (a membar, some
        hundred cycles); "relaxed" only counts, which is enough where all reads of the slot were asynchronous and have
        retired; "cta" (machine only, to show the bug) releases them to the own CTA alone."""

    def mbarrier_arrive_expect_tx(self, barrier: Barrier, stage: Value, nbytes: int) -> None:
        """``mbarrier.arrive.expect_tx``: raises the pending bytes of the current phase by *nbytes*, then arrives once."""

    def mbarrier_expect_tx(self, barrier: Barrier, stage: Value, nbytes: int) -> None:
        """``mbarrier.expect_tx.relaxed.cta``: raises the pending bytes only."""

    # ---- other barriers and fences --------------------------------------------------------------------------------

    def cta_sync(self) -> None:
        """``bar.sync 0``: all threads of the CTA."""

    def warp_sync(self) -> None:
        """``bar.warp.sync``: orders the lanes' memory accesses among themselves."""

    def named_barrier_sync(self, barrier: NamedBarrier, instance: Value = 0) -> None:
        """``bar.sync id + instance, threads``: waits until *threads* threads have arrived. Orders generic accesses among
        them."""

    def named_barrier_arrive(self, barrier: NamedBarrier, instance: Value = 0) -> None:
        """``bar.arrive id + instance, threads``: arrives without waiting."""

    def cluster_arrive(self, scope: str = "cluster") -> None:
        """``barrier.cluster.arrive``: all threads of all CTAs of the cluster take part. *scope*: "cluster" releases this
        thread's earlier accesses to the peers (a membar, some hundred clocks); "relaxed" orders none of them: inits that
        `fence_mbarrier_init` has released are visible after it all the same."""

    def cluster_wait(self) -> None:
        """``barrier.cluster.wait.acquire``."""

    def fence_proxy_async(self) -> None:
        """``fence.proxy.async.shared::cta`` (each lane): orders this thread's generic accesses to shared memory before
        the async-proxy accesses that follow it, through whatever synchronization, in the same or another thread."""

    # ---- tiles in dynamic order -----------------------------------------------------------------------------------

    def next_number(self, last: Value) -> Value:
        """``atom.global.add``, relaxed, by one lane, on a counter that starts a launch at 0: 0, 1, 2, ... over the whole grid,
        each once, in whatever order the clusters come. Whoever gets *last* sets the counter back to 0 for the next launch: so
        *last* + 1 must be how often the grid asks. In the model the clusters take turns."""

    def claim_place(self) -> Value:
        """``atom.global.add``, relaxed, by one lane: a place from 0 to clusters - 1, each once over the whole grid, of those
        that the host keeps for the GPC of the calling multiprocessor, or if these are gone of another's. Once a cluster, and
        after `griddepcontrol_wait`. In the model, the cluster's number."""

    def places_claimed(self) -> None:
        """``atom.global.add``, by one lane, once a cluster that has claimed a place: the last one sets the counters back
        to 0 for the next launch."""

    def store_words(self, slot: SlotRef, words: Sequence[Value], barrier: Barrier) -> None:
        """``st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32``, by lane i to CTA i of the cluster, for every CTA:
        writes *words* to the start of the slot, and completes all bytes of the slot on ``barrier[slot.stage]`` there, later,
        by itself. Which proxy it goes through is left open by the PTX ISA: taken as the async one, which is the stricter."""

    def read_words(self, slot: SlotRef, count: int, without_data: Callable[[], Sequence[int]]) -> Sequence[Value]:
        """``ld.shared``: the slot's first *count* words, in all lanes. without_data: what they are in the model without data.
        Generic proxy."""

    # ---- tables ---------------------------------------------------------------------------------------------------

    def table_value(self, table: str, i: Value) -> Value:
        """``ld.global``: entry *i* of the table, in all lanes. After `griddepcontrol_wait` only. The model without data finds
        the largest int32 in every entry."""

    def table_count(self, table: str, count: Value, holds: Callable[[Value, Value], Condition]) -> Value:
        """``ld.global`` by lane i of the entries i, i + 32, ..., and ``vote.ballot``: of how many of the first *count* entries
        ``holds(index, entry)``, in all lanes. Otherwise as `table_value`."""

    # ---- TMA ------------------------------------------------------------------------------------------------------

    def prefetch_descriptor(self, part: Load | Store) -> None:
        """``prefetch.tensormap``: a hint, no ordering effect."""

    def tma_load(
        self, load: Load, stage: Value, at: Sequence[Value], barrier: Barrier, mask: Value = None, share: Value = 0
    ) -> None:
        """``cp.async.bulk.tensor.tile.shared::cluster.global.mbarrier::complete_tx::bytes`` (``.multicast::cluster``).

        Copies the tile that starts at element *at* (one index a dimension of `load.dims`; elements outside the tensor count as
        bytes, and read as zero unless `load.outside` leaves open what whole rows of them hold) into slot *stage* and completes
        its bytes on ``barrier[stage]``, later, by itself. With *mask*, this CTA copies only part *share* of `load.peers` parts
        (split along the slot's first extent), into the same slot, and completes its bytes on the same barrier, of every CTA
        in *mask*. Async proxy.
        """

    def tma_store(self, store: Store, stage: Value, at: Sequence[Value], rows: Value = None) -> None:
        """``cp.async.bulk.tensor.tile.global.shared::cta.bulk_group`` (``cp.reduce...`` with `store.reduce`): copies slot
        *stage* to the tile that starts at element *at*, later; elements outside the tensor are not written, and of a
        `store.clipped` no others than the slot's first *rows* rows (0 to all). Async proxy."""

    def bulk_commit_group(self) -> None:
        """``cp.async.bulk.commit_group``: closes a group of the elected thread's stores."""

    def bulk_wait_group(self, pending: int, read: bool) -> None:
        """``cp.async.bulk.wait_group(.read)``: until at most *pending* groups of the elected thread are incomplete
        (*read*: until their sources have been read, so that these may be overwritten; the writes may not be visible)."""

    # ---- wgmma ----------------------------------------------------------------------------------------------------

    def accumulator(self, matmul: Matmul, empty: bool = True) -> Fragment:
        """Registers for this warpgroup's part of ``acc[m, n]``, in fp32, or int32 of int8 operands: zero, until the first
        wgmma. The same ones at each call, so that only the last one called can be used. empty: whether they may be read
        without one."""

    def accumulator_promote(self, matmul: Matmul, acc: Fragment) -> None:
        """Adds what wgmma has summed since the last time to sums in fp32, and lets the next wgmma start from zero. All wgmma
        groups must be complete."""

    def wgmma_fence(self) -> None:
        """``wgmma.fence.sync.aligned``: orders register accesses before the next wgmma."""

    def wgmma(self, matmul: Matmul, acc: Fragment, a: SlotRef, b: SlotRef) -> None:
        """``wgmma.mma_async`` for all k of the slots, asynchronously: reads both slots (async proxy) and *acc* until a
        `wgmma_wait` says otherwise."""

    def wgmma_commit(self) -> None:
        """``wgmma.commit_group.sync.aligned``."""

    def wgmma_wait(self, pending: int) -> None:
        """``wgmma.wait_group.sync.aligned``: until at most *pending* groups of this warpgroup are incomplete."""

    def accumulator_columns(self, matmul: Matmul, acc: Fragment, block: int, first: int, columns: int) -> Fragment:
        """The values (of the sums' type, 64 x *columns* over the warpgroup) of columns [first, first + columns) of row block
        *block* of *acc*: the tile's rows ``(block * warpgroups + g) * 64`` on. All wgmma groups must be complete."""

    def write_columns(self, matmul: Matmul, values: Fragment, slot: SlotRef) -> None:
        """Converts *values* (as `accumulator_columns` deals them: 64 x columns, 16 rows a warp) to the slot's type and
        writes them to the slot, whose extents are (64, columns), by ``stmatrix`` or ``st.shared``. Generic proxy."""

    def row_sums(
        self, matmul: Matmul, values: Fragment, columns: int, first: int, inside: Value, before: Fragment | None
    ) -> Fragment:
        """*before* (None: zero) plus, for each row, the sum of *values* (as `accumulator_columns` deals them: 64 x *columns*,
        fp32) in columns [first, inside): what the others are does not matter. first: a multiple of 8; inside: at run time,
        perhaps negative or more than there are. For `write_row_sums` alone, since each thread has sums of its own columns."""

    def write_row_sums(self, matmul: Matmul, sums: Fragment, slot: SlotRef) -> None:
        """The sums that `row_sums` gave, added over the 4 lanes that share a row by ``shfl.bfly``, to a slot of 64 elements:
        16 a warp. Always in the same order. Generic proxy."""

    def column_sums(self, matmul: Matmul, values: Fragment, columns: int, inside: Value) -> Fragment:
        """For each warp and column, the sum of *values* (as `accumulator_columns` deals them: 64 x *columns*, fp32) over those
        of the warp's rows that are among the first *inside* of the 64 (at run time, perhaps negative or more), for
        `write_column_sums` alone. Added over lanes by ``shfl.bfly``, always in the same order."""

    def write_column_sums(self, matmul: Matmul, sums: Fragment, slot: SlotRef) -> None:
        """The sums that `column_sums` gave, to the warp's row of a slot of (4, columns). Generic proxy."""

    def read_columns(
        self, matmul: Matmul, slot: SlotRef, along: tuple[str, ...], columns: int, first: int = 0
    ) -> Fragment:
        """``ld.shared``: values of a slot in fp32, dealt as `accumulator_columns` deals them: 64 x *columns* over the
        warpgroup. along: what they vary with. ("m", "n"): the slot's extents are (64 * matmul.warpgroups, columns), and
        warpgroup g has the rows from 64 * g on; ("m",): one value a row, from element *first* + 64 * g on; ("n",): one a
        column, from element *first* on; (): the first element for all. Generic proxy."""

    def apply(self, function: Callable[..., Any], fragments: Sequence[Fragment], named: dict[str, Fragment]) -> Any:
        """``function(*fragments, **named)`` in fp32, a fragment or a dictionary of fragments, where all are dealt as
        `accumulator_columns` deals them and the function works element by element: it may be called on one part of the
        columns after the other, so that few intermediate values need registers at a time."""

    # ---- generic accesses -----------------------------------------------------------------------------------------

    def read(self, slot: SlotRef, role: RoleWarps) -> Fragment:
        """``ld.shared``: the slot, dealt over the threads of *role*; the caller holds its part. Generic proxy."""

    def write(self, slot: SlotRef, values: Fragment, role: RoleWarps) -> None:
        """``st.shared``: the counterpart of `read`, converting to the slot's type. Generic proxy."""

    def raw(
        self,
        gpu: Callable[..., None],
        cpu: Callable[..., None] | None,
        accesses: Sequence[tuple[SlotRef, str]],
        role: RoleWarps,
        proxy: str = "generic",
    ) -> None:
        """Code of one reading: *gpu* with tensors, *cpu* with arrays, in the order of *accesses*: (slot, "read": the whole
        of it, or "write", "update": the calling warp's rows of it, of which each lane takes the same elements whenever *gpu*
        is called). proxy: "generic", or "async" if *gpu* reaches them by TMA or wgmma; then all lanes wait in it until that
        has ended."""

    # ---- registers ------------------------------------------------------------------------------------------------

    def setmaxnreg(self, registers: int, increase: bool) -> None:
        """``setmaxnreg.inc/dec.sync.aligned.u32``: registers a thread from here on (24 to 256, a multiple of 8), for every
        warp of the warpgroup. An increase blocks until the CTA's pool has that many free."""
