"""Numbers in recorded bodies that stand for others, of which nothing is decided until Python needs a plain one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

__all__ = ["COMPARISONS", "RecordedNumber"]

ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow", "lshift", "rshift", "and", "or", "xor")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class RecordedNumber:
    """A whole number or a truth value. What a class does not compute by itself is computed of the plain value."""

    __slots__ = ()

    def settle(self) -> Any:
        """The plain value, as a decision of the body."""
        raise NotImplementedError

    def with_other(self, function: Callable[..., Any], other: Any) -> Any:
        """``function(self, other)``"""
        return function(self.settle(), other)

    def __index__(self) -> int:
        return int(self.settle())

    def __float__(self) -> float:
        return float(self.settle())

    def __bool__(self) -> bool:
        return bool(self.settle())

    def __hash__(self) -> int:
        return hash(self.settle())

    def __str__(self) -> str:
        return str(self.settle())

    def __format__(self, spec: str) -> str:
        return format(self.settle(), spec)

    def __round__(self, digits: int = 0) -> Any:
        return round(self.settle(), digits)

    def __abs__(self) -> Any:
        return abs(self.settle())

    def __invert__(self) -> Any:
        return ~self.settle()

    def __pos__(self) -> Any:
        return self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    __int__ = __trunc__ = __ceil__ = __floor__ = __index__


def _forward(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda own, other: own.with_other(function, other)


def _backward(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda own, other: own.with_other(lambda one, two: function(two, one), other)


for _name in (*ARITHMETIC, *COMPARISONS):
    setattr(RecordedNumber, f"__{_name}__", _forward(getattr(operator, f"__{_name}__")))
for _name in ARITHMETIC:
    setattr(RecordedNumber, f"__r{_name}__", _backward(getattr(operator, f"__{_name}__")))
