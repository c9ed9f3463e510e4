"""Parts of a slot's tile on the device, swizzled and not, where vectors begin and where they do not."""

import pytest
import torch

from tests.unit.test_windows import WINDOWS, Alike, Swizzled, Window


@pytest.mark.parametrize("at", WINDOWS)
@pytest.mark.parametrize("form", [Window, Swizzled, Alike])
def test_parts_of_a_tile(form, at):
    schedule, x = form(), torch.randn(16, 64, device="cuda")
    schedule.at = at
    y = torch.empty(8, 32, device="cuda")
    schedule(x, out=y)
    assert torch.equal(y, x[at[0] : at[0] + 8, at[1] : at[1] + 32])
