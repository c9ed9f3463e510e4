"""Operators of torch on the device: right for random tensors, without falling back; compiled, captured, with gradients."""

import copy
import random

import pytest
import torch
from torch.nn import functional

import tmapipe as tp
import tmapipe.torch as tt
from tmapipe.torch import operators


def half(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def close(found, expected):
    assert found.shape == expected.shape and found.is_contiguous()
    assert (found.double() - expected.double()).norm() <= 6e-3 * expected.double().norm() + 1e-30


@pytest.mark.parametrize("part", ["rows of weights", "columns of weights", "products"])
@pytest.mark.parametrize("seed", range(8))
def test_random_products(seed, part):
    rng = random.Random(seed)
    n, k = 8 * rng.randint(1, 200), 8 * rng.randint(1, 200)
    shape = [rng.randint(1, 30) for _ in range(rng.randint(0, 3))]
    weight, bias = half(n, k), half(n)
    with tt.kernels_only():
        if part == "products":
            a, b = half(rng.randint(1, 4), rng.randint(1, 300), k), half(1, n, k)
            close(tt.gemm(a, b.expand(len(a), n, k).contiguous()), a.double() @ b.double().mT)
        else:
            x, layout = half(*shape, k), weight if part == "rows of weights" else weight.t().contiguous().t()
            close(tt.linear(x, layout, bias), functional.linear(x.double(), layout.double(), bias.double()))
            close(tt.linear(x, layout), functional.linear(x.double(), layout.double()))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "h, g, m, s, d, e", [(4, 4, 300, 300, 64, 64), (8, 2, 1, 3000, 128, 128), (4, 4, 500, 700, 192, 128)]
)
def test_attention(h, g, m, s, d, e, causal):
    q, k, v = (half(2, tokens, n, width).transpose(1, 2) for tokens, n, width in ((m, h, d), (s, g, d), (s, g, e)))
    wide = [x.double() for x in (q, k, v)]
    expected = functional.scaled_dot_product_attention(*wide, is_causal=causal, enable_gqa=True)
    with tt.kernels_only():
        for run in (tt.scaled_dot_product_attention, torch.compile(tt.scaled_dot_product_attention, fullgraph=True)):
            found = run(q, k, v, is_causal=causal, enable_gqa=True)
            assert (found.double() - expected).norm() <= 6e-3 * expected.norm()


def test_gradients_and_compilation():
    x, weight, bias = (half(*shape).requires_grad_() for shape in ((4, 32, 256), (512, 256), (512,)))
    norm = half(512).requires_grad_()

    def layer(x):
        return tt.softmax(tt.rms_norm(tt.linear(x, weight, bias), norm))

    def reference(*given):
        x, weight, bias, norm = given
        return torch.softmax(functional.rms_norm(functional.linear(x, weight, bias), (512,), norm, 1e-6), -1)

    given = (x, weight, bias, norm)
    wide = [each.detach().double().requires_grad_() for each in given]
    factor = torch.randn(4, 32, 512, device="cuda")
    expected = torch.autograd.grad((reference(*wide) * factor).sum(), wide)
    with tt.kernels_only():
        for run in (layer, torch.compile(layer, fullgraph=True, dynamic=True)):
            for found, exact in zip(torch.autograd.grad((run(x) * factor).sum(), given), expected, strict=True):
                assert (found.double() - exact).norm() <= 2e-2 * exact.norm()


@pytest.mark.parametrize("m, n, k", [(1000, 3001, 2007), (77, 333, 555), (1, 515, 4097)])
def test_products_whose_rows_are_no_multiples_of_16_bytes(m, n, k):
    given = [half(*shape).requires_grad_() for shape in ((m, k), (n, k), (n,))]
    wide = [each.detach().double().requires_grad_() for each in given]
    exact, factor = functional.linear(*wide), torch.randn(m, n, device="cuda")
    expected = torch.autograd.grad((exact * factor).sum(), wide)
    with tt.kernels_only():
        for _ in range(2):
            found = tt.linear(*given)
            assert found.is_contiguous()
            close(found.detach(), exact.detach())
            for mine, its in zip(torch.autograd.grad((found * factor).sum(), given), expected, strict=True):
                assert (mine.double() - its).norm() <= 1e-2 * its.norm()


@pytest.mark.parametrize("m, n", [(512, 4096), (300, 1001), (64, 30522)])
def test_gradients_of_rows(m, n):
    functions = {
        tt.softmax: (lambda x: torch.softmax(x, -1), 0),
        tt.log_softmax: (lambda x: torch.log_softmax(x, -1), 0),
        tt.rms_norm: (lambda x, w: functional.rms_norm(x, (n,), w, 1e-6), 1),
        tt.layer_norm: (lambda x, w, b: functional.layer_norm(x, (n,), w, b), 2),
        tt.cross_entropy: (functional.cross_entropy, None),
    }
    factor = torch.randn(m, n, device="cuda")
    for mine, (its, columns) in functions.items():
        given = [half(m, n).requires_grad_(), *(half(n).requires_grad_() for _ in range(columns or 0))]
        others = [torch.randint(0, n, (m,), device="cuda")] if columns is None else []
        wide = [each.detach().double().requires_grad_() for each in given]
        expected = torch.autograd.grad((its(*wide, *others) * factor.double()).sum(), wide)
        with tt.kernels_only():
            for run in (mine, torch.compile(mine, fullgraph=True)):
                found = torch.autograd.grad((run(*given, *others) * factor).sum(), given)
                for gradient, exact in zip(found, expected, strict=True):
                    assert gradient.dtype == torch.bfloat16
                    assert (gradient.double() - exact).norm() <= 1e-2 * exact.norm(), mine.__name__


