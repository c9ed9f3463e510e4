"""Tracing: the control flow of a body, recorded. What rewritten code calls, and what is carried by loops and branches."""

from __future__ import annotations

import builtins
import inspect
import types
import weakref
from typing import Any

from tmapipe.errors import ScopeError
from tmapipe.isa.fragment import Fragment
from tmapipe.machine.locate import locate
from tmapipe.program import expressions, frontend
from tmapipe.program.expressions import Expr, Var, resolve, select, symbolic
from tmapipe.program.frontend import Undefined
from tmapipe.program.nodes import For, If, Let, While


class Cells:
    """Mutable integers, whose values are expressions."""

    def __init__(self, tracer: Tracing, names: list[str], values: list[Any]):
        self.tracer, self.names, self.values = tracer, names, values

    def __getitem__(self, i: int) -> Any:
        return resolve(self.values[i])

    def __setitem__(self, i: int, value: Any) -> None:
        self.values[i] = resolve(value)


class SymbolicRange:
    def __init__(self, start: Any, stop: Any, step: Any = 1):
        self.start, self.stop, self.step = start, stop, step
        if not (type(step) is int and step != 0):
            raise ScopeError("range() with a step that only the kernel knows")

    def __iter__(self) -> Any:
        rule = "which only the kernel knows, in a loop with `break`, `continue` or `return`, in a comprehension, or in code that is not rewritten"
        raise ScopeError(f"a loop over range({expressions.show(self.start)}, {expressions.show(self.stop)}), {rule}")

    __len__ = __iter__

    @property
    def count(self) -> Any:
        if self.step == 1:
            return self.stop - self.start
        if self.step == -1:
            return self.start - self.stop
        width = self.stop - self.start if self.step > 0 else self.start - self.stop
        return (width + abs(self.step) - 1) // abs(self.step)


