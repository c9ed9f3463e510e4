"""Outputs whose tiles start where another coordinate of the tile says: apart if that has a dimension of its own."""

from __future__ import annotations

import pytest

import tmapipe as tp
from tests.oracle.registry import REGISTRY
from tests.sweeps import ALL
from tmapipe.check import Kind


class Shifted(tp.Schedule):
    """y[b, n + shift(b)] = x[b, n] for rows b, of which a tile has one."""

    over = "b n"
    load, work = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("b n", tile=(1, 64), ring=ring, dtype="fp32")
    y = tp.TmaStoreStage("b n", tile=(1, 64), role=work, dtype="fp32")

    def __init__(self, row, shift):
        self.row, self.shift = row, shift

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store_from(self.row(tile), tile.n * 64 + self.shift(tile), values=values)


class OfTwoKinds(Shifted):
    """Tiles of even columns are shifted in another way than the others."""

    load, work = Shifted.load, Shifted.work

    @work.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        if tile.n % 2 == 0:
            k.y.store_from(tile.b, tile.n * 64 + 4 * (tile.b % 8), values=values)
        else:
            k.y.store_from(tile.b, tile.n * 64 + 4 * (tile.b % 4), values=values)


def test_a_shift_by_the_row_is_shown_apart():
    report = Shifted(lambda tile: tile.b, lambda tile: 4 * (tile.b % 8)).check()
    assert report.ok and not any("stored once" in said for said in report.outputs), str(report)


@pytest.mark.parametrize(
    "broken",
    [
        Shifted(lambda tile: tile.b, lambda tile: 4 * (tile.n % 8)),
        Shifted(lambda tile: tile.b // 2, lambda tile: 4 * (tile.b % 8)),
        OfTwoKinds(None, None),
    ],
    ids=["by the column", "two rows in one", "of two kinds"],
)
def test_other_shifts_are_not(broken):
    report = broken.check()
    assert Kind.OUTPUT_RACE in report.kinds() or any("stored once" in said for said in report.outputs), str(report)


@pytest.mark.parametrize(
    "name", ["Copy, by threads", *ALL * ["Softmax, rows that begin anywhere", "Softmax, rows over CTAs"]]
)
def test_rows_that_begin_anywhere_are_shown_apart(name):
    (make,) = (each.make for each in REGISTRY if each.name == name)
    report = make().check()
    assert report.ok and not any("stored once" in said for said in report.outputs), str(report)
