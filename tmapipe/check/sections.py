"""Which loops of a tile go in step: those that hand slots to each other, section by section in the order in which they end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tmapipe.errors import PipelineError
from tmapipe.isa.effects import declared
from tmapipe.isa.operands import Kind
from tmapipe.machine.decisions import Loop
from tmapipe.machine.layout import Layout
from tmapipe.machine.programs import Program
from tmapipe.machine.scheduler import Scheduler
from tmapipe.machine.state import State

__all__ = ["executed", "numbered"]


def numbered(layout: Layout, programs: Sequence[Program], loops: list[list[Loop]]) -> list[list[int]] | None:
    """By warp, the number of the section to which each of its loops belongs; None if there are no sections one after another.

    Args:
        programs: Of all warps, in which each loop has iterations.
        loops: By warp, in the order of its program.
    """
    groups: list[tuple[set[str], list[tuple[int, int]]]] = []  # rings' barriers, and loops that use them
    for agent, own in enumerate(loops):
        for n, loop in enumerate(own):
            names = _barriers(layout, programs[agent].ops[loop.start : loop.end])
            mine = [group for group in groups if group[0] & names]
            groups = [group for group in groups if group not in mine]
            groups.append((names.union(*(group[0] for group in mine)), [(agent, n), *(x for g in mine for x in g[1])]))
    if len(groups) < 2 or not all(names for names, _ in groups):
        return None
    times = _times(layout, programs)
    if times is None:
        return None
    groups.sort(key=lambda group: max(times[agent][loops[agent][n].end - 1] for agent, n in group[1]))
    section = {where: number for number, (_, members) in enumerate(groups) for where in members}
    found = [[section[agent, n] for n in range(len(own))] for agent, own in enumerate(loops)]
    return found if all(a < b for own in found for a, b in itertools.pairwise(own)) else None


def _barriers(layout: Layout, ops: Sequence[Any]) -> set[str]:
    return {layout.bars[getattr(op, name)][0].name for op in ops for name in declared(type(op)).named(Kind.BAR)}


def _times(layout: Layout, programs: Sequence[Program]) -> list[list[int]] | None:
    """By warp, when each of its operations is executed in one run; None if that does not come to its end."""
    found, ended = _run(layout, [program.ops for program in programs])
    return found if ended else None


def executed(layout: Layout, programs: Sequence[Sequence[Any]]) -> list[int]:
    """By warp, how many of these operations can be executed, if all warps go as far as they can."""
    return [len(times) for times in _run(layout, programs)[0]]


def _run(layout: Layout, programs: Sequence[Sequence[Any]]) -> tuple[list[list[int]], bool]:
    found: list[list[int]] = [[] for _ in programs]
    count = itertools.count()

    def watch(agent: Any, op: Any, facts: Any) -> None:
        if type(agent) is int:
            found[agent].append(next(count))

    try:
        Scheduler(State(layout), [iter(program) for program in programs], "fair", watchers=(watch,)).run()
    except PipelineError:
        return found, False
    return found, True
