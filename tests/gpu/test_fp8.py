"""GEMMs of 8-bit operands on the device: random ragged shapes, all pairs of types, both kinds of accumulation."""

import random

import pytest
import torch

import tmapipe as tp

S = tp.schedules
TYPES = [torch.float8_e4m3fn, torch.float8_e5m2]
OUTPUTS = [torch.bfloat16, torch.float16, torch.float32]
FAST = [
    lambda: S.Gemm((128, 256, 128), (2, 1)),
    lambda: S.Gemm((64, 128, 128), (1, 1)),
    lambda: S.Gemm((192, 128, 128), (1, 2)),
    lambda: S.PingPong((128, 128, 128), (2, 1)),
]
PROMOTED = [
    lambda: S.Gemm((128, 128, 128), (2, 1), mainloop=tp.mainloop.Cooperative(promote=True)),
    lambda: S.Gemm((128, 192, 128), (1, 2), mainloop=tp.mainloop.Cooperative(promote=True)),
    lambda: S.Gemm((192, 128, 128), (2, 1), mainloop=tp.mainloop.Cooperative(promote=True)),
    lambda: S.PingPong((64, 192, 128), (1, 1), promote=True),
]


def operands(rng, m, n, k):
    torch.manual_seed(rng.randint(0, 1 << 30))
    return [torch.randn(rows, k, device="cuda").to(rng.choice(TYPES)) for rows in (m, n)]


def error(out, a, b):
    reference = a.double() @ b.double().t()
    assert not torch.isnan(out).any(), "elements that were never written"
    return ((out.double() - reference).norm() / reference.norm()).item()


@pytest.mark.parametrize("promote", [False, True])
@pytest.mark.parametrize("seed", range(16))
def test_random_problems(seed, promote):
    rng = random.Random(seed)
    gemm = rng.choice(PROMOTED if promote else FAST)()
    for _ in range(2):
        m, n, k = rng.randint(1, 700), 8 * rng.randint(1, 90), 16 * rng.randint(1, 120)
        a, b = operands(rng, m, n, k)
        out = torch.full((m, n), float("nan"), device="cuda", dtype=rng.choice(OUTPUTS))
        gemm(a, b, out=out)
        assert error(out, a, b) < 6e-3
        first = out.clone()
        for _ in range(3):
            out.fill_(float("nan"))
            gemm(a, b, out=out)
            assert torch.equal(out, first)


def test_promotion_keeps_more_bits():
    rng = random.Random(1)
    a, b = operands(rng, 512, 512, 16384)
    fast, promoted = (
        error(make()(a, b, out=torch.full((512, 512), float("nan"), device="cuda")), a, b)
        for make in (FAST[0], PROMOTED[0])
    )
    assert promoted < fast / 2, (promoted, fast)


def test_no_sum_is_left_from_the_tile_before():
    a, b = operands(random.Random(2), 4096, 4096, 256)
    for make in (*FAST, *PROMOTED):
        out = torch.full((4096, 4096), float("nan"), device="cuda", dtype=torch.bfloat16)
        make()(a, b, out=out)
        assert error(out, a, b) < 6e-3


def test_nan_passes_through():
    a, b = operands(random.Random(3), 256, 256, 256)
    a.view(torch.uint8)[3, 5] = 0x7F  # NaN in both types
    for make in (FAST[0], PROMOTED[0]):
        out = make()(a, b)
        assert out.dtype == torch.bfloat16 and torch.isnan(out[3]).all() and not torch.isnan(out[:3]).any()
