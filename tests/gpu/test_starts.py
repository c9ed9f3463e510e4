"""Where loads and stores start, on the device: outside of the tensor, parts of a tile, rows by index, slots of threads."""

import pytest
import torch

from tests.unit.test_starts import SHIFTS, Converted, Gathered, Halves, Indented, InOrder, Pushed, Shifted


@pytest.mark.parametrize("by", SHIFTS)
@pytest.mark.parametrize("form", [Shifted, Pushed])
def test_starts_outside(form, by):
    if form is Pushed:
        by = tuple(map(abs, by))
    schedule, x = form(), torch.randn(1000, 520, device="cuda")
    schedule.by = by
    y, wide = torch.zeros_like(x), torch.zeros(1200, 720, device="cuda")
    wide[100:1100, 100:620] = x
    schedule(x, out=y)
    rows, columns = by if form is Shifted else (-by[0], -by[1])
    assert torch.equal(y, wide[100 + rows : 1100 + rows, 100 + columns : 620 + columns])


@pytest.mark.parametrize("count", [1, 8, 1001])
def test_rows_by_index(count):
    x = torch.randn(300, 128, device="cuda")
    rows = torch.randint(0, 300, (count,), device="cuda", dtype=torch.int32)
    y = torch.full((count, 128), float("nan"), device="cuda")
    Gathered()(x, rows, out=y)
    assert torch.equal(y, x[rows.long()])


def test_parts():
    x = torch.randn(1024, 640, device="cuda")
    assert torch.equal(Halves()(x), x.view(64, 2, 8, 640).flip(1).reshape(x.shape))
    assert torch.equal(InOrder()(x), x)


def test_a_shared_stage_is_stored():
    x = torch.randn(1000, 520, device="cuda")
    y = torch.empty(x.shape, device="cuda", dtype=torch.bfloat16)
    Converted()(x, out=y)
    assert torch.equal(y, (2 * x).bfloat16())


def test_accumulators_are_stored_from_any_element():
    a, b = (torch.randint(-3, 4, shape, device="cuda").bfloat16() for shape in ((1000, 72), (520, 72)))
    d = torch.zeros(1005, 528, device="cuda", dtype=torch.bfloat16)
    Indented()(a, b, out=d)
    assert torch.equal(d[5:, 8:], (a.float() @ b.float().T + 1).bfloat16())
    assert not d[:5].any() and not d[:, :8].any()
