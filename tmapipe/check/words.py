"""Programs as words: operations with stages and parities counted from the last ones, so that equal turns look equal.

The i-th turn of a loop over a ring uses stage i mod S, with a parity that flips with every lap. As a *letter*, an operation
tells how far it moves on from the warp's last operation of its sort on the same array of barriers or slots; so turns that
differ only in the place in the ring have the same letters. `Places` is where each warp has come to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tmapipe.machine import MachineIsa, ops
from tmapipe.machine.layout import Layout
from tmapipe.machine.ops import Exit

__all__ = ["Places", "Program", "letters", "record_marked"]


class Program(NamedTuple):
    """One warp's operations. tiles: index at which each turn of its tile loop starts, and at which the last one ends."""

    ops: list[Any]
    tiles: list[int]

    def tile(self, i: int) -> list[Any]:
        """The operations of the i-th turn."""
        return self.ops[self.tiles[i] : self.tiles[i + 1]]

    @property
    def turns(self) -> int:
        return len(self.tiles) - 1


def record_marked(layout: Layout, entry: Callable[[Any], None], shapes: dict[str, tuple[int, ...]]) -> list[Program]:
    """Each warp's operations, `Exit` last, with the turns of the outermost `Isa.loop` marked."""
    programs = []
    for agent in range(layout.agents):
        program: list[Any] = []
        marks: list[int] = []
        isa: Any = MachineIsa(layout, agent, 0, 1, shapes, program.append)
        isa.loop = _marking(program, marks)
        entry(isa)
        program.append(Exit())
        programs.append(Program(program, marks or [len(program) - 1]))
    return programs


def _marking(program: list[Any], marks: list[int]) -> Callable[[int, Callable[[int], None]], None]:
    inside = False

    def loop(trips: int, body: Callable[[int], None]) -> None:
        nonlocal inside
        if inside:
            for i in range(trips):
                body(i)
            return
        inside = True
        start = len(program)
        found = []
        for i in range(trips):
            found.append(len(program))
            body(i)
        inside = False
        if len(program) > start or not marks:  # a loop that only moves on in its rings is no turn
            marks[:] = [*found, len(program)]

    return loop


class Places:
    """By (warp, sort of operation, array): the last stage; for waits, stage + stages * parity."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.at: dict[tuple[int, Any, str], int] = {}

    def copy(self) -> Places:
        other = Places(self.layout)
        other.at = dict(self.at)
        return other

    def letter(self, agent: int, op: Any) -> Any:
        """The operation as a letter; moves on."""
        kind = type(op)
        if kind is ops.MbarWait:
            barrier, stage = self.layout.bars[op.bar]
            place = stage + barrier.stages * op.parity
            return kind, barrier.name, self._step(agent, kind, barrier.name, place, 2 * barrier.stages)
        if kind is ops.TmaLoad:
            return (*_rest(op), self._slot(agent, kind, op.slot), self._bar(agent, kind, op.bar))
        if kind is ops.Wgmma:
            return kind, op.matmul, self._slot(agent, (kind, "a"), op.a), self._slot(agent, (kind, "b"), op.b)
        if hasattr(op, "bar"):
            return (*_rest(op), self._bar(agent, kind, op.bar))
        if hasattr(op, "slot"):
            return (*_rest(op), self._slot(agent, kind, op.slot))
        return _rest(op)

    def _bar(self, agent: int, sort: Any, bar: int) -> Any:
        barrier, stage = self.layout.bars[bar]
        return barrier.name, self._step(agent, sort, barrier.name, stage, barrier.stages)

    def _slot(self, agent: int, sort: Any, slot: int) -> Any:
        buffer, stage = self.layout.slots[slot]
        return buffer.name, self._step(agent, sort, "slots of " + buffer.name, stage, buffer.stages)

    def _step(self, agent: int, sort: Any, array: str, place: int, around: int) -> Any:
        key = agent, sort, array
        last = self.at.get(key)
        self.at[key] = place
        return ("first", place) if last is None else (place - last) % around

    def shifts_from(self, before: Places) -> dict[str, int] | None:
        """By array of barriers or slots: by how many stages (and parity flips) all warps have moved on since; None if they
        have not moved alike."""
        if self.at.keys() != before.at.keys():
            return None
        found: dict[str, int] = {}
        loose: dict[str, tuple[int, int]] = {}  # from operations without a parity: modulo the stages
        for key, place in self.at.items():
            _, sort, array = key
            stages = self._stages(array)
            if sort is ops.MbarWait:
                shift = (place - before.at[key]) % (2 * stages)
                if found.setdefault(array, shift) != shift:
                    return None
            else:
                shift = (place - before.at[key]) % stages
                if loose.setdefault(array, (shift, stages)) != (shift, stages):
                    return None
        for array, (shift, stages) in loose.items():
            if found.setdefault(array, shift) % stages != shift:
                return None
        return found

    def _stages(self, array: str) -> int:
        plan = self.layout.plan
        name = array.removeprefix("slots of ")
        return plan.barrier(name).stages if name == array else plan.buffer(name).stages


def letters(places: Places, agent: int, operations: Sequence[Any]) -> list[Any]:
    """A warp's operations as a word; *places* moves on."""
    return [places.letter(agent, op) for op in operations]


_DROPPED = ("bar", "slot", "at", "where")  # stages are told by steps; coordinates do not matter to the protocol


def _rest(op: Any) -> tuple[Any, ...]:
    return type(op), *(value for name, value in zip(op._fields, op, strict=True) if name not in _DROPPED)
