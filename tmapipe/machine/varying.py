"""Numbers that vary from problem to problem or from tile to tile, where programs are recorded.

A body is recorded with `Varying` numbers: extents, tile coordinates, entries of tables, cluster ids. Each carries its value
in the problem at hand, and what it is: a sum of *terms* with integer factors. A term is a symbol, or what the body has
computed of symbols (quotients, remainders, products, choices). Whatever the body does with such a number that can change its
operations is a *use*, which `tmapipe.machine.decisions` notes: a count of a loop, a comparison, or the value itself where
nothing more is known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tmapipe.errors import InputError, ScopeError
from tmapipe.machine.alike import Own
from tmapipe.machine.number import COMPARISONS, RecordedNumber
from tmapipe.machine.varying_text import text_of

if TYPE_CHECKING:
    from tmapipe.machine.decisions import Decisions

__all__ = ["COMPARED", "Key", "UNBOUNDED", "VALUE", "Condition", "Varying", "whole"]

MOST = 2**31  # whole numbers of a kernel are smaller
UNBOUNDED = (None, None)
COMPARED, VALUE = "is compared", "is used as a value"

Key = tuple[Any, ...]


def _refuse_hash(self: Any) -> int:
    raise ScopeError("a number that varies (an extent, a coordinate, a count) as a key of a dictionary or a set.")


def _too_large(number: int) -> InputError:
    rule = "is a factor or a summand of a number that varies, and whole numbers have 32 bits in a kernel"
    return InputError("number in a body", number, rule, "divide first, or leave it out")


def _unknown(name: str, function: Callable[[int, int], int]) -> Callable[..., Any]:
    """An operator with whose result nothing is known but its name."""
    return lambda number, other: number._opaque(name, function, other)


class Varying(RecordedNumber):
    """A whole number that varies: terms with factors, and a constant. `value` is what it is here."""

    __slots__ = ("const", "run", "terms", "value")
    __array_ufunc__ = None
    __hash__ = _refuse_hash

    def __init__(self, run: Decisions, terms: dict[Key, int], const: int, value: int):
        self.run, self.terms, self.const, self.value = run, terms, const, value

    # ---- sums ---------------------------------------------------------------------------------------------------------

    def _plus(self, other: Any, sign: int) -> Any:
        if type(other) is Varying:
            terms = dict(self.terms)
            for key, factor in other.terms.items():
                total = terms.get(key, 0) + sign * factor
                if total:
                    terms[key] = total
                else:
                    del terms[key]
            const = self.const + sign * other.const
            return Varying(self.run, terms, const, self.value + sign * other.value) if terms else const
        if isinstance(other, float):
            return float(self) + sign * other
        other = other if type(other) is Own else whole(other)
        if other is None:
            return NotImplemented
        const = self.const + sign * other
        if not -MOST <= const < MOST:
            raise _too_large(const)
        return Varying(self.run, self.terms, const, self.value + sign * other)

    def __add__(self, other: Any) -> Any:
        return self._plus(other, 1)

    def __sub__(self, other: Any) -> Any:
        return self._plus(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return (-self)._plus(other, 1)

    __radd__ = __add__

    def __neg__(self) -> Varying:
        return Varying(self.run, {key: -factor for key, factor in self.terms.items()}, -self.const, -self.value)

    def __mul__(self, other: Any) -> Any:
        if type(other) is Varying:
            first, second = sorted((self, other), key=lambda number: repr(number.form))
            ends = [
                None if a is None or b is None or a < 0 or b < 0 else a * b for a, b in self.run.bounds(self, other)
            ]
            if ends[0] is None:
                ends[1] = None
            key = ("product", first.form, second.form)
            return self.run.made(key, self.value * other.value, ends, self, other)
        if isinstance(other, float):
            return float(self) * other
        other = whole(other)
        if other is None:
            return NotImplemented
        if other == 0:
            return 0
        terms = {key: factor * other for key, factor in self.terms.items()}
        large = [n for n in (*terms.values(), self.const * other) if not -MOST <= n < MOST]
        if large:
            raise _too_large(large[0])
        return Varying(self.run, terms, self.const * other, self.value * other)

    __rmul__ = __mul__

    # ---- quotients ----------------------------------------------------------------------------------------------------

    def __floordiv__(self, other: Any) -> Any:
        by = whole(other)
        if by is None or by <= 0:
            return self._opaque("quotient", operator.floordiv, other)
        quotient = self.const // by
        if all(factor % by == 0 for factor in self.terms.values()):
            terms = {key: factor // by for key, factor in self.terms.items()}
            return Varying(self.run, terms, quotient, self.value // by)
        if self.terms[min(self.terms, key=repr)] < 0:  # as ceilings are written in two ways
            return quotient - ((by - 1) - (self - quotient * by))._divided(by)
        return quotient + (self - quotient * by)._divided(by)

    def _divided(self, by: int) -> Varying:
        ends = [None if end is None else end // by for (end,) in self.run.bounds(self)]
        return self.run.made(("quotient", self.form, by), self.value // by, ends, self)

    def __mod__(self, other: Any) -> Any:
        by = whole(other)
        if by is None or by <= 0:
            return self._opaque("remainder", operator.mod, other)
        terms = {key: factor % by for key, factor in self.terms.items() if factor % by}
        if not terms:
            return self.const % by
        key = ("remainder", (tuple(sorted(terms.items(), key=repr)), self.const % by), by)
        return self.run.made(key, self.value % by, (0, by - 1), self)

    __rfloordiv__ = _unknown("quotient of", lambda a, b: b // a)
    __rmod__ = _unknown("remainder of", lambda a, b: b % a)

    # ---- bits ---------------------------------------------------------------------------------------------------------

    def __lshift__(self, other: Any) -> Any:
        by = whole(other)
        return self._opaque("shift", operator.lshift, other) if by is None else self * (1 << by)

    def __rshift__(self, other: Any) -> Any:
        by = whole(other)
        return self._opaque("shift down", operator.rshift, other) if by is None else self // (1 << by)

    def __and__(self, other: Any) -> Any:
        by = whole(other)
        if by is not None and by > 0 and by & (by + 1) == 0:
            return self % (by + 1)
        return self._opaque("and", operator.and_, other)

    __rand__ = __and__
    __or__ = __ror__ = _unknown("or", operator.or_)
    __xor__ = __rxor__ = _unknown("xor", operator.xor)
    __rlshift__ = _unknown("shift of", lambda a, b: b << a)

    def __abs__(self) -> Any:
        return self._opaque("size", lambda a, b: abs(a), 0)

    def _opaque(self, name: str, function: Callable[[int, int], int], other: Any) -> Any:
        """A term of which nothing but its name is known."""
        if isinstance(other, Condition):
            other = int(other)
        if type(other) is Varying:
            key = (name, self.form, other.form)
            return self.run.made(key, function(self.value, other.value), UNBOUNDED, self, other)
        number = whole(other)
        if number is None:
            return NotImplemented
        return self.run.made((name, self.form, number), function(self.value, number), UNBOUNDED, self)

    # ---- comparisons --------------------------------------------------------------------------------------------------

    def _compare(self, other: Any, name: str) -> Any:
        difference = self._plus(other, -1)
        if difference is NotImplemented:
            return NotImplemented
        if not isinstance(difference, Varying):
            return bool(getattr(operator, name)(difference, 0))
        return Condition((difference,), bool(getattr(operator, name)(self.run.value(difference), 0)), name)

    def __bool__(self) -> bool:
        return bool(self._compare(0, "ne"))

    # ---- its value ----------------------------------------------------------------------------------------------------

    def settle(self) -> int:
        return self.run.use(VALUE, self)

    def __repr__(self) -> str:
        return text_of(tuple(sorted(self.terms.items(), key=repr)), self.const)

    @property
    def form(self) -> tuple[Any, ...]:
        """What it is, the same for equal sums."""
        return self.run.sorted(self), self.const


def _comparison(name: str) -> Callable[..., Any]:
    return lambda number, other: number._compare(other, name)


for _name in COMPARISONS:
    setattr(Varying, f"__{_name}__", _comparison(_name))


def _joined(name: str, function: Callable[[bool, bool], bool]) -> Callable[..., Any]:
    """An operator of conditions whose outcome is a condition."""
    return lambda condition, other: condition._with(other, name, function)


class Condition(RecordedNumber):
    """A comparison of numbers that vary, or several. Its outcome is used where Python branches on it."""

    __slots__ = ("name", "of", "value")
    __hash__ = _refuse_hash

    def __init__(self, of: tuple[Varying, ...], value: bool, name: Any):
        self.of, self.value, self.name = of, value, name

    def settle(self) -> bool:
        for number in self.of:
            number.run.use(COMPARED, number)
        return self.value

    def _with(self, other: Any, name: str, function: Callable[[bool, bool], bool]) -> Any:
        if isinstance(other, Condition):
            return Condition((*self.of, *other.of), function(self.value, other.value), (name, self.key, other.key))
        if isinstance(other, (bool, int)):
            return Condition(self.of, function(self.value, bool(other)), (name, self.key, bool(other)))
        return NotImplemented

    @property
    def key(self) -> Any:
        return self.name, tuple(number.form for number in self.of)

    __and__ = __rand__ = _joined("and", lambda a, b: a and b)
    __or__ = __ror__ = _joined("or", lambda a, b: a or b)
    __xor__ = __rxor__ = _joined("xor", lambda a, b: a != b)

    def __invert__(self) -> Condition:
        return Condition(self.of, not self.value, ("not", self.name))

    def choose(self, then: Any, otherwise: Any) -> Any:
        """`Isa.select`: nothing is decided yet."""
        run = self.of[0].run
        if any(type(x) is not Varying and whole(x) is None for x in (then, otherwise)):
            return then if self else otherwise
        taken = then if self.value else otherwise
        forms = tuple([x.form if type(x) is Varying else int(x) for x in (then, otherwise)])
        if forms[0] == forms[1]:
            return taken
        key = ("choice", self.key, *forms)
        bounds = zip(run.bounds(then, otherwise), (min, max), strict=True)
        ends = [None if None in both else least(both) for both, least in bounds]  # type: ignore[type-var]
        parts = (*self.of, *(x for x in (then, otherwise) if type(x) is Varying))
        value = taken.value if type(taken) is Varying else int(taken)
        return run.made(key, value, ends, *parts)


def whole(value: Any) -> int | None:
    """A plain number; None for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, Condition):
        return int(value)
    try:
        return operator.index(value) if not isinstance(value, (Varying, str)) else None
    except TypeError:
        return None
