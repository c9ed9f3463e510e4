"""`tmapipe.math` as instructions: each function on the accumulator of a GEMM."""

import pytest

import tmapipe as tp

F = tp.math
FUNCTIONS = {
    "exp": (F.exp, {"ex2.approx": 8}),
    "tanh": (F.tanh, {"tanh.approx": 8}),
    "erf": (F.erf, {}),
    "sqrt": (F.sqrt, {"\tsqrt.approx": 8}),
    "rsqrt": (F.rsqrt, {"rsqrt.approx": 8}),
    "sigmoid": (F.sigmoid, {"ex2.approx": 8, "rcp.approx": 8}),
    "relu": (F.relu, {"max.NaN.f32": 8}),
    "silu": (F.silu, {"ex2.approx": 8, "rcp.approx": 8}),
    "gelu": (F.gelu, {"tanh.approx": 8, "ex2.approx": 0}),
    "gelu, erf": (lambda x: F.gelu(x, "none"), {"tanh.approx": 0}),
    "maximum": (lambda x: F.maximum(2.0, x), {"max.NaN.f32": 8}),
    "minimum": (lambda x: F.minimum(x * x, x), {"min.NaN.f32": 8}),
    "where": (lambda x: F.where(x > 0.0, x, 0.1 * x), {}),
    "where, all or none": (lambda x: F.where(True, x, 0.0), {}),
    "of numbers": (lambda x: x * F.exp(0.5) + F.maximum(F.gelu(1.0), 0.1), {"ex2.approx": 0, "max.NaN.f32": 0}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    """One special-function instruction an element (8 a thread), and no spills."""
    epilogue, instructions = FUNCTIONS[name]
    compiled = tp.schedules.Gemm((64, 16, 64), (1, 1), epilogue=epilogue).compile()
    assert compiled.resources.spill_bytes == 0
    assert {text: compiled.ptx.count(text) for text in instructions} == instructions
