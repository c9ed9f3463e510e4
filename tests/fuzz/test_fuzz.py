"""Random calls, a few of each kind: right, or refused well. The long run is ``python -m tests.fuzz``."""

import json

import attrs
import pytest

import tmapipe as tp
import tmapipe.testing
import tmapipe.torch
import tmapipe.tuning
from tests.fuzz import compiling, declarations, options, publics, valid
from tests.fuzz.chunks import KINDS, RESULTS, calls_of, counted, read, run, summary, table, total, write
from tests.fuzz.outcomes import Call, Outcome, Own, Unsafe, Wrong, judge
from tests.fuzz.schedules import SCHEDULES
from tests.sweeps import ALL


@pytest.mark.filterwarnings("ignore")  # torch's, of layouts in beta
@pytest.mark.parametrize("kind", KINDS)
def test_right_or_refused_well(kind):
    judged = calls_of(1, 0, 60 if ALL else 20, [kind])
    assert not [entry for entry in judged if not entry[2].good]
    outcomes = {outcome for _, _, outcome, _ in judged}
    assert {Outcome.RIGHT, Outcome.REFUSED} <= outcomes


def test_right_calls_as_on_a_gpu():
    """On the model: the rest is ``python -m tests.fuzz.valid``."""
    said = [valid.valid_call(seed, "cpu", 64) for seed in range(8)]
    assert any(", given: " in text for text in said) and any(", made: " in text for text in said)


def test_wrong_calls_as_on_a_gpu():
    said = " ".join(valid.bad_call(seed, "cpu", 64) for seed in range(40))
    assert all(how.strip("_") in said for how in valid.BAD)


def test_a_wrong_result_is_noticed(monkeypatch):
    monkeypatch.setattr(
        valid, "SCHEDULES", [attrs.evolve(SCHEDULES[0], expected=lambda given: (given["x"] + 1.0, 0 * given["x"]))]
    )
    with pytest.raises(Wrong, match="off by"):
        valid.valid_call(0, "cpu", 64)


def test_a_stopped_run_goes_on(tmp_path):
    of, chunk = [1, 4, "tensors"], counted(1, 0, 4, ["tensors"])
    write(tmp_path / "out", of, chunk)
    write(tmp_path / "out", [2, 4, "tensors"], {**chunk, "start": 50})
    assert read(tmp_path / "out", of) == {0: chunk}
    assert read(tmp_path / "none", of) == {}


def test_a_summary_counts_all_calls():
    bad = {"start": 50, "counts": {"bodies BARE": 2}, "seconds": 2.0, "slowest": [1.5, "a call"]}
    bad["bad"] = [("bodies", f"{which} call", "BARE", "ValueError At line 3") for which in ("a", "another")]
    chunks = [counted(1, 0, 4, ["tensors"]), bad]
    found = summary(0x2A, chunks)
    assert (found["seed"], found["calls"], found["all"]["bare"]) == ("0x2a", 6, 2)
    assert found["slowest call"] == [1.5, "a call"] and found["CPU seconds"] >= 2
    assert sum(found["by kind"]["tensors"].values()) == 4
    assert [(each["times"], each["call"]) for each in found["bad"]] == [(2, "a call")]
    assert any(line.split()[:6] == ["bare", *"00202"] for line in table(total(chunks)).splitlines())


def test_the_results_of_the_long_run():
    """As committed: none wrong, no hang, no crash, at most one bare exception in a thousand calls."""
    found = json.loads(RESULTS.read_text())
    assert found["calls"] >= 20_000 and len(found["core types"]) == 4 and RESULTS.stat().st_size < 20_000
    assert found["seed"] == f"0x{found['commit'][:8].lstrip('0')}"
    assert not sum(found["all"][bad] for bad in ("wrong", "hang", "crash", "poor"))
    assert found["all"]["bare"] <= found["calls"] / 1000


def test_a_run_ends_in_time():
    """And what ends a process counts as a crash of one call: no process is started for none."""
    assert not list(run(1, 100, [0, 50], 2, ["tensors"], 0.0))


def test_configurations_are_planned_and_compiled():
    """A few of each kind are drawn; one that is accepted is compiled, and one is refused."""
    drawn = [compiling.configuration(seed) for seed in range(60)]
    assert {kind for _, kind, _, _ in drawn} == set(compiling.KINDS)
    small = [seed for seed, (_, kind, _, _) in enumerate(drawn) if kind is tp.schedules.AddParts]
    judged = [compiling.judge(seed) for seed in small[:2]]
    assert all(each["outcome"] in compiling.GOOD for each in judged), judged
    assert f"{sum(each['outcome'] == 'right' for each in judged)} right" in compiling.table(judged)


def test_every_option_has_values_to_draw():
    """Of the ready-made schedules; `epilogue` has its own."""
    drawn = {name for kind in options.KINDS for name in options.parameters_of(kind)} - {"epilogue"}
    assert drawn == set(options.POOLS)


def test_no_constructor_fails_on_junk():
    """Some take more than they should, which is refused where it is used; none fails somewhere inside."""
    judged = [(call.text, *judge(call)) for call in declarations.calls()]
    assert not [entry for entry in judged if not entry[1].good]
    assert sum(outcome is Outcome.REFUSED for _, outcome, _ in judged) > 0.7 * len(judged)


def test_every_public_callable_is_drawn():
    drawn = {name.rpartition(".")[2] for name in publics.CALLABLES}
    modules = (
        tp,
        tp.schedules,
        tp.tiles,
        tp.epilogue,
        tp.math,
        tp.mainloop,
        tmapipe.tuning,
        tmapipe.testing,
        tmapipe.torch,
    )
    for module in modules:
        for name in module.__all__:
            public = getattr(module, name)
            error = isinstance(public, type) and issubclass(public, Exception)
            assert name in drawn or error or not callable(public), f"{module.__name__}.{name}"


def raising(error):
    def run():
        raise error

    return run


@pytest.mark.parametrize(
    "error, outcome",
    [
        (tp.InputError("a", 1, "is a tensor", "pass one"), Outcome.REFUSED),
        (tp.InputError("a", 1, "", "pass one"), Outcome.POOR),
        (tp.InputError("", 1, "is a tensor", "pass one"), Outcome.POOR),
        (tp.InputError("a", 1, "is a tensor", ""), Outcome.POOR),
        (tp.errors.ScopeError("file.py:3: a slot"), Outcome.REFUSED),
        (ValueError("a"), Outcome.BARE),
        (KeyError(10**5000), Outcome.BARE),
        (TypeError("f() takes 1 positional argument but 2 were given"), Outcome.OWN),
        (Wrong("two"), Outcome.WRONG),
        (Unsafe("race"), Outcome.UNSAFE),
        (Own("of torch"), Outcome.OWN),
    ],
)
def test_outcomes(error, outcome):
    assert judge(Call("", raising(error)))[0] is outcome


def test_a_hang(monkeypatch):
    monkeypatch.setattr("tests.fuzz.outcomes.SECONDS", 0.05)

    def run():
        while True:
            pass

    assert judge(Call("", run))[0] is Outcome.HANG


def test_the_same_seed_makes_the_same_calls():
    first, second = ([text for _, text, _, _ in calls_of(3, 5, 4)] for _ in range(2))
    assert [text.split(" at 0x")[0] for text in first] == [text.split(" at 0x")[0] for text in second]
