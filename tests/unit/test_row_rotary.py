"""Rotary: both conventions, tables that are repeated, any columns and layouts. `tests/gpu` runs the same cases."""

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tests.unit.test_row_schedules import BF16, FP16, FP32, close
from tmapipe.schedules.rotary import RotaryForm, rotary_forms

CASES = {  # the shape of x, that of the tables, and both types
    "positions, heads": ((2, 9, 4, 64), (9, 1, 32), BF16, FP32),
    "heads, positions": ((2, 3, 9, 64), (9, 32), BF16, BF16),
    "positions of each sequence": ((2, 9, 4, 32), (2, 9, 1, 16), FP16, FP16),
    "some columns": ((9, 3, 80), (9, 1, 16), BF16, FP32),
    "an angle for each": ((5, 48), (5, 24), FP32, FP32),
    "one position": ((3, 1, 2, 128), (1, 1, 64), BF16, BF16),
    "columns of no 16 bytes": ((7, 3, 20), (7, 1, 10), BF16, FP32),
    "an odd number of angles": ((7, 30), (15,), BF16, BF16),
    "a vector": ((256,), (128,), FP32, BF16),
    "heads of 80 columns": ((1, 2, 24, 80), (2, 1, 40), BF16, FP32),
    "heads of 136 columns": ((1, 2, 32, 136), (2, 1, 68), FP32, FP32),
    "rows of 88 angles": ((2, 37, 176), (37, 88), BF16, BF16),
    "two angles of some": ((11, 5), (11, 2), FP32, FP32),
}


def tensors(name, device="cpu"):
    shape, angles, kind, table = CASES[name]
    source = torch.Generator().manual_seed(len(name))
    x, turn = torch.randn(shape, generator=source).to(kind), 9 * torch.rand(angles, generator=source)
    return x.to(device), turn.cos().to(device, table), turn.sin().to(device, table)


def wanted(x, cos, sin, pairs):
    y, r = x.double(), cos.shape[-1]
    rest, y = y[..., 2 * r :], y[..., : 2 * r]
    first, second = (y[..., ::2], y[..., 1::2]) if pairs else (y[..., :r], y[..., r:])
    cos, sin = cos.double(), sin.double()
    both = first * cos - second * sin, second * cos + first * sin
    return torch.cat([torch.stack(both, -1).flatten(-2) if pairs else torch.cat(both, -1), rest], -1)


def check(given, pairs, out=None):
    found = tp.schedules.Rotary(pairs)(*given, out=out)
    close(found, wanted(*given, pairs), found.dtype)
    return found


