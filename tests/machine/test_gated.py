"""GatedGemm on the model, against float64."""

import numpy as np
import pytest

import tmapipe as tp

S = tp.schedules


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize(
    "tile,cluster",
    [((128, 128, 16), (2, 1)), ((64, 64, 16), (1, 2)), ((192, 72, 64), (1, 1)), ((256, 64, 16), (1, 1))],
)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_swiglu(tile, cluster, batch):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((*batch, 130, 72)).astype(np.float16)
    weights = rng.standard_normal((*batch, 2 * 136, 72)).astype(np.float16)
    gate, up = weights[..., :136, :], weights[..., 136:, :]
    d = S.GatedGemm(tile, cluster, epilogue=tp.epilogue.Epilogue(dtype="fp32"))(a, gate, up)
    x, y = (a.astype(np.float64) @ w.astype(np.float64).swapaxes(-1, -2) for w in (gate, up))
    np.testing.assert_allclose(d, silu(x) * y, rtol=1e-4, atol=1e-3)


def test_an_epilogue_of_ones_own_and_no_k():
    a, w = np.ones((8, 64), np.float16), np.ones((16, 64), np.float16)
    gemm = S.GatedGemm((64, 64, 64), (1, 1), epilogue=lambda gate, up: gate - 2.0 * up + 1.0)
    assert (gemm(a, w, 2 * w) == 64 - 256 + 1).all()
    assert (gemm(a[:, :0], w[:, :0], w[:, :0]) == 1).all()


def test_accumulators_of_other_shapes():
    class Wrong(S.GatedGemm):
        load, math = S.GatedGemm.load, S.GatedGemm.math

        def __init__(self):
            super().__init__((64, 64, 64), (1, 1))
            self.up = tp.TmaLoadStage("l h k", tile=(32, 64), ring=self.ring)
            self.up_mma = tp.Wgmma(self.a, self.up)

        @load.jit
        def fill(self, k, tile):
            for step in range(k.steps("a", "k")):
                with k.ring.produce() as slot:
                    slot.a.load(tile, k=step)
                    slot.gate.load(tile, k=step)
                    slot.up.load(tile, h=0, k=step)

    x = np.zeros((64, 64), np.float16)
    with pytest.raises(tp.errors.ScopeError, match="gate_mma and up_mma stored together"):
        Wrong()(x, x, x[:32])
