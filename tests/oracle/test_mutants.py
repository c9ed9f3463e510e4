"""Mutants of the registered schedules: a fixed sample judged here, and what the full run has found."""

import json
from pathlib import Path

import pytest

from tests.oracle import mutants
from tests.oracle.mutant_changes import CHANGES
from tests.oracle.mutant_sites import Change, Site
from tests.oracle.mutant_table import Outcome, show, table, why_equivalent, write
from tests.oracle.mutants import VARIANTS, Target, judge, judged, mutants_of
from tmapipe.check import Kind, Report
from tmapipe.check.findings import Finding
from tmapipe.errors import HazardError
from tmapipe.schedules import REGISTRY

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "mutants.json"
EVERY = 13  # of the changes to a schedule, one in so many is judged here
TARGETS = {registered.name: registered for registered in REGISTRY}


@pytest.mark.parametrize("name", TARGETS)
def test_a_sample_is_caught_and_nothing_else(name):
    outcomes = [judge(mutant, limit=20_000) for mutant in mutants_of(Target(TARGETS[name]), EVERY)]
    assert len(outcomes) >= 6
    assert not [f"{o.wrong}: {o.change}" for o in outcomes if o.wrong]
    assert any(o.breakable for o in outcomes) and any(o.breakable is False for o in outcomes)


def test_mutants_differ_from_the_schedule_and_from_each_other():
    target = Target(TARGETS["Copy"])
    found = list(mutants_of(target))
    assert {mutant.change.how for mutant in found} >= {"drop", "double", "move", "flip parity", "shift bytes"}
    nothing = Change(Site("nobody", "nothing", "", (), False), "drop")
    programs = [target.recorded(type(found[0])(target, nothing, found[0].executions).entry)]
    for mutant in found:
        try:
            programs.append(target.recorded(mutant.entry))
        except HazardError:  # it cannot even be recorded: a stage that does not exist, say
            assert judge(mutant).killed
    assert len(set(programs)) == len(programs) > 100


def test_a_checker_that_passes_all_misses_and_one_that_rejects_all_alarms(monkeypatch):
    found = list(mutants_of(Target(TARGETS["Copy"])))
    dropped = next(m for m in found if str(m.change).startswith("drop mbarrier_wait(ring.full)"))
    doubled = next(m for m in found if str(m.change).startswith("double mbarrier_wait"))
    assert judge(dropped).wrong == judge(doubled).wrong == ""
    monkeypatch.setattr(mutants, "check_program", lambda *_: Report("", (), ""))
    assert judge(dropped).wrong == "missed" and judge(doubled).wrong == ""
    error = Finding(Kind.RACE, "", "")
    monkeypatch.setattr(mutants, "check_program", lambda *_: Report("", (error,), ""))
    assert judge(dropped).wrong == "" and judge(doubled).wrong == "false alarm"


def test_an_oracle_that_gives_up_is_counted():
    mutant = next(m for m in mutants_of(Target(TARGETS["Copy"])) if m.change.how == "double")
    outcome = judge(mutant, limit=1)
    assert outcome.breakable is None and outcome.wrong == "undecided"
    assert table([outcome])[0].undecided == 1
    assert "(1 undecided)" in show([outcome])


def test_processes_find_the_same():
    found = list(mutants_of(Target(TARGETS["Copy"])))[:12]
    assert list(judged(found, jobs=2)) == list(judged(found))


def test_rows_and_reasons_as_written(tmp_path):
    site = Site("load", "mbarrier_wait", "ring.free", ("barrier.py:1",), False)
    outcomes = [
        Outcome("Copy", Change(site, "drop"), True, True, False, 5),
        Outcome("Copy", Change(site, "drop", when="first"), False, False, False, 5),
        Outcome("Copy", Change(site, "flip parity"), True, False, False, 5),
    ]
    write(tmp_path / "mutants.json", outcomes, 1.25)
    data = json.loads((tmp_path / "mutants.json").read_text())
    assert data["suite"] == "mutants" and data["method"]["steps"] == 15
    rows = {row["rule"]: row for row in data["rows"]}
    assert rows["drop wait"]["total"] == 2 and rows["drop wait"]["breakable"] == rows["drop wait"]["killed"] == 1
    assert rows["flip parity"]["breakable"] == 1 and rows["flip parity"]["killed"] == 0
    (equivalent,) = data["equivalent"]
    assert equivalent["reason"] == why_equivalent(outcomes[1]) == "nothing has been there before that it must wait for"


# ---- the full run -----------------------------------------------------------------------------------------------------


def test_the_full_run_kills_at_least_99_percent_without_a_false_alarm():
    data = json.loads(RESULTS.read_text())
    rows = data["rows"]
    assert {row["schedule"] for row in rows} == {r.name for r in REGISTRY + VARIANTS}, "run it again: a schedule is new"
    assert all(any(how in row["rule"] for row in rows) for how in CHANGES)
    breakable, killed = (sum(row[name] for row in rows) for name in ("breakable", "killed"))
    assert breakable > 1000 and killed >= 0.99 * breakable
    assert not [row for row in rows if row["false_alarms"]]
    assert sum(row["undecided"] for row in rows) <= 0.01 * sum(row["total"] for row in rows)
    right = sum(row["total"] - row["breakable"] - row["undecided"] for row in rows)
    assert len(data["equivalent"]) == right and all(mutant["reason"] for mutant in data["equivalent"])
