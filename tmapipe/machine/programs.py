"""Programs of warps, recorded with the iterations of their tile loops and the loops of bodies marked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from tmapipe.isa.effects import declared
from tmapipe.isa.ops import Exit
from tmapipe.machine.decisions import Loop
from tmapipe.machine.layout import Layout
from tmapipe.machine.machine import at_most

__all__ = ["Program", "record_marked"]

MAX_OPERATIONS = 200_000  # of one warp; problems are small, and take thousands


class Program(NamedTuple):
    """One warp's operations. tiles: the index at which each iteration of its tile loop starts, and at which the last ends;
    loops: those of bodies whose count varies, in the order of their beginnings."""

    ops: list[Any]
    tiles: list[int]
    loops: list[Loop]

    def tile(self, i: int) -> list[Any]:
        """The operations of the i-th iteration."""
        return self.ops[self.tiles[i] : self.tiles[i + 1]]

    @property
    def iterations(self) -> int:
        return len(self.tiles) - 1


def record_marked(
    layout: Layout,
    entry: Callable[[Any], None],
    make: Callable[[int, Callable[[Any], None]], Any],
    each: bool = False,
) -> list[Program]:
    """Each warp's operations, `Exit` last, with the iterations of the outermost `Isa.loop` marked.

    Local operations are left out: how often a warp looks into a table, say, depends on data alone.

    Args:
        make: Makes the instruction set of a warp, from its number and from what takes operations.
        each: Record each warp by itself, the last one first, instead of one for all that are alike.
    """
    programs: dict[int, Program] = {}
    for agent in reversed(range(layout.agents)) if each else range(layout.agents):
        if agent in programs:
            continue
        program: list[Any] = []
        marks: list[int] = []
        isa = make(agent, _taking(program))
        alike = isa.alike
        if each:
            alike.alone()
        isa.loop = _marking(isa.loop, program, marks)
        loops = isa.decisions.loops = []
        isa.decisions.length = program.__len__
        entry(isa)
        program.append(Exit())
        for other, ops in alike.programs(program).items():
            programs[other] = Program(ops, marks or [len(program) - 1], loops)
    return [programs[agent] for agent in range(layout.agents)]


def _taking(program: list[Any]) -> Callable[[Any], None]:
    """What adds operations to a warp's program, but for local ones."""
    add = at_most(MAX_OPERATIONS, program)

    def emit(op: Any) -> None:
        if not _is_local(type(op)):  # type: ignore[arg-type]
            add(op)

    return emit


@functools.cache
def _is_local(kind: Any) -> bool:
    return declared(kind).local


def _marking(within: Callable[..., None], program: list[Any], marks: list[int]) -> Callable[..., None]:
    inside = False

    def loop(trips: int, body: Callable[[int], None]) -> None:
        nonlocal inside
        if inside:
            return within(trips, body)
        inside = True
        start = len(program)
        found = []
        for i in range(trips):
            found.append(len(program))
            body(i)
        inside = False
        if len(program) > start or not marks:  # a loop that only moves on in its rings does not count
            marks[:] = [*found, len(program)]

    return loop
