"""The plan: every number of a kernel, derived from the declarations before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs

from tmapipe.base import Along
from tmapipe.base.arithmetic import Dim
from tmapipe.base.tma_rules import Windows
from tmapipe.errors import NOTHING, frozen
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
    arch_named,
    box_of,
    in_units,
    next_id,
    units_of,
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
    """What moves slots to or from a tensor.

    Args:
        name: Of the stage.
        argument: Of the tensor.
        buffer: Where the slots are.
        dims: Names of the tensor's dimensions, the last one contiguous.
        tile: Elements of what is moved at once, along each of `dims` (1 along a batch dimension).
        core: How many dimensions, the last ones, a slot has elements along.
        parts: Into how many parts, along the first of these, a slot is cut, each of which is moved by itself.
        vector: Bytes that a thread moves at once; 0 where an engine does.
        tensor_map: Whether the engine finds the tile through a descriptor; else it is one piece of memory.
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
        """What the tensor is called in rules on loads and stores of one: by its output, if it may be that."""
        return self.overwritten or self.argument

    @property
    def part(self) -> tuple[int, ...]:
        """Elements of a part along the tensor's dimensions: of the tile, if a slot is moved as a whole."""
        first = len(self.tile) - self.core
        return (*self.tile[:first], self.tile[first] // self.parts, *self.tile[first + 1 :])

    @property
    def steps(self) -> tuple[int, ...]:
        """Elements of the tensor from one of the tile to the next, along each of `dims`."""
        return (1,) * (len(self.dims) - len(self.strides)) + self.strides

    @property
    def span(self) -> tuple[int, ...]:
        """Elements of the tensor from one tile to the next, along each of `dims`."""
        return tuple(n * step for n, step in zip(self.tile, self.steps, strict=True))

    @property
    def box(self) -> tuple[int, ...]:
        """What one instruction moves (elements along the slot's extents): a box; without a descriptor, the whole slot."""
        if not self.tensor_map:
            return self.buffer.tile
        extents = self.buffer.tile if self.windows else self.part[-self.core :]
        return box_of(extents, self.buffer.swizzle // self.buffer.dtype.bytes, self.peers, self.buffer.dtype.bytes)


@attrs.frozen
class Load(Transfer):
    """A load from global memory into a slot.

    Args:
        peers: CTAs each of which loads 1/peers of a tile for all; 1 where one CTA loads all of it.
        axes: Of the cluster, along which those lie that share a tile; empty without multicast.
        pattern: Bit mask of the peers of the CTA at the origin of the cluster, by rank.
        outside: What a slot holds beyond the tensor's edge: "zeros" or "nan", or of rows "anything".
        windows: Whose elements the rows of a tile are, if they are those of windows; `tile` then says nothing of rows.
        through: Slots of descriptors that the kernel makes, through which it is loaded.
        strides: Elements of the tensor from one of the tile to the next, along the `core` dimensions; empty for 1 each.
        overwritten: The output that may be the tensor that is loaded; empty for none.
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
        """Whether its descriptor says what CuTe DSL's cannot, so that the library has it encoded."""
        return self.outside == "nan" or bool(self.strides) or self.windows is not None or self.through is not None

    @property
    def edge_rows(self) -> int:
        """Rows of the boxes in which a tile that reaches over the tensor's edge is loaded, so that none lies wholly outside.

        0 if such a tile is loaded as any other. Swizzled slots can be cut between every 8 rows.
        """
        rows = self.buffer.tile[0] // self.peers
        if self.outside != "anything" or not self.buffer.swizzle or self.parts > 1:
            return 0
        return next((some for some in (16, 8) if rows > some and rows % some == 0), 0)


@attrs.frozen
class Store(Transfer):
    """A store, or reduction, of a slot into global memory; with `vector`, of registers of threads: no slots.

    Args:
        reduce: What is done to the tensor's elements, as of `TmaStoreStage`; None to overwrite them.
        folded: Extents of leading dimensions that the tensor, and so its descriptor, lacks.
        clipped: Whether the tile says how many of a slot's rows are written.
        shared: Whether all teams of the role have the same slots.
        whole: Elements of a whole output tile along each of `dims`, if its rows are those of several of them, and one store
            writes some of these.
        transposed: Whether the rows of the accumulators that it stores are its columns.
        wide: Whether threads store 16 bytes at once where the address is a multiple of that.
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
    """Elements of the vectors in which rows of so many are shared out."""
    return next(width for width in WIDTHS if columns % width == 0)


def warps_for(tile: tuple[int, int]) -> int:
    """Warps that share a tile of (rows, columns) evenly: four, or fewer of less than 2048 elements; else the fewest of which a
    thread has at most `MOST_VALUES` elements."""
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
        name: Of the role.
        first_warp: Its index in the CTA.
        warps: How many there are.
        registers: A thread, set by setmaxnreg for the whole warpgroup; None: left as launched.
        teams: Equal parts of the warps that take output tiles in turn.
        early: Tensors that it may load before the kernels before this one have ended.
        dependents: Whether it says when the next kernel may start.
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
        name: Of the schedule.
        arch: Compute capability as the compiler spells it, such as "sm_90a".
        cluster: Axis -> CTAs along it; the CTA's rank varies fastest along the first.
        roles: In the order of declaration.
        barriers: All arrays of mbarriers.
        named_barriers: All hardware barriers but the CTA's own.
        buffers: All slots of shared memory.
        rings: In the order of declaration.
        loads: In the order of declaration.
        stores: In the order of declaration.
        matmuls: In the order of declaration.
        held: Tiles in registers that are no matmul's.
        exchanges: What CTAs of the cluster exchange.
        arguments: Names of the tensors that the kernel is called with: of loads, tables, stores.
        warps: Of the CTA.
        smem_bytes: Dynamic shared memory of the CTA.
        launch_registers: A thread, at launch.
        registers: Warpgroup -> registers a thread after setmaxnreg; empty if there is none.
        queue: Of a dynamic order of tiles.
        tables: Table -> its dimensions.
        relations: Dimensions whose extents are fixed or follow from others'.
        overlaps: Whether it may start before the kernels before it in the stream have ended.
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
        """What it was made for."""
        return arch_named(self.arch)

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
        """*extents* of dimensions, completed by relations: fixed extents, and extents that follow from others; none above its
        largest."""
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
        """Shapes of all tensors: from extents, made whole units, and what follows from them; 1 for those left."""
        others = {dim: 1 for dims in self.dims.values() for dim in dims}
        every = self.related(in_units({**others, **self.related(dict(extents))}, units_of(self), self.most))
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
        """What is exchanged under this name, if anything."""
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
    """The barriers of one kernel, or of one model of it. All its warps share them; each set of roles has one.

    made: those so far, by the names of the roles in order of their warps.
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
            first = next_id(taken, instances, "k.sync", ", ".join(names))
            self.made[names] = NamedBarrier(f"{'+'.join(names)}.threads", first, threads, instances)
        return self.made[names]
