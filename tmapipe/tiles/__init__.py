"""Tile schedulers: the orders in which persistent CTAs take output tiles, and the rasters that some of these orders follow.

This file has the schedulers of uneven tiles: of parts of the inner steps (SplitKTiles, StreamKTiles) and of groups of rows
(GroupedTiles).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tmapipe.base.arithmetic import Dim, ceil_div
from tmapipe.errors import IS_NAME, InputError, is_small, must, require
from tmapipe.isa.ops import Isa
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.tile import Tile, cluster_coordinate, within
from tmapipe.tiles.dynamic import DynamicTiles, FetchedTiles, GpcTiles, GridTiles
from tmapipe.tiles.order import MOST_TILES, Axis, ExtentOf, TileOrder, TilesOfRole
from tmapipe.tiles.persistent import (
    Backwards,
    Columns,
    Grouped,
    Hilbert,
    PersistentTiles,
    Snake,
    TileNumbers,
    Triangle,
    count_entries,
    is_raster,
    number_divisors,
    steps_of,
    tile_of,
)

__all__ = [
    "Backwards", "Columns", "DynamicTiles", "GpcTiles", "GridTiles", "Grouped", "GroupedTiles", "Hilbert", "PersistentTiles",
    "Snake", "SplitKTiles", "StreamKTiles", "Triangle",
]  # fmt: skip

# ---- splitk ----------------------------------------------------------------------------------------------------------
#
# SplitKTiles computes every output tile in several parts. Each part sums some of the inner steps.
#
# With two tiles of 7 steps and 3 parts:
#
# part 0   steps 0 1 2 of tile 0, of tile 1
# part 1   steps 3 4 5 of tile 0, of tile 1
# part 2   step 6 of tile 0, of tile 1


#: Validator of a number of parts.
is_number = must(is_small, "is a positive number below 2^31", "use 4")
_adds = must(lambda reduce: reduce in (None, "add"), 'is None or "add"', 'use "add"')
_is_of_whole_tiles = must(
    lambda order: isinstance(order, TileOrder) and not order.in_parts and not order.bounded and not order.lower,
    "is an order of whole tiles",
    "e.g. GpcTiles()",
)


@attrs.frozen
class PartTiles(TileOrder):
    """An order of parts of tiles, each of which sums some of the inner steps.

    Args:
        reduce: How parts are added.
        stage: The name of the load stage whose tiles are the steps.
        dim: The dimension along which the steps are counted.
    """

    reduce: str | None = attrs.field(default=None, kw_only=True, validator=_adds)
    stage: str = attrs.field(default="a", kw_only=True, validator=IS_NAME)
    dim: str = attrs.field(default="k", kw_only=True, validator=IS_NAME)

    in_parts = True
    output_dims = "s "

    def check(self, declared: Declarations, axes: Mapping[str, Axis]) -> None:
        """As in `TileOrder`. The schedule must have the steps, and outputs for the parts."""
        if not any(each == self.stage and self.dim in load.dims for each, load in declared.loads.items()):
            rule = f"must be a load of {declared.name} and one of its dimensions, along which its tiles are the steps"
            name = f"{type(self).__name__}(stage, dim)"
            raise InputError(name, (self.stage, self.dim), rule, "name such a stage and dimension")
        rule = "has parts of sums, which are stored along a dimension s of the output, or added to it"
        require("s" in axes, "Schedule.tiles", self, rule, 'e.g. TmaStoreStage("s m n", source=...)')

    def steps(self, isa: Isa) -> Any:
        """The steps of a tile."""
        load = isa.plan.load(self.stage)
        where = load.dims.index(self.dim)
        return ceil_div(isa.extent(load.argument, where), load.tile[where])


def _inside(name: str) -> Any:
    def method(self: SplitKTiles, *given: Any) -> Any:
        """As in `TileOrder`."""
        return getattr(self.tiles, name)(*given)

    return method


@attrs.frozen
class SplitKTiles(PartTiles):
    """An order in which each output tile is computed in several parts, each a tile by itself. It is for outputs of few tiles
    and many steps.

    The output has a dimension "s" for the parts, before the dimensions of the matrix. In a batch, the parts of the first
    matrix come first, then the parts of the second matrix, and so on. A tile's coordinates are s, l (which matrix), m, n, ...,
    first (its first step) and steps (how many; the last parts have fewer, or none).

    Args:
        parts: How many parts each tile has.
        tiles: The order in which the tiles of all parts are taken. With ``GpcTiles()``, the CTAs of a part of up to eight
            clusters are in one GPC.
        reduce: How parts are added. None: a second kernel adds them in a fixed order, so the bits are the same in every run.
            "add": the TMA engine adds them to the output as they arrive, and each addition rounds to the output's type.
        stage: The name of the load stage whose tiles are the steps.
        dim: The dimension along which the steps are counted.
    """

    parts: int = attrs.field(validator=is_number)
    tiles: TileOrder = attrs.field(factory=PersistentTiles, validator=_is_of_whole_tiles)

    without_steps = True

    def relations(self, declared: Declarations, given: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """As in `TileOrder`: the extent of "s" is `parts` for each matrix."""
        if any(dim.name == "s" for dim in given) or not any("s" in store.dims for store in declared.stores.values()):
            return ()
        batch = any("l" in load.dims for load in declared.loads.values())
        return (Dim("s", of="l", times=self.parts) if batch else Dim("s", size=self.parts),)

    @property
    def launch_words(self) -> int:  # type: ignore[override]
        return self.tiles.launch_words

    def pieces(self, tiles: int, steps: int) -> tuple[int, int]:
        """The least and the most parts of a tile, for *tiles* tiles of *steps* steps."""
        return self.parts, self.parts

    # These are the same as in the order inside, `tiles`.
    launch_numbers, spans, queue, clusters, divisors, room, check_plan, smem_bytes, least_ctas = map(
        _inside,
        ["launch_numbers", "spans", "queue", "clusters", "divisors", "room", "check_plan", "smem_bytes", "least_ctas"],
    )

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`. *grid* counts parts as tiles."""
        return PartsOfRole(isa, self, self.tiles.bind(isa, grid, role))


