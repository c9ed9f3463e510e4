"""How long a candidate takes on a problem: estimated without running it, and (`rested`) measured on a GPU.

    time  = launch + (busy and memory, of which the longer one hides most of the other)    (+ a second kernel for parts of k)
    busy  = fill + tiles of the busiest CTA, wave by wave
    tile  = mainloop and epilogue, under which the loads of the next tile already run
    step  = 128 bytes of k: the tensor cores' clocks; bytes through L2, which all CTAs share; bytes into a multiprocessor; the
            handing over of a slot

Multicast, and neighbours that read the same lines at about the same time, reduce the bytes through L2. Memory reads and writes
at different speeds. What a candidate does is counted first (`work`), as plain numbers; then many are timed at once (`times`).
`python -m benchmarks.tuning --fit` fits the constants to measurements.
"""

from __future__ import annotations

import collections
import math
import random
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import attrs
import numpy as np

from tmapipe.base.arithmetic import ceil_div
from tmapipe.errors import check_bool, check_type
from tmapipe.plan.model import WARP, Plan
from tmapipe.plan.rings import SM_RESERVED, arch_named
from tmapipe.schedules.rowform import FLIGHT, MOST_FLIGHT, RESIDENT_WARPS, THREADS, VALUES
from tmapipe.tuning.candidates import MACS, asked, edge_boxes
from tmapipe.tuning.problem import LINE, PIECE, SECTOR, SWIZZLE_SPAN, Candidate, Device, Problem

# ---- cost ------------------------------------------------------------------------------------------------------------

BAND = 8  # rows of clusters that are numbered together, and clusters of a GPC that read together
ROWS = 128
WIDE = SWIZZLE_SPAN // 2  # 16-bit elements of a span of k; twice as many 8-bit elements take as many clocks


@attrs.frozen
class Constants:
    """Constants of one kind of GPU, fitted.

    Args:
        clock: GHz when all tensor cores are at work.
        boost: By which part the clock is higher when none is.
        l2: GB/s through L2.
        again: The part of the bytes that further CTAs read of the same lines which L2 has to serve again.
        near: The same for orders by GPC.
        readers: Clusters that read the same lines, from about which on L2 serves no more for further ones.
        torn16, torn32: Factors on the bytes of an operand whose row pitch is a multiple of only 16, or 32, bytes.
        shifted: The same of what an SM asks for, of pitches that are a multiple of only 16.
        ingest: Bytes per clock that an SM takes in.
        issue: Bytes per clock that an SM asks for: its share of what the cluster loads.
        reads, writes: Speeds from and to memory, of what the device's memory is said to have.
        scattered: Part by which memory is read more slowly for each 128 rows that a CTA reads from at a time: more of its
            pages are open.
        run: The same of an operand along m or n of which a row of a cluster's tile is one line.
        launch: Microseconds from launch to the first load, and from the last store to the end.
        fill: Clocks until the first slot is filled, a row of it.
        stored: Bytes of output per clock and warpgroup in an epilogue.
        waited: Factor on an epilogue with one output buffer.
        piece: What a piece of fewer than 64 columns costs of a whole one.
        partial: What the rest of a 128-byte line costs of writing it to memory.
        ragged: Part by which memory is written more slowly if boxes of 128 bytes begin and end within sectors of 32 bytes.
        beside: The part of both that each doubling of a cluster saves, whose CTAs store neighbours at once.
        apart: Spans of k from which on CTAs that read the same lines do so at about the same time.
        transposed: Factor on the tensor cores' clocks for operands that are not contiguous along k.
        add, each: Microseconds of the kernel that adds parts, and of each part, besides its memory traffic.
        parts: GB/s at which it reads them.
        exchanged: Bytes per clock of the sums that CTAs which share k send each other.
        merged: By GPC, factor on the mainloop since L2 sees fewer reads (mostly power).
        smaller: By GPC, factor on `merged` for a ping-pong's smaller tiles (4096^3: 1.008; 8192^3: 1.025).
        claim: By GPC, microseconds until a cluster has claimed its position.
        hidden, loaded: How sharply the longer one of two hides the other: of busy and memory; of a tile's work and its loads.
        slot: Clocks in which a slot is handed over, at least.
        latency: Clocks from a load to its data, by which slots that are not `held` by readers bound the speed of loads.
        box: Clocks in which a box of rows is loaded again.
        zero: Clocks in which a row is filled with zeros, for each CTA that gets it.
        joined: Microseconds that each doubling of a cluster costs.
        alone: Microseconds that a kernel without clusters takes longer than one with clusters of two.
        uneven: Part by which a tile takes longer whose number of columns is no multiple of 16.
        worked: Factor on an epilogue that computes: at 4096^3, tiles of 128 x 256 take 1.8 us more with bias and gelu, 3.3
            with a residual, which is factors of 2.7 and 4.1.
    """

    clock: float = 1.6
    boost: float = 0.218
    l2: float = 5390.0
    again: float = 0.734
    near: float = 0.365
    readers: float = 15.7
    torn16: float = 1.34
    torn32: float = 1.16
    shifted: float = 2.09
    ingest: float = 79.6
    issue: float = 77.0
    reads: float = 0.921
    writes: float = 0.7
    scattered: float = 0.024
    run: float = 0.45
    launch: float = 4.59
    fill: float = 5.06
    stored: float = 20.5
    waited: float = 1.49
    piece: float = 1.03
    partial: float = 0.5
    ragged: float = 1.4
    beside: float = 0.1
    apart: float = 1.54
    joined: float = 0.106
    alone: float = 0.149
    transposed: float = 1.0
    add: float = 2.22
    each: float = 0.137
    parts: float = 6760.0
    exchanged: float = 4.98
    merged: float = 0.974
    smaller: float = 1.022
    claim: float = 1.43
    hidden: float = 2.61
    loaded: float = 12.0
    worked: float = 2.4
    slot: float = 239.0
    latency: float = 2220.0
    held: float = 0.95
    box: float = 9.32
    zero: float = 0.418
    uneven: float = 0.0148


