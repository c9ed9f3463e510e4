"""Element types, the model's arithmetic with the same bits on every machine, and dimensions whose extents are fixed or
follow from others'."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from tmapipe.errors import InputError, is_count, is_whole, must, optional, shown

# ---- integers --------------------------------------------------------------------------------------------------------
#
# Integer arithmetic, on the host and in traced code.


def ceil_div(a: Any, b: Any) -> Any:
    """a / b rounded up, for non-negative a and positive b, run-time values too."""
    return (a + b - 1) // b


#: Python's operators by name, for operations of numbers and of fragments that backends carry out as they are.
OPERATORS: dict[str, Callable[..., Any]] = {name: getattr(operator, f"__{name}__") for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "abs", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor",
    "invert", "lshift", "rshift",
)}  # fmt: skip


# ---- dtypes ----------------------------------------------------------------------------------------------------------
#
# Element types: one small table that every part of the library reads.
#
# A `DType` knows its size in bytes, its NumPy type (used by the machine model) and the names under which torch, NumPy
# and CuTe DSL know it. Nothing here imports torch or cutlass.


@attrs.frozen(repr=False)
class DType:
    """An element type.

    Args:
        name: The library's name, such as "bf16".
        bytes: How many bytes an element has.
        numpy: The NumPy scalar type in the machine model.
        torch: The name of the type in ``torch``.
        cute: The name of the type in ``cutlass``.
    """

    name: str
    bytes: int
    numpy: Any = attrs.field(eq=False)
    torch: str
    cute: str

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        # A copy would be another object than what `dtype_of` gives, and so give kernels another identity.
        return as_dtype, (self.name,)

    @property
    def integer(self) -> bool:
        return self.name.startswith("int")

    @property
    def kind(self) -> str:
        """The kind of fragments that hold elements of this type: "int32" or "fp32". Raises `InputError` as
        `check_held` does."""
        self.check_held("dtype")
        return "int32" if self.integer else "fp32"

    def check_held(self, where: str, multiplied: bool = False) -> None:
        """Raises `InputError` for fp64, which fragments cannot hold. (Of int64 they hold the lower 32 bits.) *where*: the name
        of what is read or written. *multiplied*: whether a matmul reads it; a matmul does not take int64 either."""
        if self.bytes > 4 and (multiplied or not self.integer):
            rule = "has 64 bits, which only the TMA engine moves and reduces; threads read and write at most 32 bits"
            raise InputError(where, self.name, rule, "store from the slot (source=), or convert the tensor first")

    @property
    def in_memory(self) -> DType:
        """The element type of the tensors from which this type is loaded: fp32 for tf32; the type itself for all others."""
        return _BY_NAME[self.torch]


bf16 = DType("bf16", 2, ml_dtypes.bfloat16, "bfloat16", "BFloat16")
fp16 = DType("fp16", 2, np.float16, "float16", "Float16")
fp32 = DType("fp32", 4, np.float32, "float32", "Float32")
tf32 = DType("tf32", 4, np.float32, "float32", "Float32")  # fp32 rounded to 10 bits after the point, in 4 bytes
fp8_e4m3 = DType("fp8_e4m3", 1, ml_dtypes.float8_e4m3fn, "float8_e4m3fn", "Float8E4M3FN")
fp8_e5m2 = DType("fp8_e5m2", 1, ml_dtypes.float8_e5m2, "float8_e5m2", "Float8E5M2")
int8 = DType("int8", 1, np.int8, "int8", "Int8")
int16 = DType("int16", 2, np.int16, "int16", "Int16")
int32 = DType("int32", 4, np.int32, "int32", "Int32")
int64 = DType("int64", 8, np.int64, "int64", "Int64")
fp64 = DType("fp64", 8, np.float64, "float64", "Float64")

ALL = (bf16, fp16, fp32, tf32, fp8_e4m3, fp8_e5m2, int8, int16, int32, int64, fp64)
_BY_NAME = {d.name: d for d in ALL} | {d.torch: d for d in ALL if d is not tf32}


def as_dtype(value: DType | str) -> DType:
    """The `DType` that *value* names, such as "bf16" or torch's "bfloat16"; a `DType` is returned as it is. Raises
    `InputError` for any other value."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    rule = f"must be one of {', '.join(d.name for d in ALL)}"
    raise InputError("dtype", value, rule, "pass one of these names or a tmapipe.DType")


def optional_dtype(value: DType | str | None) -> DType | None:
    """The `DType` that *value* names; None for None. A converter of attrs fields."""
    return None if value is None else as_dtype(value)


