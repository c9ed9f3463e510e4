"""The schedules worth considering for a GEMM, as plain data that can be counted, compared, stored and built."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import attrs

from tmapipe.dtypes import tf32
from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.schedules.mainloop import Cooperative
from tmapipe.schedules.operand import Operand
from tmapipe.tiles.gpc import GpcTiles
from tmapipe.tiles.persistent import PersistentTiles
from tmapipe.tiles.raster import Grouped, Hilbert, Snake
from tmapipe.tuning import epilogues
from tmapipe.tuning.epilogues import PLAIN
from tmapipe.tuning.problem import Device, Problem

__all__ = ["Candidate", "candidates"]

SWIZZLE_SPAN = 128  # bytes along k of one slot
COOPERATIVE: dict[int, tuple[int, ...]] = {
    64: (64, 128, 192, 256),
    128: (64, 128, 160, 176, 192, 208, 224, 256),
    192: (128, 160, 176, 192),
    256: (64, 128, 160, 192),
}
PINGPONG: dict[int, tuple[int, ...]] = {64: (128, 192, 256), 128: (128, 160, 192)}
LEAST_WIDTH, WIDTHS = 64, 16  # columns of a tile that fits the output, and in multiples of what
SHORT_K = 2048  # bytes of k up to which stores outweigh loads, so that narrow bands are better (1 %)
#: Bytes of k up to which a seventh stage gains less than a second output buffer (1024^3: 8.7, not 9.0 us).
MEDIUM_K = 4096
SHORTEST_K = 512  # bytes of k up to which epilogues take longer than mainloops
FEW_ROWS = 256  # rows of a that L2 keeps while b is read once (256 x 4096 x 4096, tiles of 64 x 128: 20.2, not 22.6 us)
FEW_WAVES = 4  # up to which the slowest tile counts
ROWS_BEYOND = 32  # rows of each tile beyond the edge; 48 of them cost up to 16 % of 16 x 14336 x 4096
MANY_BEYOND = 64  # rows of the last tiles, counted once for each CTA that gets them
BOX, BOX_CLOCKS = 16, 24  # rows of the boxes in which tiles over the edge are loaded otherwise; what one costs
ROW_CLOCKS, ZERO_CLOCKS = 1.5, 2.2  # in which a row is loaded, and what filling it with zeros takes besides
SLOWER = 1.2  # than multiplying
MACS = 2048  # multiply-adds of 16-bit types per clock and SM (4 tensor cores x 512, NVIDIA's H100 white paper)
SMALL_TILE, DEEP = 192, ("spans", 2)
#: L2 hints for a long k, which leaves no room to keep anything for a second read.
READ_ONCE = ("evict_first", "evict_first")
BY_GPC = {  # tiles for clusters along n, eight of which share operands in a GPC
    "Gemm": ((128, 256), (256, 128), (192, 176)),
    "PingPong": ((128, 128),),
}
CLUSTERS = ((1, 1), (2, 1), (1, 2))
LARGE_CLUSTERS = ((2, 2), (4, 1))
#: Tiles of orders that divide k: large ones, and narrow ones for few rows or columns.
IN_PARTS = {64: (64, 128, 256), 128: (64, 128, 192, 256), 192: (128, 192), 256: (128,)}
FITTED_PARTS = 1024  # columns, or rows, of an output up to which their widths fit it
WAVES = (1, 2, 3)  # that all parts of all tiles may make
LEAST_STEPS = 4  # k-tiles of a part
MOST_PARTS_BYTES = 512e6  # of the workspace


@attrs.frozen
class Candidate:
    """A schedule as data.

    Args:
        schedule: Name of a class in `tmapipe.schedules`.
        tile: (m, n) elements of a CTA's output tile.
        cluster: CTAs along (m, n).
        options: (word, value) of what else it is built with: "stages" of operands; "store_stages", buffers of a warpgroup;
            "order", a tile scheduler as ("Snake", 8), by GPC as ("Snake", 8, "gpc"); "l2_hints" and "outside", of (a, b);
            "promote"; "in_turn" and "along", of the mainloop; "parts", of a split k; "spans", of 128 bytes of k in a slot.
            These words are kept on disk.
    """

    schedule: str
    tile: tuple[int, int]
    cluster: tuple[int, int]
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def parts(self) -> int:
        """Number of parts that k is divided into."""
        return int(dict(self.options).get("parts", 1))

    @property
    def in_parts(self) -> bool:
        """Whether a second kernel adds up parts of k."""
        return self.schedule == "SplitK"

    @property
    def spans(self) -> int:
        """Spans of 128 bytes of k in a slot."""
        return int(dict(self.options).get("spans", 1))

    @property
    def accumulators(self) -> tuple[int, int]:
        """Rows, which warpgroups share, and columns of the tile's accumulators."""
        return self.tile[::-1] if dict(self.options).get("along") == "n" else self.tile

    @property
    def by_gpc(self) -> bool:
        """Whether clusters of one GPC take tiles with consecutive numbers."""
        return "gpc" in dict(self.options).get("order", ())

    def build(self, problem: Problem, epilogue: Epilogue = PLAIN) -> Any:
        """The schedule.

        Raises:
            InputError: It cannot be planned for the problem's types, or takes no epilogue.
        """
        from tmapipe import schedules

        if not epilogue.plain and self.in_parts:
            rule = "is not for candidates in parts of k, whose second kernel is not estimated with one"
            raise InputError("epilogue", epilogue.function, rule, "leave it out")
        words = dict(self.options)
        stored = attrs.evolve(epilogue, stages=words.pop("store_stages", epilogue.stages))
        if not self.in_parts:
            stored = attrs.evolve(stored, dtype=problem.out)
        options: dict[str, Any] = {"epilogue": stored, **self._operands(problem, words)}
        if "order" in words:
            options["tiles"] = _order(*words.pop("order"))
        if self.schedule != "PingPong":
            mainloop = {word: words.pop(word) for word in ("promote", "along") if word in words}
            options["mainloop"] = Cooperative(**mainloop)
        if epilogue.operands:  # a ping-pong with operands needs its epilogues in turn
            words.pop("in_turn", None)
        tile = *self.tile, words.pop("spans", 1) * SWIZZLE_SPAN // problem.dtype.bytes
        made = getattr(schedules, self.schedule)(tile=tile, cluster=self.cluster, **options, **words)
        with warnings.catch_warnings():  # of spills, which show when it is measured
            warnings.simplefilter("ignore")
            made.plan(self.dtypes(problem, epilogue))
        return made

    def _operands(self, problem: Problem, words: dict[str, Any]) -> dict[str, Operand]:
        """How a and b are loaded, of what *words* say of them."""
        dtype = "tf32" if problem.dtype == tf32 else None
        hints, outside = words.pop("l2_hints", (None, None)), words.pop("outside", ("zeros", "zeros"))
        each = zip("ab", problem.majors, hints, outside, strict=True)
        return {side: Operand(major, dtype=dtype, l2_hint=hint, outside=rest) for side, major, hint, rest in each}

    def dtypes(self, problem: Problem, epilogue: Epilogue = PLAIN) -> dict[str, Any]:
        """Element types by stage name, as the schedule's `plan` takes them."""
        found = {"a": problem.dtype, "b": problem.dtype}
        return found if self.in_parts else {**found, "d": problem.out, **epilogues.dtypes(problem, epilogue)}

    def ranks(self, problem: Problem, epilogue: Epilogue = PLAIN) -> dict[str, int]:
        """Number of dimensions of each tensor by stage name: two, or three with a batch."""
        several = 3 if problem.batch > 1 else 2
        found = {"a": several, "b": several, "d": 3 if self.in_parts else several}
        return found | epilogues.ranks(problem, epilogue)

    def can_be_built(self, problem: Problem, epilogue: Epilogue = PLAIN) -> bool:
        try:
            self.build(problem, epilogue)
        except InputError:
            return False
        return True

    def __str__(self) -> str:
        options = " ".join(f"{name} {value}" for name, value in self.options)
        return f"{self.schedule} {self.tile[0]}x{self.tile[1]} {self.cluster[0]}x{self.cluster[1]} {options}".strip()


