"""Expressions and nodes of a traced program: 32-bit numbers of symbols, variables and arithmetic."""

from __future__ import annotations

import functools
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import numpy as np

from tmapipe.errors import ScopeError
from tmapipe.isa.fragment import Carried

# ---- int32 -----------------------------------------------------------------------------------------------------------
#
# Numbers of a traced program have 32 bits, in every reader:
#
# + - * abs, negation     wrap around, as the hardware's do
# // %                    round down and have the sign of the divisor, as Python's do; -2^31 // -1 wraps to -2^31
# << >>                   by 0 to 31; << drops what does not fit, >> keeps the sign
# & | ^ ~                 of two's complement; of two conditions a condition
# < <= > >= == !=         exact, and min and max with them
#
# Python's own integers are longer, but only Python's constants can be: one that does not fit is refused where it
# meets a number of the kernel (`fitting`).


LEAST, MOST = -(2**31), 2**31 - 1


def wrapped(value: Any) -> Any:
    """The number of 32 bits that is *value* modulo 2^32; a condition stays one."""
    if LEAST <= value <= MOST:
        return value
    return (value - LEAST) % 2**32 + LEAST


def fitting(value: Any) -> Any:
    """*value*, a constant of Python. Raises `ScopeError` if it has more than 32 bits."""
    if LEAST <= value <= MOST:
        return value
    said = value if abs(value) < 2**64 else f"an int of {value.bit_length()} bits"
    raise ScopeError(f"{said} meets a number of the kernel, which has 32 bits. Use constants from -2**31 to 2**31 - 1.")


def _wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: wrapped(function(*values))


def _shift(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def shift(value: Any, by: Any) -> Any:
        if not 0 <= by <= 31:
            raise ScopeError(f"a shift by {by}. A number has 32 bits: shift it by 0 to 31.")
        return wrapped(function(value, by))

    return shift


#: Operation -> its value.
FOLD: dict[str, Callable[..., Any]] = {
    **{name: _wrapping(getattr(operator, name)) for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "abs")},
    **{name: _shift(getattr(operator, name)) for name in ("lshift", "rshift")},
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne", "xor", "invert")},
    "and": operator.and_,
    "or": operator.or_,
    "not": operator.not_,
    "min": min,
    "max": max,
    "select": lambda c, a, b: a if c else b,
    "next": lambda slot, stages: 0 if slot + 1 == stages else slot + 1,
    "flipped": lambda parity, slot, stages: parity ^ (slot + 1 == stages),
}


# ---- expressions -----------------------------------------------------------------------------------------------------
#
# The values of a traced program. Each is made once: values that are equal are one object, whatever role they come from.


#: Operations that give a condition.
BOOLEAN = {"lt", "le", "gt", "ge", "eq", "ne", "not"}
KEPT = 10_000
#: Values of programs in use, and as many of programs that are gone, or `KEPT` in all.
values: dict[Any, weakref.ref[Expr]] = {}
_making = threading.RLock()
_most = KEPT  # values, until the ones that are gone are left out


class _AtWork(threading.local):
    """note: called with each value where it is computed, by what traces in this thread."""

    note: Any = None


at_work = _AtWork()


def symbolic(value: Any) -> bool:
    """Whether it is known only when the kernel runs."""
    return isinstance(value, Expr)


def unknown(what: str, number: Any, rest: str = "") -> ScopeError:
    """The error that *what* takes no number that only the kernel knows. rest: the end of its sentence."""
    return ScopeError(f"{what} `{show(number)}`, which only the kernel knows{rest}")


class DividedByZeroError(ScopeError, ZeroDivisionError):
    """What Python raises, with the line."""


