"""Softmax and RMSNorm of rows of any length, on the GPU."""

import pytest
import torch

from tests.oracle.value_forms import Taps
from tests.unit.test_row_schedules import close, norm, taps_of
from tmapipe.schedules import RmsNorm, Softmax

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SHAPES = [
    ((1000, 64), BF16),
    ((1003, 101), BF16),
    ((70, 9, 333), FP16),
    ((1003, 101), FP32),
    ((500, 776), FP32),
    ((301, 2047), BF16),
    ((77, 5000), FP16),
    ((77, 8191), FP32),
    ((37, 20001), BF16),
    ((37, 65536), BF16),
    ((19, 100001), FP32),
    ((5, 262143), BF16),
    ((5, 262144), FP32),
]


@pytest.mark.parametrize("shape, dtype", SHAPES, ids=str)
def test_softmax(shape, dtype):
    x = 3 * torch.randn(shape, device="cuda").to(dtype)
    out = torch.full_like(x, float("nan"))
    assert Softmax()(x, out=out) is out
    close(out, torch.softmax(x.double(), -1), dtype)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape, dtype", SHAPES[::2], ids=str)
def test_rms_norm(shape, dtype, residual):
    x, other = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
    weight = torch.randn(shape[-1], device="cuda").to(dtype)
    if not residual:
        return close(RmsNorm()(x, weight), norm(x, weight)[0], dtype)
    wanted, sums = norm(x, weight, other.double())
    y, h = RmsNorm()(x, weight, other)
    close(y, wanted, dtype)
    close(h, sums, dtype)


def test_one_kernel_for_all_heights():
    softmax = Softmax()
    for rows in (1, 7, 8, 1001):
        x = torch.randn(rows, 301, device="cuda").to(BF16)
        close(softmax(x), torch.softmax(x.double(), 1), BF16)
    assert len(softmax.fitted) <= 2  # one row has no pitch


def test_numbers_out_of_lines_of_a_tile():
    inputs, expected = taps_of("cuda")
    assert torch.equal(Taps()(*inputs), expected)
