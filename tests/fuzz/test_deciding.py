"""A few schedules of `tests.fuzz.deciding`."""

import pytest

from tests.fuzz.deciding import draw, judge


@pytest.mark.parametrize("seed", range(24))
def test_verdicts_agree_with_single_runs(seed):
    judged = judge(seed)
    assert judged["agrees"], judged


def test_schedules_decide_on_what_varies_and_half_of_them_are_wrong():
    drawn = [draw(seed) for seed in range(300)]
    assert sum(each.deciding for each in drawn) > 180
    assert 120 < sum(bool(each.slip) for each in drawn) < 180
