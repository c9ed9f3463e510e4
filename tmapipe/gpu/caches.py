"""What CuTe DSL remembers of a compilation, and with it the whole of its IR, until later ones push it out."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["forget_ir"]


def forget_ir() -> None:
    """Empties the DSL's caches of values in IR. Each keeps the last 128, each of which keeps megabytes."""
    for clear in _clears():
        clear()


@functools.cache
def _clears() -> tuple[Callable[[], None], ...]:
    """`cache_clear` of all functions under ``lru_cache_ir``, of the modules that are imported."""
    found: dict[int, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "cutlass":
            for function in _functions(vars(module)):
                clear: Any = getattr(function, "cache_clear", None)
                if "lru_cache_ir" in getattr(getattr(clear, "__self__", None), "__qualname__", ""):
                    found[id(clear.__self__)] = clear
    return tuple(found.values())


def _functions(namespace: Any) -> Iterator[Any]:
    """Functions, methods and properties, also those that another decorator is around."""
    for value in list(namespace.values()):
        for each in vars(value).values() if isinstance(value, type) else (value,):
            function = each.fget if isinstance(each, property) else each
            yield from (function, getattr(function, "__wrapped__", None))