@pytest.mark.parametrize("tokens", [16, 512])  # of few, k is taken in parts
def test_remembered_calls(tokens):
    """From graphs, with gradients and below them; the second call of a kind is remembered."""
    x, weight, bias = half(tokens, 4096), half(512, 4096).requires_grad_(), half(512)
    expected = functional.linear(x.double(), weight.double(), bias.double())
    layer, op = torch.compile(lambda x: tt.linear(x, weight, bias), fullgraph=True), torch.ops.tmapipe.linear
    with tt.kernels_only():
        for _ in range(3):
            for run in (layer, lambda x: tt.linear(x, weight, bias), lambda x: op(x, weight, bias)):
                with torch.no_grad():
                    close(run(x), expected)
                with torch.inference_mode():
                    close(run(x), expected)
                found = run(x)
                close(found.detach(), expected)
                (of_weight,) = torch.autograd.grad(found, (weight,), torch.ones_like(found))
                close(of_weight, torch.ones_like(found).double().mT @ x.double())


@pytest.mark.parametrize("kind, shares", [(tp.schedules.SplitK, 3), (tp.schedules.StreamK, 64)])
@pytest.mark.parametrize("bias", [None, True], ids=["plain", "bias"])
def test_calls_with_workspaces_are_remembered(kind, shares, bias, monkeypatch):
    """Also where some tiles have fewer parts than others: the rest of the workspace is set to zero again."""
    made = kind(shares, (128, 128, 64), (1, 1), epilogue=operators.BIASED if bias else None)
    monkeypatch.setattr(operators, "_schedule", lambda problem, bias: made)
    monkeypatch.setattr(operators, "callers", callers := {})
    x, weight, bias = half(384, 1600), half(640, 1600), bias and half(640)
    for _ in range(3):  # what adds the parts has a caller then, which products of this shape share
        made(x, weight, **({"bias": bias} if bias is not None else {}))
    with tt.kernels_only():
        first = tt.linear(x, weight, bias)
        assert callers
        monkeypatch.setattr(type(made), "__call__", lambda *_: pytest.fail("not remembered"))
        for _ in range(3):
            torch.full((1 << 24,), float("nan"), device="cuda")  # memory that a workspace may get
            assert torch.equal(tt.linear(x, weight, bias), first)
    close(first, functional.linear(*(each if each is None else each.double() for each in (x, weight, bias))))


def test_graphs_of_compiled_layers(monkeypatch):
    """torch runs what it is to capture in memory of the graph's pool, where the kernel's counters are not to stay."""
    made, choose = [], operators.choose

    def queued(problem, **how):
        made.append(copy.copy(choose(problem, **how)))
        if made[-1].one_kernel:
            made[-1].tiles = tp.tiles.DynamicTiles()
        return made[-1]

    monkeypatch.setattr(operators, "choose", queued)
    monkeypatch.setattr(operators, "callers", {})
    kinds = {"bias": False, "device": "cuda", "dtype": torch.bfloat16}
    layers = torch.nn.Sequential(tt.Linear(1024, 2048, **kinds), torch.nn.GELU(), tt.Linear(2048, 1024, **kinds))
    wide = torch.nn.Sequential(torch.nn.Linear(1024, 2048, False), torch.nn.GELU(), torch.nn.Linear(2048, 1024, False))
    wide.to("cuda", torch.float64).load_state_dict(layers.state_dict())
    run = torch.compile(layers, fullgraph=True, mode="reduce-overhead")
    with tt.kernels_only():
        for _ in range(4):
            x, grad = half(2048, 1024).requires_grad_(), half(2048, 1024)
            found = torch.autograd.grad(run(x), (x, *layers.parameters()), grad)
            exact = x.detach().double().requires_grad_()
            expected = torch.autograd.grad(wide(exact), (exact, *wide.parameters()), grad.double())
            for mine, its in zip(found, expected, strict=True):
                assert (mine.double() - its).norm() <= 2e-2 * its.norm()
    assert sum(each.one_kernel for each in made) > 2


def test_captured_and_registered():
    twice = tt.register(tp.schedules.Copy((8, 64)), "tmapipe_gpu_tests::copied")
    x, weight = half(64, 256), half(128, 256)

    def run():
        return twice(tt.linear(x, weight))

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    x.normal_()
    graph.replay()
    close(found, functional.linear(x.double(), weight.double()))
