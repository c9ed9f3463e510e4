"""The plan: every number of a kernel, derived from the declarations before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs

from tmapipe.base import Along
from tmapipe.base.arithmetic import Dim, DType
from tmapipe.base.tma_rules import Windows
from tmapipe.errors import NOTHING, frozen
from tmapipe.plan import rings
from tmapipe.plan.rings import (
    Arch,
    Barrier,
    Buffer,
    Distributed,
    Exchanged,
    HeldTile,
    Matmul,
    NamedBarrier,
    Queue,
    Ring,
)

# ---- model -----------------------------------------------------------------------------------------------------------
#
# The plan: every number of a kernel, derived from the declarations before anything runs.
#
# `Schedule.plan(...)` makes it; `explain()` prints it; the backends take its parts as operands; the emitted PTX is
# compared with it. Plans and their parts compare by value and can be hashed. Sizes and offsets are in bytes unless a
# field says otherwise; offsets are from the start of the CTA's dynamic shared memory; tiles and boxes are in
# elements.


WARP = 32  # threads a warp
WIDTHS = 8, 4, 2, 1  # elements of a vector
MOST_VALUES, MOST_WARPS = 16, 20  # elements of a thread, and warps, of a tile that four warps do not share evenly


@attrs.frozen
class Transfer:
    """Moves slots to or from a tensor.

    Args:
        name: The stage's name.
        argument: The tensor's name.
        buffer: The slots.
        dims: Names of the tensor's dimensions, the contiguous dimension last.
        tile: How many elements are moved at once, along each of `dims` (1 along a batch dimension).
        core: Along how many dimensions, the last ones, a slot has elements.
        parts: Into how many parts a slot is cut, along the first of the `core` dimensions. Each part is moved by itself.
        vector: How many bytes a thread moves at once; 0 if an engine moves the slots.
        tensor_map: Whether the engine finds the tile through a descriptor; if not, the tile is one contiguous piece of memory.
        l2_hint: "evict_first", "evict_last", "evict_normal" or None.
    """

    name: str
    argument: str
    buffer: Buffer
    dims: tuple[str, ...]
    tile: tuple[int, ...]
    core: int = attrs.field(default=attrs.Factory(lambda part: len(part.buffer.tile), takes_self=True), kw_only=True)
    parts: int = attrs.field(default=1, kw_only=True)
    vector: int = attrs.field(default=0, kw_only=True)
    tensor_map: bool = attrs.field(default=True, kw_only=True)
    l2_hint: str | None = attrs.field(default=None, kw_only=True)

    # Of stores; loads have fields of these names.
    peers = 1
    strides = cast(tuple[int, ...], ())
    windows = cast(Windows | None, None)

    overwritten = ""

    @property
    def memory(self) -> str:
        """The tensor's name in rules on loads and stores of one tensor: if an output may be the loaded tensor, the output's
        name."""
        return self.overwritten or self.argument

    @property
    def part(self) -> tuple[int, ...]:
        """Elements of a part along the tensor's dimensions: of the tile, if a slot is moved as a whole."""
        first = len(self.tile) - self.core
        return (*self.tile[:first], self.tile[first] // self.parts, *self.tile[first + 1 :])

    @property
    def steps(self) -> tuple[int, ...]:
        """How far apart two neighbouring elements of the tile are in the tensor, along each of `dims`."""
        return (1,) * (len(self.dims) - len(self.strides)) + self.strides

    @property
    def span(self) -> tuple[int, ...]:
        """Elements of the tensor from one tile to the next, along each of `dims`."""
        return tuple(n * step for n, step in zip(self.tile, self.steps, strict=True))

    @property
    def box(self) -> tuple[int, ...]:
        """What one instruction moves (elements along the slot's extents): a box, or without a descriptor the whole slot."""
        if not self.tensor_map:
            return self.buffer.tile
        extents = self.buffer.tile if self.windows else self.part[-self.core :]
        size = self.buffer.dtype.bytes
        return rings.box_of(extents, self.buffer.swizzle // size, self.peers, size)


@attrs.frozen
class Load(Transfer):
    """A load from global memory into a slot.

    Args:
        peers: How many CTAs load a tile together: each loads 1/peers of the tile for all. 1 if one CTA loads all of it.
        axes: The axes of the cluster along which the CTAs lie that share a tile; empty without multicast.
        pattern: The bit mask, by rank, of the CTAs that share a tile with the CTA at the origin of the cluster.
        outside: What a slot holds beyond the tensor's edge: "zeros" or "nan"; or "anything", in rows that lie wholly outside.
        windows: The windows whose elements the tile's rows are; None if they are no windows. `tile` then says nothing of rows.
        through: The slots of the descriptors through which it loads, if the kernel makes them.
        strides: How far apart two neighbouring elements of the tile are in the tensor, along the `core` dimensions; empty for
            1.
        overwritten: The output that may be the loaded tensor; empty for none.
    """

    peers: int = 1
    axes: tuple[Along, ...] = ()
    pattern: int = 1
    outside: str = "zeros"
    strides: tuple[int, ...] = ()
    windows: Windows | None = None
    through: Buffer | None = None
    overwritten: str = ""

    @property
    def encoded(self) -> bool:
        """Whether the library encodes the load's descriptor, since CuTe DSL cannot express it."""
        return self.outside == "nan" or bool(self.strides) or self.windows is not None or self.through is not None

    @property
    def edge_rows(self) -> int:
        """Into boxes of how many rows a tile is cut that reaches over the tensor's edge, so that no box lies wholly outside.

        0 if such a tile is loaded as any other tile. Swizzled slots can be cut between every 8 rows.
        """
        rows = self.buffer.tile[0] // self.peers
        if self.outside != "anything" or not self.buffer.swizzle or self.parts > 1:
            return 0
        return next((some for some in (16, 8) if rows > some and rows % some == 0), 0)


@attrs.frozen
class Store(Transfer):
    """A store or a reduction of a slot into global memory. With `vector`, threads store from registers, and there are no
    slots.

    Args:
        reduce: The reduction of the tensor's elements, as in `TmaStoreStage`; None to overwrite them.
        folded: Extents of leading dimensions that the tensor, and so its descriptor, lacks.
        clipped: Whether the tile says how many of a slot's rows are written.
        shared: Whether all teams of the role use the same slots.
        whole: Elements of a whole output tile along each of `dims`, if the accumulators' rows are rows of several dimensions,
            and one store writes some of them. Empty otherwise.
        transposed: Whether the rows of the accumulators are columns of the tile.
        wide: Whether threads store 16 bytes at once if the address is a multiple of 16.
    """

    reduce: str | None = None
    folded: tuple[int, ...] = ()
    clipped: bool = False
    shared: bool = False
    whole: tuple[int, ...] = ()
    transposed: bool = False
    wide: bool = False

    @property
    def columns(self) -> int:
        """Columns of accumulators that a buffer holds."""
        return self.buffer.tile[-2 if self.transposed else -1]


def width_of(columns: int) -> int:
    """How many elements a vector has, if rows of *columns* elements are distributed in vectors."""
    return next(width for width in WIDTHS if columns % width == 0)


def warps_for(tile: tuple[int, int]) -> int:
    """How many warps share a tile of (rows, columns) evenly: four, or fewer if it has less than 2048 elements; if a thread
    would have more than `MOST_VALUES` elements, the fewest warps for which it has not."""
    elements, unit = tile[0] * tile[1], WARP * width_of(tile[1])
    usual = min(4, max(1, elements // 512))
    if elements % (usual * unit) == 0:
        return usual
    even = (n for n in range(1, MOST_WARPS + 1) if elements % (n * unit) == 0)
    return next((n for n in even if elements // (n * WARP) <= MOST_VALUES), usual)


@attrs.frozen
class RoleWarps:
    """The warps that run one role's body: first_warp <= warp < first_warp + warps.

    Args:
        name: The role's name.
        first_warp: The first warp's index in the CTA.
        warps: How many warps the role has.
        registers: How many registers a thread has, set by setmaxnreg for the whole warpgroup; None: as many as at launch.
        teams: How many equal parts of the warps take output tiles in turn.
        early: The tensors that the role may load before earlier kernels have ended.
        dependents: Whether the role says when the next kernel may start.
    """

    name: str
    first_warp: int
    warps: int
    registers: int | None = None
    teams: int = 1
    early: tuple[str, ...] = ()
    dependents: bool = False

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def team_warps(self) -> int:
        """Warps that work on one output tile."""
        return self.warps // self.teams

    def team(self, warp: Any) -> Any:
        """Which team the warp (its index in the CTA, of this role) belongs to."""
        return 0 if self.teams == 1 else (warp - self.first_warp) // self.team_warps


@attrs.frozen
class Plan:
    """Everything that a backend needs to set up one CTA.

    Args:
        name: The schedule's name.
        arch: The compute capability as the compiler spells it, such as "sm_90a".
        cluster: The axes of the cluster, and how many CTAs lie along each. The CTA's rank varies fastest along the first axis.
        roles: The roles, in the order of declaration.
        barriers: All arrays of mbarriers.
        named_barriers: All hardware barriers except the CTA's own.
        buffers: All slots of shared memory.
        rings: The rings, in the order of declaration.
        loads: The loads, in the order of declaration.
        stores: The stores, in the order of declaration.
        matmuls: The matmuls, in the order of declaration.
        held: The tiles in registers that are not the accumulators of a matmul.
        exchanges: What CTAs of the cluster exchange.
        arguments: Names of the tensors with which the kernel is called: those of loads, of tables and of stores.
        warps: How many warps a CTA has.
        smem_bytes: Dynamic shared memory of a CTA.
        launch_registers: How many registers a thread has at launch.
        registers: How many registers a thread of each warpgroup has after setmaxnreg; empty without setmaxnreg.
        queue: The ring of tiles, if a scheduler hands them out at run time.
        tables: The dimensions of each table, by the table's name.
        vectors: The type of each table that holds data, by the table's name.
        relations: Dimensions whose extents are fixed or follow from other extents.
        overlaps: Whether the kernel may start before earlier kernels in the stream have ended.
    """

    name: str
    arch: str
    cluster: Mapping[str, int] = attrs.field(converter=frozen)
    roles: tuple[RoleWarps, ...]
    barriers: tuple[Barrier, ...]
    named_barriers: tuple[NamedBarrier, ...]
    buffers: tuple[Buffer, ...]
    rings: tuple[Ring, ...]
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]
    matmuls: tuple[Matmul, ...]
    arguments: tuple[str, ...]
    warps: int
    smem_bytes: int
    launch_registers: int
    registers: Mapping[int, int] = attrs.field(converter=frozen)
    queue: Queue | None = None
    tables: Mapping[str, tuple[str, ...]] = attrs.field(converter=frozen, default=NOTHING)
    vectors: Mapping[str, DType] = attrs.field(converter=frozen, default=NOTHING)
    held: tuple[HeldTile, ...] = ()
    relations: tuple[Dim, ...] = ()
    exchanges: tuple[Exchanged, ...] = ()
    overlaps: bool = False

    @property
    def by_engines(self) -> set[str]:
        """Names of the buffers whose memory TMA or wgmma accesses, perhaps as that of another buffer."""
        names = {*(load.name for load in self.loads if not load.vector), *(store.buffer.name for store in self.stores)}
        names |= {buffer.name for matmul in self.matmuls for buffer in (matmul.a, matmul.b) if buffer is not None}
        for each in self.exchanges:
            names |= {buffer.name for buffer in (each.buffer, each.source) if buffer is not None and each.sender}
        memory = {buffer.name: buffer.over or buffer.name for buffer in self.buffers}
        touched = {memory.get(name) for name in names}
        return {name for name, own in memory.items() if own in touched}

    @property
    def target(self) -> Arch:
        """The architecture for which the plan was made."""
        return rings.arch_named(self.arch)

    @property
    def transfers(self) -> tuple[Load | Store, ...]:
        """Loads, then stores."""
        return (*self.loads, *self.stores)

    @property
    def described(self) -> tuple[Load | Store, ...]:
        """Those of `transfers` that go through a descriptor (a tensor map)."""
        return tuple(part for part in self.transfers if part.tensor_map)

    @property
    def encoded(self) -> tuple[Load, ...]:
        """Loads whose descriptors the library encodes."""
        return tuple(load for load in self.loads if load.encoded)

    @property
    def made(self) -> tuple[Buffer, ...]:
        """Slots of descriptors that the kernel makes."""
        return tuple(load.through for load in self.loads if load.through is not None)

    @property
    def by_address(self) -> tuple[str, ...]:
        """Arguments that the kernel reaches by their address: tables, and tensors without a descriptor."""
        described = {part.name for part in self.described if not isinstance(part, Load) or part.through is None}
        return (*self.tables, *(part.argument for part in self.transfers if part.name not in described))

    @property
    def entries(self) -> set[str]:
        """Tables that hold entries, by which bodies may decide."""
        return {*self.tables} - {*self.vectors}

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The dimensions of every argument by name."""
        return {**{part.argument: part.dims for part in self.transfers}, **self.tables}

    @property
    def fixed(self) -> dict[str, int]:
        """The extents that are known now, by dimension."""
        return {dim.name: dim.size for dim in self.relations if dim.size is not None}

    @property
    def most(self) -> dict[str, int]:
        """The largest extents of the dimensions that are fixed or bounded."""
        extents = {dim.name: dim.size if dim.at_most is None else dim.at_most for dim in self.relations}
        return {name: most for name, most in extents.items() if most is not None}

    def related(self, extents: dict[str, int]) -> dict[str, int]:
        """*extents* of dimensions, completed by `relations`: fixed extents, and extents that follow from other extents. No
        extent is above its largest."""
        most = self.most
        related = {name: min(extent, most.get(name, extent)) for name, extent in extents.items()}
        for dim in self.relations:
            if dim.of is not None and dim.of not in related and dim.name in related:
                related[dim.of] = dim.longest_of(related[dim.name] + dim.times - 1)
            extent = dim.extent(related)
            if extent is not None:
                related[dim.name] = min(extent, most.get(dim.name, extent))
                if dim.of is not None and extent > related[dim.name]:
                    related[dim.of] = dim.longest_of(related[dim.name])
        return related

    def shapes(self, extents: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors, from *extents* that are rounded up to whole units, and from extents that follow from
        them; 1 for the other dimensions."""
        others = {dim: 1 for dims in self.dims.values() for dim in dims}
        every = self.related(rings.in_units({**others, **self.related(dict(extents))}, rings.units_of(self), self.most))
        return {name: tuple(every[dim] for dim in dims) for name, dims in self.dims.items()}

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def cluster_size(self) -> int:
        return math.prod(self.cluster.values())

    def role(self, name: str) -> RoleWarps:
        """The role called *name*. Raises KeyError, as do the other look-ups."""
        return _named(self.roles, name)

    def ring(self, name: str) -> Ring:
        """The ring called *name*. Raises `KeyError` if there is none."""
        return _named(self.rings, name)

    def barrier(self, name: str) -> Barrier:
        """The mbarrier called *name*. Raises `KeyError` if there is none."""
        return _named(self.barriers, name)

    def buffer(self, name: str) -> Buffer:
        """The buffer called *name*. Raises `KeyError` if there is none."""
        return _named(self.buffers, name)

    def load(self, name: str) -> Load:
        """The load called *name*. Raises `KeyError` if there is none."""
        return _named(self.loads, name)

    def store(self, name: str) -> Store:
        """The store called *name*. Raises `KeyError` if there is none."""
        return _named(self.stores, name)

    def distributed(self, name: str) -> Distributed:
        """The matmul or the tile in registers called *name*."""
        return _named((*self.matmuls, *self.held), name)

    def exchange(self, name: str) -> Exchanged | None:
        """The exchange of this name; None if there is none."""
        return next((each for each in self.exchanges if each.name == name), None)

    def matmul(self, name: str) -> Matmul:
        """The matmul called *name*. Raises `KeyError` if there is none."""
        return _named(self.matmuls, name)


def _named(parts: tuple[Any, ...], name: str) -> Any:
    for part in parts:
        if part.name == name:
            return part
    raise KeyError(f"{name!r}; there are {', '.join(part.name for part in parts) or 'none'}")


# ---- syncs -----------------------------------------------------------------------------------------------------------
#
# Hardware barriers for ``k.sync()``: bodies name the roles, and get ids that the plan has left free.


class Syncs:
    """The named barriers that bodies use, of one kernel or of one model of it. All warps share them; each set of roles has
    one.

    made: the barriers so far, by the names of their roles in the order of warps.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.made: dict[tuple[str, ...], NamedBarrier] = {}

    def of(self, roles: Sequence[RoleWarps]) -> NamedBarrier:
        """The barrier for all threads of *roles*; of a single role with teams, one instance for each team.

        Raises:
            InputError: All ids are taken.
        """
        roles = sorted(set(roles), key=lambda role: role.first_warp)
        names = tuple(role.name for role in roles)
        if names not in self.made:
            taken = (*self.plan.named_barriers, *self.made.values())
            instances = roles[0].teams if len(roles) == 1 else 1
            threads = sum(role.threads for role in roles) // instances
            first = rings.next_id(taken, instances, "k.sync", ", ".join(names))
            self.made[names] = NamedBarrier(f"{'+'.join(names)}.threads", first, threads, instances)
        return self.made[names]
