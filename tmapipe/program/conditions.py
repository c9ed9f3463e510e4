"""Conditions of two parts, of which the second may have no value where the first decides."""

from __future__ import annotations

from typing import Any

from tmapipe.program.expressions import Expr, Var, resolve, symbolic

__all__ = ["both", "either"]


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
        by = resolve(each.args[-1]) if each.args else None
        if each.op in ("floordiv", "mod") and ((isinstance(by, Expr) and by.op != "divisor") or by == 0):
            return False
        if each.op in ("lshift", "rshift") and symbolic(by):
            return False
        pending += map(resolve, each.args)
    return True
