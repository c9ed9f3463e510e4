"""The schedule `Attention` on the GPU, in each of its forms, for lengths that are no whole blocks."""

import pytest
import torch

import tmapipe as tp
from tests.machine.test_attention import capped, expected, mask_of
from tmapipe.schedules import Attention, Score, SplitAttention, WindowAttention

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


@pytest.mark.parametrize("causal, m, s", [("start", 1500, 1100), ("end", 1500, 1700), ("end", 900, 500)])
@pytest.mark.parametrize("d, queries, window", [(64, 192, 512), (128, 128, 500), (32, 64, 70)])
def test_windows_of_warpgroups(d, queries, window, causal, m, s):
    source = torch.Generator().manual_seed(m + s)
    q = torch.randn(2, m, 4, d, generator=source).bfloat16().transpose(1, 2)
    k, v = (torch.randn(2, 2, s, d, generator=source).bfloat16() for _ in range(2))
    given = [x.cuda() for x in (q, k, v)]
    o, lse = WindowAttention(window, d, causal=causal, queries=queries, lse=True)(*given)
    wanted, of_powers = expected(q, k, v, causal, window)
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


def given_for(m, s, heads, groups, d, dims, boolean, sinks):
    """(q, k, v), what else a call is given, and the mask and the sinks for `expected`."""
    source = torch.Generator().manual_seed(m + s)
    q = torch.randn(2, m, heads, d, generator=source).bfloat16().transpose(1, 2)
    k, v = (torch.randn(2, groups, s, d, generator=source).bfloat16() for _ in range(2))
    mask, whole = mask_of(dims, 2, heads, m, s, boolean) if dims else (None, None)
    of_heads = torch.randn(heads, generator=source) * 3 if sinks else None
    more = {name: x for name, x in (("mask", mask), ("sinks", of_heads)) if x is not None}
    return (q, k, v), more, whole, of_heads


def off_by(found, wanted):
    return float((found.cpu().double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(
    "dims, boolean", [("b h m s", False), ("m s", True), ("h m s", False), ("b s", True), ("s", False)]
)
@pytest.mark.parametrize(
    "form", [{}, {"causal": "end", "window": 700}, {"causal": "start", "sinks": True}, {"causal": "end", "bound": 20}]
)
@pytest.mark.parametrize("d", [64, 128, 256])
def test_masks_and_sinks(d, form, dims, boolean):
    (q, k, v), more, mask, sinks = given_for(1000, 1200, 4, 2, d, dims, boolean, "sinks" in form)
    options = {name: form[name] for name in ("causal", "window") if name in form}
    attention = Attention(
        d, **options, lse=True, score=Score(mask=dims, sinks="sinks" in form, bound=form.get("bound"))
    )
    o, lse = attention(*(x.cuda() for x in (q, k, v, *more.values())))
    wanted, of_powers = expected(q, k, v, **options, mask=mask, sinks=sinks)
    assert off_by(o, wanted) < 5e-3
    torch.testing.assert_close(lse.cpu().double(), of_powers, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    "form",
    [
        {"causal": "end"},
        {"causal": "end", "window": 1500},
        {"causal": "end", "window": 300, "sinks": True, "mask": "b s"},
        {"causal": "start"},
        {"sinks": True},
        {"mask": "b s"},
    ],
)
@pytest.mark.parametrize("heads, groups, m, s", [(16, 2, 5, 9000), (8, 2, 40, 3000), (5, 1, 300, 100)])
def test_parts_of_some_keys(form, heads, groups, m, s):
    dims, sinks = form.get("mask"), "sinks" in form
    s = s // 16 * 16
    (q, k, v), more, mask, of_heads = given_for(m, s, heads, groups, 128, dims, True, sinks)
    options = {name: form[name] for name in ("causal", "window") if name in form}
    schedule = SplitAttention(7, heads=heads // groups, lse=True, score=Score(mask=dims, sinks=sinks), **options)
    o, lse = schedule(*(x.cuda() for x in (q, k, v, *more.values())))
    wanted, of_powers = expected(q, k, v, **options, mask=mask, sinks=of_heads)
    assert off_by(o, wanted) < 5e-3
    torch.testing.assert_close(lse.cpu().double(), of_powers, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("tile, heads", [((16, 4, 128), 8), ((8, 8, 128), 16)])
def test_sinks_of_packed_heads(tile, heads):
    (q, k, v), more, _, sinks = given_for(30, 2000, heads, 2, 128, None, False, True)
    attention = Attention(128, causal="end", tile=tile, score=Score(sinks=True))
    o = attention(*(x.cuda() for x in (q, k, v, *more.values())))
    assert off_by(o, expected(q, k, v, "end", sinks=sinks)[0]) < 5e-3
