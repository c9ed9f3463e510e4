"""Registering a ready-made schedule once is enough."""

import inspect

import tmapipe as tp
from tests.oracle.registry import REGISTRY
from tmapipe.schedules.fused import AddRows


def test_every_ready_made_schedule_is_registered():
    named = [getattr(tp.schedules, name) for name in tp.schedules.__all__]
    exported = {thing for thing in named if inspect.isclass(thing) and issubclass(thing, tp.Schedule)}
    assert {*exported, AddRows} == {type(registered.make()) for registered in REGISTRY}  # which GEMMs with sums call


def test_each_has_a_name_and_a_small_form_of_its_own():
    assert len({registered.name for registered in REGISTRY}) == len(REGISTRY)
    for registered in REGISTRY:
        assert type(registered.make_small()) is type(registered.make())
        assert registered.problems
