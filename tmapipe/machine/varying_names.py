"""Python's `range`, `min` and `max` in bodies: of numbers that may vary, and with loops that are watched."""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import operator
import sys
import threading
from collections.abc import Callable, Container, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

from tmapipe.machine.carried import Iterations
from tmapipe.machine.varying import Varying, whole

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["NAMES_LOCK", "greatest", "names_replaced"]


def _range(bodies: Container[CodeType], *bounds: Any) -> Any:
    """As `range`, of numbers that may vary. bodies: whose loops are watched, and not only for what they count."""
    body = sys._getframe(1).f_code in bodies
    run = next((bound.run for bound in bounds if type(bound) is Varying), None)
    if run is None:
        numbers: Any = builtins.range(*bounds)
        return Iterations(numbers, body, None) if body else numbers
    start, stop = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    step = operator.index(bounds[2]) if len(bounds) > 2 else 1
    if isinstance(stop - start, Varying):
        numbers = run.iterations(start, stop, step)
    else:
        numbers = [start + i for i in builtins.range(0, stop - start, step)]
    return Iterations(numbers, body, run.carries)


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
        for end, each in zip(("low", "high"), run.bounds(*values), strict=True):
            known = [e for e in each if e is not None]
            # the end that is nearest to the other values is a bound already
            inner = (name == "max") == (end != "high")
            ends.append(found(known) if known and (inner or len(known) == len(each)) else None)
        value = found(v.value if type(v) is Varying else int(v) for v in values)
        return run.made((name, forms), value, ends, *varying)

    return extreme


greatest = _extreme("max", max)
_least = _extreme("min", min)
#: Held by a check as a whole, and by whoever traces bodies: the names are those of the whole process.
NAMES_LOCK = threading.RLock()


@contextlib.contextmanager
def names_replaced(schedule: Schedule) -> Iterator[None]:
    """Lets `range`, `min` and `max` take numbers that vary, in the modules of the schedule's bodies. To others they are what
    they were."""
    bodies = (*schedule.declared.bodies.values(), *schedule.declared.befores.values())
    modules = (sys.modules.get(cls.__module__) for cls in type(schedule).__mro__ if cls is not object)
    spaces = [vars(module) for module in modules if module is not None]
    namespaces = {id(space): space for space in (*spaces, *(body.__globals__ for body in bodies))}
    iterations = functools.partial(_range, {inspect.unwrap(body).__code__ for body in bodies})
    replaced = {"range": iterations, "min": _least, "max": greatest}
    with NAMES_LOCK:
        changed = [(space, name) for space in namespaces.values() for name in replaced if name not in space]
        for space, name in changed:
            space[name] = replaced[name]
        try:
            yield
        finally:
            for space, name in changed:
                space.pop(name, None)
