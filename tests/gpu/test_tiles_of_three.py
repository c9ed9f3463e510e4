"""Tiles of three and more extents on the device, swizzled and not, and slots with room between."""

import pytest
import torch

from tests.unit.test_tiles_of_three import FORMS, Shared, Vector


@pytest.mark.parametrize("form", FORMS)
def test_right_for_random_shapes(form):
    torch.manual_seed(0)
    for _ in range(20):
        shape = (*torch.randint(1, 40, (3,)).tolist(), 4 * int(torch.randint(1, 40, ())))
        x = torch.randn(shape, device="cuda")
        assert torch.equal(form()(x), 2 * x)


def test_multicast():
    x = torch.randn(9, 20, 64, device="cuda")
    y = torch.full((30, *x.shape), float("nan"), device="cuda")
    Shared()(x, out=y)
    assert torch.equal(y, (2 * x).expand_as(y))


def test_slots_of_any_length():
    x = torch.randn(100_000, device="cuda")
    assert torch.equal(Vector()(x), x)
