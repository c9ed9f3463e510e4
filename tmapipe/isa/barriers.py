"""Operations and instructions on barriers and fences, of threads and of tensor cores, and how calls become operations."""

# mypy: disable-error-code="empty-body"
# ruff: noqa: F403, F405 - declarations are written in the vocabulary of `tmapipe.isa`, all of it

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tmapipe.errors import InputError
from tmapipe.isa import *
from tmapipe.isa.fragment import Carried, Condition, SlotRef, Value
from tmapipe.plan.model import Load, Plan, Store, Syncs
from tmapipe.plan.rings import Barrier, Buffer, Matmul, NamedBarrier

# ---- lowering --------------------------------------------------------------------------------------------------------
#
# How an instruction, which bodies call, becomes operations. All files of operations share it.


class BarRef(tuple):
    """(barrier, stage): what stands for an mbarrier in a trace."""


class Lowering(Carried):
    """Base of the instruction set. An instruction makes its operations and hands them to `emit`. Each backend says what stands
    for barriers, slots and first elements of tiles in operations: flat numbers in the machine, values of the emitted program
    on the GPU.

    plan: the kernel's plan. syncs: named barriers that bodies use and that the plan does not have. warp: the calling warp's
    index in the CTA. cta_rank: the CTA's rank in its cluster. cluster_id: the cluster's number in the grid. clusters: how many
    clusters the grid has.
    """

    plan: Plan
    syncs: Syncs
    warp: Value
    cta_rank: Value
    cluster_id: Value
    clusters: Value

    def emit(self, op: Any, *data: Any, when: Condition = True) -> None:
        """Executes an operation, or records it. data: what only the GPU's emitter needs, such as registers. when: whether the
        operation is executed, on the GPU."""

    def may_hold(self, when: Condition) -> bool:
        """Whether a condition holds; also true if only the kernel knows."""
        return bool(when)

    def ask(self, op: Any, without_data: Callable[[], Sequence[int]], *data: Any) -> Sequence[int]:
        """Executes an operation that reads memory. Returns what it has read; in the machine without data, *without_data*."""

    def answer(self, op: Any, in_machine: Value, *data: Any) -> Value:
        """Executes an operation that gives a number, which is *in_machine* in the machine."""
        self.emit(op, *data)
        return in_machine

    def bar(self, barrier: Barrier, stage: Value) -> Any:
        """What stands for an mbarrier of the CTA in operations. In the machine, this and the following methods give flat
        numbers."""
        return BarRef((barrier, stage))

    def slot(self, buffer: Buffer, stage: Value) -> Any:
        """What stands for a slot of the CTA in operations."""
        return SlotRef(buffer, stage)

    def start(self, of: Load | Store, at: Sequence[Value]) -> Any:
        """What stands for a tile's first element (one index for each dimension of the tensor) in operations."""
        return tuple(at)

    def part(self, of: Load | Store, index: Value) -> Any:
        """What stands for a part of a slot in operations, if only this part is moved; None for the whole slot."""
        return index

    def plain(self, number: Value) -> Any:
        """What stands in operations for a number on which only data depends."""
        return number

    def share_bytes(self, load: Load, share: int, shares: int) -> int:
        """How many bytes share *share* of *shares* of a tile has that threads copy."""
        vectors = load.buffer.slot_bytes // load.vector
        return load.vector * sum(min(32, vectors - first) for first in range(32 * share, vectors, 32 * shares))

    def barrier_id(self, barrier: NamedBarrier, instance: Value) -> Any:
        """What stands for a named barrier of the CTA in operations: its id."""
        return barrier.id + instance


# ---- barriers --------------------------------------------------------------------------------------------------------
#
# Operations and instructions on barriers and fences: mbarriers, hardware barriers, the cluster's barrier, proxy fences.


@operation("mbarrier.init.shared.b64", "initializes {bar} with count {arrivals}", Init())
class MbarInit(NamedTuple):
    """`arrivals` complete a phase. Facts: None."""

    bar: Bar
    arrivals: Count


