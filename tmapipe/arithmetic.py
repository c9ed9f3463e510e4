"""The model's arithmetic: the same bits on every machine.

Each result is a fixed sequence of additions, subtractions, multiplications, divisions and square roots of IEEE 754, which
NumPy rounds alike everywhere, element by element. What a library may order or approximate as it likes is not used for
results: no BLAS, unless its sums are exact; no `numpy.sum`; no `numpy.exp` and its like.

* Products: of each instruction (32 bytes of k), they are exact in float64 and added in float64 in the order of k; their sum is
  added to the accumulator in float64 and rounded to fp32, to nearest even. Sums of integers are exact.
* Sums, maxima and minima of rows and columns: `folded`.
* Functions: in float64, by the series below, then rounded once to fp32. Their relative error before is below 2^-45.

Which of several NaN a result is (its sign and lower bits) is left open.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = [
    "accumulate",
    "erf",
    "exp",
    "exp2",
    "folded",
    "larger",
    "log",
    "log2",
    "products",
    "sigmoid",
    "smaller",
    "tanh",
    "total",
]

# ---- products ---------------------------------------------------------------------------------------------------------

#: Bits of the whole numbers of which up to 32 products sum to less than 2^53.
_WHOLE = 24


def products(a: np.ndarray, b: np.ndarray, depth: int) -> np.ndarray:
    """For each instruction, the sums over its k of the products of rows of a and of b: [k / depth, m, n] in float64.

    Args:
        a: [m, k]; of each two elements of a and b, the product is exact in float64.
        b: [n, k].
        depth: Elements of k that an instruction takes, at most 32; divides k.
    """
    with np.errstate(all="ignore"):
        a, b = (np.ascontiguousarray(x, np.float64) for x in (a, b))
        left, right = (x.reshape(len(x), x.shape[1] // depth, depth).transpose(1, 0, 2) for x in (a, b))
        sums = np.matmul(left, right.transpose(0, 2, 1))
        # Of rows that are whole numbers times some power of 2, every partial sum is exact, so the order does not matter.
        rows, columns = (np.flatnonzero(~few_bits(x)) for x in (a, b))
        sums[:, rows] = _in_order(left[:, rows], right)
        sums[:, :, columns] = _in_order(left, right[:, columns])
    return sums


def accumulate(held: np.ndarray, sums: np.ndarray) -> None:
    """Adds *sums* of instructions [i, ...], as `products` gives them, one after the other to *held*: in float64, rounded to
    fp32; to int32 saturating, as ``.satfinite`` does."""
    with np.errstate(all="ignore"):
        for each in sums:
            if held.dtype == np.int32:
                held[...] = np.clip(held + each, -(2**31), 2**31 - 1)
            else:
                np.add(held, each, out=held, casting="same_kind")


def few_bits(x: np.ndarray) -> np.ndarray:
    """Of each row, whether all elements are whole multiples, below 2^24, of one power of 2."""
    _, exponent = np.frexp(np.abs(x).max(1, initial=0))
    scaled = x * np.ldexp(1.0, _WHOLE - exponent)[:, None]
    return (scaled - np.rint(scaled) == 0).all(1)  # neither infinite nor NaN, of which the difference is NaN


def _in_order(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """[k / depth, m, n]: the products of [k / depth, m, depth] and [k / depth, n, depth], added in the order of k."""
    sums = np.zeros((len(left), left.shape[1], right.shape[1]))
    if sums.size:
        for i in range(left.shape[2]):
            sums += left[:, :, None, i] * right[:, None, :, i]
    return sums


# ---- reductions -------------------------------------------------------------------------------------------------------


def folded(combine: Callable[[Any, Any], Any], values: np.ndarray) -> np.ndarray:
    """*values* [..., n], n > 0, combined along the last axis: element i with element i + h, where h is half of them, rounded
    up, until one is left."""
    while (size := values.shape[-1]) > 1:
        half = (size + 1) // 2
        kept = values[..., :half].copy()
        kept[..., : size - half] = combine(kept[..., : size - half], values[..., half:])
        values = kept
    return values[..., 0]


def total(values: np.ndarray) -> np.ndarray:
    """The sums of *values* along the last axis, `folded`; 0 of none."""
    return folded(np.add, values) if values.shape[-1] else np.zeros(values.shape[:-1], values.dtype)


def larger(x: Any, y: Any) -> Any:
    """The larger of x and y; NaN if either is; +0 of +0 and -0 (PTX ISA, max), which NumPy leaves to the machine."""
    found = np.maximum(x, y)
    return np.where((found == 0) & (x == y), x + y, found)[()]


def smaller(x: Any, y: Any) -> Any:
    """The smaller of x and y; NaN if either is; -0 of +0 and -0 (PTX ISA, min)."""
    found = np.minimum(x, y)
    return np.where((found == 0) & (x == y), -(-x + -y), found)[()]


# ---- functions --------------------------------------------------------------------------------------------------------

_LN2 = 0.6931471805599453
_LN2_HIGH = 0.693147180369123816490  # 32 bits, so that a small whole number times it is exact
_LN2_LOW = 1.90821492927058770002e-10  # the rest
_LOG2_E = 1.4426950408889634
#: 1/1!, 1/2!, ... and 1, 1/3, 1/5, ...: the coefficients, highest first, which suffice for |r| <= ln(2) / 2 and for m in
#: [sqrt(1/2), sqrt(2)).
_OF_EXP = [1 / math.factorial(i) for i in range(14, 0, -1)]
_OF_LOG = [1 / i for i in range(23, 0, -2)]


def _in_float64(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Computes *function* in float64 and rounds once, to the floating type of x, or to fp32."""

    @functools.wraps(function)
    def rounded(x: Any) -> Any:
        kind = np.asarray(x).dtype
        with np.errstate(all="ignore"):
            found = np.asarray(function(np.asarray(x, np.float64)))
            return found.astype(kind if kind in (np.float32, np.float64) else np.float32)[()]

    return rounded


