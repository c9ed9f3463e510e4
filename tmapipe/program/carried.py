"""What blocks carry: values made of numbers and fragments, joined where paths meet.

A value is a number (an `int`, a `bool`, an expression), a fragment, or something made of such: a tuple, a named tuple, a list
or deque, a dictionary, a frozen attrs or dataclass object, or an object of the library that names those of its attributes
that vary (`Carried._carries`), such as an open slot. Values of one form are joined part by part. All else is opaque: the
same, or unknown.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import attrs

from tmapipe.errors import ScopeError
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.values import Carried
from tmapipe.program.expressions import Expr, resolve

__all__ = ["KEPT", "Differs", "Undefined", "is_number", "joined", "kind_of", "same"]

_CONSTANTS = (str, bytes, float, complex, type(None), range, frozenset, type(...))

#: How to mend what takes another form.
KEPT = "Give it a value of the form that it keeps before the loop or branch, e.g. k.full(stage, 0.0)"


class Undefined:
    """In the place of a name that has no value (*why* is None), or one that depends on the path, and can't be carried."""

    _name: str
    _why: str | None

    def __init__(self, name: str, why: str | None = None):
        self._name, self._why = name, why

    def _refuse(self, *_: Any, **__: Any) -> Any:
        if self._why is None:
            raise UnboundLocalError(
                f"cannot access local variable {self._name!r} where it is not associated with a value"
            )
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
    return (
        repr(value)
        if isinstance(value, Fragment)
        else "unknown"
        if isinstance(value, Undefined)
        else type(value).__name__
    )


def _form(value: Any) -> Any:
    """What is equal of values that are joined part by part; None of a value without parts."""
    kind = type(value)
    if kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_make") and "__eq__" not in vars(kind)):
        return kind, len(value)
    if kind is list:
        return kind, len(value)
    if kind is collections.deque:
        return kind, len(value), value.maxlen
    if kind is dict:
        return kind, tuple(value)
    if isinstance(value, Carried):
        return (kind,) if kind._carries else None
    if attrs.has(kind) and kind.__setattr__ is not object.__setattr__ and _frozen_attrs(kind):
        return kind, "attrs"
    if dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return kind, "dataclass"
    return None


def _frozen_attrs(kind: type) -> bool:
    return getattr(kind.__setattr__, "__name__", "") == "_frozen_setattrs"


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
    """One value for several of one form, which come together where paths meet.

    Args:
        name: Of the value, for what is made of its parts.
        values: By path.
        number: Called with a name and numbers; gives a number.
        fragment: Called with a name and the data of fragments; gives the data of one.
        other: Called with a name and what has no common form; gives what stands for it.
        memo: Objects with a state of their own that were joined already in the same place: those that are one stay one.
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
    if isinstance(first, Carried) and not _alike(
        first, values[-1]
    ):  # between them, what the body has made of the first
        return other(name, *values)
    parts = [_parts(v) for v in values]
    made = [
        joined(f"{name}.{each[0][0]}", tuple(part for _, part in each), number, fragment, other, memo)
        for each in zip(*parts, strict=True)
    ]
    found = _with_parts(first, made)
    if isinstance(first, Carried):
        found._joined(values)
    return found


def fragment_form(values: Fragment) -> Any:
    """What is equal of fragments whose data are joined."""
    return values.layout, values.along, values.kind


def _alike(a: Any, b: Any) -> bool:
    """Whether two objects of the library differ in nothing but what they say that varies."""
    free = {*a._carries, *a._apart}
    return vars(a).keys() == vars(b).keys() and all(
        x is vars(b)[name] or same(x, vars(b)[name]) or (isinstance(x, set) and x == vars(b)[name])
        for name, x in vars(a).items()
        if name not in free
    )