@operation("fence.mbarrier_init.release.cluster", "fences the initialization (fence.mbarrier_init)", FenceInit())
class FenceMbarInit(NamedTuple):
    """Facts: None."""


@operation("mbarrier.try_wait.parity.shared.b64", "waits for {bar} (parity {parity})", Wait())
class MbarWait(NamedTuple):
    """Waits until the phase of this parity is complete. Facts: number of the phase seen complete (-1: before the first)."""

    bar: Bar
    parity: Parity


@operation("mbarrier.arrive.shared.b64", "arrives at {bar}[ by {lanes} lanes]", Arrive(lanes="lanes"))
class MbarArrive(NamedTuple):
    """Once by each of `lanes`. Facts: tuple of `Counted`, one a phase that some of them count in."""

    bar: Bar
    lanes: Lanes = ELECTED


@operation(
    "mbarrier.arrive.shared::cluster.b64",
    "arrives at {bar} of CTAs {mask} ({scope} scope)",
    Arrive(mask="mask", scope="scope"),
)
class MbarArriveCluster(NamedTuple):
    """Lane i at CTA i for each bit i of `mask`. Facts: tuple of `Counted`."""

    bar: Bar
    mask: Mask
    scope: ScopeName = "cluster"


@operation("mbarrier.arrive.expect_tx.shared.b64", "arms {nbytes} bytes on {bar} and arrives", Arm(), Arrive())
class MbarArriveTx(NamedTuple):
    """Arms `nbytes`, then arrives. Facts: tuple of one `Counted`."""

    bar: Bar
    nbytes: Bytes


@operation("mbarrier.expect_tx.relaxed.cta.shared.b64", "arms {nbytes} bytes on {bar}", Arm())
class MbarExpectTx(NamedTuple):
    """Facts: tuple of one `Counted`."""

    bar: Bar
    nbytes: Bytes


@operation("bar.sync", "arrives at {id}", ArriveAt("id", "threads", "sync"))
class BarArrive(NamedTuple):
    """The arrival of ``bar.sync`` (sync) or ``bar.arrive``; id 0 is the CTA's barrier (`threads` 0: all that have not
    returned). Facts: (generation counted in, whether it completed)."""

    id: BarrierId
    threads: Threads
    sync: Flag


@operation("", "passes {id}", WaitAt("id"))
class BarWait(NamedTuple):
    """The waiting part of ``bar.sync``. Facts: the generation seen complete."""

    id: BarrierId


@operation("bar.warp.sync", "synchronizes the warp", SyncLanes())
class WarpSync(NamedTuple):
    """Facts: None."""


@operation("barrier.cluster.arrive", "arrives at the cluster barrier", ArriveAt(scope="scope"))
class ClusterArrive(NamedTuple):
    """Facts: (generation counted in, whether it completed)."""

    scope: ScopeName = "cluster"


@operation("barrier.cluster.wait", "passes the cluster barrier", WaitAt())
class ClusterWait(NamedTuple):
    """Facts: the generation seen complete."""


@operation("fence.proxy.async.shared::cta", "fences (fence.proxy.async)", FenceProxy())
class FenceProxyAsync(NamedTuple):
    """A fence of each of `lanes`. Facts: None."""

    lanes: Lanes = ALL_LANES


@operation("fence.proxy.async.global", "fences global memory (fence.proxy.async.global)", FenceProxy(space="global"))
class FenceProxyAsyncGlobal(NamedTuple):
    """A fence of each of `lanes`. Facts: None."""

    lanes: Lanes = ALL_LANES


