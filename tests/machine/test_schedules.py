"""The shipped schedules on the model: the same bits for every seed and policy, with the plan's own warps and registers."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from tests.machine.parts import run_recorded
from tests.oracle.judged_bodies import program_of
from tests.sweeps import sample
from tmapipe import Operand
from tmapipe.errors import ScopeError
from tmapipe.model import POLICIES, Machine
from tmapipe.schedules import Copy, Gemm, SplitK, StreamK
from tmapipe.tiles import Grouped, Hilbert, PersistentTiles, Snake


def gemm_arrays(m, n, k, dtype=ml_dtypes.bfloat16):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((1, rows, k), np.float32).astype(dtype) for rows in (m, n))
    return {"a": a, "b": b, "d": np.zeros((1, m, n), dtype)}


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_gemm(cluster):
    schedule = Gemm(tile=(128, 64, 64), cluster=cluster, stages=3)
    plan, program = schedule.plan({}), program_of(schedule)
    results = set()
    for policy in POLICIES:
        for seed in range(2):
            arrays = gemm_arrays(264, 72, 200)
            Machine(plan, policy=policy, seed=seed).run(program, arrays, clusters=1 + seed % 2)
            results.add(arrays["d"].tobytes())
    assert len(results) == 1
    want = arrays["a"][0].astype(np.float32) @ arrays["b"][0].astype(np.float32).T
    np.testing.assert_allclose(arrays["d"][0].astype(np.float32), want, rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("raster", [Grouped(2), Snake(2), Hilbert(2)])
def test_orders(raster):
    """More tiles than CTAs, and edges that clusters and bands do not divide: the same bits in every order."""
    arrays = [gemm_arrays(328, 200, 40) for _ in range(2)]
    for order, into in zip((PersistentTiles(), PersistentTiles(raster)), arrays, strict=True):
        schedule = Gemm((64, 64, 16), (2, 1), 2, tiles=order)
        Machine(schedule.plan({})).run(program_of(schedule), into, clusters=2)
    assert arrays[0]["d"].any() and (arrays[0]["d"] == arrays[1]["d"]).all()


@pytest.mark.parametrize("policy", sample(POLICIES, 3))
def test_without_data_at_production_size(policy):
    """5 stages, 2 consumer warpgroups, cluster 2 x 2, 64 k-tiles, 3 output tiles a CTA: the protocol alone is fast."""
    schedule = Gemm(tile=(128, 128, 64), cluster=(2, 2), stages=5)
    shapes = {"a": (1, 256, 4096), "b": (1, 768, 4096), "d": (1, 256, 768)}
    made = run_recorded(schedule.plan({}), program_of(schedule), shapes, policy)
    assert made.counts["Wgmma"] == 4 * 8 * 3 * 64 and made.counts["LoadComplete"] == 4 * 3 * 64 * (2 + 2)
    assert made.loaded_bytes == 4 * 3 * 64 * (128 + 128) * 64 * 2


@pytest.mark.parametrize("reduce,parts", sample(itertools.product([None, "add"], [1, 3, 7]), 2))
def test_split_k(parts, reduce):
    """Small integers, whose sums are exact: whichever way the parts are added, and with parts that get no k-tile."""
    rng = np.random.default_rng(parts)
    a, b = (rng.integers(-2, 3, (rows, 88)).astype(ml_dtypes.bfloat16) for rows in (136, 72))
    want = a.astype(np.float32) @ b.astype(np.float32).T
    split = SplitK(parts, (64, 64, 16), (2, 1), 2, reduce=reduce)
    made = split(a, b)
    assert made.dtype == (np.float32 if reduce else a.dtype) and (made == want.astype(made.dtype)).all()
    out = np.full((136, 72), np.nan, np.float32)
    assert split(a, b, out=out) is out and (out == want).all()
    assert (split(a[:, :0], b[:, :0], out=out) == 0).all()


@pytest.mark.parametrize(
    "cluster,shares,reduce",
    sample(itertools.product([(1, 1), (2, 1), (1, 2)], [1, 2, 5, 66], [None, "add"]), 5),
)
def test_stream_k(shares, cluster, reduce):
    """Fewer shares than tiles, more than k-tiles: exact sums, also where some tiles have a piece less than others."""
    rng = np.random.default_rng(shares)
    a, b = (rng.integers(-2, 3, (rows, 88)).astype(ml_dtypes.bfloat16) for rows in (136, 200))
    want = a.astype(np.float32) @ b.astype(np.float32).T
    stream = StreamK(shares, (64, 64, 16), cluster, 2, reduce=reduce)
    out = np.full((136, 200), np.nan, np.float32)
    assert stream(a, b, out=out) is out and (out == want).all()
    assert (stream(a[:, :0], b[:, :0], out=out) == 0).all()
    assert stream(a[:0], b).shape == (0, 200)


@pytest.mark.parametrize("policy", POLICIES)
def test_copy(policy):
    schedule = Copy(stages=12)
    plan, program = schedule.plan({}), program_of(schedule)
    x = np.arange(30 * 600, dtype=np.int32).reshape(30, 600)
    for seed in range(5):
        y = np.zeros_like(x)
        Machine(plan, policy=policy, seed=seed).run(program, {"x": x, "y": y}, clusters=3)
        assert (x == y).all()


@pytest.mark.parametrize("majors", [("m", "n"), ("m", "k"), ("k", "n"), ("k", "k")])
def test_operands_along_m_and_n(majors):
    """a [m, k] and b [n, k], called and simulated, by place and by name."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (rows, 88)).astype(ml_dtypes.bfloat16) for rows in (136, 72))
    want = (a.astype(np.float32) @ b.astype(np.float32).T).astype(a.dtype)
    a = a if majors[0] == "k" else np.ascontiguousarray(a.T).T
    b = b if majors[1] == "k" else np.ascontiguousarray(b.T).T
    gemm = Gemm((64, 64, 16), (2, 1), 2, a=Operand(majors[0]), b=Operand(majors[1]))
    assert (gemm(a, b) == want).all() and (gemm(b=b, a=a) == want).all()
    out = np.zeros_like(want)
    gemm.simulate(a, b, out=out, seed=3)
    assert (out == want).all()


class WithoutSlots(Gemm):
    """Its tiles have no k-tiles."""

    def tile_slots(self, k, tile):
        return 0


def test_sums_of_nothing():
    """Zero where a body allows for it; where it does not, the GPU would store what the last tile has left."""
    a, b = np.ones((64, 16), np.float16), np.ones((64, 16), np.float16)
    assert (SplitK(5, (64, 64, 16), (1, 1), 2)(a, b) == 16).all()  # four parts have no k-tiles
    with pytest.raises(ScopeError, match=r"accumulate\(empty=False\) of mma ended without acc.add"):
        WithoutSlots((64, 64, 16), (1, 1), 2)(a, b)
