"""The schedule `Attention` on the model, in each of its forms, and what it refuses."""

import math

import pytest
import torch

import tmapipe as tp
from tests.sweeps import sample
from tmapipe.schedules import Attention


def expected(q, k, v, causal=None, window=None, score=None):
    """(o, lse) in fp64."""
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q.double() @ k.mT / math.sqrt(q.shape[-1])
    m, s = scores.shape[-2:]
    i, j = torch.arange(m)[:, None], torch.arange(s)
    if score is not None:
        scores = score(scores, i, j)
    last = i + (s - m if causal == "end" else 0)
    hidden = torch.zeros((m, s), dtype=torch.bool) if causal is None else j > last
    if window is not None:
        hidden = hidden | (j <= last - window)
    scores = scores.masked_fill(hidden, float("-inf"))
    lse = scores.logsumexp(-1)
    return torch.nan_to_num(torch.exp(scores - lse.clamp(min=-1e30)[..., None])) @ v, lse


def problem(heads, groups, m, s, d, dtype=torch.bfloat16, batch=1):
    """q, k and v, of which q lies as [batch, tokens, heads, d]."""
    source = torch.Generator().manual_seed(m * s + d)
    q = torch.randn(batch, m, heads, d, generator=source).to(dtype).transpose(1, 2)
    k, v = (torch.randn(batch, groups, s, d, generator=source).to(dtype) for _ in range(2))
    return q, k, v


def check(schedule, shape, **form):
    q, k, v = problem(*shape, schedule.d)
    found = schedule(q, k, v)
    o, lse = found if schedule.with_lse else (found, None)
    wanted, of_powers = expected(q, k, v, **form)
    assert o.stride() == q.stride()
    torch.testing.assert_close(o.double(), wanted, atol=1e-2, rtol=1e-2)
    if lse is not None:
        torch.testing.assert_close(lse.double(), of_powers, atol=1e-5, rtol=1e-5)


def capped(tanh):
    return lambda x, i, j: 20 * tanh(x / 20) - 0.01 * abs(i - j)


SHAPES = [(2, 1, 300, 300), (1, 1, 70, 200), (1, 1, 200, 70), (2, 2, 1, 150), (1, 1, 1, 1)]


@pytest.mark.parametrize("shape", sample(SHAPES, 3))
@pytest.mark.parametrize("causal", [None, "start", "end"])
@pytest.mark.parametrize("d", [64, 128])
def test_any_lengths(d, causal, shape):
    check(Attention(d, causal=causal, lse=True), shape, causal=causal)


@pytest.mark.parametrize("window, shape", [(50, (1, 1, 300, 500)), (50, (1, 1, 500, 300)), (300, (1, 1, 700, 700))])
@pytest.mark.parametrize("causal", ["start", "end"])
def test_windows(causal, window, shape):
    check(Attention(64, causal=causal, window=window, lse=True), shape, causal=causal, window=window)


@pytest.mark.parametrize("shape", [(4, 1, 100, 300), (8, 2, 40, 100)])
def test_packed_heads(shape):
    check(Attention(128, causal="end", packed=4), shape, causal="end")


def test_scores():
    check(Attention(128, causal="start", score=capped(tp.math.tanh)), (2, 1, 150, 150), causal="start", score=capped(torch.tanh))


def test_fp16_and_a_scale():
    q, k, v = problem(1, 1, 80, 90, 64, torch.float16)
    found = Attention(64, scale=1.0)(q / 8, k, v)
    torch.testing.assert_close(found.double(), expected(q, k, v)[0], atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"d": 100}, "Attention(d) = 100"),
        ({"d": 192}, "Attention(d) = 192"),
        ({"causal": True}, "Attention(causal) = True"),
        ({"window": 5}, "Attention(window) = 5"),
        ({"causal": "end", "window": 0}, "Attention(window) = 0"),
        ({"tile": (100, 128)}, "Attention(tile, packed)"),
        ({"packed": 3}, "Attention(tile, packed)"),
        ({"packed": 4, "lse": True}, "Attention(lse)"),
    ],
)
def test_refused(options, said):
    with pytest.raises(tp.InputError) as raised:
        Attention(**options)
    assert said in str(raised.value)


def test_refused_tensors():
    q, k, v = problem(3, 2, 10, 10, 64)
    with pytest.raises(tp.InputError, match="multiple of 2 heads"):
        Attention(64)(q, k, v)
    with pytest.raises(tp.InputError, match=r"q\.shape"):
        Attention(64)(q[0], k, v)