def dtype_of(array: Any, argument: str) -> DType:
    """The `DType` of a torch tensor or NumPy array. Raises `InputError` naming *argument* if it is not supported."""
    name = str(array.dtype).removeprefix("torch.")
    if name in _BY_NAME:
        return _BY_NAME[name]
    rule = f"element type must be one of {', '.join(dict.fromkeys(d.torch for d in ALL))}"
    raise InputError(argument, name, rule, "convert the tensor first")


# ---- arithmetic ------------------------------------------------------------------------------------------------------
#
# The model's arithmetic: the same bits on every machine.
#
# Each result is a fixed sequence of additions, subtractions, multiplications, divisions and square roots of IEEE 754,
# which NumPy rounds alike everywhere, element by element. What a library may order or approximate as it likes is not
# used for results: no BLAS, unless its sums are exact; no `numpy.sum`; no `numpy.exp` and its like.
#
# * Products: of each instruction (32 bytes of k), they are exact in float64 and added in float64 in the order of k;
# their sum is added to the accumulator in float64 and rounded to fp32, to nearest even. Sums of integers are exact. *
# Sums, maxima and minima of rows and columns: `folded`. * Functions: in float64, by the series below, then rounded
# once to fp32. Their relative error before is below 2^-45.
#
# Which of several NaN a result is (its sign and lower bits) is left open.


# ---- products ---------------------------------------------------------------------------------------------------------

#: Bits of the whole numbers of which up to 32 products sum to less than 2^53.
_WHOLE = 24


