"""Functions of fragments, for epilogues and role bodies. They mean the same in both backends.

An argument is a number or a fragment (what ``slot.x.read()`` and ``acc.values()`` give, and what an epilogue is called with).
Results are fp32, but of integers where it says so. The CPU backend computes in float64 and rounds once, alike on every machine
(docs/internals/arithmetic.md). The GPU backend uses the special-function unit: ``ex2.approx``, ``lg2.approx``,
``rsqrt.approx``, ``sqrt.approx`` and ``rcp.approx`` have relative errors of some 2^-22 (`exp` of large numbers more:
|x| * 2^-24; `log` near 1 an absolute one), and ``tanh.approx`` of 2^-11 (PTX ISA), which is below the rounding of bf16.
In both backends `exp`, `exp2`, `log`, `log2`, `sqrt`, `rsqrt` and `sigmoid` take subnormal numbers (below 2^-126) for zeros,
and give zeros in their place: `log` of 1e-40 is minus infinity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tmapipe.base.arithmetic import DType, as_dtype
from tmapipe.errors import InputError, require
from tmapipe.isa.fragment import Fragment, combine
from tmapipe.model import elements

__all__ = [
    "abs", "cast", "column_max", "column_min", "column_sum", "erf", "exp", "exp2", "floor", "from_bits", "gelu",
    "join_pairs", "log", "log2", "maximum", "minimum", "relu", "row_cumsum", "row_logsumexp", "row_max",
    "row_min", "row_sum", "row_sums", "rsqrt", "sigmoid", "silu", "split_pairs", "sqrt", "swap_pairs", "tanh", "where",
]  # fmt: skip


def exp(x: Any) -> Any:
    """e^x."""
    return _apply("exp", x)


def exp2(x: Any) -> Any:
    """2^x: one instruction, where `exp` takes two."""
    return _apply("exp2", x)


def log(x: Any) -> Any:
    """Natural logarithm of x; minus infinity at 0, NaN below."""
    return _apply("log", x)


def log2(x: Any) -> Any:
    """Logarithm of x to base 2; minus infinity at 0, NaN below."""
    return _apply("log2", x)


def floor(x: Any) -> Any:
    """The largest whole number that is not above x, in fp32."""
    return _apply("floor", x)


def abs(x: Any) -> Any:
    """Absolute value of x; of int32 in int32."""
    return _apply("abs", x)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent of x."""
    return _apply("tanh", x)


def erf(x: Any) -> Any:
    """The error function: 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x. On the GPU in full fp32 precision."""
    return _apply("erf", x)


def sqrt(x: Any) -> Any:
    """Square root of x; NaN below 0."""
    return _apply("sqrt", x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x); infinite at 0, NaN below."""
    return _apply("rsqrt", x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    return _apply("sigmoid", x)


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return maximum(x, 0)


def silu(x: Any) -> Any:
    """x * sigmoid(x), also called swish."""
    x = _apply("widen", x)
    return x * sigmoid(x)


def gelu(x: Any, approximate: str = "tanh") -> Any:
    """x * Phi(x), where Phi is the cumulative normal distribution, as `torch.nn.functional.gelu` computes it.

    Args:
        approximate: "tanh" for ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`` (within |x| * 2^-12 on the GPU);
            "none" for ``x / 2 * (1 + erf(x / sqrt(2)))``, which takes several times as many instructions.

    Raises:
        InputError: *approximate* is something else.
    """
    if not isinstance(approximate, str) or approximate not in ("tanh", "none"):
        raise InputError("gelu(approximate)", approximate, 'is "tanh" or "none"', 'use "tanh"')
    x = _apply("widen", x)
    half = x * 0.5
    if approximate == "none":
        return half + half * erf(x * math.sqrt(0.5))
    root = math.sqrt(2 / math.pi)
    return half + half * tanh(x * (x * x * (root * 0.044715) + root))


def maximum(x: Any, y: Any) -> Any:
    """The larger of x and y, element by element; NaN if either is NaN; of two int32 in int32."""
    return _apply("maximum", x, y)


def minimum(x: Any, y: Any) -> Any:
    """The smaller of x and y, element by element; NaN if either is NaN; of two int32 in int32."""
    return _apply("minimum", x, y)


def where(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, y elsewhere. The condition is a comparison of fragments, or a bool."""
    return _apply("where", condition, x, y)


