"""Running sums of rows, and neighbours in pairs, on the GPU: the CPU's cases, and long rows."""

import pytest
import torch

from tests.unit import test_row_scans as cases

SHAPES = [*cases.CASES, ((1003, 64), cases.BF16), ((301, 2047), cases.BF16), ((77, 4096), cases.FP16)]
SHAPES += [
    ((37, 65536), cases.BF16),
    ((19, 100001), cases.FP32),
    ((5, 1 << 20), cases.FP32),
    ((2000, 1000), cases.FP32),
]


@pytest.mark.parametrize("shape, dtype", SHAPES, ids=str)
def test_cumsum(shape, dtype):
    cases.check(cases.rows_of(shape, dtype, "cuda"))


def test_views():
    cases.check_views("cuda")


def test_neighbours_in_pairs():
    x, w = torch.randn(900, 128, device="cuda"), torch.randn(128, device="cuda")
    wanted = x.view(900, 64, 2).flip(2).view(900, 128) + w.view(64, 2).flip(1).view(128)
    assert torch.equal(cases.Swapped()(x, w), wanted)


def test_integers_and_accumulators():
    x = torch.randn(640, 1280, device="cuda").to(cases.BF16)
    wanted = (x.T > 0).view(1280, 10, 64).cumsum(2).view(1280, 640)
    assert torch.equal(cases.Counted()(x), wanted.to(cases.BF16))
