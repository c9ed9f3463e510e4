"""Operands contiguous along k, m or n on the model: the layout of an operand changes no bit of the result."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.sweeps import examples, sample

S = tp.schedules
MAJORS = list(itertools.product("mk", "nk"))
SCHEDULES = {
    "gemm 2x2": lambda majors: S.Gemm((128, 64, 32), (2, 2), 2, a=tp.Operand(majors[0]), b=tp.Operand(majors[1])),
    "gemm of three warpgroups": lambda majors: S.Gemm(
        (192, 64, 16), (1, 1), 2, a=tp.Operand(majors[0]), b=tp.Operand(majors[1])
    ),
    "pingpong": lambda majors: S.PingPong((64, 96, 32), (2, 1), 2, a=tp.Operand(majors[0]), b=tp.Operand(majors[1])),
    "splitk": lambda majors: S.SplitK(3, (64, 64, 16), (1, 2), 2, a=tp.Operand(majors[0]), b=tp.Operand(majors[1])),
    "streamk": lambda majors: S.StreamK(3, (64, 64, 16), (1, 1), 2, a=tp.Operand(majors[0]), b=tp.Operand(majors[1])),
}


def normal(rows, k, dtype=ml_dtypes.bfloat16, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, k)).astype(dtype)


def along(major, x):
    """The same matrix, contiguous along its rows or its columns, with rows in memory a multiple of 16 bytes apart."""
    transposed = x if major == "k" else x.T
    kept = np.zeros((transposed.shape[0], -(-transposed.shape[1] // 8) * 8), x.dtype)
    view = kept[:, : transposed.shape[1]]
    view[...] = transposed
    return view if major == "k" else view.T


IN_PARTS = ("splitk", "streamk")  # they take the longest, and load as a GEMM does


@pytest.mark.parametrize(
    "name, majors",
    [(name, each) for name in SCHEDULES for each in (sample(MAJORS, 4) if name in IN_PARTS else MAJORS)],
    ids="".join,
)
def test_products(name, majors):
    a, b = normal(203, 77), normal(104, 77, seed=1)
    out = SCHEDULES[name](majors)(along(majors[0], a), along(majors[1], b))
    want = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(out.astype(np.float64), want, rtol=1e-2, atol=1e-2)


@given(
    m=st.integers(1, 150),
    n=st.integers(1, 12).map(lambda eighths: 8 * eighths),
    k=st.integers(1, 70),
    majors=st.sampled_from(MAJORS),
    seed=st.integers(0, 3),
)
@settings(max_examples=examples(25))
def test_the_same_bits_as_contiguous_along_k(m, n, k, majors, seed):
    a, b = normal(m, k, np.float16, seed), normal(n, k, np.float16, seed + 1)
    plain = S.Gemm((64, 32, 32), (1, 2), 2)(along("k", a), along("k", b))
    transposed = S.Gemm((64, 32, 32), (1, 2), 2, a=tp.Operand(majors[0]), b=tp.Operand(majors[1]))(
        along(majors[0], a), along(majors[1], b)
    )
    assert (plain.view(np.uint16) == transposed.view(np.uint16)).all()


@pytest.mark.parametrize("majors", MAJORS, ids="".join)
def test_gated(majors):
    a, gate, up = normal(100, 40), normal(72, 40, seed=1), normal(72, 40, seed=2)
    gemm = S.GatedGemm(
        (64, 64, 32),
        (1, 1),
        2,
        a=tp.Operand(majors[0]),
        b=tp.Operand(majors[1]),
        epilogue=tp.epilogue.Epilogue(lambda gate, up: gate * up, dtype="fp32"),
    )
    out = gemm(along(majors[0], a), along(majors[1], gate), along(majors[1], up))
    a, gate, up = (x.astype(np.float64) for x in (a, gate, up))
    np.testing.assert_allclose(out, (a @ gate.T) * (a @ up.T), rtol=1e-4, atol=1e-3)


def test_by_name_with_operands_and_in_simulate():
    a, b, c = normal(72, 40), normal(48, 40, seed=1), normal(72, 48, seed=2)
    gemm = S.Gemm(
        (64, 48, 32),
        (1, 1),
        2,
        a=tp.Operand("m"),
        b=tp.Operand("n"),
        epilogue=tp.epilogue.Epilogue(lambda acc, c: acc + c, operands={"c": tp.epilogue.Matrix()}, dtype="fp32"),
    )
    want = a.astype(np.float64) @ b.astype(np.float64).T + c.astype(np.float64)
    a, b = along("m", a), along("n", b)
    np.testing.assert_allclose(gemm(b=b, c=c, a=a), want, rtol=1e-4, atol=1e-4)
    out = np.full((72, 48), np.nan, np.float32)
    run = gemm.simulate(a, b, c=c, out=out)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)
    assert run.counts["Wgmma"] == 2 * 2 * 4  # output tiles, k-tiles, warps


def test_a_batch():
    a, b = (np.stack([normal(rows, 40, seed=s) for s in range(3)]) for rows in (72, 56))
    transposed = np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)
    out = S.Gemm((64, 64, 32), (1, 1), 2, b=tp.Operand("n"), epilogue=tp.epilogue.Epilogue(dtype="fp32"))(a, transposed)
    np.testing.assert_allclose(out, np.einsum("lmk,lnk->lmn", a.astype(float), b.astype(float)), rtol=1e-4, atol=1e-4)
