"""200 random shapes and option combinations on the device, against float64; see tests/oracle/random_gemms.py."""

import pytest

from tests.oracle import random_gemms


@pytest.mark.parametrize("seed", range(200))
def test_random_gemm(seed):
    case = random_gemms.draw(seed)
    random_gemms.run(case, "cuda")
