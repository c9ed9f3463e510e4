"""Problems with nothing in them return at once, with the right values."""

import functools

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused


def test_a_gemm_without_k_is_the_epilogue_of_zero():
    a, b = np.zeros((16, 0), np.float16), np.zeros((8, 0), np.float16)
    assert (tp.schedules.Gemm()(a, b) == 0).all()
    assert (tp.schedules.Gemm(epilogue=lambda x: x * 2 + 3)(a, b) == 3).all()


def test_an_empty_output_stays_empty():
    a, b = np.zeros((0, 64), np.float16), np.zeros((8, 64), np.float16)
    assert tp.schedules.Gemm()(a, b).shape == (0, 8)


class Summed(tp.Schedule):
    """y = x + sum over s of z[s]."""

    load, add = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(2, producer=load, consumer=add)
    more = tp.BarrierRing(2, producer=load, consumer=add)
    x = tp.TmaLoadStage("m n", tile=(8, 256), ring=ring)
    z = tp.TmaLoadStage("s m n", tile=(8, 256), ring=more)
    y = tp.TmaStoreStage("m n", tile=(8, 256), role=add)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
        for s in range(k.steps("z", "s")):
            with k.more.produce() as slot:
                slot.z.load(tile, s=s)

    @add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            total = slot.x.read()
        for _ in range(k.steps("z", "s")):
            with k.more.consume() as slot:
                total = total + slot.z.read()
        k.y.store(tile, total)


def test_an_output_of_what_is_there_is_no_sum_of_nothing():
    """The output was 0, although x has elements."""
    x, none = np.ones((20, 256), np.float32), np.ones((0, 20, 256), np.float32)
    error = refused(Summed(), x, none, argument="z.shape", value=(0, 20, 256), rule="but x has, on which y may depend")
    assert "define empty_value(self, bound)" in error.fix

    class Said(Summed):
        load, add = Summed.load, Summed.add

        def empty_value(self, bound):
            return bound.tensors["x"]

    assert (Said()(x, none) == 1).all()
    assert Summed()(x[:0], none[:, :0]).shape == (0, 256)


@pytest.mark.parametrize(
    ("operation", "value"), [("sum", 0), ("mean", np.nan), ("max", -np.inf), ("min", np.inf), ("logsumexp", -np.inf)]
)
def test_rows_without_elements_have_a_number(operation, value):
    """Their numbers were what the memory held."""
    np.testing.assert_equal(tp.schedules.Reduce(operation)(np.zeros((5, 0), np.float32)), np.full(5, value, np.float32))


@pytest.mark.parametrize("kind", [tp.schedules.Attention, functools.partial(tp.schedules.SplitAttention, 2)])
def test_attention_without_keys(kind):
    q, none = torch.zeros(1, 2, 10, 64).half(), torch.zeros(1, 1, 0, 64).half()
    o, lse = kind(d=64, lse=True)(q, none, none)
    assert (o == 0).all() and (lse == -torch.inf).all()
