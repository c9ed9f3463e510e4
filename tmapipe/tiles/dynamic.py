"""Tile schedulers that depend on the device: DynamicTiles, in which a free cluster takes the next tile; GpcTiles, in which the
clusters of a GPC take neighbouring tiles; and GridTiles, in which the hardware starts clusters in order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tmapipe.base.arithmetic import ceil_div
from tmapipe.errors import InputError, is_count, is_small, must, optional, require
from tmapipe.isa.fragment import Value
from tmapipe.isa.ops import Isa
from tmapipe.plan.model import Plan, RoleWarps
from tmapipe.plan.rings import SM_RESERVED, arch_named
from tmapipe.protocol.tile import Tile
from tmapipe.tiles.order import Gpcs, QueueEnd, TilesOfRole
from tmapipe.tiles.persistent import NumberedTiles, PersistentTiles, TileNumbers, number_divisors, steps_of, tile_of

# ---- dynamic ---------------------------------------------------------------------------------------------------------
#
# DynamicTiles: a free cluster takes the next tile.
#
# Each CTA has one more warp, the scheduler, which runs ahead of the others. It takes the next number from a counter
# in global memory and tells the other warps where the tile of this number lies, until no tile is left.


@attrs.frozen
class DynamicTiles(PersistentTiles):
    """Dynamic order: each cluster takes the next tile when it is ready, so that a cluster that is held up takes fewer tiles.

    The results are the same bits as in any other order.

    Args:
        raster: Numbers the tiles, as in `PersistentTiles`.
        stages: How many tiles are fetched ahead; two or more hide the fetch. With 0, a cluster takes its next tile when it has
            started all loads of the tile before. So clusters end together, even if tiles take different times.

    Raises:
        InputError: *stages* is no number of tiles.
    """

    stages: int = attrs.field(
        default=2, validator=must(lambda n: is_count(n) or (n == 0 and type(n) is int), "is a number of tiles", "use 2")
    )

    def queue(self, dims: int) -> tuple[int, int]:
        """As in `TileOrder`. The words say whether there is a tile, and its coordinates."""
        return max(1, self.stages), 1 + dims

    def divisors(self, grid: dict[str, Any], cluster: Mapping[str, int], clusters: Any) -> dict[str, Any]:
        """As in `TileOrder`."""
        return number_divisors(self.raster, steps_of(grid, cluster))

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        loads = any(ring.phase_of(role.name) == 0 for ring in isa.plan.rings)
        return FetchedTiles(isa, self, grid, role, tuple(grid), keeps=self.stages == 0 and loads and role.teams == 1)


class FetchedTiles(TilesOfRole):
    """Tiles that the scheduler fetches one by one. dims: the dimensions whose coordinates a tile's further words are; keeps:
    whether the scheduler waits for the end of a tile's body, in this role, before it fetches the next one.

    State, in registers: how many slots were read, and the words of the last one. The first word says whether there was a tile.
    Of the scheduler also whether it has taken a number.
    """

    def __init__(
        self,
        isa: Isa,
        order: PersistentTiles,
        grid: dict[str, Any],
        role: RoleWarps,
        dims: tuple[str, ...],
        keeps: bool = False,
    ):
        self.isa, self.order, self.dims, self.keeps = isa, order, dims, keeps
        self.numbers = TileNumbers(isa, order, order.raster, grid)
        self.queue = QueueEnd(isa, role)
        self.read = isa.cells(0)
        self.taken = isa.cells(0)
        self.words = isa.cells(*[0] * (1 + len(dims)), names=" ".join(f"tile.{dim}" for dim in ("more", *dims)))

    def each(self, body: Callable[[Tile], None]) -> None:
        """As in `TilesOfRole`."""
        self._next()

        def one() -> None:
            body(self._tile())
            self._release()
            self._next()

        self.isa.loop_while(self.words, one, lambda: self._turns(0, 1))
        self._release()

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        """As in `TilesOfRole`."""
        isa = self.isa

        def pass_over() -> None:
            skip(self._tile())
            self._next()

        def one() -> None:
            body(self._tile())
            self._next()
            for _ in range(teams - 1):
                isa.when(self.words[0] != 0, pass_over)

        self._next()
        for i in range(teams - 1):
            isa.when((team > i) & (self.words[0] != 0), pass_over)
        isa.loop_while(self.words, one, lambda: self._turns(team, teams))

    def finish(self) -> None:
        """As in `TilesOfRole`."""
        self.queue.finish()

    def _release(self) -> None:
        if self.keeps:
            self.queue.release()

    def _next(self) -> None:
        words = self.queue.take(len(self.dims) + 1, self._fetch, self._without_data, keep=self.keeps)
        for i, word in enumerate(words):
            self.words[i] = word
        self.read[0] = self.read[0] + 1

    def _fetch(self) -> Sequence[Any]:
        """Takes the next tile."""
        number = self._take()
        return self._words_of(number, self.isa.select(number < self.numbers.total, 1, 0))

    def _take(self) -> Any:
        """The next number: the cluster's own number first, then numbers from the counter, which begin after the clusters' own.

        Each cluster goes on until it gets a number beyond the last tile. So as many numbers are taken from the counter as
        there are tiles. The cluster that takes the last of them sets the counter back to 0.
        """
        isa = self.isa
        last, taken, later = self.numbers.total - 1, isa.cells(0), self.taken[0]

        def take() -> None:
            taken[0] = isa.atomic_add(0, lambda: self._number_in_turn() - isa.clusters)

        isa.lane_0(take, when=later == 1)
        turn = isa.shuffle(taken[0])
        isa.lane_0(lambda: isa.store_counter(0, 0), when=(later == 1) & (turn == last))
        self.taken[0] = 1
        return isa.select(later == 1, turn + isa.clusters, isa.cluster_id)

    def _words_of(self, number: Any, there_is: Any) -> Sequence[Any]:
        return (there_is, *self.numbers.coordinates(number).values())

    def _tile(self) -> Tile:
        return tile_of(self.isa, {dim: self.words[1 + i] for i, dim in enumerate(self.dims)})

    # ---- in the machine, the clusters take turns ------------------------------------------------------------------

    def _number_in_turn(self) -> int:
        """The number that the cluster takes for the next slot."""
        return self.isa.cluster_id + self.read[0] * self.isa.clusters

    def _without_data(self) -> Sequence[int]:
        """The words of the next slot in the check, in which clusters take tiles in turn."""
        number = self._number_in_turn()
        return self._words_of(number, self.isa.select(number < self.numbers.total, 1, 0))

    def _turns(self, team: int, teams: int) -> int:
        """How many tiles are then left for the team."""
        count = -(-(self.numbers.total - self.isa.cluster_id) // self.isa.clusters)
        turns = -(-(count - team) // teams)
        return self.isa.select(turns > 0, turns, 0)


# ---- gpc positions ---------------------------------------------------------------------------------------------------
#
# Which positions `GpcTiles` keeps for the clusters of each GPC, and the 32-bit words that tell the kernel.


GPC_WORDS = 12  # words with the GPC of each pair of neighbouring multiprocessors, 4 bits per pair
WORDS = GPC_WORDS + 5  # these words, then one byte for the first position of each GPC, and for the end of the last GPC
MOST_GPCS = 16
MOST_CLUSTERS = 255  # positions are bytes
COUNTERS = MOST_GPCS + 1  # positions claimed of each GPC, and clusters that have claimed one


def keep_positions(parts: Sequence[Sequence[int]], cluster_size: int, resident: int, tiles: int) -> list[int]:
    """How many clusters to launch, then the words that tell the kernel which positions are kept for which GPC.

    Every GPC gets the same number of clusters, if that takes no more waves than using all: the hardware distributes clusters
    evenly. Everything counts as one GPC if the device is not understood: another number of clusters, more than 16 GPCs, or
    multiprocessors from number 192 on.

    Args:
        parts: Multiprocessors by GPC.
        cluster_size: CTAs of a cluster.
        resident: Clusters that fit on the device at once.
        tiles: Output tiles, in units of clusters.
    """
    most = max((len(part) // cluster_size for part in parts), default=0)
    whole = [part for part in parts if 2 * (len(part) // cluster_size) >= max(1, most)]
    rest = [part for part in parts if part not in whole and len(part) >= cluster_size]
    groups = [*([part] for part in whole), *([rest] if rest else [])]
    counts = [sum(len(part) // cluster_size for part in group) for group in groups]
    known = 0 < len(groups) <= MOST_GPCS and sum(counts) == resident
    if not known or max(itertools.chain(*parts)) >= 16 * GPC_WORDS:
        groups, counts = [[]], [min(resident, MOST_CLUSTERS)]
    waves = ceil_div(tiles, sum(counts))
    each = ceil_div(tiles, waves * len(counts))
    if each <= min(counts):
        counts = [each] * len(counts)
    firsts = [sum(counts[:i]) for i in range(MOST_GPCS + 1)]
    of_pair = [0] * 8 * GPC_WORDS
    for gpc, group in enumerate(groups):
        for number in itertools.chain(*group):
            of_pair[number // 2] = gpc
    return [sum(counts), *_packed(of_pair, 4), *_packed(firsts, 8)]


def _packed(values: Sequence[int], bits: int) -> list[int]:
    """32-bit words of *values*, *bits* bits each, the first one lowest; signed, as the kernel takes them."""
    a_word = 32 // bits
    words = [
        sum(value << bits * i for i, value in enumerate(values[first : first + a_word]))
        for first in range(0, len(values), a_word)
    ]
    return [word - (1 << 32) if word >> 31 else word for word in words]


# ---- gpc -------------------------------------------------------------------------------------------------------------
#
# GpcTiles: a static order in which clusters of one GPC take neighbouring tiles.
#
# The multiprocessors of a GPU lie in GPCs (eight of 16 or 18 on an H200), each with a path of its own to L2. Reads of
# the same lines by multiprocessors of one GPC, at about the same time, reach L2 as one. So the clusters of a GPC
# should work on tiles that share operands. But the hardware distributes clusters over the GPCs in turn, starting
# anywhere. So each cluster first claims a position, of the positions that are kept for its GPC:
#
# positions   0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15 | 16 ...
# GPC         0                 1                       2
#
# Position p of C takes the tiles p, p + C, p + 2C, ... If the GPC of a cluster has no position left, it takes one of
# another GPC. So each position goes to exactly one cluster, wherever the clusters lie. On an H200, 8192 x 8192 x 8192
# takes 2.3 % less time, and a split-K whose parts each lie in one GPC 9 %.


@attrs.frozen
class GpcTiles(PersistentTiles):
    """Static persistent order as `PersistentTiles`, in which clusters of one GPC take tiles with consecutive numbers.

    Use it with clusters along n, (1, 2): then a is multicast, and with ``Grouped(8)`` the eight clusters of a GPC load the
    same columns of b. It costs an atomic operation before the first load (some 0.7 us) and one more warp in each CTA. The
    results are the same bits as in any other order.

    Args:
        raster: Numbers the tiles, as in `PersistentTiles`.
    """

    launch_words = WORDS

    def queue(self, dims: int) -> tuple[int, int]:
        """As in `TileOrder`. The word is the position."""
        return 1, 1

    def launch_numbers(self, tiles: int, resident: int, cluster_size: int, gpcs: Gpcs) -> list[int]:
        """As in `TileOrder`."""
        return keep_positions(gpcs(), cluster_size, resident, tiles)

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        return TilesOfPosition(isa, self, grid, role)


class TilesOfPosition(NumberedTiles):
    """The calling CTA's tiles, which are known once its cluster has claimed a position."""

    early = False

    def __init__(self, isa: Isa, order: GpcTiles, grid: dict[str, Any], role: RoleWarps):
        super().__init__(isa, order, grid)
        self.queue = QueueEnd(isa, role)
        self.claimed = isa.cells(0, names="claimed")

    def begin(self) -> None:
        """The scheduler claims a position."""
        self.queue.once_a_cluster(self._claim)

    def each(self, body: Callable[[Tile], None]) -> None:
        """Runs *body* once per tile. The scheduler has none."""
        self._find_position()
        if not self.queue.leads:
            super().each(body)

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        """As in `TilesOfRole`."""
        self._find_position()
        super().each_in_turn(team, teams, body, skip)

    def finish(self) -> None:
        """As in `TilesOfRole`."""
        self.queue.finish()
        self.queue.once_a_cluster(lambda: _count_claim(self.isa))

    def _claim(self) -> None:
        self.claimed[0] = _claim_position(self.isa)

    def _find_position(self) -> None:
        (position,) = self.queue.take(1, lambda: (self.claimed[0],), lambda: (self.isa.cluster_id,))
        self.at(position)


