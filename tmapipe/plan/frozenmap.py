"""FrozenMap: a mapping that does not change, so that what holds one can be hashed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

__all__ = ["NOTHING", "FrozenMap", "frozen"]

K = TypeVar("K")
V = TypeVar("V")


class FrozenMap(Mapping[K, V]):
    """A mapping whose items never change. Their order counts: two are equal if they have the same items in the same order.

    Compared with any other mapping, only the items count, as for `collections.OrderedDict`. Values must be hashable.
    """

    __slots__ = ("_found",)

    def __init__(self, items: Mapping[K, V]):
        self._found = dict(items)

    def __getitem__(self, key: K) -> V:
        return self._found[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._found)

    def __reversed__(self) -> Iterator[K]:
        return reversed(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenMap):
            return tuple(self._found.items()) == tuple(other._found.items())
        return self._found == other if isinstance(other, Mapping) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._found.items()))

    def __repr__(self) -> str:
        return repr(self._found)


def frozen(items: Mapping[Any, Any]) -> FrozenMap[Any, Any]:
    """*items*, as they are now: a converter of attrs fields."""
    return FrozenMap(items)


NOTHING: FrozenMap[Any, Any] = FrozenMap({})
