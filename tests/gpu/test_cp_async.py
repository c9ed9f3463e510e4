"""Slots that threads copy by cp.async, on the device, against PyTorch."""

import random
import runpy
from pathlib import Path

import pytest
import torch

import tmapipe as tp
from tests.oracle.copy_forms import Added, Ahead, CopiedGemm, Far, FarPieces, Images

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "odd_rows.py"))


def matrix(rows, columns, dtype, unit, rng):
    """Of small integers, with rows and a first element at any multiple of *unit* bytes."""
    step = max(unit // dtype.itemsize, 1)
    pitch = -(-columns // step) * step + step * rng.randint(0, 9)
    first = step * rng.randint(0, 9)
    whole = torch.randint(-5, 6, (rows * pitch + first,), device="cuda").to(dtype)
    return whole[first:].view(rows, pitch)[:, :columns]


@pytest.mark.parametrize("seed", range(10))
def test_beside_loads(seed):
    rng = random.Random(seed)
    for _ in range(5):
        m, n = rng.randint(1, 900), 4 * rng.randint(1, 200)
        x, z = matrix(m, n, torch.float32, 4, rng), matrix(m, n, torch.float32, 16, rng)
        assert torch.equal(Added()(x, z), x + z)


@pytest.mark.parametrize("seed", range(10))
def test_operands(seed):
    """wgmma reads what threads have copied: without the fence, or with a wrong swizzle, the products are wrong."""
    rng = random.Random(seed)
    form = rng.choice([CopiedGemm, EXAMPLE["OddGemm"]])()
    for _ in range(5):
        m, n, k = rng.randint(1, 700), 8 * rng.randint(1, 80), 2 * rng.randint(1, 500)
        a, b = matrix(m, k, torch.bfloat16, 4, rng), matrix(n, k, torch.bfloat16, 16, rng)
        assert torch.equal(form(a, b), (a.float() @ b.float().T).bfloat16())


@pytest.mark.parametrize("seed", range(5))
def test_images(seed):
    rng = random.Random(seed)
    for _ in range(5):
        shape = tuple(rng.randint(1, 40) for _ in range(3))
        c = 8 * rng.randint(1, 30)
        x = matrix(shape[0] * shape[1] * shape[2], c, torch.bfloat16, 8, rng)
        x = x.as_strided((*shape, c), (*(shape[1] * shape[2] * x.stride(0), shape[2] * x.stride(0)), x.stride(0), 1))
        assert torch.equal(Images()(x), x)


@pytest.mark.parametrize("vector, swizzle, dtype", [
    (16, 128, torch.bfloat16), (8, 64, torch.bfloat16), (4, 32, torch.bfloat16), (4, 128, torch.int8), (16, 0, torch.float32),
])  # fmt: skip
def test_swizzles_and_vectors(vector, swizzle, dtype):
    """The slot is read back by threads and stored: whatever its swizzle, rows come out as they were."""

    class Through(tp.Schedule):
        load, work = tp.Role(warps=2), tp.Role(warps=4)
        ring = tp.BarrierRing(3, producer=load, consumer=work)
        x = tp.CpAsyncLoadStage("m n", tile=(16, 128), ring=ring, vector=vector, swizzle=swizzle)
        y = tp.TmaStoreStage("m n", tile=(16, 128), role=work)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
            k.y.store(tile, values)

    rng = random.Random(vector + swizzle)
    unit = 16 // dtype.itemsize
    for _ in range(5):
        m, n = rng.randint(1, 500), unit * rng.randint(1, 60)
        x = matrix(m, n, dtype, vector, rng)
        assert torch.equal(Through()(x), x)


def test_what_follows_the_tensor_is_not_read():
    """Copies beyond the edge move nothing: the last row may end with the memory."""
    x = torch.randn(1000, 333, device="cuda")[:, :332]
    z = torch.zeros(1000, 332, device="cuda")
    assert torch.equal(Added()(x, z), x)


def test_prefetches_change_nothing():
    for shape in ((16, 64), (1000, 520), (4096, 8192)):
        x = torch.randn(shape, device="cuda").bfloat16()
        assert torch.equal(Ahead()(x), x) and torch.equal(Far()(x), x)
    for shape in ((1, 64), (1000, 576), (4096, 8192)):
        x = torch.randn(shape, device="cuda").bfloat16()
        assert torch.equal(FarPieces()(x), x)