def _claim_position(isa: Isa) -> Value:
    """A position from 0 to clusters - 1 that no other cluster gets. Once per cluster."""
    kept = isa.launch_words(_of_one_gpc)
    going, gpc, position = range(3)
    claims = isa.cells(0, 0, 0, names="claim.going claim.gpc claim.position")

    def try_one() -> None:
        first, end = (_field(isa, kept[GPC_WORDS:], claims[gpc] + i, 8) for i in range(2))
        claims[position] = first + isa.atomic_add(claims[gpc], lambda: isa.cluster_id)
        claims[going] = isa.select(claims[position] < end, 0, 1)
        claims[gpc] = isa.select(end >= isa.clusters, 0, claims[gpc] + 1)

    def claim() -> None:
        claims[going] = 1
        claims[gpc] = _field(isa, kept[:GPC_WORDS], isa.smid() // 2, 4)
        isa.loop_while(claims, try_one)

    isa.lane_0(claim)
    return isa.shuffle(claims[position])


def _count_claim(isa: Isa) -> None:
    """Counts a cluster that has claimed a position. The last one sets all counters back to 0 for the next launch."""

    def count() -> None:
        before = isa.atomic_add(MOST_GPCS, lambda: isa.cluster_id)
        isa.when(before == isa.clusters - 1, reset)

    def reset() -> None:
        for i in range(COUNTERS):
            isa.store_counter(i, 0)

    isa.lane_0(count)


def _field(isa: Isa, words: Sequence[Value], i: Value, bits: int) -> Value:
    """Field *i* of packed fields of *bits* bits each."""
    a_word = 32 // bits
    word = words[0]
    for n in range(1, len(words)):
        word = isa.select(i // a_word == n, words[n], word)
    return (word >> (i % a_word * bits)) & ((1 << bits) - 1)


def _of_one_gpc(clusters: int) -> Sequence[int]:
    """The words with which all multiprocessors count as one GPC."""
    require(clusters <= MOST_CLUSTERS, "clusters", clusters, f"is at most {MOST_CLUSTERS} with GpcTiles", "run fewer")
    return keep_positions((), 1, clusters, clusters)[1:]


# ---- grid ------------------------------------------------------------------------------------------------------------
#
# GridTiles: a cluster for each tile, or for a few, which the hardware starts one after another.


MOST_CTAS, MOST_THREADS = 32, 2048  # of a multiprocessor (CUDA programming guide, sm_80 and sm_90)


@attrs.frozen
class GridTiles(PersistentTiles):
    """Each cluster takes one tile or a few. The hardware starts clusters in the order of the tiles' numbers, whenever others
    end.

    Several CTAs share a multiprocessor: one loads while another computes or stores. So rings have few slots (`stages`). It is
    for kernels that the memory bounds, since the tiles in flight lie close together, which keeps few DRAM pages open. What a
    CTA loads once, each cluster loads once for its tiles.

    Args:
        raster: Numbers the tiles, as in `PersistentTiles`.
        ctas: How many CTAs share a multiprocessor. No more do. Shared memory and threads must be enough for all of them, and
            the compiler is told to spare registers for them. None: as many as shared memory, registers and threads allow; but
            one for kernels with wgmma, which then has all registers. If several CTAs with wgmma share the registers, no role
            sets its own number, so accumulators must be small. Not with `Role(registers=)`, which needs all registers.
        each: How many neighbouring tiles a cluster takes, one after another. With as many slots, the next tile is loaded while
            a tile is computed, and what a CTA loads once serves all of them.

    Raises:
        InputError: For any other value.
    """

    ctas: int | None = attrs.field(
        default=None, validator=must(optional(is_count), "is a positive number of CTAs", "leave it out")
    )

    each: int = attrs.field(
        default=1, validator=must(is_small, "is a positive number of tiles below 2^31", "leave it out")
    )

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        return _Span(isa, self, grid).at(isa.cluster_id)

    def spans(self, tiles: int) -> int:
        """As in `TileOrder`."""
        return ceil_div(tiles, self.each)

    def launch_numbers(self, tiles: int, resident: int, cluster_size: int, gpcs: Gpcs) -> list[int]:
        """As in `TileOrder`."""
        return [self.spans(tiles)]

    def room(self, arch: str) -> int | None:
        """As in `TileOrder`: the CTA's share of a multiprocessor's shared memory."""
        if self.ctas is None:
            return None
        return (arch_named(arch).smem + SM_RESERVED) // self.ctas // 128 * 128 - SM_RESERVED

    def check_plan(self, plan: Plan) -> None:
        """As in `TileOrder`: *ctas* CTAs must fit on a multiprocessor."""
        room = self.room(plan.arch)
        if self.ctas is None or self.ctas == 1 or room is None:
            return
        rule = "does not go with Role(registers), by which one CTA takes all registers of a multiprocessor"
        require(not plan.registers, "GridTiles(ctas)", self.ctas, rule, "leave out one of the two")
        if self.ctas > MOST_CTAS or self.ctas * plan.threads > MOST_THREADS:
            rule = (
                f"are CTAs of {plan.threads} threads; a multiprocessor has {MOST_THREADS} threads and {MOST_CTAS} CTAs"
            )
            raise InputError("GridTiles(ctas)", self.ctas, rule, f"use {min(MOST_CTAS, MOST_THREADS // plan.threads)}")
        if plan.smem_bytes > room:
            most = (plan.target.smem + SM_RESERVED) // (plan.smem_bytes + SM_RESERVED)
            rule = f"need {plan.smem_bytes} bytes of shared memory each; there are {max(room, 0)} for each"
            raise InputError("GridTiles(ctas)", self.ctas, rule, f"use {most}, fewer stages or a smaller tile")

    def smem_bytes(self, plan: Plan) -> int:
        """As in `TileOrder`: enough that no more than *ctas* CTAs fit on a multiprocessor."""
        room = self.room(plan.arch)
        return plan.smem_bytes if room is None else max(plan.smem_bytes, room)

    def least_ctas(self) -> int:
        """As in `TileOrder`."""
        return self.ctas or 1


class _Span(NumberedTiles):
    """The tiles of a cluster, if there is one cluster for each span of tiles. A single tile takes no loop, so that a CTA loads
    it early."""

    order: GridTiles

    def _count(self) -> Any:
        each, left = self.order.each, self.numbers.total - self.number(0)
        return 1 if each == 1 else self.isa.select(left < each, left, each)

    def number(self, i: Any) -> Any:
        return self.position * self.order.each + i

    def each(self, body: Callable[[Tile], None]) -> None:
        if self.order.each == 1:
            body(Tile(dict(zip(self.dims, self.first, strict=True))))
        else:
            super().each(body)
