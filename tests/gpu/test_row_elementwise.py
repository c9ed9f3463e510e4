"""Elementwise on the GPU: the cases of the CPU's tests, and large tensors."""

import pytest
import torch

import tmapipe as tp
from tests.unit import test_row_elementwise as cases


@pytest.mark.parametrize("name", cases.CASES)
def test_shapes_that_broadcast(name):
    cases.check(cases.tensors(name, "cuda"))


def test_views():
    cases.check_views("cuda")


def test_many_tiles():
    x = torch.randn(3, 5001, 1000, device="cuda", dtype=torch.bfloat16)
    cases.check([x, x[:1, :, :1], x[0, 0]])
    cases.check([x.view(-1), x.view(-1).float()])


def test_a_slow_function():
    x = torch.randn(1 << 20, device="cuda")
    found = tp.schedules.Elementwise(lambda x: tp.math.gelu(x, approximate="none"))(x)
    torch.testing.assert_close(found, torch.nn.functional.gelu(x), atol=1e-5, rtol=1e-5)
