"""How a cluster claims one of the positions that `GpcTiles` keeps for its GPC, or if none is left, for another GPC."""

from __future__ import annotations

from collections.abc import Sequence

from tmapipe.errors import InputError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Value
from tmapipe.tiles.gpc_positions import COUNTERS, GPC_WORDS, MOST_CLUSTERS, MOST_GPCS, keep_positions

__all__ = ["claim_position", "count_claim"]


def claim_position(isa: Isa) -> Value:
    """A position from 0 to clusters - 1 that no other cluster gets. Once per cluster."""
    kept = isa.launch_words(lambda: _of_one_gpc(isa.clusters))
    going, gpc, position = range(3)
    found = isa.cells(0, 0, 0)

    def try_one() -> None:
        first, end = (_field(isa, kept[GPC_WORDS:], found[gpc] + i, 8) for i in range(2))
        found[position] = first + isa.atomic_add(found[gpc], lambda: isa.cluster_id)
        found[going] = isa.select(found[position] < end, 0, 1)
        found[gpc] = isa.select(end >= isa.clusters, 0, found[gpc] + 1)

    def claim() -> None:
        found[going] = 1
        found[gpc] = _field(isa, kept[:GPC_WORDS], isa.smid() // 2, 4)
        isa.loop_while(found, try_one)

    isa.lane_0(claim)
    return isa.shuffle(found[position])


def count_claim(isa: Isa) -> None:
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
    if clusters > MOST_CLUSTERS:
        raise InputError("clusters", clusters, f"is at most {MOST_CLUSTERS} with GpcTiles", "run fewer")
    return keep_positions((), 1, clusters, clusters)[1:]
