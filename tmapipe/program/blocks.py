"""Branches of a trace: both arms are traced, and the values and facts that later code depends on are joined after them."""

from __future__ import annotations

import collections
import copy
import dataclasses
import operator
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from tmapipe.errors import ScopeError
from tmapipe.isa.fragment import Carried, Fragment
from tmapipe.model.layout import locate
from tmapipe.program.expressions import Expr, If, Let, resolve, symbolic
from tmapipe.program.rewrite_expressions import AFTER_RETURN, RETURNED, VALUE

if TYPE_CHECKING:
    from tmapipe.program.control import Tracing


# ---- carried ---------------------------------------------------------------------------------------------------------
#
# Values that are joined where paths meet: numbers (an `int`, a `bool`, an expression), fragments, and what is made of these: a
# tuple, named tuple, list, deque, dictionary, frozen attrs or dataclass object, or an object of the library that names its
# attributes that vary (`Carried._carries`), such as an open slot. Values of one form are joined part by part. Anything else is
# the same on all paths, or unknown after them.


_CONSTANTS = (str, bytes, float, complex, type(None), range, frozenset, type(...))

#: How to mend what takes another form.
KEPT = "Give it a value of the form that it keeps before the loop or branch, e.g. k.full(stage, 0.0)"


class Undefined:
    """In the place of a name without a value (*why* is None), or with a value that depends on the path and is not joined."""

    _name: str
    _why: str | None

    def __init__(self, name: str, why: str | None = None):
        self._name, self._why = name, why

    def _refuse(self, *_: Any, **__: Any) -> Any:
        if self._why is None:
            rule = "where it is not associated with a value"
            raise UnboundLocalError(f"cannot access local variable {self._name!r} {rule}")
        raise ScopeError(f"`{self._name}` {self._why}.")

    __getattr__ = __call__ = __bool__ = __iter__ = __add__ = __radd__ = __sub__ = __mul__ = __lt__ = __gt__ = _refuse
    __enter__ = __exit__ = __index__ = __getitem__ = __rmul__ = __rsub__ = __le__ = __ge__ = __eq__ = __ne__ = _refuse
    __len__ = __float__ = __int__ = __neg__ = __floordiv__ = __mod__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Differs:
    """In the place of a fact of the protocol that depends on the path by which a block was left."""

    def __init__(self, what: str, where: str | None):
        self.what, self.where = what, where

    def __bool__(self) -> bool:
        raise ScopeError(f"{self.what}, which depends on the path that was taken to {self.where}.")


def is_number(value: Any) -> bool:
    return type(value) in (int, bool) or isinstance(value, Expr)


def is_boolean(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, Expr) and value.boolean)


def same(a: Any, b: Any) -> bool:
    """Whether two values are one for every reader."""
    a, b = resolve(a), resolve(b)
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, types.MethodType):
        return a.__func__ is b.__func__ and a.__self__ is b.__self__
    if isinstance(a, (tuple, list, collections.deque)):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, (int, *_CONSTANTS)) and bool(a == b)


def kind_of(value: Any) -> str:
    """What a value is, in an error."""
    if isinstance(value, Undefined):
        return "unknown"
    return repr(value) if isinstance(value, Fragment) else type(value).__name__


def _form(value: Any) -> Any:
    """What is equal of two values that are joined part by part; None for a value without parts."""
    kind = type(value)
    if kind in (tuple, list) or (hasattr(kind, "_make") and "__eq__" not in vars(kind)):
        return kind, len(value)
    if kind is collections.deque:
        return kind, len(value), value.maxlen
    if kind is dict:
        return kind, tuple(value)
    if isinstance(value, Carried):
        return (kind,) if kind._carries else None
    if attrs.has(kind) and getattr(kind.__setattr__, "__name__", "") == "_frozen_setattrs":
        return kind, "attrs"
    if dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return kind, "dataclass"
    return None


def _names(value: Any) -> list[str]:
    if isinstance(value, Carried):
        return list(value._carries)
    if attrs.has(type(value)):
        return [each.name for each in attrs.fields(type(value))]
    return [each.name for each in dataclasses.fields(value)]


def _parts(value: Any) -> list[tuple[str, Any]]:
    """The parts of a value that has a form, by name."""
    if isinstance(value, dict):
        return [(str(key), part) for key, part in value.items()]
    if hasattr(type(value), "_make"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (tuple, list, collections.deque)):
        return [(str(i), part) for i, part in enumerate(value)]
    return [(name, getattr(value, name)) for name in _names(value)]


