"""Claiming a position for the calling cluster, in the kernel: see `tmapipe.tiles.gpc`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from tmapipe.gpu import control
from tmapipe.tiles.gpc_places import GPC_WORDS, MOST_GPCS

__all__ = ["COUNTERS", "claim_place", "places_claimed"]

COUNTERS = MOST_GPCS + 1  # positions claimed of each GPC, and clusters that have claimed one


def claim_place(counters: Any, lane: Any, clusters: Any, kept: Sequence[Any], found: Any) -> Any:
    """See `tmapipe.isa.Isa`. kept: the words of `keep_places`; found: three registers."""
    going, gpc, place = range(3)

    def try_one() -> None:
        first, end = (_field(kept[GPC_WORDS:], found[gpc] + i, 8) for i in range(2))
        found[place] = first + _add_one(counters, found[gpc])
        found[going] = cutlass.select_(found[place] < end, Int32(0), Int32(1))
        found[gpc] = cutlass.select_(end >= clusters, Int32(0), found[gpc] + 1)

    def claim() -> None:
        found[going] = Int32(1)
        found[gpc] = _field(kept[:GPC_WORDS], cute.arch.smid() // 2, 4)
        control.loop_while(found, try_one)

    control.when(lane == 0, claim)
    return cute.arch.shuffle_sync(found[place], 0)


def places_claimed(counters: Any, lane: Any, clusters: Any) -> None:
    """See `tmapipe.isa.Isa`."""

    def count() -> None:
        control.when(_add_one(counters, Int32(MOST_GPCS)) == clusters - 1, reset)

    def reset() -> None:
        for i in range(COUNTERS):
            counters[i] = Int32(0)

    control.when(lane == 0, count)


def _add_one(counters: Any, i: Any) -> Any:
    """Adds 1 to counter *i*; returns what it was before."""
    address = (counters.iterator + i).llvm_ptr
    return Int32(cute.arch.atomic_add(address, Int32(1), sem="relaxed", scope="gpu"))


def _field(words: Sequence[Any], i: Any, bits: int) -> Any:
    """Field *i* of packed fields of *bits* bits each."""
    a_word = 32 // bits
    word = words[0]
    for n in range(1, len(words)):
        word = cutlass.select_(i // a_word == n, words[n], word)
    return (word >> (i % a_word * bits)) & ((1 << bits) - 1)
