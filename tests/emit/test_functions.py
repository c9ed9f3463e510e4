"""`tmapipe.math` as instructions: each function on the accumulator of a GEMM."""

from collections import Counter

import pytest

import tmapipe as tp
from tests.sweeps import ALL
from tests.unit.traced import without_statements
from tmapipe.gpu.fragments import GpuFragments
from tmapipe.gpu.isa import GpuIsa

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


#: Functions of other instructions than the others of a group: one kernel adds up their values.
TOGETHER = [
    ("exp", "sqrt", "relu", "minimum"),
    ("tanh", "rsqrt", "maximum", "where", "of numbers"),
    ("sigmoid", "gelu"),
    ("silu", "where, all or none"),
    ("erf", "gelu, erf"),
]


def test_none_is_left_out():
    assert sorted(name for names in TOGETHER for name in names) == sorted(FUNCTIONS)


@pytest.mark.parametrize("names", [(name,) for name in FUNCTIONS] if ALL else TOGETHER)
def test_functions(names):
    """One special-function instruction an element (8 a thread), and no spills."""
    functions, instructions = [FUNCTIONS[name][0] for name in names], Counter()
    for name in names:
        instructions.update(FUNCTIONS[name][1])
    compiled = tp.schedules.Gemm((64, 16, 64), (1, 1), epilogue=lambda acc: sum(f(acc) for f in functions)).compile()
    assert compiled.resources.spill_bytes == 0
    assert {text: compiled.ptx.count(text) for text in instructions} == dict(instructions)


def test_the_gpu_has_each_instruction():
    """But for loops and calls, which the traced program has, and hooks."""
    hooks = {"_joined", "follow", "made"}
    assert without_statements(GpuFragments) <= hooks
    assert without_statements(GpuIsa) <= hooks | {"block", "call", "cells", "loop", "loop_while"}
