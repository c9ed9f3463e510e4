"""The checker on epilogues with operands: safe for every trip count, and unsafe where an ordering is left out."""

import itertools
from contextlib import nullcontext

import pytest

import tmapipe as tp
from tests.machine.test_operands import KINDS, make
from tests.sweeps import ALL
from tmapipe.testing import assert_safe

S = tp.schedules

SLOTS = 3  # of the main loop's ring, on which nothing here depends: more take longer
TILES = [
    (S.Gemm, (128, 144, 64), (2, 1)),
    (S.Gemm, (128, 72, 64), (1, 1)),
    (S.Gemm, (192, 80, 64), (1, 2)),
    (S.Gemm, (256, 64, 64), (1, 1)),
    (S.PingPong, (128, 128, 64), (2, 1)),
    (S.PingPong, (64, 144, 64), (1, 1)),
]


NAMES = [tuple(KINDS), ("bias",)]


@pytest.mark.parametrize(
    "form,names", [*itertools.product(TILES, NAMES)] if ALL else [(form, ("bias",)) for form in TILES[1::2]]
)
def test_safe_for_every_trip_count(form, names):
    """All kinds at once, in the sample: `test_one_slot`."""
    kind, tile, cluster = form
    report = make(kind, tile, cluster, names, SLOTS).check()
    assert report.ok and report.trips == "every trip count", str(report)


@pytest.mark.parametrize("kind,tile,cluster", TILES[-1:] + ALL * TILES[:1])
def test_several_outputs(kind, tile, cluster):
    outputs = {"sums": tp.epilogue.Output("fp32")}
    epilogue = tp.epilogue.Epilogue(lambda acc: {"d": acc, "sums": acc}, outputs=outputs)
    assert_safe(kind(tile, cluster, 2, epilogue=epilogue))


def test_one_slot():
    assert_safe(make(S.Gemm, (128, 64, 64), (2, 1), slots=SLOTS, ahead=1))
    assert_safe(make(S.PingPong, (64, 64, 64), (2, 1), slots=SLOTS, ahead=1))


class Unordered(S.PingPong):
    """Teams whose epilogues take no turns: one may pass over two laps of slots and take an old phase for its own, and both
    write to the same output buffers."""

    def epilogue_turn(self, k):
        return nullcontext()


def test_teams_need_turns():
    report = make(Unordered, (128, 128, 64), (1, 1)).check()
    assert not report.ok and any("operand_ring" in str(finding) for finding in report.findings)


def test_shared_buffers_need_turns():
    report = Unordered((128, 128, 64), (1, 1)).check()
    kinds = {finding.kind.name for finding in report.findings}
    assert not report.ok and kinds >= {"RACE", "STORE_SOURCE_REUSED"}, str(report)


def test_the_plan_without_operands_has_nothing_of_them():
    plan = S.Gemm(epilogue=lambda acc: acc + 1).plan()
    assert [role.name for role in plan.roles] == ["load", "math"] and [ring.name for ring in plan.rings] == ["ring"]
    assert [barrier.name for barrier in S.PingPong().plan().barriers[-2:]] == ["order.turn", "epilogue_order.turn"]
