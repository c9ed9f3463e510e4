"""Symbolic numbers of a proof: sums of products with integer factors, in one form for each value that is written differently.

A number that no launch has decided is a `Sym`. Two of them that are the same object are equal, whatever role they come from:
`2 * (i + 1)` and `i + i + 2` are one. Comparisons are kept as "this sum is at least 0" and "this sum is 0", without common
factors, so a condition and its opposite are found from each other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["FALSE", "Sym", "after", "arithmetic", "leaf", "leaves", "negated", "replaced", "skipped", "text"]

FALSE = False
LONG = 60  # parts of a number, beyond which a report does not spell it out
LARGE = 80  # parts of a quotient or choice, beyond which it is a number of its own
_made: dict[Any, Sym] = {}


class Sym:
    """A number or a condition that is not decided. Interned: compare by `is`.

    op: "leaf" (args: its name, a tuple), "sum" (args: constant, ((term, factor), ...)), "prod" (terms), "ge" and "eq" (args: a
    sum that is at least 0, or 0), or the name of another operation. number: of its making, by which terms are ordered.
    """

    __slots__ = ("args", "leaves", "number", "op", "opposite", "size")
    __hash__ = object.__hash__

    def __init__(self, op: str, args: tuple[Any, ...]):
        self.op, self.args, self.number = op, args, len(_made)
        self.opposite: Any = None  # of a condition, once it is known
        self.size = 1 if op == "leaf" else 1 + sum(map(_size, args))
        inside = _leaves_of(args)
        self.leaves: frozenset[Sym] = inside | {self} if op == "leaf" else inside

    @property
    def condition(self) -> bool:
        """Whether it is a condition."""
        return self.op in ("ge", "eq", "not", "all", "any")

    def __bool__(self) -> bool:
        raise TypeError(f"a decision on {text(self)}, which is open")

    __index__ = __int__ = __bool__

    def __repr__(self) -> str:
        return text(self)


def _size(x: Any) -> int:
    if isinstance(x, Sym):
        return x.size
    return sum(map(_size, x)) if isinstance(x, tuple) else 0


def _leaves_of(args: Any) -> frozenset[Sym]:
    found: set[Sym] = set()
    for each in args:
        if isinstance(each, Sym):
            found |= each.leaves
        elif isinstance(each, tuple):
            found |= _leaves_of(each)
    return frozenset(found)


def _intern(op: str, *args: Any) -> Sym:
    key = op, *args
    found = _made.get(key)
    if found is None:
        found = _made[key] = Sym(op, args)
    return leaf("large", found) if found.size > LARGE and op in ("select", "div", "min", "max") else found


def leaf(*name: Any) -> Sym:
    """The number of this name."""
    return _intern("leaf", *name)


def leaves(value: Any) -> frozenset[Sym]:
    """The leaves that a value is computed of."""
    return value.leaves if isinstance(value, Sym) else frozenset()


# ---- sums ---------------------------------------------------------------------------------------------------------------


def parts(value: Any) -> tuple[int, dict[Sym, int]]:
    """(constant, term -> factor) of a number."""
    if not isinstance(value, Sym):
        return int(value), {}
    if value.op == "sum":
        return value.args[0], dict(value.args[1])
    return 0, {value: 1}


def total(constant: int, terms: Mapping[Sym, int]) -> Any:
    """The sum of these terms."""
    left = sorted(((term, n) for term, n in terms.items() if n), key=lambda each: each[0].number)
    if not left:
        return constant
    if constant == 0 and len(left) == 1 and left[0][1] == 1:
        return left[0][0]
    return _intern("sum", constant, tuple(left))


def add(a: Any, b: Any, times: int = 1) -> Any:
    """a + times * b."""
    constant, terms = parts(a)
    more, others = parts(b)
    for term, n in others.items():
        terms[term] = terms.get(term, 0) + times * n
    return total(constant + times * more, terms)


def multiply(a: Any, b: Any) -> Any:
    """a * b, with products of sums multiplied out."""
    (m, x), (n, y) = parts(a), parts(b)
    constant, terms = m * n, dict[Sym, int]()
    for term, factor in x.items():
        terms[term] = terms.get(term, 0) + factor * n
    for term, factor in y.items():
        terms[term] = terms.get(term, 0) + factor * m
    for one, p in x.items():
        for other, q in y.items():
            both = _product(one, other)
            terms[both] = terms.get(both, 0) + p * q
    return total(constant, terms)


def _product(a: Sym, b: Sym) -> Sym:
    factors = [f for each in (a, b) for f in (each.args if each.op == "prod" else (each,))]
    return _intern("prod", *sorted(factors, key=lambda each: each.number))


def divide(a: Any, b: Any) -> Any:
    """a // b, rounded down. What *b* divides is taken out."""
    if not isinstance(a, Sym) and not isinstance(b, Sym):
        return a // b if b else 0
    if not isinstance(b, Sym) and b > 0:
        constant, terms = parts(a)
        whole, rest = divmod(constant, b)
        inside = {term: n % b for term, n in terms.items()}
        outside = total(whole, {term: n // b for term, n in terms.items()})
        left = total(rest, inside)
        if not isinstance(left, Sym):
            return add(outside, left // b)
        if b == 1:
            return add(outside, left)
        if left.op == "div" and not isinstance(left.args[1], Sym):  # n // a // b
            return add(outside, divide(left.args[0], left.args[1] * b))
        return add(outside, _intern("div", left, b))
    return _intern("div", a, b)


def modulo(a: Any, b: Any) -> Any:
    """a % b, with the sign of *b*."""
    return add(a, multiply(divide(a, b), b), -1)


# ---- conditions ---------------------------------------------------------------------------------------------------------


def at_least_0(value: Any) -> Any:
    """The condition value >= 0."""
    if not isinstance(value, Sym):
        return value >= 0
    constant, terms = parts(value)
    common = math.gcd(*terms.values())
    terms = {term: n // common for term, n in terms.items()}
    return _intern("ge", total(constant // common, terms))


def is_0(value: Any) -> Any:
    """The condition value == 0."""
    if not isinstance(value, Sym):
        return value == 0
    if value.condition:
        return negated(value)
    constant, terms = parts(value)
    common = math.gcd(*terms.values())
    if constant % common:
        return False
    if next(iter(terms.values())) < 0:
        common = -common
    return _intern("eq", total(constant // common, {term: n // common for term, n in terms.items()}))


def negated(condition: Any) -> Any:
    """The opposite of a condition."""
    if not isinstance(condition, Sym):
        return not condition
    if condition.opposite is None:
        condition.opposite = _negated(condition)
    return condition.opposite


def _negated(condition: Sym) -> Any:
    if condition.op == "ge":
        return at_least_0(add(-1, condition.args[0], -1))
    if condition.op == "not":
        return condition.args[0]
    if condition.op in ("all", "any"):
        return _several("any" if condition.op == "all" else "all", *map(negated, condition.args))
    return _intern("not", condition)


def _several(op: str, *conditions: Any) -> Any:
    known = op == "any"  # the value that decides
    found: dict[Sym, None] = {}
    for each in conditions:
        if not isinstance(each, Sym):
            if bool(each) == known:
                return known
        else:
            found.update(dict.fromkeys(each.args if each.op == op else (each,)))
    if any(negated(each) in found for each in found):
        return known
    if len(found) < 2:
        return next(iter(found), not known)
    return _intern(op, *sorted(found, key=lambda each: each.number))


def both(*conditions: Any) -> Any:
    """Whether all of them are true."""
    return _several("all", *conditions)


def either(*conditions: Any) -> Any:
    """Whether one of them is true."""
    return _several("any", *conditions)


def truth(value: Any) -> Any:
    """A number as a condition: whether it is not 0."""
    if not isinstance(value, Sym):
        return bool(value)
    return value if value.condition else negated(is_0(value))


# ---- operations of programs ---------------------------------------------------------------------------------------------


def _number(value: Any) -> Any:
    """A condition as a number."""
    if isinstance(value, Sym) and value.condition:
        return _intern("number", value)
    return int(value) if isinstance(value, bool) else value


def _extreme(name: str, least: bool) -> Callable[..., Any]:
    def operate(a: Any, b: Any) -> Any:
        apart = add(b, a, -1)
        if not isinstance(apart, Sym):
            return a if (apart >= 0) == least else b
        return _intern(name, *sorted((a, b), key=lambda x: (isinstance(x, Sym), x.number if isinstance(x, Sym) else x)))

    return operate


def _select(condition: Any, a: Any, b: Any) -> Any:
    condition = truth(condition)
    if not isinstance(condition, Sym):
        return a if condition else b
    if a is b or (not isinstance(a, Sym) and not isinstance(b, Sym) and a == b):
        return a
    if isinstance(a, bool) and isinstance(b, bool):
        return condition if a else negated(condition)
    return _intern("select", condition, a, b)


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
        return _intern(name, a, b)

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
    return _intern(kind, base, total(0, terms), stages, ring)


def _next(slot: Any, stages: int) -> Any:
    if isinstance(slot, Sym) and slot.op == "slot after" and slot.args[2] == stages:
        return after(slot.op, slot.args[0] + 1, *slot.args[1:])
    return _select(is_0(add(add(slot, 1), stages, -1)), 0, add(slot, 1))


def _flipped(parity: Any, slot: Any, stages: int) -> Any:
    if isinstance(parity, Sym) or isinstance(slot, Sym):
        if isinstance(parity, Sym) and parity.op == "parity after" and slot is after("slot after", *parity.args):
            return after(parity.op, parity.args[0] + 1, *parity.args[1:])
        return _intern("flipped", parity, slot, stages)
    return parity ^ int(slot + 1 == stages)


#: operation of a program's expressions -> what it gives
_OF: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: add(_number(a), _number(b)),
    "sub": lambda a, b: add(_number(a), _number(b), -1),
    "mul": lambda a, b: multiply(_number(a), _number(b)),
    "floordiv": lambda a, b: divide(_number(a), _number(b)),
    "mod": lambda a, b: modulo(_number(a), _number(b)),
    "neg": lambda a: add(0, _number(a), -1),
    "lshift": lambda a, b: multiply(_number(a), 1 << b) if not isinstance(b, Sym) else _intern("lshift", a, b),
    "rshift": lambda a, b: divide(_number(a), 1 << b) if not isinstance(b, Sym) else _intern("rshift", a, b),
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
    "abs": lambda a: abs(a) if not isinstance(a, Sym) else _intern("abs", a),
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
        return _intern(op, *args) if any(isinstance(a, Sym) for a in args) else None
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
        return _several(value.op, *args)
    if value.op == "div":
        return divide(*args)
    if value.op == "number":
        return _number(args[0])
    return arithmetic(value.op, *args)


def _inside(value: Any, changes: Mapping[Sym, Any], memo: dict[Sym, Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_inside(each, changes, memo) for each in value)
    return replaced(value, changes, memo)


# ---- text ---------------------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """In words, for reports. Of a long formula, only of what it is computed."""
    if not isinstance(value, Sym):
        return str(value)
    if value.size > LONG:
        names = sorted(
            str(each.args[-1]) for each in value.leaves if len(each.args) == 2 and type(each.args[-1]) is str
        )
        more = f" and {len(names) - 4} others" if len(names) > 4 else ""
        return f"(a formula of {', '.join(names[:4])}{more})"
    a = value.args
    if value.op == "leaf":
        if a[0] == "tile":
            return f"tile.{a[1]}"
        return str(a[-1]) if len(a) == 2 else f"{a[0]}({', '.join(map(text, a[1:]))})"
    if value.op == "sum":
        terms = [(n, text(t) if abs(n) == 1 else f"{abs(n)} * {text(t)}") for t, n in a[1]] + [(a[0], str(abs(a[0])))]
        ordered = sorted(((n < 0, each) for n, each in terms if n), key=lambda each: each[0])
        said = "".join((" - " if less else " + ") + each for less, each in ordered)
        return f"({said[3:] if said.startswith(' + ') else '-' + said[3:]})"
    if value.op == "prod":
        return " * ".join(map(text, a))
    if value.op == "div":
        return f"{text(a[0])} // {text(a[1])}"
    if value.op in ("ge", "eq"):
        return f"{text(a[0])} {'>=' if value.op == 'ge' else '=='} 0"
    return f"{value.op}({', '.join(map(text, a))})"
