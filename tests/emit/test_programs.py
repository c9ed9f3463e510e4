"""The programs that compute with values, compiled for sm_90a: none spills."""

import pytest

from tests.programs import PROGRAMS
from tests.sweeps import ALL

#: Compiled by the same lines, to the same forms of instructions, as the others: for the whole sweep alone.
ALIKE = {
    "softmax of short rows",
    "softmax of long rows",
    "softmax over CTAs",
    "softmax of rows of 2048",
    "rmsnorm",
    "rmsnorm over CTAs",
    "row_sums over CTAs",
    "histogram",
    "ragged",
    "gemm_row_max",
    "mlp",
    "conv",
    "conv of several images",
    "stencil",
    "row_sums",
    "transpose fp32",
    "dequant_gemm of int8",
    "rmsnorm of rows of 1024",
    "rmsnorm, a few rows a cluster",
    "attention",
    "attention, causal",
    "attention of 64",
}


@pytest.mark.parametrize("name", [name for name in PROGRAMS if ALL or name not in ALIKE])
def test_compiles_without_a_spill(name):
    assert PROGRAMS[name].make().compile(arch="sm_90a").resources.spill_bytes == 0
