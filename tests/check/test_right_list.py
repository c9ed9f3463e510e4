"""The list of right programs: a sample of it is proved here, all of it by ``python -m tests.check.right_list``."""

import json
from pathlib import Path

import pytest

from tests.check.more_right import MORE, OneMoreSlot
from tests.check.right_list import SECONDS, judge, programs
from tests.sweeps import sample
from tmapipe.model import Layout
from tmapipe.program import trace
from tmapipe.prove.places import Places

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "right_programs.json"


def test_there_are_enough_of_them():
    names = list(programs())
    assert len(MORE) >= 40 and len(names) >= 200
    for kind in ("shipped", "example", "matmuls", "twin", "twin of a mistake", "twin of a slip", "more"):
        assert any(name.startswith(f"{kind}: ") for name in names)


@pytest.mark.parametrize("name", sample(MORE, 9))
def test_a_right_program_is_proved(name):
    found = judge(f"more: {name}")
    assert found["proved"] and not found["errors"], found


def test_nearly_all_are_proved_as_the_results_say():
    found = json.loads(RESULTS.read_text())
    every = len(found["proved"]) + len(found["others"])
    assert len(found["proved"].keys() & set(programs())) >= 0.95 * every
    assert len(found["proved"]) >= 0.97 * every and max(found["proved"].values()) <= SECONDS
    assert not [each for each in found["others"] if each["errors"]]


def test_the_release_of_no_slot_tells_no_positions_apart():
    """`ring.free[-1]`, under a condition that never holds, made a state of each position: up to n from four slots on."""
    program = trace(OneMoreSlot(2, (64, 64, 64), (1, 1), 4))
    assert not Places(Layout(program.plan), program.nodes).pinned
