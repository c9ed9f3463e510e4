"""`TileOrder`, the base of tile schedulers: what each of them supplies for planning, launching and running. Also the axes of
the grid, and queues of tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from tmapipe.barrier import Role
from tmapipe.base import MulticastGroup
from tmapipe.base.arithmetic import Dim, ceil_div
from tmapipe.errors import InputError, require
from tmapipe.isa.fragment import Carried, SlotRef
from tmapipe.isa.ops import Isa
from tmapipe.plan.declarations import Declarations, check_names
from tmapipe.plan.model import Plan, RoleWarps
from tmapipe.protocol.tile import Tile
from tmapipe.stage import LoadStage
from tmapipe.store_pipeline import StoreStage

# ---- axes ------------------------------------------------------------------------------------------------------------
#
# The dimensions of the grid of output tiles, and what each is divided into.


MOST_TILES = 2**31 - 2**16  # so that the next tile of each CTA, behind the last one, has a number of 32 bits
ExtentOf = Callable[[str, int], Any]  # gives the extent of a stage's tensor along its dimension of this number
Gpcs = Callable[[], Sequence[Sequence[int]]]  # gives the multiprocessors of each GPC


class Axis(NamedTuple):
    """A dimension of the grid: dimension number `place` of the tensor of `stage`, divided into tiles of `elements`."""

    stage: str
    place: int
    elements: int


def axes_of(declared: Declarations, over: str | None) -> dict[str, Axis]:
    """The axes of the grid by dimension. The last axis varies fastest.

    Args:
        over: Names of the grid's dimensions; by default the dimensions of the first store, or else of the first load.

    Raises:
        InputError: There is no stage, or no stage has such a dimension.
    """
    parts: dict[str, LoadStage | StoreStage] = {**declared.stores, **declared.loads}
    require(parts, "Schedule", declared.name, "has no load and no store stage", "declare one")
    known: dict[str, Axis] = {}
    for name, part in parts.items():
        for i, (dim, elements) in enumerate(zip(part.dims, part.span, strict=True)):
            known.setdefault(dim, Axis(name, i, elements))
    dims = tuple(over.split()) if isinstance(over, str) else next(iter(parts.values())).dims
    if over is not None and (
        not isinstance(over, str) or not dims or len(set(dims)) < len(dims) or set(dims) - set(known)
    ):
        rule = f"must name different dimensions of stages ({', '.join(known)})"
        raise InputError("Schedule.over", over, rule, 'e.g. over = "m n"')
    return {dim: known[dim] for dim in dims}


def check_axes(declared: Declarations, over: str | None) -> None:
    """Raises `InputError` if the cluster or a multicast group names an axis that the grid does not have."""
    axes = axes_of(declared, over)
    named = [(f"cluster[{axis!r}]", axis) for axis in declared.cluster]
    groups = {f"{name}.multicast": load.multicast for name, load in declared.loads.items() if load.multicast}
    groups |= {f"{name}.group": group for name, group in _groups(declared).items()}
    named += [(argument, axis) for argument, group in groups.items() for axis in group.axes]
    for argument, axis in named:
        rule = f"is no dimension of the output's tiles ({', '.join(axes)})"
        require(axis in axes, argument, axis, rule, "name one of them")
    for loaded, load in declared.loads.items():
        if load.result is not None and (missing := [dim for dim in axes if dim not in load.result.dims]):
            rule = f"must have all dimensions of the grid ({', '.join(axes)}), or two output tiles would share it"
            fix = f"add {' '.join(missing)}, or set over="
            raise InputError(f"{loaded}.of_result", " ".join(load.result.dims), rule, fix)
    for name, store in declared.stores.items():
        if store.overwrites and (missing := [dim for dim in axes if dim not in store.dims]):
            rule = f"must have all dimensions of the grid ({', '.join(axes)}), or a tile would load what another one stores"
            raise InputError(f"{name}.in_place", " ".join(store.dims), rule, f"add {' '.join(missing)}, or set over=")


def _groups(declared: Declarations) -> dict[str, MulticastGroup]:
    """The groups of CTAs that send each other tiles or numbers, by the part that says so."""
    parts: dict[str, Any] = {**declared.shared, **declared.scratches}
    return {name: part.sharing for name, part in parts.items() if part.sharing is not None}


def check_rows(declared: Declarations, axes: Mapping[str, Axis], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises `InputError` if a tensor's rows, which are reduced over the CTAs of a cluster, do not fit into one cluster."""
    for dim, name in rows_of(declared, axes).items():
        axis, ctas = axes[dim], declared.cluster.get(dim, 1)
        if shapes[axis.stage][axis.place] > axis.elements * ctas:
            rule = f"must have at most {ctas} x {axis.elements} elements along {dim}, since {name} reduces over {ctas} CTAs"
            raise InputError(f"{axis.stage}.shape", shapes[axis.stage], rule, "use a larger tile or cluster")


