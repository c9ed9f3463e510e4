"""Loads whose descriptors the library has encoded, on the device, against PyTorch."""

import random

import pytest
import torch

from tests.oracle.descriptor_forms import Every, EveryInParts, Padded, padded_gemm


@pytest.mark.parametrize("form", [Every, lambda: Every((4, 6, 64), 64), EveryInParts])
def test_every_so_many(form):
    rng, schedule = random.Random(0), form()
    for _ in range(8):
        shape = (rng.randint(1, 5), rng.randint(1, 70), rng.randint(1, 70), 8 * rng.randint(1, 20))
        x = torch.randn(shape, device="cuda").bfloat16()
        assert torch.equal(schedule(x), x[:, ::2, ::3]), shape
    wide = torch.randn(3, 40, 50, 96, device="cuda").bfloat16()
    x = wide[:, 3:30, 5:44, 8:80]
    assert torch.equal(schedule(x), x[:, ::2, ::3])


@pytest.mark.parametrize(
    "tile, dtype", [((16, 64), "fp32"), ((24, 512), "bf16"), ((64, 64), "fp16"), ((8, 32), "tf32")]
)
def test_nan_outside(tile, dtype):
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)
    schedule = Padded(tile, dtype)
    for shape in ((50, 136), (1, 8), (1000, 2056)):
        x = torch.randint(-9, 9, shape, device="cuda").to(kind)
        expected = torch.full_like(x, float("nan"))
        if shape[0] > 3 and shape[1] > 8:
            expected[3:, :-8] = x[:-3, 8:]
        torch.testing.assert_close(schedule(x), expected, rtol=0, atol=0, equal_nan=True)


def test_nan_beyond_an_operand():
    gemm = padded_gemm()
    for m, n, k in ((140, 72, 64), (1000, 520, 192)):  # whole k-tiles: NaN x 0 is NaN
        a, b = (torch.randint(-3, 4, shape, device="cuda").bfloat16() for shape in ((m, k), (n, k)))
        assert torch.equal(gemm(a, b), (a.float() @ b.float().T).bfloat16())
