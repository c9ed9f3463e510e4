"""Combinations of operands, mainloops, epilogues and orders compile for sm_90a, and spill nothing."""

import pytest

from tests.machine.test_combinations import SAFE
from tests.sweeps import sample


@pytest.mark.parametrize("name", sample(SAFE, 7))
def test_spills_nothing(name):
    assert SAFE[name]().compile().resources.spill_bytes == 0
