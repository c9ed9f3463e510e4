"""Transpose on the GPU: the cases of the CPU's tests, and large tensors."""

import pytest
import torch

from tests.unit import test_row_transpose as cases


@pytest.mark.parametrize("name", cases.CASES)
def test_orders(name):
    cases.check(cases.tensor(name, "cuda"), cases.CASES[name][1])


def test_views():
    cases.check_views("cuda")


@pytest.mark.parametrize("dtype", [cases.BF16, cases.FP32])
def test_many_tiles(dtype):
    x = torch.randn(7, 3001, 1000, device="cuda").to(dtype)
    cases.check(x, None)
    cases.check(x.mT, None)
    cases.check(x[:, :3000], (2, 0, 1))