#: Of the H200.
FITTED = Constants()


class Work(
    collections.namedtuple(
        "Work",
        "m n along_m along_n asked_a asked_b rows columns warpgroups down right batch parts resident multiprocessors steps "
        "spans of_a of_b pingpong by_gpc in_parts transposed elements stored read memory slots one_buffer lines ragged boxes "
        "zeros sharing short",
    )
):
    """What a candidate does, in numbers; or what several candidates do, in arrays.

    m, n: elements of its tile. along_m, along_n: CTAs of a cluster. asked_a, asked_b: rows that its busiest CTA loads.
    rows, columns: of its accumulators, which *warpgroups* share; the warpgroups of several CTAs on a multiprocessor count
    together. down, right: clusters along m and n of one of *batch* matrices, with *parts* of k. resident: clusters at once.
    multiprocessors: of the device. steps: spans of k of a tile, *spans* of them in a slot. of_a, of_b: what the bytes at which
    rows begin are multiples of. pingpong, by_gpc, in_parts, transposed: whether the candidate is one. elements: of the output,
    *stored* bytes each. read: bytes of the operands. memory: GB/s of the device's memory. slots: of the ring. one_buffer:
    whether a warpgroup has one output buffer. lines: bytes of the 128-byte lines that a tile's stores touch, over the bytes
    stored. ragged: as in `_ragged`. boxes: boxes of rows that the slowest CTA loads again, instead of zeros. zeros: rows that
    it fills with zeros, for itself and its peers. sharing: CTAs of a cluster that share k. short: of operands along m or n,
    their part of the bytes read over the lines of a row of a cluster's tile.
    """


