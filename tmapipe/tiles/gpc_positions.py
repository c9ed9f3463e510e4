"""Which positions `GpcTiles` keeps for the clusters of each GPC, and the 32-bit words that tell the kernel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tmapipe.integers import ceil_div

__all__ = ["COUNTERS", "GPC_WORDS", "MOST_CLUSTERS", "MOST_GPCS", "WORDS", "keep_positions"]

GPC_WORDS = 12  # words with the GPC of each pair of neighbouring multiprocessors, 4 bits per pair
WORDS = GPC_WORDS + 5  # the same, then one byte for the first position of each GPC and for the end of the last
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