def cast(x: Fragment, dtype: DType | str) -> Fragment:
    """The fragment, rounded to the nearest numbers that *dtype* can hold (to even if two are as near). 8-bit floats and int32
    saturate.

    Args:
        x: A fragment.
        dtype: "bf16", "fp16", "fp8_e4m3" or "fp8_e5m2": the result is fp32 that has been rounded. "fp32" or "int32": the
            result has this kind.

    Raises:
        InputError: *dtype* is something else.
    """
    _check_fragment("cast", x)
    kind = as_dtype(dtype)
    if kind.name not in ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "fp32", "int32"):
        raise InputError("tmapipe.math.cast(dtype)", dtype, "is a floating type or int32", 'e.g. "bf16"')
    if kind.name == "fp32":
        return combine("widen", x)
    return x if kind.name == x.kind else combine(f"to_{kind.name}", x)


def from_bits(x: Fragment) -> Fragment:
    """The numbers in fp32 that have the bits of int32 numbers. It converts small integers faster than `cast`, by arithmetic
    alone: ``from_bits(x + 0x4B400000) - 12582912.0`` is x in fp32, for x from -2^22 to 2^22 - 1, since the last place of
    numbers from 2^23 to 2^24 is 1.

    Args:
        x: A fragment of int32.
    """
    _check_fragment("from_bits", x)
    return combine("from_bits", x)


def row_sum(x: Fragment, inside: Any = None, surely: tuple[int, int] | None = None) -> Fragment:
    """The sum of each row: a fragment of one number for each row, which broadcasts.

    Args:
        x: A fragment of a whole tile.
        inside: Which columns count, for a tile that reaches over the tensor's edge: how many, or (first, end). None: all.
        surely: (first, end) of columns that count whatever *inside* says. The GPU compares only the indices of the other
            columns.
    """
    return _reduced("sum", "rows", x, inside, surely)


def row_sums(
    x: Fragment, *others: Fragment, inside: Any = None, surely: tuple[int, int] | None = None
) -> list[Fragment]:
    """The sums of the rows of several fragments, each as `row_sum` gives it. Where a row lies in several warps, or CTAs, these
    exchange all sums at once; the role's `ReductionScratch` has ``rows=`` so many times the rows.

    Args:
        x: A fragment of a whole tile in fp32.
        others: More of them, distributed alike.
        inside, surely: As of `row_sum`, for all.
    """
    _check_surely("row_sums", "rows", inside, surely)
    for each in (x, *others):
        _check_fragment("row_sums", each)
    return x.backend.reduce_all((x, *others), "sum", "rows", inside, surely)


def row_sum_parts(x: Fragment) -> Fragment:
    """For each row, the sum of the elements that a thread has. ``row_sum(parts)`` adds these parts up over the threads. So if
    a loop sums rows, threads exchange their sums only once. Parts take arithmetic with parts and with one number for each row.

    Args:
        x: A fragment of a whole tile in fp32.
    """
    _check_fragment("row_sum_parts", x)
    return x.backend.row_parts(x)


def row_max(x: Fragment, inside: Any = None, surely: tuple[int, int] | None = None) -> Fragment:
    """The maximum of each row; minus infinity for no columns; NaN if an element is NaN. The arguments are those of
    `row_sum`."""
    return _reduced("maximum", "rows", x, inside, surely)


def row_logsumexp(x: Fragment, inside: Any = None, surely: tuple[int, int] | None = None) -> Fragment:
    """log(sum of e^x) over each row, in one reduction, which does not overflow: ``exp(x - row_logsumexp(x))`` is the row's
    softmax. Minus infinity for no columns; NaN if an element is NaN. The arguments are those of `row_sum`."""
    _check_fragment("row_logsumexp", x)
    return _reduced("logsumexp", "rows", combine("widen", x), inside, surely)


def row_min(x: Fragment, inside: Any = None, surely: tuple[int, int] | None = None) -> Fragment:
    """The minimum of each row; infinity for no columns; NaN if an element is NaN. The arguments are those of `row_sum`."""
    return _reduced("minimum", "rows", x, inside, surely)


def row_cumsum(x: Fragment) -> Fragment:
    """The running sums of each row: each element plus all elements before it. If a row lies in several warps, the role's
    `ReductionScratch` must have room for more numbers: its ``rows=`` is the number of rows times the number of vectors of a
    row that a thread has.

    Args:
        x: A fragment of a whole tile. Elements that must not count are 0: ``where(x.columns >= first, x, 0.0)``.
    """
    _check_fragment("row_cumsum", x)
    return x.backend.cumsum(x)


def swap_pairs(x: Fragment) -> Fragment:
    """The two elements of each pair of neighbours in a row, columns 2 i and 2 i + 1, exchanged: the other part of complex
    numbers, say.

    Args:
        x: A fragment of a whole tile, or of one number for each column, whose threads have two or more columns side by side.
    """
    _check_fragment("swap_pairs", x)
    return x.backend.swap_pairs(x)


