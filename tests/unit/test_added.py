"""Outputs that results are added to (`reduce="add"`)."""

import numpy as np
import pytest
import torch

import tmapipe as tp


class Stacked(tp.Schedule):
    """d[m, n] = sum over s of x[s, m, n], each added by the engine."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage("s m n", tile=(16, 64), ring=ring)
    d = tp.TmaStoreStage("m n", source=x, reduce="add")

    @load.jit
    def fill(self, k, tile):
        for s in range(k.steps("x", "s")):
            with k.ring.produce() as slot:
                slot.x.load(tile, s=s)

    @store.jit
    def add(self, k, tile):
        for _ in range(k.steps("x", "s")):
            with k.ring.consume() as slot:
                slot.d.store(tile)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_an_output_left_out_starts_at_zero(kind, monkeypatch):
    x = np.random.default_rng(0).integers(-9, 9, (5, 40, 72)).astype(np.float32)
    empty = np.empty
    monkeypatch.setattr(np, "empty", lambda *a, **k: empty(*a, **k) if k or len(a) > 2 else np.full(*a[:1], 7, *a[1:]))
    for _ in range(2):
        found = Stacked()(x if kind == "numpy" else torch.from_numpy(x))
        np.testing.assert_array_equal(np.asarray(found), x.sum(0))


def test_an_output_that_is_passed_is_added_to():
    x = np.ones((5, 16, 64), np.float32)
    out = np.full((16, 64), 2, np.float32)
    Stacked()(x, out=out)
    assert (out == 7).all()
    assert (Stacked()(x[:0]) == 0).all()
