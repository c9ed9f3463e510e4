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
from tmapipe.machine.varying_text import text_of

if TYPE_CHECKING:
    from tmapipe.machine.decisions import Decisions

__all__ = ["COMPARED", "Key", "VALUE", "Condition", "Varying", "whole"]

MOST = 2**31  # whole numbers of a kernel are smaller
COMPARED, VALUE = "is compared", "is used as a value"

Key = tuple[Any, ...]


def _refuse_hash(self: Any) -> int:
    raise ScopeError("a number that varies (an extent, a coordinate, a count) as a key of a dictionary or a set.")


def _too_large(number: int) -> InputError:
    rule = "is a factor or a summand of a number that varies, and whole numbers have 32 bits in a kernel"
    return InputError("number in a body", number, rule, "divide first, or leave it out")


class Varying:
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

    def __pos__(self) -> Varying:
        return self

    def __mul__(self, other: Any) -> Any:
        if type(other) is Varying:
            first, second = sorted((self, other), key=lambda number: repr(number.form))
            ends = [
                None if a is None or b is None or a < 0 or b < 0 else a * b
                for a, b in (
                    (self.run.bound(self, end), self.run.bound(other, end)) for end in ("low", "empty", "high")
                )
            ]
            if ends[1] is None:
                ends[2] = None
            key = ("product", first.form, second.form)
            return self.run.made(key, self.value * other.value, (ends[0], ends[1], ends[2]), self, other)
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
        by = whole(other) if type(other) is not Varying else None
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
        low, empty, high = (self.run.bound(self, end) for end in ("low", "empty", "high"))
        ends = tuple(None if end is None else end // by for end in (low, empty, high))
        return self.run.made(("quotient", self.form, by), self.value // by, ends, self)

    def __mod__(self, other: Any) -> Any:
        by = whole(other) if type(other) is not Varying else None
        if by is None or by <= 0:
            return self._opaque("remainder", operator.mod, other)
        terms = {key: factor % by for key, factor in self.terms.items() if factor % by}
        if not terms:
            return self.const % by
        key = ("remainder", (tuple(sorted(terms.items(), key=repr)), self.const % by), by)
        return self.run.made(key, self.value % by, (0, 0, by - 1), self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rfloordiv__(self, other: Any) -> Any:
        return self._opaque("quotient of", lambda a, b: b // a, other)

    def __rmod__(self, other: Any) -> Any:
        return self._opaque("remainder of", lambda a, b: b % a, other)

    # ---- bits ---------------------------------------------------------------------------------------------------------

    def __lshift__(self, other: Any) -> Any:
        by = whole(other) if type(other) is not Varying else None
        return self._opaque("shift", operator.lshift, other) if by is None else self * (1 << by)

    def __rshift__(self, other: Any) -> Any:
        by = whole(other) if type(other) is not Varying else None
        return self._opaque("shift down", operator.rshift, other) if by is None else self // (1 << by)

    def __and__(self, other: Any) -> Any:
        by = whole(other) if type(other) is not Varying else None
        if by is not None and by > 0 and by & (by + 1) == 0:
            return self % (by + 1)
        return self._opaque("and", operator.and_, other)

    def __or__(self, other: Any) -> Any:
        return self._opaque("or", operator.or_, other)

    def __xor__(self, other: Any) -> Any:
        return self._opaque("xor", operator.xor, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __rlshift__(self, other: Any) -> Any:
        return self._opaque("shift of", lambda a, b: b << a, other)

    def __abs__(self) -> Any:
        return self._opaque("size", lambda a, b: abs(a), 0)

    def _opaque(self, name: str, function: Callable[[int, int], int], other: Any) -> Any:
        """A term of which nothing but its name is known."""
        if isinstance(other, Condition):
            other = int(other)
        if type(other) is Varying:
            key = (name, self.form, other.form)
            return self.run.made(key, function(self.value, other.value), (None, None, None), self, other)
        number = whole(other)
        if number is None:
            return NotImplemented
        return self.run.made((name, self.form, number), function(self.value, number), (None, None, None), self)

    # ---- comparisons --------------------------------------------------------------------------------------------------

    def _compare(self, other: Any, name: str) -> Any:
        difference = self._plus(other, -1)
        if difference is NotImplemented:
            return NotImplemented
        if not isinstance(difference, Varying):
            return bool(getattr(operator, name)(difference, 0))
        return Condition((difference,), bool(getattr(operator, name)(self.run.value(difference), 0)), name)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "lt")

    def __le__(self, other: Any) -> Any:
        return self._compare(other, "le")

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, "gt")

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, "ge")

    def __eq__(self, other: Any) -> Any:
        return self._compare(other, "eq")

    def __ne__(self, other: Any) -> Any:
        return self._compare(other, "ne")

    def __bool__(self) -> bool:
        return bool(self != 0)

    # ---- its value ----------------------------------------------------------------------------------------------------

    def __index__(self) -> int:
        return self.run.use(VALUE, self)

    __int__ = __trunc__ = __ceil__ = __floor__ = __index__

    def __round__(self, digits: int = 0) -> int:
        return self.run.use(VALUE, self)

    def __float__(self) -> float:
        return float(self.run.use(VALUE, self))

    def __truediv__(self, other: Any) -> Any:
        return float(self) / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / float(self)

    def __pow__(self, other: Any) -> Any:
        return int(self) ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** int(self)

    def __str__(self) -> str:
        return str(int(self))

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)

    def __repr__(self) -> str:
        return text_of(tuple(sorted(self.terms.items(), key=repr)), self.const)

    @property
    def form(self) -> tuple[Any, ...]:
        """What it is, the same for equal sums."""
        return self.run.sorted(self), self.const


class Condition:
    """A comparison of numbers that vary, or several. Its outcome is used where Python branches on it."""

    __slots__ = ("name", "of", "value")
    __hash__ = _refuse_hash

    def __init__(self, of: tuple[Varying, ...], value: bool, name: Any):
        self.of, self.value, self.name = of, value, name

    def __bool__(self) -> bool:
        for number in self.of:
            number.run.use(COMPARED, number)
        return self.value

    def __index__(self) -> int:
        return int(bool(self))

    __int__ = __index__

    def _with(self, other: Any, name: str, function: Callable[[bool, bool], bool]) -> Any:
        if isinstance(other, Condition):
            return Condition((*self.of, *other.of), function(self.value, other.value), (name, self.key, other.key))
        if isinstance(other, (bool, int)):
            return Condition(self.of, function(self.value, bool(other)), (name, self.key, bool(other)))
        return NotImplemented

    @property
    def key(self) -> Any:
        return self.name, tuple(number.form for number in self.of)

    def __and__(self, other: Any) -> Any:
        return self._with(other, "and", lambda a, b: a and b)

    def __or__(self, other: Any) -> Any:
        return self._with(other, "or", lambda a, b: a or b)

    def __xor__(self, other: Any) -> Any:
        return self._with(other, "xor", lambda a, b: a != b)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Condition:
        return Condition(self.of, not self.value, ("not", self.name))

    def __eq__(self, other: Any) -> Any:
        return bool(self) == other

    def __ne__(self, other: Any) -> Any:
        return bool(self) != other

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
        ends: list[int | None] = []
        for end, least in (("low", min), ("empty", min), ("high", max)) if key not in run.terms else ():
            both = [run.bound(x, end) if type(x) is Varying else int(x) for x in (then, otherwise)]
            ends.append(None if None in both else least(both))  # type: ignore[type-var]
        parts = (*self.of, *(x for x in (then, otherwise) if type(x) is Varying))
        value = taken.value if type(taken) is Varying else int(taken)
        return run.made(key, value, tuple(ends), *parts)

    for _name in ("add", "sub", "mul", "floordiv", "mod", "radd", "rsub", "rmul", "lt", "le", "gt", "ge", "lshift"):

        def _number(self, other: Any, _name: str = f"__{_name}__") -> Any:
            return getattr(int(self), _name)(other)

        locals()[f"__{_name}__"] = _number

    del _name, _number


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
