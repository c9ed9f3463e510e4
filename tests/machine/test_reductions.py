"""Sums over rows and columns of what an epilogue gives, on the model, against float64."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.sweeps import examples, sample
from tmapipe.schedules.mainloop import Cooperative, PingPong

S, E = tp.schedules, tp.epilogue
TILES = [
    (S.Gemm, (64, 64, 16), (1, 1)),
    (S.Gemm, (128, 72, 64), (1, 1)),  # the second piece has most columns of the first one again
    (S.Gemm, (128, 32, 16), (2, 1)),
    (S.Gemm, (192, 40, 64), (1, 1)),
    (S.Gemm, (256, 64, 16), (1, 2)),
    (S.Gemm, (64, 8, 64), (1, 1)),
    (S.PingPong, (64, 64, 16), (1, 1)),
    (S.PingPong, (64, 200, 64), (1, 1)),
    (S.PingPong, (128, 64, 16), (2, 1)),
    (functools.partial(S.Gemm, mainloop=Cooperative(along="n")), (136, 128, 64), (1, 2)),
    (functools.partial(S.Gemm, mainloop=Cooperative(along="n")), (72, 256, 64), (1, 1)),
    (functools.partial(S.PingPong, along="n"), (40, 64, 64), (1, 1)),
]
KINDS = {"rows": E.RowSum(), "columns": E.ColumnSum()}


def make(kind, tile, cluster, names=("rows", "columns"), tiles=None, slots=None, **options):
    """The sums of squares of acc + bias, which outside of the tensor are not zero."""

    def epilogue(acc, bias):
        value = acc + bias + 1.0
        return {"d": value, **dict.fromkeys(names, value * value)}

    outputs = {name: KINDS[name] for name in names}
    fused = E.Epilogue(epilogue, operands={"bias": E.PerColumn()}, outputs=outputs, **options)
    return kind(tile, cluster, slots, epilogue=fused, tiles=tiles or tp.tiles.PersistentTiles())


def problem(rng, m, n, k, batch=()):
    a, b = (rng.standard_normal((*batch, rows, k)).astype(np.float16) for rows in (m, n))
    bias = rng.standard_normal(n).astype(np.float32)
    value = a.astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2) + bias + 1.0
    return a, b, bias, value


def compare(found, value):
    d, found = found[0], found[1:]
    np.testing.assert_allclose(d, value, rtol=1e-4, atol=1e-4)
    for sums, axis in zip(found, (-1, -2), strict=True):
        assert sums.dtype == np.float32
        np.testing.assert_allclose(sums, (value * value).sum(axis), rtol=1e-4, atol=1e-4)


@settings(max_examples=examples(25))
@given(data=st.data())
def test_against_numpy(data):
    kind, tile, cluster = data.draw(st.sampled_from(TILES))
    m, n, k = data.draw(st.integers(1, 300)), 4 * data.draw(st.integers(1, 60)), 8 * data.draw(st.integers(1, 6))
    batch = data.draw(st.sampled_from([(), (), (2,)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    a, b, bias, value = problem(rng, m, n, k, batch)
    gemm = make(kind, tile, cluster, dtype="fp32", stages=data.draw(st.integers(1, 3)))
    compare(gemm(a, b, bias), value)


@pytest.mark.parametrize("form,sums", sample(itertools.product(TILES, [("rows", 1), ("columns", 0)]), 3))
def test_one_alone(form, sums):
    (kind, tile, cluster), (name, axis) = form, sums
    a, b, bias, value = problem(np.random.default_rng(0), 200, 136, 40)
    _, sums = make(kind, tile, cluster, (name,), dtype="fp32")(a, b, bias)
    np.testing.assert_allclose(sums, (value * value).sum(axis), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "along,kinds,options",
    [
        ("n", ["columns"], {}),
        ("n", ["columns"], {"tile": (64, 256, 64)}),
        ("m", ["columns"], {"tile": (192, 256, 64)}),  # three
        ("n", ["columns"], {"mainloop": PingPong(), "tile": (128, 64, 64)}),
        ("m", ["columns"], {"mainloop": Cooperative(along="m")}),
        ("m", ["columns"], {"tile": (128, 64, 64)}),  # one warpgroup would have it
        ("m", ["columns"], {"tile": (128, 200, 64)}),
        ("m", ["columns"], {"tiles": tp.tiles.SplitKTiles(2)}),
        ("m", ["columns"], {"columns": 32}),
        ("m", ["rows", "columns"], {}),
        ("m", [], {}),
    ],
)
def test_what_warpgroups_share(along, kinds, options):
    """Sums of columns alone are of transposed accumulators, where the tile allows it."""
    fused = E.Epilogue(
        lambda acc: {"d": acc, **dict.fromkeys(kinds, acc)} if kinds else acc,
        outputs={name: KINDS[name] for name in kinds},
        columns=options.pop("columns", None),
    )
    gemm = S.Gemm(epilogue=fused, **options)
    assert gemm.mainloop.along == along and gemm.math.warps >= 8


def test_the_same_from_run_to_run_in_any_order():
    """Bit by bit, whatever the order of tiles."""
    a, b, bias, _ = problem(np.random.default_rng(0), 300, 264, 40)
    orders = (
        tp.tiles.PersistentTiles(),
        tp.tiles.PersistentTiles(tp.tiles.Snake(2)),
        tp.tiles.DynamicTiles(),
        tp.tiles.PersistentTiles(),
    )
    runs = [make(S.Gemm, (64, 64, 64), (1, 1), tiles=order)(a, b, bias) for order in orders]
    assert all(np.array_equal(x, y) for run in runs for x, y in zip(run, runs[0], strict=True))


def test_several_of_a_kind_beside_other_outputs():
    a, b, bias, value = problem(np.random.default_rng(0), 130, 144, 40)
    gemm = S.Gemm(
        (128, 64, 64),
        (1, 1),
        epilogue=E.Epilogue(
            lambda acc, bias: {"d": acc, "first": acc + bias, "value": acc + bias + 1.0, "second": 1.0},
            operands={"bias": E.PerColumn()},
            outputs={"first": E.RowSum(), "value": E.Output("fp32"), "second": E.RowSum()},
        ),
    )
    d, first, stored, second = gemm(a, b, bias)
    np.testing.assert_allclose(d, value - bias - 1, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(first, (value - 1).sum(1), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(stored, value, rtol=1e-4, atol=1e-4)
    assert (second == 144).all(), "a number stands for an element each"


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row_and_column(poison):
    a, b, bias, _ = problem(np.random.default_rng(0), 130, 144, 40)
    a[7] = 1.0
    a[7, 3], b[:, 3] = poison, 1.0
    b[9, 3] = 0.0 if poison is np.nan else 1.0
    _, rows, columns = make(S.Gemm, (64, 72, 64), (1, 1), dtype="fp32")(a, b, bias)
    assert not np.isfinite(rows[7]) and np.isfinite(np.delete(rows, 7)).all()
    assert not np.isfinite(columns).any()


def test_an_epilogue_that_is_not_finite_outside():
    """Beyond the last row and column the accumulator is 0, and its reciprocal root is not counted."""
    a, b = np.ones((65, 16), np.float16), np.ones((72, 16), np.float16)
    roots = S.Gemm(
        (64, 64, 16),
        epilogue=E.Epilogue(lambda acc: {"d": acc, **dict.fromkeys(KINDS, tp.math.rsqrt(acc))}, outputs=KINDS),
    )
    _, rows, columns = roots(a, b)
    assert (rows == 72 / 4).all() and (columns == 65 / 4).all()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_without_k_m_or_n(batch):
    for m, n, k in ((70, 144, 0), (0, 144, 64), (70, 0, 64)):
        a, b, bias, value = problem(np.random.default_rng(0), m, n, k, batch)
        d, rows, columns = make(S.Gemm, (64, 64, 64), (1, 1), dtype="fp32")(a, b, bias)
        assert d.shape == (*batch, m, n)
        np.testing.assert_allclose(rows, (value * value).sum(-1), rtol=1e-4)
        np.testing.assert_allclose(columns, (value * value).sum(-2), rtol=1e-4)


@pytest.mark.parametrize("m", [70, 72])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_into_given_vectors(m, batch):
    """By name, by position, and every second element of something."""
    a, b, bias, value = problem(np.random.default_rng(0), m, 144, 40, batch)
    gemm = make(S.Gemm, (64, 64, 64), (1, 1), dtype="fp32")
    rows, columns = np.full((*batch, m), np.nan, np.float32), np.full((*batch, 288), np.nan, np.float32)[..., ::2]
    found = gemm(a, b, bias, rows=rows, columns=columns)
    assert found[1] is rows and found[2] is columns
    compare(found, value)
    d, rows = np.zeros((*batch, m, 144), np.float32), np.zeros((*batch, m), np.float32)
    found = gemm(a, b, bias, d, rows)
    assert found[0] is d and found[1] is rows
    compare(found, value)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 64, dtype=torch.bfloat16) for rows in (70, 136))
    gemm = S.Gemm(
        (64, 128, 64), (1, 1), epilogue=E.Epilogue(lambda acc: {"d": acc, **dict.fromkeys(KINDS, acc)}, outputs=KINDS)
    )
    for k in (64, 0):
        columns = torch.empty(136)
        d, rows, found = gemm(a[:, :k], b[:, :k], columns=columns)
        expected = a[:, :k].double() @ b[:, :k].double().T
        assert found is columns and d.dtype == torch.bfloat16 and rows.dtype == torch.float32
        torch.testing.assert_close(rows, expected.sum(1).float(), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(columns, expected.sum(0).float(), rtol=1e-4, atol=1e-3)


def test_operands_along_m_and_n():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 72)).astype(np.float16).T, rng.standard_normal((64, 136)).astype(np.float16).T
    gemm = S.Gemm(
        (64, 64, 64),
        (1, 1),
        a=tp.Operand("m"),
        b=tp.Operand("n"),
        epilogue=E.Epilogue(lambda acc: {"d": acc, "rows": acc}, outputs={"rows": E.RowSum()}),
    )
    rows = np.zeros(72, np.float32)
    gemm(a, b, rows=rows)
    np.testing.assert_allclose(rows, (a.astype(np.float64) @ b.astype(np.float64).T).sum(1), rtol=1e-4, atol=1e-3)


def test_sums_of_integers():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, (rows, 64)).astype(np.int8) for rows in (72, 144))
    outputs = {"rows": E.RowSum()}
    gemm = S.Gemm((64, 64, 64), epilogue=E.Epilogue(lambda acc: {"d": acc, "rows": acc}, outputs=outputs, dtype="fp32"))
    d, rows = gemm(a, b)
    assert np.array_equal(rows, (a.astype(np.int64) @ b.astype(np.int64).T).sum(1)) and np.array_equal(d.sum(1), rows)


def test_the_model_runs_the_kernel_alone():
    a, b, bias, _ = problem(np.random.default_rng(0), 130, 144, 40)
    assert make(S.Gemm, (64, 64, 64), (1, 1)).simulate(a, b, bias).steps


class OfTwoTeams(tp.Schedule):
    """y = x + its sums of rows; two teams take tiles in turn, in place in their slots. Without a turnstile: not proved."""

    load, work, store = tp.Role(warps=1), tp.Role(warps=4, teams=2), tp.Role(warps=1)
    ring = tp.BarrierRing(3, chain=(load, work, store))
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring, dtype="fp32")
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
            slot.x.write(values + tp.math.row_sum(values))

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


def test_each_team_has_a_whole_tile():
    x = np.random.default_rng(0).integers(-9, 10, (40, 64)).astype(np.float32)
    assert (OfTwoTeams()(x) == x + x.sum(1, keepdims=True)).all()
