"""Prepared calls, on the CPU model: the same as a call, with tensors that stay where they are."""

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe.bind.tensors import signature

S = tp.schedules


def half(*shape):
    return torch.randint(-3, 4, shape).bfloat16()


def test_what_lies_there_when_it_is_called():
    gemm = S.Gemm((64, 64, 64), (1, 1))
    a, b, d = half(24, 64), half(16, 64), half(24, 16)
    call, made = gemm.prepare(a, b, out=d), gemm.prepare(a, b)
    first = made()
    for _ in range(2):
        a += 1
        assert call() is d and made() is first
        assert torch.equal(d, (a.float() @ b.float().T).bfloat16()) and torch.equal(d, first)


def test_operands_by_name_and_views():
    fused = tp.epilogue.Epilogue(lambda acc, bias: acc + bias, operands={"bias": tp.epilogue.PerColumn()})
    gemm = S.Gemm((64, 64, 64), (1, 1), epilogue=fused, b=tp.Operand("n"))
    a, b, bias = half(24, 64), half(64, 16).T, half(16)
    assert torch.equal(gemm.prepare(a, b, bias=bias)(), gemm(a, b, bias=bias))


def test_sums_begin_anew_in_what_the_call_has_made():
    split = S.SplitK(2, (64, 64, 64), (1, 1), 2)
    refused(split.prepare, half(64, 128), half(64, 128), argument="SplitK.prepare", rule="one kernel")

    class Added(tp.Schedule):
        """y += x."""

        load, store = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(stages=2, producer=load, consumer=store)
        x = tp.TmaLoadStage(tile=(4, 64), ring=ring)
        y = tp.TmaStoreStage(source=x, reduce="add")

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store(tile)

    x, y = torch.ones(4, 64), torch.ones(4, 64)
    made, given = Added().prepare(x), Added().prepare(x, y)
    for count in (2, 3):
        assert (made() == 1).all() and (given() == count).all()


def test_nothing_to_compute():
    gemm = S.Gemm((64, 64, 64), (1, 1))
    d = half(8, 16)
    assert gemm.prepare(half(8, 0), half(16, 0), out=d)() is d and not d.any()


def test_what_a_call_refuses_is_refused():
    gemm = S.Gemm((64, 64, 64), (1, 1))
    refused(gemm.prepare, half(8, 64), half(16, 128), argument="b.shape", rule="has k = 128")
    refused(gemm.prepare, half(8, 64), half(16, 64), out=half(8, 24), argument="d.shape", rule="has n = 24")


def test_backward_notices():
    gemm = S.Gemm((64, 64, 64), (1, 1))
    d = half(8, 16)
    call = gemm.prepare(half(8, 64), half(16, 64), out=d)
    x = torch.ones(8, 16, dtype=torch.bfloat16, requires_grad=True)
    product = x * d
    call()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


# ---- the signature of a call --------------------------------------------------------------------------------------------


class Subclass(torch.Tensor):
    pass


def test_what_a_kernel_cannot_take_has_none():
    """Each of these would look like another tensor to a kernel that is known by the signature."""
    x = torch.zeros(8, 16)
    odd = [
        torch.zeros(8, 16, dtype=torch.complex64).conj().imag,  # negated later
        x.as_subclass(Subclass),
        torch.zeros(8, 16, requires_grad=True),
        torch.zeros(8, 16, device="meta"),
        torch.zeros(0, 16),
        np.zeros((8, 16), np.float32),
        1.5,
        None,
    ]
    assert signature((x,), None) is not None
    for each in odd:
        assert signature((x, each), None) is None, each
    with torch.no_grad():
        assert signature((torch.nn.Parameter(x),), None) == signature((x,), None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16, torch.uint8, torch.int32], ids=str)
def test_copies_of_elements_of_any_size(dtype):
    for shape in ((16, 32), (64,), (2, 3, 64), (0, 8)):
        x, y = torch.randint(0, 99, shape).to(dtype), torch.zeros(shape, dtype=dtype)
        call = tp.schedules.Copy().prepare(x, out=y)
        for _ in range(2):
            x += 1
            assert call() is y and torch.equal(x, y)
    copy, x = tp.schedules.Copy(), half(4, 8)
    refused(copy.prepare, half(3, 5), argument="x.shape, x.stride", rule="whole units of 16 bytes")
    refused(copy.prepare, x, x.float(), argument="y.dtype", rule="where a copy is prepared")
    refused(copy.prepare, x, half(4, 8), out=half(4, 8), argument="out", rule="given already")


def test_the_kernel_is_that_of_its_time():
    """As on a GPU: what is assigned later to what an epilogue refers to, or to an attribute, is for later calls."""
    factors = [2.0]
    gemm = S.Gemm((64, 64, 64), (1, 1), epilogue=lambda acc: acc * factors[0])
    a, b = half(8, 64), half(16, 64)
    call, twice = gemm.prepare(a, b), gemm(a, b)
    assert torch.equal(call(), twice)
    factors[0] = 4.0
    assert torch.equal(call(), twice) and torch.equal(gemm(a, b), 2 * twice)
    gemm.tiles, gemm.epilogue = tp.tiles.GridTiles(), None
    assert torch.equal(call(), twice)
