"""GEMMs of tf32 and of int8 on the device: random ragged shapes, what is rounded, and what is exact."""

import random

import numpy as np
import pytest
import torch

import tmapipe as tp
from tmapipe.model.memory import round_to_tf32
from tmapipe.tuning import Problem, choose

S = tp.schedules
TF32 = [
    lambda: S.Gemm((128, 256, 32), (2, 1), a=tp.Operand(dtype="tf32"), b=tp.Operand(dtype="tf32")),
    lambda: S.Gemm((192, 72, 64), (1, 2), a=tp.Operand(dtype="tf32"), b=tp.Operand(dtype="tf32")),
    lambda: S.PingPong((64, 128, 32), (2, 1), a=tp.Operand(dtype="tf32"), b=tp.Operand(dtype="tf32")),
    lambda: S.SplitK(3, (128, 128, 32), (1, 1), a=tp.Operand(dtype="tf32"), b=tp.Operand(dtype="tf32")),
    lambda: S.StreamK(7, (128, 128, 32), (2, 1), a=tp.Operand(dtype="tf32"), b=tp.Operand(dtype="tf32")),
]
INT8 = [
    lambda **options: S.Gemm((128, 256, 128), (2, 1), **options),
    lambda **options: S.Gemm((64, 144, 64), (1, 2), **options),
    lambda **options: S.Gemm((256, 128, 128), (2, 2), **options),
    lambda **options: S.PingPong((128, 128, 128), (2, 1), **options),
]


def rounded(x):
    return torch.from_numpy(round_to_tf32(x.cpu().numpy())).to(x.device)


@pytest.mark.parametrize("seed", range(12))
def test_tf32(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    gemm = rng.choice(TF32)()
    m, n, k = rng.randint(1, 700), 4 * rng.randint(2, 180), 4 * rng.randint(1, 400)
    a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    out = torch.full((m, n), float("nan"), device="cuda")
    gemm(a, b, out=out)
    reference = rounded(a).double() @ rounded(b).double().t()
    assert ((out.double() - reference).norm() / reference.norm()).item() < 2e-5
    assert torch.equal(gemm(a, b), out)


def test_the_engine_rounds_to_nearest_as_the_model_does():
    """Products with the identity are the rounded operand itself; ties are looked at apart."""
    torch.manual_seed(0)
    a, one = torch.randn(512, 256, device="cuda"), torch.eye(256, device="cuda")
    out = S.Gemm((128, 128, 32), (2, 1), a=tp.Operand(dtype="tf32"), b=tp.Operand(dtype="tf32"))(a, one)
    assert torch.equal(out, rounded(a))
    ties = (torch.arange(256, device="cuda") * 2.0 + 1) * 2**-11 + 1
    special = torch.tensor([float("inf"), float("-inf"), 0.0, -0.0, 1e-38, 3.4e38], device="cuda")
    a = torch.zeros(64, 256, device="cuda")
    a[0], a[1, 0], a[2, 1] = ties, special[0], special[1]
    out = S.Gemm((64, 128, 32), (1, 1), a=tp.Operand(dtype="tf32"), b=tp.Operand(dtype="tf32"))(a, one)
    assert torch.equal(out[0], rounded(ties))
    assert out[1, 0] == special[0] and out[2, 1] == special[1]


@pytest.mark.parametrize("seed", range(12))
def test_int8_is_exact(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    gemm = rng.choice(INT8)()
    m, n, k = rng.randint(1, 700), 16 * rng.randint(1, 45), 16 * rng.randint(1, 120)
    a, b = (torch.randint(-128, 128, (rows, k), device="cuda", dtype=torch.int8) for rows in (m, n))
    out = torch.full((m, n), -1, device="cuda", dtype=torch.int32)
    gemm(a, b, out=out)
    assert torch.equal(out.double(), a.double() @ b.double().t())
    made = gemm(a, b)
    assert made.dtype == torch.int32 and torch.equal(made, out)


def test_int8_saturates():
    """k x 128 x 128 beyond 2^31."""
    k = 2**17 + 128
    a = torch.full((64, k), -128, device="cuda", dtype=torch.int8)
    b = torch.full((64, k), -128, device="cuda", dtype=torch.int8)
    b[32:] = 127
    out = S.Gemm((64, 64, 128), (1, 1))(a, b)
    assert (out[:, :32] == 2**31 - 1).all() and (out[:, 32:] == max(-(2**31), -128 * 127 * k)).all()


@pytest.mark.parametrize("make", INT8)
def test_int8_scaled_in_the_epilogue(make):
    torch.manual_seed(0)
    a, b = (torch.randint(-128, 128, (rows, 400), device="cuda", dtype=torch.int8) for rows in (300, 520))
    scale = torch.rand(520, device="cuda")
    scale_by = tp.epilogue.PerColumn()
    gemm = make(
        epilogue=tp.epilogue.Epilogue(lambda acc, scale: acc * scale, operands={"scale": scale_by}, dtype="bf16")
    )
    out = gemm(a, b, scale=scale)
    reference = (a.double() @ b.double().t()) * scale.double()
    assert ((out.double() - reference).norm() / reference.norm()).item() < 4e-3


def test_chosen():
    torch.manual_seed(0)
    a, b = torch.randn(300, 512, device="cuda"), torch.randn(264, 512, device="cuda")
    out = choose(Problem.of(a, b, tf32=True))(a, b)
    np.testing.assert_allclose(out.cpu(), (rounded(a) @ rounded(b).t()).cpu(), rtol=1e-2, atol=1e-2)
    a, b = (torch.randint(-128, 128, (rows, 512), device="cuda", dtype=torch.int8) for rows in (300, 264))
    assert torch.equal(choose(Problem.of(a, b))(a, b).double(), a.double() @ b.double().t())