def _with_parts(value: Any, parts: list[Any]) -> Any:
    """A value of the form of *value* with other parts."""
    kind = type(value)
    if kind is dict:
        return dict(zip(value, parts, strict=True))
    if hasattr(kind, "_make"):
        return kind._make(parts)
    if kind is collections.deque:
        return collections.deque(parts, value.maxlen)
    if isinstance(value, (tuple, list)):
        return kind(parts)
    made = copy.copy(value)
    for name, part in zip(_names(value), parts, strict=True):
        object.__setattr__(made, name, part)
    return made


def joined(
    name: str,
    values: tuple[Any, ...],
    number: Callable[..., Any],
    fragment: Callable[..., Any],
    other: Callable[..., Any],
    memo: dict[Any, Any],
) -> Any:
    """Joins values of the same form into one value, where paths of a program meet.

    Args:
        name: Of the value, for what is made of its parts.
        values: By path.
        number: Called with a name and numbers; gives a number.
        fragment: Called with a name and the data of fragments; gives the data of one.
        other: Called with a name and what has no common form; gives what stands for it.
        memo: Objects with a state of their own that were joined already at this point: one object on all paths stays one
            object.
    """
    values = tuple(map(resolve, values))
    if not isinstance(values[0], (Carried, list, collections.deque)) or isinstance(values[0], Fragment):
        return _joined(name, values, number, fragment, other, memo)
    key = tuple(map(id, values))
    if key not in memo:  # the values live on, so that no other gets their ids
        memo[key] = _joined(name, values, number, fragment, other, memo), values
    return memo[key][0]


def _joined(name: str, values: tuple[Any, ...], number: Any, fragment: Any, other: Any, memo: Any) -> Any:
    first = values[0]
    if all(map(is_number, values)):
        return number(name, *values)
    if isinstance(first, Fragment):
        if all(isinstance(v, Fragment) and fragment_form(v) == fragment_form(first) for v in values):
            data = fragment(name, *(v.data for v in values))
            return Fragment(first.backend, first.layout, first.along, first.kind, data)
        return other(name, *values)
    forms = [_form(v) for v in values]
    if forms[0] is None or any(form != forms[0] for form in forms):
        return other(name, *values)
    if isinstance(first, Carried) and not _alike(first, values[-1]):  # of others, what the body has made of the first
        return other(name, *values)
    parts = [_parts(v) for v in values]
    made = [
        joined(f"{name}.{each[0][0]}", tuple(part for _, part in each), number, fragment, other, memo)
        for each in zip(*parts, strict=True)
    ]
    made_one = _with_parts(first, made)
    if isinstance(first, Carried):
        made_one._joined(values)
    return made_one


def fragment_form(values: Fragment) -> Any:
    """What is equal of two fragments whose data are joined."""
    return values.layout, values.along, values.kind


def _alike(a: Any, b: Any) -> bool:
    """Whether two objects of the library differ only in attributes that vary, as they say."""
    free = {*a._carries, *a._apart}
    return vars(a).keys() == vars(b).keys() and all(
        x is vars(b)[name] or same(x, vars(b)[name]) or (isinstance(x, set) and x == vars(b)[name])
        for name, x in vars(a).items()
        if name not in free
    )


# ---- blocks ----------------------------------------------------------------------------------------------------------
#
# Later code depends on four kinds of state: names, which rewritten code hands over and takes back; `Cells`; the facts that
# objects of the protocol keep (`Carried._facts`); and lists and deques that a block changes. Each arm of a branch begins with
# the state before the branch. After the branch, the states of the arms are joined.


NOT_READ = "is not carried: nothing was seen to read it"


