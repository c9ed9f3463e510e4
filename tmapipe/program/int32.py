"""Arithmetic of a traced program: numbers have 32 bits, in every reader.

    + - * abs, negation     wrap around, as the hardware's do
    // %                    round down and have the sign of the divisor, as Python's do; -2^31 // -1 wraps to -2^31
    << >>                   by 0 to 31; << drops what does not fit, >> keeps the sign
    & | ^ ~                 of two's complement; of two conditions a condition
    < <= > >= == !=         exact, and min and max with them

Python's own integers are longer, but only Python's constants can be: one that does not fit is refused where it meets a number
of the kernel (`fitting`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tmapipe.errors import ScopeError

__all__ = ["FOLD", "fitting", "wrapped"]

LEAST, MOST = -(2**31), 2**31 - 1


def wrapped(value: Any) -> Any:
    """The number of 32 bits that is *value* modulo 2^32; a condition stays one."""
    if LEAST <= value <= MOST:
        return value
    return (value - LEAST) % 2**32 + LEAST


def fitting(value: Any) -> Any:
    """*value*, a constant of Python. Raises `ScopeError` if it has more than 32 bits."""
    if LEAST <= value <= MOST:
        return value
    said = value if abs(value) < 2**64 else f"an int of {value.bit_length()} bits"
    raise ScopeError(f"{said} meets a number of the kernel, which has 32 bits. Use constants from -2**31 to 2**31 - 1.")


def _wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: wrapped(function(*values))


def _shift(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def shift(value: Any, by: Any) -> Any:
        if not 0 <= by <= 31:
            raise ScopeError(f"a shift by {by}. A number has 32 bits: shift it by 0 to 31.")
        return wrapped(function(value, by))

    return shift


#: Operation -> its value.
FOLD: dict[str, Callable[..., Any]] = {
    **{name: _wrapping(getattr(operator, name)) for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "abs")},
    **{name: _shift(getattr(operator, name)) for name in ("lshift", "rshift")},
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne", "xor", "invert")},
    "and": operator.and_,
    "or": operator.or_,
    "not": operator.not_,
    "min": min,
    "max": max,
    "select": lambda c, a, b: a if c else b,
    "next": lambda slot, stages: 0 if slot + 1 == stages else slot + 1,
    "flipped": lambda parity, slot, stages: parity ^ (slot + 1 == stages),
}