class BarrierInstructions(Lowering):
    """Instructions on barriers and fences."""

    def mbarrier_init(self, barrier: Barrier, count: int) -> None:
        """``mbarrier.init`` of each stage: a phase completes after *count* arrivals and all armed bytes.

        Visible to other threads of the CTA after a CTA barrier; to the async proxy and to peers only after
        `fence_mbarrier_init` and a cluster (or, in a cluster of one, CTA) barrier.
        """
        for stage in range(barrier.stages):
            self.emit(MbarInit(self.bar(barrier, stage), count))

    def fence_mbarrier_init(self) -> None:
        """``fence.mbarrier_init``: releases this thread's inits to the cluster and the async proxy."""
        self.emit(FenceMbarInit())

    def mbarrier_wait(self, barrier: Barrier, stage: Value, parity: Value) -> None:
        """``mbarrier.try_wait.parity`` until the phase of that parity has completed (each lane; acquire at CTA scope, at
        cluster scope for remote arrivals). The phase before the first counts as completed with parity 1. Before sm_90, a loop
        of ``mbarrier.test_wait``."""
        self.emit(MbarWait(self.bar(barrier, stage), parity))

    def mbarrier_arrive(self, barrier: Barrier, stage: Value, lanes: int = 1, when: Condition = True) -> None:
        """``mbarrier.arrive``: *lanes* (1: one lane, or 32: each) arrive once (release, CTA scope). Other lanes' earlier
        generic accesses are ordered before it only by a `warp_sync`."""
        if isinstance(lanes, int) and lanes not in (1, 32):
            rule = "is 1 (one lane) or 32 (each)"
            raise InputError("mbarrier_arrive(lanes)", lanes, rule, "leave it out for one lane")
        if self.may_hold(when):
            self.emit(MbarArrive(self.bar(barrier, stage), (1 << lanes) - 1), when=when)

    def mbarrier_arrive_cluster(
        self, barrier: Barrier, stage: Value, mask: Value, when: Condition = True, scope: str = "cluster"
    ) -> None:
        """``mapa`` + ``mbarrier.arrive``: lane *i* arrives once at CTA *i* of the cluster for each bit *i* of *mask*.

        scope: "cluster" releases this thread's earlier accesses to the peers (a membar, some hundred cycles); "relaxed" only
        counts, which is enough where all reads of the slot were asynchronous and have retired; "cta" (machine only, to show
        the bug) releases them to the own CTA alone.
        """
        if self.may_hold(when):
            self.emit(MbarArriveCluster(self.bar(barrier, stage), mask, scope), when=when)

    def mbarrier_arrive_expect_tx(self, barrier: Barrier, stage: Value, nbytes: int) -> None:
        """``mbarrier.arrive.expect_tx``: raises the pending bytes of the present phase by *nbytes*, then arrives once."""
        self.emit(MbarArriveTx(self.bar(barrier, stage), nbytes))

    def mbarrier_expect_tx(self, barrier: Barrier, stage: Value, nbytes: int) -> None:
        """``mbarrier.expect_tx``: raises the pending bytes only."""
        self.emit(MbarExpectTx(self.bar(barrier, stage), nbytes))

    def cta_sync(self) -> None:
        """``bar.sync 0``: all threads of the CTA."""
        self.emit(BarArrive(0, 0, True))
        self.emit(BarWait(0))

    def warp_sync(self) -> None:
        """``bar.warp.sync``: orders the lanes' memory accesses among themselves."""
        self.emit(WarpSync())

    def named_barrier_sync(self, barrier: NamedBarrier, instance: Value = 0) -> None:
        """``bar.sync id + instance, threads``: waits until *threads* threads have arrived. Orders generic accesses among
        them."""
        self.emit(BarArrive(self.barrier_id(barrier, instance), barrier.threads, True))
        self.emit(BarWait(barrier.id + instance))

    def named_barrier_arrive(self, barrier: NamedBarrier, instance: Value = 0) -> None:
        """``bar.arrive id + instance, threads``: arrives without waiting."""
        self.emit(BarArrive(self.barrier_id(barrier, instance), barrier.threads, False))

    def cluster_arrive(self, scope: str = "cluster") -> None:
        """``barrier.cluster.arrive``: all threads of all CTAs of the cluster take part. scope: "cluster" releases this
        thread's earlier accesses to the peers (a membar, some hundred cycles). "relaxed" orders no accesses; but inits that
        `fence_mbarrier_init` has released are visible after it."""
        self.emit(ClusterArrive(scope))

    def cluster_wait(self) -> None:
        """``barrier.cluster.wait.acquire``."""
        self.emit(ClusterWait())

    def fence_proxy_async(self) -> None:
        """``fence.proxy.async.shared::cta`` (each lane): orders this thread's generic accesses to shared memory before the
        async-proxy accesses that follow it, through whatever synchronization, in the same or another thread."""
        self.emit(FenceProxyAsync())

    def fence_proxy_async_global(self) -> None:
        """``fence.proxy.async.global`` (each lane): orders this thread's generic accesses to global memory before later
        accesses through the async proxy. So a TMA load can read what threads have stored. It orders no access to shared
        memory."""
        self.emit(FenceProxyAsyncGlobal())


