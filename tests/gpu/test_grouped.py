"""Grouped GEMMs on the device: random sizes of groups, only their rows, the same bits each time."""

import random

import pytest
import torch

import tmapipe as tp

S = tp.schedules
SCHEDULES = [
    lambda **options: S.GroupedGemm(**options),
    lambda **options: S.GroupedGemm((128, 256, 64), (2, 1), **options),
    lambda **options: S.GroupedGemm((64, 128, 64), (1, 1), **options),
    lambda **options: S.GroupedGemm((192, 160, 32), (1, 2), **options),
    lambda **options: S.GroupedGemm((256, 128, 64), (1, 1), **options),
    lambda **options: S.GroupedGemm((128, 192, 64), mainloop=tp.mainloop.PingPong(), **options),
    lambda **options: S.GroupedGemm((64, 256, 64), (1, 1), mainloop=tp.mainloop.PingPong(), **options),
]


@pytest.mark.parametrize("seed", range(36))
def test_random_groups(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    groups, n, k = rng.choice([1, 2, 7, 33, 64, 130]), 8 * rng.randint(1, 70), 8 * rng.randint(1, 80)
    sizes = [rng.choice([0, 1, rng.randint(0, 300), 128]) for _ in range(groups)]
    extra = rng.choice([0, 70])
    ends = torch.tensor(sizes).cumsum(0).to("cuda", torch.int32)
    m = max(sum(sizes) + extra, 1)
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(groups, n, k, device="cuda", dtype=torch.bfloat16)
    majors = rng.choice([("k", "k"), ("k", "n")])
    if majors[1] == "n":
        b = b.mT.contiguous().mT
    gemm = rng.choice(SCHEDULES)(a=tp.Operand(majors[0]), b=tp.Operand(majors[1]))
    out = torch.full((m, n), 7.5, device="cuda", dtype=torch.bfloat16)
    gemm(a, b, ends, out)
    start = 0
    for g, size in enumerate(sizes):
        want = a[start : start + size].double() @ b[g].double().t()
        if size:
            assert ((out[start : start + size].double() - want).norm() / want.norm()).item() < 4e-3, g
        start += size
    assert (out[start:] == 7.5).all()
    again = torch.full_like(out, 7.5)
    gemm(a, b, ends, again)
    assert torch.equal(again, out)


def test_offsets_that_the_device_has_just_computed():
    torch.manual_seed(0)
    a = torch.randn(1000, 256, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8, 512, 256, device="cuda", dtype=torch.bfloat16)
    gemm = S.GroupedGemm()
    for seed in range(5):
        torch.manual_seed(seed)
        ends = torch.bincount(torch.randint(8, (1000,), device="cuda"), minlength=8).cumsum(0).to(torch.int32)
        out = gemm(a, b, ends)
        want = torch._grouped_mm(a, b.mT, offs=ends)
        torch.testing.assert_close(out.float(), want.float(), rtol=2e-2, atol=2e-1)


def test_offsets_that_make_no_sense_write_only_into_the_output():
    torch.manual_seed(0)
    a = torch.randn(300, 128, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(4, 128, 128, device="cuda", dtype=torch.bfloat16)
    memory = torch.full((900, 128), 7.5, device="cuda", dtype=torch.bfloat16)
    for ends in ([-5, 40, 1000, 2**31 - 1], [2**31 - 1] * 4, [-(2**31)] * 4, [300, 200, 100, 50]):
        S.GroupedGemm()(a, b, torch.tensor(ends, device="cuda", dtype=torch.int32), memory[300:600])
        assert (memory[:300] == 7.5).all() and (memory[600:] == 7.5).all()
