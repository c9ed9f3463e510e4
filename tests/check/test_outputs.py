"""Outputs: no element is stored by two tiles, or twice by one, or by nobody. Broken kernels beside their right twins."""

from __future__ import annotations

import numpy as np
import pytest

import tmapipe as tp
from tests.check.mistakes.form import make
from tests.check.slips import SLIPS, Slip
from tests.matmul_schedules import OneRing
from tests.sweeps import sample
from tests.unit.errors import refused
from tmapipe.check import Kind

ABOUT_OUTPUTS = {Kind.OUTPUT_RACE, Kind.SAME_OUTPUT, Kind.UNWRITTEN}


def run(schedule: tp.Schedule) -> None:
    """The model, with three tiles along each dimension, of random inputs, which are small numbers."""
    plan, random = schedule.plan(), np.random.default_rng(0)
    extents = {}
    for part in plan.transfers:
        for dim, extent in zip(part.dims, part.span, strict=True):
            extents.setdefault(dim, 3 * extent)
    shapes = plan.shapes(extents)
    inputs = {
        load.argument: load.buffer.dtype.in_memory.numpy for load in plan.loads if load.argument not in plan.tables
    }
    outputs = {store.argument for store in plan.stores}
    given = {
        name: random.integers(1, 9, shapes[name]).astype(dtype) for name, dtype in inputs.items() if name not in outputs
    }
    schedule(**given)


def test_there_are_enough_of_them():
    assert len({slip.name for slip in SLIPS}) == len(SLIPS) >= 30
    assert sum(".py" in slip.program for slip in SLIPS) >= 20


@pytest.mark.parametrize("program", sample(sorted({slip.program for slip in SLIPS}), 5))
def test_the_right_twin_is_shown_for_every_shape(program, tmp_path):
    slip = next(slip for slip in SLIPS if slip.program == program)
    report = make(slip.right, tmp_path / "mine.py").check()
    assert report.ok and report.trips == "every trip count" and not report.outputs, str(report)
    assert not {finding.kind for finding in report.findings} & ABOUT_OUTPUTS, str(report)


@pytest.mark.parametrize("slip", sample([slip for slip in SLIPS if slip.kind], 3), ids=lambda slip: slip.name)
def test_the_slip_is_reported_with_its_line(slip: Slip, tmp_path):
    path = tmp_path / "mine.py"
    report = make(slip.wrong, path).check()
    found = [finding for finding in report.findings if finding.kind is slip.kind]
    assert found, str(report)
    assert report.ok == (slip.kind is not Kind.OUTPUT_RACE), str(report)
    assert found[0].where[0] in [f"{path}:{line}" for line in slip.lines()], str(report)
    assert found[0].fix in str(report)


@pytest.mark.parametrize("slip", [slip for slip in SLIPS if slip.kind is None], ids=lambda slip: slip.name)
def test_the_slip_is_refused(slip: Slip, tmp_path):
    with pytest.raises(tp.InputError, match="at the coordinates of its output tile"):
        make(slip.wrong, tmp_path / "mine.py").check()


@pytest.mark.parametrize("slip", [slip for slip in SLIPS if slip.kind and slip.on_model], ids=lambda slip: slip.name)
def test_the_model_says_so_too(slip: Slip, tmp_path):
    path = tmp_path / "mine.py"
    with pytest.raises(tp.errors.HazardError) as info:
        run(make(slip.wrong, path))
    assert info.value.kind in ABOUT_OUTPUTS and info.value.where.startswith(str(path)), str(info.value)


def test_parts_of_sums_are_stored_as_a_whole():
    """Their dimension is the schedule's own: it has as many elements as there are tiles, which no problem says."""
    epilogue = tp.epilogue.Epilogue(
        lambda acc: {"d": acc, "rows": acc}, outputs={"rows": tp.epilogue.RowSum()}, stages=1
    )
    report = tp.schedules.Gemm((64, 64, 16), (1, 1), 2, epilogue=epilogue).check()
    assert report.ok and report.partly == ()


# ---- rows of groups --------------------------------------------------------------------------------------------------


class Grouped(OneRing):
    """Rows of groups times a matrix each; *slip*: where a tile is stored."""

    load, math = OneRing.load, OneRing.math
    b = tp.TmaLoadStage("l n k", tile=(64, 64), ring=OneRing.ring)
    mma = tp.Wgmma(OneRing.a, b)
    d = tp.TmaStoreStage("m n", source=mma)
    tiles = tp.tiles.GroupedTiles(rows=64)
    slip = ""

    def __init__(self, ascending=True):
        self.offsets = tp.Table("l", ascending=ascending)

    def store(self, k, tile, acc):
        if not self.slip:
            k.d.store(tile, acc)
        elif self.slip == "beyond the end of its group":
            k.d.store_from(tile.row, tile.n * 64, values=acc)
        elif self.slip == "one row further":
            k.d.store_from(tile.row + 1, tile.n * 64, values=acc)
        else:
            k.d.store(tile.also(n=tile.n // 2), acc)


GIVEN = "d is stored once for every shape if offsets ascends, as its Table says; rows from its last entry on are not"
ONCE = "d is not shown to be stored once for every shape: "


def test_rows_of_groups_keep_apart_if_their_ends_ascend():
    report = Grouped().check()
    assert report.ok and report.trips == "every trip count" and report.outputs == (GIVEN,) and GIVEN in str(report)
    undeclared = Grouped(ascending=False).check()
    assert undeclared.ok and undeclared.outputs[0].startswith(ONCE + "its tiles end where a table says")


@pytest.mark.parametrize(
    "slip, why",
    [
        ("beyond the end of its group", "a tile may store more rows than it has of its group"),
        ("one row further", "a tile may store more rows than it has of its group"),
        ("each place twice", "which is not a multiple of one coordinate"),
    ],
)
def test_ascending_ends_do_not_help_a_tile_that_stores_elsewhere(slip, why):
    schedule = Grouped()
    schedule.slip = slip
    report = schedule.check()
    assert len(report.outputs) == 1 and report.outputs[0].startswith(ONCE) and why in report.outputs[0]


def test_ends_that_do_not_ascend_are_refused():
    ends, values = np.array([8, 4, 16], np.int32), np.zeros((16, 64), np.float16)
    given = {"a": values, "b": np.zeros((3, 64, 64), np.float16), "offsets": ends}
    refused(Grouped(), **given, argument="offsets[1]", value="4, after 8", rule="not less than the entry before")
    Grouped(ascending=False)(**given)
    Grouped()(**{**given, "offsets": np.sort(ends)})
