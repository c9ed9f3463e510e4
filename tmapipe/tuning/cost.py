"""How long a candidate takes on a problem, estimated without running it.

    time = launch + fill + max(waves x tile, memory)          (+ the second kernel of split-K)
    tile = k-tiles x max(tensor cores, slot through L2) + epilogue                    (cooperative)
    tile = the same, or half of mainloop and epilogue, whichever is longer            (ping-pong)

`python -m benchmarks.tuning --fit` fits the constants to measurements and prints how far off the estimates are.
"""

from __future__ import annotations

import attrs

from tmapipe.integers import ceil_div
from tmapipe.tuning.candidates import SWIZZLE_SPAN, Candidate, rows_beyond
from tmapipe.tuning.problem import Device, Problem

__all__ = ["Constants", "FITTED", "estimate"]

A_GPC = 8  # clusters of two CTAs in a GPC
SMALL = 16e6  # bytes of inputs; any limit from 5 to 35 MB gives the same choices on all problems measured


@attrs.frozen
class Constants:
    """Constants of one kind of GPU. All but `smaller` and `worked` are fitted.

    Args:
        macs: multiply-adds of 16-bit types per clock and SM (4 tensor cores x 512, NVIDIA's H100 white paper).
        clock: GHz under load.
        l2: Bytes per clock and SM from L2.
        near: Factor on `l2` for small inputs (1024^3: some 60 bytes, by `benchmarks.stamps`).
        straddle: Factor on the bytes from L2 if the row pitch is no multiple of 128 bytes.
        ingest: Bytes per clock that an SM takes in.
        coupled: Slowdown of clusters of four, whose CTAs wait for each other.
        memory: GB/s.
        launch: Microseconds from launch to the first load, and from the last store to the end.
        fill: Clocks until the first slot is filled.
        stored: Bytes of output per clock and warpgroup in an epilogue.
        tile: Clocks of a tile's other costs.
        add: Microseconds of split-K's second kernel besides its memory traffic.
        merged: By GPC, factor on the mainloop since L2 sees fewer reads (mostly power).
        smaller: By GPC, factor on `merged` for a ping-pong's smaller tiles (8192^3: 1.025, 4096 x 4096 x 14336: 1.033).
        shared: By GPC, the part of what eight clusters read in common that they read as one.
        claim: By GPC, microseconds until a cluster has claimed its position.
        worked: Factor on an epilogue that computes (4096^3, bias and gelu: 1.2 us for a tile of 128 x 256).
        zero: Clocks in which the TMA engine fills a row beyond the edge with zeros (some 5 ns).
    """

    macs: float = 2048.0
    clock: float = 1.56
    l2: float = 47.7
    near: float = 1.45
    straddle: float = 1.43
    ingest: float = 80.9
    coupled: float = 1.05
    memory: float = 3580.0
    launch: float = 3.81
    fill: float = 2190.0
    stored: float = 23.3
    tile: float = 573.0
    add: float = 4.29
    merged: float = 0.954
    smaller: float = 1.03
    shared: float = 0.135
    claim: float = 1.95
    worked: float = 2.4
    zero: float = 8.0


#: Of the H200, fitted to benchmarks/results/tuning.json.
FITTED = Constants()


def estimate(
    problem: Problem, candidate: Candidate, device: Device, constants: Constants = FITTED, *, fused: bool = False
) -> float:
    """The estimated time of one launch, in microseconds.

    Args:
        fused: Whether the epilogue computes something.
    """
    c = constants
    (m, n), (along_m, along_n) = candidate.tile, candidate.cluster
    clusters = ceil_div(problem.m, m * along_m) * ceil_div(problem.n, n * along_n) * problem.batch * candidate.parts
    waves: float = ceil_div(clusters, device.resident(along_m * along_n))
    steps: float = ceil_div(ceil_div(problem.k, SWIZZLE_SPAN // problem.dtype.bytes), candidate.parts)
    if candidate.shares:  # each has some k-tiles of all, in one piece more than whole tiles on average
        waves, steps = clusters / candidate.shares + 1, steps * clusters / (clusters + candidate.shares)

    wide = SWIZZLE_SPAN // 2  # 16-bit elements; twice as many 8-bit elements take as many clocks
    multiply = m * n * wide / c.macs * _wgmma_slowdown(candidate)
    lines = SWIZZLE_SPAN * (1.0 if problem.k * problem.dtype.bytes % SWIZZLE_SPAN == 0 else c.straddle)
    rate = c.l2 * (c.near if (problem.m + problem.n) * problem.k * problem.dtype.bytes <= SMALL else 1.0)
    through_l2 = (m / along_n + n / along_m) * lines / rate
    if candidate.by_gpc:
        down = min(A_GPC, ceil_div(problem.m, m * along_m))  # clusters that share columns; `right`: rows
        right = min(A_GPC // down, ceil_div(problem.n, n * along_n))
        once = (m / along_n / right + n / along_m / down) * lines / rate
        through_l2 += (once - through_l2) * c.shared
        multiply *= c.merged * (c.smaller if candidate.schedule == "PingPong" else 1.0)
    step = max(multiply, through_l2, (m + n) * SWIZZLE_SPAN / c.ingest)
    outside = dict(candidate.options).get("outside", ("zeros", "zeros"))
    for rows, rest, peers in zip(
        rows_beyond(problem, candidate.tile, candidate.cluster), outside, (along_n, along_m), strict=True
    ):
        if rest == "zeros" and clusters <= device.resident(along_m * along_n):
            step = max(step, rows / peers * c.zero)
    mainloop = steps * step
    if along_m * along_n > 2:
        mainloop *= c.coupled

    out_bytes = 4 if candidate.in_parts else problem.out.bytes
    warpgroups = 1 if candidate.schedule == "PingPong" else max(1, m // 64 if m <= 192 else 2)
    epilogue = m * n * out_bytes / warpgroups / c.stored * (c.worked if fused else 1.0)
    if candidate.schedule == "PingPong":
        tile = max(mainloop + c.tile, (mainloop + epilogue) / 2 + c.tile)
        last = epilogue
    else:
        tile, last = mainloop + c.tile + epilogue, 0.0
    busy = (waves * tile + last + c.fill) / c.clock / 1e3
    moved = problem.bytes / c.memory / 1e3
    claim = c.claim if candidate.by_gpc else 0.0
    return c.launch + claim + max(busy, moved) + _second_kernel(problem, candidate, c)


def _wgmma_slowdown(candidate: Candidate) -> float:
    """wgmma reads 64 rows of a and n of b for 64 x n x 16 products: below n = 128, shared memory is the limit."""
    return max(1.0, (64 + candidate.tile[1]) / candidate.tile[1] / 1.5)


def _second_kernel(problem: Problem, candidate: Candidate, c: Constants) -> float:
    if not candidate.in_parts:
        return 0.0
    parts = candidate.parts
    if candidate.shares:
        (m, n), (along_m, along_n) = candidate.tile, candidate.cluster
        clusters = ceil_div(problem.m, m * along_m) * ceil_div(problem.n, n * along_n)
        parts = candidate.shares // clusters + 2
    zeroed = c.add if candidate.shares else 0.0  # by a kernel of its own
    return c.add + zeroed + problem.m * problem.n * parts * 4 / c.memory / 1e3
