"""Where a schedule of a user's is wrong though no operation is at fault: a body that enters no slot, and what a subclass of a
shipped schedule puts in the place of the shipped one, such as a method that returned before an operation."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import attrs

from tmapipe.check.findings import Finding, Kind, of_library
from tmapipe.plan.model import Plan

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["placed"]

_OF_LIBRARY = (Kind.REDUNDANT_FENCE, Kind.REGISTERS, Kind.SHARED_MEMORY, Kind.LIMIT)  # say it in other words


def placed(schedule: Schedule, plan: Plan, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings. A body of the user's that enters no slot of a ring is a place of that finding: the first one if it does
    not even name the ring, or if a shipped body enters the others. A finding that no line of the user's shows gets those of
    what *schedule* replaces: first the bodies of the roles that take part."""
    bodies = {role: inspect.unwrap(body) for role, body in schedule.declared.bodies.items() if _of_user(body)}
    own = [*bodies.values(), *_overrides(type(schedule))]
    found = []
    for finding in findings:
        idle = [bodies[role] for role in _idle(plan, finding) if role in bodies]
        shipped = any(map(of_library, finding.where))
        first = [body for body in idle if shipped or finding.slot not in _names(body.__code__)]
        last = idle
        if finding.kind not in _OF_LIBRARY and all(map(of_library, finding.where)):
            last = [*idle, *(bodies[step.role] for step in finding.steps if step.role in bodies), *own]
        where = (*map(_line, first), *finding.where, *map(_line, last))
        found.append(attrs.evolve(finding, where=where))
    return tuple(found)


def _names(code: CodeType) -> set[str]:
    """Names of attributes and functions that a function uses."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _of_user(part: Any) -> bool:
    return part.__module__.partition(".")[0] != "tmapipe" and part is not object


def _overrides(cls: type) -> Iterator[Any]:
    """Functions of the user's that stand in the place of those of a shipped schedule, but for its ``__init__``."""
    shipped = [each for each in cls.__mro__ if not _of_user(each)]
    for each in filter(_of_user, cls.__mro__):
        for name, value in vars(each).items():
            function = inspect.unwrap(getattr(value, "fget", None) or value)
            if inspect.isfunction(function) and not name.startswith("__") and any(name in vars(c) for c in shipped):
                yield function


def _line(function: Any) -> str:
    """ "file:line" of its ``def``."""
    code, line = function.__code__, function.__code__.co_firstlineno
    try:
        above = next((i for i, text in enumerate(inspect.getsourcelines(function)[0]) if "def " in text), 0)
    except (OSError, TypeError):
        above = 0
    return f"{code.co_filename}:{line + above}"


def _idle(plan: Plan, finding: Finding) -> list[str]:
    """The roles of a ring that enter none of its slots, where that is the finding."""
    ring = next((ring for ring in plan.rings if ring.name == finding.slot), None)
    if finding.kind is not Kind.TRIP_COUNTS or ring is None:
        return []
    return [role for roles in ring.phases for role in roles if role not in {step.role for step in finding.steps}]
