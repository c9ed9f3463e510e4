"""Registering a ready-made schedule once is enough."""

import inspect

import tmapipe as tp
from tests.oracle.registry import REGISTRY


def test_every_ready_made_schedule_is_registered():
    named = [getattr(tp.schedules, name) for name in tp.schedules.__all__]
    exported = {thing for thing in named if inspect.isclass(thing) and issubclass(thing, tp.Schedule)}
    assert exported == {type(registered.make()) for registered in REGISTRY}


def test_each_has_a_name_and_a_small_form_of_its_own():
    assert len({registered.name for registered in REGISTRY}) == len(REGISTRY)
    for registered in REGISTRY:
        assert type(registered.make_small()) is type(registered.make())
        assert registered.problems
