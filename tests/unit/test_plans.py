"""Plans are values: equal where every number is, hashable, and they cannot be changed."""

import copy
import pickle

import attrs
import pytest

import tmapipe as tp
from tests.oracle.registry import REGISTRY
from tmapipe.errors import FrozenMap
from tmapipe.plan.thread_layout import AccumulatorLayout

S = tp.schedules


def test_plans_of_equal_declarations_are_equal():
    one, two = S.Gemm().plan(), S.Gemm().plan()
    assert one is not two and one == two and hash(one) == hash(two)
    others = [S.Gemm().plan({"d": "fp32"}), S.Gemm((128, 128, 64)).plan(), S.Gemm(stages=3).plan(), S.PingPong().plan()]
    assert len({one, two, *others}) == 1 + len(others)


def test_every_registered_plan_can_be_hashed_copied_and_pickled():
    for registered in REGISTRY:
        plan = registered.make().plan()
        for other in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
            assert other == plan and hash(other) == hash(plan)


def test_the_order_of_a_cluster_counts():
    """The CTA's rank varies fastest along its first axis."""
    plan = S.Gemm(cluster=(2, 2)).plan()
    swapped = attrs.evolve(plan, cluster={"n": 2, "m": 2})
    assert plan != swapped and plan == attrs.evolve(plan, cluster={"m": 2, "n": 2})


def test_plans_do_not_change():
    plan = S.Gemm().plan()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        plan.warps = 3
    with pytest.raises(TypeError):
        plan.cluster["m"] = 4
    with pytest.raises(TypeError):
        plan.ring("ring").armed["load"] = 0


def test_what_a_plan_was_made_from_may_change():
    gemm = S.Gemm()
    gemm.cluster = cluster = {"m": 2, "n": 1}
    plan = gemm.plan()
    cluster["m"] = 4
    assert plan.cluster == gemm.declared.cluster == {"m": 2, "n": 1}


def test_frozen_maps():
    one, two, swapped = FrozenMap({"m": 1, "n": 2}), FrozenMap({"m": 1, "n": 2}), FrozenMap({"n": 2, "m": 1})
    assert one == two and hash(one) == hash(two) and one != swapped
    assert one == {"m": 1, "n": 2} and swapped == {"m": 1, "n": 2} and one != {"m": 1} and one != [("m", 1), ("n", 2)]
    assert dict(one) == {"m": 1, "n": 2} and one["n"] == 2 and "l" not in one and len(one) == 2
    assert list(one) == ["m", "n"] == list(reversed(swapped))
    assert repr(swapped) == "{'n': 2, 'm': 1}"


def test_accumulators_that_distribute_rows_or_columns_alike():
    tile, lower, wider = (AccumulatorLayout(*shape, 2, 4) for shape in ((256, 64), (128, 64), (256, 96)))
    assert tile.key("columns") == lower.key("columns") != wider.key("columns")
    assert tile.key("rows") == wider.key("rows") != lower.key("rows")
    assert tile.key("rows") != AccumulatorLayout(256, 64, 4, 4).key("rows")
