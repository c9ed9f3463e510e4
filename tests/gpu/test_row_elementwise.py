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


def remembered(kernel):
    assert kernel.__dict__["_again"]


@pytest.mark.parametrize("name", cases.captured())
def test_a_changed_number_makes_another_kernel(name):
    cases.check_captured(name, "cuda", remembered)


@pytest.mark.parametrize("shape", [(64, 512), (3, 5001, 1000), (40, 101), (9001,)])
def test_calls_are_remembered(shape):
    x, kernel = torch.randn(shape, device="cuda"), tp.schedules.Elementwise(lambda x, y: x * y)
    for _ in range(3):
        y = torch.randn(shape, device="cuda")
        torch.testing.assert_close(kernel(x, y), x * y)
        remembered(kernel)
    assert kernel(x, y, out=y) is y
    torch.testing.assert_close(kernel(x, x), x * x)
