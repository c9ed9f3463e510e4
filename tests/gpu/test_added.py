"""Outputs that results are added to, on the device: one that is left out starts at zero, in every call."""

import torch

from tests.unit.test_added import Stacked


def test_an_output_left_out_starts_at_zero():
    schedule, x = Stacked(), torch.randint(-9, 9, (5, 1000, 520), device="cuda").float()
    for _ in range(4):
        torch.full((1000, 520), float("nan"), device="cuda")  # what new memory then holds
        assert torch.equal(schedule(x), x.sum(0))
    out = torch.ones(1000, 520, device="cuda")
    schedule(x, out=out)
    assert torch.equal(out, x.sum(0) + 1)
