"""Epilogues with operands on the model, against float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.sweeps import examples
from tests.unit.errors import refused

S, E = tp.schedules, tp.epilogue
KINDS = {"c": E.Matrix(), "bias": E.PerColumn(), "scale": E.PerRow(), "alpha": E.Scalar()}
TILES = [
    (S.Gemm, (64, 64, 16), (1, 1)),
    (S.Gemm, (128, 72, 64), (1, 1)),
    (S.Gemm, (128, 32, 16), (2, 1)),
    (S.Gemm, (192, 40, 64), (1, 1)),
    (S.Gemm, (256, 64, 16), (1, 2)),
    (S.PingPong, (64, 64, 16), (1, 1)),
    (S.PingPong, (128, 64, 16), (2, 1)),
]


def make(kind, tile, cluster, names=tuple(KINDS), slots=None, **options):
    """The epilogue (acc * alpha * scale + c + bias), of those operands that are named."""

    def epilogue(acc, alpha=1.0, scale=1.0, c=0.0, bias=0.0):
        return acc * alpha * scale + c + bias

    return kind(tile, cluster, slots, epilogue=E.Epilogue(epilogue, operands={n: KINDS[n] for n in names}, **options))


def operands(rng, m, n, names, batch=()):
    found = {
        "c": rng.standard_normal((*batch, m, n)).astype(np.float16),
        "bias": rng.standard_normal(n).astype(np.float32),
        "scale": rng.standard_normal(m).astype(np.float16),
        "alpha": float(rng.standard_normal()),
    }
    return {name: found[name] for name in names}


def reference(a, b, given):
    product = a.astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2)
    scale = np.asarray(given.get("scale", [1.0]), np.float64)[:, None]
    return product * given.get("alpha", 1.0) * scale + given.get("c", 0.0) + given.get("bias", 0.0)


@settings(max_examples=examples(25))
@given(data=st.data())
def test_against_numpy(data):
    kind, tile, cluster = data.draw(st.sampled_from(TILES))
    names = data.draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, unique=True))
    m, n, k = data.draw(st.integers(1, 300)), 8 * data.draw(st.integers(1, 20)), 8 * data.draw(st.integers(1, 6))
    options = {"ahead": data.draw(st.integers(1, 3)), "stages": data.draw(st.integers(1, 2))}
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    batch = data.draw(st.sampled_from([(), (2,)]))
    a, b = (rng.standard_normal((*batch, rows, k)).astype(np.float16) for rows in (m, n))
    given = operands(rng, m, n, names, batch)
    d = np.full((*batch, m, n), np.nan, np.float32)
    result = make(kind, tile, cluster, names, dtype="fp32", **options)(a, b, out=d, **given)
    np.testing.assert_allclose(result, reference(a, b, given), rtol=1e-4, atol=1e-4)


def test_by_position_and_as_tensors():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 64)).astype(np.float16) for rows in (100, 72))
    given = operands(rng, 100, 72, ("bias", "alpha"))
    gemm = make(S.Gemm, (128, 64, 64), (1, 1), ("bias", "alpha"), dtype="fp32")
    named = gemm(a, b, **given)
    assert np.array_equal(gemm(a, b, given["bias"], np.array([given["alpha"]], np.float32)), named)
    assert np.array_equal(gemm(a, b, given["bias"], alpha=np.array(given["alpha"], np.float32)), named)


@pytest.mark.parametrize("names", [("c",), ("bias", "scale"), ("alpha",)])
def test_without_k(names):
    """An empty sum still has its operands."""
    rng = np.random.default_rng(0)
    a, b = np.zeros((48, 0), np.float16), np.zeros((24, 0), np.float16)
    given = operands(rng, 48, 24, names)
    d = make(S.Gemm, (64, 64, 64), (1, 1), names, dtype="fp32")(a, b, **given)
    np.testing.assert_allclose(d, reference(a, b, given), rtol=1e-5, atol=1e-5)
    assert make(S.Gemm, (64, 64, 64), (1, 1), ("alpha",))(a[:0], b, alpha=1.0).shape == (0, 24)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 64, dtype=torch.bfloat16) for rows in (72, 136))
    bias, c = torch.randn(136, dtype=torch.bfloat16), torch.randn(72, 136, dtype=torch.bfloat16)
    gemm = make(S.Gemm, (128, 128, 64), (1, 1), ("c", "bias", "alpha"), dtype="fp32")
    d = gemm(a, b, c=c, bias=bias, alpha=0.5)
    torch.testing.assert_close(d, (a.double() @ b.double().T * 0.5 + c + bias).float(), rtol=1e-4, atol=1e-4)
    empty = gemm(a[:, :0], b[:, :0], c=c, bias=bias, alpha=0.5)
    torch.testing.assert_close(empty, c.float() + bias.float())


@pytest.mark.parametrize("kind,tile,cluster", TILES)
@pytest.mark.parametrize("store_stages", [1, 2])
def test_several_outputs(kind, tile, cluster, store_stages):
    """The sums before the activation beside its result, of different types; without k too."""
    rng = np.random.default_rng(0)
    gemm = kind(
        tile,
        cluster,
        epilogue=E.Epilogue(
            lambda acc, bias: {"d": tp.math.relu(acc + bias), "sums": acc},
            operands={"bias": E.PerColumn()},
            outputs={"sums": E.Output("fp32")},
            stages=store_stages,
        ),
    )
    for k in (72, 0):
        a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (130, 144))
        bias = rng.standard_normal(144).astype(np.float16)
        sums = np.full((130, 144), np.nan, np.float32)
        d, returned = gemm(a, b, bias=bias, sums=sums)
        assert returned is sums and d.dtype == np.float16
        np.testing.assert_allclose(sums, reference(a, b, {}), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(d, np.maximum(reference(a, b, {"bias": bias}), 0), rtol=2e-3, atol=2e-3)


def test_in_place_is_refused():
    """The pieces of a tile may overlap, and would read back what was just stored."""
    a, b, d = (np.ones(shape, np.float16) for shape in ((64, 64), (64, 64), (64, 64)))
    with pytest.raises(tp.InputError, match="overlap"):
        make(S.Gemm, (64, 64, 64), (1, 1), ("c",))(a, b, c=d, out=d)


@pytest.mark.parametrize("kind", [S.Gemm, S.PingPong])
def test_one_number_a_matrix_of_a_batch(kind):
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((3, rows, 48)).astype(np.float16) for rows in (70, 40))
    scale = np.array([2.0, -1.0, 0.5], np.float32)
    epilogue = E.Epilogue(lambda acc, scale: acc * scale, operands={"scale": E.PerBatch()}, dtype="fp32")
    gemm = kind((64, 64, 16), (1, 1), 3, epilogue=epilogue)
    assert gemm.check().trips == "every trip count"
    wanted = a.astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2) * scale[:, None, None]
    np.testing.assert_allclose(gemm(a, b, scale=scale), wanted, rtol=1e-2, atol=1e-2)
    one = np.array([3.0], np.float32)
    np.testing.assert_allclose(gemm(a[0], b[0], scale=one), wanted[0] * 1.5, rtol=1e-2, atol=1e-2)
    empty = gemm(a[..., :0], b[..., :0], scale=scale)
    assert empty.shape == (3, 70, 40) and not empty.any()


def test_groups_of_rows_are_no_batch():
    epilogue = E.Epilogue(lambda acc, scale: acc * scale, operands={"scale": E.PerBatch()})
    refused(S.GroupedGemm, epilogue=epilogue, argument="operands['scale']", rule="one number a matrix of a batch")
