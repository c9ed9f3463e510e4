"""The copy on the device."""

import random

import pytest
import torch

import tmapipe as tp

DTYPES = [torch.bfloat16, torch.float32, torch.int8, torch.int32, torch.float16]


@pytest.mark.parametrize("seed", range(20))
def test_random_copies(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype = rng.choice(DTYPES)
    step = 16 // dtype.itemsize
    copy = tp.schedules.Copy(
        tile=rng.choice([(16, 128), (64, 64), (32, 256), (1, 256)]),
        stages=rng.choice([2, 3, 8]),
        pending=rng.choice([0, 1]),
    )
    for _ in range(3):
        rows, columns = rng.randint(1, 3000), step * rng.randint(1, 2000 // step)
        width = columns + step * rng.randint(0, 5)
        x = torch.randint(-100, 100, (rows, width), device="cuda").to(dtype)[:, :columns]
        whole = torch.full((rows, width), 77, device="cuda").to(dtype)
        y = whole[:, :columns]
        for _ in range(3):
            whole.fill_(77)
            copy(x, out=y)
            assert torch.equal(x, y)
            assert (whole[:, columns:] == 77).all(), "wrote outside the output"


def test_loads_clip_at_the_element_and_stores_at_16_bytes():
    """Why `bind` refuses outputs whose rows are no multiple of 16 bytes."""
    x = torch.ones(40, 72, device="cuda", dtype=torch.bfloat16)[:, :65]
    with pytest.raises(tp.InputError, match="16 bytes"):
        tp.schedules.Copy((16, 64))(x)


def test_large_copy():
    x = torch.randn(16384, 8192, device="cuda", dtype=torch.bfloat16)
    assert torch.equal(tp.schedules.Copy()(x), x)


def test_architecture_of_the_device_is_checked():
    copy = tp.schedules.Copy()
    copy.arch = "sm_120a"
    with pytest.raises(tp.InputError, match="sm_120a"):
        copy(torch.zeros(64, 128, device="cuda"))
