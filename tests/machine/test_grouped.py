"""Grouped GEMMs on the model: rows of several groups, whose ends come from a table."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.sweeps import examples, sample
from tests.unit.errors import refused

GroupedGemm = tp.schedules.GroupedGemm
PINGPONG = tp.mainloop.PingPong()
ENDS = ([30, 30, 100, 300, 310], [0, 0, 0, 0, 310], [310] * 5, [64, 128, 192, 256, 310], [1, 2, 3, 4, 5], [0] * 5)


def operands(m, n, k, groups, dtype=ml_dtypes.bfloat16):
    rng = np.random.default_rng(0)
    return rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((groups, n, k)).astype(dtype)


def reference(a, b, ends, out):
    """*out* with the rows of all groups written."""
    out, start = out.copy(), 0
    for matrix, end in zip(b, ends, strict=True):
        out[start:end] = a[start:end].astype(np.float64) @ matrix.astype(np.float64).T
        start = end
    return out


@pytest.mark.parametrize(
    "mainloop, cluster, ends",
    sample(itertools.product([tp.mainloop.Cooperative(), PINGPONG], [(1, 1), (1, 2), (2, 1)], ENDS), 5),
    ids=str,
)
def test_rows_of_each_group_and_no_others(ends, cluster, mainloop):
    a, b = operands(310, 104, 40, 5)
    out = np.full((310, 104), 7.5, np.float32)  # rows after the last group keep it
    want = reference(a, b, ends, out)
    epilogue = tp.epilogue.Epilogue(dtype="fp32")
    GroupedGemm((64, 64, 32), cluster, 2, mainloop=mainloop, epilogue=epilogue)(a, b, np.array(ends, np.int32), out)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)


@given(
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=40),
    tile=st.sampled_from([(64, 32, 32), (128, 32, 32), (192, 32, 32)]),
    cluster=st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    clusters=st.integers(1, 3),
    pingpong=st.booleans(),
)
@settings(max_examples=examples(30))
def test_any_sizes(sizes, tile, cluster, clusters, pingpong):
    ends = np.cumsum(sizes).astype(np.int32)
    a, b = operands(max(int(ends[-1]), 1), 40, 32, len(sizes))
    out = np.zeros((len(a), 40), np.float32)
    want = reference(a, b, ends, out)
    mainloop = PINGPONG if pingpong and tile[0] < 192 else tp.mainloop.Cooperative()
    gemm = GroupedGemm(tile, cluster, 2, mainloop=mainloop, epilogue=tp.epilogue.Epilogue(dtype="fp32"))
    gemm.simulate(a, b, ends, out=out, clusters=clusters)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)


def test_majors_types_and_an_epilogue():
    a, b = operands(150, 64, 48, 3)
    ends = np.array([10, 90, 150], np.int32)
    transposed = np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)
    gemm = GroupedGemm(
        (64, 64, 16), (1, 1), 2, b=tp.Operand("n"), epilogue=tp.epilogue.Epilogue(tp.math.relu, dtype="fp32")
    )
    want = np.maximum(reference(a, b, ends, np.zeros((150, 64))), 0)
    np.testing.assert_allclose(gemm(a, transposed, ends), want, rtol=1e-4, atol=1e-4)
    rule = "multiples of 16 bytes"  # a group that begins at row 10 would be an illegal instruction
    refused(lambda: GroupedGemm(a=tp.Operand("m")), argument="a.major", value="m", rule=rule)


def test_rows_of_groups_are_not_contiguous_in_any_load():
    """In a schedule of one's own, of one dimension or two."""

    wrong = GroupedGemm((64, 64, 16), (1, 1), 2)
    wrong.a = tp.TmaLoadStage("k m", tile=(16, 64), ring=wrong.ring)
    wrong.mma = tp.Wgmma(wrong.a, wrong.b)
    refused(wrong.check, argument="slot.a.load", value=("k", "m"), rule="begin at any element along m; TMA starts")


def test_entries_that_are_no_rows_write_nothing_else():
    """Ends that are negative, beyond the tensor or that fall: some rows are left out, and none gets wrong values."""
    a, b = operands(100, 32, 32, 4)
    out = np.full((100, 32), -1, np.float32)
    GroupedGemm((64, 32, 32), (1, 1), 2, epilogue=tp.epilogue.Epilogue(dtype="fp32"))(
        a, b, np.array([-5, 40, 1000, 2000], np.int32), out
    )
    want = reference(a, b, [0, 40, 100, 100], out)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        (np.array([10, 20], np.int16), "offsets.dtype"),
        (np.array([10, 20, 30], np.int32), "offsets.shape"),
        (np.array([10, 0, 20, 0], np.int32)[::2], "offsets.shape, offsets.stride"),
        (np.array([[10, 20]], np.int32), "offsets.shape, offsets.stride"),
        (None, "offsets"),
    ],
)
def test_bad_tables(offsets, text):
    a, b = operands(20, 32, 32, 2)
    with pytest.raises(tp.InputError) as error:
        GroupedGemm((64, 32, 32), (1, 1), 2)(a, b, offsets)
    assert str(error.value).startswith(text)


def test_teams_take_the_tiles_that_have_rows_in_turn():
    gemm = GroupedGemm((64, 64, 32), (1, 2), 3, mainloop=PINGPONG)
    report = gemm.check()
    assert report.ok and report.trips == "every trip count"
    a, b = operands(130, 64, 64, 40)
    ends = np.array([0] * 13 + [1] * 7 + [130] * 20, np.int32)
    want = reference(a, b, ends, np.zeros((130, 64), np.float32))
    for clusters in (1, 2, 5):
        out = np.zeros((130, 64), ml_dtypes.bfloat16)
        gemm.simulate(a, b, ends, out=out, clusters=clusters)
        np.testing.assert_allclose(out.astype(np.float32), want, rtol=1e-2, atol=1e-2)
