"""Operations of a traced program on symbolic numbers: arithmetic, positions behind skipped slots, other numbers for leaves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tmapipe.prove.symbols import (
    Sym,
    add,
    at_least_0,
    both,
    divide,
    either,
    intern,
    is_0,
    leaf,
    modulo,
    multiply,
    negated,
    parts,
    total,
    truth,
)

__all__ = ["after", "arithmetic", "replaced", "skipped"]


def _number(value: Any) -> Any:
    """A condition as a number."""
    if isinstance(value, Sym) and value.condition:
        return intern("number", value)
    return int(value) if isinstance(value, bool) else value


def _extreme(name: str, least: bool) -> Callable[..., Any]:
    def operate(a: Any, b: Any) -> Any:
        apart = add(b, a, -1)
        if not isinstance(apart, Sym):
            return a if (apart >= 0) == least else b
        return intern(name, *sorted((a, b), key=lambda x: (isinstance(x, Sym), x.number if isinstance(x, Sym) else x)))

    return operate


def _select(condition: Any, a: Any, b: Any) -> Any:
    condition = truth(condition)
    if not isinstance(condition, Sym):
        return a if condition else b
    if a is b or (not isinstance(a, Sym) and not isinstance(b, Sym) and a == b):
        return a
    if isinstance(a, bool) and isinstance(b, bool):
        return condition if a else negated(condition)
    return intern("select", condition, a, b)


def _bits(name: str, plain: Callable[[int, int], int]) -> Callable[..., Any]:
    def operate(a: Any, b: Any) -> Any:
        conditions = [isinstance(x, bool) or (isinstance(x, Sym) and x.condition) for x in (a, b)]
        if all(conditions) and name in ("and", "or"):
            return both(a, b) if name == "and" else either(a, b)
        if not isinstance(a, Sym) and not isinstance(b, Sym):
            return plain(a, b)
        if all(conditions):
            known, other = (a, b) if not isinstance(a, Sym) else (b, a)
            if not isinstance(known, Sym):
                return negated(other) if known else other
        a, b = _number(a), _number(b)
        if name == "and" and not isinstance(b, Sym) and b >= 0 and b & (b + 1) == 0:
            return modulo(a, b + 1)
        return intern(name, a, b)

    return operate


def _compare(test: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda a, b: test(_number(a), _number(b))


# ---- positions behind slots that are skipped ------------------------------------------------------------------------------


def skipped(slot: Any, parity: Any, slots: Any, stages: int, ring: str) -> tuple[Any, Any]:
    """(slot, parity) so many slots later in a ring. None if where it starts is no position in this ring."""
    if isinstance(parity, Sym) and parity.op == "parity after" and parity.args[2:] == (stages, ring):
        base, before = parity.args[:2]
        if slot is not after("slot after", base, before, stages, ring):
            return None, None
        slots = add(slots, before)
    elif isinstance(slot, Sym) or isinstance(parity, Sym):
        return None, None
    else:
        base = slot + stages * parity
    return tuple(after(kind, base, slots, stages, ring) for kind in ("slot after", "parity after"))


def after(kind: str, base: int, slots: Any, stages: int, ring: str) -> Any:
    """The slot, or parity, of the position that comes *slots* slots after position *base* of a ring. Positions are counted
    through two laps. The known part of *slots* goes into the base, so each position has one form."""
    known, terms = parts(slots)
    around = stages if kind == "slot after" else 2 * stages
    base = (base + known) % around
    if not terms:
        return base if kind == "slot after" else base // stages
    return intern(kind, base, total(0, terms), stages, ring)


def _next(slot: Any, stages: int) -> Any:
    if isinstance(slot, Sym) and slot.op == "slot after" and slot.args[2] == stages:
        return after(slot.op, slot.args[0] + 1, *slot.args[1:])
    return _select(is_0(add(add(slot, 1), stages, -1)), 0, add(slot, 1))


def _flipped(parity: Any, slot: Any, stages: int) -> Any:
    if isinstance(parity, Sym) or isinstance(slot, Sym):
        if isinstance(parity, Sym) and parity.op == "parity after" and slot is after("slot after", *parity.args):
            return after(parity.op, parity.args[0] + 1, *parity.args[1:])
        return intern("flipped", parity, slot, stages)
    return parity ^ int(slot + 1 == stages)


#: operation of a program's expressions -> what it gives
_OF: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: add(_number(a), _number(b)),
    "sub": lambda a, b: add(_number(a), _number(b), -1),
    "mul": lambda a, b: multiply(_number(a), _number(b)),
    "floordiv": lambda a, b: divide(_number(a), _number(b)),
    "mod": lambda a, b: modulo(_number(a), _number(b)),
    "neg": lambda a: add(0, _number(a), -1),
    "lshift": lambda a, b: multiply(_number(a), 1 << b) if not isinstance(b, Sym) else intern("lshift", a, b),
    "rshift": lambda a, b: divide(_number(a), 1 << b) if not isinstance(b, Sym) else intern("rshift", a, b),
    "and": _bits("and", lambda a, b: a & b),
    "or": _bits("or", lambda a, b: a | b),
    "xor": _bits("xor", lambda a, b: a ^ b),
    "lt": _compare(lambda a, b: at_least_0(add(add(b, a, -1), -1))),
    "le": _compare(lambda a, b: at_least_0(add(b, a, -1))),
    "gt": _compare(lambda a, b: at_least_0(add(add(a, b, -1), -1))),
    "ge": _compare(lambda a, b: at_least_0(add(a, b, -1))),
    "eq": _compare(lambda a, b: is_0(add(a, b, -1))),
    "ne": _compare(lambda a, b: negated(is_0(add(a, b, -1)))),
    "not": lambda a: negated(truth(a)),
    "invert": lambda a: add(-1, _number(a), -1),
    "min": _extreme("min", True),
    "max": _extreme("max", False),
    "abs": lambda a: abs(a) if not isinstance(a, Sym) else intern("abs", a),
    "select": _select,
    "next": _next,
    "flipped": _flipped,
    "slot after": functools.partial(after, "slot after"),
    "parity after": functools.partial(after, "parity after"),
}


def arithmetic(op: str, *args: Any) -> Any:
    """What an operation of a program's expressions gives."""
    operate = _OF.get(op)
    if operate is None:
        return intern(op, *args) if any(isinstance(a, Sym) for a in args) else None
    return operate(*args)


