"""Static tile schedulers: rasters, and the persistent scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tmapipe.base.arithmetic import Dim, ceil_div
from tmapipe.errors import InputError, is_small, must
from tmapipe.isa.fragment import Carried, Holds, Value
from tmapipe.isa.ops import Isa
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.tile import Tile, cluster_coordinate
from tmapipe.tiles.order import Axis, TileOrder, TilesOfRole

# ---- raster ----------------------------------------------------------------------------------------------------------
#
# Rasters: how the tiles of one output matrix are numbered, so that CTAs at work together share operands in L2.
#
# A raster maps the numbers 0 .. rows * columns - 1, one to one, to (row, column) in a matrix of tiles, in units of
# clusters. (`Triangle` has about half as many numbers, for the tiles at and below the diagonal.) All rasters go through
# the matrix in bands of some rows (or columns), one band after another. They differ in how they go through a band.


_positive = must(is_small, "is a positive number of rows below 2^31", "use 8")


@attrs.frozen
class Grouped:
    """Each band column by column, from the first column to the last.

    Args:
        rows: Rows of a band.

    Raises:
        InputError: *rows* is no positive integer.
    """

    rows: int = attrs.field(default=8, validator=_positive)

    #: Whether only tiles at and below the diagonal of a square matrix are numbered.
    lower = False

    def count(self, rows: Any, columns: Any) -> Any:
        """How many tiles are numbered in a matrix of *rows* x *columns* tiles."""
        return rows * columns

    def divisors(self, rows: Any, columns: Any) -> dict[str, Any]:
        """The numbers by which `coordinates` divides, by name, for a matrix of *rows* x *columns* tiles."""
        if self.rows == 1:
            return {"band": columns}
        return {"band": self.rows * columns, "last rows": (rows - 1) % self.rows + 1}

    def coordinates(self, isa: Isa, by: dict[str, Any], rows: Any, columns: Any, index: Any) -> tuple[Any, Any]:
        """(row, column) of tile number *index* in a matrix of *rows* x *columns* tiles.

        Args:
            isa: The backend that computes the coordinates.
            by: The divisors that `divisors` has named.
            rows: How many rows of tiles the matrix has, in units of clusters.
            columns: How many columns of tiles it has, in units of clusters.
            index: The tile's number, from 0 to `count` - 1.
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
        rows: How many rows a band has.
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


@attrs.frozen
class Triangle(Grouped):
    """The tiles at and below the diagonal of a square matrix, for outputs that are symmetric.

    The triangle is folded to a rectangle of half the width, as in the rectangular full packed format (Gustavson, Wasniewski,
    Dongarra, Langou 2010): what lies right of the middle is transposed and put beside the rest. The rectangle is gone through
    in bands.

    Args:
        rows: Rows of a band.
    """

    lower = True

    def count(self, rows: Any, columns: Any) -> Any:
        high, wide, _ = _folded(rows)
        return high * wide

    def divisors(self, rows: Any, columns: Any) -> dict[str, Any]:
        high, wide, _ = _folded(rows)
        return super().divisors(high, wide)

    def coordinates(self, isa: Isa, by: dict[str, Any], rows: Any, columns: Any, index: Any) -> tuple[Any, Any]:
        high, wide, more = _folded(rows)
        down, right = super().coordinates(isa, by, high, wide, index)
        beside = down < right + more
        row = isa.select(beside, right + wide - 1 + more, down - more)
        return row, isa.select(beside, down + wide, right)


def _folded(rows: Any) -> tuple[Any, Any, Any]:
    """(rows, columns) of the rectangle to which a triangle of *rows* rows is folded, and by how many rows it is larger."""
    more = 1 - rows % 2
    return rows + more, (rows + 1) // 2, more


