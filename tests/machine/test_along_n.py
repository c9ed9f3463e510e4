"""GEMMs whose accumulators have the output's columns as rows, and are stored transposed."""

import functools
import itertools

import attrs
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.sweeps import examples, sample
from tests.unit.errors import refused
from tmapipe.schedules.mainloop import Cooperative, PingPong

S, E = tp.schedules, tp.epilogue


def product(make, m, n, k, batch=(), dtype=ml_dtypes.bfloat16, majors=("k", "k")):
    """(what *make* gives, what NumPy gives) for random matrices."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((*batch, rows, k)).astype(dtype) for rows in (m, n))
    right = a.astype(np.float32) @ b.astype(np.float32).swapaxes(-1, -2)
    a, b = (
        x if major == "k" else np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        for x, major in zip((a, b), majors, strict=True)
    )
    return make(a, b), right


def close(found, right):
    np.testing.assert_allclose(found.astype(np.float32), right, rtol=1e-2, atol=1e-2 * np.abs(right).max())


@settings(max_examples=examples(12))
@given(
    st.integers(1, 300), st.integers(1, 40), st.integers(1, 30), st.integers(2, 32), st.sampled_from([64, 128, 192]),
    st.sampled_from([(1, 1), (2, 1), (1, 2)]),
)  # fmt: skip
def test_any_shape(m, n, k, width, rows, cluster):
    width = width * 8 if cluster == (1, 1) else -(-width // 2) * 16  # each of two CTAs loads a multiple of 8 rows
    gemm = S.Gemm((width, rows, 64), cluster, mainloop=Cooperative(along="n"))
    close(*product(gemm, m, 8 * n, 8 * k))


@pytest.mark.parametrize(
    "dtype,majors",
    [
        (ml_dtypes.bfloat16, ("k", "k")),
        (np.float16, ("m", "k")),
        (np.float16, ("k", "n")),
        (ml_dtypes.bfloat16, ("m", "n")),
    ],
)
def test_types_majors_and_batches(dtype, majors):
    operands = {"a": tp.Operand(majors[0]), "b": tp.Operand(majors[1])}
    for make in (
        S.Gemm((128, 64, 64), mainloop=Cooperative(along="n"), **operands),
        S.PingPong((64, 128, 64), (1, 2), along="n", **operands),
    ):
        close(*product(make, 104, 200, 136, (3,), dtype, majors))


def test_an_epilogue_and_bits():
    """Every element is the same sum; a function of it is applied to that."""
    along_m, along_n = (
        S.Gemm((64, 64, 64), (1, 1), mainloop=Cooperative(along=along), epilogue=tp.math.gelu) for along in "mn"
    )
    found, wanted = (product(make, 72, 136, 256)[0] for make in (along_m, along_n))
    assert np.array_equal(found, wanted) and found.dtype == ml_dtypes.bfloat16


OPERANDS = {"bias": E.PerColumn(), "scale": E.PerRow(), "c": E.Matrix(), "each": E.PerBatch(), "alpha": E.Scalar()}


@pytest.mark.parametrize(
    "names, dtype, batch",
    [(("bias",), np.float32, ()), (("c",), ml_dtypes.bfloat16, (3,)), (tuple(OPERANDS), ml_dtypes.bfloat16, (2,))],
)
def test_operands(names, dtype, batch):
    """Of tiles with one and several pieces, the last of which begins earlier; of fp32, and of none that ldmatrix reads."""
    rng = np.random.default_rng(1)
    m, n, names = 104, 136, [name for name in names if batch or name != "each"]
    whole = (*batch, m, n)
    shapes = {"bias": n, "scale": m, "c": whole, "each": batch, "alpha": 1}
    given = {name: rng.standard_normal(shapes[name]).astype(dtype) for name in names}
    if "alpha" in given:
        given["alpha"] = 1.5
    form = {"scale": (m, 1), "each": (*batch, 1, 1)}
    epilogue = E.Epilogue(
        lambda acc, **named: sum(named.values(), acc), operands={name: OPERANDS[name] for name in names}
    )
    forms = (
        S.Gemm((48, 128, 64), (1, 1), mainloop=Cooperative(along="n"), epilogue=epilogue),
        S.Gemm((104, 64, 64), (1, 1), mainloop=Cooperative(along="n"), epilogue=epilogue),
        S.Gemm((16, 192, 64), (2, 1), mainloop=Cooperative(along="n"), epilogue=epilogue),
        S.PingPong((72, 128, 64), (1, 1), along="n", epilogue=epilogue),
        S.Gemm((48, 128, 64), (1, 1), epilogue=attrs.evolve(epilogue, columns=24), mainloop=Cooperative(along="n")),
        S.Gemm((64, 104, 64), (1, 1), epilogue=attrs.evolve(epilogue, columns=32)),
    )
    for make in sample(forms, 2, first=int(names == ["c"])):
        found, right = product(functools.partial(make, **given), m, n, 72, batch)
        for name, values in given.items():
            right = right + (
                values if name == "alpha" else values.astype(np.float32).reshape(form.get(name, values.shape))
            )
        close(found, right)


PARTS = (functools.partial(S.SplitK, 3), functools.partial(S.StreamK, 5))
FORMS = (((48, 64, 64), (1, 1)), ((144, 192, 64), (1, 2)), ((80, 128, 64), (2, 1)))


@pytest.mark.parametrize("make, form", sample(itertools.product(PARTS, FORMS), 4))
def test_parts_of_k(make, form):
    """Their workspace is of fp32, which threads write to the slots number by number."""
    close(*product(make(*form, mainloop=Cooperative(along="n")), 150, 200, 320))


@pytest.mark.parametrize("along, batch", sample(itertools.product("mn", [(1,), (3,)]), 4, first=3))
def test_parts_of_k_of_a_batch(along, batch):
    """The matrices of the workspace are the parts of the batch's first matrix, then of the second, and so on."""
    for tiles in (tp.tiles.PersistentTiles(), tp.tiles.GpcTiles()):
        make = S.SplitK(3, (64, 128, 64), (2, 1), tiles=tiles, mainloop=Cooperative(along=along), epilogue=tp.math.relu)
        found, right = product(make, 72, 136, 200, batch)
        close(found, np.maximum(right, 0))


