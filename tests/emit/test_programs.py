"""The programs that compute with values, compiled for sm_90a: none spills."""

import pytest

from tests.programs import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiles_without_a_spill(name):
    assert PROGRAMS[name].make().compile(arch="sm_90a").resources.spill_bytes == 0
