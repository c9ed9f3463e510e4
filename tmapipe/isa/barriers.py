"""Operations and instructions on barriers and fences: mbarriers, hardware barriers, the cluster's barrier, proxy fences."""

from __future__ import annotations

from typing import NamedTuple

from tmapipe.errors import InputError
from tmapipe.isa.effects import Arm, Arrive, ArriveAt, FenceInit, FenceProxy, Init, SyncLanes, Wait, WaitAt, operation
from tmapipe.isa.lowering import Lowering
from tmapipe.isa.operands import (
    ALL_LANES,
    ELECTED,
    Bar,
    BarrierId,
    Bytes,
    Count,
    Flag,
    Lanes,
    Mask,
    Parity,
    ScopeName,
    Threads,
)
from tmapipe.isa.values import Condition, Value
from tmapipe.plan.model import Barrier, NamedBarrier

__all__ = [
    "BarArrive", "BarWait", "BarrierInstructions", "ClusterArrive", "ClusterWait", "FenceMbarInit", "FenceProxyAsync",
    "FenceProxyAsyncGlobal", "MbarArrive", "MbarArriveCluster", "MbarArriveTx", "MbarExpectTx", "MbarInit",
    "MbarWait", "WarpSync",
]  # fmt: skip


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
    """Until it succeeds. Facts: number of the phase seen complete (-1: before the first)."""

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


@operation(
    "mbarrier.arrive.expect_tx.shared.b64",
    "arms {nbytes} bytes on {bar} and arrives",
    Arm(),
    Arrive(),
)
class MbarArriveTx(NamedTuple):
    """Arms `nbytes`, then arrives. Facts: tuple of one `Counted`."""

    bar: Bar
    nbytes: Bytes


@operation("mbarrier.expect_tx.relaxed.cta.shared.b64", "arms {nbytes} bytes on {bar}", Arm())
class MbarExpectTx(NamedTuple):
    """Facts: tuple of one `Counted`."""

    bar: Bar
    nbytes: Bytes


@operation("bar.sync", "arrives at {id}", ArriveAt("id"))
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
    """By each of `lanes`. Facts: None."""

    lanes: Lanes = ALL_LANES


@operation("fence.proxy.async.global", "fences global memory (fence.proxy.async.global)", FenceProxy(space="global"))
class FenceProxyAsyncGlobal(NamedTuple):
    """By each of `lanes`. Facts: None."""

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
        if when:
            self.emit(MbarArrive(self.bar(barrier, stage), (1 << lanes) - 1))

    def mbarrier_arrive_cluster(
        self, barrier: Barrier, stage: Value, mask: Value, when: Condition = True, scope: str = "cluster"
    ) -> None:
        """``mapa`` + ``mbarrier.arrive``: lane *i* arrives once at CTA *i* of the cluster for each bit *i* of *mask*.

        scope: "cluster" releases this thread's earlier accesses to the peers (a membar, some hundred cycles); "relaxed" only
        counts, which is enough where all reads of the slot were asynchronous and have retired; "cta" (machine only, to show
        the bug) releases them to the own CTA alone.
        """
        if when:
            self.emit(MbarArriveCluster(self.bar(barrier, stage), mask, scope))

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
        thread's earlier accesses to the peers (a membar, some hundred cycles); "relaxed" orders none of them: inits that
        `fence_mbarrier_init` has released are visible after it all the same."""
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
        accesses through the async proxy, such as a TMA load of what threads have stored. Orders no access to shared memory."""
        self.emit(FenceProxyAsyncGlobal())