def rows_of(declared: Declarations, axes: Mapping[str, Axis]) -> dict[str, str]:
    """The dimensions that are reduced over all CTAs of a cluster along them, each with the part that does."""
    names = {}
    for name, group in _groups(declared).items():
        for dim in group.axes if name in declared.scratches else ():
            # The plan refuses other axes; with `ctas`, each block of CTAs has its own rows.
            if dim in axes and not group.ctas:
                names[dim] = name
    return names


def check_relations(declared: Declarations) -> None:
    """Raises `InputError` if a `Dim` is about a dimension that no stage, table or other `Dim` has."""
    stages: dict[str, None] = {}
    tensors: dict[str, Any] = {**declared.loads, **declared.stores, **declared.tables}
    for part in tensors.values():
        stages |= dict.fromkeys(part.dims)
    named, followed = {dim.name for dim in declared.relations}, {dim.of for dim in declared.relations}
    rule = f"is a dimension of a stage ({', '.join(stages)})"
    for dim in declared.relations:
        require(dim.name in {*stages, *followed}, "Dim(name)", dim.name, rule, "name one of them")
        require(dim.of in {*stages, *named, None}, "Dim(of)", dim.of, rule, "name one of them")
    following = {dim.name: dim.of for dim in declared.relations}
    for name in following:
        seen, other = {name}, following[name]
        while other is not None and other not in seen:
            seen.add(other)
            other = following.get(other)
        if other is not None:
            circle = " and ".join(sorted(seen))
            raise InputError("Schedule.relations", circle, "follow from each other in a circle", "drop one of the Dims")


# ---- order -----------------------------------------------------------------------------------------------------------
#
# `TileOrder` is a tile scheduler; `TilesOfRole` has the tiles of one CTA in one warp.


