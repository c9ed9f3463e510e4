"""Conditions of two parts, of which the second may have no value where the first decides."""

from __future__ import annotations

from typing import Any

from tmapipe.program.expressions import Expr, Var, resolve, symbolic

__all__ = ["both", "either", "may_fail"]


def both(first: Any, second: Any) -> Any:
    """*first* and *second*, of which the second is not computed where the first is false, if that could be an error."""
    if second is True:
        return first
    if total(second):
        return Expr.of("and", first, second)
    return Expr.of("select", first, second, False)


def either(first: Any, second: Any) -> Any:
    """*first* or *second*, likewise."""
    if second is False:
        return first
    if total(second):
        return Expr.of("or", first, second)
    return Expr.of("select", first, True, second)


def total(value: Any) -> bool:
    """Whether an expression has a value whatever its variables are: nothing is divided by what may be 0, or shifted."""
    pending, seen = [resolve(value)], set()
    while pending:
        each = pending.pop()
        if not isinstance(each, Expr) or id(each) in seen or isinstance(each, Var):
            continue
        seen.add(id(each))
        if may_fail(each):
            return False
        pending += map(resolve, each.args)
    return True


def may_fail(value: Expr) -> bool:
    """Whether the operation itself may have no value: it divides by what may be 0, or shifts by a number."""
    by = resolve(value.args[-1]) if value.args else None
    if value.op in ("floordiv", "mod"):
        return bool(by.op != "divisor" if isinstance(by, Expr) else by == 0)
    return value.op in ("lshift", "rshift") and symbolic(by)
