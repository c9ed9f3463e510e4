"""Bank conflicts, by hand, and what `explain()` says of them."""

import pytest

import tmapipe as tp
from tests.oracle.copy_forms import Images, Mapped
from tmapipe.base.arithmetic import bf16, fp32
from tmapipe.plan.rings import Buffer
from tmapipe.program.explain import times

LANES = range(32)


@pytest.mark.parametrize("places, width, taken, least", [
    ([4 * i for i in LANES], 4, 1, 1),  # a word each, side by side
    ([8 * i for i in LANES], 4, 2, 1),  # every second word
    ([128 * i for i in LANES], 4, 32, 1),  # a column of a tile of 128 bytes a row
    ([132 * i for i in LANES], 4, 1, 1),  # of a tile of 132
    ([64] * 32, 4, 1, 1),  # one word for all
    ([2 * i for i in LANES], 2, 1, 1),  # two lanes a word
    ([8 * i for i in LANES], 8, 2, 2),  # half the lanes at a time
    ([16 * i for i in LANES], 16, 4, 4),  # a quarter
    ([32 * i for i in LANES], 16, 8, 4),
    ([128 * i for i in range(8)], 16, 8, 1),  # eight rows of a matrix, one below the other
    ([144 * i for i in range(8)], 16, 1, 1),
])  # fmt: skip
def test_by_hand(places, width, taken, least):
    assert times(places, width) == (taken, least)


@pytest.mark.parametrize("span", [32, 64, 128])
def test_places_in_swizzled_slots(span):
    """Every unit of 16 bytes has a place of its own, and of 8 rows units above each other lie in different banks."""
    buffer = Buffer("x", 0, 1, (16, span), bf16, span)
    places = {(r, c): buffer.byte_in_slot(r, c) for r in range(16) for c in range(0, 2 * span, 16)}
    assert sorted(places.values()) == list(range(0, 16 * 2 * span, 16))
    taken, least = times([places[r, 0] for r in range(8)], 16)
    assert (taken, least) == (1, 1), "rows of a matrix for ldmatrix"


def test_places_without_a_swizzle():
    buffer = Buffer("x", 0, 1, (8, 10), fp32)
    assert [buffer.byte_in_slot(r, c) for r, c in ((0, 0), (0, 4), (1, 0), (7, 36))] == [0, 4, 40, 316]


def test_said():
    text = Mapped().explain()
    assert "x by copy, copied, 4 bytes a lane: 4 accesses a warp, no bank conflicts" in text
    assert "x by work, read (" in text and "copy_forms.py" in text
    assert "x by load, copied, 8 bytes a lane: 4 accesses a warp, no bank conflicts" in Images().explain()


def transposed(swizzle):
    class Transposed(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warpgroups=1)
        ring = tp.BarrierRing(2, producer=load, consumer=work)
        x = tp.TmaLoadStage("n m", tile=(32, 64), ring=ring, swizzle=swizzle, dtype="fp32")
        y = tp.TmaStoreStage("m n", tile=(64, 32), role=work, dtype="bf16")

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def turn(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read(transposed=True)
            k.y.store(tile, values)

    return Transposed()


def test_a_swizzle_avoids_them():
    """Lanes of a warp read 8 rows of 4 neighbours: with rows a multiple of 128 bytes apart, one bank for all rows."""
    plain, swizzled = (next(l for l in transposed(s).explain().split("\n") if "transposed" in l) for s in (0, 128))
    assert "without bank conflicts" in plain and "no bank conflicts" in swizzled
