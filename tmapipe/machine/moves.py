"""Where bodies store to and load from, as recorded: the places of tiles, as sums of what varies.

This is what the rules of outputs look at (`tmapipe.check.outputs`): which tile, which starts, in which loops. A `Visit` has
all that the warps of a cluster do at one output tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import attrs

from tmapipe.machine.alike import Alike, Own
from tmapipe.machine.varying import Key, Varying
from tmapipe.plan.model import Load, Store

__all__ = ["Call", "Move", "Start", "Visit", "visits_of"]

Form = tuple[tuple[tuple[Key, int], ...], int]  # terms with their factors, and a constant


class Start(NamedTuple):
    """A start along one dimension: what it is a sum of, and its value where it was recorded."""

    terms: tuple[tuple[Key, int], ...]
    const: int
    value: int


class Move(NamedTuple):
    """One warp starts to move a tile, or threads move it.

    Args:
        part: The load or store.
        at: Where it starts, along each dimension.
        loops: The indices of the loops around it, and how often each runs.
        turn: The iteration of each of these.
        agent: The warp.
        where: Its source line, if that was asked for.
    """

    part: Load | Store
    at: tuple[Start, ...]
    loops: tuple[tuple[Key, Form], ...]
    turn: tuple[int, ...]
    agent: int
    where: str | None


@attrs.define
class Call:
    """One call of a body, of the warps that are *alike*.

    Args:
        run: Of the recording.
        place: The coordinates of the tile, of a cluster, by dimension; None before the first tile.
        values: Those of terms that were set there.
        alike: Who is recorded.
        moves: (part, start, loops, turn, line) of each, in the program's order.
    """

    run: int
    place: Mapping[str, int] | None
    values: Mapping[Key, Any]
    alike: Alike
    moves: list[tuple[Any, ...]] = attrs.field(factory=list)

    def of(self, agent: int) -> list[Move]:
        """The moves of one of these warps."""
        return [
            Move(part, tuple([self._start(x, agent) for x in at]), loops, turn, agent, where)
            for part, at, loops, turn, where in self.moves
        ]

    def _start(self, x: Any, agent: int) -> Start:
        if type(x) is Varying:
            return Start(x.run.sorted(x), self._number(x.const, agent), self._number(x.value, agent))
        number = self._number(x, agent)
        return Start((), number, number)

    def _number(self, x: Any, agent: int) -> int:
        if type(x) is Own:
            return int(x.values[agent] if x.alike is self.alike else x.here)
        return int(x)


class Visit(NamedTuple):
    """What the warps of a cluster do at one output tile, by warp. place, values: as of `Call`."""

    place: Mapping[str, int] | None
    values: Mapping[Key, Any]
    moves: dict[int, list[Move]]


def visits_of(calls: Iterable[Call]) -> list[Visit]:
    """The calls of all warps, by recording and tile."""
    found: dict[Any, Visit] = {}
    for call in calls:
        key = call.run, None if call.place is None else tuple(sorted(call.place.items()))
        visit = found.setdefault(key, Visit(call.place, call.values, {}))
        for agent in call.alike.agents:
            visit.moves[agent] = call.of(agent)
    return list(found.values())