def replaced(value: Any, changes: Mapping[Sym, Any], memo: dict[Sym, Any] | None = None) -> Any:
    """The value with other numbers in the place of some leaves."""
    if not isinstance(value, Sym) or value.leaves.isdisjoint(changes):
        return value
    memo = {} if memo is None else memo
    if value not in memo:
        memo[value] = _replaced(value, changes, memo)
    return memo[value]


def _replaced(value: Sym, changes: Mapping[Sym, Any], memo: dict[Sym, Any]) -> Any:
    if value.op == "leaf":
        if value in changes:
            return changes[value]
        if value.args[0] == "large":
            return replaced(value.args[1], changes, memo)
        return leaf(*(_inside(each, changes, memo) for each in value.args))
    if value.op == "sum":
        constant, found = value.args[0], 0
        for term, n in value.args[1]:
            found = add(found, replaced(term, changes, memo), n)
        return add(found, constant)
    args = [_inside(each, changes, memo) for each in value.args]
    if value.op == "prod":
        made: Any = 1
        for each in args:
            made = multiply(made, each)
        return made
    if value.op == "ge":
        return at_least_0(args[0])
    if value.op == "eq":
        return is_0(args[0])
    if value.op == "not":
        return negated(args[0])
    if value.op in ("all", "any"):
        return (both if value.op == "all" else either)(*args)
    if value.op == "div":
        return divide(*args)
    if value.op == "number":
        return _number(args[0])
    return arithmetic(value.op, *args)


def _inside(value: Any, changes: Mapping[Sym, Any], memo: dict[Sym, Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_inside(each, changes, memo) for each in value)
    return replaced(value, changes, memo)
