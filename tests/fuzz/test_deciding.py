"""A few schedules of `tests.fuzz.deciding`, and what the file of results says of many."""

import json

import pytest

from tests.fuzz.deciding import RESULTS, draw, judge
from tests.sweeps import sample


@pytest.mark.parametrize("seed", sample(range(24), 6, first=1))
def test_verdicts_agree_with_single_runs(seed):
    judged = judge(seed)
    assert judged["agrees"], judged


def test_iterations_in_which_nobody_goes_on_come_to_an_end():
    assert judge(10001630)["verdict"] == "error"  # where one role waits, the other one's loop may do nothing for ever


def test_iterations_taken_one_by_one_come_to_an_end():
    assert (
        judge(10005074)["verdict"] == "error"
    )  # each role waits for an iteration of the other, of as many as there are clusters


def test_schedules_decide_on_what_varies_and_half_of_them_are_wrong():
    drawn = [draw(seed) for seed in range(300)]
    assert sum(each.deciding for each in drawn) > 180
    assert 120 < sum(bool(each.slip) for each in drawn) < 180


def test_no_disagreement_was_found():
    found = json.loads(RESULTS.read_text())
    schedules, verdicts = found["schedules"], found["verdicts"]
    assert schedules >= 20_000 and not found["disagreements"]
    assert found["decide on something that varies in two roles"] >= 0.6 * schedules
    assert sum(verdicts.get(f"{slip}: up to", 0) for slip in ("slip", "no slip")) <= 0.02 * schedules