# ---- compute ---------------------------------------------------------------------------------------------------------
#
# Operations and instructions of threads and tensor cores: slots read and written, wgmma, registers, the end of a warp.


IN_GROUP = Until(Group.WGMMA)


@operation("", "writes the registers of {matmul}", Accumulators(Use.WRITE, "matmul"))
class AccumulatorWrite(NamedTuple):
    """Registers of a matmul written by the warp: its accumulators set to zero or scaled, or its operand a. Facts: None."""

    matmul: Name


@operation("", "reads the accumulators of {matmul}", Accumulators(Use.READ, "matmul"))
class AccumulatorRead(NamedTuple):
    """Registers of an accumulator read by the warp. Facts: None."""

    matmul: Name


@operation("wgmma.fence.sync.aligned", "fences the accumulators (wgmma.fence)", Accumulators(Use.FENCE))
class WgmmaFence(NamedTuple):
    """Facts: None."""


@operation(
    "wgmma.mma_async.sync.aligned",
    "starts wgmma {matmul}, which reads {a} and {b}",
    Start("a", IN_GROUP),
    Start("b", IN_GROUP),
    Accumulators(Use.UPDATE, "matmul"),
)
class Wgmma(NamedTuple):
    """Executed by one of the warpgroup's four warps. Facts: tuple of its `Flight`, the same for all four."""

    matmul: Name
    a: Slot
    b: Slot


@operation(
    "wgmma.mma_async.sync.aligned",
    "starts wgmma {matmul}, which reads registers and {b}",
    Start("b", IN_GROUP),
    Accumulators(Use.UPDATE, "matmul"),
    Accumulators(Use.UPDATE, "operand"),
)
class WgmmaFromRegisters(NamedTuple):
    """A `Wgmma` whose operand a is in registers, which count as accumulators. operand: which set of registers, if several sets
    take turns; else "". Facts: as for `Wgmma`."""

    matmul: Name
    b: Slot
    operand: Name = ""


@operation("wgmma.commit_group.sync.aligned", "commits a wgmma group", EndGroup(Group.WGMMA))
class WgmmaCommit(NamedTuple):
    """Facts: n: the group ends before serial n of the warpgroup's wgmmas."""


@operation("wgmma.wait_group.sync.aligned", "waits for wgmma groups (wait_group {pending})", AwaitGroup(Group.WGMMA))
class WgmmaWait(NamedTuple):
    """Facts: n: the warpgroup's wgmmas 0 .. n - 1 are now complete."""

    pending: Pending


def _part(op: SlotRead | SlotWrite) -> str:
    cut, _, raw = op.split.partition("/")
    share = f" (part {op.part} of {op.parts}, by {cut})" if op.parts > 1 else ""
    proxy = ", through the async proxy" if op.proxy == "async" else ""
    return f"{share} in {raw}{proxy}" if raw else share


PARTS: Any = {"proxy": "proxy", "part": "part", "parts": "parts", "cut": "split"}