class Expr:
    """A value: an operation on other values and constants, or a symbol, such as ``Expr.of("symbol", "rank")``."""

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
        simpler = _simpler(op, args)
        if simpler is not None:
            return simpler[0]
        made = Expr._interned(op, args)
        if at_work.note is not None:
            at_work.note(made)
        return made

    @staticmethod
    def _interned(op: str, args: Any) -> Any:
        """The value of these, of which one of two threads makes the only object. (`WeakValueDictionary` calls a function of
        Python for each value that goes, which takes as long as making it.)"""
        global _most
        key = (op, *(("e", id(a)) if isinstance(a, Expr) else (type(a), a) for a in args))
        with _making:
            kept = values.get(key)
            made = None if kept is None else kept()
            if made is None:
                if len(values) >= _most:
                    for each in [each for each, of in values.items() if of() is None]:
                        del values[each]
                    _most = max(KEPT, 2 * len(values))
                made = Expr(op, args)
                values[key] = weakref.ref(made)
            return made

    @property
    def boolean(self) -> bool:
        if self.op in ("and", "or", "xor"):
            return all(isinstance(a, bool) or (isinstance(a, Expr) and a.boolean) for a in self.args)
        return self.op in BOOLEAN or (self.op == "select" and all(isinstance(a, bool) for a in self.args[1:]))

    def __invert__(self) -> Any:  # of a condition, as of Python's bool
        return Expr.of("sub", -1, self) if self.boolean else Expr.of("invert", self)

    def _no_fraction(self, other: Any) -> Any:
        raise unknown("a division with / of", self, ". Numbers are whole: use //, or divide a fragment by it.")

    __truediv__ = __rtruediv__ = _no_fraction

    def __pow__(self, by: Any, modulo: Any = None) -> Any:
        if modulo is not None:
            raise unknown("pow() with three arguments of", self, ". Use ** and %.")
        if type(by) is not int or not 1 <= by <= 31:
            by = type(by).__name__ if symbolic(by) else by
            raise ScopeError(f"`{show(self)}` to the power of {by}. It takes 1 to 31.")
        return functools.reduce(operator.mul, [self] * by)

    def __rpow__(self, base: Any) -> Any:
        raise unknown(f"{base} to the power of", self, ". Of 2, write 1 << number.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise unknown(f"`.{name}` of", self, ": a number that takes arithmetic alone")

    def __bool__(self) -> bool:
        raise unknown("a decision by Python (in code that is not rewritten) of", self)

    def __index__(self) -> int:
        raise unknown("a Python index or count of", self)

    __int__ = __index__

    def __iter__(self) -> Any:
        raise unknown("an iteration of", self)

    def __repr__(self) -> str:
        return show(self)


def _operator(name: str, swapped: bool = False) -> Any:
    def operate(self: Expr, other: Any) -> Any:
        if isinstance(other, float):
            raise unknown("arithmetic of", self, f", with {other}. Numbers are whole.")
        other = int(other) if isinstance(other, np.integer) else other
        if other is None or isinstance(other, Carried) or (not isinstance(other, (int, Expr)) and name in ("eq", "ne")):
            return NotImplemented
        if not isinstance(other, (int, Expr)):
            raise unknown("arithmetic of", self, f", with a {type(other).__name__}. It takes int.")
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


def of_warp(x: Any, warp: int) -> Any:
    """The value of *x* in the warp of this number, or *x* itself if more decides it."""
    if not isinstance(x, Expr):
        return x
    if x.op == "symbol" and x.args[0] == "warp":
        return warp
    args = [of_warp(each, warp) for each in x.args]
    return x if x.op not in FOLD or any(isinstance(each, Expr) for each in args) else FOLD[x.op](*args)


# ---- text -------------------------------------------------------------------------------------------------------------

#: Operation -> its sign in Python, and how tightly it binds.
SIGNS = {
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
    elif value.op in SIGNS:
        sign, level = SIGNS[value.op]
        text = f"{show(a[0], level)} {sign} {show(a[1], level + 1)}"
    else:
        return f"{value.op}({', '.join(map(show, a))})"
    return f"({text})" if level < outer else text


# ---- nodes -----------------------------------------------------------------------------------------------------------
#
# The nodes of a traced program. Blocks are lists of nodes.


Assigned = list[tuple["Var", Any]]  # variables, and the values that they take at once


class Node:
    """where: "file:line" of the body that it comes from."""

    __slots__ = ()
    where: str | None = None

    @property
    def test(self) -> Any:
        """What decides what is executed: the condition of a branch or loop, or its count; None of others."""
        return getattr(self, "condition", None)

    @property
    def inside(self) -> list[Any]:
        """The nodes of its body, or of both arms."""
        return getattr(self, "body", [])

    @property
    def assigned(self) -> list[Assigned]:
        """What a loop or branch assigns: by arm; or before the loop, after each iteration, and after the loop."""
        carried = getattr(self, "carried", [])
        return [[(each[to], each[value]) for each in carried] for to, value in ((0, 1), (0, 2), (3, 0))]

    @property
    def given(self) -> list[Var]:
        """The variables to which a node gives values, other than the index of a loop."""
        return [to for assigned in self.assigned for to, _ in assigned]


@attrs.define(eq=False)
class Call(Node):
    """An instruction. method: its name in `Isa`, or "fragments." and its name in `Fragments`; results: the variables that have
    what it gives; ops: its operations, whose operands are expressions."""

    method: str
    args: Any
    named: Any
    results: list[Var]
    ops: list[Any]
    where: str | None

    @property
    def given(self) -> list[Var]:
        return self.results


@attrs.define(eq=False)
class Let(Node):
    """Here the trace computed a value, as the GPU and the model do; or a body begins with a `Tile`, which is the value. Of no
    matter to most readers."""

    value: Any


@attrs.define(eq=False)
class OfModel:
    """What something is in the model, of no matter to others: values, and the nodes without operations that compute them.

    Clusters take turns there, and it may run without data.
    """

    nodes: list[Any]
    values: Any


@attrs.define(eq=False)
class For(Node):
    """Executes its body for index = 0 .. count - 1.

    carried: (variable in the body, its value before the loop, its next value, variable after the loop).
    """

    index: Var
    count: Any
    carried: list[Any]
    body: list[Node]
    where: str | None

    @property
    def test(self) -> Any:
        return self.count


@attrs.define(eq=False)
class While(Node):
    """carried: as of `For`. iterations: how often it runs where there is no data (`OfModel`), or None."""

    condition: Any
    carried: list[Any]
    body: list[Node]
    iterations: Any
    where: str | None


@attrs.define(eq=False)
class If(Node):
    """phis: (variable, the value after `then`, the value after `other`). lane_0: whether lane 0 alone runs it."""

    condition: Any
    then: list[Node]
    other: list[Node]
    phis: Any
    lane_0: bool
    where: str | None

    @property
    def inside(self) -> list[Any]:
        return [*self.then, *self.other]

    @property
    def assigned(self) -> list[Assigned]:
        return [[(phi, arms[i]) for phi, *arms in self.phis] for i in (0, 1)]


def every(nodes: Iterable[Node]) -> Iterator[Any]:
    """The nodes, each before the nodes inside of it."""
    for node in nodes:
        yield node
        yield from every(node.inside)


@attrs.define(eq=False)
class Function:
    """What is computed of fragments element by element, such as an epilogue.

    inputs, named: variables for the data of what it is called with, by place and by name. outputs: what it gives, by name; ""
    if that is one value. A value is a fragment, a number, or None.
    """

    name: str
    inputs: list[Var]
    named: dict[str, Var]
    body: list[Any]
    outputs: dict[str, Any]

    def of(self, values: dict[str, Any]) -> Any:
        """What it returns, of the values of its outputs."""
        return values[""] if list(values) == [""] else values
