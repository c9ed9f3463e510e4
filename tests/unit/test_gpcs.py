"""Which multiprocessors lie together, and the places kept for them: what the host works out for `GpcTiles`."""

import itertools

import torch
from cuda.bindings import driver
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.errors import refused
from tmapipe.gpu import kernels as gpcs
from tmapipe.gpu.kernels import joined
from tmapipe.tiles import DynamicTiles, GpcTiles, Grouped, GroupedTiles, PersistentTiles, StreamKTiles
from tmapipe.tiles.dynamic import GPC_WORDS, MOST_GPCS, WORDS, keep_positions

#: An H200: a GPC of 8 multiprocessors besides those of 16 and 18, and four pairs by themselves.
H200 = [
    range(8), *(range(first, first + 16) for first in range(8, 88, 16)), range(88, 106), range(106, 124),
    *(range(first, first + 2) for first in range(124, 132, 2)),
]  # fmt: skip


def fields(words, bits):
    return [(word >> bits * i) & ((1 << bits) - 1) for word in words for i in range(32 // bits)]


def unpacked(numbers):
    """(clusters, the GPC of each pair, places of each GPC)."""
    clusters, *words = numbers
    assert len(words) == WORDS and all(-(1 << 31) <= word < 1 << 31 for word in words)
    firsts = fields(words[GPC_WORDS:], 8)[: MOST_GPCS + 1]
    return clusters, fields(words[:GPC_WORDS], 4), [b - a for a, b in itertools.pairwise(firsts)]


def test_an_h200():
    """Eight clusters of each GPC, the pairs by themselves being one with the small one; all 66 where 64 take a wave more."""
    clusters, of_pair, places = unpacked(keep_positions(H200, 2, 66, 1024))
    assert clusters == 64 and places[:8] == [8] * 8 and not any(places[8:])
    sizes = [of_pair[:66].count(gpc) for gpc in range(8)]
    assert sorted(sizes) == [8] * 6 + [9] * 2
    assert len({of_pair[number // 2] for number in (0, 7, 124, 131)}) == 1
    clusters, _, places = unpacked(keep_positions(H200, 2, 66, 264))
    assert clusters == 66 and sorted(places[:8]) == [8] * 6 + [9] * 2
    assert unpacked(keep_positions(H200, 2, 66, 40))[2][:8] == [5] * 8
    assert unpacked(keep_positions(H200, 4, 30, 1000))[0] == 30


def test_what_is_not_understood_is_one_gpc():
    for parts, resident in (
        (H200, 65),
        ([], 66),
        ([[0, 1], [500, 501]], 2),
        ([[2 * i, 2 * i + 1] for i in range(20)], 20),
    ):
        clusters, of_pair, places = unpacked(keep_positions(parts, 2, resident, 10 * resident))
        assert clusters == resident == places[0] and not any(of_pair)


def test_a_device_of_more_clusters_than_a_byte_counts():
    clusters, _, places = unpacked(keep_positions([range(400)], 1, 400, 4000))
    assert clusters == places[0] == 255 - 5  # 16 waves of 250


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.sampled_from([1, 2, 4]), st.integers(1, 5000))
def test_places_are_kept_once(sizes, cluster_size, tiles):
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    resident = max(1, sum(size // cluster_size for size in sizes))
    clusters, _, places = unpacked(keep_positions(parts, cluster_size, resident, tiles))
    assert sum(places) == clusters <= resident and all(kept >= 0 for kept in places)
    assert -(-tiles // clusters) == -(-tiles // resident)  # no wave more


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), max_size=12))
def test_clusters_join_multiprocessors(clusters):
    found = joined(31, clusters)
    assert sorted(number for part in found for number in part) == list(range(31))
    of = {number: part for part in found for number in part}
    assert all(len({of[number] for number in cluster}) == 1 for cluster in clusters)
    apart = [{number} for number in range(31)]
    for _ in range(len(clusters)):  # the smallest such sets, found the slow way
        for cluster in clusters:
            touched = [part for part in apart if part & set(cluster)]
            apart = [part for part in apart if not part & set(cluster)] + [set().union(*touched)]
    assert {tuple(sorted(part)) for part in apart} == set(found)


def test_sizes_of_clusters_that_a_device_does_not_take(monkeypatch):
    for answer in ((driver.CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE, None), (driver.CUresult.CUDA_SUCCESS, 0)):
        monkeypatch.setattr(driver, "cuOccupancyMaxActiveClusters", lambda kernel, config, answer=answer: answer)
        assert gpcs.clusters_of(None, 16, torch.empty(132)) == []


def test_refused():
    rule = "is Grouped, Snake, Backwards, Columns(,| or) Hilbert"
    for order, options in (
        (GpcTiles, {}),
        (DynamicTiles, {}),
        (GroupedTiles, {"rows": 128}),
        (StreamKTiles, {"shares": 66}),
    ):
        refused(order, 8, **options, argument=f"{order.__name__}(raster)", rule=rule)
    assert GpcTiles() == GpcTiles(Grouped(8))


def test_an_order_says_what_it_is_launched_with():
    """Static and dynamic orders as many clusters as fit or have tiles, and nothing else; by GPC, what is kept."""

    def gpcs():
        return H200

    for order in (PersistentTiles(), DynamicTiles()):
        assert order.launch_numbers(10, 66, 2, gpcs) == [10] and order.launch_numbers(100, 66, 2, gpcs) == [66]
        assert order.launch_words == 0
    numbers = GpcTiles().launch_numbers(1024, 66, 2, gpcs)
    assert numbers == keep_positions(H200, 2, 66, 1024) and len(numbers) == 1 + GpcTiles.launch_words
