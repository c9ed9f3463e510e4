"""Tiles of three and more extents on the device, swizzled and not, and slots with room between."""

import pytest
import torch

from tests.unit.test_tiles_of_three import FORMS, LONG, Shared, Vector, long_rows, pixels, swizzled_shared


@pytest.mark.parametrize("form", FORMS)
def test_right_for_random_shapes(form):
    torch.manual_seed(0)
    for _ in range(20):
        shape = (*torch.randint(1, 40, (3,)).tolist(), 4 * int(torch.randint(1, 40, ())))
        x = torch.randn(shape, device="cuda")
        assert torch.equal(form()(x), 2 * x)


@pytest.mark.parametrize("schedule", [Shared(), swizzled_shared((4, 8, 64))])
def test_multicast(schedule):
    x = torch.randn(9, 20, 64, device="cuda")
    y = torch.full((30, *x.shape), float("nan"), device="cuda")
    schedule(x, out=y)
    assert torch.equal(y, (2 * x).expand_as(y))


def test_slots_of_any_length():
    x = torch.randn(100_000, device="cuda")
    assert torch.equal(Vector()(x), x)


@pytest.mark.parametrize("rows", [(4, 32), (1, 128), (64, 2), (2, 4, 16)])
def test_rows_of_accumulators_are_those_of_a_box(rows):
    schedule = pixels(rows)
    for shape in ((1, 1, 1), (3, 5, 130), (2, 70, 33), (8, 56, 56)):
        x, f = (torch.randint(-2, 3, extents, device="cuda").bfloat16() for extents in ((*shape, 72), (72, 72)))
        assert torch.equal(schedule(x, f), (x.float() @ f.float().T).bfloat16())


@pytest.mark.parametrize("tile", [tile for tile, _ in LONG])
def test_rows_longer_than_a_box_are_cut(tile):
    schedule = long_rows(tile, "a b m n"[-2 * len(tile) + 1 :])
    x = torch.randn(*(50 for _ in tile[1:]), 2 * tile[-1] + 8, device="cuda")
    assert torch.equal(schedule(x), x)
