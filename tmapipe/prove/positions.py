"""How far each warp is in its arrays of barriers and slots, and operations relative to that.

A *relative operation* says by how many stages it moves on from the warp's last operation of its sort on the same array. So
operations that differ only in their position in the ring are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from copy import copy
from typing import Any

import numpy as np

from tmapipe.isa.effects import ArriveAt, declared
from tmapipe.isa.operands import Kind as OperandKind
from tmapipe.machine.layout import Layout

__all__ = ["CLUSTER", "Key", "Live", "Positions", "Shifts", "stages_of", "without_position"]

Key = tuple[int, Any, str]  # warp, sort of operation, array of barriers or slots
Shifts = dict[tuple[int, str], int]  # (CTA, array) -> stages
PEERS = "peers"  # the last part of a sort of operations that reach them
CLUSTER = -1  # the cluster's barrier, among the numbers of named ones

#: Operands that tell a position in a ring, or do not matter to the protocol: left out where programs are compared.
_LEFT_OUT = (OperandKind.BAR, OperandKind.SLOT, OperandKind.PARITY, OperandKind.AT, OperandKind.WHERE)


class Positions:
    """How far each warp is.

    at: by (warp, sort of operation, array), the last stage (for waits, stage + stages * parity), not counting what the warp's
    team has skipped; skipped: by (warp, array), how much that is; touched: all stages of the run so far; arrivals: (warp,
    named barrier or CLUSTER) of the run so far; parts: operations taken apart.
    """

    def __init__(self, layout: Layout):
        self.layout = layout
        self.at: dict[Key, int] = {}
        self.skipped: dict[tuple[int, str], int] = {}
        self.touched: dict[Key, set[int]] = {}
        self.arrivals: set[tuple[int, int]] = set()
        self.parts: dict[Any, Any] = {}
        self.stages = stages_of(layout)
        self._positions: Any = None

    def copy(self) -> Positions:
        other = copy(self)
        other.at, other.skipped, other._positions = dict(self.at), dict(self.skipped), None
        return other

    def moves(self, agent: int, op: Any) -> list[tuple[Key, int, int]]:
        """What one operation of the warp does: (key, stage, stages), the stage less what its team has skipped."""
        found = []
        for sort, array, position, around in self._apart(op)[1]:
            found.append(((agent, sort, array), (position - self.skipped.get((agent, array), 0)) % around, around))
        return found

    def moved(self) -> None:
        """Warps move on: where they are is looked up again."""
        self._positions = None

    def places(self, op: Any) -> list[tuple[Any, str, int, int]]:
        """(sort of operation, array, stage, stages) of an operation. For waits, stages are counted through two laps."""
        return self._apart(op)[1]

    def _apart(self, op: Any) -> tuple[Any, list[tuple[Any, str, int, int]]]:
        key = without_position(op)
        parts = self.parts.get(key)
        if parts is None:
            parts = self.parts[key] = _apart(self.layout, op)
        return parts

    def relative(self, agent: int, op: Any) -> Any:
        rest, moves = self._apart(op)
        if not moves:
            meets = declared(rest[0]).effect(ArriveAt)
            if meets is not None:
                self.arrivals.add((agent, getattr(op, meets.barrier) if meets.barrier else CLUSTER))
            return rest
        at, skipped, touched = self.at, self.skipped, self.touched
        relative = [rest]
        for sort, array, position, around in moves:
            key = agent, sort, array
            if key in touched:
                touched[key].add(position)
            else:
                touched[key] = {position}
            if skipped:
                position = (position - skipped.get((agent, array), 0)) % around
            last = at.get(key)
            at[key] = position
            relative.append(("first", position) if last is None else (position - last) % around)
        return tuple(relative)

    def of(self, live: Live) -> tuple[Any, bytes]:
        """For each of these sorts of operations, where the warp is; and how far from the first one on the same array, and
        whether the warp has executed one. Kept until the warps move on."""
        if self._positions is None:
            at, skipped = self.at, self.skipped
            now = np.array([at.get(key, 0) + skipped.get((key[0], key[2]), 0) for key in live.keys], np.int64)
            apart = (now - now[live.first]) % live.around
            self._positions = now, apart.tobytes() + bytes([key in at for key in live.keys])
        return self._positions

    def from_here(self, live: Live) -> Shifts:
        """Shifts to stages counted from where the warps are."""
        return live.shifts(-self.of(live)[0])


class Live:
    """Sorts of operations that may come again.

    arrays: (CTAs, name, index in keys of the first sort of operation on it, a wait if there is one). By key: first, that index
    of its array, and around, the positions in it. An array that no peer signals or writes to is one of each CTA by itself:
    each may be as far in it as it likes.
    """

    def __init__(self, layout: Layout, keys: Iterable[Key]):
        self.keys = tuple(keys)
        stages = stages_of(layout)
        laps = [1 + tells_parity(sort) for _, sort, _ in self.keys]
        self.around = np.array([stages[array] * n for (_, _, array), n in zip(self.keys, laps, strict=True)], np.int64)
        self.first = np.zeros(len(self.keys), np.int64)
        self.arrays = []
        shared = {array for _, sort, array in self.keys if at_peers(sort)}
        every = tuple(range(layout.ctas))
        for ctas, array in dict.fromkeys(
            (every if array in shared else (agent // layout.warps,), array) for agent, _, array in self.keys
        ):
            own = [i for i, key in enumerate(self.keys) if key[2] == array and key[0] // layout.warps in ctas]
            first = self.first[own] = max(own, key=lambda i: (laps[i], -i))
            self.arrays.append((ctas, array, first))

    def shifts(self, moved: Any) -> Shifts:
        """By how many stages each array has moved on. moved: by key."""
        found: Shifts = {}
        for ctas, array, first in self.arrays:
            found.update(dict.fromkeys([(cta, array) for cta in ctas], int(moved[first] % self.around[first])))
        return found


def stages_of(layout: Layout) -> dict[str, int]:
    """Stages of each array of barriers or slots."""
    return {array: around for array, _, around in (*layout.bar_places, *layout.slot_places)}


def without_position(op: Any) -> Any:
    """The operation without coordinates, and with its type: operations of different types can be equal as tuples."""
    kind = type(op)
    data = _data_operands(kind)  # type: ignore[arg-type]
    return (kind, op._replace(**data)) if data else (kind, op)


def without_stages(op: Any) -> tuple[Any, ...]:
    """The operation without what tells its position in a ring, barriers, slots and parities, and without coordinates."""
    return type(op), *(getattr(op, name) for name, kind in declared(type(op)).operands.items() if kind not in _LEFT_OUT)


@functools.cache
def _data_operands(kind: Any) -> dict[str, Any]:
    """The operands that only data depends on, each with nothing in it."""
    return dict.fromkeys(declared(kind).named(OperandKind.AT), ())


def at_peers(sort: Any) -> bool:
    """Whether operations of this sort reach other CTAs."""
    return isinstance(sort, tuple) and sort[-1] is PEERS


def tells_parity(sort: Any) -> bool:
    """Whether operations of this sort name a phase's parity beside its barrier."""
    return isinstance(sort, type) and bool(declared(sort).named(OperandKind.PARITY))


def _apart(layout: Layout, op: Any) -> tuple[Any, list[tuple[Any, str, int, int]]]:
    """An operation without its positions, and these: (sort, array, position, positions around)."""
    kind, of = type(op), declared(type(op))
    parities = of.named(OperandKind.PARITY)
    laps = 2 if parities else 1  # a lap flips the parity
    lap = getattr(op, parities[0]) if parities else 0
    moves: list[tuple[Any, str, int, int]] = []
    far = (PEERS,) if any(getattr(op, name) is not None for name in of.named(OperandKind.MASK)) else ()
    for name in of.named(OperandKind.BAR):
        array, stage, stages = layout.bar_places[getattr(op, name)]
        moves.append(((kind, *far) if far else kind, array, stage + stages * lap, laps * stages))
    for name in of.named(OperandKind.SLOT):
        moves.append(((kind, name, *far), *layout.slot_places[getattr(op, name)]))
    return (*without_stages(op), *(array for _, array, _, _ in moves)), moves
