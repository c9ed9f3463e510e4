"""Calls on the device: prepared ones, and those that a launch is looked up for."""

import pytest
import torch

import tmapipe as tp
from tmapipe.errors import InputError

SMALL = (128, 128, 64), (1, 1)


def half(*shape):
    return torch.randint(-3, 4, shape, device="cuda").bfloat16()


def product(a, b):
    return (a.double() @ b.double().mT).bfloat16()


def test_prepared_calls_run_on_the_current_stream_and_in_graphs():
    gemm = tp.schedules.Gemm(*SMALL, tiles=tp.tiles.DynamicTiles())
    a, b, d = half(500, 64), half(264, 64), half(500, 264)
    call, made = gemm.prepare(a, b, out=d), gemm.prepare(a, b)
    assert call() is d and torch.equal(d, product(a, b)) and torch.equal(made(), d)
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        a += 1
        call()
    other.synchronize()
    assert torch.equal(d, product(a, b))
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(other):
        call()
        other.synchronize()
        with torch.cuda.graph(graph, stream=other):
            call()
    a -= 2
    graph.replay()
    assert torch.equal(d, product(a, b))


def test_each_call_looks_at_its_tensors():
    gemm = tp.schedules.Gemm(*SMALL, b=tp.Operand("n"))
    for m, n in ((128, 64), (128, 64), (64, 128), (64, 128)):
        a, b = half(m, 64), half(64, n).T
        for _ in range(2):
            assert torch.equal(gemm(a, b), product(a, b))
            assert torch.equal(gemm(a, b=b, out=half(m, n)), product(a, b))
    whole = torch.empty(1 << 16, device="cuda", dtype=torch.bfloat16)
    cut = whole[: 128 * 64].view(128, 64)
    gemm(cut, b)
    whole.untyped_storage().resize_(64)
    with pytest.raises(InputError, match="not freed"):
        gemm(cut, b)
    with pytest.raises(InputError, match="automatic differentiation"):
        gemm(half(64, 64).requires_grad_(), b)


def test_numbers_by_tensor():
    fused = tp.epilogue.Epilogue(lambda acc, by: acc * by, operands={"by": tp.epilogue.Scalar()})
    gemm = tp.schedules.Gemm(*SMALL, epilogue=fused)
    a, b = half(128, 64), half(64, 64)
    for by in (2.0, torch.tensor(2.0, device="cuda"), torch.tensor([2.0], device="cuda")):
        for _ in range(2):
            assert torch.equal(gemm(a, b, by=by), (2 * a.double() @ b.double().T).bfloat16())
