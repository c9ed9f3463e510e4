"""Expressions: the values of a traced program, made of symbols, variables and arithmetic.

Two expressions that are the same object are equal, whatever role they come from: each is made once. Numbers have 32 bits and
wrap around, whether they are folded here or computed by a reader: `tmapipe.program.int32` has the rule of each operation.
"""

from __future__ import annotations

import functools
import operator
import threading
import weakref
from typing import Any

import numpy as np

from tmapipe.errors import ScopeError
from tmapipe.isa.values import Carried
from tmapipe.program.int32 import FOLD, fitting, wrapped

BOOLEAN = {"lt", "le", "gt", "ge", "eq", "ne", "not"}
_interned: weakref.WeakValueDictionary[Any, Expr] = weakref.WeakValueDictionary()  # of programs that are still in use


class _AtWork(threading.local):
    """note: called with each value where it is computed, by what traces in this thread."""

    note: Any = None


at_work = _AtWork()


def symbolic(value: Any) -> bool:
    """Whether it is known only when the kernel runs."""
    return isinstance(value, Expr)


class DividedByZeroError(ScopeError, ZeroDivisionError):
    """What Python raises, with the line."""


class Expr:
    """A value. Interned: two that are the same object are equal, whatever role they come from."""

    __slots__ = ("__weakref__", "args", "op")
    __hash__ = object.__hash__

    def __init__(self, op: str, args: tuple[Any, ...]):
        self.op, self.args = op, args

    @staticmethod
    def of(op: str, *args: Any) -> Any:
        args = tuple(map(resolve, args))
        if op in FOLD and not any(isinstance(a, Expr) for a in args):
            return FOLD[op](*args)
        if op in ("add", "mul", "and", "or", "xor") and not isinstance(args[0], Expr):
            args = args[::-1]
        found = _simpler(op, args)
        if found is not None:
            return found[0]
        made = Expr._interned(op, args)
        if at_work.note is not None:
            at_work.note(made)
        return made

    @staticmethod
    def _interned(op: str, args: Any) -> Any:
        key = (op, *(("e", id(a)) if isinstance(a, Expr) else (type(a), a) for a in args))
        found = _interned.get(key)
        return found if found is not None else _interned.setdefault(key, Expr(op, args))  # of two threads, one makes it

    @property
    def boolean(self) -> bool:
        if self.op in ("and", "or", "xor"):
            return all(isinstance(a, bool) or (isinstance(a, Expr) and a.boolean) for a in self.args)
        return self.op in BOOLEAN or (self.op == "select" and all(isinstance(a, bool) for a in self.args[1:]))

    def __invert__(self) -> Any:
        return (
            Expr.of("sub", -1, self) if self.boolean else Expr.of("invert", self)
        )  # of a condition, as of Python's bool

    def _no_fraction(self, other: Any) -> Any:
        raise ScopeError(
            f"a division with / of `{show(self)}`, which only the kernel knows. Numbers are whole: use //."
        )

    __truediv__ = __rtruediv__ = _no_fraction

    def __pow__(self, by: Any) -> Any:
        if type(by) is not int or not 1 <= by <= 31:
            raise ScopeError(
                f"`{show(self)}` to the power of {type(by).__name__ if symbolic(by) else by}. It takes 1 to 31."
            )
        return functools.reduce(operator.mul, [self] * by)

    def __rpow__(self, base: Any) -> Any:
        raise ScopeError(
            f"{base} to the power of `{show(self)}`, which only the kernel knows. Of 2, write 1 << number."
        )

    def _unknown(self, what: str) -> Any:
        raise ScopeError(f"{what} of `{show(self)}`, which only the kernel knows")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ScopeError(
            f"`.{name}` of `{show(self)}`, which only the kernel knows: a number that takes arithmetic alone"
        )

    def __bool__(self) -> bool:
        return self._unknown("a decision by Python (in code that is not rewritten)")

    def __index__(self) -> int:
        return self._unknown("a Python index or count")

    __int__ = __index__

    def __iter__(self) -> Any:
        return self._unknown("an iteration")

    def __repr__(self) -> str:
        return show(self)


def _operator(name: str, swapped: bool = False) -> Any:
    def operate(self: Expr, other: Any) -> Any:
        if isinstance(other, float):
            raise ScopeError(
                f"arithmetic of `{show(self)}`, which only the kernel knows, with {other}. Numbers are whole."
            )
        other = int(other) if isinstance(other, np.integer) else other
        if other is None or isinstance(other, Carried) or (not isinstance(other, (int, Expr)) and name in ("eq", "ne")):
            return NotImplemented
        if not isinstance(other, (int, Expr)):
            kind = type(other).__name__
            raise ScopeError(f"arithmetic of `{show(self)}`, which only the kernel knows, with a {kind}. It takes int.")
        if not isinstance(other, Expr):
            fitting(other)
        return Expr.of(name, other, self) if swapped else Expr.of(name, self, other)

    return operate


