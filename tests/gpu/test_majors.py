"""Operands contiguous along k, m or n on the device: 16-bit types, ragged, multicast."""

import itertools

import pytest
import torch

import tmapipe as tp
from tmapipe.tuning import Problem, choose

S = tp.schedules
MAJORS = list(itertools.product("mk", "nk"))


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize(
    "make",
    [
        lambda **options: S.Gemm((128, 256, 64), (2, 1), **options),
        lambda **options: S.Gemm((128, 96, 64), (2, 2), **options),
        lambda **options: S.Gemm((192, 128, 32), (1, 2), **options),
        lambda **options: S.Gemm((256, 128, 32), (4, 1), **options),
        lambda **options: S.Gemm((64, 80, 32), (1, 1), **options),
        lambda **options: S.PingPong((64, 256, 64), (1, 1), **options),
        lambda **options: S.PingPong((128, 160, 64), (2, 1), **options),
        lambda **options: S.StreamK(7, (128, 128, 64), (2, 1), **options),
        lambda **options: S.SplitK(3, (128, 128, 128), (1, 2), **options),
    ],
)
def test_all_four(make, majors):
    torch.manual_seed(0)
    gemm = make(a=tp.Operand(majors[0]), b=tp.Operand(majors[1]))
    for dtype, m, n, k in [(torch.bfloat16, 1000, 520, 328), (torch.float16, 137, 72, 1000), (torch.bfloat16, 8, 8, 8)]:
        rows = -(-m // 8) * 8
        a = torch.randn(rows, k, device="cuda", dtype=dtype)
        a = a.t().contiguous().t()[:m] if majors[0] == "m" else a[:m]
        b = torch.randn(n, k, device="cuda", dtype=dtype)
        b = b.t().contiguous().t() if majors[1] == "n" else b
        out = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
        gemm(a, b, out=out)
        reference = a.double() @ b.double().t()
        assert ((out.double() - reference).norm() / reference.norm()).item() < 4e-3
        assert torch.equal(gemm(a, b), out)


@pytest.mark.parametrize("majors", MAJORS)
def test_gated(majors):
    torch.manual_seed(0)
    a, gate, up = (torch.randn(rows, 328, device="cuda", dtype=torch.float16) for rows in (264, 520, 520))
    transposed = [x.t().contiguous().t() for x in (a, gate, up)]
    a, gate, up = (
        t if major != "k" else x for x, t, major in zip((a, gate, up), transposed, majors + majors[1:], strict=True)
    )
    out = S.GatedGemm(a=tp.Operand(majors[0]), b=tp.Operand(majors[1]), epilogue=tp.epilogue.Epilogue(dtype="fp32"))(
        a, gate, up
    )
    one, two = a.double() @ gate.double().t(), a.double() @ up.double().t()
    reference = torch.nn.functional.silu(one) * two
    assert ((out.double() - reference).norm() / reference.norm()).item() < 4e-3


def test_chosen_by_the_strides():
    torch.manual_seed(0)
    x = torch.randn(700, 512, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(512, 768, device="cuda", dtype=torch.bfloat16)
    y = choose(Problem.of(x, w.t()))(x, w.t())
    torch.testing.assert_close(y.float(), (x.float() @ w.float()), rtol=2e-2, atol=2e-1)


def test_weights_as_torch_keeps_them():
    """x @ w with w [k, n]."""
    torch.manual_seed(0)
    x = torch.randn(300, 512, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(512, 768, device="cuda", dtype=torch.bfloat16)
    y = S.Gemm(b=tp.Operand("n"))(x, w.t())
    torch.testing.assert_close(y.float(), (x.float() @ w.float()), rtol=2e-2, atol=2e-1)
