"""Fields of what users declare: validators that raise `InputError`, and a repr that shows what was given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from tmapipe.errors import InputError

__all__ = [
    "IS_NAME",
    "as_tuple",
    "changed",
    "check_bool",
    "check_type",
    "fill",
    "is_count",
    "is_whole",
    "must",
    "optional",
    "shown",
]

P = TypeVar("P")
Validator = Callable[[Any, Any, Any], None]


def must(holds: Callable[[Any], bool], rule: str, fix: str) -> Validator:
    """A validator of an attrs field, which raises `InputError` for values of which *holds* is false."""

    def check(part: Any, field: Any, value: Any) -> None:
        try:
            right = bool(holds(value))
        except Exception:  # what is compared with something of another kind, such as an array
            right = False
        if not right:
            raise InputError(f"{type(part).__name__}({field.name})", value, rule, fix)

    return check


def optional(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """What *holds* says, or True for None."""
    return lambda value: value is None or holds(value)


def is_whole(value: Any) -> bool:
    """Whether *value* is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Whether *value* is a positive integer."""
    return is_whole(value) and value >= 1


def check_type(argument: str, value: object, kind: type, fix: str) -> None:
    """Raises `InputError` unless *value* is a *kind*."""
    if not isinstance(value, kind):
        raise InputError(argument, value, f"is an object of type {kind.__name__}", fix)


def check_bool(argument: str, value: object) -> None:
    """Raises `InputError` unless *value* is True or False."""
    if not isinstance(value, bool):
        raise InputError(argument, value, "is True or False", "use one of them")


IS_NAME = must(lambda value: isinstance(value, str) and value.isidentifier(), "is a name", 'e.g. "a"')


def as_tuple(extents: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    """A list as a tuple; anything else as it is."""
    return tuple(extents) if isinstance(extents, list) else extents


def fill(part: Any, **fields: Any) -> None:
    """Sets fields of a frozen attrs object that is being made: what follows from the others."""
    for name, value in fields.items():
        object.__setattr__(part, name, value)


def changed(part: P, **fields: Any) -> P:
    """A copy of a frozen attrs object with other values in these fields, which its constructor does not take."""
    other = copy.copy(part)
    fill(other, **fields)
    return other


def shown(part: Any, *hidden: str) -> str:
    """The repr of an attrs object: its fields by name, but for those *hidden* and those of their default."""
    text = [
        f"{field.alias}={(field.repr if callable(field.repr) else repr)(getattr(part, field.name))}"
        for field in attrs.fields(type(part))
        if field.name not in hidden and getattr(part, field.name) != field.default
    ]
    return f"{type(part).__name__}({', '.join(text)})"
