"""Raw CuTe DSL in a role, on the device."""

import pytest
import torch

from tests.raw_rows import Doubled


@pytest.mark.parametrize("shape", [(16, 64), (1000, 1000), (3, 8), (4099, 2056)])
def test_rows_are_doubled(shape):
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    y = torch.full_like(x, float("nan"))
    Doubled()(x, out=y)
    assert torch.equal(y, 2 * x)
