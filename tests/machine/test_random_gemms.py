"""The random GEMMs of the GPU suite, small, on the model; see tests/oracle/random_gemms.py."""

import collections

import pytest

from tests.oracle import random_gemms
from tests.sweeps import sample

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")  # infinities are among the inputs


@pytest.mark.parametrize("seed", sample(range(24), 3))
def test_random_gemm(seed):
    random_gemms.run(random_gemms.draw(seed, most=150, deepest=300), "cpu")


def test_the_draw_covers_the_options():
    cases = [random_gemms.draw(seed) for seed in range(200)]
    kinds = collections.Counter(case.name.split()[0] for case in cases)
    assert set(kinds) == {"Gemm", "PingPong", "SplitK", "StreamK", "GatedGemm"} and min(kinds.values()) >= 5
    assert sum(bool(case.operands) for case in cases) > 20 and sum(case.outputs == 2 for case in cases) > 10
    assert sum(case.outputs == 3 for case in cases) > 5
    assert sum(case.batch > 1 for case in cases) > 30 and sum(case.special for case in cases) == 20
    assert {case.majors for case in cases} == {("k", "k"), ("k", "n"), ("m", "k"), ("m", "n")}
    assert {case.types[0] for case in cases} == {"bf16", "fp16", "fp8_e4m3", "fp8_e5m2"}
