"""Safe and right, without a GPU."""

from __future__ import annotations

import numpy as np
import torch
from leaky import LeakyGemm, linear

import tmapipe as tp

SMALL = (64, 64, 64), (1, 1)


def test_it_is_safe() -> None:
    report = LeakyGemm(0.1, *SMALL).check()
    assert report.ok, report


def test_it_computes_what_numpy_does() -> None:
    generator = np.random.default_rng(0)
    a, b, bias = (generator.integers(-3, 4, shape).astype(tp.dtypes.bf16.numpy) for shape in ((40, 72), (24, 72), 24))
    d = LeakyGemm(0.5, *SMALL)(a, b, bias=bias)
    x = a.astype(np.float32) @ b.astype(np.float32).T + bias.astype(np.float32)
    assert (d == np.maximum(x, 0.5 * x).astype(tp.dtypes.bf16.numpy)).all()


def test_it_is_an_operator() -> None:
    x, weight, bias = torch.randn(16, 64).bfloat16(), torch.randn(32, 64).bfloat16(), torch.randn(32).bfloat16()
    wanted = torch.nn.functional.leaky_relu(torch.nn.functional.linear(x.float(), weight.float(), bias.float()), 0.01)
    compiled = torch.compile(linear, fullgraph=True, backend="aot_eager")
    for run in (linear, compiled):
        torch.testing.assert_close(run(x, weight, bias).float(), wanted, atol=0.1, rtol=0.02)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(linear(x, weight, bias).float().sum(), x)
    assert grad.shape == x.shape
