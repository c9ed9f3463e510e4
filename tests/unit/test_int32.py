"""Numbers of a traced program have 32 bits: what is folded, and what a reader computes, wraps around as the hardware does."""

import itertools
import operator

import numpy as np
import pytest

import tmapipe as tp
from tests.unit.traced import evaluate
from tmapipe.program.expressions import FOLD, Expr, Var

EDGES = (-(2**31), -(2**31) + 1, -65537, -7, -1, 0, 1, 2, 7, 65536, 2**31 - 2, 2**31 - 1)
WRAPPING = ("add", "sub", "mul", "and", "or", "xor", "lt", "le", "gt", "ge", "eq", "ne", "min", "max")
NUMPY = {"min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def by_numpy(name, a, b):
    with np.errstate(all="ignore"):
        return NUMPY.get(name, getattr(operator, name, None))(np.int32(a), np.int32(b))


def read(name, *values):
    """What a reader computes: of variables, whose values it is told."""
    variables = [Var(f"v{i}") for i in range(len(values))]
    return evaluate(Expr.of(name, *variables), dict(zip(variables, values, strict=True)))


@pytest.mark.parametrize("name", WRAPPING)
def test_edges(name):
    for a, b in itertools.product(EDGES, EDGES):
        want = by_numpy(name, a, b)
        for found in (Expr.of(name, a, b), read(name, a, b)):
            assert found == want and type(found) is (bool if isinstance(want, np.bool_) else int), (a, b, found)


@pytest.mark.parametrize("a", EDGES)
def test_divisions_round_down(a):
    for b in EDGES:
        if b == 0:
            with pytest.raises(ZeroDivisionError):
                read("floordiv", a, b)
            continue
        quotient, rest = read("floordiv", a, b), read("mod", a, b)
        assert (quotient, rest) == (Expr.of("floordiv", a, b), Expr.of("mod", a, b))
        assert rest == a % b and quotient == (a // b if (a, b) != (-(2**31), -1) else -(2**31))


def test_negation_and_magnitude_of_the_least_number():
    least, x = -(2**31), Var("x")
    assert evaluate(-x, {x: least}) == evaluate(abs(x), {x: least}) == Expr.of("abs", least) == least


def test_shifts():
    assert (
        read("lshift", 1, 31) == -(2**31) and read("rshift", -(2**31), 31) == -1 and read("lshift", 3, 31) == -(2**31)
    )
    for by in (-1, 32):
        with pytest.raises(tp.errors.ScopeError, match="shift it by 0 to 31"):
            read("lshift", 1, by)


def test_sums_of_constants_wrap_as_sums_of_numbers():
    x = Var("x")
    for a, b, value in itertools.product(EDGES, EDGES, EDGES):
        with np.errstate(all="ignore"):
            assert evaluate((x + a) - b, {x: value}) == np.int32(value) + np.int32(a) - np.int32(b)
            assert evaluate((x - a) + b, {x: value}) == np.int32(value) - np.int32(a) + np.int32(b)


def test_longer_constants_are_refused():
    x = Var("x")
    for way in (lambda: x + 2**31, lambda: 2**31 > x, lambda: x * -(2**31 + 1)):  # noqa: SIM300
        with pytest.raises(tp.errors.ScopeError, match="32 bits"):
            way()
    assert FOLD["add"](2**31 - 1, 1) == -(2**31)


def test_conditions_stay_numbers_of_python():
    x = Var("x")
    for value in (0, 5):
        flag = value > 2
        for made, want in (
            ((x > 2) + 0, flag + 0),
            ((x > 2) * 1, flag * 1),
            (~(x > 2), -1 - flag),
            ((x > 2) & (x < 9), flag and value < 9),
        ):
            assert evaluate(made, {x: value}) == want


@pytest.mark.parametrize("way", [lambda x: x / 2, lambda x: 2 / x, lambda x: x + 0.5, lambda x: x.bit_length()])
def test_what_is_no_arithmetic_of_whole_numbers_is_refused(way):
    with pytest.raises(tp.errors.ScopeError, match="only the kernel knows"):
        way(Var("x"))
