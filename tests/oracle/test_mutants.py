"""Mutants of the registered schedules: a fixed sample judged here, and what the full run has found."""

import typing
from pathlib import Path

import pytest

from tests.oracle import mutants
from tests.oracle.mutant_changes import CHANGES, THINGS, changed, changes_at, rule_of
from tests.oracle.mutant_sites import Change, Program, Site
from tests.oracle.mutant_table import Outcome, read, show, table, why_equivalent, write
from tests.oracle.mutants import VARIANTS, Mutant, Target, judge, judged, mutants_of
from tests.oracle.one_run import check_program
from tests.oracle.plain import record
from tests.oracle.registry import REGISTRY
from tests.sweeps import ALL
from tmapipe import isa as effects
from tmapipe import isa as operands
from tmapipe.check import Finding, Kind, Report
from tmapipe.isa import Effect, declared
from tmapipe.isa.ops import BarArrive, BarWait, CounterAdd, MbarWait, WarpSync
from tmapipe.kernel import kernel_main

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "mutants.json"
EVERY = 13  # of the changes to a schedule, one in so many is drawn here,
MOST = 10_000 if ALL else 10  # and at most so many of them, evenly spaced, are judged,
LEAST = 6  # and at least so many
START = effects.Start("slot", effects.Until(effects.Group.BULK), write=True, mask="mask")
TARGETS = {registered.name: registered for registered in REGISTRY}


