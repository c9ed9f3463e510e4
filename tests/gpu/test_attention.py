"""The schedule `Attention` on the GPU, in each of its forms, for lengths that are no whole blocks."""

import pytest
import torch

import tmapipe as tp
from tests.machine.test_attention import capped, expected
from tmapipe.schedules import Attention, SplitAttention

FORMS = [
    ({}, (4, 2, 1000, 1500)),
    ({"causal": "start", "lse": True}, (4, 4, 1000, 1000)),
    ({"causal": "end", "lse": True}, (4, 1, 300, 1111)),
    ({"causal": "end", "lse": True}, (2, 1, 1111, 300)),
    ({"causal": "end", "lse": True, "window": 300}, (2, 2, 1500, 1700)),
    ({"causal": "start", "score": "capped"}, (2, 1, 700, 700)),
    ({"causal": "end", "tile": (32, 4, 128)}, (8, 2, 50, 3000)),
    ({"tile": (8, 8, 128)}, (16, 2, 1, 4000)),
    ({"tile": (128, 1, 176)}, (2, 2, 500, 3000)),
]


@pytest.mark.parametrize("causal", [None, "end"])
@pytest.mark.parametrize("d, width", [(96, 96), (192, 128), (192, 192), (256, 256), (64, 256)])
def test_heads_of_other_widths(d, width, causal):
    source = torch.Generator().manual_seed(d + width)
    q = torch.randn(2, 500, 4, d, generator=source).bfloat16().transpose(1, 2)
    k, v = (torch.randn(2, 2, 700, each, generator=source).bfloat16() for each in (d, width))
    given = [x.cuda() for x in (q, k, v)]
    o, lse = Attention.of(*given, causal=causal, lse=True)(*given)
    wanted, of_powers = expected(q, k, v, causal)
    error = (o.cpu().double() - wanted).norm() / wanted.norm()
    assert error < 5e-3, error
    torch.testing.assert_close(lse.cpu().double(), of_powers, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("d", [64, 128, (192, 128)])
@pytest.mark.parametrize("heads, groups, m, s", [(64, 8, 1, 9000), (8, 2, 3, 2500), (4, 4, 1, 100)])
def test_parts_of_keys(heads, groups, m, s, d):
    source = torch.Generator().manual_seed(s)
    schedule = SplitAttention(7, d)
    q = torch.randn(2, m, heads, schedule.d, generator=source).bfloat16().transpose(1, 2)
    k, v = (torch.randn(2, groups, s, each, generator=source).bfloat16() for each in (schedule.d, schedule.width))
    o = schedule(*(x.cuda() for x in (q, k, v)))
    assert o.stride() == torch.empty(2, m, heads, schedule.width).transpose(1, 2).stride()
    wanted, _ = expected(q, k, v)
    error = (o.cpu().double() - wanted).norm() / wanted.norm()
    assert error < 5e-3, error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form, shape", FORMS)
@pytest.mark.parametrize("d", [64, 128])
def test_forms(d, form, shape, dtype):
    heads, groups, m, s = shape
    source = torch.Generator().manual_seed(m + s)
    q = torch.randn(2, m, heads, d, generator=source).to(dtype).transpose(1, 2)
    k, v = (torch.randn(2, groups, s, d, generator=source).to(dtype) for _ in range(2))
    options = {**form, "score": capped(tp.math.tanh)} if "score" in form else form
    attention = Attention(d, **options)
    given = [x.cuda() for x in (q, k, v)]
    o = torch.full_like(given[0], float("nan"))
    found = attention(*given, out=o)
    wanted, of_powers = expected(
        q, k, v, form.get("causal"), form.get("window"), capped(torch.tanh) if "score" in form else None
    )
    error = (o.cpu().double() - wanted).norm() / wanted.norm()
    assert error < 5e-3, error
    if form.get("lse"):
        torch.testing.assert_close(found[1].cpu().double(), of_powers, atol=1e-4, rtol=1e-4)
