"""The parts of a plan: architectures, barriers, boxes, slots of shared memory, what lies in registers, and rings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from tmapipe.base import Along
from tmapipe.base.arithmetic import DType, ceil_div
from tmapipe.base.tma_rules import ALIGNMENT, MAX_BOX
from tmapipe.errors import NOTHING, InputError, frozen

if TYPE_CHECKING:
    from tmapipe.plan.model import Plan


# ---- arch ------------------------------------------------------------------------------------------------------------
#
# What differs between GPU architectures and matters to a plan.


SM_RESERVED = 1024  #: bytes of shared memory that the system takes for each CTA


@attrs.frozen
class Arch:
    """What the planner needs to know of an architecture (CUDA programming guide, table of compute capabilities).

    Args:
        name: The architecture as the compiler spells it.
        smem: How much shared memory a CTA can have (bytes), without the 1 KB that the SM keeps.
        wgmma: Whether there are warpgroup matmuls.
        max_cluster: How many CTAs the largest cluster has.
        tma: Whether there is a TMA engine, and what else came with sm_90: byte counts of mbarriers, clusters, proxy fences,
            setmaxnreg and dependent launches.
        gather4: Whether the engine loads four rows of a matrix at once by their numbers.
        scatter4: Whether the engine stores four rows at once by their numbers.
        fp8: Whether threads convert 8-bit floats.
        registers: How many registers of 32 bits an SM has.
    """

    name: str
    smem: int
    wgmma: bool
    max_cluster: int
    tma: bool = True
    gather4: bool = False
    scatter4: bool = False
    fp8: bool = True
    registers: int = 65536


_ARCHS = {
    "sm_80": Arch("sm_80", 163 * 1024, wgmma=False, max_cluster=1, tma=False, fp8=False),
    "sm_86": Arch("sm_86", 99 * 1024, wgmma=False, max_cluster=1, tma=False, fp8=False),
    "sm_89": Arch("sm_89", 99 * 1024, wgmma=False, max_cluster=1, tma=False),
    "sm_90a": Arch("sm_90a", 227 * 1024, wgmma=True, max_cluster=16),
    "sm_100a": Arch("sm_100a", 227 * 1024, wgmma=False, max_cluster=16, gather4=True, scatter4=True),
    "sm_103a": Arch("sm_103a", 227 * 1024, wgmma=False, max_cluster=16, gather4=True, scatter4=True),
    "sm_120a": Arch("sm_120a", 99 * 1024, wgmma=False, max_cluster=8, gather4=True),
}


def arch_named(name: str) -> Arch:
    """The architecture called *name*. Raises `InputError` for one unknown to the library."""
    if not isinstance(name, str) or name not in _ARCHS:
        raise InputError("arch", name, "is one of " + ", ".join(_ARCHS), "use sm_90a for an H100 or H200")
    return _ARCHS[name]


# ---- barriers --------------------------------------------------------------------------------------------------------
#
# The barriers of a plan.


MAX_NAMED_BARRIERS = 16  # a CTA; id 0 is bar.sync 0 (PTX ISA)


@attrs.frozen
class Barrier:
    """An array of mbarriers, 8 bytes each.

    Args:
        name: The array's name, such as "ring.full".
        offset: Where the array begins (bytes).
        stages: How many mbarriers it has: one for each slot, say.
        count: How many arrivals complete a phase, besides the bytes armed by expect-tx.
        formula: How `count` came about, for `explain`.
    """

    name: str
    offset: int
    stages: int
    count: int
    formula: str = ""


@attrs.frozen
class NamedBarrier:
    """Hardware barriers side by side: ``bar.sync id + instance, threads``.

    Args:
        name: The name of all instances.
        id: The id of the first instance, 1 to 15; id 0 is the CTA's own barrier.
        threads: How many threads meet at one instance.
        instances: How many there are: one for each warpgroup, say.
    """

    name: str
    id: int
    threads: int
    instances: int = 1


def next_id(taken: Sequence[NamedBarrier], instances: int, argument: str, value: str) -> int:
    """The first id after the barriers *taken*. Raises `InputError`, with *argument* and *value*, if a CTA has too few
    barriers."""
    first = 1 + sum(barrier.instances for barrier in taken)
    if first + instances > MAX_NAMED_BARRIERS:
        others = ", ".join(barrier.name for barrier in taken)
        rule = f"a CTA has {MAX_NAMED_BARRIERS}, id 0 for itself; the other ones belong to {others}"
        raise InputError(argument, value, rule, "use fewer stores, or sync the same roles again")
    return first


# ---- boxes -----------------------------------------------------------------------------------------------------------
#
# Boxes: how much of a slot one TMA instruction moves, and from where on.


SLOT_ALIGNMENT = 128  # bytes: where the engine writes to shared memory, and reads from it
UNROLLED = 16  # instructions of one copy that stand one after another; more are a loop


def box_of(tile: tuple[int, ...], span: int, peers: int, element: int) -> tuple[int, ...]:
    """The box of one TMA instruction (elements along the extents of a slot's *tile*).

    A box has one of *peers* shares of the rows. A row of the box is at most a swizzle span long. Without a swizzle, rows that
    are longer than a box can be are moved one by one, in equal pieces.

    Args:
        tile: Elements of a slot along the extents by which the engine moves it.
        span: The swizzle span (elements), 0 without a swizzle.
        peers: How many CTAs move a slot together.
        element: Bytes of an element.
    """
    *outer, inner = tile
    if outer:
        outer[0] //= peers
    else:
        inner //= peers
    if span:
        return (*outer, min(inner, span))
    if inner > MAX_BOX:
        whole = bool(outer) or peers == 1
        aligned = [d for d in _pieces(inner) if whole and d * element % SLOT_ALIGNMENT == 0]
        return (*(1 for _ in outer), max(aligned or _pieces(inner)))
    return (*outer, inner)


def cut_by_hand(inner: int, box: int, span: int) -> int:
    """Into how many pieces rows of *inner* elements are cut before CuTe DSL sees them: 1, unless CuTe DSL would take longer
    boxes than *box* elements, or would issue too many boxes one after another. Boxes of *box* elements are the longest that
    divide a row."""
    alike = inner <= MAX_BOX or (box == max(_pieces(inner)) and inner // box <= UNROLLED)
    return 1 if span or alike else inner // box


def _pieces(inner: int) -> list[int]:
    return [d for d in range(1, MAX_BOX + 1) if inner % d == 0]


# ---- units -----------------------------------------------------------------------------------------------------------
#
# Which extents calls may have. `bind` refuses all others.


def units_of(plan: Plan) -> dict[str, int]:
    """Of how many elements the extent of a dimension is a multiple, by dimension.

    A load without a descriptor moves whole pieces of a cluster. The rows of an output are multiples of 16 bytes, or of the
    bytes that a thread stores at once.
    """
    units: dict[str, int] = {}
    for load in plan.loads:
        if not load.tensor_map and not load.vector:
            for dim, extent in zip(load.dims, load.tile, strict=True):
                units[dim] = math.lcm(units.get(dim, 1), extent * plan.cluster.get(dim, 1))
    for store in plan.stores:
        unit, size = store.vector or ALIGNMENT, store.buffer.dtype.in_memory.bytes
        units[store.dims[-1]] = math.lcm(units.get(store.dims[-1], 1), unit // math.gcd(unit, size))
    return {dim: unit for dim, unit in units.items() if unit > 1}


def in_units(extents: Mapping[str, int], units: Mapping[str, int], most: Mapping[str, int]) -> dict[str, int]:
    """*extents*, made longer to whole *units*, or shorter where they would be beyond the *most*."""
    rounded = dict(extents)
    for dim, unit in units.items():
        if rounded.get(dim, 0) % unit:
            longer = ceil_div(rounded[dim], unit) * unit
            rounded[dim] = longer if longer <= most.get(dim, longer) else rounded[dim] // unit * unit or rounded[dim]
    return rounded


# ---- distributed -----------------------------------------------------------------------------------------------------
#
# Slots of shared memory, and values that are distributed over the registers of warpgroups as accumulators are.


BESIDE_SUMS = 26  # registers a thread that ptxas wants at launch for a wgmma besides its sums (its note C7602)


def widest(launch: int) -> int:
    """The largest n of a wgmma, if threads are launched with *launch* registers."""
    return min(256, (launch - BESIDE_SUMS) * 2 // 8 * 8)


class MatmulRegisters(NamedTuple):
    """Registers of a thread. sums: for the tile. a: for operands a from registers. slot: for the sums of one slot, which are
    promoted before the sums of the next slot begin."""

    sums: int
    a: int
    slot: int


def registers_of(shape: tuple[int, int, int], warpgroups: int, promote: bool = False, sets: int = 0) -> MatmulRegisters:
    """The registers of a matmul of *shape*, with *sets* of registers for operands a of 16 bits."""
    (m, n, k), threads = shape, 128 * warpgroups
    sums = m * n // threads
    return MatmulRegisters(sums, sets * m * k // (2 * threads), sums if promote else 0)


@attrs.frozen
class Buffer:
    """Slots of shared memory, all alike.

    Args:
        name: The name of the stage whose tiles lie in the slots.
        offset: Where the first slot begins (bytes).
        stages: How many slots there are, of all owners together.
        tile: Elements of a slot along its one or two extents, the contiguous extent last. (A tile of three or more extents
            lies in a slot as a matrix.)
        dtype: The type of the elements.
        swizzle: The swizzle span (bytes): 0, 32, 64 or 128.
        owners: How many warpgroups have slots of their own: stages / owners each.
        gap: Bytes between slots, so that each slot begins where TMA can reach it.
        over: The stage in whose slots these slots lie, if they have no memory of their own.
    """

    name: str
    offset: int
    stages: int
    tile: tuple[int, ...]
    dtype: DType
    swizzle: int = 0
    owners: int = 1
    gap: int = 0
    over: str | None = None

    @property
    def slot_bytes(self) -> int:
        return math.prod(self.tile) * self.dtype.bytes

    @property
    def pitch(self) -> int:
        """Bytes from one slot to the next."""
        return self.slot_bytes + self.gap

    def byte_in_slot(self, row: Any, column: Any) -> Any:
        """At which byte of a slot byte *column* of a row lies; for run-time values, too. A row is cut into swizzle spans,
        whose 16-byte units are permuted among each 8 rows."""
        if not self.swizzle:
            return row * (self.tile[-1] * self.dtype.bytes) + column
        span = self.swizzle
        place = column // span * (self.tile[0] * span) + row * span + column % span
        return place ^ (((place >> 7) & (span // 16 - 1)) << 4)


class Distributed:
    """Base of values in registers that are distributed as accumulators."""

    name: str
    shape: tuple[int, ...]
    warpgroups: int
    first_warp: int
    teams: int


@attrs.frozen
class Exchanged:
    """What the CTAs of a group exchange through slots that each CTA has: tiles of a `SharedStage`, parts of a `ClusterSum`, or
    numbers of a `ReductionScratch`.

    Args:
        name: The name of the stage, the sum or the scratch.
        buffer: The slots. Other CTAs write them; or other CTAs read them, if there is no sender.
        axes: The axes of the cluster along which the group's CTAs lie.
        sender: The role that writes into the slots of other CTAs.
        source: The slots, in the sender's CTA, from which it sends; None: it sends from registers.
        reduce: How sent values are combined with a slot's values; None: they overwrite them.
        full: The barrier that completes when all values have come, if there is no ring that has one.
        free: The barrier that completes when all CTAs of the group have read their slots, if there is no ring that has one.
    """

    name: str
    buffer: Buffer
    axes: tuple[Along, ...]
    sender: str | None = None
    source: Buffer | None = None
    reduce: str | None = None
    full: Barrier | None = None
    free: Barrier | None = None

    @property
    def peers(self) -> int:
        """CTAs of a group, the own one included."""
        return math.prod(each.ctas for each in self.axes)


@attrs.frozen
class HeldTile(Distributed):
    """A tile of fp32 values that warpgroups compute, and that is stored as a matmul's accumulators are.

    Args:
        name: The name of the `RegisterTile`.
        shape: (m, n) elements.
        first_warp: The role's first warp.
        warpgroups: How many warpgroups the role has, with 64 rows each.
    """

    name: str
    shape: tuple[int, int]
    first_warp: int
    warpgroups: int = 1
    teams = 1


@attrs.frozen
class Matmul(Distributed):
    """A warpgroup matmul: ``acc[m, n] += a[m, k] * b[n, k]``. b is read from slots; a is read from slots or registers.

    The warpgroups that work on one tile are a team. They share the tile's rows in blocks of 64: warp w of the team's warpgroup
    g holds the rows ``(r * warpgroups + g) * 64 + 16 * w`` .. ``+ 16`` for r = 0, 1, ...

    Args:
        name: The matmul's name.
        a: Slots of the first operand; None: it comes from registers.
        b: Slots of the second operand.
        shape: (m, n, k) elements of the CTA's tile.
        warpgroups: How many warpgroups a team has.
        first_warp: The first warp of the role, with all its teams.
        teams: How many teams the role has.
        promote: Whether sums leave the tensor core after each slot.
        transposed: Whether the slots of (a, b) hold tiles (k, m) and (k, n), contiguous along m and n.
        widest: The largest n of one instruction.
        in_flight: If a comes from registers: how many matmuls may run while another one is added.
    """

    name: str
    a: Buffer | None
    b: Buffer
    shape: tuple[int, int, int]
    warpgroups: int
    first_warp: int
    teams: int = 1
    promote: bool = False
    transposed: tuple[bool, bool] = (False, False)
    widest: int = 256
    in_flight: int = 0

    @property
    def types(self) -> tuple[DType, DType]:
        """The types of (a, b)."""
        return self.b.dtype if self.a is None else self.a.dtype, self.b.dtype

    @property
    def registers(self) -> MatmulRegisters:
        """Registers of a thread."""
        return registers_of(self.shape, self.warpgroups, self.promote, self.in_flight + 1 if self.a is None else 0)

    @property
    def n_instructions(self) -> tuple[int, ...]:
        """n of the wgmma instructions side by side.

        There are two if the tile is so wide that one instruction would need more registers than a thread has at launch.
        """
        n, step = self.shape[1], 16 if self.b.dtype.integer else 8
        if n <= self.widest:
            return (n,)
        left = -(-n // (2 * step)) * step
        return left, n - left

    @property
    def k_instructions(self) -> int:
        """How many wgmma instructions a slot takes along k: each takes 32 bytes of k."""
        return self.shape[2] * self.b.dtype.bytes // 32


# ---- rings -----------------------------------------------------------------------------------------------------------
#
# Rings and queues of a plan: slots that go from role to role, and the mbarriers that hand them on.


@attrs.frozen
class Ring:
    """What a role's end of a `BarrierRing` needs to know.

    Args:
        name: The ring's name.
        stages: How many slots it has.
        phases: Names of the roles of each phase.
        barriers: One array of mbarriers for each phase. barriers[p] completes when phase p is done with a slot. So phase p
            waits on barriers[p - 1], and phase 0 on the last one.
        armed: How many bytes each role arms by expect-tx for each slot.
        signals: The roles whose warps arrive when they leave a slot: all roles except those whose loads complete by
            themselves.
        lag: How many slots each role holds back, until its asynchronous reads of them have retired.
        readers: How each role reads: "wgmma" or "tma", or both; a role that is missing reads by threads.
        groups: The axes of each multicast group whose peers a release must reach.
        peers: How many CTAs these peers are.
        loads: Names of each role's loads, and of the stages that it sends to peers.
        held: Whether the ring is filled once per CTA. Then nobody signals that a slot is free, so the last phase has no
            barrier.
        fenced: The roles that read, through the async proxy, slots that threads have filled.
        gone: Stages whose tiles each role no longer finds, since earlier phases have written tiles of other stages over them.
        far: Phases, besides the last one, whose signals must reach the peers, too, since the peers read what these phases have
            written.
        local: Roles of the last phase whose releases reach their own CTA alone.
    """

    name: str
    stages: int
    phases: tuple[tuple[str, ...], ...]
    barriers: tuple[Barrier, ...]
    armed: Mapping[str, int] = attrs.field(converter=frozen)
    signals: tuple[str, ...]
    lag: Mapping[str, int] = attrs.field(converter=frozen)
    readers: Mapping[str, tuple[str, ...]] = attrs.field(converter=frozen)
    groups: tuple[tuple[Along, ...], ...] = ()
    peers: int = 1
    loads: Mapping[str, tuple[str, ...]] = attrs.field(converter=frozen, default=NOTHING)
    held: bool = False
    gone: Mapping[str, tuple[str, ...]] = attrs.field(converter=frozen, default=NOTHING)
    fenced: tuple[str, ...] = ()
    far: tuple[int, ...] = ()
    local: tuple[str, ...] = ()

    def phase_of(self, role: str) -> int | None:
        """The phase that *role* has in this ring, or None."""
        return next((p for p, roles in enumerate(self.phases) if role in roles), None)


@attrs.frozen
class Queue:
    """Tiles on their way from the scheduler warp to all warps of the cluster.

    Args:
        buffer: Slots of words (4 bytes), which say where a tile lies.
        full: Completes when a slot's words have come: it counts the CTA's scheduler, and the bytes.
        free: Completes when a slot has been read: it counts every warp of the cluster.
    """

    buffer: Buffer
    full: Barrier
    free: Barrier
