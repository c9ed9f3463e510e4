"""A short run of `tests.fuzz.outputs`."""

from __future__ import annotations

import pytest

from tests.fuzz.outputs import judge

RIGHT, WRONG_ONCE = (2, 10), (44, 55)  # seeds: of which the check claims something; of which it once claimed too much


@pytest.mark.parametrize("seed", [*RIGHT, *WRONG_ONCE])
def test_what_is_claimed_of_outputs_holds(seed):
    claim, wrong = judge(seed)
    assert not wrong, f"{claim}: {wrong}"
    assert seed not in RIGHT or claim.startswith("whole")
