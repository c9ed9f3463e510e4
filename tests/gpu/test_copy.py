"""The copy on the device."""

import random

import pytest
import torch

import tmapipe as tp
from examples.stream_copy import vector_copy

DTYPES = [torch.bfloat16, torch.float32, torch.int8, torch.int32, torch.float16, torch.int64, torch.float64]


@pytest.mark.parametrize("seed", range(20))
def test_random_copies(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype = rng.choice(DTYPES)
    step = 16 // dtype.itemsize
    tile = rng.choice([(16, 128), (64, 64), (8, 256), (1, 256), (4, 32)])
    copy = tp.schedules.Copy(tile, stages=rng.choice([2, 3, 8]), pending=rng.choice([0, 1]))
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


@pytest.mark.parametrize("hint", [None, "evict_last"])
def test_a_vector_in_bulk(hint):
    copy = vector_copy(256, l2_hint=hint)
    for pieces in (1, 7, 50_000, 1 << 21 | 1):  # the last one has more than 2 GiB
        x = torch.randint(-9, 9, (256 * pieces,), device="cuda", dtype=torch.int32)
        assert torch.equal(copy(x), x)


@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize("tile", [(4, 256), (1, 256), (16, 128)])
def test_one_tile_a_cta_or_a_few(tile, each):
    copy = tp.schedules.Copy(tile, stages=each, pending=0, l2_hint="evict_last")
    copy.tiles = tp.tiles.GridTiles(tp.tiles.Grouped(1), each=each)
    for shape in [(8192, 8192), (3001, 1000), (1, 8)]:
        x = torch.randn(shape, device="cuda")
        for _ in range(3):
            assert torch.equal(copy(x), x)


def test_a_store_would_overwrite_the_rest_of_a_16_byte_unit():
    """Seen on an H200: a TMA store clips at the tensor's edge in units of 16 bytes. So `bind` refuses such outputs; threads
    copy them."""
    x, whole = torch.ones(40, 72, device="cuda", dtype=torch.bfloat16), torch.zeros(40, 72, device="cuda").bfloat16()
    tp.schedules.Copy()(x[:, :65], out=whole[:, :65])
    assert (whole[:, :65] == 1).all() and (whole[:, 65:] == 0).all()
    with pytest.raises(tp.InputError, match="16 bytes"):
        tp.schedules.Gemm()(x, x[:25, :72], out=torch.zeros(40, 72, device="cuda", dtype=torch.bfloat16)[:, :25])


def test_any_shape_that_is_contiguous():
    for shape in [(7,), (3, 5, 7), (16384, 8192), (1024,), (256, 4), (0, 8)]:
        x = torch.randn(shape, device="cuda").to(torch.float16)
        if x.numel() % 8 == 0:
            assert torch.equal(tp.schedules.Copy()(x), x)


def test_architecture_of_the_device_is_checked():
    copy = tp.schedules.Copy()
    copy.arch = "sm_120a"
    with pytest.raises(tp.InputError, match="sm_120a"):
        copy(torch.zeros(64, 128, device="cuda"))


def test_outputs_that_overlap_are_refused_on_the_fast_path_too():
    copy = tp.schedules.Copy()
    memory = torch.zeros(96, 1024, device="cuda")
    x, apart = memory[:32], memory[32:64]
    for _ in range(2):
        copy(x, out=apart)
        with pytest.raises(tp.InputError, match="overlap"):
            copy(x, out=memory[16:48])


def test_kernels_of_a_stream_follow_each_other():
    """Each is launched while the one before may still run; it reads what that one writes, and overwrites what it reads."""
    copy = tp.schedules.Copy()
    x, y, z = (torch.empty(2048, 4096, device="cuda", dtype=torch.int32) for _ in range(3))
    seen = []
    for i in range(100):
        x.fill_(i)
        copy(x, out=y)
        copy(y, out=z)
        copy(z, out=y)
        copy(y, out=x)
        seen.append((x == i).all() & (z == i).all())
    assert torch.stack(seen).all()
