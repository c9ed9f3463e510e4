"""Every trip count by closure: a set of states such that every segment from one of them leads to a state that one of them
covers.

The search starts with the state before the first tile. From each state it takes every segment that can come next: a tile
without steps, the start of a tile, one more step, the end of a tile, the end of the run. A state that is covered by one of the
set needs no look, since whatever comes next goes as well as from there. Any other joins the set, in the place of those that it
covers. When no state is left, all runs are safe.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs

from tmapipe.check.linear import LinearCheck
from tmapipe.check.log import FindingLog
from tmapipe.check.problems import Problems
from tmapipe.check.program import run_segment
from tmapipe.check.recurrence import RunState
from tmapipe.check.segments import END, After, Segment, Segments, Where
from tmapipe.errors import DeadlockError, HazardError
from tmapipe.machine import State

__all__ = ["Closure", "begin", "close", "closed_for", "take"]

MOST_STATES = 120, 600  # then the answer is that nothing recurs; where bodies decide on several numbers
FEW_STATES = 16  # where there is another way


@attrs.frozen
class Closure:
    """What the search found.

    closed: whether all runs are safe; states: how many are in the set; events: transitions executed; why: if not closed, what
    is in the way.
    """

    closed: bool
    states: int
    events: int
    why: str = ""


class _Node(NamedTuple):
    where: Where
    run_state: RunState
    path: tuple[Segment, ...]


class _Stopped(Exception):
    """A segment that goes wrong, or that cannot be taken by itself; with the path to it."""

    def __init__(self, path: tuple[Segment, ...], why: str):
        super().__init__(f"after {', '.join(segment.name for segment in path)}: {why}")


def close(problems: Problems, segments: Segments) -> Closure:
    """Looks for a closed set, first for tiles of any numbers of steps in any order.

    If there is none and all tiles of a CTA take the same number of steps, it looks for one set for each number of steps, and
    for one for all larger numbers.
    """
    log = FindingLog(problems.layout)
    mixed_only = segments.uneven or len(segments.alike) < 2
    if mixed_only or problems.group == 1:
        found = closed_for(problems, segments, [segments.mixed], log, None if mixed_only else FEW_STATES)
        if found.closed or mixed_only:
            return found
    return closed_for(problems, segments, list(segments.alike.values()), log)


def closed_for(
    problems: Problems, segments: Segments, choices: list[After], log: FindingLog, most: int | None = None
) -> Closure:
    """Whether there is a closed set for each of *choices*, of at most so many states."""
    states, most = 0, most or MOST_STATES[len(problems.kinds.keys) > 1]
    try:
        root = begin(problems, segments, log)
        for after in choices:
            known: dict[Where, list[RunState]] = {}  # those that no later one covers
            count = 0
            todo: list[tuple[_Node, Segment | None]] = [(root, None)]
            while todo:
                before, segment = todo.pop()
                if segment is not None and before.run_state not in known[before.where]:
                    continue
                node = before if segment is None else take(segments, before, segment)
                others = [] if node is None else known.setdefault(node.where, [])
                if node is None or any(map(node.run_state.covered_by, reversed(others))):
                    continue
                others[:] = [*(each for each in others if not each.covered_by(node.run_state)), node.run_state]
                count, states = count + 1, states + 1
                if count > most:
                    raise _Stopped(node.path, "still no state recurs")
                todo += [(node, segment) for segment in _order(node.where, after[node.where])]
    except _Stopped as stopped:
        return Closure(False, states, log.order, str(stopped))
    return Closure(True, states, log.order)


def _order(where: Where, following: list[Segment]) -> list[Segment]:
    """What is looked at later comes first: the end of a run; loops in a loop; of a loop around others its end, of others one
    more iteration. This only saves states."""
    around = any(each.to[0] == where[0] == "step" and each.to[1] > where[1] for each in following)

    def key(segment: Segment) -> tuple[bool, float]:
        to, number = segment.to
        return segment.to != END, 0 if where[0] == "tile" else -number if to == "step" else 1 - 1.5 * around

    return sorted(following, key=key)


def begin(problems: Problems, segments: Segments, log: FindingLog) -> _Node:
    """The state before the first tile."""
    layout, head = problems.layout, segments.head
    first = RunState(State(layout), LinearCheck(layout, {}, log), head.start.copy(), segments.future)
    return _run(first, head, head.parts, ())  # type: ignore[return-value]


def take(segments: Segments, node: _Node, segment: Segment) -> _Node | None:
    """The state to which a segment leads; None at the end."""
    run_state = node.run_state
    if segment.to[0] == "step" and not any(segment.parts) and segment.start.skipped == segment.end.skipped:
        return _Node(segment.to, run_state, (*node.path, segment))
    shifts = run_state.positions.shifts_from(segment.start, segments.future.live)
    if shifts is None:
        raise _Stopped(node.path, "the warps have not moved on alike in the rings")
    return _run(run_state.copy(), segment, segments.future.renaming(shifts).parts(segment.parts), node.path)


def _run(run_state: RunState, segment: Segment, parts: list[list[Any]], path: tuple[Segment, ...]) -> _Node | None:
    """Takes a segment, whose operations are *parts* here."""
    path, check = (*path, segment), run_state.check
    try:
        run_segment(run_state.state, [iter(part) for part in parts], check)
    except (DeadlockError, HazardError) as error:
        raise _Stopped(path, str(error).split("\n")[0]) from None
    if segment.to == END:
        check.finish()
    if any(not finding.kind.note for finding in check.log.found.values()):
        raise _Stopped(path, next(f.message for f in check.log.found.values() if not f.kind.note))
    if segment.to == END:
        return None
    if segment.to[0] == "tile":
        check.results.next_tile()
    run_state.positions.move_on(segment.start, segment.end)
    if not run_state.settled:
        raise _Stopped(path, "something is still in flight")
    return _Node(segment.to, run_state, path)
