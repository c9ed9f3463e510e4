"""Results that the same kernel loads again."""

import pytest
import torch

import tmapipe as tp
from tests.oracle.result_forms import Centered, Chained, InPlace, Overlapped, TwoStages


@pytest.mark.parametrize("shape", [(1, 64), (10, 200), (1000, 5000), (4096, 1024)])
def test_rows_come_back(shape):
    x = torch.randint(-9, 10, shape, device="cuda").bfloat16()
    for _ in range(3):
        y, z = Centered()(x)
        assert torch.equal(y, 2 * x.float())
        torch.testing.assert_close(z.float(), y - y.sum(1, keepdim=True), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("kind", [Chained, Overlapped])
@pytest.mark.parametrize("shape", [(8, 64), (1000, 5000), (4096, 4096)])
def test_tiles_come_back(shape, kind):
    x = torch.randn(shape, device="cuda").bfloat16()
    for _ in range(3):
        y, z = kind()(x)
        assert torch.equal(y, x) and torch.equal(z, x)


@pytest.mark.parametrize("shape", [(8, 64), (1000, 5000), (4096, 4096)])
def test_an_output_may_be_its_input(shape):
    x = torch.randn(shape, device="cuda")
    for make in (InPlace, tp.schedules.Softmax, lambda: tp.schedules.Elementwise(lambda x: 2 * x)):
        kernel, y = make(), x.clone()
        expected = kernel(x)
        assert kernel(y, out=y) is y and torch.equal(y, expected)
        assert torch.equal(kernel(x), expected)


@pytest.mark.parametrize("columns", [1001, 60000])
def test_rows_that_begin_anywhere_are_copied_first(columns):
    x, softmax = torch.randn(50, columns, device="cuda").bfloat16(), tp.schedules.Softmax()
    expected = softmax(x)
    assert softmax(x, out=x) is x and torch.equal(x, expected)


@pytest.mark.parametrize("shape", [(1, 64), (1000, 5000)])
def test_one_tensor_for_two_stages(shape):
    x = torch.randn(shape, device="cuda")
    assert torch.equal(TwoStages()(x), x - x[:, :1])
