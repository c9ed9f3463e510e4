"""Python state in bodies: what a body does may depend on its arguments alone, so it must not change what others see."""

from __future__ import annotations

import copy
import dis
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tmapipe.errors import ScopeError

if TYPE_CHECKING:
    from tmapipe.machine.layout import Layout
    from tmapipe.machine.programs import Program
    from tmapipe.schedule import Schedule

__all__ = ["unchanged"]

CONTAINERS = (list, dict, set, bytearray)
FIX = "A body keeps no state: what it does may depend on its arguments alone"


def unchanged(schedule: Schedule, layout: Layout, programs: Callable[[bool], list[Program]]) -> None:
    """Records all bodies twice: one warp for all that are alike, then each by itself, the last one first.

    Raises:
        ScopeError: A body changes an attribute of the schedule, a global or what it encloses, or does something else the
            second time.
    """
    before = _seen(schedule)
    first = programs(False)
    after = _seen(schedule)
    for name in before.keys() | after.keys():
        if name not in before or name not in after or not _same(before[name], after[name]):
            raise ScopeError(f"{name} is changed by a body: this is state. {FIX}.{_place(schedule, name)}")
    for agent, (once, again) in enumerate(zip(first, programs(True), strict=True)):
        if once.ops != again.ops:
            raise ScopeError(
                f"the body of role {layout.role(agent)!r} does something else when it is recorded again. {FIX}."
            )


def _place(schedule: Schedule, name: str) -> str:
    """Where a body assigns what is called *name* here, if it does so by itself."""
    last = name.split(",")[0].replace(".", " ").split()[-1]
    for body in (*schedule.declared.bodies.values(), *schedule.declared.befores.values()):
        for each in dis.get_instructions(body):
            if each.opname.startswith("STORE_") and each.argval == last:
                starts = dis.findlinestarts(body.__code__)
                _, line = max((start, line) for start, line in starts if line and start <= each.offset)
                return f" At {inspect.getfile(body)}:{line}."
    return ""


def _seen(schedule: Schedule) -> dict[str, Any]:
    """What bodies can change: by name, the object and what it contains."""
    declared = schedule.declared
    found = {f"self.{name}": value for name, value in vars(schedule).items() if not name.startswith("_")}
    functions: list[Any] = [*declared.bodies.values(), *declared.befores.values(), *found.values()]
    for cls in type(schedule).__mro__:
        if not cls.__module__.startswith("tmapipe."):
            found |= {
                f"{cls.__name__}.{n}": v for n, v in vars(cls).items() if isinstance(v, CONTAINERS) and n[0] != "_"
            }
            functions += vars(cls).values()
    for function in functions:
        if not inspect.isfunction(function):
            continue
        for name in function.__code__.co_names:
            if name in function.__globals__:
                found[f"the global {name}"] = function.__globals__[name]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                found[f"{name}, which {function.__name__} encloses,"] = cell.cell_contents
            except ValueError:  # not filled yet
                continue
    return {name: (value, _contents(value)) for name, value in found.items()}


def _contents(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, CONTAINERS) else None


def _same(before: tuple[Any, Any], after: tuple[Any, Any]) -> bool:
    return before[0] is after[0] and (before[1] is None or before[1] == after[1])
