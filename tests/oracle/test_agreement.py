"""The linear check and the exhaustive oracle agree on random small programs, right and wrong ones."""

import pytest

from tests.oracle.agreement import compare
from tests.oracle.random_programs import COPIES, draw
from tests.sweeps import sample


@pytest.mark.parametrize("first", sample([*range(0, 400, 50), COPIES, COPIES + 50], 2))
def test_verdicts_agree(first):
    wrong = 0
    for seed in range(first, first + 50):
        program = draw(seed)
        verdicts = compare(program)
        assert verdicts.decided, program.text
        assert verdicts.agree, f"seed {seed}: {program.text}: {verdicts}"
        wrong += bool(verdicts.exhaustive)
    assert 0 < wrong < 50
