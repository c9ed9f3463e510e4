"""GEMMs of 8-bit operands on the model, beside float64."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import tmapipe as tp
from tests.sweeps import sample

S = tp.schedules
TYPES = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
SCHEDULES = {
    "cooperative": lambda: S.Gemm((128, 64, 128), (2, 1)),
    "three warpgroups": lambda: S.Gemm((192, 64, 64), (1, 1)),
    "promoted": lambda: S.Gemm((64, 64, 128), (1, 2), mainloop=tp.mainloop.Cooperative(promote=True)),
    "ping-pong, promoted": lambda: S.PingPong((64, 96, 128), (1, 1), promote=True),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    "types", sample(itertools.product(TYPES, TYPES), 2, first=1), ids=lambda pair: "-".join(t.__name__ for t in pair)
)
def test_products_of_8_bits(name, types):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 336)).astype(kind) for rows, kind in zip((150, 200), types, strict=True))
    out = np.full((150, 200), np.nan, np.float32)
    SCHEDULES[name]()(a, b, out=out)
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-4, atol=1e-3)


def test_a_new_output_is_bf16():
    a = np.ones((64, 64), ml_dtypes.float8_e4m3fn)
    assert S.Gemm((64, 64, 64), (1, 1))(a, a).dtype == ml_dtypes.bfloat16
