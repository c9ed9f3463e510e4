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

from tmapipe.errors import InputError
from tmapipe.fields import IS_NAME
from tmapipe.integers import ceil_div
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.tile import Tile, within
from tmapipe.tiles.axes import Axis
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.persistent import PersistentTiles

__all__ = ["SplitKTiles", "check_parts", "check_reduce"]


def check_reduce(order: Any, attribute: Any, value: Any) -> None:
    """Raises `InputError` unless *value* says how parts are added."""
    if value is not None and not (isinstance(value, str) and value == "add"):
        raise InputError(f"{type(order).__name__}(reduce)", value, 'is None or "add"', 'use "add"')


def check_parts(order: Any, declared: Declarations, axes: Mapping[str, Axis]) -> None:
    """Raises `InputError` unless a schedule has the steps that *order* divides, and outputs for the parts."""
    name = type(order).__name__
    if not any(each == order.stage and order.dim in load.dims for each, load in declared.loads.items()):
        rule = f"is a load of {declared.name} and one of its dimensions, whose tiles are the steps"
        raise InputError(f"{name}(stage, dim)", (order.stage, order.dim), rule, "name such a stage and dimension")
    if "s" not in axes:
        rule = "has parts of sums, which are stored along a dimension s of the output, or added to it"
        raise InputError("Schedule.tiles", order, rule, 'e.g. TmaStoreStage("s m n", source=...)')


@attrs.frozen
class SplitKTiles(TileOrder):
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

    parts: int = attrs.field()
    tiles: TileOrder = attrs.field(factory=PersistentTiles)
    reduce: str | None = attrs.field(default=None, kw_only=True, validator=check_reduce)
    stage: str = attrs.field(default="a", kw_only=True, validator=IS_NAME)
    dim: str = attrs.field(default="k", kw_only=True, validator=IS_NAME)

    for_teams = False
    in_parts = True
    without_steps = True
    output_dims = "s "

    @parts.validator
    def _check_parts(self, attribute: Any, value: Any) -> None:
        if not isinstance(value, int) or not 1 <= value < 2**31:
            raise InputError("SplitKTiles(parts)", value, "is a positive number of parts below 2^31", "use 4")

    @tiles.validator
    def _check_tiles(self, attribute: Any, value: Any) -> None:
        if not isinstance(value, TileOrder) or value.in_parts or value.bounded:
            raise InputError("SplitKTiles(tiles)", value, "is an order of whole tiles", "e.g. GpcTiles()")

    def check(self, declared: Declarations, axes: Mapping[str, Axis]) -> None:
        """As in `TileOrder`."""
        check_parts(self, declared, axes)

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

    def bind(self, isa: Isa, grid: dict[str, Any]) -> Any:
        """This order on the calling CTA, for a grid of *grid* tiles, parts among them."""
        return BoundParts(isa, self, self.tiles.bind(isa, grid))


class BoundParts(Carried):
    """The calling CTA's parts of tiles."""

    def __init__(self, isa: Isa, order: SplitKTiles, tiles: Any):
        self.isa, self.order, self.tiles = isa, order, tiles

    def of(self, role: RoleWarps) -> BoundParts:
        """The parts as *role* takes them."""
        return BoundParts(self.isa, self.order, self.tiles.of(role))

    def begin(self) -> None:
        """As of the order that the tiles come in."""
        self.tiles.begin()

    def each(self, body: Callable[[Tile], None]) -> None:
        """Runs *body* once per part."""
        self.tiles.each(lambda tile: body(self._part(tile)))

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        raise InputError("SplitKTiles", teams, "gives parts to whole CTAs, not to teams", "use a role of one team")

    def finish(self) -> None:
        """After the last part."""
        self.tiles.finish()

    def _part(self, tile: Tile) -> Tile:
        """The tile with its steps: every part has the same number, except the last ones."""
        isa, load = self.isa, self.isa.plan.load(self.order.stage)
        where = load.dims.index(self.order.dim)
        steps = ceil_div(isa.extent(load.argument, where), load.tile[where])
        most = ceil_div(steps, self.order.parts)
        matrix = tile.s // self.order.parts
        first = (tile.s - matrix * self.order.parts) * most
        return tile.also(l=matrix, first=first, steps=within(isa, steps - first, most))