def test_output_of_fp32():
    for make in (
        S.Gemm((80, 128, 64), mainloop=Cooperative(along="n"), epilogue=E.Epilogue(dtype="fp32")),
        S.PingPong((64, 64, 64), along="n", epilogue=E.Epilogue(dtype="fp32")),
    ):
        found, right = product(make, 100, 264, 136)
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)


def test_two_products():
    rng = np.random.default_rng(0)
    a, gate, up = (rng.standard_normal((rows, 72)).astype(np.float16) for rows in (100, 136, 136))
    along_m, along_n = (S.GatedGemm((64, 64, 64), (1, 1), mainloop=Cooperative(along=along)) for along in "mn")
    assert np.array_equal(along_m(a, gate, up), along_n(a, gate, up))


def test_the_plan_and_the_proof():
    gemm = S.Gemm((144, 192, 64), (1, 2), mainloop=Cooperative(along="n"))
    plan = gemm.plan({"a": "bf16", "b": "bf16", "d": "bf16"})
    (matmul,), (store,) = plan.matmuls, plan.stores
    assert matmul.shape == (192, 144, 64) and matmul.warpgroups == 3
    assert store.buffer.tile == (48, 64) and store.tile == (1, 48, 64) and store.transposed and store.columns == 48
    assert "from transposed accumulators" in gemm.explain()
    assert S.PingPong((64, 64, 64), stages=3, along="n").check().ok  # as the registered one of `gemm`, in tests/check


def test_a_type_of_8_bits():
    """Its pieces are written number by number: 144 columns as two times 80."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 64)).astype(ml_dtypes.bfloat16) for rows in (150, 208))
    d = np.zeros((150, 208), ml_dtypes.float8_e5m2)
    gemm = S.Gemm((144, 128, 64), (1, 1), mainloop=Cooperative(along="n"))
    gemm(a, b, d)
    right = (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.float8_e5m2)
    np.testing.assert_allclose(d.astype(np.float32), right.astype(np.float32), rtol=0.3, atol=1e-2)
    assert gemm.plan({"d": "fp8_e5m2"}).store("d").buffer.tile == (80, 64)


def test_what_it_does_not_go_with():
    along = Cooperative(along="n")
    for wrong in ("k", 1):
        for kind in (Cooperative, PingPong):
            with pytest.raises(tp.InputError, match='"m" or "n"'):
                kind(along=wrong)
    for tiles in (
        tp.tiles.SplitKTiles(2, reduce="add"),
        tp.tiles.StreamKTiles(shares=2, reduce="add"),
        tp.tiles.GroupedTiles(),
    ):
        refused(S.Gemm, mainloop=along, tiles=tiles, argument="mainloop", rule="does not go with")
    epilogue = E.Epilogue(lambda acc: {"d": acc, "c": acc}, outputs={"c": E.Output()})
    refused(S.Gemm, mainloop=along, epilogue=epilogue, argument="mainloop", rule="further outputs are sums")
