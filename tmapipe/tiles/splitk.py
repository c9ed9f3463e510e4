"""SplitKTiles: every output tile in several parts, each of which sums some of the inner steps.

With two tiles of 7 steps and 3 parts:

    part 0   steps 0 1 2 of tile 0, of tile 1
    part 1   steps 3 4 5 of tile 0, of tile 1
    part 2   step 6 of tile 0, of tile 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tmapipe.dim import Dim
from tmapipe.errors import InputError
from tmapipe.fields import IS_NAME, is_count, must
from tmapipe.integers import ceil_div
from tmapipe.isa.interface import Isa
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.tile import Tile, within
from tmapipe.tiles.axes import Axis
from tmapipe.tiles.order import TileOrder, TilesOfRole
from tmapipe.tiles.persistent import PersistentTiles

__all__ = ["PartTiles", "SplitKTiles", "is_number"]

#: Validator of a number of parts.
is_number = must(lambda n: is_count(n) and n < 2**31, "is a positive number below 2^31", "use 4")


@attrs.frozen
class PartTiles(TileOrder):
    """An order of parts of tiles, each of which sums some of the inner steps.

    Args:
        reduce: How parts are added.
        stage: Name of the load stage whose tiles are the steps.
        dim: The dimension along which they are counted.
    """

    reduce: str | None = attrs.field(
        default=None,
        kw_only=True,
        validator=must(lambda reduce: reduce in (None, "add"), 'is None or "add"', 'use "add"'),
    )
    stage: str = attrs.field(default="a", kw_only=True, validator=IS_NAME)
    dim: str = attrs.field(default="k", kw_only=True, validator=IS_NAME)

    in_parts = True
    output_dims = "s "

    def check(self, declared: Declarations, axes: Mapping[str, Axis]) -> None:
        """As in `TileOrder`: it has the steps, and outputs for the parts."""
        if not any(each == self.stage and self.dim in load.dims for each, load in declared.loads.items()):
            rule = f"is a load of {declared.name} and one of its dimensions, whose tiles are the steps"
            name = f"{type(self).__name__}(stage, dim)"
            raise InputError(name, (self.stage, self.dim), rule, "name such a stage and dimension")
        if "s" not in axes:
            rule = "has parts of sums, which are stored along a dimension s of the output, or added to it"
            raise InputError("Schedule.tiles", self, rule, 'e.g. TmaStoreStage("s m n", source=...)')

    def steps(self, isa: Isa) -> Any:
        """The steps of a tile."""
        load = isa.plan.load(self.stage)
        where = load.dims.index(self.dim)
        return ceil_div(isa.extent(load.argument, where), load.tile[where])


@attrs.frozen
class SplitKTiles(PartTiles):
    """An order in which the parts of an output tile are tiles of their own: for outputs of few tiles, and many steps.

    The output has a dimension "s" for the parts, before those of the matrix; of a batch, for the parts of its first matrix,
    then of the second, and so on. A tile's coordinates are s, l (which matrix), m, n, ..., first (its first step) and steps
    (how many; the last parts have fewer, or none).

    Args:
        parts: Of each tile.
        tiles: The order in which the tiles of all parts are taken. With ``GpcTiles()``, the CTAs of a part of up to eight
            clusters are in one GPC.
        reduce: How parts are added. None: a second kernel adds them in a fixed order, so the bits are the same in every run.
            "add": the TMA engine adds them to the output as they arrive, and each addition rounds to the output's type.
        stage: The steps are the tiles of this load ...
        dim: ... along this dimension.
    """

    parts: int = attrs.field(validator=is_number)
    tiles: TileOrder = attrs.field(
        factory=PersistentTiles,
        validator=must(
            lambda order: isinstance(order, TileOrder) and not order.in_parts and not order.bounded,
            "is an order of whole tiles",
            "e.g. GpcTiles()",
        ),
    )

    without_steps = True

    def relations(self, declared: Declarations, given: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """As in `TileOrder`: so many parts of each matrix."""
        if any(dim.name == "s" for dim in given) or not any("s" in store.dims for store in declared.stores.values()):
            return ()
        batch = any("l" in load.dims for load in declared.loads.values())
        return (Dim("s", of="l", times=self.parts) if batch else Dim("s", size=self.parts),)

    @property
    def launch_words(self) -> int:  # type: ignore[override]
        return self.tiles.launch_words

    def launch_numbers(
        self, tiles: int, resident: int, cluster_size: int, gpcs: Callable[[], Sequence[Sequence[int]]]
    ) -> list[int]:
        """As in `TileOrder`."""
        return self.tiles.launch_numbers(tiles, resident, cluster_size, gpcs)

    def pieces(self, tiles: int, steps: int) -> tuple[int, int]:
        """The least and the most parts of a tile, for *tiles* tiles of *steps* steps."""
        return self.parts, self.parts

    def queue(self, dims: int) -> tuple[int, int] | None:
        """As in `TileOrder`."""
        return self.tiles.queue(dims)

    def clusters(self, grid: dict[str, int], cluster: Mapping[str, int]) -> int:
        """As in `TileOrder`."""
        return self.tiles.clusters(grid, cluster)

    def divisors(self, grid: dict[str, Any], cluster: Mapping[str, int], clusters: Any) -> dict[str, Any]:
        """As in `TileOrder`."""
        return self.tiles.divisors(grid, cluster, clusters)

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`; *grid* counts parts."""
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
