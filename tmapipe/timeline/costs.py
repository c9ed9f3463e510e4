"""How long operations take: a cost model of one multiprocessor of an H200, in cycles.

It predicts steady states: what waits for what, and which of the engines is the limit. It has no conflicts of banks, no
instruction cache, no registers, and integer arithmetic of loops costs nothing. Sources of the constants:

- [fit] `tmapipe/tuning/cost.py`, fitted to measured GEMMs on an H200 (docs/internals/performance.md);
- [paper] NVIDIA's H100 white paper, and the CUDA programming guide's table of arithmetic throughput, compute capability 9.0;
- [taken] an order of magnitude, neither fitted nor measured here. Steady states hardly depend on these.
"""

from __future__ import annotations

import math
from typing import Any

import attrs

from tmapipe.isa import ops
from tmapipe.isa.effects import Start, declared
from tmapipe.machine.layout import Layout
from tmapipe.plan.model import Matmul

__all__ = ["H200", "Costs", "cycles_of", "cycles_of_wgmma", "elementwise", "reduction"]

WARP = 32


@attrs.frozen
class Costs:
    """Constants of one kind of GPU, in cycles of a multiprocessor and bytes per cycle unless they say otherwise.

    Args:
        clock: GHz while tensor cores work [fit]; kernels that do not use them run at `boosted` [fit].
        macs: Products of 16-bit numbers that the tensor cores of a multiprocessor add up per cycle [paper: 4 x 512].
        shared: Bytes per cycle of shared memory [paper].
        ingest: Bytes per cycle that a multiprocessor takes in [fit].
        memory: GB/s of the device's memory that kernels reach which read and write [performance.md: copies].
        multiprocessors: That share the memory.
        load: From the issue of a load to its first byte, from L2 or memory [taken].
        store: From the issue of a store until its slot has been read, besides the bytes [taken].
        written: From there until the bytes are in memory [taken].
        held: Bytes of a multiprocessor's stores that L2 takes before memory has [taken].
        seen: From a phase's completion until a waiting warp goes on: half of a handover [fit: 239 for both sides, less the
            issue of operations].
        drained: From the end of a wgmma until a warp that waits for it goes on [taken].
        synced: The same of a barrier of warps [taken].
        peer: From a signal to another CTA of the cluster until it counts [taken].
        atomic: An atomic addition to global memory, or a word loaded from there [taken].
        issue: Of one operation without another cost [taken].
        tma: Of an operation that an engine carries out [taken].
        fence: Of a proxy fence [taken].
        membar: Of a release at cluster scope ["some hundred", isa/barriers.py].
        start: Of a kernel's first operations, before a role's body [taken].
    """

    clock: float = 1.6
    boosted: float = 1.95
    macs: float = 2048.0
    shared: float = 128.0
    ingest: float = 79.6
    memory: float = 4300.0
    multiprocessors: int = 132
    load: float = 600.0
    store: float = 100.0
    written: float = 500.0
    held: float = 65536.0
    seen: float = 60.0
    drained: float = 30.0
    synced: float = 20.0
    peer: float = 200.0
    atomic: float = 700.0
    issue: float = 2.0
    tma: float = 20.0
    fence: float = 20.0
    membar: float = 200.0
    start: float = 400.0


H200 = Costs()

#: Operations of a warp that cost more than `Costs.issue`, and the constant.
_NAMED = {
    ops.MbarArriveTx: "tma", ops.MbarExpectTx: "tma", ops.FenceProxyAsync: "fence", ops.FenceProxyAsyncGlobal: "fence",
    ops.CounterAdd: "atomic", ops.TableLoad: "atomic", ops.WgmmaFence: "issue",
}  # fmt: skip

#: Instructions a warp needs for 32 results, as cycles of its quarter of a multiprocessor [paper]: 32 a cycle are fp32's
#: additions and products; 16 a cycle of a whole multiprocessor are special functions.
_SPECIAL = 8.0
_INSTRUCTIONS = {
    "exp": _SPECIAL + 1, "exp2": _SPECIAL, "log": _SPECIAL + 1, "log2": _SPECIAL, "tanh": _SPECIAL, "rsqrt": _SPECIAL,
    "sqrt": _SPECIAL + 2, "sigmoid": 2 * _SPECIAL + 2, "erf": _SPECIAL + 12, "truediv": _SPECIAL + 4, "floordiv": 20.0,
    "mod": 20.0, "widen": 0.5, "to_bf16": 1.0, "to_fp16": 1.0,
}  # fmt: skip
_SHUFFLE = 4.0  # 32 results a cycle of a whole multiprocessor [paper]


def elementwise(name: str, elements: int) -> float:
    """Cycles in which a warp applies the operation *name* to so many elements of a fragment."""
    return math.ceil(elements / WARP) * _INSTRUCTIONS.get(name, 1.0)


def reduction(elements: int, lines: int, steps: int) -> float:
    """Cycles in which a warp reduces so many elements to *lines* numbers, which *steps* shuffles each combine."""
    return math.ceil(elements / WARP) + math.ceil(lines / WARP) * steps * (_SHUFFLE + 1)


def cycles_of_wgmma(matmul: Matmul, costs: Costs = H200) -> float:
    """Cycles of the tensor cores for one slot's products of one warpgroup. Each instruction reads b, and a unless registers
    hold it, from shared memory meanwhile."""
    m, n, k = matmul.shape
    rows, size = m // matmul.warpgroups, matmul.b.dtype.bytes
    products = rows * n * k * size / 2 / costs.macs
    read = (rows * k * (matmul.a is not None) + math.ceil(rows / 64) * n * k) * size
    return max(products, read / costs.shared)


def cycles_of(costs: Costs, layout: Layout, agent: int, op: Any) -> float:
    """Cycles that a warp spends on one operation, apart from what it waits for."""
    kind = type(op)
    if kind in (ops.SlotRead, ops.SlotWrite):
        return costs.issue + layout.slots[op.slot][0].slot_bytes / op.parts / costs.shared
    if kind is ops.TileStore:
        store = layout.stores[op.store]
        moved = math.prod(store.tile) * store.buffer.dtype.bytes / layout.roles.count(layout.role(agent))
        return costs.tma + moved / costs.shared
    if kind is ops.MbarArriveCluster:
        return costs.membar if op.scope == "cluster" else costs.tma
    if kind is ops.ClusterArrive:
        return costs.membar if op.scope == "cluster" else costs.issue
    name = _NAMED.get(kind)
    if name is not None:
        return float(getattr(costs, name))
    return costs.tma if declared(kind).effect(Start) is not None else costs.issue