@pytest.mark.parametrize("pairs", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("name", CASES)
def test_conventions(name, pairs):
    check(tensors(name), pairs)


def check_views(device="cpu"):
    x, cos, sin = tensors("positions, heads", device)
    lying = x.transpose(1, 2)  # heads before positions, as they lie
    found = check((lying, cos[:, 0], sin[:, 0]), False)
    assert found.stride() == lying.stride()
    wide = torch.cat([x, x], -1)[..., 8:72]
    check((wide, cos, sin), True, torch.empty(2, 9, 4, 66, dtype=BF16, device=device)[..., 1:65])
    check((x[:, ::2], cos[::2], sin[::2]), False)
    check((x.mT.contiguous().mT, cos, sin), True)
    both = torch.stack([cos, sin], -1)
    check((x, both[..., 0], both[..., 1]), False, torch.empty_like(x, dtype=FP32))


def test_views():
    check_views()


def test_tiles_of_whole_rows_are_safe():
    """Of which threads do not share rows evenly: the tables are read as often as there are rows."""
    rotary = tp.schedules.Rotary()
    for name in ("heads of 80 columns", "heads of 136 columns", "rows of 88 angles"):
        given = tensors(name)
        want = wanted(*given, False)
        close(rotary(*given, out=given[0]), want, given[0].dtype)  # in place
    tiles = {schedule.y0.tile: schedule for schedule in rotary.fitted.values()}
    assert sorted(tiles) == [(32, 40), (32, 68), (32, 88)]
    assert [tiles[tile].work.warps for tile in sorted(tiles)] == [5, 17, 11]
    for schedule in tiles.values():
        kinds = {f"x{i}": {2: "bf16", 4: "fp32"}[size] for i, (_, size) in enumerate(schedule.inputs)}
        assert schedule.check(kinds | {"y0": kinds["x0"], "y1": kinds["x0"]}).ok


FORMS = {  # the shape of x, that of the tables, and how rows are shared out
    "rows of several positions": ((2, 37, 4, 30), (37, 1, 15), RotaryForm(32, 15, 3, 1, 2)),
    "angles that are not there": ((2, 37, 1, 62), (37, 1, 31), RotaryForm(7, 32, 7, 1, 2)),
    "some heads of a position": ((1, 5, 24, 38), (5, 1, 19), RotaryForm(8, 20, 1, 1, 2)),
    "batches that begin anywhere": ((3, 35, 1, 42), (35, 1, 21), RotaryForm(16, 22, 1, 1, 2)),
    "vectors, not all of them there": ((2, 9, 8, 136), (9, 1, 68), RotaryForm(16, 72, 3, 4, 2)),
    "tiles one after another": ((2, 33, 4, 24), (33, 1, 12), RotaryForm(16, 12, 1, 2, 2, 3)),
}


@pytest.mark.parametrize("pairs", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("name", FORMS)
def test_forms(name, pairs):
    """Rows that follow one another are read where they lie, in whatever form, and the kernel is safe."""
    shape, angles, form = FORMS[name]
    source = torch.Generator().manual_seed(len(name))
    x, turn = torch.randn(shape, generator=source).to(BF16), 9 * torch.rand(angles, generator=source)
    tables = turn.cos(), turn.sin().clone()
    out, rotary = torch.full_like(x, 77), tp.schedules.Rotary(pairs)
    rotary.by_rows(x, [table.expand(*shape[:-1], -1) for table in tables], out, form)()
    close(out, wanted(x, *tables, pairs), BF16)
    ((_, schedule),) = rotary.fitted.items()
    assert schedule.check({"x": "bf16", "cos": "fp32", "sin": "fp32", "y": "bf16"}).ok


@pytest.mark.parametrize("pairs", [False, True], ids=["halves", "pairs"])
def test_tensors_that_begin_anywhere(pairs):
    """Also the second of two batches, whose rows begin elsewhere than those of the first."""
    source = torch.Generator().manual_seed(7)
    x = torch.randn(3 + 2 * 9 * 3 * 30, generator=source).to(BF16)[3:].view(2, 9, 3, 30)
    cos, sin = torch.randn(2, 1 + 9 * 15, generator=source)[:, 1:].reshape(2, 9, 1, 15)
    rotary = tp.schedules.Rotary(pairs, inverse=True)
    close(rotary(x, cos, sin), wanted(x, cos, -sin, pairs), BF16)
    ((_, schedule),) = rotary.fitted.items()
    assert isinstance(schedule, tp.schedules.RotaryRows) and schedule.begins[0] == 3


@pytest.mark.parametrize("pairs", [False, True], ids=["halves", "pairs"])
def test_single_rows_and_rows_that_are_repeated(pairs):
    """A row of 58 columns in pairs was refused, and so was x with dimensions along which it is repeated."""
    for n in (58, 64):
        x, angles = torch.randn(n), torch.rand(n // 2)
        found = check((x, angles.cos(), angles.sin()), pairs)
        torch.testing.assert_close(tp.schedules.Rotary(pairs)(x, angles.cos(), angles.sin(), out=x), found)
    for columns in (40, 42):
        x, angles = torch.randn(3, 1, 4, columns).expand(3, 5, 4, columns), torch.rand(5, 1, columns // 2)
        check((x, angles.cos(), angles.sin()), pairs)


@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), (4, 4)], ids=str)
@pytest.mark.parametrize("heads", [1, 3, 24])
def test_every_length_has_a_form(sizes, heads):
    """Of each length that is drawn, and of primes, tiles have room in shared memory and in registers."""
    for columns in (4, 6, 34, 62, 64, 74, 106, 158, 206, 218, 226, 242, 254, 256, 512):
        for pairs in (False, True):
            form = next(iter(rotary_forms(columns, heads, sizes, pairs)), None)
            assert form and form.angles >= columns // 2 and (form.rows % heads == 0 or heads % form.rows == 0)
            assert form.rows * form.angles % (32 * form.warps * form.width) == 0 and form.ctas * form.warps >= 4


def test_what_follows_no_row_is_left_to_tiles():
    x, cos, sin = tensors("positions, heads")
    rotary, wide = tp.schedules.Rotary(), torch.zeros(2, 9, 12, 64).to(BF16)
    wide[:, :, 4:8] = x
    for given in ((x[..., :32], cos[..., :8], sin[..., :8]), (wide[:, :, 4:8], cos, sin), (x, cos[:1], sin[:1])):
        assert rotary.by_rows(given[0], [t.expand(*x.shape[:-1], -1) for t in given[1:]], torch.empty_like(x)) is None
        check(given, False)
    assert rotary.by_rows(x, [t.expand(*x.shape[:-1], -1) for t in (cos, sin)], x) is None


def test_the_inverse_turns_back():
    x, cos, sin = tensors("positions of each sequence")
    for pairs in (False, True):
        rotated = tp.schedules.Rotary(pairs)(x.float(), cos.float(), sin.float())
        back = tp.schedules.Rotary(pairs, inverse=True)(rotated, cos.float(), sin.float())
        torch.testing.assert_close(back, x.float(), atol=3e-3, rtol=3e-3)  # tables of 11 bits


def test_arrays_and_nothing():
    x = np.ones((3, 8), np.float32)
    found = tp.schedules.Rotary()(x, np.zeros((4,), np.float32), np.ones((4,), np.float32))
    assert (found == [-1] * 4 + [1] * 4).all()
    assert tp.schedules.Rotary()(x[:0], x[0, :4], x[0, :4]).shape == (0, 8)


def test_bad_input():
    rotary, x, cos = tp.schedules.Rotary(), torch.ones(3, 8), torch.ones(3, 4)
    refused(rotary, x.long(), cos, cos, argument="x.dtype", rule="is one of bf16")
    refused(rotary, x, x, x, argument="cos.shape", rule="from 2 to half of x's 8 columns")
    refused(rotary, x, cos[:, :1], cos, argument="cos.shape", rule="from 2 to half")
    refused(rotary, x, cos[:2], cos, argument="cos.shape", rule=r"broadcasts to \(3, 4\)")
    refused(rotary, x, cos, cos[:1], argument="sin.shape", rule="is of cos's shape")
    refused(lambda: rotary(x, cos, cos, out=x[:2]), argument="out.shape", rule="is that of x")
    refused(lambda: rotary(x, cos, cos, out=torch.ones(8, 3).T), argument="out.stride", rule="contiguous")
    refused(rotary, torch.ones(1, 1, 1, 1, 1, 8), cos, cos, argument="x.shape", rule="one to five dimensions")
