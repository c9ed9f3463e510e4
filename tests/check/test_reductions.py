"""The checker on epilogues with row and column sums: safe for every trip count, and a sample of mutants judged."""

import functools
import itertools

import pytest

import tmapipe as tp
from tests.machine.test_reductions import KINDS, make
from tests.oracle.mutants import Target, judge, mutants_of
from tests.oracle.registry import Registered
from tests.sweeps import ALL, sample
from tmapipe.schedules.mainloop import Cooperative
from tmapipe.testing import assert_safe

S = tp.schedules
TILES = [
    (functools.partial(S.Gemm, mainloop=Cooperative(along="n")), (136, 128, 64), (1, 2)),
    (S.Gemm, (128, 144, 64), (2, 1)),
    (S.Gemm, (128, 72, 64), (1, 1)),
    (S.Gemm, (192, 80, 64), (1, 2)),
    (S.Gemm, (256, 64, 64), (2, 1)),
    (S.PingPong, (128, 128, 64), (2, 1)),
    (S.PingPong, (64, 144, 64), (1, 1)),
    (S.PingPong, (64, 40, 64), (1, 2)),
]
SLOTS = 3  # of the main loop's ring, on which nothing here depends: more take longer
EVERY = 13 if ALL else 26  # of the changes, one in so many is judged


@pytest.mark.parametrize(
    "names,form", sample(itertools.product([("rows",), ("columns",), ("rows", "columns")], TILES), 6, first=3)
)
def test_safe_for_every_trip_count(names, form):
    """In the sample the one, the other and both."""
    kind, tile, cluster = form
    outputs = {name: KINDS[name] for name in names}
    gemm = kind(
        tile,
        cluster,
        SLOTS,
        epilogue=tp.epilogue.Epilogue(lambda acc: {"d": acc, **dict.fromkeys(names, acc)}, outputs=outputs),
    )
    assert assert_safe(gemm).trips == "every trip count"


@pytest.mark.parametrize("kind,store_stages", sample(itertools.product([S.Gemm, S.PingPong], [1, 3]), 4, first=2))
def test_with_operands(kind, store_stages):
    assert_safe(make(kind, (128, 64, 64), (2, 1), slots=SLOTS, stages=store_stages))


def small():
    """One warpgroup, two pieces a row."""
    return S.Gemm(
        (64, 128, 16),
        (1, 1),
        2,
        epilogue=tp.epilogue.Epilogue(lambda acc: {"d": acc, "rows": acc, "columns": acc}, outputs=KINDS, stages=1),
    )


def test_a_sample_of_mutants_is_caught_and_nothing_else():
    target = Target(Registered("Gemm with sums", S.Gemm, small, ((2, 2, {}),)))
    outcomes = [judge(mutant, limit=20_000) for mutant in mutants_of(target, EVERY)]
    assert len(outcomes) >= (20 if ALL else 10)
    assert not [f"{o.wrong}: {o.change}" for o in outcomes if o.wrong]
    assert any(o.breakable for o in outcomes) and any(o.breakable is False for o in outcomes)