def _order(raster: str, rows: int, near: str = "") -> PersistentTiles:
    kind = GpcTiles if near == "gpc" else PersistentTiles
    return kind({"Grouped": Grouped, "Snake": Snake, "Hilbert": Hilbert}[raster](rows))


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """All candidates, whether they fit in shared memory or not (`Candidate.can_be_built` tells)."""
    few = problem.batch * problem.m * problem.n <= FEW_WAVES * device.multiprocessors * 128 * 256
    alongs = ("m", "n") if few and problem.out.bytes == 2 else ("m",)
    for along, (kind, tiles) in itertools.product(alongs, (("Gemm", COOPERATIVE), ("PingPong", PINGPONG))):
        for (m, n), cluster in itertools.product(_pairs(tiles, problem, along), (*CLUSTERS, *LARGE_CLUSTERS)):
            if cluster in LARGE_CLUSTERS and m * n < 128 * 128:
                continue
            if _wasted(problem, (m, n), cluster) or _in_short_spans(problem, (m, n)):
                continue
            options = {
                **_options(kind, (m, n), problem, device, along),
                **dict(_outside(problem, device, (m, n), cluster)),
            }
            yield Candidate(kind, (m, n), cluster, tuple(options.items()))
            if kind == "Gemm" and _deep(problem, (m, n)):
                yield Candidate(kind, (m, n), cluster, (*options.items(), DEEP))
            if along == "m" and cluster == (1, 2) and (m, n) in BY_GPC[kind]:
                near = {**options, "order": ("Snake", _rows(problem, m), "gpc")}
                yield Candidate(kind, (m, n), cluster, tuple(near.items()))
    if not problem.dtype.integer:
        for along in "mn":
            for tile, cluster in itertools.product(_pairs(IN_PARTS, problem, along, FITTED_PARTS), CLUSTERS):
                if not _wasted(problem, tile, cluster) and not _in_short_spans(problem, tile):
                    yield from _in_parts(problem, device, tile, cluster, along)


