"""The order of tiles: every tile of the grid once, over all clusters and their CTAs, neighbours close in time."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.errors import refused
from tmapipe import PersistentTiles
from tmapipe.tiles import Tile, ceil_div, start_of


class Place:
    """As much of an instruction set as the tile order needs: one CTA's place in the grid."""

    def __init__(self, cluster, rank, cluster_id, clusters):
        self.plan, self.cta_rank = self, rank
        self.cluster, self.cluster_size = cluster, math.prod(cluster.values())
        self.cluster_id, self.clusters = cluster_id, clusters

    def select(self, condition, then, otherwise):
        return then if condition else otherwise

    def divisors(self, values):
        assert all(isinstance(value, int) and value > 0 for value in values.values()), values
        return values


def taken(order, grid, cluster, clusters):
    """Tiles as a tuple of coordinates, by (cluster, rank), each in the order in which the CTA takes them."""
    found = {}
    for cluster_id, rank in itertools.product(range(clusters), range(math.prod(cluster.values()))):
        bound = order.bind(Place(cluster, rank, cluster_id, clusters), grid)
        found[cluster_id, rank] = [tuple(bound.tile(i)[dim] for dim in grid) for i in range(bound.count)]
    return found


@st.composite
def problems(draw):
    names = draw(st.sampled_from([("n",), ("m", "n"), ("l", "m", "n"), ("b", "l", "m", "n")]))
    grid = {dim: draw(st.integers(1, 9)) for dim in names}
    cluster = {dim: draw(st.integers(1, 3)) for dim in draw(st.permutations(names)) if draw(st.booleans())}
    if math.prod(cluster.values()) > 16:
        cluster = {}
    return grid, cluster, draw(st.integers(1, 10)), draw(st.integers(1, 9))


@settings(max_examples=300)
@given(problem=problems())
def test_every_tile_once(problem):
    """Each tile of the grid once; and besides, where the cluster does not divide the grid, tiles wholly outside it, once."""
    grid, cluster, group, clusters = problem
    found = taken(PersistentTiles(group), grid, cluster, clusters)
    tiles = list(itertools.chain(*found.values()))
    padded = [ceil_div(count, cluster.get(dim, 1)) * cluster.get(dim, 1) for dim, count in grid.items()]
    assert sorted(tiles) == sorted(itertools.product(*(range(count) for count in padded)))


@settings(max_examples=200)
@given(problem=problems())
def test_the_ctas_of_a_cluster_work_side_by_side(problem):
    """At every step they hold the tiles of one cluster-shaped block, each at its own coordinate: so peers share operands."""
    grid, cluster, group, clusters = problem
    found = taken(PersistentTiles(group), grid, cluster, clusters)
    size = math.prod(cluster.values())
    for cluster_id in range(clusters):
        steps = [found[cluster_id, rank] for rank in range(size)]
        assert len({len(tiles) for tiles in steps}) == 1
        for tiles in zip(*steps, strict=True):
            extents = [cluster.get(dim, 1) for dim in grid]
            origin = tuple(low // extent * extent for low, extent in zip(tiles[0], extents, strict=True))
            block = itertools.product(*(range(o, o + e) for o, e in zip(origin, extents, strict=True)))
            assert sorted(tiles) == sorted(block)


@settings(max_examples=200)
@given(problem=problems())
def test_work_is_even_and_counted(problem):
    grid, cluster, group, clusters = problem
    order = PersistentTiles(group)
    counts = [len(tiles) for tiles in taken(order, grid, cluster, clusters).values()]
    assert max(counts) - min(counts) <= 1
    assert order.clusters(grid, cluster) * math.prod(cluster.values()) == sum(counts)


@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_grouped_order(group):
    """One cluster at a time: `group` rows before the next column, bands of rows one after another, batches last."""
    grid = {"l": 2, "m": 7, "n": 5}
    found = [taken(PersistentTiles(group), grid, {}, 70)[c, 0] for c in range(70)]
    assert all(len(tiles) == 1 for tiles in found)
    expected = []
    for batch in range(2):
        for first in range(0, 7, group):
            for column in range(5):
                expected += [(batch, row, column) for row in range(first, min(7, first + group))]
    assert [tiles[0] for tiles in found] == expected


def test_persistent_clusters_take_every_cth_tile():
    one = [tiles[0] for tiles in taken(PersistentTiles(3), {"m": 5, "n": 4}, {}, 20).values()]
    for clusters in (1, 2, 3, 7):
        found = taken(PersistentTiles(3), {"m": 5, "n": 4}, {}, clusters)
        for cluster_id in range(clusters):
            assert found[cluster_id, 0] == one[cluster_id::clusters]


def test_more_clusters_than_tiles():
    found = taken(PersistentTiles(), {"m": 1, "n": 2}, {}, 5)
    assert [len(tiles) for tiles in found.values()] == [1, 1, 0, 0, 0]


def test_bad_group():
    for group in (0, -3, 2.5, "8"):
        refused(PersistentTiles, group, argument="PersistentTiles(group)", value=group, rule="positive number")


# ---- coordinates ------------------------------------------------------------------------------------------------------


def test_tile_coordinates():
    tile = Tile({"m": 3, "n": 4})
    assert (tile.m, tile["n"], tile.get("k")) == (3, 4, None)
    with pytest.raises(AttributeError, match="no dimension 'k', only m, n"):
        tile.k  # noqa: B018


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
