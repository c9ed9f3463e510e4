"""Transpose: orders of dimensions, types and alignments. `tests/gpu` runs the same cases."""

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tests.unit.test_row_schedules import BF16, FP16, FP32

CASES = {  # the shape of x, the order, and the type
    "a matrix": ((72, 136), None, BF16),
    "matrices": ((3, 72, 40), None, FP32),
    "images with channels last": ((2, 16, 6, 20), (0, 2, 3, 1), FP16),
    "the first last": ((24, 2, 3, 16), (1, 2, 3, 0), BF16),
    "heads before positions": ((2, 9, 4, 16), (0, 2, 1, 3), BF16),
    "all around": ((8, 2, 3, 24), (3, 2, 1, 0), FP32),
    "odd rows": ((33, 72), None, BF16),
    "odd columns": ((64, 71), None, FP32),
    "odd matrices": ((2, 7, 13), None, FP16),
    "odd long rows": ((75, 131), None, BF16),
    "rows a multiple of 4 bytes": ((30, 66), None, BF16),
    "odd rows of dense matrices": ((2, 24, 77), None, FP16),
    "a row": ((1, 72), None, FP32),
    "a vector": ((7,), None, BF16),
    "one column": ((40, 1), (-1, 0), BF16),
    "whole numbers": ((40, 72), (1, 0), torch.int32),
}


def tensor(name, device="cpu"):
    shape, _, kind = CASES[name]
    source = torch.Generator().manual_seed(len(name))
    return (1000 * torch.randn(shape, generator=source)).to(device, kind)


def permuted(x, dims):
    return x.permute(dims) if dims is not None else x.mT if x.ndim > 1 else x


def check(x, dims, out=None):
    found = tp.schedules.Transpose(dims)(x, out=out)
    assert torch.equal(found, permuted(x, dims)) and (out is not None or found.is_contiguous())


@pytest.mark.parametrize("name", CASES)
def test_orders(name):
    check(tensor(name), CASES[name][1])


def check_views(device="cpu"):
    x = tensor("matrices", device)
    check(x[:, 8:40, 4:36], None)
    check(x[:, 3:40, 3:36], None, torch.empty(3, 33, 40, device=device)[..., 1:38])
    check(x[0].T, None)
    check(x[..., ::2], None)
    check(x[:1, :, :8].expand(4, 72, 8), None)
    check(x, (0, 2, 1), torch.empty(3, 72, 40, device=device).mT)  # lies as x does
    check(x, (2, 0, 1))


def test_views():
    check_views()


def test_arrays_and_nothing():
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    assert (tp.schedules.Transpose()(x) == x.T).all()
    assert tp.schedules.Transpose()(x[:0]).shape == (3, 0)


def test_bad_input():
    Transpose, x = tp.schedules.Transpose, torch.ones(3, 8)
    refused(Transpose, (0, 0), argument="Transpose(dims)", rule="each dimension once")
    refused(Transpose, (1, -1), argument="Transpose(dims)", rule="each dimension once")
    refused(Transpose, 1, argument="Transpose(dims)", rule="each dimension once")
    refused(Transpose((0, 2, 1)), x, argument="x.shape", rule="has dimensions")
    refused(Transpose(), x.long(), argument="x.dtype", rule="is one of bf16")
    refused(Transpose(), torch.ones(1, 1, 1, 1, 2, 2), argument="x.shape", rule="one to five")
    refused(lambda: Transpose()(x, out=x), argument="out", rule="is of")
    refused(lambda: Transpose()(x, out=torch.ones(8, 6)[:, ::2]), argument="out.stride", rule="contiguous")


def test_large_matrices_that_begin_differently(monkeypatch):
    """Matrices are transposed one by one: no copy of the whole tensor is made first."""
    from tmapipe.schedules import transpose

    monkeypatch.setattr(transpose, "APART", 1 << 10)
    monkeypatch.setattr(transpose, "padded", None)
    x = np.arange(2 * 2 * 33 * 81, dtype=np.float32).reshape(2, 2, 33, 81)
    assert np.array_equal(tp.schedules.Transpose()(x), x.swapaxes(-1, -2))


def test_matrices_that_begin_alike_share_a_launch(monkeypatch):
    """Every second one of these does: two launches for five, of 32 rows and of the other four."""
    from tmapipe.schedules import transpose

    monkeypatch.setattr(transpose, "APART", 1 << 10)
    monkeypatch.setattr(transpose, "padded", None)
    x = torch.arange(2 * 5 * 36 * 81, dtype=torch.int32).reshape(2, 5, 36, 81).to(torch.float16)
    launches, seen = [], transpose.TransposeRows.__call__
    monkeypatch.setattr(
        transpose.TransposeRows, "__call__", lambda self, x, y: (launches.append(x.shape[:-2]), seen(self, x=x, y=y))
    )
    assert torch.equal(tp.schedules.Transpose()(x), x.transpose(-1, -2))
    assert launches == [(5,)] * 4