def _in_parts(
    problem: Problem, device: Device, tile: tuple[int, int], cluster: tuple[int, int], along: str
) -> Iterator[Candidate]:
    """Orders that divide k, for outputs whose tiles leave part of the device idle."""
    further = (
        *((("along", "n"),) if along == "n" else ()),
        ("l2_hints", READ_ONCE),
        *_outside(problem, device, tile, cluster),
    )
    for spans in (1, 2) if _deep(problem, tile) else (1,):
        deep = (DEEP,) if spans == 2 else ()
        for parts in _parts(problem, device, tile, cluster, spans):
            yield Candidate("SplitK", tile, cluster, (("parts", parts), *further, *deep))
            if cluster != (1, 1) and min(tile) >= 128 and along == "m":
                yield Candidate("SplitK", tile, cluster, (("parts", parts), *further, ("order", ("Grouped", 8, "gpc"))))


def _deep(problem: Problem, tile: tuple[int, int]) -> bool:
    """Whether slots of two spans of k are worth considering: for small tiles, whose slots take longer to hand over than to
    multiply, and a long k."""
    return sum(tile) <= SMALL_TILE and problem.k * problem.dtype.bytes >= 2 * SWIZZLE_SPAN * LEAST_STEPS


def _rows(problem: Problem, m: int) -> int:
    """Rows of tiles in a band: 8 to 12, whichever leaves the last band as full as possible."""
    rows = ceil_div(problem.m, m)
    return min(range(8, 13), key=lambda band: ceil_div(rows, band) * band)


def _pairs(
    tiles: dict[int, tuple[int, ...]], problem: Problem, along: str = "m", widest: int | None = None
) -> list[tuple[int, int]]:
    """The *tiles* (m, n), whose accumulators have rows along *along*, and those between the narrowest and the widest of the
    same rows that fit the output: no narrower ones make as few tiles. For wider outputs than *widest*, only the former.
    """
    extent = problem.n if along == "m" else problem.m
    found = []
    for rows, columns in tiles.items():
        between = range(LEAST_WIDTH, max(columns) + 1, WIDTHS) if extent <= (widest or extent) else ()
        fitting = {width for width in between if ceil_div(extent, width) < ceil_div(extent, width - WIDTHS)}
        found += [(rows, width) if along == "m" else (width, rows) for width in sorted({*columns, *fitting})]
    return found


def _wasted(problem: Problem, tile: tuple[int, int], cluster: tuple[int, int]) -> bool:
    """Whether whole CTAs of each cluster would lie outside the output."""
    return any(
        ceil_div(size, extent) < ctas for size, extent, ctas in zip((problem.m, problem.n), tile, cluster, strict=True)
    )


