"""The judge agrees with the traced program: on every registered schedule, example and body of tests, and on drawn ones."""

from __future__ import annotations

import random

import numpy as np
import pytest

import tmapipe as tp
from tests.check import unseen
from tests.fuzz.schedules import SCHEDULES
from tests.oracle.bodies import ASKED, RARE, STATES, body
from tests.oracle.judge import entry_of, operations, ran
from tests.oracle.judged_bodies import AGREES, REFUSED, WRONG, difference, outcome, program_of
from tests.oracle.judged_schedules import PLACES, schedules, shapes_of
from tests.programs import PROGRAMS
from tests.sweeps import ALL, examples, sample
from tmapipe.errors import PipelineError

SEED = 27_000_000
JUDGED = schedules()
RANDOM = "AtRandom"  # differs from call to call
#: Schedules of tests/check/unseen.py that are no programs: they keep state, ask Python, or have a name that is None or a slot;
#: and that of machine/test_endless whose body starts a thread.
REFUSES = {make.__name__ for make, _ in (*unseen.NOT_TRACED, *unseen.REFUSED)} - {RANDOM} | {"Threads"}


@pytest.mark.parametrize("name", sample(JUDGED, 20))
def test_schedules(name):
    judged, rng = JUDGED[name], random.Random(name)
    schedule = judged.make()
    plan = schedule.plan(judged.dtypes)
    try:
        program = program_of(schedule, plan)
    except PipelineError:
        assert name.rpartition(".")[2] in REFUSES
        return
    for _ in range(4 if ALL else 1):
        shapes = shapes_of(judged, schedule, plan, rng)
        for place in PLACES if ALL else PLACES[1:]:
            try:
                want = operations(plan, entry_of(schedule), shapes, *place)
            except PipelineError:
                continue  # wrong on purpose
            found = operations(plan, program, shapes, *place)
            assert want == found or name.endswith(RANDOM), f"{shapes}, {place}: {difference(want, found)}"


def _agree(schedule: tp.Schedule, tensors: dict) -> None:
    want = ran(schedule, entry_of(schedule), tensors, 2)
    found = ran(schedule, program_of(schedule, schedule.plan(schedule.bind(**tensors).dtypes)), tensors, 2)
    assert want.operations == found.operations, difference(want.operations, found.operations)
    for name, array in want.outputs.items():
        assert array.tobytes() == found.outputs[name].tobytes(), name


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_with_data(name):
    for n in range(3 if ALL else 1):
        _agree(PROGRAMS[name].make(), PROGRAMS[name].draw(random.Random(f"{name} {n}"), 60))


@pytest.mark.parametrize(
    "which", [each for each in SCHEDULES if each.name not in ("Copy", "SplitK", "StreamK")], ids=lambda each: each.name
)
def test_schedules_with_data(which):
    for seed in range(3 if ALL else 1):
        rng = random.Random(seed)
        sizes = {"l": 2, "s": 2, "m": rng.randint(1, 90), "n": 16 * rng.randint(1, 6), "k": 16 * rng.randint(1, 6)}
        _agree(which.make(), which.tensors(sizes, which.dtypes[0], np.random.default_rng(seed)))


@pytest.mark.parametrize("part", range(5 if ALL else 2))
def test_drawn_bodies(part, tmp_path):
    """Right ones agree; at most one in fifty is refused. What keeps state, or asks Python, is refused or agrees."""
    found = [outcome(body(SEED + seed), tmp_path) for seed in range(part, examples(200), 5)]
    wrong = [each for each in found if each.end not in (AGREES, REFUSED, WRONG)]
    assert not wrong, "\n".join(f"{each.body.seed}: {each.end} {each.why}" for each in wrong)
    refused = [each for each in found if each.body.right and each.end == REFUSED]
    assert len(refused) <= max(1, len(found) // 50), "\n".join(f"{each.body.seed}: {each.why}" for each in refused)


@pytest.mark.parametrize(
    ("state", "asked"), [*((name, None) for name in sample(STATES, 4)), *((None, name) for name in sample(ASKED, 4))]
)
def test_state_is_refused_or_agrees(state, asked, tmp_path):
    for seed in range(6 if ALL else 2):
        found = outcome(body(SEED + 900_000 + seed, state, asked), tmp_path)
        assert found.end in (AGREES, REFUSED, WRONG), f"{found.body.seed}: {found.why}"


@pytest.mark.parametrize("seed", [27_000_393, 28_000_021])
def test_functions_that_name_themselves(seed, tmp_path):
    """A function of a module that sets its own attribute."""
    assert outcome(body(seed), tmp_path).end in (AGREES, REFUSED)


def test_bodies_are_the_same_on_every_machine():
    assert body(SEED).source == body(SEED).source != body(SEED + 1).source
    drawn = [body(SEED + seed) for seed in range(300)]
    kinds = {each.state for each in drawn if each.state}
    features = set().union(*(each.features for each in drawn))
    assert len(kinds) > len(STATES) // 2 and len(features) > 20 and any(f"rare: {kind}" in features for kind in RARE)
