"""Rows by their numbers, on the device, against PyTorch."""

import random
import runpy
from pathlib import Path

import pytest
import torch

from tests.oracle.row_forms import GatherRows, ScatterRows

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "embedding.py"))


def problem(rng, dtype):
    rows, count, columns = rng.randint(1, 900), rng.randint(1, 700), 8 * rng.randint(1, 80)
    x = torch.randint(-5, 6, (rows, columns), device="cuda").to(dtype)
    index = torch.randint(-3, rows + 3, (count,), device="cuda", dtype=torch.int32)
    return x, index, (index >= 0) & (index < rows)


@pytest.mark.parametrize("seed", range(6))
def test_gathered(seed):
    rng = random.Random(seed)
    form = [GatherRows, EXAMPLE["gather_of"]][seed % 2]()
    for _ in range(5):
        x, index, inside = problem(rng, torch.bfloat16)
        y = torch.full((len(index), x.shape[1]), 7, device="cuda", dtype=x.dtype)
        form(x, index, out=y)
        assert torch.equal(y, torch.where(inside[:, None], x[index.clamp(0, len(x) - 1).long()], 0))


@pytest.mark.parametrize("seed", range(6))
def test_added(seed):
    rng = random.Random(seed)
    form = [lambda: ScatterRows("add"), EXAMPLE["Gradient"]][seed % 2]()
    for _ in range(5):
        y, index, inside = problem(rng, torch.float32)
        x = torch.randint(-5, 6, (len(index), y.shape[1]), device="cuda").float()
        expected = y.clone().index_add_(0, index[inside].long(), x[inside])
        form(x, index, out=y)
        assert torch.equal(y, expected)


@pytest.mark.parametrize("seed", range(3))
def test_scattered(seed):
    rng = random.Random(seed)
    for _ in range(5):
        y, _, _ = problem(rng, torch.bfloat16)
        index = torch.randperm(len(y), device="cuda")[: rng.randint(1, len(y))].int()
        x = torch.randint(-5, 6, (len(index), y.shape[1]), device="cuda").to(y.dtype)
        expected = y.clone()
        expected[index.long()] = x
        ScatterRows()(x, index, out=y)
        assert torch.equal(y, expected)
