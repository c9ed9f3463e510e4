"""Matmuls of every form on the device: operands of two rings, written by threads, started and awaited apart."""

import numpy as np
import pytest
import torch

from tests.matmul_schedules import FORMS
from tests.oracle.matmul_forms import InTurn
from tests.unit.test_matmuls import Halves


@pytest.mark.parametrize("name", FORMS)
def test_random_shapes(name):
    """Small whole numbers, so that sums are exact."""
    form, rng = FORMS[name], np.random.default_rng(5)
    schedule = form.make()
    for _ in range(20):
        arrays = form.arrays(rng)
        given = {n: torch.from_numpy(x).to("cuda", torch.bfloat16) for n, x in arrays.items()}
        expected = torch.from_numpy(np.ascontiguousarray(form.expected(**arrays))).to(torch.bfloat16)
        for _ in range(3):
            assert torch.equal(schedule(**given).cpu(), expected)


def test_parts_of_a_tile_are_written():
    x = torch.randn(1000, 128, device="cuda").bfloat16()
    assert torch.equal(Halves()(x), x.view(1000, 2, 2, 32).flip(2).reshape(x.shape))


def test_warpgroups_in_turn():
    for m, n, k in ((1000, 520, 1000), (128, 64, 16), (4096, 4096, 512)):
        a, b = (torch.randint(-2, 3, (rows, k), device="cuda").bfloat16() for rows in (m, n))
        assert torch.equal(InTurn()(a, b), (a.float() @ b.float().T).bfloat16())
