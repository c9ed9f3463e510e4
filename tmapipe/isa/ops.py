"""Operations: what a warp asks of the machine, one immutable record each, and the steps that engines take by themselves.

Operands are small integers that `Layout` numbers and names: ``bar`` is a flat index of one mbarrier of the CTA, ``slot`` of
one slot of shared memory, both without the CTA, which the agent supplies. ``lanes`` and ``mask`` are bit masks, of lanes of
the warp and of CTAs of the cluster. ``where`` is the source line ("file:line") if the machine was asked to locate.

`State.apply` answers each with *facts*, which the last line of each docstring states; engine steps come from a `Flight`.
"""

from __future__ import annotations

from typing import NamedTuple

ALL_LANES = 0xFFFFFFFF
ELECTED = 1  # lane 0: the same lane each time

Where = str | None


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


# ---- mbarriers --------------------------------------------------------------------------------------------------------


class MbarInit(NamedTuple):
    """``mbarrier.init``: `arrivals` complete a phase. Facts: None."""

    bar: int
    arrivals: int
    where: Where = None


class FenceMbarInit(NamedTuple):
    """``fence.mbarrier_init.release.cluster``. Facts: None."""

    where: Where = None


class MbarWait(NamedTuple):
    """``mbarrier.try_wait.parity``, until it succeeds. Facts: number of the phase seen complete (-1: before the first)."""

    bar: int
    parity: int
    where: Where = None


class MbarArrive(NamedTuple):
    """``mbarrier.arrive``, once by each of `lanes`. Facts: tuple of `Counted`, one a phase that some of them count in."""

    bar: int
    lanes: int = ELECTED
    where: Where = None


class MbarArriveCluster(NamedTuple):
    """Remote ``mbarrier.arrive.release``: lane i at CTA i for each bit i of `mask`. scope: "cluster", "relaxed" (which only
    counts; a `barrier.RingEnd` uses it where no thread has touched the slot), or "cta", which orders
    nothing for a peer. Facts: tuple of `Counted`."""

    bar: int
    mask: int
    scope: str = "cluster"
    where: Where = None


class MbarArriveTx(NamedTuple):
    """``mbarrier.arrive.expect_tx``: arms `nbytes`, then arrives. Facts: tuple of one `Counted`."""

    bar: int
    nbytes: int
    lanes: int = ELECTED
    where: Where = None


class MbarExpectTx(NamedTuple):
    """``mbarrier.expect_tx``: arms only. Facts: tuple of one `Counted`."""

    bar: int
    nbytes: int
    lanes: int = ELECTED
    where: Where = None


# ---- other barriers and fences ----------------------------------------------------------------------------------------


class BarArrive(NamedTuple):
    """Arrival part of ``bar.sync`` (sync) or ``bar.arrive``; id 0 is the CTA's barrier (`threads` 0: all that have not
    returned). Facts: (generation counted in, whether it completed)."""

    id: int
    threads: int
    sync: bool
    where: Where = None


class BarWait(NamedTuple):
    """Waiting part of ``bar.sync``. Facts: the generation seen complete."""

    id: int
    where: Where = None


class WarpSync(NamedTuple):
    """``bar.warp.sync``. Facts: None."""

    where: Where = None


class ClusterArrive(NamedTuple):
    """``barrier.cluster.arrive``. scope: "cluster" (release) or "relaxed" (which only counts). Facts: (generation counted in,
    whether it completed)."""

    scope: str = "cluster"
    where: Where = None


class ClusterWait(NamedTuple):
    """``barrier.cluster.wait.acquire``. Facts: the generation seen complete."""

    where: Where = None


class FenceProxyAsync(NamedTuple):
    """``fence.proxy.async.shared::cta`` by each of `lanes`. Facts: None."""

    lanes: int = ALL_LANES
    where: Where = None


# ---- TMA --------------------------------------------------------------------------------------------------------------


class PrefetchDescriptor(NamedTuple):
    """``prefetch.tensormap``. Facts: None."""

    part: str
    where: Where = None


