"""Raw CuTe DSL in a role, on the device."""

import pytest
import torch

import tmapipe as tp
from tests.raw_rows import Doubled, double_on_cpu, double_on_gpu
from tests.unit.test_raw_functions import BY_WARP, HALF


@pytest.mark.parametrize("shape", [(16, 64), (1000, 1000), (3, 8), (4099, 2056)])
def test_rows_are_doubled(shape):
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    y = torch.full_like(x, float("nan"))
    Doubled()(x, out=y)
    assert torch.equal(y, 2 * x)


class Twice(Doubled):
    """``y = 4 x``: by raw code, then by the library, which deals the elements over the lanes in another way."""

    work = tp.Role(warps=1)
    load, store = Doubled.load, Doubled.store
    ring = tp.BarrierRing(3, chain=(load, work, store))
    x = tp.TmaLoadStage(tile=(16, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            k.raw(double_on_gpu, double_on_cpu, updates=(slot.x,))
            slot.x.write(slot.x.read() * 2)


def test_lanes_meet_around_raw_code():
    x = torch.randn(4099, 2056, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        assert torch.equal(Twice()(x), 4 * x)


def test_functions_are_told_their_role():
    x = torch.ones(320, 40, device="cuda")
    y = HALF(x)
    assert (y[:, :20] == 1).all() and (y[:, 20:] == 0).all()
    assert torch.equal(BY_WARP(x)[:, 0], torch.arange(4.0, device="cuda").repeat_interleave(4).repeat(20))
