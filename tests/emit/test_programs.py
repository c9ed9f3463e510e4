"""The programs that compute with values, compiled for sm_90a: none spills."""

import pytest

from tests.programs import PROGRAMS
from tests.sweeps import ALL


@pytest.mark.parametrize("name", [name for name in PROGRAMS if ALL or "attention of 64" not in name])
def test_compiles_without_a_spill(name):
    assert PROGRAMS[name].make().compile(arch="sm_90a").resources.spill_bytes == 0
