"""Registering a ready-made schedule once is enough."""

import inspect
from pathlib import Path

import tmapipe as tp
from tests.oracle.registry import REGISTRY

#: Proved and compiled by tests of its own; its mutants are still to be made.
OF_ITS_OWN_TESTS = {tp.schedules.Attention: ("tests/check/test_attention.py", "tests/emit/test_attention.py")}


def test_every_ready_made_schedule_is_registered():
    named = [getattr(tp.schedules, name) for name in tp.schedules.__all__]
    exported = {thing for thing in named if inspect.isclass(thing) and issubclass(thing, tp.Schedule)}
    assert exported == {*(type(registered.make()) for registered in REGISTRY), *OF_ITS_OWN_TESTS}
    root = Path(__file__).parents[2]
    assert all((root / path).is_file() for paths in OF_ITS_OWN_TESTS.values() for path in paths)


def test_each_has_a_name_and_a_small_form_of_its_own():
    assert len({registered.name for registered in REGISTRY}) == len(REGISTRY)
    for registered in REGISTRY:
        assert type(registered.make_small()) is type(registered.make())
        assert registered.problems
