"""Slots that are filled once a CTA, or once a tile beside an inner loop, on the device."""

import pytest
import torch

from tests.unit.test_held import Dots, Multicast, OneTeam, Scaled, Teams, Transformed


@pytest.mark.parametrize("rows", [8, 1000, 100_000])
@pytest.mark.parametrize(("schedule", "factor"), [(Scaled, 1), (Multicast, 1), (Transformed, 2)])
def test_held_over_all_tiles(schedule, factor, rows):
    w, x = torch.randn(8, 128, device="cuda"), torch.randn(rows, 128, device="cuda")
    for _ in range(3):
        y = schedule()(w, x)
        assert torch.equal(y, x * (factor * w).repeat(-(-rows // 8), 1)[:rows])


@pytest.mark.parametrize("steps", [1, 2, 33])
def test_one_slot_a_tile_beside_an_inner_loop(steps):
    q = torch.randint(-4, 5, (1000, 1024), device="cuda").float()
    x = torch.randint(-4, 5, (steps, 1000, 1024), device="cuda").float()
    assert torch.equal(Dots()(q, x), q * x.sum(0))


@pytest.mark.parametrize("form", [OneTeam, Teams])
def test_an_operand_that_is_held(form):
    b, a = (torch.randint(-3, 4, shape, device="cuda").bfloat16() for shape in ((64, 128), (50_000, 128)))
    for _ in range(3):
        assert torch.equal(form()(b, a), (a.float() @ b.float().T).bfloat16())