class PartsOfRole(TilesOfRole):
    """The calling CTA's parts of *tiles*."""

    order: SplitKTiles

    def __init__(self, isa: Isa, order: SplitKTiles, tiles: TilesOfRole):
        self.isa, self.order, self.tiles = isa, order, tiles

    def begin(self) -> None:
        """As in `TilesOfRole`."""
        self.tiles.begin()

    def each(self, body: Callable[[Tile], None]) -> None:
        """As in `TilesOfRole`."""
        self.tiles.each(lambda tile: body(self._part(tile)))

    def finish(self) -> None:
        """As in `TilesOfRole`."""
        self.tiles.finish()

    def _part(self, tile: Tile) -> Tile:
        """The tile with its steps: every part has the same number, except the last ones."""
        isa, steps = self.isa, self.order.steps(self.isa)
        most = ceil_div(steps, self.order.parts)
        matrix = tile.s // self.order.parts
        first = (tile.s - matrix * self.order.parts) * most
        return tile.also(l=matrix, first=first, steps=within(isa, steps - first, most))


# ---- streamk ---------------------------------------------------------------------------------------------------------
#
# StreamKTiles puts the inner steps of all output tiles in one long row, and cuts the row into equal shares.
#
# With three tiles of 8 steps and 4 shares of 6:
#
# tile    0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1 2 2 2 2 2 2 2 2
# share   0 0 0 0 0 0|1 1 1 1 1 1|2 2 2 2 2 2|3 3 3 3 3 3
#
# So no CTA idles when the number of tiles is no multiple of the number of CTAs. A share has some whole tiles and up
# to two pieces of tiles. The pieces of one tile are partial sums.