#: Validators of fields that hold one, of all tiles of an output and of some.
is_raster = must(
    lambda raster: isinstance(raster, Grouped) and not raster.lower,
    "is Grouped, Snake, Backwards, Columns or Hilbert",
    "use Grouped(8)",
)
_is_raster = must(
    lambda raster: isinstance(raster, Grouped),
    "is Grouped, Snake, Backwards, Columns, Hilbert or Triangle",
    "use Grouped(8)",
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

    The grid has the tiles of the schedule's output, in units of clusters, rounded up. So a CTA may get tiles that lie wholly
    outside of the output. Loads of such tiles give zeros, and stores of them write nothing.

    Args:
        raster: `Grouped`, `Snake`, `Backwards`, `Columns` or `Hilbert`. It numbers the tiles along the last two dimensions, so
            that CTAs at work together share operands in L2. Earlier (batch) dimensions vary slowest. `Triangle` leaves out the
            tiles above the diagonal; a cluster's tiles together must then be square.

    Raises:
        InputError: *raster* is something else.
    """

    raster: Grouped = attrs.field(factory=Grouped, validator=_is_raster)

    @property
    def lower(self) -> bool:  # type: ignore[override]
        """As in `TileOrder`."""
        return self.raster.lower

    def check(self, declared: Declarations, axes: Mapping[str, Axis]) -> None:
        """As in `TileOrder`."""
        extents = [axis.elements * declared.cluster.get(dim, 1) for dim, axis in list(axes.items())[-2:]]
        if self.lower and (len(extents) < 2 or len(set(extents)) > 1):
            rule = f"needs clusters whose tiles together are square; they have {' x '.join(map(str, extents))} elements"
            raise InputError("tiles.raster", self.raster, rule, "e.g. a tile of 128 x 256 with cluster (2, 1)")

    def relations(self, declared: Declarations, given: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """As in `TileOrder`. With `Triangle`, the matrix must be square."""
        if not self.lower or not declared.stores:
            return ()
        *_, m, n = next(iter(declared.stores.values())).dims
        return (Dim(n, of=m),)

    def clusters(self, grid: dict[str, int], cluster: Mapping[str, int]) -> int:
        """As in `TileOrder`."""
        return total_of(self.raster, steps_of(grid, cluster))

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
        self.count = self.isa.here(self._count(), "tiles")
        self.first = [self.isa.here(value, "first") for value in self._at(0)] if self.early else []
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
        at = self.isa.cells(*(self.first or self._at(0)), names=" ".join(f"tile.{dim}" for dim in self.dims))

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
    """Tiles of a grid, in units of clusters, numbered from 0 to `total` - 1 by a raster; batch dimensions vary slowest.

    grid: tiles by dimension; by: the divisors of the order, by name.
    """

    def __init__(self, isa: Isa, order: TileOrder, raster: Grouped, grid: dict[str, Any]):
        self.isa, self.raster = isa, raster
        self.by = isa.divisors(order.divisors(grid, isa.plan.cluster, isa.clusters))
        self.steps = steps_of(grid, isa.plan.cluster)
        self.total = total_of(raster, self.steps)

    def coordinates(self, number: Any) -> dict[str, Any]:
        """The coordinates of tile *number* by dimension, in units of clusters."""
        rest, place = number, dict[str, Any].fromkeys(self.steps, 0)
        outer = list(self.steps)
        if len(outer) > 1:
            *outer, m, n = outer
            if all(isinstance(self.steps[dim], int) and self.steps[dim] == 1 for dim in outer):
                outer = []  # tensors without these dimensions: no division
            batch = 0
            if outer:
                batch, rest = self._divide(rest, "matrix", self.raster.count(self.steps[m], self.steps[n]))
            place[m], place[n] = self.raster.coordinates(self.isa, self.by, self.steps[m], self.steps[n], rest)
            rest = batch
        for dim in reversed(outer[1:]):
            rest, place[dim] = self._divide(rest, dim, self.steps[dim])
        if outer:
            place[outer[0]] = rest
        return place

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
    divisors = dict(steps)
    if len(steps) > 1:
        m, n = list(steps)[-2:]
        divisors |= {"matrix": raster.count(steps[m], steps[n]), **raster.divisors(steps[m], steps[n])}
    return divisors


def total_of(raster: Grouped, steps: dict[str, Any]) -> Any:
    """How many tiles of a grid a raster numbers."""
    *outer, m, n = (1, *steps.values()) if len(steps) > 1 else (1, 1, *steps.values())
    total: Any = raster.count(m, n) if len(steps) > 1 else m * n
    for count in outer:
        total = total * count
    return total


def steps_of(grid: dict[str, Any], cluster: Mapping[str, int]) -> dict[str, Any]:
    """The grid in units of clusters, rounded up."""
    return {dim: ceil_div(count, cluster.get(dim, 1)) for dim, count in grid.items()}


def count_entries(isa: Isa, table: str, count: Value, holds: Holds, without_data: int) -> Value:
    """For how many of the first *count* entries of a table ``holds(index, entry)`` is true.

    The lanes of a warp look at one entry each, 32 at a time.

    Args:
        table: The table's name.
        count: How many entries to look at.
        holds: As for `Isa.ballot`.
        without_data: The value of every entry in the check, which has no data.
    """
    counted = isa.cells(0, names="counted")

    def some(i: Value) -> None:
        votes = isa.ballot(table, i * 32, count, holds, without_data)
        counted[0] = counted[0] + votes

    isa.loop((count + 31) // 32, some)
    return isa.here(counted[0])
