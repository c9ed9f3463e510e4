"""Rows, and pages of rows, that a table on the device names."""

import runpy
from pathlib import Path

import pytest
import torch

from examples import paged_attention
from tests.oracle.row_forms import PagedScores
from tests.unit.test_rows import paged_problem

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "pages.py"))
PAGE = EXAMPLE["PAGE"]


@pytest.mark.parametrize("rows", [1, 16, 200, 3000])
def test_paged_rows(rows):
    count = -(-rows // PAGE)
    x = torch.randn((count + 20) * PAGE, 384, device="cuda").bfloat16()
    pages = torch.randperm(count + 20, device="cuda")[:count].to(torch.int32)
    pages[::7] = -1
    y = torch.full((rows, 384), float("nan"), device="cuda", dtype=torch.bfloat16)
    EXAMPLE["Paged"]()(x, pages, out=y)
    wanted = x.view(-1, PAGE, 384)[pages.long().clamp(0)] * (pages >= 0)[:, None, None]
    assert torch.equal(y, wanted.reshape(-1, 384)[:rows])


@pytest.mark.parametrize("rows, columns, ctas", [(1, 512, 16), (4, 256, None), (8, 64, 4)])
def test_rows_by_index(rows, columns, ctas):
    gather_of = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "embedding.py"))["gather_of"]
    gather = gather_of(columns, rows, ctas)
    for count, width in ((1, 4), (1000, 600), (30011, 1024)):
        x = torch.randn(5000, width, device="cuda")
        index = torch.randint(-1, 5000, (count,), device="cuda", dtype=torch.int32)
        y = torch.full((count, width), float("nan"), device="cuda")
        gather(x, index, out=y)
        assert torch.equal(y, x[index.long().clamp(0)] * (index >= 0)[:, None])


@pytest.mark.parametrize("batch, m, count", [(1, 64, 4), (3, 70, 6), (16, 128, 200)])
def test_pages_of_sequences(batch, m, count):
    *given, want = (torch.from_numpy(each).cuda() for each in paged_problem(batch, m, count))
    for _ in range(3):
        found = torch.zeros_like(want)
        PagedScores()(*given, out=found)
        assert torch.equal(found, want)


def test_attention(capsys):
    """The example, which checks its result."""
    paged_attention.main()
    assert "on the GPU: off by at most" in capsys.readouterr().out