def products(a: np.ndarray, b: np.ndarray, depth: int) -> np.ndarray:
    """For each instruction, the sums over its k of the products of rows of a and of b: [k / depth, m, n] in float64.

    Args:
        a: [m, k]. The product of any elements of a and b must be exact in float64.
        b: [n, k].
        depth: How many elements of k an instruction takes: at most 32, and a divisor of k.
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
    """For each row, whether all its elements are whole multiples, below 2^24, of one power of 2."""
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
    """*values* [..., n], n > 0, combined along the last axis until one is left: element i with element i + h, where h is half
    of the number of elements, rounded up."""
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
    maximum = np.maximum(x, y)
    return np.where((maximum == 0) & (x == y), x + y, maximum)[()]


def smaller(x: Any, y: Any) -> Any:
    """The smaller of x and y; NaN if either is; -0 of +0 and -0 (PTX ISA, min)."""
    minimum = np.minimum(x, y)
    return np.where((minimum == 0) & (x == y), -(-x + -y), minimum)[()]


# ---- functions --------------------------------------------------------------------------------------------------------

_LN2 = 0.6931471805599453
_LN2_HIGH = 0.693147180369123816490  # 32 bits, so that a small whole number times it is exact
_LN2_LOW = 1.90821492927058770002e-10  # the rest
LOG2_E = 1.4426950408889634
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
            result = np.asarray(function(np.asarray(x, np.float64)))
            return result.astype(kind if kind in (np.float32, np.float64) else np.float32)[()]

    return rounded


def _without_subnormals(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """*function* as instructions with ``.ftz`` compute it: fp32 below 2^-126, given or found, is a zero of its sign."""

    def flushed(x: Any) -> Any:
        return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)[()]

    @functools.wraps(function)
    def computed(x: Any) -> Any:
        return flushed(function(flushed(x))) if np.asarray(x).dtype == np.float32 else function(x)

    return computed


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
    n = np.rint(x * LOG2_E)
    return _power(n, (x - n * _LN2_HIGH) - n * _LN2_LOW)


@_without_subnormals
@_in_float64
def exp(x: Any) -> Any:
    """e^x: 2^n e^r, by the Taylor series of e^r."""
    return np.where(x > 709, np.inf, np.where(x < -709, 0, np.add(*_natural(x))))


@_without_subnormals
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


@_without_subnormals
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


def _of_positive(x: Any, otherwise: Any) -> Any:
    """*otherwise*, a logarithm of x, where x is positive and finite."""
    return np.where(x == 0, -np.inf, np.where(x < 0, np.nan, np.where(np.isinf(x), x, otherwise)))


@_without_subnormals
@_in_float64
def log(x: Any) -> Any:
    """n ln(2) + log(m)."""
    n, rest = _halves(x)
    return _of_positive(x, n * _LN2_HIGH + (n * _LN2_LOW + rest))


@_without_subnormals
@_in_float64
def log2(x: Any) -> Any:
    """n + log(m) / ln(2)."""
    n, rest = _halves(x)
    return _of_positive(x, n + rest * LOG2_E)


@_without_subnormals
def sqrt(x: Any) -> Any:
    """Of IEEE 754."""
    return np.sqrt(x)


@_without_subnormals
def rsqrt(x: Any) -> Any:
    """1 / sqrt(x), each of IEEE 754."""
    return 1 / np.sqrt(x)


@_in_float64
def erf(x: Any) -> Any:
    """The error function: 2 / sqrt(pi) e^(-x^2) times the sum of x (2 x^2)^n / (1 3 5 ... (2 n + 1)), whose terms all have one
    sign."""
    y = np.minimum(np.abs(x), 6)  # 1 - erf(6) < 2^-54
    square, term, total, odd = 2 * y * y, y, y, 1
    while np.any(term > total * 2.0**-60):  # further terms would not change the sum
        odd += 2
        term = term * square / odd
        total = total + term
    return np.copysign(np.minimum(2 / math.sqrt(math.pi) * exp(-y * y) * total, 1), x)


# ---- dim -------------------------------------------------------------------------------------------------------------
#
# Dim: a dimension whose extent is fixed, bounded, or follows from that of another.


_is_dimension = must(lambda name: isinstance(name, str) and name.isidentifier(), "names a dimension", 'e.g. "kb"')
_is_extent = must(optional(is_count), "is a positive extent", "e.g. 3")


@attrs.frozen(repr=False)
class Dim:
    """The extent of a dimension. It is fixed, ``Dim("r", size=3)``; or bounded, ``Dim("n", at_most=1024)``; or it follows from
    the extent of another dimension: that extent ``* times / per``, rounded up, ``+ plus``.

    A schedule lists its `Dim` objects in `relations`. Tensors that do not fit are refused by name. An output that a call
    leaves out can have such a dimension.

    Args:
        name: The dimension's name in stages.
        size: The dimension's extent (elements).
        of: The other dimension, from which the extent follows.
        per: How many elements of *of* there are for one element: ``Dim("kb", of="k", per=128)`` for one scale for each 128
            elements of k.
        times: How many elements there are for each element of *of*: ``Dim("s", of="l", times=4)`` for four parts of each
            matrix.
        plus: How many more elements there are, perhaps a negative number: ``Dim("p", of="h", plus=-2)`` for a convolution
            without padding.
        at_most: The largest extent (elements) for which bodies are right: if rows have to lie in one tile, the tile's extent.
            It can be given alone, or with *of*.

    Raises:
        InputError: For any other value.
    """

    name: str = attrs.field(validator=_is_dimension)
    size: int | None = attrs.field(default=None, kw_only=True, validator=_is_extent)
    of: str | None = attrs.field(default=None, kw_only=True)
    per: int = attrs.field(default=1, kw_only=True, validator=must(is_count, "is a positive number", "e.g. 128"))
    times: int = attrs.field(default=1, kw_only=True, validator=must(is_count, "is a positive number", "e.g. 2"))
    plus: int = attrs.field(default=0, kw_only=True, validator=must(is_whole, "is a whole number", "e.g. -2"))
    at_most: int | None = attrs.field(default=None, kw_only=True, validator=_is_extent)

    def __attrs_post_init__(self) -> None:
        named = isinstance(self.of, str) and self.of.isidentifier() and self.of != self.name
        ways = [self.size is not None, self.of is not None, self.at_most is not None]
        if not any(ways) or (self.size is not None and sum(ways) > 1) or not (self.of is None or named):
            rule = "has either a size, or another dimension that it follows from, or a largest extent"
            raise InputError("Dim(size, of, at_most)", (self.size, self.of, self.at_most), rule, 'e.g. of="k"')

    def extent(self, extents: Mapping[str, int]) -> int | None:
        """This dimension's extent, computed from the *extents* of others; None if they are not known. At least 0."""
        if self.size is not None or self.of is None:
            return self.size
        extent = extents.get(str(self.of))
        return None if extent is None else max(0, ceil_div(extent * self.times, self.per) + self.plus)

    def longest_of(self, extent: int) -> int:
        """The largest extent of *of* for which this dimension's extent is at most *extent*."""
        return max(0, extent - self.plus) * self.per // self.times

    @property
    def formula(self) -> str:
        """How the extent is computed, e.g. ``ceil(k / 128)``, if it is fixed or follows from another extent."""
        text = str(self.size or self.of) + (f" * {self.times}" if self.times > 1 else "")
        text = text if self.per == 1 else f"ceil({text} / {self.per})"
        return text + (f" {'+' if self.plus > 0 else '-'} {abs(self.plus)}" if self.plus else "")

    @property
    def text(self) -> str:
        """What is known of the extent, e.g. ``kb = ceil(k / 128)`` or ``n <= 1024``."""
        known = "" if self.size is None and self.of is None else f" = {self.formula}"
        return self.name + known + ("" if self.at_most is None else f" <= {self.at_most}")

    __repr__ = shown