class Block:
    """A branch or loop that is being traced. user: whether it is of rewritten code, and not of the library.

    depth: how many blocks are around it; changed: lists and deques that the code inside changes, with their contents before.
    """

    def __init__(self, tracer: Tracing, user: bool):
        self.tracer, self.user, self.where = tracer, user, locate()
        self.depth = len(tracer.path)
        self.changed: dict[int, tuple[Any, list[Any], str]] = {}
        self.cells = tracer.live()
        self.parts = tracer.followed()
        self.cells_before = [list(c.values) for c in self.cells]
        self.facts_before = self.facts()

    def facts(self) -> list[dict[str, Any]]:
        """The facts of the objects of the protocol."""
        return [{n: _copied(vars(part)[n]) for n in part._facts if n in vars(part)} for part in self.parts]

    def conditions(self, facts: dict[str, Any], part: Any) -> dict[tuple[str, str], Any]:
        """The facts that are conditions."""
        flags = {(n, ""): v for n, v in facts.items() if part._facts[n] == "flag"}
        return flags | {(n, e): c for n, v in facts.items() if part._facts[n] == "flags" for e, c in v.items()}

    def restore(self) -> None:
        """Puts the state back as it was before the block."""
        for c, values in zip(self.cells, self.cells_before, strict=True):
            c.values = list(values)
        for part, facts in zip(self.parts, self.facts_before, strict=True):
            for name, value in facts.items():
                vars(part)[name] = _copied(value)
        for each, contents, _ in self.changed.values():
            fill(each, contents)

    def touch(self, each: Any, name: str) -> None:
        """A list or deque is about to be changed."""
        if id(each) not in self.changed:
            self.changed[id(each)] = each, list(each), f"`{name}`, changed at {locate()},"

    def end(self, state: Any) -> None:
        """The names at the end of an arm or of the body."""
        self.state = state

    def open(self) -> None:
        self.tracer.open(self)

    def close(self) -> list[Any]:
        return self.tracer.close()


def _copied(value: Any) -> Any:
    return type(value)(value) if type(value) in (set, dict) else value


def fill(each: Any, contents: list[Any]) -> None:
    each.clear()
    each.extend(contents)


def set_flag(part: Any, name: str, each: str, value: Any) -> None:
    if each:
        vars(part)[name][each] = value
    else:
        vars(part)[name] = value


