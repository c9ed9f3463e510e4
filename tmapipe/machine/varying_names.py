"""Python's `range`, `min` and `max`, of numbers that may vary, under the same names in the modules of bodies."""

from __future__ import annotations

import builtins
import contextlib
import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tmapipe.machine.varying import Varying, whole

__all__ = ["NAMES_LOCK", "greatest", "names_replaced"]


def _range(*bounds: Any) -> Any:
    """As `range`, of numbers that may vary."""
    varying = next((bound for bound in bounds if type(bound) is Varying), None)
    if varying is None:
        return builtins.range(*bounds)
    start, stop = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    step = operator.index(bounds[2]) if len(bounds) > 2 else 1
    if not isinstance(stop - start, Varying):
        return [start + i for i in builtins.range(0, stop - start, step)]
    return varying.run.turns(start, stop, step)


def _extreme(name: str, found: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(*values: Any, **options: Any) -> Any:
        varying = [value for value in values if type(value) is Varying]
        if len(values) < 2 or options or not varying or any(whole(v) is None for v in values if type(v) is not Varying):
            return found(*values, **options)
        run = varying[0].run
        forms = tuple(sorted({v.form if type(v) is Varying else ((), int(v)) for v in values}, key=repr))
        if len(forms) == 1:
            return values[0]
        ends: list[int | None] = []
        for end in ("low", "empty", "high"):
            each = [run.bound(v, end) if type(v) is Varying else int(v) for v in values]
            known = [e for e in each if e is not None]
            # the end that is nearest to the other values is a bound already
            inner = (name == "max") == (end != "high")
            ends.append(found(known) if known and (inner or len(known) == len(each)) else None)
        value = found(v.value if type(v) is Varying else int(v) for v in values)
        return run.made((name, forms), value, (ends[0], ends[1], ends[2]), *varying)

    return extreme


greatest = _extreme("max", max)
_REPLACED = {"range": _range, "min": _extreme("min", min), "max": greatest}
#: Held by a check as a whole, and by whoever traces bodies: the names are those of the whole process.
NAMES_LOCK = threading.RLock()


@contextlib.contextmanager
def names_replaced(namespaces: list[dict[str, Any]]) -> Iterator[None]:
    """Lets `range`, `min` and `max` take numbers that vary, in these modules. To others they are what they were."""
    with NAMES_LOCK:
        changed = [(space, name) for space in namespaces for name in _REPLACED if name not in space]
        for space, name in changed:
            space[name] = _REPLACED[name]
        try:
            yield
        finally:
            for space, name in changed:
                space.pop(name, None)