class TmaLoad(NamedTuple):
    """``cp.async.bulk.tensor`` to shared memory, of the tile that starts at element `at`, to `slot`, completing `nbytes` on
    `bar`, in each CTA of `mask` (None: the issuer's). Only share `share` of `shares` of it, cut along rows. Facts: tuple of
    `Flight`, one a destination CTA. Without a `load` it stands for ``st.async`` of the words `at`, which lands alike."""

    load: str
    slot: int
    bar: int
    nbytes: int
    mask: int | None = None
    share: int = 0
    shares: int = 1
    at: tuple[int, ...] = ()
    lanes: int = ELECTED
    where: Where = None


class TmaStore(NamedTuple):
    """``cp.async.bulk.tensor`` (or ``cp.reduce``) to global memory, to the tile that starts at element `at`; only the first
    `rows` rows of it, if it is clipped. Facts: its `Flight`."""

    store: str
    slot: int
    at: tuple[int, ...] = ()
    rows: int | None = None
    lanes: int = ELECTED
    where: Where = None


class BulkCommit(NamedTuple):
    """``cp.async.bulk.commit_group``. Facts: (number of the thread's group, its flights)."""

    lanes: int = ELECTED
    where: Where = None


class BulkWait(NamedTuple):
    """``cp.async.bulk.wait_group(.read)``. Facts: n: groups 0 .. n - 1 of this thread are now read (complete, if not read)."""

    pending: int
    read: bool
    lanes: int = ELECTED
    where: Where = None


# ---- wgmma ------------------------------------------------------------------------------------------------------------


class AccumulatorWrite(NamedTuple):
    """Registers of an accumulator written by the warp (set to zero). Facts: None."""

    matmul: str
    where: Where = None


class AccumulatorRead(NamedTuple):
    """Registers of an accumulator read by the warp. Facts: None."""

    matmul: str
    where: Where = None


class WgmmaFence(NamedTuple):
    """``wgmma.fence``. Facts: None."""

    where: Where = None


class Wgmma(NamedTuple):
    """``wgmma.mma_async`` by one warp of the four. Facts: (its `Flight`, whether this was the last of the four)."""

    matmul: str
    a: int
    b: int
    where: Where = None


class WgmmaCommit(NamedTuple):
    """``wgmma.commit_group``. Facts: n: the group ends before serial n of the warpgroup's wgmmas."""

    where: Where = None


class WgmmaWait(NamedTuple):
    """``wgmma.wait_group``. Facts: n: the warpgroup's wgmmas 0 .. n - 1 are now complete."""

    pending: int
    where: Where = None


# ---- generic accesses, registers, exit --------------------------------------------------------------------------------


class SlotRead(NamedTuple):
    """``ld.shared`` of part `part` of `parts` of a slot by all lanes.

    split: how the parts are cut: "threads" (dealt over a role's threads) or "rows" (contiguous along the first extent), and
    after a slash which raw function deals its part over the lanes. Parts of the same cut with different numbers are disjoint;
    of everything else assume that they overlap. proxy: "generic", or "async": raw code reaches it by TMA or wgmma, and goes on
    in all lanes only when that has ended. Facts: None.
    """

    slot: int
    part: int = 0
    parts: int = 1
    split: str = "threads"
    proxy: str = "generic"
    where: Where = None


class SlotWrite(NamedTuple):
    """``st.shared``, ``stmatrix``: operands as `SlotRead`. Facts: None."""

    slot: int
    part: int = 0
    parts: int = 1
    split: str = "threads"
    proxy: str = "generic"
    where: Where = None


class SetMaxNreg(NamedTuple):
    """``setmaxnreg.inc`` / ``.dec``, registers a thread. Facts: registers a thread before."""

    registers: int
    increase: bool
    where: Where = None


class Exit(NamedTuple):
    """The warp returns. Facts: whether it was the last of its CTA."""

    where: Where = None


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


Op = (
    MbarInit | FenceMbarInit | MbarWait | MbarArrive | MbarArriveCluster | MbarArriveTx | MbarExpectTx
    | BarArrive | BarWait | WarpSync | ClusterArrive | ClusterWait | FenceProxyAsync
    | PrefetchDescriptor | TmaLoad | TmaStore | BulkCommit | BulkWait
    | AccumulatorWrite | AccumulatorRead | WgmmaFence | Wgmma | WgmmaCommit | WgmmaWait
    | SlotRead | SlotWrite | SetMaxNreg | Exit
)  # fmt: skip
Step = LoadWrite | LoadComplete | StoreRead | StoreWrite | WgmmaDone
Agent = int | Flight
