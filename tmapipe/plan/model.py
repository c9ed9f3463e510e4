"""The plan: every number of a kernel, derived from the declarations, before either reading runs.

`Schedule.plan(...)` makes it; `explain()` prints it; the instruction set takes its parts as operands; the emitted PTX is
compared with it. All sizes are bytes unless the name says otherwise; offsets are from the start of dynamic shared memory.
"""

from __future__ import annotations

import math
from typing import Any

import attrs

from tmapipe.dtypes import DType

__all__ = ["Barrier", "Buffer", "Load", "Matmul", "NamedBarrier", "Plan", "Queue", "Ring", "RoleWarps", "Store"]

WARP = 32  # threads a warp
WARPGROUP = 128  # threads a warpgroup: 4 warps, the unit of wgmma and setmaxnreg
WIDEST_OF_THREE = 200  # n of a wgmma where threads are launched with 128 registers: 26 besides its sums (ptxas' C7602)
MAX_BOX = 256  # elements along one extent of a TMA box (CUDA driver API, cuTensorMapEncodeTiled)


@attrs.frozen
class Barrier:
    """An array of mbarriers, one a slot. count: arrivals that complete a phase (besides the bytes armed by expect-tx)."""

    name: str
    offset: int
    stages: int
    count: int
    formula: str = ""


@attrs.frozen
class NamedBarrier:
    """`instances` hardware barriers (``bar.sync id + instance, threads``), one a warpgroup, say.

    id 0 is the CTA's own, so these run from 1 to 15.
    """

    name: str
    id: int
    threads: int
    instances: int = 1


@attrs.frozen
class Buffer:
    """Slots of shared memory, all alike.

    tile: elements a slot, one or two extents, the last one contiguous; swizzle: span in bytes (0, 32, 64 or 128); owners:
    warpgroups that have stages / owners slots each, and go round in those alone.
    """

    name: str
    offset: int
    stages: int
    tile: tuple[int, ...]
    dtype: DType
    swizzle: int = 0
    owners: int = 1

    @property
    def slot_bytes(self) -> int:
        return math.prod(self.tile) * self.dtype.bytes


@attrs.frozen
class Ring:
    """What the ends of a `BarrierRing` need to know.

    phases: the roles of each phase by name; barriers[p] completes when phase p is done with a slot, so phase p waits on
    barriers[p - 1] and phase 0 on the last one; armed: role -> bytes that it arms by expect-tx a slot; signals: the roles
    whose warps arrive when they leave a slot (all but those whose loads complete by themselves); lag: role -> slots that
    it holds back until its asynchronous reads have retired; readers: role -> how it reads ("wgmma", "tma"; threads if
    missing); groups: the multicast groups whose peers a release must reach; peers: how many CTAs that is; loads: role ->
    the loads whose bytes it arms.
    """

    name: str
    stages: int
    phases: tuple[tuple[str, ...], ...]
    barriers: tuple[Barrier, ...]
    armed: dict[str, int]
    signals: tuple[str, ...]
    lag: dict[str, int]
    readers: dict[str, tuple[str, ...]]
    groups: tuple[tuple[str, ...], ...] = ()
    peers: int = 1
    loads: dict[str, tuple[str, ...]] = attrs.field(factory=dict)

    def phase_of(self, role: str) -> int | None:
        """The phase that *role* has in this ring, or None."""
        return next((p for p, roles in enumerate(self.phases) if role in roles), None)


@attrs.frozen
class Queue:
    """Tiles on their way from the scheduler to all warps: their places, in words of 4 bytes, in slots of `buffer`. full:
    counts the CTA's scheduler and the bytes; free: counts every warp of the cluster."""

    buffer: Buffer
    full: Barrier
    free: Barrier


@attrs.frozen
class Load:
    """A bulk-tensor load into `buffer` from the tensor bound to `argument`.

    dims: the tensor's dimensions by name, the last one contiguous; tile: elements of the tile along each (1 for a batch
    dimension); peers: CTAs that share the tile (1 without multicast), each of which loads 1/peers of it for all.
    pattern: bit mask of the peers of the CTA at the origin of the cluster; outside: what a slot holds of rows beyond the
    tensor's edge, "zeros" or "anything".
    """

    name: str
    argument: str
    buffer: Buffer
    dims: tuple[str, ...]
    tile: tuple[int, ...]
    peers: int = 1
    axes: tuple[str, ...] = ()
    pattern: int = 1
    l2_hint: str | None = None
    outside: str = "zeros"

    @property
    def box(self) -> tuple[int, ...]:
        """The box of one TMA instruction (elements along the slot's extents): the swizzle span limits the inner one."""
        return one_box(self.buffer, self.peers)

    @property
    def edge_rows(self) -> int:
        """Rows of the boxes in which a tile that reaches over the tensor's edge is loaded, so that none lies wholly outside;
        0 if it is loaded as any other. Swizzled slots can be cut between every 8 rows."""
        rows = self.buffer.tile[0] // self.peers
        if self.outside == "zeros" or not self.buffer.swizzle:
            return 0
        return next((some for some in (16, 8) if rows > some and rows % some == 0), 0)