def work(problem: Problem, candidate: Candidate, device: Device) -> Work:
    """What *candidate* does, in numbers."""
    (m, n), (along_m, along_n) = candidate.tile, candidate.cluster
    rows, columns = candidate.accumulators
    pingpong = candidate.schedule == "PingPong"
    slots = ceil_div(problem.k * problem.dtype.bytes, SWIZZLE_SPAN * candidate.spans)
    elements = problem.batch * problem.m * problem.n
    of_a, of_b, _ = problem.rows_at
    down, right = ceil_div(problem.m, m * along_m), ceil_div(problem.n, n * along_n)
    resident = device.resident(candidate.ctas)
    boxes, zeros = _edges(problem, candidate, down * right * problem.batch * candidate.parts / resident)
    return Work(
        m=m, n=n, along_m=along_m, along_n=along_n, rows=rows, columns=columns,
        asked_a=asked(m, along_n), asked_b=asked(n, along_m),
        warpgroups=candidate.share * (1 if pingpong else rows // 64 if rows <= 192 else 2),
        down=down, right=right, batch=problem.batch, parts=candidate.parts,
        resident=resident, multiprocessors=device.multiprocessors,
        steps=ceil_div(slots, candidate.parts * candidate.sharing) * candidate.spans, spans=candidate.spans,
        of_a=of_a, of_b=of_b,
        pingpong=pingpong, by_gpc=candidate.by_gpc, in_parts=candidate.in_parts, transposed=problem.majors != ("k", "k"),
        elements=elements, stored=4 if candidate.in_parts else problem.out.bytes,
        read=problem.bytes - elements * problem.out.bytes, memory=device.memory,
        slots=candidate.slots, one_buffer=candidate.share == 1 and candidate.chosen.get("store_stages", 2) == 1,
        lines=_lines(problem, candidate), ragged=_ragged(problem, candidate),
        boxes=boxes, zeros=zeros, sharing=candidate.sharing, short=_short(problem, candidate),
    )  # fmt: skip


def _short(problem: Problem, candidate: Candidate) -> float:
    """`short` of `Work`."""
    sizes = zip(problem.majors, (problem.m, problem.n), candidate.tile, candidate.cluster, strict=True)
    per = LINE / problem.dtype.bytes / (problem.m + problem.n)
    return sum(size * per / max(min(extent * ctas, size), 64) for major, size, extent, ctas in sizes if major != "k")


def _lines(problem: Problem, candidate: Candidate) -> float:
    """The bytes of the 128-byte lines that the rows of a tile touch in memory, divided by the bytes of the rows."""
    width, rows_at = _rows_of(problem, candidate)
    return (width + LINE - math.gcd(width, rows_at)) / width


def _ragged(problem: Problem, candidate: Candidate) -> float:
    """How many ends of stored boxes lie within sectors of 32 bytes, relative to boxes of 128 bytes that all end so."""
    width, rows_at = _rows_of(problem, candidate)
    pitch = rows_at if candidate.in_parts else problem.pitch
    rows = 1 - pitch / SECTOR if pitch < SECTOR else float(rows_at < SECTOR)  # the part that begins within sectors
    if width % SECTOR:  # then so do half of the tiles
        rows = 0.5
    box = candidate.chosen.get("columns", 0) * problem.out.bytes or LINE
    return rows * ceil_div(width, box) * LINE / width


def _rows_of(problem: Problem, candidate: Candidate) -> tuple[int, int]:
    """(bytes of a row of a stored tile, of what number the bytes at which rows begin are multiples, at most 128)."""
    size = 4 if candidate.in_parts else problem.out.bytes
    rows_at = math.gcd(LINE, problem.n * size) if candidate.in_parts else problem.rows_at[2]
    return min(candidate.tile[1], problem.n) * size, rows_at


def _edges(problem: Problem, candidate: Candidate, clusters: float) -> tuple[float, float]:
    """`boxes` and `zeros` of `Work`. If there are few CTAs, the slowest has only tiles over the edge; if there are many, it
    has as many as the other CTAs.

    Args:
        clusters: How many clusters follow one another on a CTA's multiprocessor.
    """
    boxes = zeros = 0.0
    outside = candidate.chosen.get("outside", ("zeros", "zeros"))
    sizes = zip((problem.m, problem.n), candidate.tile, candidate.cluster, candidate.cluster[::-1], strict=True)
    for (size, extent, ctas, peers), rest, major in zip(sizes, outside, problem.majors, strict=True):
        part = max(1 / ceil_div(size, extent * ctas), min(1.0, 1 / clusters))
        if rest == "anything":
            boxes += part * edge_boxes(extent, peers)
        elif major == "k":
            zeros += part * min(-size % (extent * ctas), asked(extent, peers)) * peers
    return boxes, zeros


def times(w: Work, c: Constants = FITTED, *, fused: bool = False) -> Any:
    """The estimated time of one launch of each, in microseconds.

    Args:
        w: What each does.
        fused: Whether the epilogue computes something.
    """
    size = w.along_m * w.along_n * w.sharing
    one = w.down * w.right
    clusters = one * w.batch * w.parts
    multiply = _multiply(w, c)
    epilogue = w.m * w.n * w.stored / w.warpgroups / w.sharing / c.stored
    if fused:  # which a second kernel hides: gelu with a bias adds 0.2 to 0.7 us to it (trials.json)
        epilogue = epilogue * np.where(w.in_parts, 1.0, c.worked)
    epilogue = epilogue * np.where(w.one_buffer, c.waited, 1.0)
    epilogue = epilogue * (1 + c.piece * (np.ceil(w.columns / PIECE) * PIECE / w.columns - 1))

    longer = 1 + c.uneven * (w.columns % 16 > 0)

    def tile(at_work: Any) -> Any:
        mainloop = multiply * w.steps
        busy = np.where(w.pingpong, np.maximum(mainloop, (mainloop + epilogue) / 2), mainloop + epilogue)
        return _longer(busy, _load(w, c, at_work, one) * w.steps, c.loaded) * longer

    exchange = np.where(w.sharing > 1, w.m * w.n * 4 * (1 - 1 / w.sharing) / c.exchanged, 0.0)
    epilogue = epilogue + exchange
    waves, rest = clusters // w.resident, clusters % w.resident
    busy = waves * tile(w.resident) + np.where(rest > 0, tile(np.maximum(rest, 1)), 0) + w.pingpong * epilogue
    at_work = np.minimum(clusters, w.resident)
    used = np.minimum(1, clusters * size / w.multiprocessors)
    used = used * np.minimum(1, multiply / _load(w, c, at_work, one))
    fill = c.fill * w.spans * (w.m + w.n)
    busy = (busy + fill) / (c.clock * (1 + c.boost * (1 - used))) / 1e3
    written = w.elements * w.stored * w.parts
    shared = c.partial * (w.lines - 1) + c.ragged * w.ragged
    read = w.read / c.reads * (1 + c.scattered * (w.asked_a + w.asked_b) / ROWS + c.run * w.short)
    memory = (read + written * (1 + shared * (1 - c.beside * np.log2(size))) / c.writes) / w.memory / 1e3
    second = w.in_parts * (c.add + c.each * w.parts + written / c.parts / 1e3)
    begin = c.launch + c.joined * np.log2(size) + c.alone * (size == 1) + w.by_gpc * c.claim
    return begin + _longer(busy, memory, c.hidden) + second


def estimates(
    problem: Problem, few: Sequence[Candidate], device: Device, constants: Constants = FITTED, *, fused: bool = False
) -> Any:
    """The estimated times of *few* candidates: an array, in microseconds. The other arguments are those of `times`."""
    return times(together(work(problem, candidate, device) for candidate in few), constants, fused=fused)


def estimate(
    problem: Problem, candidate: Candidate, device: Device, constants: Constants = FITTED, *, fused: bool = False
) -> float:
    """The estimated time of one candidate, as `estimates` gives it for many (microseconds)."""
    check_type("estimate(problem)", problem, Problem, "e.g. Problem.of(a, b)")
    check_type("estimate(candidate)", candidate, Candidate, 'e.g. Candidate("Gemm", (128, 128), (2, 1))')
    check_type("estimate(device)", device, Device, "e.g. Device.current()")
    check_type("estimate(constants)", constants, Constants, "leave it out")
    check_bool("estimate(fused)", fused)
    return float(estimates(problem, [candidate], device, constants, fused=fused)[0])


def together(every: Any) -> Work:
    """Several, as arrays."""
    return Work(*np.array(list(every), float).reshape(-1, len(Work._fields)).T)


def _multiply(w: Work, c: Constants) -> Any:
    """The tensor cores' clocks for one span of k. wgmma reads 64 rows and n columns for 64 x n x 16 products: below n = 128,
    shared memory is the limit."""
    clocks = w.rows * w.columns * WIDE / MACS * np.maximum(1.0, (64 + w.columns) / w.columns / 1.5)
    clocks = clocks * np.where(w.transposed, c.transposed, 1.0)
    return clocks * np.where(w.by_gpc, c.merged * np.where(w.pingpong, c.smaller, 1.0), 1.0)


def _load(w: Work, c: Constants, at_work: Any, one: Any) -> Any:
    """Clocks in which one span of k is loaded while *at_work* clusters load; an output of the batch has *one* clusters."""
    of_a = w.m * w.along_m * _torn(w.of_a, c)
    of_b = w.n * w.along_n * _torn(w.of_b, c)
    together = np.minimum(at_work, one)  # clusters with the same k-tiles
    down = np.minimum(np.minimum(BAND, w.down), together)
    right = np.minimum(w.right, np.ceil(together / down))

    def served(rows: Any, readers: Any) -> Any:
        others = c.readers * (1 - np.exp((1 - readers) / c.readers))
        near = 1 + np.where(w.by_gpc, c.near, c.again) * others
        return rows * (near + (readers - near) * np.exp(-w.steps / c.apart))

    rows = served(down * of_a, np.maximum(1, together / down)) + served(right * of_b, np.maximum(1, together / right))
    issued = (w.asked_a * _asked(w.of_a, c) + w.asked_b * _asked(w.of_b, c)) * SWIZZLE_SPAN / c.issue
    engine = np.maximum((w.m + w.n) * SWIZZLE_SPAN / c.ingest, issued) + w.boxes * c.box + w.zeros * c.zero
    torn = np.maximum(_torn(w.of_a, c), _torn(w.of_b, c))  # which takes as much longer to come
    ring = c.latency * torn / (w.slots - c.held) / w.spans
    least = np.maximum(np.maximum(engine, ring), c.slot / w.spans)
    return np.maximum(at_work / together * w.sharing * rows * SWIZZLE_SPAN / c.l2 * c.clock, least)


def _asked(pitch: Any, c: Constants) -> Any:
    """The factor on what an SM asks for."""
    return np.select([pitch <= 16, pitch == 32], [c.shifted, c.torn32], 1.0)


def _torn(pitch: Any, c: Constants) -> Any:
    """The factor on bytes through L2, and on how long they take to come."""
    return np.select([pitch <= 16, pitch == 32], [c.torn16, c.torn32], 1.0)


def _longer(a: Any, b: Any, sharp: float) -> Any:
    """About the longer of two times that run at once."""
    high, low = np.maximum(a, b), np.minimum(a, b)
    return high * (1 + (low / high) ** sharp) ** (1 / sharp)


# ---- kernels bound by memory, by the numbers of their plans -----------------------------------------------------------

OTHERS = 30  # registers of a thread beside its elements


def lost(plan: Plan, ctas: int | None = None) -> float:
    """What share of its time a kernel that is bound by memory loses, by the numbers of its plan and the model of rows
    (`tmapipe.schedules.rowform`). It loses time if too few bytes are on their way to a multiprocessor, or so many that they
    lie far apart; if too few warps compute there; and if a thread has too few elements, or so many that registers run out.

    Args:
        plan: The schedule's plan.
        ctas: How many CTAs share a multiprocessor; None: as many as have room.
    """
    target, threads = arch_named(plan.arch), WARP * plan.warps
    work = max(role.team_warps for role in plan.roles)
    tiles = [load.buffer for load in plan.loads]
    values = sum(math.prod(tile.tile) for tile in tiles) / (WARP * work) or VALUES[0]
    room = min((target.smem + SM_RESERVED) // (plan.smem_bytes + SM_RESERVED), THREADS // threads)
    share = min(ctas or max(1, int(target.registers / threads / (OTHERS + values))), room)
    flight = share * sum(tile.stages * math.prod(tile.tile) * tile.dtype.bytes for tile in tiles)
    return (
        0.6 * max(0.0, FLIGHT / max(1, flight) - 1)
        + 0.05 * max(0.0, flight / MOST_FLIGHT - 1)
        + 0.35 * max(0.0, RESIDENT_WARPS / (share * work) - 1)
        + 0.04 * max(0.0, VALUES[0] / values - 1)
        + 0.04 * max(0.0, values / 48 - 1)
        + 0.5 * max(0.0, (OTHERS + values) * share * threads / target.registers - 1)
        + 0.004 * work
    )


# ---- timing, on a GPU that runs at its power limit ---------------------------------------------------------------------
#
# Launched back to back, the same kernel takes 1386 to 1585 us, depending on its position in the queue. So `rested`
# lets the device rest before every batch, shuffles the variants in every round, and takes medians of short batches;
# this repeats within 0.2 %. `benchmarks.sustained` is the other way: a hot card, long batches, and ratios between
# variants of a round (good to 2 %). All times are microseconds of GPU time per launch.


Run = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)


class Clock(Protocol):
    """Times launches on one device."""

    def rest(self, seconds: float) -> None:
        """Leaves the device idle."""

    def batch(self, run: Run, launches: int) -> list[float]:
        """Microseconds of each of *launches* launches; the L2 cache is flushed before each."""

    def span(self, run: Run, seconds: float) -> float:
        """Microseconds per launch of launches back to back for about *seconds*. Very short kernels are bound by the host."""


@attrs.frozen
class Method:
    """How long to measure.

    Args:
        rounds: Each variant is measured once in each round.
        batch: How many launches are timed together.
        rest: Seconds of idle device before each batch.
        preheat: Seconds of load before the sustained rounds.
        hot: Seconds of each sustained batch.
        seed: The seed for the order of the variants.
    """

    rounds: int = 6
    batch: int = 8
    rest: float = 0.3
    preheat: float = 3.0
    hot: float = 0.25
    seed: int = 0


@attrs.frozen
class Timing:
    """The times of one variant.

    Args:
        us: Median over rounds of the batches' medians (microseconds).
        spread: (p75 - p25) / median of these medians.
        rounds: These medians.
        ratio: Speed relative to the baseline, as the median of the rounds' own ratios (sustained only).
    """

    us: float
    spread: float
    rounds: tuple[float, ...]
    ratio: float | None = None

    @classmethod
    def of(cls, rounds: Iterable[float], ratio: float | None = None) -> Timing:
        values = tuple(rounds)
        median = statistics.median(values)
        return cls(median, _interquartile(values) / median, values, ratio)


def rested(variants: Mapping[Name, Run], clock: Clock, method: Method) -> dict[Name, Timing]:
    """The main measurement: in each round, each variant in random order, with a rest before its batch. One warm-up launch
    each.
    """
    order = random.Random(method.seed)
    medians: dict[Name, list[float]] = {name: [] for name in variants}
    for run in variants.values():
        clock.batch(run, 1)
    for _ in range(method.rounds):
        for name in order.sample(list(variants), len(variants)):
            clock.rest(method.rest)
            medians[name].append(statistics.median(clock.batch(variants[name], method.batch)))
    return {name: Timing.of(values) for name, values in medians.items()}


def screen(
    variants: Mapping[Name, Run], clock: Clock, keep: int, *, pinned: Iterable[Name] = (), seed: int = 0
) -> list[Name]:
    """A short look at each of many variants (0.1 s of rest, 8 launches), to leave out those that are far behind.

    It keeps the *keep* fastest variants, those within 1 % of them (at most as many again), and the *pinned* variants, in the
    order of *variants*. Its times are too coarse to report.
    """
    if len(variants) <= keep:
        return list(variants)
    seen: dict[Name, float] = {}
    for name in random.Random(seed).sample(list(variants), len(variants)):
        clock.rest(0.1)
        seen[name] = statistics.median(clock.batch(variants[name], 8))
    fastest = sorted(seen, key=seen.__getitem__)[: 2 * keep]
    kept = {*(name for name in fastest if seen[name] <= 1.01 * seen[fastest[keep - 1]]), *pinned}
    return [name for name in variants if name in kept]


METHOD, FINALISTS = Method(rounds=4, batch=5, rest=0.1), 4


def fastest(variants: Mapping[Name, Run], clock: Clock, method: Method = METHOD) -> list[tuple[Name, Timing]]:
    """Looks at all variants, then times the best few at length. Returns these few, the fastest first."""
    kept = screen(variants, clock, FINALISTS, seed=method.seed)
    return sorted(rested({name: variants[name] for name in kept}, clock, method).items(), key=lambda item: item[1].us)


def _interquartile(values: tuple[float, ...]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low
