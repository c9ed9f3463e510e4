"""GEMMs of tf32 and of int8 on the model: what is rounded, and what is exact."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tmapipe as tp
from tmapipe.base.arithmetic import products
from tmapipe.model.memory import Accumulator, round_to_tf32

S = tp.schedules
INT8 = {"a": "int8", "b": "int8"}
SCHEDULES = {
    "gemm": lambda depth, **options: S.Gemm((128, 64, depth), (1, 2), 2, **options),
    "pingpong": lambda depth, **options: S.PingPong((64, 96, depth), (2, 1), 2, **options),
}


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_rounding_to_tf32(x):
    rounded = round_to_tf32(np.array([x], np.float32))[0]
    assert rounded.view(np.uint32) & 0x1FFF == 0 and round_to_tf32(rounded[None])[0] == rounded
    if abs(x) < 3e38:  # no number that is rounded to infinity
        spacing = 2.0 ** max(np.frexp(x)[1] - 11, -126 - 10)
        assert abs(float(rounded) - x) <= spacing / 2


def test_ties_go_to_even_and_special_values_stay():
    one = np.array([1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11, 1 + 2**-11 + 2**-20], np.float32)
    assert round_to_tf32(one).tolist() == [1, 1 + 2**-9, -1, 1 + 2**-10]
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    assert (round_to_tf32(special).view(np.uint32) == special.view(np.uint32)).all()


@pytest.mark.parametrize("name", [*SCHEDULES, "splitk"])
def test_tf32_rounds_the_operands_alone(name):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 76)).astype(np.float32) for rows in (203, 104))
    makers = SCHEDULES | {"splitk": lambda depth, **options: S.SplitK(3, (64, 64, depth), (1, 1), 2, **options)}
    out = makers[name](32, a=tp.Operand(dtype="tf32"), b=tp.Operand(dtype="tf32"))(a, b)
    want = round_to_tf32(a).astype(np.float64) @ round_to_tf32(b).astype(np.float64).T
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    assert np.abs(out - a.astype(np.float64) @ b.astype(np.float64).T).max() > 1e-4  # than with fp32


def test_tf32_to_bf16_in_a_gated_gemm():
    rng = np.random.default_rng(0)
    a, gate, up = (rng.standard_normal((rows, 40)).astype(np.float32) for rows in (72, 64, 64))
    gemm = S.GatedGemm(
        (64, 64, 32),
        (1, 1),
        2,
        a=tp.Operand(dtype="tf32"),
        b=tp.Operand(dtype="tf32"),
        epilogue=tp.epilogue.Epilogue(lambda gate, up: gate + up, dtype="bf16"),
    )
    out = gemm(a, gate, up)
    a, gate, up = (round_to_tf32(x).astype(np.float64) for x in (a, gate, up))
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(out.astype(np.float64), a @ (gate + up).T, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("extremes", [False, True])
def test_products_of_int8_are_exact(name, extremes):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, (rows, 336)).astype(np.int8) for rows in (150, 200))
    if extremes:
        a[:], b[:] = -128, -128
    out = SCHEDULES[name](64)(a, b)
    assert out.dtype == np.int32 and (out == a.astype(np.int64) @ b.astype(np.int64).T).all()


def test_int8_scaled_in_the_epilogue():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, (rows, 112)).astype(np.int8) for rows in (70, 64))
    scale = rng.standard_normal(64).astype(np.float32)
    gemm = S.Gemm(
        (64, 64, 64),
        (1, 1),
        2,
        epilogue=tp.epilogue.Epilogue(
            lambda acc, scale: acc * scale, operands={"scale": tp.epilogue.PerColumn()}, dtype="bf16"
        ),
    )
    out = gemm(a, b, scale=scale)
    want = (a.astype(np.int64) @ b.astype(np.int64).T) * scale.astype(np.float64)
    np.testing.assert_allclose(out.astype(np.float64), want, rtol=1e-2)


def test_int8_without_k_gives_zeros():
    out = S.Gemm((64, 64, 64), (1, 1))(np.zeros((64, 0), np.int8), np.zeros((64, 0), np.int8))
    assert out.dtype == np.int32 and not out.any()


def test_sums_saturate():
    matmul = S.Gemm((64, 64, 64), (1, 1)).plan({**INT8, "d": "int32"}).matmul("mma")
    sums = Accumulator(matmul, matmul.first_warp)
    sums.values[0, 0], sums.values[0, 1] = 2**31 - 1000, -(2**31) + 1000
    full = np.full((64, 32), 127, np.float32)
    sums.add(products(np.concatenate([full[:1], -full[:1], full[:14]]), full, 32))
    product = 127 * 127 * 32
    assert (sums.values[0, 0] == 2**31 - 1).all() and (sums.values[0, 1] == -(2**31)).all()
    assert (sums.values[0, 2:] == product).all()