@attrs.frozen
class Store:
    """A bulk-tensor store (or reduction, `reduce="add"`) of `buffer` into the tensor bound to `argument`. folded: extents of
    leading dimensions that the tensor lacks: its descriptor has none of them; clipped: whether only some of a slot's rows are
    written, by the tile; shared: whether teams have the same buffers."""

    name: str
    argument: str
    buffer: Buffer
    dims: tuple[str, ...]
    tile: tuple[int, ...]
    reduce: str | None = None
    folded: tuple[int, ...] = ()
    clipped: bool = False
    shared: bool = False

    @property
    def box(self) -> tuple[int, ...]:
        return one_box(self.buffer, 1)


@attrs.frozen
class Matmul:
    """A warpgroup matmul: ``acc[m, n] += a[m, k] * b[n, k]`` with both operands read from slots.

    shape: (m, n, k) elements of the CTA's tile; the `warpgroups` that work on one tile (a team) share m in blocks of 64
    rows, dealt in turn: warp w of the team's warpgroup g holds the rows ``(r * warpgroups + g) * 64 + 16 * w`` .. ``+ 16``
    for r = 0, 1, ...; first_warp: of the role, all of its teams together; promote: whether sums leave the tensor core after
    each slot; transposed: whether the slots of (a, b) hold tiles (k, m) and (k, n), contiguous along m and n.
    """

    name: str
    a: Buffer
    b: Buffer
    shape: tuple[int, int, int]
    warpgroups: int
    first_warp: int
    teams: int = 1
    promote: bool = False
    transposed: tuple[bool, bool] = (False, False)

    def group(self, warp: Any) -> Any:
        """Which of its team's warpgroups the warp (its index in the CTA, of the role) belongs to."""
        own = warp // 4 - self.first_warp // 4
        return own if self.teams == 1 else own % self.warpgroups

    @property
    def n_instructions(self) -> tuple[int, ...]:
        """n of the wgmma instructions side by side: two where three warpgroups' tile is so wide that one would need more
        registers than a thread of four warpgroups is launched with."""
        n, step = self.shape[1], 16 if self.a.dtype.integer else 8
        if self.warpgroups < 3 or n <= WIDEST_OF_THREE:
            return (n,)
        left = -(-n // (2 * step)) * step
        return left, n - left

    @property
    def k_instructions(self) -> int:
        """wgmma instructions a slot along k: each takes 32 bytes of k."""
        return self.shape[2] * self.a.dtype.bytes // 32


@attrs.frozen
class RoleWarps:
    """The warps [first_warp, first_warp + warps) that run one role's body.

    registers: a thread, as set by setmaxnreg for the whole warpgroup; None: left at the launch value; teams: equal parts
    that take output tiles in turn.
    """

    name: str
    first_warp: int
    warps: int
    registers: int | None = None
    teams: int = 1

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
    """Everything that a reading needs to set up one CTA.

    cluster: axis name -> CTAs along it, the first varying fastest with the CTA's rank; registers: warpgroup index ->
    registers a thread after setmaxnreg (empty: no setmaxnreg); launch_registers: a thread at launch; arguments: what the
    kernel is called with, by name: loads, tables, stores; tables: the dimension of each.
    """

    name: str
    arch: str
    cluster: dict[str, int]
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
    registers: dict[int, int]
    queue: Queue | None = None
    tables: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    notes: dict[str, Any] = attrs.field(factory=dict)

    @property
    def transfers(self) -> tuple[Load | Store, ...]:
        """Loads, then stores."""
        return (*self.loads, *self.stores)

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The dimensions of every argument by name."""
        return {**{part.argument: part.dims for part in self.transfers}, **self.tables}

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def cluster_size(self) -> int:
        return math.prod(self.cluster.values())

    def cluster_stride(self, axis: str) -> int:
        """How much the CTA's rank grows by one step along *axis*."""
        stride = 1
        for name, size in self.cluster.items():
            if name == axis:
                return stride
            stride *= size
        raise KeyError(axis)

    def role(self, name: str) -> RoleWarps:
        """The role called *name*. Raises KeyError, as do the other look-ups."""
        return _named(self.roles, name)

    def ring(self, name: str) -> Ring:
        return _named(self.rings, name)

    def barrier(self, name: str) -> Barrier:
        return _named(self.barriers, name)

    def named_barrier(self, name: str) -> NamedBarrier:
        return _named(self.named_barriers, name)

    def buffer(self, name: str) -> Buffer:
        return _named(self.buffers, name)

    def load(self, name: str) -> Load:
        return _named(self.loads, name)

    def store(self, name: str) -> Store:
        return _named(self.stores, name)

    def matmul(self, name: str) -> Matmul:
        return _named(self.matmuls, name)


def _named(parts: tuple[Any, ...], name: str) -> Any:
    for part in parts:
        if part.name == name:
            return part
    raise KeyError(f"{name!r}; there are {', '.join(part.name for part in parts) or 'none'}")


def one_box(buffer: Buffer, peers: int) -> tuple[int, ...]:
    """The box of one TMA instruction: a peer's share of the slot's rows, each at most one swizzle span long. Rows without a
    swizzle that are longer than a box can be are moved one by one, in equal pieces."""
    *outer, inner = buffer.tile
    if outer:
        outer[0] //= peers
    else:
        inner //= peers
    if buffer.swizzle:
        return (*outer, min(inner, buffer.swizzle // buffer.dtype.bytes))
    if inner > MAX_BOX:
        return (*(1 for _ in outer), max(d for d in range(1, MAX_BOX + 1) if inner % d == 0))
    return (*outer, inner)
