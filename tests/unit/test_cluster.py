"""Peers, masks and shares of a cluster against brute force, for any shape up to 16 CTAs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tmapipe as tp
from tests.oracle.peer_forms import Paired, WholeBoxes
from tests.unit.errors import refused
from tmapipe import MulticastGroup
from tmapipe.base import along, check_cluster, peer_pattern
from tmapipe.protocol.tile import cluster_coordinate, peer_mask, peer_rank, share_index

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
        mask = peer_mask(Rank(cluster, rank), along(cluster, axes))
        peers = peers_of(rank, cluster, axes)
        assert mask == sum(1 << other for other in peers)
        assert mask >> rank & 1 and mask < 1 << size
        assert len(peers) == MulticastGroup(*axes).size(cluster)
    assert peer_pattern(along(cluster, axes)) == peer_mask(Rank(cluster, 0), along(cluster, axes))


@given(cluster=clusters(), axes=st.lists(st.sampled_from(AXES), unique=True, min_size=1))
def test_shares_divide_the_work_of_a_group(cluster, axes):
    """The peers of a group load parts 0 .. g - 1, each one of them, whatever the order in which the axes are named."""
    for rank in range(math.prod(cluster.values())):
        peers = peers_of(rank, cluster, axes)
        shares = sorted(share_index(Rank(cluster, other), along(cluster, axes)) for other in peers)
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
            masks[rank] |= peer_mask(Rank(cluster, rank), along(cluster, sorted(axes)))
    union = 0
    for axes in groups:
        union |= peer_pattern(along(cluster, sorted(axes)))
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
    assert peer_mask(Rank(cluster, rank), along(cluster, axes)) == mask


@given(cluster=clusters(), axis=st.sampled_from(AXES), blocks=st.integers(1, 4))
def test_groups_of_some_ctas_along_an_axis(cluster, axis, blocks):
    """Blocks side by side: each is a group of its own, whose shares divide its work."""
    extent = cluster.get(axis, 1)
    if extent % blocks or extent == blocks:
        return
    group = MulticastGroup(axis, ctas=extent // blocks).along(cluster)
    places = coordinates(cluster)
    for rank, place in places.items():
        block = place[axis] // (extent // blocks)
        peers = [r for r in peers_of(rank, cluster, [axis]) if places[r][axis] // (extent // blocks) == block]
        assert peer_mask(Rank(cluster, rank), group) == sum(1 << other for other in peers)
        assert sorted(share_index(Rank(cluster, other), group) for other in peers) == list(range(len(peers)))
        by_index = {share_index(Rank(cluster, other), group): other for other in peers}
        assert {i: peer_rank(Rank(cluster, rank), group, i) for i in by_index} == by_index


def test_groups_of_some_ctas_refused():
    for axes, ctas in (("m", 1), ("m", 0), ("mn", 2), ("m", True)):
        refused(MulticastGroup, *axes, ctas=ctas, argument="MulticastGroup(ctas)", rule="side by side")
    refused(MulticastGroup("m", ctas=3).along, {"m": 4}, argument="MulticastGroup(ctas)", rule="divides")
    assert repr(MulticastGroup("m", ctas=2)) == "MulticastGroup('m', ctas=2)"


def test_group_along_missing_axis_is_the_cta_alone():
    assert MulticastGroup("z").size({"m": 4}) == 1
    assert peer_mask(Rank({"m": 4}, 2), along({"m": 4}, "z")) == 0b100


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


@pytest.mark.parametrize("whole", [False, True])
def test_some_ctas_of_an_axis_share(whole):
    schedule = Paired(whole)
    for heads in (2, 6, 8):
        x, z = (np.random.default_rng(0).integers(-9, 9, (n, 6, 72)).astype(np.float16) for n in (heads // 2, heads))
        assert (schedule(x, z) == x.repeat(2, 0) + z).all()
    assert schedule.plan().load("x").pattern == 0b11 and schedule.plan().ring("ring").peers == 2
    report = schedule.check()
    assert report.ok and not report.findings and report.trips == "every trip count"
    assert "multicast along h (2 of 4 CTAs) with mask 0x0003 << origin" in schedule.explain()


def test_that_one_is_proved_and_explained():
    report = WholeBoxes().check()
    assert report.ok and report.trips == "every trip count"
    assert "all by the first CTA, multicast along r with mask 0x0007 << origin" in WholeBoxes().explain()


def test_equal_parts_or_one_for_all():
    split = WholeBoxes()
    split.s = tp.TmaLoadStage("m n", tile=(5, 256), ring=split.ring, multicast=tp.MulticastGroup("r"))
    refused(split.plan, argument="s.tile", rule="3 multicast peers each load an equal part")
    refused(MulticastGroup, "r", whole=1, argument="whole", rule="True or False")
    assert repr(MulticastGroup("r", whole=True)) == "MulticastGroup('r', whole=True)"
    assert MulticastGroup("r", whole=True) != MulticastGroup("r")
