"""Static tile schedulers: rasters, the persistent scheduler, and a cluster for each tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tmapipe.base.arithmetic import ceil_div
from tmapipe.errors import InputError, is_count, must, optional
from tmapipe.isa.fragment import Carried
from tmapipe.isa.ops import Isa
from tmapipe.plan.model import Plan, RoleWarps
from tmapipe.plan.rings import SM_RESERVED, arch_named
from tmapipe.protocol.tile import Tile, cluster_coordinate
from tmapipe.tiles.order import TileOrder, TilesOfRole

# ---- raster ----------------------------------------------------------------------------------------------------------
#
# Rasters: how the tiles of one output matrix are numbered, so that CTAs at work together share operands in L2.
#
# A raster maps the numbers 0 .. rows * columns - 1, one to one, to (row, column) in a matrix of tiles, in units of
# clusters. All rasters go through the matrix in bands of some rows (or columns), one band after another. They differ
# in how they go through a band.


_positive = must(lambda n: is_count(n) and n < 2**31, "is a positive number of rows below 2^31", "use 8")


@attrs.frozen
class Grouped:
    """Each band column by column, from the first column to the last.

    Args:
        rows: Rows of a band.

    Raises:
        InputError: *rows* is no positive integer.
    """

    rows: int = attrs.field(default=8, validator=_positive)

    def divisors(self, rows: Any, columns: Any) -> dict[str, Any]:
        """The numbers that `coordinates` divides by, by name, for a matrix of so many rows and columns."""
        if self.rows == 1:
            return {"band": columns}
        return {"band": self.rows * columns, "last rows": (rows - 1) % self.rows + 1}

    def coordinates(self, isa: Isa, by: dict[str, Any], rows: Any, columns: Any, index: Any) -> tuple[Any, Any]:
        """(row, column) of tile number *index* in a matrix of *rows* x *columns* tiles.

        Args:
            isa: The backend that computes it.
            by: The divisors that `divisors` named.
            rows: Of tiles, in units of clusters.
            columns: The same along n.
            index: From 0 to rows * columns - 1.
        """
        if isinstance(columns, int) and columns == 1:
            return index, 0
        band = index // by["band"]
        index = index - band * (self.rows * columns)
        if self.rows == 1:
            return band, self._mirrored(isa, band, columns, index)
        first = band * self.rows
        short = rows - first < self.rows
        height = isa.select(short, rows - first, self.rows)
        down, right = self._in_band(isa, by, columns, index, short, height)
        return first + down, self._mirrored(isa, band, columns, right)

    def _in_band(self, isa: Isa, by: dict[str, Any], columns: Any, index: Any, short: Any, height: Any) -> Any:
        right = isa.select(short, index // by["last rows"], index // self.rows)
        return index - right * height, right

    def _mirrored(self, isa: Isa, band: Any, columns: Any, right: Any) -> Any:
        return right


@attrs.frozen
class Snake(Grouped):
    """Bands as in `Grouped`, but every second band runs from the last column to the first.

    A band then begins with the columns that the band before ended with.

    Args:
        rows: Rows of a band.
    """

    def _mirrored(self, isa: Isa, band: Any, columns: Any, right: Any) -> Any:
        return isa.select(band & 1 == 1, columns - 1 - right, right)


@attrs.frozen
class Backwards(Grouped):
    """Bands as in `Grouped`, from the last tile to the first. In causal attention the last tiles take longest, so they begin
    first.

    Args:
        rows: Rows of a band.
    """

    def coordinates(self, isa: Isa, by: dict[str, Any], rows: Any, columns: Any, index: Any) -> tuple[Any, Any]:
        down, right = super().coordinates(isa, by, rows, columns, index)
        return rows - 1 - down, columns - 1 - right


@attrs.frozen
class Columns(Grouped):
    """Bands of some columns instead of rows, each row by row from the first row to the last.

    CTAs at work together then share columns of b, where `Grouped` has them share rows of a: for outputs of few columns.

    Args:
        columns: Columns of a band.

    Raises:
        InputError: *columns* is no positive integer.
    """

    rows: int = attrs.field(default=8, validator=_positive, alias="columns")

    def divisors(self, rows: Any, columns: Any) -> dict[str, Any]:
        return super().divisors(columns, rows)

    def coordinates(self, isa: Isa, by: dict[str, Any], rows: Any, columns: Any, index: Any) -> tuple[Any, Any]:
        right, down = super().coordinates(isa, by, columns, rows, index)
        return down, right


@attrs.frozen
class Hilbert(Snake):
    """Each band along Hilbert curves of `rows` x `rows` tiles, every second band backwards.

    Any run of consecutive tiles is then nearly square. Each curve ends beside the beginning of the next. The rest of a band,
    which is no whole square, is gone through column by column as in `Snake`.

    Args:
        rows: Rows of a band, a power of two up to 256; the rows of a square matrix give its Hilbert curve.

    Raises:
        InputError: *rows* is something else.
    """

    rows: int = attrs.field(default=8, validator=_positive)

    @rows.validator
    def _check(self, attribute: Any, value: Any) -> None:
        if value & (value - 1) or value > 256:
            raise InputError("Hilbert(rows)", value, "is a power of two up to 256", "use 8")

    def _in_band(self, isa: Isa, by: dict[str, Any], columns: Any, index: Any, short: Any, height: Any) -> Any:
        bits = self.rows.bit_length() - 1
        down, right = super()._in_band(isa, by, columns, index, short, height)
        square = index >> (2 * bits)
        inside, left = index & (self.rows * self.rows - 1), square << bits
        in_square = left + self.rows <= columns
        y, x = _hilbert(isa, bits, inside)

        def pick(curve: Any, otherwise: Any) -> Any:
            return isa.select(short, otherwise, isa.select(in_square, curve, otherwise))

        return pick(y, down), pick(left + x, right)


#: Validator of fields that hold one.
is_raster = must(
    lambda raster: isinstance(raster, Grouped), "is Grouped, Snake, Backwards, Columns or Hilbert", "use Grouped(8)"
)


def _hilbert(isa: Isa, bits: int, index: Any) -> tuple[Any, Any]:
    """(y, x) of point number *index* on the Hilbert curve through a square of 2^bits points a side.

    The curve goes from (0, 0) to (0, 2^bits - 1). It is built from the smallest square up: the curve of the next larger square
    goes through four copies, of which the first is mirrored at the diagonal and the last at the other diagonal.
    """
    x: Any = 0
    y: Any = 0
    for level in range(bits):
        side = 1 << level
        quarter = (index >> (2 * level)) & 3
        first, last = quarter == 0, quarter == 3
        mirrored_x = isa.select(first, y, isa.select(last, side - 1 - y, x))
        mirrored_y = isa.select(first, x, isa.select(last, side - 1 - x, y))
        x = mirrored_x + side * (quarter >> 1)
        y = mirrored_y + side * ((quarter ^ (quarter >> 1)) & 1)
    return y, x


# ---- persistent ------------------------------------------------------------------------------------------------------
#
# The static tile scheduler, and the numbering of tiles that all schedulers share.
#
# A tile scheduler is apart from the bodies: a body is given one `Tile` after another.


@attrs.frozen
class PersistentTiles(TileOrder):
    """Static persistent order: cluster c of C takes the tiles c, c + C, c + 2C, ... of the grid.

    The grid is that of the schedule's output, in units of clusters, rounded up. So a CTA may get tiles that lie wholly
    outside: their loads give zeros, and their stores write nothing.

    Args:
        raster: `Grouped`, `Snake`, `Backwards`, `Columns` or `Hilbert`; numbers the tiles along the last two dimensions, so
            that CTAs at work together share operands in L2. Earlier (batch) dimensions vary slowest.

    Raises:
        InputError: *raster* is something else.
    """

    raster: Grouped = attrs.field(factory=Grouped, validator=is_raster)

    def clusters(self, grid: dict[str, int], cluster: Mapping[str, int]) -> int:
        """As in `TileOrder`."""
        return math.prod(steps_of(grid, cluster).values())

    def divisors(self, grid: dict[str, Any], cluster: Mapping[str, int], clusters: Any) -> dict[str, Any]:
        """As in `TileOrder`."""
        return {"clusters": clusters, **number_divisors(self.raster, steps_of(grid, cluster))}

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        return NumberedTiles(isa, self, grid).at(isa.cluster_id)


class NumberedTiles(TilesOfRole):
    """Tiles whose numbers follow from the position of the calling cluster, once `at` has set that: `count` of them.

    A subclass may set `early`, whether the first tile can be computed while the previous kernel still runs.
    """

    early = True

    def __init__(self, isa: Isa, order: PersistentTiles, grid: dict[str, Any]):
        self.isa, self.order, self.dims = isa, order, tuple(grid)
        self.numbers = TileNumbers(isa, order, order.raster, grid)

    def at(self, position: Any) -> NumberedTiles:
        """Sets the position of the calling cluster, a number below that of clusters."""
        self.position = position
        self.count = self.isa.here(self._count())
        self.first = [self.isa.here(value) for value in self._at(0)] if self.early else []
        return self

    def _count(self) -> Any:
        """How many tiles the cluster has."""
        clusters = self.isa.clusters
        return (self.numbers.total - self.position + clusters - 1) // self.numbers.by["clusters"]

    def number(self, i: Any) -> Any:
        """The number of its *i*-th tile."""
        return self.position + i * self.isa.clusters

    def tile(self, i: Any) -> Tile:
        """The *i*-th tile of the calling CTA."""
        return tile_of(self.isa, self.numbers.coordinates(self.number(i)))

    def each(self, body: Callable[[Tile], None]) -> None:
        """Runs *body* once per tile. The next tile is computed after the body, which has started its loads by then."""
        at = self.isa.cells(*(self.first or self._at(0)))

        def one(i: Any) -> None:
            body(Tile({dim: at[j] for j, dim in enumerate(self.dims)}))
            for j, value in enumerate(self._at(i + 1)):
                at[j] = value

        self.isa.loop(self.count, one)

    def _at(self, i: Any) -> list[Any]:
        """The coordinates of the *i*-th tile."""
        tile = self.tile(i)
        return [tile[dim] for dim in self.dims]

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        """As in `TilesOfRole`."""

        def one(n: Any) -> None:
            first = n * teams + team
            body(self.tile(first))
            for other in range(1, teams):
                skip(self.tile(first + other))

        self.isa.loop(team, lambda i: skip(self.tile(i)))
        self.isa.loop(ceil_div(self.count - team, teams), one)


class TileNumbers(Carried):
    """The tiles of a grid, in units of clusters, numbered from 0 to `total` - 1 by a raster; batch dimensions vary slowest.

    grid: tiles by dimension; by: the divisors of the order, by name.
    """

    def __init__(self, isa: Isa, order: TileOrder, raster: Grouped, grid: dict[str, Any]):
        self.isa, self.raster = isa, raster
        self.by = isa.divisors(order.divisors(grid, isa.plan.cluster, isa.clusters))
        self.steps = steps_of(grid, isa.plan.cluster)
        self.total: Any = 1
        for count in self.steps.values():
            self.total = self.total * count

    def coordinates(self, number: Any) -> dict[str, Any]:
        """The coordinates of tile *number* by dimension, in units of clusters."""
        rest, found = number, dict[str, Any].fromkeys(self.steps, 0)
        outer = list(self.steps)
        if len(outer) > 1:
            *outer, m, n = outer
            if all(isinstance(self.steps[dim], int) and self.steps[dim] == 1 for dim in outer):
                outer = []  # tensors without these dimensions: no division
            batch = 0
            if outer:
                batch, rest = self._divide(rest, "matrix", self.steps[m] * self.steps[n])
            found[m], found[n] = self.raster.coordinates(self.isa, self.by, self.steps[m], self.steps[n], rest)
            rest = batch
        for dim in reversed(outer[1:]):
            rest, found[dim] = self._divide(rest, dim, self.steps[dim])
        if outer:
            found[outer[0]] = rest
        return found

    def _divide(self, value: Any, name: str, by: Any) -> tuple[Any, Any]:
        """Quotient and remainder."""
        quotient = value // self.by[name]
        return quotient, value - quotient * by


def tile_of(isa: Isa, coordinates: dict[str, Any]) -> Tile:
    """The calling CTA's tile, from its cluster's coordinates."""
    cluster = isa.plan.cluster
    return Tile({d: index * cluster.get(d, 1) + cluster_coordinate(isa, d) for d, index in coordinates.items()})


def number_divisors(raster: Grouped, steps: dict[str, Any]) -> dict[str, Any]:
    """The numbers that decoding a tile's number divides by, by name.

    Args:
        steps: The grid by dimension, in units of clusters.
    """
    found = dict(steps)
    if len(steps) > 1:
        m, n = list(steps)[-2:]
        found |= {"matrix": steps[m] * steps[n], **raster.divisors(steps[m], steps[n])}
    return found


def steps_of(grid: dict[str, Any], cluster: Mapping[str, int]) -> dict[str, Any]:
    """The grid in units of clusters, rounded up."""
    return {dim: ceil_div(count, cluster.get(dim, 1)) for dim, count in grid.items()}


# ---- grid ------------------------------------------------------------------------------------------------------------
#
# GridTiles: a cluster for each tile, or for a few, which the hardware starts one after another.


MOST_CTAS, MOST_THREADS = 32, 2048  # of a multiprocessor (CUDA programming guide, sm_80 and sm_90)


@attrs.frozen
class GridTiles(PersistentTiles):
    """Each cluster takes one tile or a few, and the hardware starts clusters in the order of the tiles' numbers as others end.

    Several CTAs share a multiprocessor: one loads while another computes or stores. So rings have few slots (`stages`). For
    kernels that the memory bounds: the tiles in flight lie close together, which keeps few DRAM pages open. What is loaded
    once a CTA is loaded for each cluster's tiles.

    Args:
        raster: Numbers the tiles, as in `PersistentTiles`.
        ctas: CTAs that share a multiprocessor: no more do, shared memory and threads must be enough for so many, and the
            compiler is told to spare registers for them. None: as many as shared memory, registers and threads allow; of
            kernels with wgmma one, which has all registers. Where several of these share them, none sets its own, so
            accumulators are small. Not with `Role(registers=)`, by which one CTA has all.
        each: Tiles next to each other that a cluster takes, one after another: with as many slots, a tile is loaded while one
            before it is computed, and what is loaded once a CTA serves them all.

    Raises:
        InputError: For any other value.
    """

    ctas: int | None = attrs.field(
        default=None, validator=must(optional(is_count), "is a positive number of CTAs", "leave it out")
    )

    each: int = attrs.field(
        default=1,
        validator=must(lambda n: is_count(n) and n < 2**31, "is a positive number of tiles below 2^31", "leave it out"),
    )

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        return _Span(isa, self, grid).at(isa.cluster_id)

    def spans(self, tiles: int) -> int:
        """As in `TileOrder`."""
        return ceil_div(tiles, self.each)

    def launch_numbers(
        self, tiles: int, resident: int, cluster_size: int, gpcs: Callable[[], Sequence[Sequence[int]]]
    ) -> list[int]:
        """As in `TileOrder`."""
        return [self.spans(tiles)]

    def room(self, arch: str) -> int | None:
        """As in `TileOrder`: a share of a multiprocessor's."""
        if self.ctas is None:
            return None
        return (arch_named(arch).smem + SM_RESERVED) // self.ctas // 128 * 128 - SM_RESERVED

    def check_plan(self, plan: Plan) -> None:
        """As in `TileOrder`: so many CTAs find room."""
        room = self.room(plan.arch)
        if self.ctas is None or self.ctas == 1 or room is None:
            return
        if plan.registers:
            rule = "does not go with Role(registers), by which one CTA takes all registers of a multiprocessor"
            raise InputError("GridTiles(ctas)", self.ctas, rule, "leave out one of the two")
        if self.ctas > MOST_CTAS or self.ctas * plan.threads > MOST_THREADS:
            rule = (
                f"are CTAs of {plan.threads} threads; a multiprocessor has {MOST_THREADS} threads and {MOST_CTAS} CTAs"
            )
            raise InputError("GridTiles(ctas)", self.ctas, rule, f"use {min(MOST_CTAS, MOST_THREADS // plan.threads)}")
        if plan.smem_bytes > room:
            most = (plan.target.smem + SM_RESERVED) // (plan.smem_bytes + SM_RESERVED)
            rule = f"are CTAs of {plan.smem_bytes} bytes of shared memory, of which so many have {max(room, 0)} each"
            raise InputError("GridTiles(ctas)", self.ctas, rule, f"use {most}, fewer stages or a smaller tile")

    def smem_bytes(self, plan: Plan) -> int:
        """As in `TileOrder`: so many that no more CTAs fit."""
        room = self.room(plan.arch)
        return plan.smem_bytes if room is None else max(plan.smem_bytes, room)

    def least_ctas(self) -> int:
        """As in `TileOrder`."""
        return self.ctas or 1


class _Span(NumberedTiles):
    """The tiles of a cluster, of which there is one for each span. A single tile takes no loop, so a CTA loads it early."""

    order: GridTiles

    def _count(self) -> Any:
        each, left = self.order.each, self.numbers.total - self.number(0)
        return 1 if each == 1 else self.isa.select(left < each, left, each)

    def number(self, i: Any) -> Any:
        return self.position * self.order.each + i

    def each(self, body: Callable[[Tile], None]) -> None:
        if self.order.each == 1:
            body(Tile(dict(zip(self.dims, self.first, strict=True))))
        else:
            super().each(body)
