"""The list of right programs: a sample of it is proved here, all of it by ``python -m tests.check.right_list``."""

import json
from pathlib import Path

import pytest

from tests.check.more_right import MORE
from tests.check.right_list import judge, programs
from tests.sweeps import sample

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "right_programs.json"


def test_there_are_enough_of_them():
    names = list(programs())
    assert len(MORE) >= 40 and len(names) >= 200
    for kind in ("shipped", "example", "matmuls", "twin", "twin of a mistake", "twin of a slip", "more"):
        assert any(name.startswith(f"{kind}: ") for name in names)


@pytest.mark.parametrize("name", sample(MORE, 5))
def test_a_right_program_is_proved(name):
    found = judge(f"more: {name}")
    assert found["proved"] and not found["errors"], found


def test_nearly_all_are_proved_as_the_results_say():
    judged = {each["name"]: each for each in json.loads(RESULTS.read_text())}
    assert len(judged.keys() & set(programs())) >= 0.95 * len(judged)
    assert sum(each["proved"] for each in judged.values()) >= 0.97 * len(judged)
    assert not [each for each in judged.values() if each["errors"]]