def _in_short_spans(problem: Problem, tile: tuple[int, int]) -> bool:
    """Whether an operand that is contiguous along m or n would be swizzled in short spans."""
    return any(major != "k" and extent % 64 for major, extent in zip(problem.majors, tile, strict=True))


def _options(kind: str, tile: tuple[int, int], problem: Problem, device: Device, along: str = "m") -> dict[str, Any]:
    """Options of a candidate that follow from the problem:

    * store_stages: one output buffer per warpgroup if two would cost a stage of the ring. That is for CTAs of one tile, which
      have nothing to store while the next tile is computed (for a short k, six stages are enough); for a ping-pong whose
      epilogues are not in turn; and if the ring had fewer than four stages.
    * order: narrow bands for short k and many tiles.
    * l2_hints: if few rows of a, or few rows of tiles, read all of b, then b makes way in L2 for a.
    """
    found: dict[str, Any] = {"along": "n"} if along == "n" else {}
    k_bytes = problem.k * problem.dtype.bytes
    if kind == "PingPong" and k_bytes <= SHORTEST_K:
        found["in_turn"] = False
    in_turn = kind == "PingPong" and "in_turn" not in found
    rows = tile[along == "n"]
    warpgroups = 1 if in_turn else 2 if rows in (128, 256) else rows // 64  # with buffers of their own
    one, two = (_stages(tile, buffers * warpgroups) for buffers in (1, 2))
    tiles = ceil_div(problem.m, tile[0]) * ceil_div(problem.n, tile[1]) * problem.batch
    enough = 4
    if tiles <= device.multiprocessors:
        enough = 6 if k_bytes <= MEDIUM_K else one
    if two < (one if "in_turn" in found else min(one, enough)):
        found["store_stages"] = 1
    if k_bytes <= SHORT_K and tiles > 4 * device.multiprocessors:
        found["order"] = ("Snake", 2)
    if problem.m <= max(2 * tile[0], FEW_ROWS) and problem.n > 4 * problem.m:
        found["l2_hints"] = ("evict_last", "evict_first")
    return found


def _outside(
    problem: Problem, device: Device, tile: tuple[int, int], cluster: tuple[int, int]
) -> tuple[tuple[str, Any], ...]:
    """The option by which slots of (a, b) may hold anything of rows beyond the edge: where the engine would fill many with
    zeros, and where loading boxes of 16 rows instead takes no longer than multiplying.

    A CTA's peers get the rows that it loads, so zeros cost as many times. Where only the last tiles have such rows, these must
    take longer to load than to multiply, and be the slowest of few: 280 x 27344 x 27456 in tiles of 128 x 208 on clusters of
    1 x 2 took 964 us, not 761.
    """
    few = _clusters(problem, tile, cluster) * problem.batch <= FEW_WAVES * device.resident(cluster[0] * cluster[1])
    takes, loads = tile[0] * tile[1] * (SWIZZLE_SPAN // 2) / MACS, sum(tile) * ROW_CLOCKS
    everywhere, last, boxes = [False, False], [False, False], [0, 0]
    for side, (size, major) in enumerate(zip((problem.m, problem.n), problem.majors, strict=True)):
        peers, extent = cluster[1 - side], tile[side]
        beyond = min(extent, -size % (extent * cluster[side]))
        received = min(beyond, extent // peers) * peers
        loads += received * ZERO_CLOCKS
        boxes[side] = extent // peers // BOX
        everywhere[side] = major == "k" and size < extent and beyond >= ROWS_BEYOND
        last[side] = major == "k" and few and size >= extent and received >= MANY_BEYOND
    chosen = [of_all or (of_last and loads > SLOWER * takes) for of_all, of_last in zip(everywhere, last, strict=True)]
    if not any(chosen) or sum(itertools.compress(boxes, chosen)) * BOX_CLOCKS > takes:
        return ()
    return (("outside", tuple("anything" if side else "zeros" for side in chosen)),)


def _stages(tile: tuple[int, int], buffers: int) -> int:
    """Slots that fit beside *buffers* output buffers of 64 rows by 128 bytes, in 227 KiB less the barriers."""
    return (226 * 1024 - buffers * 64 * 128) // (sum(tile) * SWIZZLE_SPAN)


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
