"""Random expressions of fragments on the device, against the model's results."""

import os
import random

import pytest
import torch

from tests.emit.test_carried import optional
from tests.expressions import expected, make, problem

COUNT = int(os.environ.get("TMAPIPE_EXPRESSIONS", "40"))


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_expressions(seed):
    """The special functions are approximate: tanh.approx by 2^-11, the others by some 2^-22."""
    tree, tile, transposed, x, y = problem(random.Random(f"device {seed}"))
    schedule = make(tree, tile, transposed)
    found = schedule(torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda()).cpu()
    tolerance = 1e-3 if tree[0] == "tanh" else 1e-5
    torch.testing.assert_close(found, torch.from_numpy(schedule(x, y)), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        found, torch.from_numpy(expected(tree, x, y, tile, transposed)), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("scaled", [False, True])
def test_branches_on_options(scaled):
    x, w = (
        torch.randint(-9, 10, (3, 100, 600), device="cuda").float(),
        torch.randint(-3, 4, (600,), device="cuda").float(),
    )
    found = optional(scaled)(x=x, **({"w": w} if scaled else {}))
    assert torch.equal(found, 2 * x.sum(0) * w if scaled else x.sum(0) + 1)
