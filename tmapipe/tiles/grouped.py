"""GroupedTiles: the output tiles of groups of rows, one group after another, whose sizes only the device knows.

A table says where the rows of each group end. Tiles begin where their group begins, so the last tile of a group may reach over
into the next group::

    rows     0 1 2 3 4 5 6 7 8 9 ...          tiles of 4 rows, in the order of their numbers:
    group    0 0 0 0 0 0|1 1 1|3 3 ...        0: 0-3    1: 4-5    2: 6-8    (3: none)    4: 9-...

The host still knows how many numbers there are. With tiles of r rows, group g gets the numbers from
``floor((start + g (r - 1)) / r)`` on. That is always enough, and at most one too many, which is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import IS_NAME
from tmapipe.integers import ceil_div
from tmapipe.isa.interface import Isa
from tmapipe.plan.declarations import Declarations
from tmapipe.protocol.cluster import cluster_coordinate
from tmapipe.protocol.tile import Tile, within
from tmapipe.tiles.axes import Axis
from tmapipe.tiles.counting import count_entries
from tmapipe.tiles.persistent import BoundTiles, PersistentTiles

__all__ = ["GroupedTiles"]

LARGEST = 2**31 - 1  # every entry of the table in the machine without data


@attrs.frozen
class GroupedTiles(PersistentTiles):
    """Static persistent order of tiles that each belong to one group of rows. All CTAs of a cluster work on one group.

    A tile's coordinates are n and l (its group). Its bounds along m are its first row, and how many rows there are up to the
    end of the group: maybe more than the tile has, or none.

    Args:
        raster: As in `PersistentTiles`.
        rows: Of an output tile; a `Gemm` sets them.
        table: Names the `Table` of where the rows of each group end, in order.
        output: Names the store with dimensions m and n whose rows they are.
    """

    rows: int | None = attrs.field(default=None, kw_only=True)
    table: str = attrs.field(default="offsets", kw_only=True, validator=IS_NAME)
    output: str = attrs.field(default="d", kw_only=True, validator=IS_NAME)

    bounded = ("m",)
    input_dims = output_dims = ""

    def of_rows(self, rows: int) -> GroupedTiles:
        """This order for output tiles of *rows* rows along m. Raises `InputError` if it has another number."""
        if self.rows not in (None, rows):
            raise InputError("GroupedTiles(rows)", self.rows, f"is that of the output tile, {rows}", "leave it out")
        return attrs.evolve(self, rows=rows)

    def check(self, declared: Declarations, axes: Mapping[str, Axis]) -> None:
        """As in `TileOrder`."""
        if self.table not in declared.tables:
            rule = f"names a table of {declared.name} ({', '.join(declared.tables) or 'it has none'})"
            raise InputError("GroupedTiles(table)", self.table, rule, f'declare {self.table} = Table("l")')
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

    def grid(
        self, axes: dict[str, Axis], extent: Callable[[str, int], Any], cluster: Mapping[str, int]
    ) -> dict[str, Any]:
        """As in `TileOrder`. Some numbers along m stand for no tile."""
        rows, groups = extent(self.output, 0), extent(self.table, 0)
        return {**super().grid(axes, extent, cluster), "m": self.spread(rows, groups, cluster)}

    def spread(self, rows: Any, groups: Any, cluster: Mapping[str, int]) -> Any:
        """How many numbers of tiles along m, a multiple of the cluster, *rows* rows in *groups* groups take."""
        unit = self.unit(cluster)
        return (rows + groups * (unit - 1)) // unit * cluster.get("m", 1)

    def bind(self, isa: Isa, grid: dict[str, Any]) -> Any:
        """This order on the calling CTA, for a grid of *grid* tiles a dimension, of which those along m are `spread`."""
        return BoundGroupedTiles(isa, self, grid).at(isa.cluster_id)


class BoundGroupedTiles(BoundTiles):
    """The calling CTA's tiles.

    Nothing is known of them before the table may be read. Tiles without rows, on all CTAs of the cluster, are skipped.
    """

    order: GroupedTiles
    coordinates = ("n", "l", "row", "rows", "left")
    early = False

    def _take(self, tile: Tile, body: Callable[[Tile], None]) -> None:
        self.isa.when(tile.left > 0, lambda: body(tile))

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        """Of the tiles that have rows, runs *body* for every *teams*-th from number *team* on, and *skip* for the others."""
        isa = self.isa
        between = isa.cells(team)  # tiles of other teams that come first
        number, there_is, searching = isa.cells(-1), isa.cells(0), isa.cells(0)
        at = isa.cells(*[0] * len(self.dims))

        def look() -> None:
            number[0] = number[0] + 1
            tile = self.tile(number[0])
            for j, dim in enumerate(self.dims):
                at[j] = tile[dim]
            there_is[0] = isa.select(number[0] < self.count, 1, 0)
            searching[0] = isa.select(tile.left > 0, 0, there_is[0])

        def find() -> None:
            """Goes on to the next tile that has rows."""
            searching[0] = 1
            isa.loop_while(searching, look, lambda: 1)

        def run(what: Callable[[Tile], None]) -> None:
            what(self._made({dim: at[j] for j, dim in enumerate(self.dims)}))
            find()

        def one() -> None:
            for i in range(teams - 1):
                isa.when((between[0] > i) & (there_is[0] != 0), lambda: run(skip))
            between[0] = teams - 1
            isa.when(there_is[0] != 0, lambda: run(body))

        find()
        isa.loop_while(there_is, one, lambda: int(ceil_div(self.count - team, teams)))

    def _made(self, values: dict[str, Any]) -> Tile:
        return Tile(values, {"m": (values["row"], values["rows"])})

    def tile(self, i: Any) -> Tile:
        """The *i*-th tile of the calling CTA. Its `left` is how many rows its cluster has; 0 or less: none."""
        isa, unit, table = self.isa, self.order.unit(self.isa.plan.cluster), self.order.table
        coordinates = self.numbers.coordinates(self.position + i * isa.clusters)
        number, groups = coordinates["m"], isa.extent(table, 0)
        begun = count_entries(
            isa,
            table,
            groups - 1,
            lambda g, end: self._row(end) + (g + 1) * (unit - 1) < (number + 1) * unit,
            LARGEST,
        )
        end = self._row(isa.load_entry(table, begun, LARGEST))
        before = isa.load_entry(table, isa.select(begun > 0, begun - 1, 0), LARGEST)
        start = isa.select(begun > 0, self._row(before), 0)
        row = start + (number - (start + begun * (unit - 1)) // unit) * unit
        left = end - row
        offset = cluster_coordinate(isa, "m") * (unit // isa.plan.cluster.get("m", 1))
        n = coordinates["n"] * isa.plan.cluster.get("n", 1) + cluster_coordinate(isa, "n")
        return self._made({"n": n, "l": begun, "row": row + offset, "rows": left - offset, "left": left})

    def _row(self, entry: Any) -> Any:
        """An entry of the table, within the tensor."""
        return within(self.isa, entry, self.isa.extent(self.order.output, 0))
