"""The model's arithmetic: what its docstrings state, and the same bits on every machine."""

import ast
import importlib
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tmapipe
import tmapipe as tp
from tests.oracle.arithmetic import STATED, Bytes, digest
from tmapipe.base import arithmetic
from tmapipe.base.arithmetic import bf16, fp8_e4m3, fp8_e5m2, fp16, tf32
from tmapipe.model import elements, memory
from tmapipe.model.elements import lines_of
from tmapipe.plan.thread_layout import VectorLayout

FUNCTIONS = {
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "log": math.log,
    "log2": math.log2,
}


@pytest.mark.parametrize("count", [100])
def test_the_bits_are_the_stated_ones(count):
    """`python -m tests.oracle.arithmetic` has more of them, under the settings of the libraries."""
    assert digest(count) == STATED[count]


@pytest.mark.parametrize("dtype, spread", [(bf16, 60), (fp16, 60), (tf32, 60), (tf32, 1)])
def test_products_are_added_in_the_order_of_k(dtype, spread):
    """Also of rows whose partial sums are not exact, and where only some are."""
    source = Bytes(f"{dtype.name} {spread}")
    depth = 32 // dtype.bytes
    a, b = (source.among(dtype, (rows, 3 * depth)) for rows in (5, 7))
    a[:, ::3] *= np.where(np.arange(depth) % 2, 1, 2.0**-spread)
    held = np.zeros((5, 7), np.float32)
    arithmetic.accumulate(held, arithmetic.products(a, b, depth))
    for i, row in enumerate(a.tolist()):
        for j, column in enumerate(b.tolist()):
            whole = np.float32(0)
            for first in range(0, 3 * depth, depth):
                total = 0.0
                for x, y in zip(row[first : first + depth], column[first : first + depth], strict=True):
                    total += x * y
                with np.errstate(all="ignore"):
                    whole = np.float32(float(whole) + total)
            assert held[i, j] == whole or np.isnan([held[i, j], whole]).all()


def test_sums_that_an_order_would_show_are_not_left_to_blas():
    one, tiny = np.ones((1, 16)), np.full((1, 16), 2.0**-53)
    tiny[0, 0] = 1.0  # 1 + 2^-53 is 1, so in the order of k nothing is added to it
    assert arithmetic.products(tiny, one, 16) == 1.0
    assert arithmetic.products(tiny[:, ::-1], one, 16) == 1 + 15 * 2.0**-53
    assert not arithmetic.few_bits(tiny).any() and arithmetic.few_bits(one).all()
    assert arithmetic.few_bits(np.array([[0.0, 0.0], [2.0**-23, 1.0], [-(2.0**-24), 1.0]])).tolist() == [1, 1, 0]
    with np.errstate(invalid="ignore"):
        assert not arithmetic.few_bits(np.array([[np.inf, 1.0], [np.nan, 1.0]])).any()


def cut(x, largest, bits):
    """x in units of 2^-bits of the exponent of the *largest*, cut off."""
    unit = 2.0 ** (math.frexp(largest)[1] - 1 - bits)
    return np.trunc(x / unit) * unit


@pytest.mark.parametrize("dtype, bits", [(bf16, 25), (fp16, 25), (tf32, 25), (fp8_e4m3, 13), (fp8_e5m2, 13)])
def test_the_stated_distance_from_a_gpu(dtype, bits):
    """Of sums as Hopper's tensor cores have been found to make them (Xie et al., 2025), by docs/internals/arithmetic.md."""
    source, depth = Bytes(f"gpu {dtype.name}"), 32 // dtype.bytes
    apart = 0
    for _ in range(200):
        a, b, held = (source.among(kind, (1, size)) for kind, size in ((dtype, depth), (dtype, depth), (tf32, 1)))
        a, b, held = (np.where(np.abs(x) < 1e4, x, 1) for x in (a, b, held))
        terms = np.append(a * b, held)
        largest = np.abs(terms).max()
        total = cut(terms, largest, bits).sum()
        on_gpu = cut(total, total, min(bits, 23))
        values = held.astype(np.float32)
        arithmetic.accumulate(values, arithmetic.products(a, b, depth))
        distance = (depth + 1) * 2.0**-bits * largest
        distance += (2.0 ** -min(bits, 23) + 2.0**-24) * abs(values[0, 0])
        assert abs(on_gpu - values[0, 0]) <= distance
        apart += on_gpu != values[0, 0]
    assert apart > 20


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40))
def test_the_order_of_a_sum(values):
    def folded(values):
        half = (len(values) + 1) // 2
        if len(values) == 1:
            return values[0]
        return folded([x + y for x, y in zip(values, values[half:], strict=False)] + values[len(values) - half : half])

    array = np.array(values, np.float32)
    assert arithmetic.total(array) == folded(list(array)) and arithmetic.total(array[:0]) == 0
    assert arithmetic.folded(arithmetic.larger, array) == max(values)


