"""How long a candidate takes on a problem, estimated without running it.

    time  = launch + (busy and memory, of which the longer one hides most of the other)    (+ a second kernel for parts of k)
    busy  = fill + tiles of the busiest CTA, wave by wave
    tile  = mainloop and epilogue, under which the loads of the next tile already run
    step  = 128 bytes of k: the tensor cores' clocks; bytes through L2, which all CTAs share; bytes into a multiprocessor; the
            handing over of a slot

Multicast, and neighbours that read the same lines at about the same time, reduce the bytes through L2. Memory reads and writes
at different speeds. `python -m benchmarks.tuning --fit` fits the constants to measurements.
"""

from __future__ import annotations

import attrs

from tmapipe.integers import ceil_div
from tmapipe.tuning.candidates import MACS, SWIZZLE_SPAN, Candidate
from tmapipe.tuning.problem import Device, Problem

__all__ = ["Constants", "FITTED", "estimate"]

BAND = 8  # rows of clusters that are numbered together, and clusters of a GPC that read together


@attrs.frozen
class Constants:
    """Constants of one kind of GPU, fitted, except `worked` and `near`.

    Args:
        clock: GHz when all tensor cores are at work.
        boost: By which part the clock is higher when none is.
        l2: GB/s through L2.
        again: The part of the bytes that further CTAs read of the same lines which L2 has to serve again.
        near: The same for orders by GPC: 0.7 of `again`, as their reads of L2 at 8192^3 are of others.
        straddle: Factor on the bytes of an operand whose row pitch is no multiple of 128 bytes.
        ingest: Bytes per clock that an SM takes in.
        reads, writes: GB/s from and to memory.
        launch: Microseconds from launch to the first load, and from the last store to the end.
        fill: Clocks until the first slot is filled, and of the last stores.
        stored: Bytes of output per clock and warpgroup in an epilogue.
        tile: Clocks of a tile's other costs.
        transposed: Factor on the tensor cores' clocks for operands that are not contiguous along k.
        add, each: Microseconds of the kernel that adds parts, and of each part, besides its memory traffic.
        parts: GB/s at which it reads them.
        merged: By GPC, factor on the mainloop since L2 sees fewer reads (mostly power).
        smaller: By GPC, factor on `merged` for a ping-pong's smaller tiles (8192^3: 1.025, 4096^3: 1.008).
        claim: By GPC, microseconds until a cluster has claimed its position.
        hidden, loaded: How sharply the longer one of two hides the other: of busy and memory; of a tile's work and its loads.
        slot: Clocks in which a slot is handed over, at least.
        worked: Factor on an epilogue that computes (4096^3, bias and gelu: 1.8 us for a tile of 128 x 256).
    """

    clock: float = 1.58
    boost: float = 0.15
    l2: float = 8870.0
    again: float = 0.766
    near: float = 0.536
    straddle: float = 1.41
    ingest: float = 81.6
    reads: float = 3830.0
    writes: float = 2700.0
    launch: float = 5.04
    fill: float = 112.0
    stored: float = 24.8
    tile: float = 256.0
    transposed: float = 1.06
    add: float = 2.33
    each: float = 0.136
    parts: float = 3610.0
    merged: float = 0.971
    smaller: float = 1.02
    claim: float = 1.19
    hidden: float = 2.88
    loaded: float = 6.4
    worked: float = 3.6
    slot: float = 291.0


#: Of the H200.
FITTED = Constants()