def split_pairs(x: Fragment) -> tuple[Fragment, Fragment]:
    """Columns 2 i, and columns 2 i + 1, of each row: two tiles of half as many columns, such as the parts of complex numbers.

    Args:
        x: A fragment of a whole tile, or of one number for each column, read from a slot, whose threads have two or more
            columns side by side.
    """
    _check_fragment("split_pairs", x)
    return x.backend.split_pairs(x)


def join_pairs(even: Fragment, odd: Fragment) -> Fragment:
    """A tile that has the columns of two tiles in turn: it joins what `split_pairs` has split.

    Args:
        even: A fragment of a whole tile, or of one number for each column, whose threads have up to 4 columns side by side.
        odd: Another fragment, distributed as *even* is.
    """
    _check_fragment("join_pairs(even)", even)
    _check_fragment("join_pairs(odd)", odd)
    return even.backend.join_pairs(even, odd)


def column_sum(x: Fragment, inside: Any = None, surely: tuple[int, int] | None = None) -> Fragment:
    """The sum of each column: a fragment of one number for each column, which broadcasts.

    Args:
        x: A fragment of a whole tile.
        inside: Which rows count, for a tile that reaches over the tensor's edge: how many, or (first, end). None: all.
        surely: (first, end) of rows that count whatever *inside* says. The GPU compares only the indices of the other rows.
    """
    return _reduced("sum", "columns", x, inside, surely)


def column_max(x: Fragment, inside: Any = None, surely: tuple[int, int] | None = None) -> Fragment:
    """The maximum of each column; minus infinity for no rows; NaN if an element is NaN. The arguments are those of
    `column_sum`."""
    return _reduced("maximum", "columns", x, inside, surely)


def column_min(x: Fragment, inside: Any = None, surely: tuple[int, int] | None = None) -> Fragment:
    """The minimum of each column; infinity for no rows; NaN if an element is NaN. The arguments are those of `column_sum`."""
    return _reduced("minimum", "columns", x, inside, surely)


def _reduced(op: str, along: str, x: Fragment, inside: Any, surely: Any) -> Fragment:
    name = f"{along.removesuffix('s')}_{op.removesuffix('imum')}"
    _check_fragment(name, x)
    _check_surely(name, along, inside, surely)
    if op == "maximum" and inside is None and x.product and x.product[1] > 0:
        return x.backend.reduce(x.product[0], op, along, inside, surely) * x.product[1]
    return x.backend.reduce(x, op, along, inside, surely)


def _check_surely(name: str, along: str, inside: Any, surely: Any) -> None:
    if surely is None:
        return
    pair = isinstance(surely, tuple) and len(surely) == 2 and all(type(n) is int for n in surely)
    rule = f"is (first, end) of the {along} that count in any case, beside inside="
    require(pair and inside is not None, f"tmapipe.math.{name}(surely)", surely, rule, "leave it out")


def _check_fragment(name: str, x: Any) -> None:
    if not isinstance(x, Fragment):
        rule = "takes a fragment"
        raise InputError(f"tmapipe.math.{name}", type(x).__name__, rule, "pass slot.x.read() or acc.values()")


# ---- numbers ----------------------------------------------------------------------------------------------------------


def _apply(name: str, *arguments: Any) -> Any:
    """Calls the function called *name*, in the backend that the arguments belong to."""
    if any(isinstance(x, Fragment) for x in arguments):
        return combine(name, *arguments)
    if any(str(type(x).__module__).partition(".")[0] == "cutlass" for x in arguments):
        from tmapipe.gpu import control as functions

        return functions.of_numbers(name, *arguments)
    for x in arguments:
        if not (isinstance(x, (np.ndarray, np.generic, float, int)) and np.asarray(x).dtype.kind in "fiubV"):
            rule = "takes fragments and numbers"
            raise InputError(f"tmapipe.math.{name}", type(x).__name__, rule, "convert it first")
    try:
        np.broadcast_shapes(*(np.shape(x) for x in arguments))
    except ValueError:
        rule, shapes = "takes arrays of shapes that broadcast", [np.shape(x) for x in arguments]
        raise InputError(f"tmapipe.math.{name}", shapes, rule, "pass arrays of one shape") from None
    arrays = any(isinstance(x, np.ndarray) for x in arguments)
    wide = np.float32 if arrays else np.float64
    condition = arguments[:1] if name == "where" else ()
    result = elements.apply(name, [*condition, *(np.asarray(x).astype(wide) for x in arguments[len(condition) :])])
    return np.asarray(result, np.float32) if arrays else float(result)