def test_zeros_have_signs():
    zeros = np.array([0.0, -0.0, 0.0, -0.0], np.float32), np.array([0.0, 0.0, -0.0, -0.0], np.float32)
    assert np.signbit(arithmetic.larger(*zeros)).tolist() == [False, False, False, True]
    assert np.signbit(arithmetic.smaller(*zeros)).tolist() == [False, True, True, True]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_rounded_once(name):
    """Against the C library in float64: within 2^-45. In fp32, that rounded, or of subnormal numbers that of zeros."""
    source = Bytes(name)
    any_bits = source.words(3000).view(np.float32)
    any_bits = any_bits[np.isfinite(any_bits)].astype(np.float64)
    x = np.concatenate([source.among(tf32, (1, 3000))[0] * 8, any_bits])
    x = x[np.isfinite(x)]
    if name.startswith("log"):
        x = np.abs(x[x != 0])
    x = x[np.abs(x) < 700]
    wanted = np.array([FUNCTIONS[name](value) for value in x.tolist()])
    found = getattr(arithmetic, name)(x)
    normal = np.abs(wanted) > 1e-300
    assert (np.abs(found - wanted)[normal] <= 2.0**-45 * np.abs(wanted)[normal]).all()
    narrow = getattr(arithmetic, name)(x.astype(np.float32))
    zeros = name not in ("tanh", "erf")
    with np.errstate(all="ignore"):
        given = x.astype(np.float32).astype(np.float64)
        given = np.where(zeros & (np.abs(given) < 2.0**-126), np.copysign(0, given), given)
        once = getattr(arithmetic, name)(given).astype(np.float32)
        once = np.where(zeros & (np.abs(once) < 2.0**-126), np.float32(0), once)
    assert narrow.dtype == np.float32 and np.array_equal(narrow, once)


def test_functions_of_what_is_not_finite():
    with np.errstate(all="raise"):
        x = np.array([np.nan, np.inf, -np.inf, -1.0, 0.0], np.float32)
        assert np.array_equal(arithmetic.exp(x)[:3], [np.nan, np.inf, 0], equal_nan=True)
        assert np.array_equal(arithmetic.exp2(x), [np.nan, np.inf, 0, 0.5, 1], equal_nan=True)
        assert np.array_equal(arithmetic.log2(x), [np.nan, np.inf, np.nan, np.nan, -np.inf], equal_nan=True)
        assert np.array_equal(arithmetic.tanh(x)[:3], [np.nan, 1, -1], equal_nan=True)
        assert np.array_equal(arithmetic.erf(x)[:3], [np.nan, 1, -1], equal_nan=True)


def test_rows_of_which_a_warp_has_different_numbers_of_elements():
    lines = lines_of(VectorLayout((8, 24), 2, 3, 0, 1), 0, "rows")  # 32 vectors of rows of 12
    assert [(rows.tolist(), places.tolist()) for rows, places in lines] == [
        ([2], [list(range(48, 64))]),
        ([0, 1], [list(range(24)), list(range(24, 48))]),
    ]


FOREIGN = {"dot", "matmul", "einsum", "sum", "reduce", "exp", "exp2", "log", "log2", "log1p", "expm1", "tanh", "mean",
           "inner", "vdot", "tensordot", "erf", "power", "logaddexp", "sin", "cos"}  # fmt: skip


def test_only_the_plugin_gives_the_model_another_arithmetic(request):
    importlib.import_module("tests.oracle.other_arithmetic")
    asked_for = request.config.pluginmanager.hasplugin("tests.oracle.other_arithmetic")
    used = (
        memory.accumulate,
        elements.REDUCTIONS["sum"],
        *(elements.FUNCTIONS[name] for name in elements.OF_ARITHMETIC),
    )
    own = (arithmetic.accumulate, arithmetic.total, *(getattr(arithmetic, name) for name in elements.OF_ARITHMETIC))
    assert asked_for == (used != own)


def test_results_come_from_no_other_arithmetic():
    """The model, the functions and the epilogues call none whose bits a library or a machine chooses."""
    root = Path(tmapipe.__file__).parent
    files = [
        *root.glob("model/*.py"),
        *root.glob("epilogue/*.py"),
        *root.glob("isa/*.py"),
        *root.glob("protocol/*.py"),
    ]
    found = []
    for path in [*files, root / "math.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            foreign = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = ast.unparse(node.func.value)
                foreign |= node.func.attr in FOREIGN and of.partition(".")[0] in ("np", "numpy", "math")
                foreign |= node.func.attr in ("sum", "dot", "mean")
            if foreign:
                found.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
    assert not found, "\n".join(found)


def test_tests_that_compare_bits_are_listed():
    """In docs/internals/arithmetic.md, with the reason why they may."""
    tests = Path(__file__).parents[1]
    page = (tests.parent / "docs/internals/arithmetic.md").read_text().partition("## Tests that compare bits")[2]
    compare = re.compile(r"array_equal|torch\.equal|\.tobytes\(|== .*\)\.all\(\)")
    found = {
        str(path.relative_to(tests).with_suffix(""))
        for path in tests.rglob("test_*.py")
        if "gpu" not in path.parts and compare.search(path.read_text())
    }
    assert set(re.findall(r"`(\w+/test_\w+)`", page)) == found


def test_a_product_does_not_depend_on_the_tile():
    source = Bytes("tiles")
    a, b = (source.among(fp16, (rows, 160)).astype(np.float16) for rows in (72, 88))
    results = [
        tp.schedules.Gemm(tile, (1, 1), epilogue=tp.epilogue.Epilogue(dtype="fp32"))(x, y)
        for tile, x, y in (((64, 64, 64), a, b), ((128, 32, 32), a, b), ((64, 128, 16), b, a))
    ]
    assert np.isfinite(results[0]).all() and len({x.tobytes() for x in (*results[:2], results[2].T.copy())}) == 1
