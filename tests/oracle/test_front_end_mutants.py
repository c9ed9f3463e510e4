"""Every mistake of a front end is found by the judge, on drawn bodies."""

import pytest

from tests.oracle.front_end_mutants import MUTANTS, found_by
from tests.sweeps import sample


@pytest.mark.parametrize("mutant", sample(MUTANTS, 12), ids=lambda mutant: mutant.what)
def test_the_judge_finds_it(mutant):
    assert found_by(mutant) is not None
