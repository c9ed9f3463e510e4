"""GEMMs whose k is shared among the CTAs of a cluster on the device: random shapes, the same bits each time."""

import random

import pytest
import torch

import tmapipe as tp

S, E = tp.schedules, tp.epilogue
FORMS = [
    lambda **options: S.ClusterSplitK(8, (64, 64, 64), **options),
    lambda **options: S.ClusterSplitK(8, (64, 64, 256), **options),
    lambda **options: S.ClusterSplitK(4, (64, 64, 128), 2, **options),
    lambda **options: S.ClusterSplitK(4, (128, 96, 64), **options),
    lambda **options: S.ClusterSplitK(2, (192, 80, 64), 2, **options),
]
OUT = {"bf16": torch.bfloat16, "fp32": torch.float32}


@pytest.mark.parametrize("seed", range(15))
def test_random_shapes(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    m, n, k = rng.randint(1, 500), 8 * rng.randint(1, 50), 8 * rng.randint(1, 1500)
    batch = rng.choice([(), (), (2,)])
    a, b = (torch.randn(*batch, rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    out = rng.choice(list(OUT))
    gemm = FORMS[seed % len(FORMS)](epilogue=E.Epilogue(dtype=out))
    ds = [torch.full((*batch, m, n), 7.5, device="cuda", dtype=OUT[out]) for _ in range(3)]
    for d in ds:
        gemm(a, b, d)
    expected = a.double() @ b.double().mT
    assert (ds[0].double() - expected).norm() <= 4e-3 * expected.norm()
    assert all(torch.equal(ds[0], d) for d in ds[1:])


def test_many_tiles_and_an_epilogue():
    m, n, k = 3000, 520, 700 * 8
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    c, bias = (
        torch.randn(m, n, device="cuda", dtype=torch.bfloat16),
        torch.randn(n, device="cuda", dtype=torch.bfloat16),
    )
    epilogue = E.Epilogue(
        lambda acc, c, bias: {"d": acc + c + bias, "rows": acc},
        operands={"c": E.Matrix(), "bias": E.PerColumn()},
        outputs={"rows": E.RowSum()},
    )
    gemm = S.ClusterSplitK(8, (64, 128, 64), epilogue=epilogue)
    sums = a.double() @ b.double().T
    for _ in range(3):
        d, rows = gemm(a, b, c=c, bias=bias)
        expected = sums + c.double() + bias.double()
        assert (d.double() - expected).norm() <= 4e-3 * expected.norm()
        assert (rows.double() - sums.sum(1)).norm() <= 1e-3 * sums.sum(1).norm()