class Branch(Block):
    """Both arms of a branch on a condition that only the kernel knows: iterating over it gives True, then False.

    names: assigned in the arms; live: by name, whether it is read later; state: the values of *names*; phis: (variable, value
    of the first arm, value of the second).
    """

    def __init__(
        self,
        tracer: Tracing,
        condition: Any,
        names: Any,
        live: Any,
        state: Any,
        lane_0: bool = False,
        user: bool = True,
    ):
        super().__init__(tracer, user)
        self.condition = tracer.flag(condition)
        self.names, self.live, self.before, self.state, self.lane_0 = names, live, state, state, lane_0
        self.phis: list[Any] = []
        self.nodes: list[list[Any]] = []
        self.arms: list[Any] = []

    def __iter__(self) -> Iterator[bool]:
        self.open()
        yield True
        self.turn()
        yield False
        self.finish()

    def turn(self) -> None:
        """From the first arm to the second."""
        self._arm()
        self.restore()
        self.state = self.before
        self.open()

    def _arm(self) -> None:
        self.nodes.append(self.close())
        contents = {key: list(each) for key, (each, _, _) in self.changed.items()}
        self.arms.append((self.state, [list(c.values) for c in self.cells], self.facts(), contents))

    def finish(self) -> None:
        """Joins the arms."""
        self._arm()
        (then, cells_then, facts_then, lists_then), (other, cells_other, facts_other, lists_other) = self.arms
        memo: dict[Any, Any] = {}
        self.state = self._names(then, other, memo)
        for c, a, b in zip(self.cells, cells_then, cells_other, strict=True):
            c.values = [self.merged(n, x, y, memo) for n, x, y in zip(c.names, a, b, strict=True)]
        for part, a, b in zip(self.parts, facts_then, facts_other, strict=True):
            for name in a:
                vars(part)[name] = self._fact(part, name, a[name], b[name])
        for key, (each, contents, name) in self.changed.items():
            a, b = lists_then.get(key, contents), lists_other.get(key, contents)
            if len(a) != len(b):
                rule = f"has {len(a)} elements after one branch at {self.where}, and {len(b)} after the other"
                raise ScopeError(f"{name} {rule}. It is made outside, and a trace has one list.")
            fill(each, [self.merged(f"{name}.{i}", x, y, memo) for i, (x, y) in enumerate(zip(a, b, strict=True))])
        made, made_other = self.nodes
        if self.phis or self.lane_0 or not all(type(n) is Let for n in (*made, *made_other)):
            self.tracer.nodes.append(If(self.condition, made, made_other, self.phis, self.lane_0, self.where))

    def finish_with(self, then: Any, other: Any) -> Any:
        """Joins the arms of an expression, which have these values. Returns its value."""
        self.names, self.live = ("value",), (True,)
        self.arms[0] = ((then,), *self.arms[0][1:])
        self.state = (other,)
        self.finish()
        return self.state[0]

    def _names(self, then: Any, other: Any, memo: dict[Any, Any]) -> tuple[Any, ...]:
        left: list[Any] = [False, False]  # whether each arm has left the function: then only what it returns is read
        if RETURNED in self.names:
            left = [resolve(arm[self.names.index(RETURNED)]) for arm in (then, other)]
        goes_on = [arm for arm in (0, 1) if left[arm] is not True]
        returns = [arm for arm in (0, 1) if left[arm] is not False]
        names = []
        for name, live, *both in zip(self.names, self.live, then, other, strict=True):
            read_of = returns if name == VALUE else goes_on
            if not live:
                names.append(Undefined(name, NOT_READ))
            elif name != RETURNED and live != AFTER_RETURN and len(read_of) == 1:
                names.append(self.alone(name, both[read_of[0]], read_of[0], memo))
            else:
                names.append(self.merged(name, both[0], both[1], memo))
        return tuple(names)

    def merged(self, name: str, then: Any, other: Any, memo: Any) -> Any:
        """One value for those of the two arms."""
        then, other = resolve(then), resolve(other)
        if same(then, other):
            return then
        return joined(name, (then, other), self._number, self._phi, self._unknown, memo)

    def _number(self, name: str, then: Any, other: Any) -> Any:
        if same(then, other):
            return then
        if then is True and other is False:
            return self.condition
        if then is False and other is True:
            return Expr.of("not", self.condition) if symbolic(self.condition) else not self.condition
        return self._phi(name, then, other, is_boolean(then) and is_boolean(other))

    def _phi(self, name: str, then: Any, other: Any, boolean: bool = False) -> Any:
        for found, a, b in self.phis:
            if same(a, then) and same(b, other):
                return found
        found = self.tracer.var(name, boolean)
        self.phis.append((found, then, other))
        return found

    def alone(self, name: str, value: Any, arm: int, memo: dict[Any, Any]) -> Any:
        """The value of one arm, where the value of the other arm is not read."""

        def number(name: str, value: Any) -> Any:
            if not symbolic(value):
                return value
            nothing = False if is_boolean(value) else 0
            pair = (value, nothing) if arm == 0 else (nothing, value)
            return self._phi(name, pair[0], pair[1], is_boolean(value))

        def fragment(name: str, data: Any) -> Any:
            return self._phi(name, *((data, None) if arm == 0 else (None, data)))

        return joined(name, (value,), number, fragment, lambda _, value: value, memo)

    def _unknown(self, name: str, then: Any, other: Any) -> Undefined:
        for value in (then, other):
            if isinstance(value, Undefined) and value._why is not None:
                return value
        forms = " in one branch and ".join("nothing" if isinstance(v, Undefined) else kind_of(v) for v in (then, other))
        rule = f"numbers, fragments of one form, and what is made of them go on after a branch. {KEPT}"
        return Undefined(name, f"is {forms} in the other at {self.where}: {rule}")

    def _fact(self, part: Any, name: str, a: Any, b: Any) -> Any:
        kind = part._facts[name]
        if kind in JOINS:
            return JOINS[kind](a, b)
        if kind == "flag":
            return self.merged(name, a, b, {})
        if kind == "flags":
            return {n: self.merged(n, a.get(n, False), b.get(n, False), {}) for n in {**a, **b}}
        if same(a, b):
            return a
        return differing(part, name, kind, self.where)


#: How facts of these kinds are joined where paths meet.
JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "union": operator.or_,
    "noted": lambda a, b: bool(a) or bool(b),
    "both": lambda a, b: bool(a) and bool(b),
}


def differing(part: Any, name: str, kind: str, where: str | None) -> Any:
    what = f"{type(part).__name__}.{name}"
    words = {
        "open": "whether a slot or an accumulator is open",
        "inside": "whether a turn is taken",
        "started": "whether a sum was started",
        "slot": "which slot is held of a ring that is filled once",
    }
    if kind == "none":
        return None
    if kind == "always":
        what = words.get(name, what)
        raise ScopeError(f"{what} depends on the path that was taken to {where}. Do the same on all of them.")
    return Differs(words.get(name, what), where)
