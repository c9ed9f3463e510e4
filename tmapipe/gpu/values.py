"""What the expressions of a program are in a kernel: numbers of CuTe DSL, each computed once a block of code."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Boolean, Int32

from tmapipe.gpu.functions import FUNCTIONS, choose
from tmapipe.program.expressions import Expr, Var, resolve

__all__ = ["Values"]


class Values:
    """Numbers by expression. A block of code sees those of the blocks around it, as its operations come after theirs.

    isa: what gives divisors. symbols: what a launch knows.
    """

    def __init__(self, isa: Any, symbols: dict[Expr, Any]):
        self.isa, self.blocks, self.counts = isa, [dict(symbols)], set[Var]()

    def inside(self, emit: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What *emit* returns, in a block of its own."""
        self.blocks.append({})
        try:
            return emit(*arguments, **named)
        finally:
            self.blocks.pop()

    def bind(self, variable: Var, value: Any, counts: bool = False) -> None:
        """What a variable is from here on, in this block. counts: whether it is never negative."""
        self.blocks[-1][variable] = value
        if counts:
            self.counts.add(variable)

    def is_count(self, value: Any) -> bool:
        """Whether an expression is seen never to be negative: then remainders need no sign."""
        value = resolve(value)
        if isinstance(value, Var):
            return value in self.counts
        if not isinstance(value, Expr):
            return value >= 0
        if value.op in ("mod", "and"):
            return any(map(self.is_count, value.args if value.op == "and" else value.args[1:]))
        return value.op == "symbol" or (
            value.op in _OF_COUNTS
            and all(map(self.is_count, value.args[1 if value.op in ("select", "divisor") else 0 :]))
        )

    def known(self, value: Any) -> bool:
        """Whether all variables of an expression have values here."""
        value = resolve(value)
        if not isinstance(value, Expr) or any(value in block for block in self.blocks):
            return True
        return bool(value.args) and value.op != "symbol" and all(map(self.known, value.args))

    def of(self, value: Any) -> Any:
        """What *value* is here; itself if it is no expression. Computed here if no block around has."""
        value = resolve(value)
        if not isinstance(value, Expr):
            return value
        for block in reversed(self.blocks):
            if value in block:
                return block[value]
        found = self.blocks[-1][value] = self._computed(value)
        return found

    def number(self, value: Any) -> Any:
        """The same as a number of CuTe DSL, whose type stays the same in a loop."""
        found = self.of(value)
        if isinstance(found, (bool, int, float)):
            return (Boolean if isinstance(found, bool) else Int32 if isinstance(found, int) else cutlass.Float32)(found)
        return found

    def _computed(self, value: Expr) -> Any:
        if value.op == "divisor":
            return self.isa.divisors({value.args[0]: None})[value.args[0]]
        if value.op == "floordiv" and _divides(value.args[1]):
            return self.of(value.args[0]) // self.of(value.args[1])
        if value.op == "mod" and all(map(self.is_count, value.args)):
            return operator.mod(*map(self._operand, value.args))
        return OPERATIONS[value.op](*map(self._operand, value.args))

    def _operand(self, value: Any) -> Any:
        """A divisor is a number to all but the division."""
        value = resolve(value)
        return self.of(value.args[1] if _divides(value) else value)


#: Of what is not negative they make what is not.
_OF_COUNTS = {
    "add",
    "mul",
    "floordiv",
    "rshift",
    "lshift",
    "min",
    "max",
    "select",
    "next",
    "flipped",
    "divisor",
    "or",
    "xor",
}


def _divides(value: Any) -> bool:
    value = resolve(value)
    return isinstance(value, Expr) and value.op == "divisor"


def _select(condition: Any, then: Any, other: Any) -> Any:
    if isinstance(condition, bool):
        return then if condition else other
    of = Boolean if isinstance(then, (bool, Boolean)) else Int32
    return of(cutlass.select_(condition, of(then), of(other)))


def _mod(a: Any, b: Any) -> Any:
    """With the sign of *b*, as in Python; the hardware's has that of *a*."""
    if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
        return a & (b - 1)
    rest = a % b
    if isinstance(b, int):
        other = rest < 0 if b > 0 else rest > 0
    else:
        other = (rest != 0) & ((rest < 0) != (b < 0))
    return choose(other, rest + b, rest)


def _next(slot: Any, stages: int) -> Any:
    following = slot + 1
    return _select(following == stages, 0, following)


def _flipped(parity: Any, slot: Any, stages: int) -> Any:
    return _select(slot + 1 == stages, parity ^ 1, parity)


#: One number of others, of which at least one is not known.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": _mod,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "neg": operator.neg,
    "abs": FUNCTIONS["abs"],
    "invert": lambda a: a ^ -1,
    "not": lambda a: a ^ True,
    "min": lambda a, b: _select(a < b, a, b),
    "max": lambda a, b: _select(a > b, a, b),
    "select": _select,
    "next": _next,
    "flipped": _flipped,
}
