"""The order of tiles: every tile of the grid once, over all clusters and their CTAs, neighbours close in time."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.sweeps import examples
from tests.unit.errors import refused
from tests.unit.fake_isa import RecordingIsa
from tmapipe.base.arithmetic import ceil_div
from tmapipe.protocol.tile import Tile, start_of
from tmapipe.tiles import Backwards, Columns, Grouped, Hilbert, PersistentTiles, Snake, Triangle


class Place:
    """As much of an instruction set as the tile order needs: one CTA's place in the grid."""

    def __init__(self, cluster, rank, cluster_id, clusters):
        self.plan, self.cta_rank = self, rank
        self.cluster, self.cluster_size = cluster, math.prod(cluster.values())
        self.cluster_id, self.clusters = cluster_id, clusters

    def select(self, condition, then, otherwise):
        return then if condition else otherwise

    def here(self, value, name=""):
        return value

    def divisors(self, values):
        assert all(isinstance(value, int) and value > 0 for value in values.values()), values
        return values


def taken(order, grid, cluster, clusters):
    """Tiles as a tuple of coordinates, by (cluster, rank), each in the order in which the CTA takes them."""
    found = {}
    for cluster_id, rank in itertools.product(range(clusters), range(math.prod(cluster.values()))):
        bound = order.bind(Place(cluster, rank, cluster_id, clusters), grid, None)
        found[cluster_id, rank] = [tuple(bound.tile(i)[dim] for dim in grid) for i in range(bound.count)]
    return found


rows, squares = st.integers(1, 10), st.sampled_from([1, 2, 4, 8, 16])


def in_order(raster, grid):
    """All tiles in the order in which they are numbered."""
    return taken(PersistentTiles(raster), grid, {}, 1)[0, 0]


@st.composite
def problems(draw):
    names = draw(st.sampled_from([("n",), ("m", "n"), ("l", "m", "n"), ("b", "l", "m", "n")]))
    grid = {dim: draw(st.integers(1, 9)) for dim in names}
    cluster = {dim: draw(st.integers(1, 3)) for dim in draw(st.permutations(names)) if draw(st.booleans())}
    if math.prod(cluster.values()) > 16:
        cluster = {}
    raster = draw(
        st.one_of(
            *(st.builds(kind, rows) for kind in (Grouped, Snake, Backwards, Columns)), st.builds(Hilbert, squares)
        )
    )
    return grid, cluster, raster, draw(st.integers(1, 9))


@settings(max_examples=examples(150))
@given(problem=problems())
def test_every_tile_once(problem):
    """Each tile of the grid once; and besides, where the cluster does not divide the grid, tiles wholly outside it, once."""
    grid, cluster, raster, clusters = problem
    found = taken(PersistentTiles(raster), grid, cluster, clusters)
    tiles = list(itertools.chain(*found.values()))
    padded = [ceil_div(count, cluster.get(dim, 1)) * cluster.get(dim, 1) for dim, count in grid.items()]
    assert sorted(tiles) == sorted(itertools.product(*(range(count) for count in padded)))


@settings(max_examples=examples(100))
@given(problem=problems(), each=st.integers(1, 5))
def test_clusters_take_spans_of_tiles(problem, each):
    """Every tile once, and by a cluster a span of `each` neighbours."""
    grid, cluster, raster, _ = problem
    order = tp.tiles.GridTiles(raster, each=each)
    tiles = order.clusters(grid, cluster)
    (spans,) = order.launch_numbers(tiles, 1, 1, list)
    assert order.spans(tiles) == spans and PersistentTiles(raster).spans(tiles) is None
    numbers = list(itertools.chain(*taken(PersistentTiles(raster), grid, cluster, 1).values()))
    found = taken(order, grid, cluster, spans)
    assert sorted(itertools.chain(*found.values())) == sorted(numbers)
    if not cluster:
        assert spans == ceil_div(len(numbers), each)
        assert [found[i, 0] for i in range(spans)] == [numbers[i * each : (i + 1) * each] for i in range(spans)]