class Tracing:
    """Where nodes go, and what rewritten code calls."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.path: list[Any] = []  # blocks around the present point
        self.cells: list[weakref.ref[Cells]] = []
        self.taken: dict[str, int] = {}
        self.blocks = self.loops = 0

    # ---- names and values -----------------------------------------------------------------------------------------

    def name(self, wanted: str) -> str:
        n = self.taken[wanted] = self.taken.get(wanted, 0) + 1
        return wanted if n == 1 else f"{wanted}'{n}"

    def var(self, wanted: str, boolean: bool = False) -> Var:
        return Var(self.name(wanted), boolean)

    def live(self) -> list[Cells]:
        found = [(ref, ref()) for ref in self.cells]
        self.cells = [ref for ref, each in found if each is not None]
        return [each for _, each in found if each is not None]

    def undefined(self, name: str) -> Any:
        return Undefined(name)

    def block(self, body: Any, *arguments: Any) -> list[Any]:
        """The nodes of what *body* does."""
        outer, self.nodes = self.nodes, []
        if not self.path:  # names begin anew in each role
            self.taken = {}
        self.blocks += 1
        self.path.append(self.blocks)
        try:
            body(*arguments)
            return self.nodes
        finally:
            self.nodes = outer
            self.path.pop()

    # ---- decisions ------------------------------------------------------------------------------------------------

    def not_(self, value: Any) -> Any:
        return ~value if symbolic(value) and value.boolean else value == 0 if symbolic(value) else not value

    def and_(self, first: Any, second: Any) -> Any:
        if not symbolic(first):
            return second() if first else first
        return Expr.of("and", self._flag(first), self._flag(second()))

    def or_(self, first: Any, second: Any) -> Any:
        if not symbolic(first):
            return first if first else second()
        return Expr.of("or", self._flag(first), self._flag(second()))

    def _flag(self, value: Any) -> Any:
        if symbolic(value):
            return value if value.boolean else value != 0
        return bool(value)

    def ifexp(self, condition: Any, then: Any, other: Any) -> Any:
        if not symbolic(condition):
            return then() if condition else other()
        return self.if_return(condition, then, other, lambda: (), lambda _: None, ())

    def if_return(self, condition: Any, then: Any, other: Any, get: Any, put: Any, names: Any) -> Any:
        if not symbolic(condition):
            return then() if condition else other()
        got: list[Any] = []
        before = self._last()
        phis = self._branches(condition, lambda: got.append(then()), lambda: got.append(other()), get, put, names)
        if self._last() is before:  # no instruction in either: a value
            if all(isinstance(x, (int, Expr)) for x in got):
                return select(self._flag(condition), *got)
            self.nodes.append(If(self._flag(condition), [], [], phis, False, locate()))
        return self._merged("value", got[0], got[1], phis, condition)

    def _last(self) -> Any:
        return next((n for n in reversed(self.nodes) if type(n) is not Let), None)

    def if_(self, condition: Any, then: Any, other: Any, get: Any, put: Any, names: Any) -> None:
        if symbolic(condition):
            self._branches(condition, then, other, get, put, names)
        else:
            (then if condition else other)()

    def _branches(self, condition: Any, then: Any, other: Any, get: Any = lambda: (), put: Any = lambda _: None,
                  names: Any = (), lane_0: bool = False) -> list[Any]:  # fmt: skip
        where = locate()
        cells = self.live()
        before, states = get(), [list(c.values) for c in cells]
        made = self.block(then)
        after_then, states_then = get(), [list(c.values) for c in cells]
        put(before)
        for c, s in zip(cells, states, strict=True):
            c.values = s
        made_other = self.block(other)
        after_other = get()
        phis: list[Any] = []
        put(tuple(self._merged(*each, phis, condition) for each in zip(names, after_then, after_other, strict=True)))
        for c, s in zip(cells, states_then, strict=True):
            c.values = [self._merged(n, a, b, phis, condition) for n, a, b in zip(c.names, s, c.values, strict=True)]
        if phis or not all(type(n) is Let for n in (*made, *made_other)):
            self.nodes.append(If(self._flag(condition), made, made_other, phis, lane_0, where))
        return phis

    def _merged(self, name: str, then: Any, other: Any, phis: list[Any], condition: Any) -> Any:
        then, other = resolve(then), resolve(other)
        if then is other or (type(then) is type(other) is int and then == other):
            return then
        if isinstance(then, tuple) and isinstance(other, tuple) and len(then) == len(other):
            return tuple(self._merged(f"{name}.{i}", a, b, phis, condition) for i, (a, b) in enumerate(zip(then, other)))
        if isinstance(then, (int, Expr)) and isinstance(other, (int, Expr)):
            found = self.var(name, all(isinstance(x, bool) or getattr(x, "boolean", False) for x in (then, other)))
            phis.append((found, then, other))
            return found
        if isinstance(then, Fragment) and isinstance(other, Fragment) and _form(then) == _form(other):
            found = self.var(name)
            phis.append((found, then.data, other.data))
            return Fragment(then.backend, then.layout, then.along, then.kind, found)
        return Undefined(name, f"differs between the branches at {locate()}, and is no number and no fragment of one kind")

    # ---- loops ----------------------------------------------------------------------------------------------------

    def for_in_helper(self, around: Any, body: Any, *state: Any) -> None:
        if isinstance(around, range):
            for item in around:
                body(item)
        else:
            self.for_(around, body, *state)

    def for_(self, around: Any, body: Any, get: Any, put: Any, names: Any, exposed: Any) -> None:
        if isinstance(around, range):
            around = SymbolicRange(around.start, around.stop, around.step)  # one loop, as CuTe DSL makes of it
        if not isinstance(around, SymbolicRange):
            for item in around:
                body(item)
            return
        self.loop(around.count, lambda i: body(around.start + i * around.step), get, put, names, exposed)

    def loop(self, count: Any, body: Any, get: Any = lambda: (), put: Any = lambda _: None, names: Any = (), exposed: Any = ()) -> None:
        where, index = locate(), Var("ijlpqr"[min(5, self.loops)])
        enter = self._enter(get, put, names, exposed)
        self.loops += 1
        made = self.block(body, index)
        self.loops -= 1
        carried = self._leave(enter, get, put, names, exposed)
        self.nodes.append(For(index, count, carried, made, where))

    def while_(self, test: Any, body: Any, get: Any, put: Any, names: Any) -> None:
        first = test()
        if not symbolic(first) and not any(symbolic(v) for v in get()):
            while test():
                body()
            return
        self._while(test, body, get, put, names, None)

    def _while(self, test: Any, body: Any, get: Any, put: Any, names: Any, iterations: Any) -> None:
        where = locate()
        enter = self._enter(get, put, names, names)
        condition = self._flag(test())
        made = self.block(body)
        carried = self._leave(enter, get, put, names, names)
        self.nodes.append(While(condition, carried, made, iterations, where))

    def _enter(self, get: Any, put: Any, names: Any, exposed: Any) -> Any:
        """What is carried: all cells, and those names that are numbers or fragments."""
        cells, before = self.live(), get()
        states = [list(c.values) for c in cells]
        for c in cells:
            c.values = [self.var(n) for n in c.names]
        inside = tuple(self._phi(n, v) for n, v in zip(names, before, strict=True))
        put(inside)
        return cells, states, [list(c.values) for c in cells], before, inside

    def _phi(self, name: str, value: Any) -> Any:
        value = resolve(value)
        if isinstance(value, tuple) and value:
            return tuple(self._phi(f"{name}.{i}", v) for i, v in enumerate(value))
        if isinstance(value, (int, Expr)):
            return self.var(name, isinstance(value, bool) or getattr(value, "boolean", False))
        if isinstance(value, Fragment):
            return Fragment(value.backend, value.layout, value.along, value.kind, self.var(name))
        return value

    def _leave(self, enter: Any, get: Any, put: Any, names: Any, exposed: Any) -> list[Any]:
        cells, states, inside, before, seen = enter
        carried: list[Any] = []
        for c, initial, phis in zip(cells, states, inside, strict=True):
            c.values = [self._carry(n, *each, carried) for n, *each in zip(c.names, initial, phis, c.values, strict=True)]
        after = []
        for name, first, phi, last in zip(names, before, seen, get(), strict=True):
            after.append(self._after(name, first, phi, last, carried, name in exposed))
        put(tuple(after))
        return carried

    def _carry(self, name: str, initial: Any, phi: Var, last: Any, carried: list[Any]) -> Any:
        last = resolve(last)
        if last is phi or (not symbolic(last) and type(last) is type(initial) and last == initial):
            phi.alias = (initial,)
            return resolve(initial)
        after = Var(phi.name, phi.is_bool)
        carried.append((phi, initial, last, after))
        return after

    def _after(self, name: str, first: Any, phi: Any, last: Any, carried: list[Any], exposed: bool) -> Any:
        if isinstance(phi, tuple) and isinstance(last, tuple) and len(phi) == len(last):
            return tuple(self._after(name, *each, carried, exposed) for each in zip(first, phi, last, strict=True))
        if isinstance(phi, Var) and isinstance(last, (int, Expr)):
            return self._carry(name, first, phi, last, carried)
        if isinstance(phi, Fragment) and isinstance(last, Fragment) and _form(phi) == _form(last):
            after = self._carry(name, first.data, phi.data, last.data, carried)
            return Fragment(phi.backend, phi.layout, phi.along, phi.kind, after)
        if last is phi:
            return last
        if exposed and not isinstance(phi, Undefined):
            forms = f"{_kind(first)} before the loop, {_kind(last)} after an iteration"
            raise ScopeError(f"`{name}` is {forms}: a loop carries numbers, and fragments of one form. At {locate()}.")
        return Undefined(name, f"is set in the loop at {locate()}, which may not run at all; or it is no number")

    # ---- calls ----------------------------------------------------------------------------------------------------

    def call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        known = _BUILTINS.get(id(function))
        if known is not None:
            return known(*arguments, **named)
        plain = function.__func__ if isinstance(function, types.MethodType) else function
        plain = inspect.unwrap(plain) if callable(plain) else plain  # a helper may be decorated, as by cute.jit
        if isinstance(plain, types.FunctionType) and frontend.is_users(plain):
            function = frontend.converted(function)
        return function(*arguments, **named)


def _form(values: Fragment) -> Any:
    return values.layout, values.along, values.kind


def _kind(value: Any) -> str:
    return repr(value) if isinstance(value, Fragment) else type(value).__name__


def _range(*bounds: Any) -> Any:
    if not any(map(symbolic, bounds)):
        return range(*bounds)
    return SymbolicRange(*((0, *bounds) if len(bounds) == 1 else bounds))


def _least(name: str) -> Any:
    plain = getattr(builtins, name)

    def least(*values: Any, **named: Any) -> Any:
        values = tuple(values[0]) if len(values) == 1 else values
        if not any(map(symbolic, values)):
            return plain(values, **named)
        found = values[0]
        for each in values[1:]:
            found = Expr.of(name, found, each)
        return found

    return least


_BUILTINS = {
    id(range): _range, id(min): _least("min"), id(max): _least("max"),
    id(int): lambda *a, **n: a[0] if a and symbolic(a[0]) else int(*a, **n),
    id(bool): lambda *a: (a[0] if a[0].boolean else a[0] != 0) if a and symbolic(a[0]) else bool(*a),
    id(divmod): lambda a, b: (a // b, a % b) if symbolic(a) or symbolic(b) else divmod(a, b),
}  # fmt: skip


