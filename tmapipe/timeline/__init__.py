"""When things happen: the model's run with times, or a run on the GPU, as a timeline. Here is the cost model of the former.

How long operations take on one multiprocessor of an H200, in cycles. It predicts steady states: what waits for what, and what
is the limit (docs/timeline.md compares them with measured ones). It has no conflicts of banks and no instruction cache.
Sources of the constants:

[fit] three problems each of five schedules, measured on an H200 (`python -m benchmarks.predicted`), or what
`tmapipe/tuning/cost.py` was fitted to; [paper] NVIDIA's H100 white paper, and the CUDA programming guide's table of arithmetic
throughput, compute capability 9.0; [taken] an order of magnitude, on which steady states hardly depend.
"""

from __future__ import annotations

import math
from typing import Any

import attrs

from tmapipe.isa import Start, declared, ops
from tmapipe.model.layout import Layout
from tmapipe.plan.rings import Matmul

WARP = 32


@attrs.frozen
class Costs:
    """Constants of one kind of GPU, in cycles of a multiprocessor and bytes per cycle unless they say otherwise.

    Args:
        clock: GHz while tensor cores work [fit]; kernels that do not use them run at `boosted` [fit].
        l2: GB/s that L2 serves, where two CTAs next to each other that read the same lines count as one [fit; the mean over
            all CTAs: a GPC serves about as much, however many multiprocessors it has].
        macs: Products of 16-bit numbers that the tensor cores of a multiprocessor add up per cycle [paper: 4 x 512].
        shared: Bytes per cycle of shared memory [paper].
        operands: The same, as wgmma reads its operands [fit].
        ingest: Bytes per cycle that a multiprocessor takes in [fit].
        memory: GB/s of the device's memory that kernels reach which read and write [performance.md: copies].
        multiprocessors: That share the memory.
        load: From the issue of a load to its first byte, from L2 or memory, while few are under way [fit].
        multicast: More of it for loads to several CTAs, which free their slots one after another [fit].
        queued: Factor on `load`, less 1, where as many bytes are asked for as can be served: a fourth power below [fit].
        store: From the issue of a store until its slot has been read, besides the bytes [taken].
        written: From there until the bytes are in memory [taken].
        held: Bytes of a multiprocessor's stores that L2 takes before memory has [taken].
        seen: From a phase's completion until a waiting warp goes on: half of a handover [fit: 239 for both sides, less the
            issue of operations].
        drained: From the end of a wgmma until a warp that waits for it goes on [taken].
        synced: The same of a barrier of warps [taken].
        peer: From a signal to another CTA of the cluster until it counts [taken].
        stretch: Factor on a warp's arithmetic where no other warp fills the gaps [fit].
        beside: Of the cycles in which a quarter's units of special functions are busy, those in which others' instructions
            are issued [fit; 7 of 8 at the most].
        depends: From one instruction to the next one that needs its result [fit].
        shuffle: Of a step of a reduction over lanes [fit].
        words: Until what is read from shared memory is there, or what is written can be [fit].
        atomic: An atomic addition to global memory, or a word loaded from there [taken].
        passed: Of a wait that need not wait [fit].
        wgmma: Of issuing the wgmmas of a slot, if they need not wait for others [fit].
        queue: Of a warpgroup's wgmmas that the tensor cores take before the first one is over; who issues more waits [fit].
        retired: Of a wait for wgmmas that are over [fit].
        arrival: Of an arrival at an mbarrier [fit].
        turn: Of a role's turn from one output tile to the next [fit].
        issue: Of one operation without another cost [taken].
        tma: Of each box that the TMA engine is asked to move [fit].
        fence: Of a proxy fence [taken].
        membar: Of a release at cluster scope ["some hundred", isa/barriers.py].
        start: Of a kernel's first operations, before a role's body [taken].
    """

    clock: float = 1.6
    boosted: float = 1.95
    l2: float = 10000.0
    macs: float = 2048.0
    shared: float = 128.0
    operands: float = 104.0
    ingest: float = 79.6
    memory: float = 4150.0
    multiprocessors: int = 132
    load: float = 800.0
    multicast: float = 600.0
    queued: float = 2.25
    store: float = 100.0
    written: float = 500.0
    held: float = 65536.0
    seen: float = 60.0
    drained: float = 30.0
    synced: float = 20.0
    peer: float = 200.0
    stretch: float = 1.2
    beside: float = 0.25
    depends: float = 2.0
    shuffle: float = 16.0
    words: float = 28.0
    atomic: float = 700.0
    passed: float = 35.0
    wgmma: float = 100.0
    queue: float = 4.0
    retired: float = 40.0
    arrival: float = 40.0
    turn: float = 225.0
    issue: float = 2.0
    tma: float = 22.0
    fence: float = 20.0
    membar: float = 200.0
    start: float = 400.0


