"""Mutants of the registered schedules: a fixed sample judged here, and what the full run has found."""

import collections
import json
from pathlib import Path

import pytest

from tmapipe.check.mutant_changes import CHANGES, rule_of
from tmapipe.check.mutant_sites import Change, Site
from tmapipe.check.mutant_table import Outcome, show, table, why_equivalent
from tmapipe.check.mutants import VARIANTS, Target, judge, judged, mutants_of
from tmapipe.schedules import REGISTRY

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "mutants.json"
EVERY = 9  # of the mutants of a small schedule, one in so many is judged here
ITSELF = {registered.name: registered for registered in REGISTRY}


@pytest.mark.parametrize("name", ITSELF)
def test_a_sample_is_caught_and_nothing_else(name):
    mutants = list(mutants_of(Target(ITSELF[name])))
    sample = mutants[4::EVERY]
    outcomes = [judge(mutant, limit=20_000) for mutant in sample]
    assert not [str(o.change) for o in outcomes if o.wrong]
    assert any(o.breakable for o in outcomes) and any(o.breakable is False for o in outcomes)


def test_each_mutant_executes_something_else():
    target = Target(ITSELF["Copy"])
    mutants = list(mutants_of(target))
    assert len({mutant.change for mutant in mutants}) == len(mutants)
    unchanged = Target(ITSELF["Copy"])
    none = Change(Site("nobody", "nothing", "", (), False), "drop")
    for mutant in mutants[::10]:
        assert not _same(target, mutant, type(mutant)(unchanged, none, mutant.executions))


def _same(target, one, other):
    try:
        return target.recorded(one.entry) == target.recorded(other.entry)
    except Exception as error:  # a mutant that cannot even be recorded
        assert "no-such-stage" in str(error) or "mask" in str(error) or error
        return False
