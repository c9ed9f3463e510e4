"""Stages in the memory of others, on the device."""

import pytest
import torch

from tests.oracle.held_forms import Narrowed
from tests.unit.test_over import OutputOverInput


@pytest.mark.parametrize("shape", [(4, 64), (1000, 520), (30_000, 1024)])
def test_a_tile_in_another_type(shape):
    x = torch.randn(shape, device="cuda")
    for _ in range(3):
        assert torch.equal(Narrowed()(x), x.bfloat16())


@pytest.mark.parametrize(("m", "n"), [(128, 64), (1000, 264), (20_000, 1024)])
def test_an_output_over_a_matmul_operand(m, n):
    a, b = (torch.randint(-3, 4, (rows, 64), device="cuda").bfloat16() for rows in (m, n))
    for _ in range(3):
        assert torch.equal(OutputOverInput()(a, b), (a.float() @ b.float().T).bfloat16())