def _horner(coefficients: list[float], x: Any) -> Any:
    total = coefficients[0] * x + coefficients[1]
    for each in coefficients[2:]:
        total = total * x + each
    return total


def _power(n: Any, r: Any) -> tuple[Any, Any]:
    """(2^n, 2^n e^r - 2^n) for whole n and |r| <= ln(2) / 2."""
    n = np.where(np.isnan(n), 0, n).astype(np.int32)
    return np.ldexp(1.0, n), np.ldexp(r * _horner(_OF_EXP, r), n)


def _natural(x: Any) -> tuple[Any, Any]:
    """(2^n, e^x - 2^n), where n is x log2(e) to nearest."""
    x = np.clip(x, -709, 709)
    n = np.rint(x * _LOG2_E)
    return _power(n, (x - n * _LN2_HIGH) - n * _LN2_LOW)


@_in_float64
def exp(x: Any) -> Any:
    """e^x: 2^n e^r, by the Taylor series of e^r."""
    return np.where(x > 709, np.inf, np.where(x < -709, 0, np.add(*_natural(x))))


@_in_float64
def exp2(x: Any) -> Any:
    """2^x: 2^n e^r, by the Taylor series of e^r."""
    inside = np.clip(x, -1000, 1000)
    n = np.rint(inside)
    return np.where(x > 1000, np.inf, np.where(x < -1000, 0, np.add(*_power(n, (inside - n) * _LN2))))


@_in_float64
def tanh(x: Any) -> Any:
    """-(e^y - 1) / (e^y - 1 + 2) with y = -2 |x|."""
    power, rest = _natural(-2 * np.abs(x))
    less = (power - 1) + rest
    return np.copysign(-less / (less + 2), x)


@_in_float64
def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x); of negative x, e^x / (1 + e^x)."""
    e = exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _halves(x: Any) -> tuple[Any, Any]:
    """(n, log m) with x = 2^n m and m in [sqrt(1/2), sqrt(2)): 2 artanh(s) with s = (m - 1) / (m + 1), by its series."""
    m, n = np.frexp(x)
    low = m < math.sqrt(0.5)
    m, n = np.where(low, 2 * m, m), n - low
    s = (m - 1) / (m + 1)
    return n, 2 * s * _horner(_OF_LOG, s * s)


def _of_positive(x: Any, found: Any) -> Any:
    """*found*, a logarithm of x, where x is positive and finite."""
    return np.where(x == 0, -np.inf, np.where(x < 0, np.nan, np.where(np.isinf(x), x, found)))


@_in_float64
def log(x: Any) -> Any:
    """n ln(2) + log(m)."""
    n, rest = _halves(x)
    return _of_positive(x, n * _LN2_HIGH + (n * _LN2_LOW + rest))


@_in_float64
def log2(x: Any) -> Any:
    """n + log(m) / ln(2)."""
    n, rest = _halves(x)
    return _of_positive(x, n + rest * _LOG2_E)


@_in_float64
def erf(x: Any) -> Any:
    """2 / sqrt(pi) e^(-x^2) times the sum of x (2 x^2)^n / (1 3 5 ... (2 n + 1)), whose terms are all of one sign."""
    y = np.minimum(np.abs(x), 6)  # 1 - erf(6) < 2^-54
    square, term, total, odd = 2 * y * y, y, y, 1
    while np.any(term > total * 2.0**-60):  # further terms would not change the sum
        odd += 2
        term = term * square / odd
        total = total + term
    return np.copysign(np.minimum(2 / math.sqrt(math.pi) * exp(-y * y) * total, 1), x)
