"""Stream-K: every step of every tile in exactly one piece, equal shares, pieces in the order of steps."""

import itertools
import math

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweeps import examples
from tests.unit.errors import refused
from tests.unit.test_tiles import Place
from tmapipe import schedules as S
from tmapipe.base.arithmetic import ceil_div
from tmapipe.tiles import Grouped, Hilbert, PersistentTiles, Snake, StreamKTiles


@attrs.frozen
class Load:
    argument = "a"
    dims = ("l", "m", "k")
    tile = (1, 64, 16)


class Worker(Place):
    """One CTA's place, with the tensor that the steps are counted on."""

    def __init__(self, cluster, rank, cluster_id, clusters, steps):
        super().__init__(cluster, rank, cluster_id, clusters)
        self.steps = steps

    def load(self, name):
        assert name == "a"
        return Load()

    def extent(self, argument, dim):
        assert (argument, dim) == ("a", 2)
        return 16 * self.steps - 3

    def cells(self, *initial, names=""):
        return list(initial)

    def when(self, condition, body):
        if condition:
            body()

    def loop(self, trips, body):
        for i in range(trips):
            body(i)


def pieces(order, grid, cluster, clusters, steps):
    """By (cluster, rank): its pieces, each as (number of the piece in its tile, tile, first step, steps)."""
    found = {}
    for cluster_id, rank in itertools.product(range(clusters), range(math.prod(cluster.values()))):
        taken = found[cluster_id, rank] = []
        bound = order.bind(Worker(cluster, rank, cluster_id, clusters, steps), grid, None)
        bound.each(
            lambda t, taken=taken: taken.append((t.s, tuple(t[d] for d in grid if d != "s"), t.first, t["steps"]))
        )
    return found


@settings(max_examples=examples(400))
@given(
    m=st.integers(1, 6),
    n=st.integers(1, 6),
    shares=st.integers(1, 12),
    clusters=st.integers(1, 9),
    steps=st.integers(1, 20),
    cluster=st.sampled_from([{}, {"m": 2}, {"n": 2}, {"m": 2, "n": 2}]),
    raster=st.sampled_from([Grouped(2), Snake(3), Hilbert(2)]),
)
def test_every_step_once(m, n, shares, clusters, steps, cluster, raster):
    order = StreamKTiles(raster, shares=shares)
    tiles = ceil_div(m, cluster.get("m", 1)) * ceil_div(n, cluster.get("n", 1))
    least, most = order.pieces(tiles, steps)
    found = pieces(order, {"s": most, "m": m, "n": n}, cluster, clusters, steps)
    padded = [range(ceil_div(count, cluster.get(d, 1)) * cluster.get(d, 1)) for d, count in (("m", m), ("n", n))]
    everything = list(itertools.chain(*found.values()))
    covered = [(tile, first + i) for _, tile, first, count in everything for i in range(count)]
    assert sorted(covered) == sorted((tile, step) for tile in itertools.product(*padded) for step in range(steps))
    assert all(count > 0 for *_, count in everything), "a piece of nothing"

    for tile in itertools.product(*padded):  # its pieces are numbered in the order of their steps
        own = sorted((first, number) for number, at, first, _ in everything if at == tile)
        assert [number for _, number in own] == list(range(len(own))) and least <= len(own) <= most

    size = ceil_div(tiles * steps, shares)
    done = [sum(count for *_, count in own) for own in found.values()]
    assert max(done) <= size * ceil_div(shares, clusters), "even shares"
    for cluster_id in range(clusters):
        alike = {tuple((s, first, count) for s, _, first, count in found[key]) for key in found if key[0] == cluster_id}
        assert len(alike) == 1, "the CTAs of a cluster work side by side"


def test_the_picture():
    """The example of the module's documentation."""
    found = pieces(StreamKTiles(Grouped(1), shares=4), {"s": 4, "m": 1, "n": 3}, {}, 4, 8)
    assert [found[c, 0] for c in range(4)] == [
        [(0, (0, 0), 0, 6)],
        [(1, (0, 0), 6, 2), (0, (0, 1), 0, 4)],
        [(1, (0, 1), 4, 4), (0, (0, 2), 0, 2)],
        [(1, (0, 2), 2, 6)],
    ]


def test_whole_tiles_are_not_cut():
    found = pieces(StreamKTiles(Grouped(1), shares=3), {"s": 3, "m": 2, "n": 3}, {}, 3, 5)
    bound = PersistentTiles(Grouped(1)).bind(Place({}, 0, 0, 1), {"m": 2, "n": 3}, None)
    one = [(bound.tile(i).m, bound.tile(i).n) for i in range(bound.count)]
    assert [piece for c in range(3) for piece in found[c, 0]] == [(0, tile, 0, 5) for tile in one]


@pytest.mark.parametrize("shares", [0, 2.5, None])
def test_refused(shares):
    refused(StreamKTiles, shares=shares, argument="StreamKTiles(shares)", value=shares, rule="positive number")


def test_more_steps_than_numbers():
    order = StreamKTiles(shares=132)
    assert order.pieces(2**19, 2**11) == (1, 2)
    refused(order.pieces, 2**20, 2**11, argument="steps of all tiles", value=2**31, rule="too many")


def test_teams_are_refused():
    order = StreamKTiles(shares=2)
    bound = order.bind(Worker({}, 0, 0, 1, 4), {"s": 2, "m": 1, "n": 1}, None)
    refused(bound.each_in_turn, 0, 2, None, None, argument="StreamKTiles", value=2, rule="not to teams")
    assert S.StreamK(2).tiles == order
