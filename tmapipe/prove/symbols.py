"""Symbolic numbers of a proof: sums of products with integer factors, in one form for each value that is written differently.

A number that no launch has decided is a `Sym`. Two of them that are the same object are equal, whatever role they come from:
`2 * (i + 1)` and `i + i + 2` are one. Comparisons are kept as "this sum is at least 0" and "this sum is 0", without common
factors, so a condition and its opposite are found from each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["Sym", "leaf", "leaves", "negated", "text"]

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


def intern(op: str, *args: Any) -> Sym:
    """The number of this operation, which is one object for the same arguments."""
    key = op, *args
    found = _made.get(key)
    if found is None:
        found = _made[key] = Sym(op, args)
    return leaf("large", found) if found.size > LARGE and op in ("select", "div", "min", "max") else found


def leaf(*name: Any) -> Sym:
    """The number of this name."""
    return intern("leaf", *name)


def leaves(value: Any) -> frozenset[Sym]:
    """The leaves that a value is computed of."""
    return value.leaves if isinstance(value, Sym) else frozenset()


def is_word(x: Sym) -> bool:
    """Whether this is a word of a queue."""
    return x.op == "leaf" and bool(x.args[0] == "word")


def of_launch(count: Any) -> bool:
    """Whether a count of iterations is the same in a whole run."""
    return all(each.args[0] in ("extent", "of the launch") for each in leaves(count))


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
    return intern("sum", constant, tuple(left))


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
    return intern("prod", *sorted(factors, key=lambda each: each.number))


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
        return add(outside, intern("div", left, b))
    return intern("div", a, b)


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
    return intern("ge", total(constant // common, terms))


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
    return intern("eq", total(constant // common, {term: n // common for term, n in terms.items()}))


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
    return intern("not", condition)


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
    return intern(op, *sorted(found, key=lambda each: each.number))


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