@operation("", lambda names, op: f"reads {names.slot_name(op.slot)}{_part(op)}", Access(**PARTS))
class SlotRead(NamedTuple):
    """``ld.shared`` or ``ldmatrix`` of part `part` of `parts` of a slot by all lanes.

    split: how the parts are cut: "vectors of 8" or "rows in vectors of 8" (see `plan.thread_layout.VectorLayout`), "rows"
    (contiguous along the first extent) or "numbers of rows" (of columns), and after a slash which raw function distributes its
    part over the lanes. Parts of the same cut with different numbers are disjoint; of everything else assume that they
    overlap. proxy: "generic", or "async": raw code reaches it by TMA or wgmma, and goes on in all lanes only when that has
    ended. Facts: None.
    """

    slot: Slot
    part: Number = 0
    parts: Number = 1
    split: Name = "rows"
    proxy: ProxyName = "generic"


@operation("", lambda names, op: f"writes {names.slot_name(op.slot)}{_part(op)}", Access(write=True, **PARTS))
class SlotWrite(NamedTuple):
    """``st.shared``, ``stmatrix``: operands as `SlotRead`. Facts: None."""

    slot: Slot
    part: Number = 0
    parts: Number = 1
    split: Name = "rows"
    proxy: ProxyName = "generic"


@operation("ld.shared::cluster", "reads {slot} of CTA {mask}", Access(mask="mask"))
class PeerRead(NamedTuple):
    """All lanes read the slot of the CTA in `mask`. The operation leaves open which elements. Facts: None."""

    slot: Slot
    mask: Mask


@operation("setmaxnreg.sync.aligned.u32", "sets {registers} registers a thread", SetRegisters())
class SetMaxNreg(NamedTuple):
    """``.inc`` or ``.dec``, registers a thread. Facts: registers a thread before."""

    registers: Number
    increase: Flag


@operation("ret", "returns", Return())
class Exit(NamedTuple):
    """The warp returns. Facts: whether it was the last of its CTA."""


class ComputeInstructions(Lowering):
    """Instructions of threads and tensor cores. Operations on values are in `tmapipe.isa.fragments`."""

    def wgmma_fence(self) -> None:
        """``wgmma.fence``: orders register accesses before the next wgmma."""
        self.emit(WgmmaFence())

    def wgmma(self, matmul: Matmul, acc: Any, a: Any, b: SlotRef, registers: str = "") -> None:
        """``wgmma.mma_async`` for all k of the slots, asynchronously. It reads the slots (async proxy) and *acc* until a
        `wgmma_wait` has waited for it. a: a slot, or the result of `Fragments.operand` in *registers*, which wgmma reads until
        then, too."""
        second = self.slot(b.buffer, b.stage)
        if isinstance(a, SlotRef):
            self.emit(Wgmma(matmul.name, self.slot(a.buffer, a.stage), second), acc)
        else:
            self.emit(WgmmaFromRegisters(matmul.name, second, registers), acc, a)

    def wgmma_commit(self) -> None:
        """``wgmma.commit_group``."""
        self.emit(WgmmaCommit())

    def wgmma_wait(self, pending: int) -> None:
        """``wgmma.wait_group``: until at most *pending* groups of this warpgroup are incomplete."""
        self.emit(WgmmaWait(pending))

    def read_words(self, slot: SlotRef, count: int, without_data: Callable[[], Sequence[int]]) -> Sequence[Value]:
        """``ld.shared``: the slot's first *count* words of 4 bytes, in all lanes. without_data: gives these words if the
        machine runs without data. Generic proxy."""
        return self.ask(SlotRead(self.slot(slot.buffer, slot.stage)), without_data, count)[:count]

    def setmaxnreg(self, registers: int, increase: bool) -> None:
        """``setmaxnreg.inc/dec``: registers a thread from here on (24 to 256, a multiple of 8), for every warp of the
        warpgroup. An increase blocks until the CTA's pool has that many free."""
        self.emit(SetMaxNreg(registers, increase))