@pytest.mark.parametrize("tiles", [PersistentTiles(), tp.tiles.DynamicTiles(), tp.tiles.GridTiles()])
def test_more_tiles_than_numbers(tiles):
    """A kernel would find none of them, and leave the output as it is."""
    schedule, shapes = tp.schedules.Copy((1, 16), stages=1, pending=0), {"x": (2**20, 2**15), "y": (2**20, 2**15)}
    schedule.tiles = tiles
    refused(schedule.cluster_count, shapes, argument="tiles of the output", value=2**31, rule="too many")
    few = dict.fromkeys(shapes, (2**19, 2**15))
    assert schedule.cluster_count(few) == 2**30


def test_a_grid_launches_as_many_clusters_as_tiles_of_one_each():
    order, grid, cluster = tp.tiles.GridTiles(Grouped(1)), {"m": 300, "n": 5}, {"m": 2}
    tiles = order.clusters(grid, cluster)
    assert order.launch_numbers(tiles, 66, 2, list) == [750]
    found = taken(order, grid, cluster, 750)
    assert [found[i, 0] for i in range(6)] == [[(0, 0)], [(0, 1)], [(0, 2)], [(0, 3)], [(0, 4)], [(2, 0)]]
    assert all(len(each) == 1 for each in found.values())
    plan = tp.schedules.Copy((2, 256), stages=1, pending=0).plan()
    assert order.smem_bytes(plan) == PersistentTiles().smem_bytes(plan) == plan.smem_bytes == 2176
    for ctas in (4, 16, 32):  # of the 228 KB of a multiprocessor, 1 KB a CTA is the system's
        nbytes = tp.tiles.GridTiles(ctas=ctas).smem_bytes(plan)
        assert (228 * 1024) // (nbytes + 1024) == ctas and nbytes % 128 == 0
    assert tp.tiles.GridTiles(ctas=200).smem_bytes(plan) == 2176
    refused(tp.tiles.GridTiles, ctas=0, argument="ctas", rule="positive number of CTAs")
    refused(tp.tiles.GridTiles, each=0, argument="each", rule="positive number of tiles")
    assert isinstance(order, PersistentTiles) and order != PersistentTiles(Grouped(1))