H200 = Costs()


def clock_of(plan: Any, costs: Costs = H200) -> float:
    """GHz: lower if tensor cores work."""
    return costs.clock if plan.matmuls else costs.boosted


#: Operations of a warp that cost more than `Costs.issue`, and the constant.
_NAMED = {
    ops.MbarArriveTx: "arrival", ops.MbarExpectTx: "arrival", ops.MbarArrive: "arrival", ops.FenceProxyAsync: "fence",
    ops.FenceProxyAsyncGlobal: "fence", ops.CounterAdd: "atomic", ops.TableLoad: "atomic", ops.WgmmaFence: "issue",
    ops.MbarWait: "passed", ops.WgmmaWait: "retired", ops.BulkWait: "retired", ops.Wgmma: "wgmma",
    ops.WgmmaFromRegisters: "wgmma", ops.BarWait: "synced",
}  # fmt: skip

#: Instructions a warp needs for 32 results, as cycles of its quarter of a multiprocessor [paper]: 32 a cycle are fp32's
#: additions and products; 16 a cycle of a whole multiprocessor are special functions.
_SPECIAL = 8.0
_INSTRUCTIONS = {
    "exp": _SPECIAL + 1, "exp2": _SPECIAL, "log": _SPECIAL + 1, "log2": _SPECIAL, "tanh": _SPECIAL, "rsqrt": _SPECIAL,
    "sqrt": _SPECIAL + 2, "sigmoid": 2 * _SPECIAL + 2, "erf": _SPECIAL + 12, "truediv": _SPECIAL + 4, "floordiv": 20.0,
    "mod": 20.0, "widen": 0.5, "to_bf16": 1.0, "to_fp16": 1.0,
}  # fmt: skip
_DIVISIONS = {"floordiv", "mod"}  # of whole numbers: many instructions, none of them special
SHUFFLE = 4.0  # 32 results a cycle of a whole multiprocessor [paper]


def elementwise(name: str, elements: int) -> float:
    """Cycles in which a warp applies the operation *name* to so many elements of a fragment."""
    return math.ceil(elements / WARP) * _INSTRUCTIONS.get(name, 1.0)


def special(name: str, elements: int) -> float:
    """Those of `elementwise` in which the units of special functions are busy."""
    return math.ceil(elements / WARP) * (_INSTRUCTIONS.get(name, 1.0) // _SPECIAL) * _SPECIAL * (name not in _DIVISIONS)


def cycles_of_wgmma(matmul: Matmul, costs: Costs = H200) -> float:
    """Cycles of the tensor cores for one slot's products of one warpgroup. Each instruction reads b, and a unless registers
    hold it, from shared memory meanwhile."""
    m, n, k = matmul.shape
    rows, size = m // matmul.warpgroups, matmul.b.dtype.bytes
    products = rows * n * k * size / 2 / costs.macs
    read = (rows * k * (matmul.a is not None) + math.ceil(rows / 64) * n * k) * size
    return max(products, read / costs.operands)


def wgmmas_of(matmul: Matmul) -> int:
    """Instructions of one slot's products of one warpgroup: each takes 64 rows, and 32 bytes along k."""
    m, n, k = matmul.shape
    return m // matmul.warpgroups // 64 * math.ceil(n / matmul.widest) * (k * matmul.b.dtype.bytes // 32)


def cycles_of(costs: Costs, layout: Layout, agent: int, op: Any) -> float:
    """Cycles that a warp spends on one operation, without waits."""
    kind = type(op)
    if kind in (ops.GridWait, ops.GridLaunch):
        return 0.0  # no other kernel is looked at
    if kind in (ops.SlotRead, ops.SlotWrite):
        return costs.issue + layout.slots[op.slot][0].slot_bytes / op.parts / costs.shared
    if kind is ops.TileStore:
        store = layout.stores[op.store]
        moved = math.prod(store.tile) * store.buffer.dtype.bytes / layout.roles.count(layout.role(agent))
        return costs.tma + moved / costs.shared
    if kind is ops.MbarArriveCluster:
        return costs.membar if op.scope == "cluster" else costs.arrival
    if kind in (ops.TmaLoad, ops.TmaStore):
        part = layout.loads[op.load] if kind is ops.TmaLoad else layout.stores[op.store]
        return costs.tma * max(1, math.prod(part.buffer.tile) // (math.prod(part.box) * getattr(part, "peers", 1)))
    if kind is ops.ClusterArrive:
        return costs.membar if op.scope == "cluster" else costs.issue
    name = _NAMED.get(kind)
    if name is not None:
        return float(getattr(costs, name))
    return costs.tma if declared(kind).effect(Start) is not None else costs.issue
