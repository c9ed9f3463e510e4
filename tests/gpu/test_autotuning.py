"""Tuning on this GPU: the fastest of few candidates, with an epilogue and without, and from the cache the next time. The
longest tests: for their name they are among the first to start."""

import pytest
import torch

import tmapipe as tp
from tmapipe.tuning import Candidate, Problem, choose_conv, tune

FUSED = tp.epilogue.Epilogue(
    lambda acc, bias, c: {"d": tp.math.gelu(acc + bias) + c, "squares": acc * acc},
    operands={"bias": tp.epilogue.PerColumn(), "c": tp.epilogue.Matrix()},
    outputs={"squares": tp.epilogue.RowSum()},
)


@pytest.mark.parametrize("fused", [None, FUSED], ids=["plain", "fused"])
def test_the_fastest_is_found_and_remembered(fused, tmp_path, monkeypatch):
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    a, b, c = (
        torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((264, 520), (520, 520), (264, 520))
    )
    bias = torch.randn(520, device="cuda", dtype=torch.bfloat16)
    problem = Problem.of(a, b)
    found = tune(problem, most=3, jobs=3, progress=False, epilogue=fused)
    assert not found.refused and len(found.timings) >= 1 and found.us == found.timings[0][1].us > 0
    again = tune(problem, most=3, progress=False, epilogue=fused)
    assert again.candidate == found.candidate and again.us == found.us and not again.timings
    product = a.float() @ b.float().t()
    for schedule in (found.schedule, again.schedule):
        if fused:
            d, squares = schedule(a, b, bias=bias, c=c)
            torch.testing.assert_close(squares, product.square().sum(-1), rtol=1e-3, atol=1e-3)
            wanted = torch.nn.functional.gelu(product + bias, approximate="tanh") + c
        else:
            d, wanted = schedule(a, b), product
        torch.testing.assert_close(d.float(), wanted.float(), rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate("SplitK", (64, 128), (2, 1), (("parts", 4),)),  # the epilogue is the second kernel's
        Candidate("Gemm", (128, 136), (2, 1)),  # one CTA loads the tiles of b for two
    ],
    ids=str,
)
def test_an_epilogue_in_parts_and_uneven_tiles(candidate):
    torch.manual_seed(0)
    shapes = (264, 2056), (520, 2056), (264, 520)
    a, b, c = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    bias = torch.randn(520, device="cuda", dtype=torch.bfloat16)
    d, squares = candidate.build(Problem.of(a, b), FUSED)(a, b, bias=bias, c=c)
    product = a.float() @ b.float().t()
    torch.testing.assert_close(squares, product.square().sum(-1), rtol=1e-3, atol=1e-3)
    wanted = torch.nn.functional.gelu(product + bias, approximate="tanh") + c
    torch.testing.assert_close(d.float(), wanted, rtol=2e-2, atol=2e-1)


def test_a_convolution_that_was_chosen():
    torch.manual_seed(0)
    x = torch.randn(4, 20, 20, 72, device="cuda", dtype=torch.bfloat16)
    f = torch.randn(136, 3, 3, 72, device="cuda", dtype=torch.bfloat16)
    d = choose_conv(x, f, tp.Windows((3, 3), padding=1))(x, f)
    right = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2).float(), f.permute(0, 3, 1, 2).float(), padding=1)
    torch.testing.assert_close(d.float(), right.permute(0, 2, 3, 1), rtol=2e-2, atol=0.5)
