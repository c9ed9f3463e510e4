"""The linear check and the exhaustive oracle agree on random small programs, right and wrong ones."""

import pytest

from tests.oracle.agreement import compare
from tests.oracle.random_programs import draw


@pytest.mark.parametrize("block", range(8))
def test_verdicts_agree(block):
    wrong = 0
    for seed in range(50 * block, 50 * block + 50):
        program = draw(seed)
        verdicts = compare(program)
        assert verdicts.decided, program.text
        assert verdicts.agree, f"seed {seed}: {program.text}: {verdicts}"
        wrong += bool(verdicts.exhaustive)
    assert 0 < wrong < 50
