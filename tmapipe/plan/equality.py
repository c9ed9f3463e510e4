"""Equality of schedules: two are equal if everything that a plan, or a body, can read of them is equal."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from tmapipe.plan.declarations import PARTS, Declarations, fields_of

__all__ = ["key_of", "same"]


def same(one: Declarations, other: Declarations, of_one: Mapping[str, Any], of_other: Mapping[str, Any]) -> bool:
    """Whether two schedules of one type have the same declarations and the same other attributes.

    Parts are the same if their fields are; a field that is another part counts by its name. A value without an equality of its
    own is the same if it has the same type and attributes. A function is the same only as itself.

    Args:
        one: Declared parts of the first.
        other: Of the second.
        of_one: Attributes of the first that are no parts, by name.
        of_other: Of the second.
    """
    parts = [{name: (type(part), dict(fields_of(part))) for name, part in of.parts.items()} for of in (one, other)]
    return _Comparison(one, other).same((parts[0], of_one), (parts[1], of_other))


def key_of(declared: Declarations) -> tuple[Any, ...]:
    """A hashable value, equal for equal schedules."""
    parts = ((name, type(part), getattr(part, "tile", None)) for name, part in declared.parts.items())
    return declared.name, *parts


class _Comparison:
    def __init__(self, one: Declarations, other: Declarations):
        self.one, self.other = one, other
        self.assumed: set[tuple[int, int]] = set()  # pairs that are being compared

    def same(self, one: Any, other: Any) -> bool:
        if one is other:
            return True
        if isinstance(one, PARTS) and isinstance(other, PARTS):
            name = self.one.names.get(one)
            return name is not None and name == self.other.names.get(other)
        if type(one) is not type(other):
            return False
        if isinstance(one, Mapping):
            return list(one) == list(other) and all(map(self.same, one.values(), other.values()))
        if isinstance(one, (tuple, list)):
            return len(one) == len(other) and all(map(self.same, one, other))
        if any("__eq__" in vars(cls) for cls in type(one).__mro__[:-1]):  # but for object's
            return _equal(one, other)
        if callable(one) or not hasattr(one, "__dict__"):
            return False
        if (id(one), id(other)) in self.assumed:
            return True
        self.assumed.add((id(one), id(other)))
        return self.same(_attributes(one), _attributes(other))


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, TypeError, ValueError):  # arrays, for one, have no single answer
        return False


def _attributes(value: Any) -> dict[str, Any]:
    """What *value* has, without what it has computed from the rest."""
    kind = type(value)
    return {n: v for n, v in vars(value).items() if not isinstance(getattr(kind, n, None), functools.cached_property)}