@attrs.frozen
class StreamKTiles(PartTiles):
    """Stream-K order: each cluster takes one share, or several consecutive shares.

    The output has a dimension "s" for the pieces of a tile, before the dimensions of the matrix. A tile's coordinates are s
    (which piece), l (0), m, n, ..., first (its first step) and steps (how many). If s has extent 1, everything is one share.

    Args:
        raster: As in `PersistentTiles`.
        shares: How many shares there are: as many as clusters that work at once, e.g. 66 for clusters of two on 132
            multiprocessors.
        stage: The name of the load stage whose tiles are the steps.
        dim: The dimension along which the steps are counted.
        reduce: How pieces are added, as in `SplitKTiles`.
    """

    raster: Grouped = attrs.field(factory=Grouped, validator=is_raster)
    shares: int = attrs.field(kw_only=True, validator=is_number)

    @property
    def parts(self) -> int:
        """The most pieces that a tile can have."""
        return self.shares

    def clusters(self, grid: dict[str, int], cluster: Mapping[str, int]) -> int:
        """As in `TileOrder`: one per share."""
        return self.shares

    def pieces(self, tiles: int, steps: int) -> tuple[int, int]:
        """The least and the most pieces of a tile, for *tiles* tiles (in units of clusters) of *steps* steps.

        The boundaries of shares are ceil(tiles * steps / shares) steps apart.

        Raises:
            InputError: There are more steps than a kernel can number.
        """
        rule = f"are too many: numbers of a kernel have 32 bits, so there are at most {MOST_TILES}"
        require(tiles * steps <= MOST_TILES, "steps of all tiles", tiles * steps, rule, "use larger tiles, or SplitK")
        least = ceil_div(steps, max(1, ceil_div(tiles * steps, self.shares)))
        return least, least + 1

    def divisors(self, grid: dict[str, Any], cluster: Mapping[str, int], clusters: Any) -> dict[str, Any]:
        """As in `TileOrder`."""
        return number_divisors(self.raster, steps_of(_without_shares(grid), cluster))

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        return PiecesOfRole(isa, self, grid)


