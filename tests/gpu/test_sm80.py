"""Stores by threads on the device; and the instructions of sm_80, in a kernel for the device at hand."""

import random
import runpy
from pathlib import Path

import pytest
import torch

import tmapipe as tp
from tests.gpu.test_cp_async import matrix
from tests.oracle.copy_forms import Mapped
from tmapipe.gpu.build import Sm80Isa, build
from tmapipe.gpu.launch import adopt

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "double_buffer.py"))


def inside(x):
    """An output within a larger tensor, of the same pitch and offset as *x*."""
    whole = torch.full((x.shape[0] + 2, x.stride(0)), 77, dtype=x.dtype, device=x.device).reshape(-1)
    return whole, whole.as_strided(x.shape, x.stride(), x.stride(0) + x.storage_offset() % 8)


@pytest.mark.parametrize("seed", range(5))
def test_rows_anywhere(seed):
    rng = random.Random(seed)
    for _ in range(5):
        m, n = rng.randint(1, 900), 2 * rng.randint(1, 400)
        x = matrix(m, n, torch.bfloat16, 4, rng)
        whole, y = inside(x)
        Mapped()(x, out=y)
        assert torch.equal(y, x * x + 1)
        y.fill_(77)
        assert (whole == 77).all()


@pytest.mark.parametrize(
    "vector, dtype", [(1, torch.int8), (2, torch.float16), (8, torch.float32), (16, torch.bfloat16)]
)
def test_types_and_vectors(vector, dtype):
    class Through(tp.Schedule):
        load, work = tp.Role(warps=2), tp.Role(warps=4)
        ring = tp.BarrierRing(3, producer=load, consumer=work)
        x = tp.CpAsyncLoadStage("b m n", tile=(16, 128), ring=ring, vector=4)
        y = tp.ThreadStoreStage("b m n", tile=(16, 128), role=work, vector=vector)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
            k.y.store(tile, values)

    rng = random.Random(vector)
    for _ in range(5):
        unit = max(vector, 4) // dtype.itemsize
        shape = rng.randint(1, 4), rng.randint(1, 99), unit * rng.randint(1, 200 // unit)
        x = torch.randint(-5, 6, shape, device="cuda").to(dtype)
        assert torch.equal(Through()(x), x)


@pytest.mark.parametrize("kind", [Mapped, EXAMPLE["DoubleBuffer"]])
def test_instructions_of_sm_80(kind):
    """Waits by test_wait, lane 0 in the place of the elected one: in a kernel for this device, which has them too."""
    schedule, plain = kind(), kind()
    types = {"x": "bf16", "y": "bf16"}
    compiled = build(schedule, schedule.plan(types), {"x": 2, "y": 2}, keep=True, backend=Sm80Isa)
    assert "mbarrier.test_wait" in compiled.ptx and "try_wait" not in compiled.ptx
    adopt(schedule, compiled, {"x": 2, "y": 2})
    rng = random.Random(0)
    for _ in range(10):
        x = matrix(rng.randint(1, 3000), 2 * rng.randint(1, 900), torch.bfloat16, 4, rng)
        assert torch.equal(schedule(x), plain(x))
