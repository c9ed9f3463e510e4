"""Each run with data watches who writes each element of an output."""

import numpy as np
import pytest

import tmapipe as tp
from tmapipe.check import Kind


class Doubled(tp.Schedule):
    """y = 2 x, by whatever `stored` does with it."""

    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(16, 64), role=work)

    def stored(self, k, tile, values):
        k.y.store(tile, values)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() * 2
        self.stored(k, tile, values)


class ToOnePlace(Doubled):
    def stored(self, k, tile, values):
        k.y.store(tile.also(m=0), values)


class Twice(Doubled):
    def stored(self, k, tile, values):
        k.y.store(tile, values)
        k.y.store(tile, values + 1)


class Shifted(Doubled):
    def stored(self, k, tile, values):
        k.y.store_from(tile.m * 16 + 1, tile.n * 64, values=values)


X = np.random.default_rng(0).standard_normal((48, 128)).astype(np.float32)


@pytest.mark.parametrize("clusters", [1, 2, 6])
def test_tiles_are_held_against_each_other_whoever_takes_them(clusters):
    with pytest.raises(tp.errors.HazardError, match=r"where another tile .* stores another value") as info:
        ToOnePlace().simulate(X, clusters=clusters)
    assert info.value.kind is Kind.OUTPUT_RACE and "test_written.py" in info.value.where
    same = np.ones_like(X)  # both store the same bits
    assert ToOnePlace().simulate(same, out=np.zeros_like(same), clusters=clusters).stored_tiles == 6


def test_one_tile_is_stored_once():
    with pytest.raises(tp.errors.HazardError, match="a second time, with another value"):
        Twice()(X)


def test_a_new_output_is_written_as_a_whole():
    with pytest.raises(
        tp.errors.HazardError, match=r"128 of 6144 elements of y are written by nobody, the first one at \(0, 0\)"
    ):
        Shifted()(X)
    y = np.full_like(X, 7)
    Shifted()(X, out=y)  # the caller's other elements stay as they are
    assert (y[0] == 7).all() and (y[1:] == 2 * X[:-1]).all()
    assert (Doubled()(X) == 2 * X).all()
