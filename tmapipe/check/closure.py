"""Every trip count by closure: a set of moments such that each turn from one of them leads to one that another covers.

From the moment before the first tile, and from one after a few laps of all rings, every turn is taken (a tile without steps,
the start of a tile, one more step, the end of a tile, the end of the run). A moment that is covered by one of the set needs no
look: whatever comes after it goes as well as from there. Others join the set. When none is left, all runs go well.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from tmapipe.check.linear import LinearCheck
from tmapipe.check.log import FindingLog
from tmapipe.check.places import Places
from tmapipe.check.problems import Problems
from tmapipe.check.program import run_segment
from tmapipe.check.recurrence import Moment
from tmapipe.check.turns import END, After, Segment, Turns, Where
from tmapipe.check.words import Renaming
from tmapipe.errors import DeadlockError, HazardError
from tmapipe.machine import State

__all__ = ["Closure", "close"]

MOST_MOMENTS = 120  # then the answer is that nothing recurs


@attrs.frozen
class Closure:
    """closed: whether all runs go well; moments: in the set; events: executed; why: if not, what is in the way; tiles: and
    after how many tiles, by the number of steps of each."""

    closed: bool
    moments: int
    events: int
    why: str = ""
    tiles: tuple[int, ...] = ()


class _Node(NamedTuple):
    where: Where
    moment: Moment
    path: tuple[Segment, ...]


class _Stopped(Exception):
    """A turn that does not go well, or cannot be taken by itself, and the path to it."""

    def __init__(self, path: tuple[Segment, ...], why: str):
        super().__init__(f"after {', '.join(segment.name for segment in path)}: {why}")
        tiles: list[int] = []
        for segment in path:
            if segment.begins:
                tiles.append(segment.steps)
            elif segment.steps:
                tiles[-1] += segment.steps
        self.tiles = tuple(tiles)


def close(problems: Problems, turns: Turns) -> Closure:
    """Looks for a closed set: for tiles of any numbers of steps in any order; if there is none and all tiles of a CTA take as
    many steps, then for each number of steps, and all larger ones together."""
    log = FindingLog(problems.layout)
    if turns.uneven or problems.group == 1:
        found = _closed(problems, turns, [turns.mixed], log)
        if found.closed or turns.uneven:
            return found
    return _closed(problems, turns, list(turns.alike.values()), log)


def _closed(problems: Problems, turns: Turns, choices: list[After], log: FindingLog) -> Closure:
    """Whether there is a closed set for each of these."""
    moments = 0
    try:
        root = _begin(problems, turns, log)
        for after in choices:
            known: list[_Node] = []
            open_nodes = [root, _warmed_up(problems, turns, after, root)]
            while open_nodes:
                node = open_nodes.pop()
                if any(node.where == other.where and node.moment.covered_by(other.moment) for other in known):
                    continue
                known.append(node)
                moments += 1
                if len(known) > MOST_MOMENTS:
                    raise _Stopped(node.path, "still no moment recurs")
                for segment in after[node.where]:
                    reached = _take(turns, node, segment)
                    if reached is not None:
                        open_nodes.append(reached)
    except _Stopped as stopped:
        return Closure(False, moments, log.order, str(stopped), stopped.tiles)
    return Closure(True, moments, log.order)


def _begin(problems: Problems, turns: Turns, log: FindingLog) -> _Node:
    layout = problems.layout
    state, check = State(layout), LinearCheck(layout, {}, log)
    places = turns.head.start.copy()
    return _run(turns, state, check, places, turns.head, turns.head.parts, ())  # type: ignore[return-value]


def _warmed_up(problems: Problems, turns: Turns, after: After, node: _Node) -> _Node:
    """The moment after a few tiles of each team, and a few laps of all rings."""
    slots, tiles = 2 * (problems.slots + 1), 2 * problems.group
    done = -turns.early
    while done < tiles or slots > 0 or node.where != ("tile", turns.early):
        segment = [s for s in after[node.where] if s.to != END][-1]
        path = [segment]
        if segment.to[0] == "step":
            step, leave = after[segment.to]
            path += [*[step] * max(0, -(-slots // max(1, tiles - done)) - segment.steps), leave]
        for each in path:
            reached = _take(turns, node, each, last=done > -turns.early or each is not segment)
            assert reached is not None
            node, slots = reached, slots - each.steps
        done += 1
        if done >= tiles and sum(each.steps for each in path) == 0:
            slots = 0
    return node


def _take(turns: Turns, node: _Node, segment: Segment, last: bool = False) -> _Node | None:
    """The moment to which a turn leads; None after the end. last: the moment before is of no use any more."""
    moment = node.moment
    shifts = moment.places.shifts_from(segment.start, turns.future.live)
    if shifts is None:
        raise _Stopped(node.path, "the warps have not moved on alike in the rings")
    rename = Renaming(moment.layout, shifts)
    parts = [[rename.op(op) for op in part] for part in segment.parts]
    state, check, places = moment.state, moment.check, moment.places
    if not last:
        state, check, places = state.copy(), check.copy(), places.copy()
    return _run(turns, state, check, places, segment, parts, node.path)


def _run(
    turns: Turns,
    state: State,
    check: LinearCheck,
    places: Places,
    segment: Segment,
    parts: list,
    path: tuple[Segment, ...],
) -> _Node | None:
    path = (*path, segment)
    try:
        run_segment(state, [iter(part) for part in parts], check)
    except (DeadlockError, HazardError) as error:
        raise _Stopped(path, str(error).split("\n")[0]) from None
    if segment.to == END:
        check.finish()
    if any(not finding.kind.note for finding in check.log.found.values()):
        raise _Stopped(path, next(f.message for f in check.log.found.values() if not f.kind.note))
    if segment.to == END:
        return None
    places.move_on(segment.start, segment.end)
    moment = Moment(state, check, places, turns.future)
    if not moment.settled:
        raise _Stopped(path, "something is still in flight")
    return _Node(segment.to, moment, path)