class TileOrder:
    """Base of the tile schedulers."""

    launch_words = 0  #: words that a launch hands to the kernel besides the number of clusters
    bounded: tuple[str, ...] = ()  #: dimensions along which tiles have their own bounds
    in_parts = False  #: whether tiles are parts of a sum, which something else adds; then roles have one team
    lower = False  #: whether there are only tiles at and below the diagonal of the last two dimensions
    without_steps = False  #: whether some parts may have no steps
    table: str | None = None  #: the name of the `Table` that the order reads
    input_dims = output_dims = "l "  #: a GEMM's dimensions before m, of inputs and of outputs

    def of_rows(self, rows: int) -> TileOrder:
        """This order for output tiles of *rows* rows along m."""
        return self

    def relations(self, declared: Declarations, given: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The relations of extents that this order needs, besides the schedule's relations *given*."""
        return ()

    def check(self, declared: Declarations, axes: Mapping[str, Axis]) -> None:
        """Raises `InputError` for a schedule that cannot take its tiles, of a grid with these axes."""

    def grid(self, axes: dict[str, Axis], extent: ExtentOf, cluster: Mapping[str, int]) -> dict[str, Any]:
        """How many tiles there are along each dimension.

        Args:
            axes: The dimensions of the grid.
            extent: ``extent(stage, i)`` is the extent of the tensor's dimension number i (elements), on the host or in the
                kernel.
            cluster: How many CTAs a cluster has along each dimension.
        """
        return {dim: ceil_div(extent(axis.stage, axis.place), axis.elements) for dim, axis in axes.items()}

    def queue(self, dims: int) -> tuple[int, int] | None:
        """(slots, 32-bit words per slot) of the queue of a scheduler warp, for *dims* dimensions; None without one."""
        return None

    def launch_numbers(self, tiles: int, resident: int, cluster_size: int, gpcs: Gpcs) -> list[int]:
        """How many clusters to launch, then `launch_words` words for the kernel.

        Args:
            tiles: How many clusters can work at once, as `clusters` says.
            resident: How many clusters fit on the device at once.
            cluster_size: How many CTAs a cluster has.
            gpcs: Returns the device's multiprocessors by GPC.
        """
        return [min(tiles, resident)]

    def spans(self, tiles: int) -> int | None:
        """How many clusters run, if *clusters* can work at once and the order fixes their number. None: any number of clusters
        share the tiles."""
        return None

    def room(self, arch: str) -> int | None:
        """Shared memory (bytes) that a CTA may have on a target of this name; None: all that there is."""
        return None

    def check_plan(self, plan: Plan) -> None:
        """Raises `InputError` for a plan that cannot be launched as this order says."""

    def smem_bytes(self, plan: Plan) -> int:
        """Shared memory of a CTA at launch (bytes), no less than the plan's."""
        return plan.smem_bytes

    def least_ctas(self) -> int:
        """How many CTAs must find registers on a multiprocessor."""
        return 1

    def clusters(self, grid: dict[str, int], cluster: Mapping[str, int]) -> int:
        """How many clusters can work at once on a grid of tiles."""
        raise NotImplementedError

    def divisors(self, grid: dict[str, Any], cluster: Mapping[str, int], clusters: Any) -> dict[str, Any]:
        """The numbers by which the order divides, by name; on the host, or in the kernel.

        Args:
            grid: How many tiles there are along each dimension, none of them 0.
            cluster: How many CTAs a cluster has along each dimension.
            clusters: How many clusters were launched.
        """
        raise NotImplementedError

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """The calling CTA's tiles of a grid of *grid* tiles, as *role* takes them."""
        raise NotImplementedError


class TilesOfRole(Carried):
    """The calling CTA's tiles, one after another, as one role takes them."""

    order: TileOrder

    def begin(self) -> None:
        """Called before the first tile, in the scheduler warp. It takes no longer than the initialization of the barriers."""

    def each(self, body: Callable[[Tile], None]) -> None:
        """Runs *body* once per tile."""
        raise NotImplementedError

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        """Runs *body* for the tiles *team*, *team* + *teams*, ..., and *skip* for the other tiles."""
        rule = "hands parts to whole CTAs, not to teams"
        raise InputError(type(self.order).__name__, teams, rule, "use a role of one team")

    def finish(self) -> None:
        """Called after the last tile. It does nothing if every CTA computes by itself which tiles it takes."""


# ---- queue -----------------------------------------------------------------------------------------------------------
#
# Tile schedulers with a scheduler warp, which finds something out at run time and tells all warps of its cluster.
#
# scheduler of CTA 0   finds 32-bit words, e.g. where a tile lies, and writes them to a slot of every CTA of the cluster
# every warp           waits for the slot, reads the words, releases the slot
#
# The words travel by st.async. Their bytes complete on the mbarrier of the CTA where they land.
#
# The scheduler counts in global memory. A schedule has one set of counters per stream, and one for each stream of a
# capture of a CUDA graph. So graphs and launches may run at once; two replays of one graph may not.


SCHEDULER = "scheduler"  #: name of the role that finds the words


class QueueEnd(Carried):
    """The calling warp's end of the queue.

    `leads` says whether the warp is the scheduler. The pipeline state, in registers, is the next slot and its parity.
    """

    def __init__(self, isa: Isa, role: RoleWarps):
        assert isa.plan.queue is not None
        self.isa, self.queue, self.leads = isa, isa.plan.queue, role.name == SCHEDULER
        self.state = isa.cells(0, 0, names="queue.slot queue.parity")

    def take(
        self,
        count: int,
        find: Callable[[], Sequence[Any]],
        without_data: Callable[[], Sequence[int]],
        keep: bool = False,
    ) -> Sequence[Any]:
        """The first *count* words of the next slot.

        Args:
            find: Finds the words, in the scheduler of the cluster's first CTA.
            without_data: What the words are in the check, which runs without data.
            keep: Whether the caller calls `release` before it takes the next slot; otherwise the slot is released here.
        """
        isa, queue, index, parity = self.isa, self.queue, self.state[0], self.state[1]
        slot = SlotRef(queue.buffer, index)

        def put() -> None:
            isa.store_words(slot, find(), queue.full)

        if self.leads:
            isa.mbarrier_wait(queue.free, index, parity ^ 1)
            isa.mbarrier_arrive_expect_tx(queue.full, index, queue.buffer.slot_bytes)
            self.once_a_cluster(put)
        isa.mbarrier_wait(queue.full, index, parity)
        words = isa.read_words(slot, count, without_data)
        if not keep:
            self._release(index)
        isa.advance(self.state, queue.buffer.stages)
        return words

    def release(self) -> None:
        """Releases a slot that was kept, of a queue of one slot."""
        self._release(0)

    def _release(self, index: Any) -> None:
        isa, free = self.isa, self.queue.free
        isa.fence_proxy_async()
        isa.warp_sync()
        if isa.plan.cluster_size > 1:
            isa.mbarrier_arrive_cluster(free, index, (1 << isa.plan.cluster_size) - 1)
        else:
            isa.mbarrier_arrive(free, index)

    def once_a_cluster(self, body: Callable[[], None]) -> None:
        """Runs *body* in the scheduler of the cluster's first CTA, and in no other warp."""
        if not self.leads:
            return
        if self.isa.plan.cluster_size > 1:
            self.isa.when(self.isa.cta_rank == 0, body)
        else:
            body()

    def finish(self) -> None:
        """The scheduler waits for the last release of every slot, so that its CTA does not exit before them."""
        if self.leads and self.isa.plan.cluster_size > 1:
            for _ in range(self.queue.buffer.stages):
                self.isa.mbarrier_wait(self.queue.free, self.state[0], self.state[1] ^ 1)
                self.isa.advance(self.state, self.queue.buffer.stages)


# ---- declared --------------------------------------------------------------------------------------------------------
#
# An order of tiles adds to a schedule's declarations: bounds of tiles, a scheduler's role, a queue.


def with_order(schedule: Any, declared: Declarations) -> Declarations:
    """*declared*, with the parts that the order of tiles adds: bounds, a role, a queue.

    Raises:
        InputError: Attributes of the schedule, such as `tiles`, `over` or `cluster`, are wrong.
    """
    fix = "e.g. PersistentTiles()"
    require(isinstance(schedule.tiles, TileOrder), "Schedule.tiles", schedule.tiles, "is an order of output tiles", fix)
    if not isinstance(schedule.relations, tuple) or not all(isinstance(dim, Dim) for dim in schedule.relations):
        raise InputError("Schedule.relations", schedule.relations, "is a tuple of Dim", 'e.g. (Dim("r", size=3),)')
    check_names("Schedule.transposed", schedule.transposed, declared.arguments)
    if not isinstance(schedule.checked, bool):
        raise InputError("Schedule.checked", schedule.checked, "is True or False", "use True, to be safe")
    relations = (*schedule.relations, *schedule.tiles.relations(declared, schedule.relations))
    declared = attrs.evolve(declared, bounded=schedule.tiles.bounded, relations=relations)
    queue = schedule.tiles.queue(len(axes_of(declared, schedule.over)) if declared.stages or declared.stores else 0)
    if queue is None:
        return declared
    if SCHEDULER in declared.roles:
        raise InputError("Schedule.tiles", schedule.tiles, f"has a role {SCHEDULER!r} of its own", "rename yours")
    return attrs.evolve(declared, parts={**declared.parts, SCHEDULER: Role(warps=1)}, queue=queue)