@pytest.mark.parametrize("name", TARGETS)
def test_a_sample_is_caught_and_nothing_else(name):
    target = Target(TARGETS[name])
    found = list(mutants_of(target, EVERY))
    if len(found) < LEAST:  # little is awaited but the grid
        found = list(mutants_of(target))
    count = min(MOST, len(found))
    outcomes = [judge(found[i * len(found) // count], limit=20_000) for i in range(count)]
    assert len(outcomes) >= LEAST
    assert not [f"{o.wrong}: {o.change}" for o in outcomes if o.wrong]
    assert any(o.breakable for o in outcomes) and any(o.breakable is False for o in outcomes)


def test_mutants_differ_from_the_schedule_and_from_each_other():
    target = Target(TARGETS["Copy"])
    found = list(mutants_of(target))
    assert {mutant.change.how for mutant in found} >= {"drop", "double", "move", "flip parity", "shift bytes"}
    programs = [recorded(target, lambda problem: lambda isa: kernel_main(isa, target.schedule))]
    programs += [recorded(target, mutant.entry) for mutant in found]
    assert len(set(programs)) == len(programs) > 100


def recorded(target, entry):
    """The operations of every warp in every problem, without those that others cannot notice."""
    programs = (record(target.plan, entry(i), shapes) for i, shapes in enumerate(target.problems))
    return tuple(
        tuple(tuple(op for op in warp if not declared(type(op)).local) for warp in warps) for warps in programs
    )


@pytest.mark.parametrize("name", ["Copy, dynamic", "Gemm"])
def test_what_does_not_happen_changes_nothing(name):
    """Programs are put together again as they were: a site that nobody comes to, and what a mutant leaves alone."""
    target = Target(TARGETS[name])
    nothing = Mutant(target, Change(Site("nobody", MbarWait, "", (), False), "drop"))
    right = recorded(target, lambda problem: lambda isa: kernel_main(isa, target.schedule))
    assert recorded(target, nothing.entry) == right


# ---- what the table says ----------------------------------------------------------------------------------------------


def test_every_kind_of_effect_has_its_name_in_the_rules():
    assert set(THINGS) == set(typing.get_args(Effect))


def test_an_operation_has_mutants_by_its_declaration(monkeypatch):
    """One that the tools have never heard of."""
    monkeypatch.setattr(effects, "TABLE", dict(effects.TABLE))

    @effects.operation(
        "new", "waits, arrives and copies", effects.Wait("near"), effects.Arrive("far", lanes="lanes"), START
    )
    class New(typing.NamedTuple):
        slot: operands.Slot
        near: operands.Bar
        far: operands.Bar
        parity: operands.Parity
        mask: operands.Mask
        lanes: operands.Lanes = 1

    layout = Target(TARGETS["Copy"]).layout
    site = Site("new", New, "", (), False)
    found = {(how, operand) for how, operand, _ in changes_at(site, [New(0, 0, 2, 1, 1)], layout)}
    assert found == {
        ("drop", ""), ("double", ""), ("move", ""), ("shift stage", "slot"), ("shift stage", "near"),
        ("shift stage", "far"), ("shift stage", "stages"), ("flip parity", "parity"), ("all lanes", "lanes"),
        ("shift mask", "mask"),
    }  # fmt: skip
    assert rule_of(Change(site, "drop")) == "drop wait"


def test_local_operations_have_no_mutants():
    target = Target(TARGETS["Copy, dynamic"])
    local = [op for warps in target.programs for p in warps for site in p.sites if declared(op := site.op).local]
    programs = [
        record(target.plan, lambda isa: kernel_main(isa, target.schedule), shapes) for shapes in target.problems
    ]
    assert any(isinstance(op, CounterAdd) for warps in programs for warp in warps for op in warp) and not local


SYNC, WARP_SYNC = (BarArrive(0, 0, True), BarWait(0)), (WarpSync(),)


@pytest.mark.parametrize(
    "op, how, expected",
    [
        (BarArrive, "drop", [WARP_SYNC]),
        (BarArrive, "double", [SYNC, SYNC, WARP_SYNC]),
        (BarArrive, "move", [WARP_SYNC, SYNC]),
        (BarWait, "drop", [(BarArrive(0, 0, False),), WARP_SYNC]),
    ],
)
def test_bar_sync_changes_as_one_instruction_or_becomes_bar_arrive(op, how, expected):
    site = Site("math", op, "", (), False)
    program = Program([SYNC, WARP_SYNC], {site: [(0, SYNC.index(next(o for o in SYNC if type(o) is op)))]})
    layout = Target(TARGETS["Copy"]).layout
    assert (how, "", 0) in list(changes_at(site, program.operations(site), layout))
    assert changed(program, Change(site, how), program.sites[site], layout) == tuple(o for ops in expected for o in ops)


# ---- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_checker_that_passes_all_misses_and_one_that_rejects_all_alarms(monkeypatch):
    found = list(mutants_of(Target(TARGETS["Copy"])))
    dropped = next(m for m in found if str(m.change).startswith("drop MbarWait(ring.full)"))
    doubled = next(m for m in found if str(m.change).startswith("double MbarWait"))
    assert judge(dropped).wrong == judge(doubled).wrong == ""
    monkeypatch.setattr(mutants, "check_program", lambda *_: Report("", (), ""))
    assert judge(dropped).wrong == "missed" and judge(doubled).wrong == ""
    error = Finding(Kind.RACE, "", "")
    monkeypatch.setattr(mutants, "check_program", lambda *_: Report("", (error,), ""))
    assert judge(dropped).wrong == "" and judge(doubled).wrong == "false alarm"


def test_a_wait_for_a_held_slot_that_never_ends():
    target = Target(next(registered for registered in VARIANTS if registered.name == "held slot"))
    changes = [m for m in mutants_of(target) if m.change.how in ("flip parity", "shift count")]
    found = [judge(m) for m in changes if "weights.full" in str(m.change)]
    assert len(found) > 3 and all(outcome.killed for outcome in found)


def test_registers_that_one_warp_does_not_give_back():
    target = Target(TARGETS["PingPong"])
    kept = next(
        m
        for m in mutants_of(target)
        if str(m.change).startswith("drop SetMaxNreg() in load") and m.change.warps != "all"
    )
    report = check_program(target.plan, kept.entry(0), target.problems[0])
    assert "let load (warp 0) give back registers, as the others of its warpgroup do" in report.errors[0].fix


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
    site = Site("load", MbarWait, "ring.free", ("barrier.py:1",), False)
    outcomes = [
        Outcome("Copy", Change(site, "drop"), True, True, False, 5),
        Outcome("Copy", Change(site, "drop", when="first"), False, False, False, 5),
        Outcome("Copy", Change(site, "flip parity"), True, False, False, 5),
    ]
    write(tmp_path / "mutants.json", outcomes, 1.25, append=True)  # where there is no file yet
    data = read(tmp_path / "mutants.json")
    assert data["suite"] == "mutants" and data["method"]["steps"] == 15
    rows = {row["rule"]: row for row in data["rows"]}
    assert rows["drop wait"]["total"] == 2 and rows["drop wait"]["breakable"] == rows["drop wait"]["killed"] == 1
    assert rows["flip parity"]["breakable"] == 1 and rows["flip parity"]["killed"] == 0
    more = [Outcome("Copy", Change(site, "double"), False, False, False, 5)]
    write(tmp_path / "more.json", outcomes, 1.0)
    write(tmp_path / "more.json", more, 1.0, append=True, rule="double wait")
    both = read(tmp_path / "more.json")
    assert both["rows"][:2] == data["rows"] and both["rows"][2]["rule"] == "double wait"
    assert sum(each["total"] for each in both["equivalent"]) == 2
    with pytest.raises(ValueError, match=r"double wait.* already"):
        write(tmp_path / "more.json", more, 1.0, append=True, rule="double wait")
    (equivalent,) = data["equivalent"]
    assert (
        equivalent["total"] == 1
        and equivalent["reason"] == why_equivalent(outcomes[1]) == "nothing has been there before that it must wait for"
    )


# ---- the full run -----------------------------------------------------------------------------------------------------


def test_the_full_run_kills_all_without_a_false_alarm():
    data = read(RESULTS)
    rows = data["rows"]
    assert {row["schedule"] for row in rows} == {r.name for r in REGISTRY + VARIANTS}, "run it again: a schedule is new"
    assert all(any(how in row["rule"] for row in rows) for how in CHANGES)
    waiting = {row["schedule"] for row in rows if row["rule"] == "drop grid wait"}
    assert {row["schedule"] for row in rows} - waiting == {"the same on sm_80"}  # which has no griddepcontrol
    breakable, killed = (sum(row[name] for row in rows) for name in ("breakable", "killed"))
    assert breakable > 5000 and killed == breakable
    assert not [row for row in rows if row["false_alarms"]]
    assert sum(row["undecided"] for row in rows) <= 0.01 * sum(row["total"] for row in rows)
    right = sum(row["total"] - row["breakable"] - row["undecided"] for row in rows)
    equivalent = data["equivalent"]
    assert sum(row["total"] for row in equivalent) == right and all(row["reason"] for row in equivalent)
