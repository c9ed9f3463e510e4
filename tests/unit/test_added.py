"""Outputs that results are added to (`reduce="add"`), or that are reduced by them in another way."""

import functools

import ml_dtypes
import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe.base.arithmetic import as_dtype
from tmapipe.store_pipeline import REDUCTIONS


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


# ---- other reductions --------------------------------------------------------------------------------------------------


def stacked(reduce, dtype=None):
    """`Stacked`, with another reduction."""
    schedule = Stacked()
    schedule.d = tp.TmaStoreStage("m n", source=schedule.x, reduce=reduce)
    return schedule


#: What is left of an element that is there and one that is stored, by Python, on bits without a sign or on floats.
BY_HAND = {
    "add": lambda old, new: old + new,
    "min": min,
    "max": max,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "inc": lambda old, new: 0 if old >= new else old + 1,
    "dec": lambda old, new: new if old == 0 or old > new else old - 1,
}


def expected(reduce, out, x):
    """What `stacked(reduce)(x, out)` makes of *out*: the layers of *x* one after another, element by element."""
    integers = out.dtype.kind in "iu"
    unsigned = integers and reduce not in ("min", "max")
    size = 2 ** (8 * out.itemsize) if unsigned else 1
    found = np.empty_like(out)
    for at in np.ndindex(out.shape):
        numbers = [int(v[at]) % size if unsigned else int(v[at]) if integers else float(v[at]) for v in (out, *x)]
        total = functools.reduce(BY_HAND[reduce], numbers)
        found[at] = np.array(total % size, f"u{out.itemsize}").view(out.dtype) if unsigned else total
    return found


def inputs(reduce, dtype, layers=3, shape=(20, 72)):
    """x and what the output begins with. Of "inc" and "dec", layers are alike: their order makes a difference."""
    rng = np.random.default_rng(0)
    kind = as_dtype(dtype).numpy
    if dtype == "int64" or (dtype == "int32" and reduce not in ("min", "max", "add")):
        most = 2 ** (8 * np.dtype(kind).itemsize - 1)
        x = (
            rng.integers(0, 6, (layers, *shape))
            if reduce in ("inc", "dec")
            else rng.integers(-most, most - 1, (layers, *shape))
        )
        x = x.astype(kind)
        x = np.broadcast_to(x[:1], x.shape).copy() if reduce in ("inc", "dec") else x
        return x, rng.integers(-2, 7, shape).astype(kind)
    return rng.integers(-9, 9, (layers, *shape)).astype(kind), rng.integers(-9, 9, shape).astype(kind)


@pytest.mark.parametrize("reduce, dtype", [(how, dtype) for how, types in REDUCTIONS.items() for dtype in types])
def test_reductions(reduce, dtype):
    x, out = inputs(reduce, dtype)
    wanted = expected(reduce, out, x)
    stacked(reduce)(x, out=out)
    assert (out == wanted).all()


def test_reductions_are_checked():
    assert stacked("min").check().ok


def test_outputs_of_reductions_that_cannot_begin_with_zero_are_passed():
    x = np.ones((2, 16, 64), np.int32)
    for reduce in ("min", "max", "and", "inc", "dec"):
        refused(stacked(reduce), x, argument="d", rule=f"must be passed, since {reduce} combines")
    assert (stacked("xor")(x) == 0).all() and (stacked("or")(x) == 1).all()


def test_types_that_the_hardware_does_not_reduce():
    x = np.ones((2, 16, 64), np.float32)
    for reduce in ("min", "and", "inc"):
        refused(stacked(reduce), x, x[0].copy(), argument="d", value="fp32", rule=f"TMA stores can {reduce}")
    whole = x.astype(np.int32)  # compared without a sign on the device
    refused(stacked("max"), whole, whole[0].copy(), argument="d", value="int32", rule="TMA stores can max")
    eight = np.ones((2, 16, 64), ml_dtypes.float8_e5m2)
    refused(stacked("add"), eight, eight[0].copy(), argument="d", value="fp8_e5m2", rule="can add")
    refused(
        tp.TmaStoreStage,
        source=Stacked.x,
        reduce="mul",
        argument="reduce",
        rule="None or one of add, min, max, inc, dec",
    )