for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(Expr, f"__{_name}__", _operator(_name))
    setattr(Expr, f"__r{_name}__", _operator(_name, swapped=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Expr, f"__{_name}__", _operator(_name))
Expr.__neg__ = lambda self: Expr.of("sub", 0, self)  # type: ignore[operator]
Expr.__pos__ = lambda self: Expr.of("add", self, 0)  # type: ignore[operator]
Expr.__abs__ = lambda self: Expr.of("abs", self)  # type: ignore[attr-defined]


def _is(value: Any, number: int) -> bool:
    return type(value) in (int, bool) and value == number


def _simpler(op: str, a: tuple[Any, ...]) -> tuple[Any] | None:
    """The same value with fewer operations, or None. A condition in arithmetic becomes a number, so it stays an operation."""
    if op == "add":
        if _is(a[1], 0) and not _condition(a[0]):
            return (a[0],)
        if isinstance(a[0], Expr) and a[0].op in ("add", "sub") and type(a[0].args[1]) is int and type(a[1]) is int:
            k = wrapped(a[1] + (a[0].args[1] if a[0].op == "add" else -a[0].args[1]))
            return (Expr.of("add", a[0].args[0], k),)
    if op == "sub":
        if a[0] is a[1]:
            return (0,)
        if type(a[1]) is int:
            return (Expr.of("add", a[0], wrapped(-a[1])),)
    if op == "mul":
        if _is(a[1], 0):
            return (0,)
        if _is(a[1], 1) and not _condition(a[0]):
            return (a[0],)
    if op in ("floordiv", "mod") and _is(a[1], 0):
        raise DividedByZeroError(f"`{show(a[0])}` is divided by 0")
    if op in ("lshift", "rshift") and type(a[1]) is int and not 0 <= a[1] < 32:
        raise ScopeError(f"a shift of `{show(a[0])}` by {a[1]}. A number has 32 bits: shift it by 0 to 31.")
    if op == "floordiv" and _is(a[1], 1) and not _condition(a[0]):
        return (a[0],)
    if op == "and" and isinstance(a[1], bool) and _condition(a[0]):
        return (a[0] if a[1] else False,)
    if op == "or" and isinstance(a[1], bool) and _condition(a[0]):
        return (True if a[1] else a[0],)
    if op == "select":
        if not isinstance(a[0], Expr):
            return (a[1] if a[0] else a[2],)
        if a[1] is a[2]:
            return (a[1],)
    return None


def _condition(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, Expr) and value.boolean)


def select(condition: Any, then: Any, other: Any) -> Any:
    return Expr.of("select", condition, then, other)


class Var(Expr):
    """What a node gives: a loop's index or carried value, a merge of branches, an answer, data of fragments.

    alias: what it is after all, of a carried value that the loop does not change.
    """

    __slots__ = ("alias", "is_bool", "name")

    def __init__(self, name: str, boolean: bool = False):
        self.op, self.args, self.name, self.alias, self.is_bool = "var", (), name, None, boolean

    @property
    def boolean(self) -> bool:
        return self.is_bool


def resolve(value: Any) -> Any:
    while isinstance(value, Var) and value.alias is not None:
        value = value.alias[0]
    return value


# ---- text -------------------------------------------------------------------------------------------------------------

_SIGNS = {
    "mul": ("*", 7), "floordiv": ("//", 7), "mod": ("%", 7), "add": ("+", 6), "sub": ("-", 6), "lshift": ("<<", 5),
    "rshift": (">>", 5), "and": ("&", 4), "xor": ("^", 3), "or": ("|", 2), "lt": ("<", 1), "le": ("<=", 1),
    "gt": (">", 1), "ge": (">=", 1), "eq": ("==", 1), "ne": ("!=", 1),
}  # fmt: skip


def show(value: Any, outer: int = 0) -> str:
    value = resolve(value)
    if not isinstance(value, Expr):
        return str(value)
    if isinstance(value, Var):  # of a register all values have one name
        return value.name.split("'")[0] if "." in value.name else value.name
    if value.op == "symbol":
        return value.args[0]
    if value.op == "divisor":
        return show(value.args[1], outer)
    a = value.args
    if value.op == "next":
        return f"next({show(a[0])}, {show(a[1])})"
    if value.op == "flipped":
        return f"{show(a[0], 7)} ^ lap({show(a[1])})"
    if value.op == "add" and type(a[1]) is int and a[1] < 0:
        text, level = f"{show(a[0], 6)} - {-a[1]}", 6
    elif value.op == "select":
        wraps = resolve(a[0])
        if _is(a[1], 0) and isinstance(wraps, Expr) and wraps.op == "eq" and wraps.args[0] is a[2]:
            text, level = f"{show(a[2], 7)} mod {show(wraps.args[1])}", 7  # the next of so many slots
        else:
            text, level = f"{show(a[1], 1)} if {show(a[0], 1)} else {show(a[2], 1)}", 0
            text, level = (f"({text})", 9) if outer else (text, 0)
    elif value.op in _SIGNS:
        sign, level = _SIGNS[value.op]
        text = f"{show(a[0], level)} {sign} {show(a[1], level + 1)}"
    else:
        return f"{value.op}({', '.join(map(show, a))})"
    return f"({text})" if level < outer else text
