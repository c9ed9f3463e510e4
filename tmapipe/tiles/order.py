"""TileOrder: what a tile scheduler supplies for planning, launching and running; TilesOfRole: the tiles of one warp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tmapipe.dim import Dim
from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.model import Plan, RoleWarps
from tmapipe.protocol.tile import Tile
from tmapipe.tiles.axes import Axis

__all__ = ["TileOrder", "TilesOfRole"]


class TileOrder:
    """Base of the tile schedulers."""

    launch_words = 0  #: words that a launch hands to the kernel besides the number of clusters
    bounded: tuple[str, ...] = ()  #: dimensions along which its tiles have bounds of their own
    in_parts = False  #: whether its tiles are parts of a sum, which something else has to add; they are for no teams
    without_steps = False  #: whether some of these parts may have no steps
    table: str | None = None  #: the name of the `Table` that it reads
    input_dims = output_dims = "l "  #: a GEMM's dimensions before m, of what has its rows: inputs, and outputs

    def of_rows(self, rows: int) -> TileOrder:
        """This order for output tiles of *rows* rows along m."""
        return self

    def relations(self, declared: Declarations, given: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """What its tiles say of extents, besides what the schedule has *given*."""
        return ()

    def check(self, declared: Declarations, axes: Mapping[str, Axis]) -> None:
        """Raises `InputError` for a schedule that cannot take its tiles, of a grid with these axes."""

    def grid(
        self, axes: dict[str, Axis], extent: Callable[[str, int], Any], cluster: Mapping[str, int]
    ) -> dict[str, Any]:
        """Numbers of tiles by dimension.

        Args:
            axes: The dimensions of the grid.
            extent: Of a tensor's i-th dimension (elements), on the host or in the kernel.
            cluster: CTAs by dimension.
        """
        return {dim: ceil_div(extent(axis.stage, axis.place), axis.elements) for dim, axis in axes.items()}

    def queue(self, dims: int) -> tuple[int, int] | None:
        """(slots, 32-bit words per slot) of the queue of a scheduler warp, for *dims* dimensions; None without one."""
        return None

    def launch_numbers(
        self, tiles: int, resident: int, cluster_size: int, gpcs: Callable[[], Sequence[Sequence[int]]]
    ) -> list[int]:
        """How many clusters to launch, then `launch_words` words for the kernel.

        Args:
            tiles: Clusters that can work at once, as `clusters` says.
            resident: Clusters that fit on the device at once.
            cluster_size: CTAs of a cluster.
            gpcs: Tells the device's multiprocessors by GPC.
        """
        return [min(tiles, resident)]

    def spans(self, tiles: int) -> int | None:
        """How many clusters run, for so many that can work at once, if the order says that; None: any number of them share
        the tiles."""
        return None

    def room(self, arch: str) -> int | None:
        """Shared memory (bytes) that a CTA may have on a target of this name; None: all that there is."""
        return None

    def check_plan(self, plan: Plan) -> None:
        """Raises `InputError` for a plan that cannot be launched as this order says."""

    def smem_bytes(self, plan: Plan) -> int:
        """Shared memory of a CTA at launch (bytes), no less than the plan's."""
        return plan.smem_bytes

    def least_ctas(self, plan: Plan) -> int:
        """CTAs that are to find registers on a multiprocessor."""
        return 1

    def clusters(self, grid: dict[str, int], cluster: Mapping[str, int]) -> int:
        """How many clusters can work at once on a grid of tiles."""
        raise NotImplementedError

    def divisors(self, grid: dict[str, Any], cluster: Mapping[str, int], clusters: Any) -> dict[str, Any]:
        """The numbers that the order divides by, by name; on the host, or in the kernel.

        Args:
            grid: Tiles by dimension, none of them 0.
            cluster: CTAs by dimension.
            clusters: How many were launched.
        """
        raise NotImplementedError

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """The calling CTA's tiles of a grid of *grid* tiles, as *role* takes them."""
        raise NotImplementedError


class TilesOfRole(Carried):
    """The calling CTA's tiles, one after another, as one role takes them."""

    order: TileOrder

    def begin(self) -> None:
        """Before the first tile, in the scheduler warp: what takes no longer than the initialization of the barriers."""

    def each(self, body: Callable[[Tile], None]) -> None:
        """Runs *body* once per tile."""
        raise NotImplementedError

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        """Runs *body* for the tiles *team*, *team* + *teams*, ..., and *skip* for the others."""
        rule = "gives parts to whole CTAs, not to teams"
        raise InputError(type(self.order).__name__, teams, rule, "use a role of one team")

    def finish(self) -> None:
        """After the last tile. Nothing is in flight where every CTA computes its tiles by itself."""
