"""The programs that compute with values, compiled for sm_90a: none spills."""

import pytest

from tests.programs import PROGRAMS
from tests.sweeps import sample


@pytest.mark.parametrize("name", sample(PROGRAMS, 2))
def test_compiles_without_a_spill(name):
    assert PROGRAMS[name].make().compile(arch="sm_90a").resources.spill_bytes == 0
