"""Peers, masks and shares of a cluster against brute force, for any shape up to 16 CTAs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tmapipe as tp
from tests.oracle.peer_forms import WholeBoxes
from tests.unit.errors import refused
from tmapipe import MulticastGroup
from tmapipe.multicast import check_cluster, peer_pattern
from tmapipe.protocol.cluster import cluster_coordinate, peer_mask, share_index

AXES = ("m", "n", "k", "l")


class Rank:
    """As much of an instruction set as ranks need."""

    def __init__(self, cluster, rank):
        self.plan, self.cta_rank = self, rank
        self.cluster, self.cluster_size = cluster, math.prod(cluster.values())


@st.composite
def clusters(draw):
    """Axis -> extent, at most 16 CTAs, in any order of axes."""
    axes = draw(st.permutations(AXES))[: draw(st.integers(0, 4))]
    found, left = {}, 16
    for axis in axes:
        found[axis] = draw(st.integers(1, left))
        left //= found[axis]
    return found


def coordinates(cluster):
    """Rank -> coordinates: the first axis varies fastest."""
    places = [dict(zip(reversed(cluster), place, strict=True)) for place in
              itertools.product(*(range(cluster[axis]) for axis in reversed(cluster)))]  # fmt: skip
    return {rank: {axis: place[axis] for axis in cluster} for rank, place in enumerate(places)}


def peers_of(rank, cluster, axes):
    """Ranks that differ from *rank* only along *axes*."""
    places = coordinates(cluster)
    return {
        other
        for other, place in places.items()
        if all(place[axis] == places[rank][axis] for axis in cluster if axis not in axes)
    }


@given(cluster=clusters(), axes=st.sets(st.sampled_from(AXES), min_size=1))
def test_masks_are_the_peers(cluster, axes):
    axes = sorted(axes)
    size = math.prod(cluster.values())
    for rank in range(size):
        mask = peer_mask(Rank(cluster, rank), axes)
        peers = peers_of(rank, cluster, axes)
        assert mask == sum(1 << other for other in peers)
        assert mask >> rank & 1 and mask < 1 << size
        assert len(peers) == MulticastGroup(*axes).size(cluster)
    assert peer_pattern(cluster, axes) == peer_mask(Rank(cluster, 0), axes)


@given(cluster=clusters(), axes=st.lists(st.sampled_from(AXES), unique=True, min_size=1))
def test_shares_divide_the_work_of_a_group(cluster, axes):
    """The peers of a group load parts 0 .. g - 1, each one of them, whatever the order in which the axes are named."""
    for rank in range(math.prod(cluster.values())):
        peers = peers_of(rank, cluster, axes)
        shares = sorted(share_index(Rank(cluster, other), axes) for other in peers)
        assert shares == list(range(len(peers)))


@given(cluster=clusters())
def test_coordinates(cluster):
    for rank, place in coordinates(cluster).items():
        assert {axis: cluster_coordinate(Rank(cluster, rank), axis) for axis in cluster} == place
        assert cluster_coordinate(Rank(cluster, rank), "other") == 0


@given(cluster=clusters(), groups=st.lists(st.sets(st.sampled_from(AXES), min_size=1), min_size=1, max_size=3))
def test_who_signals_whom_is_mutual(cluster, groups):
    """A CTA's release reaches those whose loads write its slots; each CTA is reached by as many as it reaches."""
    size = math.prod(cluster.values())
    masks = [0] * size
    for rank in range(size):
        for axes in groups:
            masks[rank] |= peer_mask(Rank(cluster, rank), sorted(axes))
    union = 0
    for axes in groups:
        union |= peer_pattern(cluster, sorted(axes))
    for rank in range(size):
        reached_by = sum(masks[other] >> rank & 1 for other in range(size))
        assert reached_by == masks[rank].bit_count() == union.bit_count()


@pytest.mark.parametrize(
    "cluster,rank,axes,mask",
    [
        ({"m": 2, "n": 1}, 1, "m", 0b11),
        ({"m": 2, "n": 2}, 0, "m", 0b0011),
        ({"m": 2, "n": 2}, 3, "n", 0b1010),
        ({"m": 4, "n": 2}, 5, "m", 0b11110000),
        ({"m": 4, "n": 2}, 5, "n", 0b00100010),
        ({"n": 4, "m": 2}, 5, "n", 0b11110000),  # the first axis named varies fastest
        ({"m": 2, "n": 2, "k": 2}, 7, "mk", 0b11001100),
        ({"m": 16}, 9, "m", 0xFFFF),
    ],
)
def test_known_masks(cluster, rank, axes, mask):
    assert peer_mask(Rank(cluster, rank), tuple(axes)) == mask


def test_group_along_missing_axis_is_the_cta_alone():
    assert MulticastGroup("z").size({"m": 4}) == 1
    assert peer_mask(Rank({"m": 4}, 2), ("z",)) == 0b100


def test_bad_clusters():
    for cluster in ({"m": 17}, {"m": 4, "n": 5}, {"m": 2, "n": 2, "k": 2, "l": 4}):
        refused(check_cluster, cluster, argument="cluster", value=cluster, rule="at most 16")
    for extent in (0, -1, 1.5, "2", None):
        refused(check_cluster, {"n": extent}, argument="cluster['n']", value=extent, rule="positive integer")
    for cluster in ({}, {"m": 16}, {"m": 1, "n": 1}, {"m": 3, "n": 5}):
        check_cluster(cluster)


def test_bad_groups():
    refused(MulticastGroup, argument="MulticastGroup(axes)", value=(), rule="one or more")
    refused(MulticastGroup, "m", "m", argument="MulticastGroup(axes)", value=("m", "m"), rule="different")
    assert MulticastGroup("m", "n") == MulticastGroup("m", "n") != MulticastGroup("m")


# ---- one loads for all ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5, 256), (5, 23, 304), (1, 1, 8)])
def test_one_loads_for_all(shape):
    x, s = (np.random.default_rng(i).integers(-9, 9, shape).astype(np.float32) for i in range(2))
    y = np.zeros_like(x)
    run = WholeBoxes().simulate(x, s[0], out=y, clusters=1, seed=1)
    assert (y == x + s[0]).all()
    tiles = -(-shape[0] // 3) * -(-shape[1] // 5) * -(-shape[2] // 256)  # of a cluster
    assert run.counts["TmaLoad"] == tiles * (3 + 1)


def test_that_one_is_proved_and_explained():
    report = WholeBoxes().check()
    assert report.ok and report.trips == "every trip count"
    assert "all by the first CTA, multicast along r with mask 0x0007 << origin" in WholeBoxes().explain()


def test_equal_parts_or_one_for_all():
    split = WholeBoxes()
    split.s = tp.TmaLoadStage("m n", tile=(5, 256), ring=split.ring, multicast=tp.MulticastGroup("r"))
    refused(split.plan, argument="s.tile", rule="3 multicast peers each load an equal part")
    refused(MulticastGroup, "r", whole=1, argument="whole", rule="yes or no")
    assert repr(MulticastGroup("r", whole=True)) == "MulticastGroup('r', whole=True)"
    assert MulticastGroup("r", whole=True) != MulticastGroup("r")
