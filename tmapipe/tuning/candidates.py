"""The schedules worth considering for a GEMM."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tmapipe.base.arithmetic import ceil_div
from tmapipe.errors import check_type
from tmapipe.plan.declarations import launch_registers
from tmapipe.plan.rings import SM_RESERVED, arch_named
from tmapipe.plan.thread_layout import multiplies
from tmapipe.schedules.mainloop import in_shares
from tmapipe.tuning.problem import LINE, SECTOR, SWIZZLE_SPAN, Candidate, Device, Problem, own_buffers, slots_of

UNSURE = 1.1  # estimates that are closer do not tell which is faster
COOPERATIVE: dict[int, tuple[int, ...]] = {
    64: (64, 128, 192, 256),
    128: (64, 128, 160, 176, 192, 208, 224, 256),
    192: (128, 160, 176, 192),
    256: (64, 128, 160, 192),
}
WIDEST = {192: 256, 256: 200}  # columns of tiles that fit, where there are wider ones than above
PINGPONG: dict[int, tuple[int, ...]] = {64: (128, 192, 256), 128: (128, 160, 192)}
#: Tiles of which rows are stored in one box, at most: odd multiples of 8 columns, which need no swizzle.
ONE_BOX = {"Gemm": ((128, 248), (192, 232)), "PingPong": ((64, 248), (128, 184))}
WIDTHS, FITTED = (16, 8), 4096  # least columns of a tile that fits an output of so many, and in multiples of what
OTHER_WIDTHS = (64, 16)  # the same of a larger output
SHORT_K = 2048  # bytes of k up to which stores outweigh loads, so that narrow bands are better (1 %)
#: Bytes of k up to which a seventh stage gains less than a second output buffer (1024^3: 8.7, not 9.0 us).
MEDIUM_K = 4096
SHORTEST_K = 512  # bytes of k up to which epilogues take longer than mainloops
FEW_ROWS = 256  # rows of a that L2 keeps while b is read once (256 x 4096 x 4096, tiles of 64 x 128: 20.2, not 22.6 us)
NARROW = 2048  # rows or columns of an output up to which tiles should fit them, however many there are
FEW_WAVES = 4  # up to which the slowest tile counts
ROWS_BEYOND = 32  # rows of each tile beyond the edge; 48 of them cost up to 16 % of 16 x 14336 x 4096
MANY_BEYOND = 64  # rows of the last tiles, counted once for each CTA that gets them
BOX, BOX_CLOCKS = 16, 24  # rows of the boxes in which tiles over the edge are loaded otherwise; what one costs
ROW_CLOCKS, ZERO_CLOCKS = 1.5, 2.2  # in which a row is loaded, and what filling it with zeros takes besides
SLOWER = 1.2  # than multiplying
MACS = 2048  # multiply-adds of 16-bit types per clock and SM (4 tensor cores x 512, NVIDIA's H100 white paper)
SPANS, LEAST_SLOTS = (2, 4), 4  # of k in a slot; slots that a ring then has at least
#: L2 hints for a long k, which leaves no room to keep anything for a second read.
READ_ONCE = ("evict_first", "evict_first")
ALIGNED = 64  # bytes of what memory delivers; rows at other distances share some, so that slots read them twice
MUCH = 256e6  # bytes of an operand, beyond which hints cost more than they gain
LARGE = 64e6  # bytes of an output that L2 does not keep
L2_SHARE = 24e6  # bytes of L2 in which what is read again stays
BY_GPC = {  # tiles for clusters along n, eight of which share operands in a GPC, where there are many waves
    "Gemm": ((128, 256), (256, 128), (192, 176), (256, 192)),
    "PingPong": ((128, 128),),
}
LEAST_BY_GPC = 120 * 128  # elements of such tiles of few waves
CLUSTERS = ((1, 1), (2, 1), (1, 2))
LARGE_CLUSTERS = ((2, 2), (4, 1), (4, 2), (2, 4))
#: For outputs of few waves, where few CTAs share what they load: of a tile's rows or columns, or of all columns of few rows.
OTHER_CLUSTERS = ((1, 4), (3, 1), (1, 3), (8, 1), (1, 8))
#: Tiles of orders that divide k: large ones, and narrow ones for few rows or columns.
IN_PARTS = {64: (64, 128, 256), 128: (64, 128, 192, 256), 192: (128, 192), 256: (128,)}
FITTED_PARTS = 1024  # columns, or rows, of an output up to which their widths fit it
WAVES = (1, 2, 3)  # that all parts of all tiles may make
LEAST_STEPS = 4  # k-tiles of a part
SHARING, SHARED_ROWS = (2, 4, 8), (64, 128, 192)  # CTAs of a cluster that share k, and rows of their tiles
SEVERAL, FEW_CLUSTERS = (2, 3, 4), 0.34  # clusters of a tile, where one of each is so few of those resident
WHOLE = 4  # CTAs of which one may load for all
MOST_CTAS = 8  # of a cluster that every GPU takes
LEAST_SHARED, SHARED_SLOTS = 2, 6  # spans of k of each; slots, more of which take long to prove
MOST_PARTS_BYTES = 512e6  # of the workspace
SMALL, SMALL_STEPS = 128, 4  # extents of products of which several CTAs share a multiprocessor, and spans of their k
MOST_SHARE, BESIDE_SUMS = 8, 28  # CTAs, and registers of a thread beside its sums
BARRIERS = 2048  # bytes of barriers, and of what is left out between tiles


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """All candidates for *problem* on *device*, whether they fit in shared memory or not (`Candidate.can_be_built` tells).
    None for types that wgmma does not multiply.
    """
    check_type("candidates(problem)", problem, Problem, "e.g. Problem.of(a, b)")
    check_type("candidates(device)", device, Device, "e.g. Device.current()")
    if not multiplies(problem.dtype, problem.dtype):
        return
    few = problem.batch * problem.m * problem.n <= FEW_WAVES * device.multiprocessors * 128 * 256
    fitted = few or min(problem.m, problem.n) <= NARROW
    alongs = ("m", "n") if fitted and problem.out.bytes == 2 else ("m",)
    clusters = (*CLUSTERS, *LARGE_CLUSTERS, *(OTHER_CLUSTERS if few else ()))
    for along, (kind, tiles) in itertools.product(alongs, (("Gemm", COOPERATIVE), ("PingPong", PINGPONG))):
        for tile, cluster in itertools.product(_pairs(tiles, problem, along), clusters):
            if _fits(problem, tile, cluster) and (
                cluster not in LARGE_CLUSTERS or few or tile[0] * tile[1] >= 128 * 128
            ):
                yield from _whole(problem, device, kind, tile, cluster, along, fitted)
    yield from _small(problem, device)
    yield from _in_one_box(problem, device)
    if not problem.dtype.integer:
        yield from _sharing_k(problem, device)
        for along in "mn":
            pairs = _pairs(IN_PARTS, problem, along, FITTED_PARTS)
            for tile, cluster in itertools.product(pairs, (*CLUSTERS, *LARGE_CLUSTERS, (1, 4))):
                if _fits(problem, tile, cluster):
                    yield from _in_parts(problem, device, tile, cluster, along)


def _whole(
    problem: Problem,
    device: Device,
    kind: str,
    tile: tuple[int, int],
    cluster: tuple[int, int],
    along: str,
    fitted: bool,
) -> Iterator[Candidate]:
    """Orders of whole tiles, of many forms if they should be *fitted* to the output."""
    found = _options(kind, tile, problem, device, along)
    options = (*found.items(), *_outside(problem, device, tile, cluster))
    plain = Candidate(kind, tile, cluster, options)
    yield plain
    if kind == "Gemm":
        for spans in _spans(problem, plain):
            yield Candidate(kind, tile, cluster, (*options, ("spans", spans)))
    if cluster == (1, 2) and (tile[0] * tile[1] >= LEAST_BY_GPC if fitted else tile in BY_GPC[kind]):
        near = dict(options) | {"order": ("Snake", _rows(problem, tile[0]), "gpc")}
        yield Candidate(kind, tile, cluster, tuple(near.items()))
    if found.get("in_turn") is False and "store_stages" in found:
        yield Candidate(kind, tile, cluster, tuple(option for option in options if option[0] != "store_stages"))


def _small(problem: Problem, device: Device) -> Iterator[Candidate]:
    """Candidates for many small products: several CTAs share a multiprocessor, and each has one tile, so that loads, matmuls
    and stores of different CTAs run at once."""
    steps = ceil_div(problem.k * problem.dtype.bytes, SWIZZLE_SPAN)
    least = problem.batch < device.multiprocessors or problem.dtype.bytes != 2
    if least or problem.m > SMALL or problem.n > SMALL or steps > SMALL_STEPS:
        return
    n = max(32, ceil_div(problem.n, 16) * 16)
    # Two slots of 32 columns: ptxas serializes their matmuls (its note C7514).
    slots = sorted({1, min(2, steps)}) if n > 32 else [1]
    for m, stages in itertools.product((64, 128) if problem.m > 64 else (64,), slots):
        bytes_ = stages * (m + n) * SWIZZLE_SPAN + m * n * problem.out.bytes + BARRIERS
        warps, target = m // 16 + 1, arch_named("sm_90a")
        room = (target.smem + SM_RESERVED) // (bytes_ + SM_RESERVED)
        for share in range(min(MOST_SHARE, room), 1, -1):
            if launch_registers(warps, target, share) >= n // 2 + BESIDE_SUMS:
                yield Candidate("Gemm", (m, n), (1, 1), (("stages", stages), ("store_stages", 1), ("share", share)))
                break


def _in_one_box(problem: Problem, device: Device) -> Iterator[Candidate]:
    """Candidates whose tiles' rows are stored in one box, for outputs of short k whose rows begin within sectors. With boxes
    of 64 columns, two stores would share the sector in which a box ends. Rows of tiles are stored one after another; only a
    ping-pong of 128 rows stores them in bands of several (44740 x 27528 x 72: 1335 us, not 1626)."""
    k_bytes = problem.k * problem.dtype.bytes
    if problem.out.bytes != 2 or problem.rows_at[2] >= SECTOR or k_bytes > SHORT_K:
        return
    for kind, most in ((kind, most) for kind, tiles in ONE_BOX.items() for most in tiles):
        even = ceil_div(ceil_div(problem.n, ceil_div(problem.n, most[1])), 8) * 8  # as few tiles as of the most columns
        tile = most[0], even + 8 * (even % 16 == 0)
        for cluster in CLUSTERS:
            if _fits(problem, tile, cluster):
                found = _options(kind, tile, problem, device) | {"columns": tile[1], "store_stages": 1}
                found.pop("order", None)
                if kind == "Gemm" or tile[0] == 64:
                    found["order"] = ("Grouped", 1)
                yield Candidate(kind, tile, cluster, tuple(found.items()))


def _in_parts(
    problem: Problem, device: Device, tile: tuple[int, int], cluster: tuple[int, int], along: str
) -> Iterator[Candidate]:
    """Orders that divide k, for outputs whose tiles leave part of the device idle."""
    further = (
        *((("along", "n"),) if along == "n" else ()),
        *_hints(problem, READ_ONCE),
        *_outside(problem, device, tile, cluster),
    )
    for spans in (1, *_spans(problem, Candidate("SplitK", tile, cluster, further))[:1]):
        deep = (("spans", spans),) if spans > 1 else ()
        for parts in _parts(problem, device, tile, cluster, spans):
            yield Candidate("SplitK", tile, cluster, (("parts", parts), *further, *deep))
            if cluster in CLUSTERS[1:] and min(tile) >= 128 and along == "m" and spans == 1:
                yield Candidate("SplitK", tile, cluster, (("parts", parts), *further, ("order", ("Grouped", 8, "gpc"))))


def _sharing_k(problem: Problem, device: Device) -> Iterator[Candidate]:
    """Clusters whose CTAs share k, for outputs of one wave of them."""
    steps = ceil_div(problem.k * problem.dtype.bytes, SWIZZLE_SPAN)
    for parts, m, along_m in itertools.product(SHARING, SHARED_ROWS, (1, 2)):
        if along_m * parts > MOST_CTAS or not device.resident(along_m * parts):
            continue
        unit = 8 * parts
        for n in range(unit, min(256, 64 * parts) + 1, unit):
            tile, cluster = (m, n), (along_m, 1)
            least = n in (unit, 32) or ceil_div(problem.n, n) < ceil_div(problem.n, n - unit)
            waves = _clusters(problem, tile, cluster) * problem.batch / device.resident(along_m * parts)
            if not least or waves > 1 or steps < LEAST_SHARED * parts or not _fits(problem, tile, cluster):
                continue
            options = (("parts", parts), *_hints(problem, READ_ONCE), *_outside(problem, device, tile, cluster))
            for spans in (1, *SPANS):
                deep = (("spans", spans),) if spans > 1 else ()
                slots = max(2, min(SHARED_SLOTS, ceil_div(steps, spans * parts)))
                made = Candidate("ClusterSplitK", tile, cluster, (*options, *deep, ("stages", slots)))
                if made.slots >= min(LEAST_SLOTS, slots):
                    yield made
                    for several in SEVERAL if waves <= FEW_CLUSTERS else ():
                        if waves * several <= 1 and steps >= LEAST_STEPS * spans * parts * several:
                            yield Candidate("ClusterSplitK", tile, cluster, (*made.options, ("clusters", several)))


def _fits(problem: Problem, tile: tuple[int, int], cluster: tuple[int, int]) -> bool:
    """Whether the CTAs of a cluster can load equal shares (or, if they are few, one CTA can load for all), and no CTA lies
    wholly outside of the output."""
    shares = all(
        ctas <= WHOLE or asked(extent, ctas) < extent for extent, ctas in zip(tile, cluster[::-1], strict=True)
    )
    return shares and not _wasted(problem, tile, cluster) and not _in_short_spans(problem, tile)


def asked(rows: int, peers: int) -> int:
    """Rows of a tile of *rows* that the busiest of its *peers* loads: an equal share in steps of 8 rows, else all."""
    return rows // peers if in_shares(rows, peers) else rows


def edge_boxes(rows: int, peers: int) -> int:
    """Boxes in which the busiest of *peers* loads a tile over the edge."""
    own = asked(rows, peers)
    return own // (8 if own % BOX else BOX)


def _spans(problem: Problem, plain: Candidate) -> list[int]:
    """Further numbers of spans of k in a slot that are worth a try, for a long k and small tiles: their slots take longer to
    hand over than to multiply."""
    steps = ceil_div(problem.k * problem.dtype.bytes, SWIZZLE_SPAN)
    return [spans for spans in SPANS if LEAST_SLOTS * spans <= min(steps, plain.slots)]


def _rows(problem: Problem, m: int) -> int:
    """Rows of tiles in a band: 8 to 12, whichever leaves the last band as full as possible."""
    rows = ceil_div(problem.m, m)
    return min(range(8, 13), key=lambda band: ceil_div(rows, band) * band)


def _pairs(
    tiles: dict[int, tuple[int, ...]], problem: Problem, along: str = "m", widest: int | None = None
) -> list[tuple[int, int]]:
    """The *tiles* (m, n), whose accumulators have rows along *along*, and tiles between the narrowest and the widest of the
    same rows that fit the output, if no narrower tile makes as few tiles. For outputs wider than *widest*, only *tiles*."""
    extent = problem.n if along == "m" else problem.m
    found = []
    for rows, columns in tiles.items():
        least, step = WIDTHS if extent <= FITTED else OTHER_WIDTHS
        between = range(least, WIDEST.get(rows, max(columns)) + 1, step) if extent <= (widest or extent) else ()
        fitting = {width for width in between if ceil_div(extent, width) < ceil_div(extent, width - step)}
        found += [(rows, width) if along == "m" else (width, rows) for width in sorted({*columns, *fitting})]
    return found


def _wasted(problem: Problem, tile: tuple[int, int], cluster: tuple[int, int]) -> bool:
    """Whether whole CTAs of each cluster would lie outside the output."""
    return any(
        ceil_div(size, extent) < ctas for size, extent, ctas in zip((problem.m, problem.n), tile, cluster, strict=True)
    )


def _in_short_spans(problem: Problem, tile: tuple[int, int]) -> bool:
    """Whether an operand along m or n would be swizzled in short spans, but for three of 64 bytes where rows begin at sectors
    (368 x 5736 x 2816: 26.8 us in tiles of 96 x 192, 28.7 of 192 x 128)."""
    sides = zip(problem.majors, tile, problem.rows_at, strict=False)
    return any(major != "k" and extent % 64 and (extent != 96 or rows < SECTOR) for major, extent, rows in sides)


def _options(kind: str, tile: tuple[int, int], problem: Problem, device: Device, along: str = "m") -> dict[str, Any]:
    """Options of a candidate that follow from the problem:

    * store_stages: one output buffer per warpgroup if two would cost a stage of the ring. That is for CTAs of one tile, which
      have nothing to store while the next tile is computed (for a short k, six stages are enough); for a ping-pong whose
      epilogues are not in turn; and if the ring had fewer than four stages.
    * order: narrow bands for short k and many tiles, if L2 keeps b while a band is stored (7312 x 60032 x 104: 342 us in bands
      of 8 rows of tiles, 366 of 2).
    * store_hint: with short k, a large output makes way in L2 for the operands (7312 x 60032 x 104: 289 us, not 304), unless
      its rows share lines, which the next tile completes (44740 x 27528 x 72: 1531 us, with the hint 1571). If they begin at
      half lines, tiles of one row follow each other, and have it too (18518 x 58144 x 112: 775 us, 858 without the hint).
    * l2_hints: if few rows of a, or few rows of tiles, read all of b, then b makes way in L2 for a.
    """
    found: dict[str, Any] = {"along": "n"} if along == "n" else {}
    k_bytes = problem.k * problem.dtype.bytes
    if kind == "PingPong" and k_bytes <= SHORTEST_K:
        found["in_turn"] = False
    warpgroups = own_buffers(kind, tile[along == "n"], "in_turn" not in found)
    one, two = (slots_of(tile, buffers * warpgroups) for buffers in (1, 2))
    tiles = ceil_div(problem.m, tile[0]) * ceil_div(problem.n, tile[1]) * problem.batch
    enough = 4
    if tiles <= device.multiprocessors:
        enough = 6 if k_bytes <= MEDIUM_K else one
    if two < (one if "in_turn" in found else min(one, enough)):
        found["store_stages"] = 1
    band = 2 * tile[0] * problem.n * problem.out.bytes + problem.n * k_bytes
    if k_bytes <= SHORT_K and tiles > 4 * device.multiprocessors and band <= L2_SHARE:
        found["order"] = ("Snake", 2)
    large = problem.batch * problem.m * problem.n * problem.out.bytes >= LARGE
    if k_bytes <= SHORT_K and large and problem.rows_at[2] == LINE:
        found["store_hint"] = "evict_first"
    elif k_bytes < SHORTEST_K and large and problem.rows_at[2] == ALIGNED and problem.n * k_bytes <= L2_SHARE:
        found |= {"order": ("Grouped", 1), "store_hint": "evict_first"}
    if problem.m <= max(2 * tile[0], FEW_ROWS) and problem.n > 4 * problem.m:
        found |= dict(_hints(problem, ("evict_last", "evict_first")))
    return found


def _hints(problem: Problem, hints: tuple[str, str]) -> tuple[tuple[str, Any], ...]:
    """The option of L2 *hints*, if any are left."""
    found = hinted(problem, hints)
    return (("l2_hints", found),) if any(found) else ()


def hinted(problem: Problem, hints: tuple[str | None, str | None]) -> tuple[str | None, ...]:
    """*hints*, none for an operand whose rows share what memory delivers, which must stay until the next slot reads it: 48 x
    32544 x 15672 takes 274 us, 317 with hints. And none if an operand is much larger than L2: 128 x 31360 x 20352 takes 322,
    340 with hints (128 x 8192 x 8192: 47.5, with hints 42.6).
    """
    longer = max(problem.m, problem.n)
    if problem.batch * longer * problem.k * problem.dtype.bytes >= MUCH:
        return (None, None)
    return tuple(hint if rows % ALIGNED == 0 else None for rows, hint in zip(problem.rows_at, hints, strict=False))


def _outside(
    problem: Problem, device: Device, tile: tuple[int, int], cluster: tuple[int, int]
) -> tuple[tuple[str, Any], ...]:
    """The option by which slots of (a, b) may hold anything in rows beyond the edge, instead of zeros. It is for problems in
    which the engine would fill many rows with zeros, and loading boxes of 16 rows instead takes no longer than multiplying.

    A CTA's peers get the rows that it loads, so zeros cost as many times. If only the last tiles have such rows, they must
    take longer to load than to multiply, and be the slowest of few tiles: 280 x 27344 x 27456 in tiles of 128 x 208 on
    clusters of 1 x 2 took 964 us, not 761.
    """
    few = _clusters(problem, tile, cluster) * problem.batch <= FEW_WAVES * device.resident(cluster[0] * cluster[1])
    takes, loads = tile[0] * tile[1] * (SWIZZLE_SPAN // 2) / MACS, sum(tile) * ROW_CLOCKS
    everywhere, last, boxes = [False, False], [False, False], [0, 0]
    for side, (size, major) in enumerate(zip((problem.m, problem.n), problem.majors, strict=True)):
        peers, extent = cluster[1 - side], tile[side]
        beyond = min(extent, -size % (extent * cluster[side]))
        received = min(beyond, extent // peers) * peers
        loads += received * ZERO_CLOCKS
        boxes[side] = edge_boxes(extent, peers)
        everywhere[side] = major == "k" and size < extent and beyond >= ROWS_BEYOND
        last[side] = major == "k" and few and size >= extent and received >= MANY_BEYOND
    chosen = [of_all or (of_last and loads > SLOWER * takes) for of_all, of_last in zip(everywhere, last, strict=True)]
    if not any(chosen) or sum(itertools.compress(boxes, chosen)) * BOX_CLOCKS > takes:
        return ()
    return (("outside", tuple("anything" if side else "zeros" for side in chosen)),)


def _clusters(problem: Problem, tile: tuple[int, int], cluster: tuple[int, int]) -> int:
    """Clusters of output tiles."""
    return ceil_div(problem.m, tile[0] * cluster[0]) * ceil_div(problem.n, tile[1] * cluster[1])


def _parts(problem: Problem, device: Device, tile: tuple[int, int], cluster: tuple[int, int], spans: int) -> list[int]:
    """Numbers of parts with which the tiles of all parts fill whole waves as far as they can."""
    steps = ceil_div(problem.k * problem.dtype.bytes, SWIZZLE_SPAN * spans)
    clusters = _clusters(problem, tile, cluster) * problem.batch
    resident = device.resident(cluster[0] * cluster[1])
    most = min(steps // LEAST_STEPS, int(MOST_PARTS_BYTES / (4 * problem.batch * problem.m * problem.n)))
    wanted = {min(waves * resident // clusters, most) for waves in WAVES}
    wanted |= {1 << parts.bit_length() - 1 for parts in wanted if parts > 1}
    even = {ceil_div(steps, ceil_div(steps, parts)) for parts in wanted if parts > 1}  # without an idle last part
    return sorted(parts for parts in even if parts > 1)
