"""GroupedTiles: the output tiles of groups of rows, one group after another, whose sizes only the device knows.

A table says where the rows of each group end. Tiles begin where their group begins, so the last tile of a group may reach over
into the next group::

    rows     0 1 2 3 4 5 6 7 8 9 ...          tiles of 4 rows, in the order of their numbers:
    group    0 0 0 0 0 0|1 1 1|3 3 ...        0: 0-3    1: 4-5    2: 6-8    (3: none)    4: 9-...

The host still knows how many numbers there are. With tiles of r rows, group g gets the numbers from
``floor((start + g (r - 1)) / r)`` on. That is always enough, and at most one too many, which is skipped.

Finding a tile takes several reads of the table, one after another. A scheduler warp does that ahead, and tells the others. It
takes numbers from a counter: shared out beforehand, those that are skipped would leave some clusters with less to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import IS_NAME
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Condition, Value
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.cluster import cluster_coordinate
from tmapipe.protocol.tile import Tile, within
from tmapipe.tiles.axes import Axis
from tmapipe.tiles.dynamic import FetchedTiles
from tmapipe.tiles.order import TilesOfRole
from tmapipe.tiles.persistent import PersistentTiles

__all__ = ["GroupedTiles", "count_entries"]

WHERE = ("n", "l", "row", "left")  # of a cluster's tile: along n, its group, first row, rows up to the end of the group
LARGEST = 2**31 - 1  # every entry of the table in the machine without data


@attrs.frozen
class GroupedTiles(PersistentTiles):
    """Dynamic order of tiles that each belong to one group of rows. All CTAs of a cluster work on one group.

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

    def queue(self, dims: int) -> tuple[int, int]:
        """As in `TileOrder`. The words: whether there is a tile, and `WHERE`."""
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
            found = self._place(number)
            there_is[0] = isa.select(number < self.numbers.total, 1, 0)
            searching[0] = isa.select(found["left"] > 0, 0, there_is[0])
            for j, dim in enumerate(self.dims):
                at[j] = found[dim]
            self.number[0] = self.number[0] + isa.clusters

        isa.loop_while(searching, look, lambda: 1)
        return (there_is[0], *(at[j] for j in range(len(self.dims))))

    def _number_in_turn(self) -> Any:
        return self.number[0]

    def _place(self, number: Any) -> dict[str, Any]:
        """Where the cluster's tile of this number lies. `left` is how many rows it has; 0 or less: none."""
        isa, unit, table = self.isa, self.unit, self.order.table
        coordinates = self.numbers.coordinates(number)
        along_m, groups = coordinates["m"], isa.extent(table, 0)
        begun = count_entries(
            isa,
            table,
            groups - 1,
            lambda g, end: self._row(end) + (g + 1) * (unit - 1) < (along_m + 1) * unit,
            LARGEST,
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
        """Of a number of a tile: whether the tile has rows."""
        return self.numbers.coordinates(number)["m"] * self.unit < self.isa.extent(self.order.output, 0)

    def _without_data(self) -> Sequence[Any]:
        """What the next slot holds: of the cluster's numbers, the first one with rows after those that were read."""
        isa, total = self.isa, self.numbers.total
        going, left, number = isa.cells(1), isa.cells(self.read[0]), isa.cells(isa.cluster_id)

        def look() -> None:
            over = number[0] >= total
            rows = isa.select(over, 0, isa.select(self._has_rows(number[0]), 1, 0))
            found = isa.select(left[0] == 0, rows, 0)
            going[0] = isa.select(over, 0, 1 - found)
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


def count_entries(
    isa: Isa, table: str, count: Value, holds: Callable[[Value, Value], Condition], without_data: int
) -> Value:
    """For how many of the first *count* entries of a table ``holds(index, entry)`` is true.

    The lanes of a warp look at one entry each, 32 at a time.

    Args:
        table: Its name.
        count: Entries to look at.
        holds: As of `Isa.ballot`.
        without_data: What every entry is in the check, which has no data.
    """
    found = isa.cells(0)

    def some(i: Value) -> None:
        votes = isa.ballot(table, i * 32, count, holds, without_data)
        found[0] = found[0] + votes

    isa.loop((count + 31) // 32, some)
    return isa.here(found[0])