@settings(max_examples=examples(100))
@given(problem=problems())
def test_the_ctas_of_a_cluster_work_side_by_side(problem):
    """At every step they hold the tiles of one cluster-shaped block, each at its own coordinate: so peers share operands."""
    grid, cluster, raster, clusters = problem
    found = taken(PersistentTiles(raster), grid, cluster, clusters)
    size = math.prod(cluster.values())
    for cluster_id in range(clusters):
        steps = [found[cluster_id, rank] for rank in range(size)]
        assert len({len(tiles) for tiles in steps}) == 1
        for tiles in zip(*steps, strict=True):
            extents = [cluster.get(dim, 1) for dim in grid]
            origin = tuple(low // extent * extent for low, extent in zip(tiles[0], extents, strict=True))
            block = itertools.product(*(range(o, o + e) for o, e in zip(origin, extents, strict=True)))
            assert sorted(tiles) == sorted(block)


@settings(max_examples=examples(100))
@given(problem=problems())
def test_work_is_even_and_counted(problem):
    grid, cluster, raster, clusters = problem
    order = PersistentTiles(raster)
    counts = [len(tiles) for tiles in taken(order, grid, cluster, clusters).values()]
    assert max(counts) - min(counts) <= 1
    assert order.clusters(grid, cluster) * math.prod(cluster.values()) == sum(counts)


@pytest.mark.parametrize("group", [1, 2, 3, 8])
@pytest.mark.parametrize("raster", [Grouped, Snake])
def test_grouped_order(group, raster):
    """One cluster at a time: `group` rows before the next column, bands of rows one after another, batches last. A snake goes
    through every second band backwards."""
    expected = []
    for batch in range(2):
        for band, first in enumerate(range(0, 7, group)):
            backwards = raster is Snake and band % 2 == 1
            for column in reversed(range(5)) if backwards else range(5):
                expected += [(batch, row, column) for row in range(first, min(7, first + group))]
    assert in_order(raster(group), {"l": 2, "m": 7, "n": 5}) == expected


@pytest.mark.parametrize("side", [1, 2, 4, 8, 16, 64])
def test_hilbert_curve_of_a_square(side):
    """Each step is to a neighbour, and each aligned square of 2^i tiles a side is gone through without leaving it."""
    curve = in_order(Hilbert(side), {"m": side, "n": side})
    assert curve[0] == (0, 0) and curve[-1] == (0, side - 1)
    assert all(abs(m - y) + abs(n - x) == 1 for (m, n), (y, x) in itertools.pairwise(curve))
    for bits in range(side.bit_length()):
        squares = [(m >> bits, n >> bits) for m, n in curve]
        assert len(list(itertools.groupby(squares))) == 4 ** (side.bit_length() - 1 - bits)


@pytest.mark.parametrize(("columns", "jumps"), [(12, 2), (14, 3)])
def test_hilbert_curves_along_bands(columns, jumps):
    """Steps to no neighbour: one between bands of 4 rows; or, with two columns left over, one between these in each band."""
    curve = in_order(Hilbert(4), {"m": 12, "n": columns})
    steps = [abs(m - y) + abs(n - x) for (m, n), (y, x) in itertools.pairwise(curve)]
    assert sum(step != 1 for step in steps) == jumps, steps


def test_persistent_clusters_take_every_cth_tile():
    one = [tiles[0] for tiles in taken(PersistentTiles(Grouped(3)), {"m": 5, "n": 4}, {}, 20).values()]
    for clusters in (1, 2, 3, 7):
        found = taken(PersistentTiles(Grouped(3)), {"m": 5, "n": 4}, {}, clusters)
        for cluster_id in range(clusters):
            assert found[cluster_id, 0] == one[cluster_id::clusters]


def test_backwards():
    """In each matrix from the last tile to the first; batches in their order."""
    grid = {"l": 2, "m": 7, "n": 5}
    mirrored = [(batch, 6 - row, 4 - column) for batch, row, column in in_order(Grouped(3), grid)]
    assert in_order(Backwards(3), grid) == mirrored


def test_a_triangle_has_each_tile_below_the_diagonal_once():
    """In units of clusters; each matrix of a batch after the one before."""
    for side, rows, batch in itertools.product((1, 2, 3, 4, 7, 10), (1, 3), (1, 2)):
        raster = Triangle(rows)
        grid, cluster = {"l": batch, "m": 2 * side - 1, "n": side}, {"m": 2}
        found = taken(PersistentTiles(raster), grid, cluster, 1)[0, 0]
        want = [(which, 2 * m, n) for which in range(batch) for m in range(side) for n in range(m + 1)]
        assert PersistentTiles(raster).clusters(grid, cluster) == len(want) and sorted(found) == want
        assert [tile[0] for tile in found] == sorted(tile[0] for tile in found)


def test_tiles_of_a_triangle_are_near_each_other():
    """Of 66 tiles one after the other, few rows and columns of operands are loaded."""
    numbered = in_order(Triangle(8), {"m": 64, "n": 64})
    waves = [numbered[i : i + 66] for i in range(0, len(numbered), 66)]
    loaded = [len({m for m, _ in wave}) + len({n for _, n in wave}) for wave in waves]
    assert max(loaded) <= 35 and sum(loaded) <= 22 * len(waves)  # 17 is the least for 66 tiles


def test_more_clusters_than_tiles():
    found = taken(PersistentTiles(), {"m": 1, "n": 2}, {}, 5)
    assert [len(tiles) for tiles in found.values()] == [1, 1, 0, 0, 0]


def test_bad_rasters():
    for raster in (Grouped, Snake, Backwards, Columns, Hilbert, Triangle):
        for rows in (0, -3, 2.5, "8"):
            refused(raster, rows, argument=f"{raster.__name__}(rows)", value=rows, rule="positive number")
    for rows in (3, 12, 512):
        refused(Hilbert, rows, argument="Hilbert(rows)", value=rows, rule="power of two")
    refused(
        PersistentTiles,
        8,
        argument="PersistentTiles(raster)",
        value=8,
        rule="Grouped, Snake, Backwards, Columns, Hilbert or Triangle",
    )


# ---- coordinates ------------------------------------------------------------------------------------------------------


def test_tile_coordinates():
    tile = Tile({"m": 3, "n": 4})
    assert (tile.m, tile["n"], tile.get("k")) == (3, 4, None)
    for wrong in (lambda: tile.k, lambda: tile["k"]):
        with pytest.raises(tp.errors.ScopeError, match=r"tile\.k: the tile has no such dimension, only m, n"):
            wrong()
    assert getattr(tile, "k", 5) == 5
    with pytest.raises(tp.errors.ScopeError, match=r"tile\.m is set, but"):
        tile.m = 1


def test_start_of_a_tile():
    tile = Tile({"m": 3, "n": 4})
    assert start_of("x", ("m", "n"), (64, 128), tile, {}) == (192, 512)
    assert start_of("x", ("l", "m", "n"), (1, 64, 128), tile, {"l": 5, "n": 0}) == (5, 192, 0)
    assert start_of("x", ("m", "k"), (64, 32), None, {"m": 1, "k": 2}) == (64, 64)
    refused(start_of, "x", ("m", "k"), (64, 32), tile, {}, argument="x", value=["k"], rule="every dimension")
    refused(start_of, "x", ("m", "n"), (64, 32), tile, {"q": 1}, argument="x", value=["q"], rule="m, n")


@given(a=st.integers(0, 10**9), b=st.integers(1, 10**6))
def test_ceil_div(a, b):
    assert ceil_div(a, b) == math.ceil(a / b) if a < 2**50 else True
    assert (ceil_div(a, b) - 1) * b < a <= ceil_div(a, b) * b


def test_columns_are_rows_exchanged():
    one, other = Columns(3), Grouped(3)
    by, transposed = one.divisors(5, 7), other.divisors(7, 5)
    isa = RecordingIsa(None)
    places = [one.coordinates(isa, by, 5, 7, i) for i in range(35)]
    assert places == [other.coordinates(isa, transposed, 7, 5, i)[::-1] for i in range(35)]
    assert places[:4] == [(0, 0), (0, 1), (0, 2), (1, 0)]


# ---- orders that a schedule cannot take -------------------------------------------------------------------------------


class Product(tp.Schedule):
    """As a user writes it."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(64, 64), ring=ring)
    b = tp.TmaLoadStage("n k", tile=(64, 64), ring=ring)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)


class WithTable(Product):
    offsets = tp.Table("l")


PARTS = (tp.tiles.SplitKTiles(2), tp.tiles.StreamKTiles(shares=2))


@pytest.mark.parametrize(
    "make, tiles, argument, rule",
    [
        *((Product, order, "Schedule.tiles", "a dimension s of the output") for order in PARTS),
        *((tp.schedules.Copy, order, f"{type(order).__name__}(stage, dim)", "a load of Copy") for order in PARTS),
        (Product, tp.tiles.SplitKTiles(2, stage="d"), "SplitKTiles(stage, dim)", "a load of Product"),
        (Product, tp.tiles.SplitKTiles(2, dim="q"), "SplitKTiles(stage, dim)", "one of its dimensions"),
        (Product, tp.tiles.GroupedTiles(rows=64), "GroupedTiles(table)", "it has none"),
        (WithTable, tp.tiles.GroupedTiles(), "GroupedTiles(rows)", "rows of an output tile, 64"),
        (WithTable, tp.tiles.GroupedTiles(rows=32), "GroupedTiles(rows)", "rows of an output tile, 64"),
        (WithTable, tp.tiles.GroupedTiles(rows=64, output="a"), "GroupedTiles(output)", "names a store of WithTable"),
        (WithTable, tp.tiles.GroupedTiles(rows=64, table="d"), "GroupedTiles(table)", r"of WithTable \(offsets\)"),
    ],
)
def test_refused(make, tiles, argument, rule):
    schedule = make()
    schedule.tiles = tiles
    refused(schedule.plan, argument=argument, rule=rule)


@pytest.mark.parametrize("wrong", [None, 3, [], "", "a b"])
def test_names_of_parts(wrong):
    refused(tp.tiles.GroupedTiles, table=wrong, argument="GroupedTiles(table)", value=wrong, rule="is a name")
    refused(tp.tiles.GroupedTiles, output=wrong, argument="GroupedTiles(output)", value=wrong, rule="is a name")
    for field in ("stage", "dim"):
        what = {"value": wrong, "rule": "is a name", field: wrong}
        refused(tp.tiles.SplitKTiles, 2, argument=f"SplitKTiles({field})", **what)
        refused(tp.tiles.StreamKTiles, shares=2, argument=f"StreamKTiles({field})", **what)


def test_another_grid_than_that_of_a_matrix():
    schedule = WithTable()
    schedule.over, schedule.tiles = "n m k", tp.tiles.GroupedTiles(rows=64)
    refused(schedule.plan, argument="Schedule.tiles", rule="dimensions m and n")
