"""Rotary on the GPU: the cases of the CPU's tests, and large tensors."""

import pytest
import torch

from tests.unit import test_row_rotary as cases


@pytest.mark.parametrize("pairs", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("name", cases.CASES)
def test_conventions(name, pairs):
    cases.check(cases.tensors(name, "cuda"), pairs)


def test_views():
    cases.check_views("cuda")


@pytest.mark.parametrize("pairs", [False, True], ids=["halves", "pairs"])
def test_many_positions(pairs):
    x = torch.randn(3, 1001, 32, 128, device="cuda", dtype=torch.bfloat16)
    turn = 9 * torch.rand(1001, 1, 64, device="cuda")
    cases.check((x, turn.cos(), turn.sin()), pairs)
    cases.check((x.transpose(1, 2), turn[:, 0].cos(), turn[:, 0].sin()), pairs)