class PiecesOfRole(TilesOfRole):
    """The calling CTA's pieces of tiles."""

    def __init__(self, isa: Isa, order: StreamKTiles, grid: dict[str, Any]):
        self.isa, self.order = isa, order
        self.numbers = TileNumbers(isa, order, order.raster, _without_shares(grid))
        steps = order.steps(isa)
        self.total = self.numbers.total * steps
        self.steps = isa.select(steps > 0, steps, 1)  # of a tile; to divide by
        most = self._least(order.shares, self.numbers.total * grid["s"])
        self.shares = isa.select(grid["s"] == 1, 1, most)
        size = ceil_div(self.total, self.shares)  # of a share, in steps; the last ones may be smaller
        self.size = isa.select(size > 0, size, 1)

    def each(self, body: Callable[[Tile], None]) -> None:
        """As in `TilesOfRole`."""
        isa = self.isa
        first, last = (c * self.shares // isa.clusters for c in (isa.cluster_id, isa.cluster_id + 1))
        end = self._least(last * self.size, self.total)
        at = isa.cells(first * self.size)
        start = at[0]
        cuts = (end - 1) // self.steps - start // self.steps + (end - 1) // self.size - start // self.size

        def piece() -> None:
            tile, after = self._piece(at[0], end)
            at[0] = after
            body(tile)

        # A tile and a share may end at the same step. That is one cut, not two, so there is one piece less.
        isa.loop(isa.select(start < end, cuts + 1, 0), lambda i: isa.when(at[0] < end, piece))

    def _piece(self, start: Any, end: Any) -> tuple[Tile, Any]:
        """The piece that begins with step *start*, and the step after it, at most *end*."""
        number, share = start // self.steps, start // self.size
        begins = number * self.steps
        which = share - begins // self.size
        after = self._least(self._least(begins + self.steps, (share + 1) * self.size), end)
        tile = tile_of(self.isa, self.numbers.coordinates(number))
        coordinates = {dim: tile[dim] for dim in self.numbers.steps}
        return Tile({"s": which, "l": 0, **coordinates, "first": start - begins, "steps": after - start}), after

    def _least(self, a: Any, b: Any) -> Any:
        return self.isa.select(a < b, a, b)


def _without_shares(grid: dict[str, Any]) -> dict[str, Any]:
    return {dim: count for dim, count in grid.items() if dim != "s"}


# ---- grouped ---------------------------------------------------------------------------------------------------------
#
# GroupedTiles takes the output tiles of groups of rows, one group after another. Only the device knows their sizes.
#
# A table says where the rows of each group end. Tiles begin where their group begins, so the last tile of a group may
# reach over into the next group::
#
# rows     0 1 2 3 4 5 6 7 8 9 ...          tiles of 4 rows, in the order of their numbers:
# group    0 0 0 0 0 0|1 1 1|3 3 ...        0: 0-3    1: 4-5    2: 6-8    (3: none)    4: 9-...
#
# The host still knows how many numbers there are. With tiles of r rows, group g gets the numbers from
# ``floor((start + g (r - 1)) / r)`` on. That is always enough, and at most one too many, which is skipped.
#
# Finding a tile takes several reads of the table, one after another. A scheduler warp finds tiles ahead, and tells the
# other warps. It takes the numbers of tiles from a counter. If each cluster had a fixed set of numbers instead, clusters
# whose numbers are skipped would have less to do.


WHERE = ("n", "l", "row", "left")  # of a cluster's tile: along n, its group, first row, rows up to the end of the group
LARGEST = 2**31 - 1  # every entry of the table in the machine without data


@attrs.frozen
class GroupedTiles(PersistentTiles):
    """Dynamic order of tiles that each belong to one group of rows. All CTAs of a cluster work on one group.

    A tile's coordinates are n and l (its group). Its bounds along m are its first row, and how many rows there are up to the
    end of the group. That may be more rows than the tile has, or none.

    Args:
        raster: As in `PersistentTiles`.
        rows: How many rows an output tile has; a `Gemm` sets it.
        table: The name of the `Table` that says where the rows of each group end, in order.
        output: The name of the store whose rows are grouped; it has the dimensions m and n.
    """

    rows: int | None = attrs.field(default=None, kw_only=True)
    table: str = attrs.field(default="offsets", kw_only=True, validator=IS_NAME)
    output: str = attrs.field(default="d", kw_only=True, validator=IS_NAME)

    bounded = ("m",)
    input_dims = output_dims = ""

    def of_rows(self, rows: int) -> GroupedTiles:
        """This order for output tiles of *rows* rows along m. Raises `InputError` if it has another number."""
        if self.rows not in (None, rows):
            rule = f"must be the rows of the output tile, {rows}"
            raise InputError("GroupedTiles(rows)", self.rows, rule, "leave it out")
        return attrs.evolve(self, rows=rows)

    def check(self, declared: Declarations, axes: Mapping[str, Axis]) -> None:
        """As in `TileOrder`."""
        if self.table not in declared.tables:
            rule = f"names a table of {declared.name} ({', '.join(declared.tables) or 'it has none'})"
            raise InputError("GroupedTiles(table)", self.table, rule, f'declare {self.table} = Table("l")')
        if len(dims := declared.tables[self.table].dims) > 1:
            rule = "names a table of one dimension"
            raise InputError("GroupedTiles(table)", " ".join(dims), rule, 'e.g. Table("l")')
        if set(axes) != {"m", "n"}:
            rule = "is an order of the tiles of a matrix with dimensions m and n"
            raise InputError("Schedule.tiles", self, rule, f"rename {', '.join(axes)}, or use another order")
        if self.output not in declared.stores or declared.stores[self.output].dims[0] != "m":
            rule = f"names a store of {declared.name} whose first dimension is m"
            raise InputError("GroupedTiles(output)", self.output, rule, f"one of {', '.join(declared.stores)}")
        if self.rows != axes["m"].elements:
            rule = f"is the number of rows of an output tile, {axes['m'].elements}"
            raise InputError("GroupedTiles(rows)", self.rows, rule, f"pass rows={axes['m'].elements}")

    def unit(self, cluster: Mapping[str, int]) -> int:
        """Rows of a cluster."""
        assert self.rows is not None
        return self.rows * cluster.get("m", 1)

    def grid(self, axes: dict[str, Axis], extent: ExtentOf, cluster: Mapping[str, int]) -> dict[str, Any]:
        """As in `TileOrder`. Some numbers along m stand for no tile."""
        rows, groups = extent(self.output, 0), extent(self.table, 0)
        return {**super().grid(axes, extent, cluster), "m": self.spread(rows, groups, cluster)}

    def spread(self, rows: Any, groups: Any, cluster: Mapping[str, int]) -> Any:
        """How many numbers of tiles along m, a multiple of the cluster, *rows* rows in *groups* groups take."""
        unit = self.unit(cluster)
        return (rows + groups * (unit - 1)) // unit * cluster.get("m", 1)

    def queue(self, dims: int) -> tuple[int, int]:
        """As in `TileOrder`. The words say whether there is a tile, and `WHERE` it is."""
        return 2, 1 + len(WHERE)

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        return TilesOfGroups(isa, self, grid, role, WHERE)


class TilesOfGroups(FetchedTiles):
    """The tiles of the calling warp's cluster that have rows.

    The scheduler's state, in a register: the number that the cluster takes next if the clusters take turns, as in the machine.
    """

    order: GroupedTiles

    def __init__(self, isa: Isa, order: GroupedTiles, grid: dict[str, Any], *role: Any):
        super().__init__(isa, order, grid, *role)
        self.unit = order.unit(isa.plan.cluster)
        self.number = isa.cells(isa.cluster_id)

    def _fetch(self) -> Sequence[Any]:
        """Finds the next tile with rows."""
        isa = self.isa
        there_is, searching, at = isa.cells(0), isa.cells(1), isa.cells(*[0] * len(self.dims))

        def look() -> None:
            number = self._take()
            place = self._place(number)
            there_is[0] = isa.select(number < self.numbers.total, 1, 0)
            searching[0] = isa.select(place["left"] > 0, 0, there_is[0])
            for j, dim in enumerate(self.dims):
                at[j] = place[dim]
            self.number[0] = self.number[0] + isa.clusters

        isa.loop_while(searching, look, lambda: 1)
        return (there_is[0], *(at[j] for j in range(len(self.dims))))

    def _number_in_turn(self) -> Any:
        return self.number[0]

    def _place(self, number: Any) -> dict[str, Any]:
        """Where the cluster's tile of this number lies. `left` says how many rows it has; if `left` is 0 or less, there is no
        tile."""
        isa, unit, table = self.isa, self.unit, self.order.table
        coordinates = self.numbers.coordinates(number)
        along_m, groups = coordinates["m"], isa.extent(table, 0)
        begun = count_entries(
            isa, table, groups - 1, lambda g, end: self._row(end) + (g + 1) * (unit - 1) < (along_m + 1) * unit, LARGEST
        )
        end = self._row(isa.load_entry(table, begun, LARGEST))
        before = isa.load_entry(table, isa.select(begun > 0, begun - 1, 0), LARGEST)
        start = isa.select(begun > 0, self._row(before), 0)
        row = start + (along_m - (start + begun * (unit - 1)) // unit) * unit
        return {"n": coordinates["n"], "l": begun, "row": row, "left": end - row}

    def _tile(self) -> Tile:
        isa, cluster = self.isa, self.isa.plan.cluster
        n, group, row, left = (self.words[1 + i] for i in range(len(self.dims)))
        offset = cluster_coordinate(isa, "m") * (self.unit // cluster.get("m", 1))
        across = n * cluster.get("n", 1) + cluster_coordinate(isa, "n")
        values = {"n": across, "l": group, "row": row + offset, "rows": left - offset}
        return Tile(values, {"m": (values["row"], values["rows"])})

    def _row(self, entry: Any) -> Any:
        """An entry of the table, within the tensor."""
        return within(self.isa, entry, self.isa.extent(self.order.output, 0))

    # ---- in the machine without data, all rows are of the first group ---------------------------------------------

    def _has_rows(self, number: Any) -> Any:
        """Whether the tile of this number has rows."""
        return self.numbers.coordinates(number)["m"] * self.unit < self.isa.extent(self.order.output, 0)

    def _without_data(self) -> Sequence[Any]:
        """The words of the next slot: of the cluster's first tile with rows, after the tiles that it has read."""
        isa, total = self.isa, self.numbers.total
        going, left, number = isa.cells(1), isa.cells(self.read[0]), isa.cells(isa.cluster_id)

        def look() -> None:
            over = number[0] >= total
            rows = isa.select(over, 0, isa.select(self._has_rows(number[0]), 1, 0))
            group = isa.select(left[0] == 0, rows, 0)
            going[0] = isa.select(over, 0, 1 - group)
            left[0] = left[0] - rows
            number[0] = isa.select(going[0] == 1, number[0] + isa.clusters, number[0])

        isa.loop_while(going, look)
        there_is, at = isa.select(number[0] < total, 1, 0), self.numbers.coordinates(number[0])
        return tuple(there_is * word for word in (1, at["n"], 0, at["m"] * self.unit, LARGEST))

    def _turns(self, team: Any, teams: int) -> Any:
        """As in `FetchedTiles`."""
        isa = self.isa
        count = isa.cells(0)

        def look(i: Any) -> None:
            number = isa.cluster_id + i * isa.clusters
            count[0] = count[0] + isa.select(self._has_rows(number), 1, 0)

        isa.loop((self.numbers.total - isa.cluster_id + isa.clusters - 1) // isa.clusters, look)
        turns = (count[0] - team + teams - 1) // teams
        return isa.select(turns > 0, turns, 0)
