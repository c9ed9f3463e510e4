"""Scratch and k.sync() on the device: each warp takes what another one has written."""

import pytest
import torch

from tests.unit.test_scratch import Handed, Reversed


@pytest.mark.parametrize("shape", [(16, 64), (96, 128), (4096, 1024)])
def test_values_pass_from_warp_to_warp(shape):
    x = torch.randn(shape, device="cuda")
    expected = x.view(-1, 16, shape[1]).flip(1).reshape(shape)
    for _ in range(3):
        assert torch.equal(Reversed()(x), expected)


def test_several_roles_have_one_barrier():
    x = torch.randn(1000, 256, device="cuda")
    assert torch.equal(Handed()(x), 2 * x)