def estimate(
    problem: Problem, candidate: Candidate, device: Device, constants: Constants = FITTED, *, fused: bool = False
) -> float:
    """The estimated time of one launch, in microseconds.

    Args:
        fused: Whether the epilogue computes something.
    """
    c = constants
    (m, n), size = candidate.tile, candidate.cluster[0] * candidate.cluster[1]
    one = _clusters(problem, candidate)
    clusters, resident = one * problem.batch * candidate.parts, device.resident(size)
    slots = ceil_div(problem.k * problem.dtype.bytes, SWIZZLE_SPAN * candidate.spans)
    steps = ceil_div(slots, candidate.parts) * candidate.spans
    multiply = _multiply(problem, candidate, c)
    out_bytes = 4 if candidate.in_parts else problem.out.bytes
    pingpong = candidate.schedule == "PingPong"
    rows = candidate.accumulators[0]
    warpgroups = 1 if pingpong else rows // 64 if rows <= 192 else 2
    epilogue = m * n * out_bytes / warpgroups / c.stored * (c.worked if fused else 1.0)

    def tile(at_work: float, steps: float) -> float:
        mainloop = multiply * steps + c.tile
        work = max(mainloop, (mainloop + epilogue) / 2) if pingpong else mainloop + epilogue
        return _longer(work, _load(problem, candidate, c, at_work, one) * steps, c.loaded)

    waves, rest = divmod(clusters, resident)
    busy = waves * tile(resident, steps) + (tile(rest, steps) if rest else 0.0) + (epilogue if pingpong else 0.0)
    at_work = min(clusters, resident)
    used = min(1.0, clusters * size / device.multiprocessors)
    used *= min(1.0, multiply / _load(problem, candidate, c, at_work, one))
    busy = (busy + c.fill) / (c.clock * (1 + c.boost * (1 - used))) / 1e3
    outputs = problem.batch * problem.m * problem.n
    written = outputs * out_bytes * candidate.parts
    memory = ((problem.bytes - outputs * problem.out.bytes) / c.reads + written / c.writes) / 1e3
    second = c.add + c.each * candidate.parts + written / c.parts / 1e3 if candidate.in_parts else 0.0
    return c.launch + (c.claim if candidate.by_gpc else 0.0) + _longer(busy, memory, c.hidden) + second


def _multiply(problem: Problem, candidate: Candidate, c: Constants) -> float:
    """The tensor cores' clocks for one span of k. wgmma reads 64 rows and n columns for 64 x n x 16 products: below n = 128,
    shared memory is the limit."""
    m, n = candidate.accumulators
    wide = SWIZZLE_SPAN // 2  # 16-bit elements; twice as many 8-bit elements take as many clocks
    found = m * n * wide / MACS * max(1.0, (64 + n) / n / 1.5)
    if problem.majors != ("k", "k"):
        found *= c.transposed
    if candidate.by_gpc:
        found *= c.merged * (c.smaller if candidate.schedule == "PingPong" else 1.0)
    return found


def _load(problem: Problem, candidate: Candidate, c: Constants, at_work: float, one: int) -> float:
    """Clocks in which one span of k is loaded while *at_work* clusters load; an output of the batch has *one* clusters."""
    (m, n), (along_m, along_n) = candidate.tile, candidate.cluster
    lines = []
    for extent, rows, major in zip((problem.m, problem.n), (m * along_m, n * along_n), problem.majors, strict=True):
        pitch = (problem.k if major == "k" else extent) * problem.dtype.bytes
        lines.append(rows * (1.0 if pitch % SWIZZLE_SPAN == 0 else c.straddle))
    of_a, of_b = lines
    together = min(at_work, one)  # clusters with the same k-tiles
    down = min(BAND, ceil_div(problem.m, m * along_m), together)
    right = min(ceil_div(problem.n, n * along_n), -(-together // down))
    each = at_work * (of_a + of_b)
    once = min(each, at_work / together * (down * of_a + right * of_b))
    served = once + (c.near if candidate.by_gpc else c.again) * (each - once)
    return max(
        served * SWIZZLE_SPAN / c.l2 * c.clock,
        (m + n) * SWIZZLE_SPAN / c.ingest,
        c.slot / candidate.spans,
    )


def _clusters(problem: Problem, candidate: Candidate) -> int:
    """Clusters of one output."""
    (m, n), (along_m, along_n) = candidate.tile, candidate.cluster
    return ceil_div(problem.m, m * along_m) * ceil_div(problem.n, n * along_n)


def _longer(a: float, b: float, sharp: float) -> float:
    """About the longer one of two times that run at once."""
    high, low = max(a, b), min(a, b)
    return high * (1 + (low / high) ** sharp) ** (1 / sharp)
