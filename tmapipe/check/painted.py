"""Which store reaches which element of an output, and which elements of inputs are loaded, in one concrete problem.

All output tiles of the problem are recorded with their source lines, as one cluster takes them one after the other; no data
is moved. Two tiles that reach the same element are two CTAs of another grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np

from tmapipe.check.places import Output, same_pieces, stored_at
from tmapipe.check.problems import Problems
from tmapipe.check.search import Problem
from tmapipe.machine.machine import record
from tmapipe.machine.moves import Move, Visit, visits_of

__all__ = ["Clash", "left_out", "painted", "recorded", "recorded_programs"]

MOST = 20_000_000  # elements of an output that is painted


@attrs.frozen
class Clash:
    """An element that two stores reach, or a store of one tile and a load of another. one, other: the two, in this order;
    at: the element."""

    one: Move
    other: Move
    visits: tuple[Visit, Visit]
    at: tuple[int, ...]


def recorded(problems: Problems, problem: Problem) -> list[Visit]:
    """What the tiles of a problem do, with source lines."""
    decisions = problems.decisions
    before, decisions.calls, decisions.located = decisions.calls, [], True
    try:
        recorded_programs(problems, problem)
        return visits_of(decisions.calls)
    finally:
        decisions.calls, decisions.located = before, False


def recorded_programs(problems: Problems, problem: Problem) -> list[list[Any]]:
    """The operations of each warp in a problem, with source lines."""

    def make(layout: Any, agent: int, emit: Callable[[Any], None]) -> Any:
        return problems.isa(layout, agent, 0, 1, problem.shapes, emit, tables=problem.tables)

    with problems.recording():
        options: Any = {"layout": problems.layout, "locate": True, "make": make}
        return record(problems.plan, problems.entry, problem.shapes, **options)


def painted(output: Output, visits: list[Visit], shape: tuple[int, ...]) -> Clash | None:
    """The first clash at an output of this shape."""
    return next(_clashes(output, visits, shape), None)


def left_out(output: Output, visits: list[Visit], shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """How many elements of an output of this shape are stored by nobody, and the first one; None if there are none."""
    reached = np.zeros(shape, bool)
    for visit in visits:
        for own in stored_at(output, visit):
            for move in own:
                reached[_box(move, shape)] = True
    left = np.argwhere(~reached)
    return (len(left), tuple(int(i) for i in left[0])) if len(left) else None


def _clashes(output: Output, visits: list[Visit], shape: tuple[int, ...]) -> Iterator[Clash]:
    owners = np.zeros(shape, np.int32)
    known: list[tuple[Visit, Move]] = []
    for visit in visits:
        stored = stored_at(output, visit)
        first = len(known)
        for i, move in enumerate(move for own in stored for move in own):
            box = _box(move, shape)
            for number in np.unique(owners[box]):
                if number == 0:
                    continue
                whose, other = known[number - 1]
                if number - 1 < first or not same_pieces(output, stored, number - 1 - first, i):
                    (at, *_) = np.argwhere(owners[box] == number)
                    yield Clash(other, move, (whose, visit), _element(move, shape, at))
            known.append((visit, move))
            owners[box] = len(known)
    names = {load.name for load in output.loads}
    for visit in visits:
        for move in (move for moves in visit.moves.values() for move in moves if move.part.name in names):
            box = _box(move, shape)
            for number in np.unique(owners[box]):
                whose, other = known[number - 1] if number else (visit, move)
                if whose.place != visit.place:
                    (at, *_) = np.argwhere(owners[box] == number)
                    yield Clash(other, move, (whose, visit), _element(move, shape, at))


def _box(move: Move, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The elements of a tensor that are moved."""
    return tuple(
        slice(max(start.value, 0), max(start.value + extent, 0))
        for start, extent in zip(move.at, move.part.part, strict=True)
    )


def _element(move: Move, shape: tuple[int, ...], at: np.ndarray) -> tuple[int, ...]:
    return tuple(max(start.value, 0) + int(i) for start, i in zip(move.at, at, strict=True))
