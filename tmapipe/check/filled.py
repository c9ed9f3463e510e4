"""Slots that are read before threads have written them, or all of them.

A tile that threads write (`SharedStage`) holds, in each slot of its ring, what the writer's warps have written between
entering the slot and leaving it. The slots that a role enters follow each other as those of all other roles do, so the n-th
time that a reader enters a slot it finds what the writer has written at its n-th time. This is seen in the programs alone.
That the accesses are ordered is the matter of other rules.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tmapipe.check.findings import Finding, Kind
from tmapipe.check.painted import recorded_programs
from tmapipe.check.problems import Problems
from tmapipe.check.search import Problem, problems_near
from tmapipe.isa.effects import Access, Start, declared
from tmapipe.isa.ops import MbarWait, SlotWrite
from tmapipe.machine.describe import lines, who
from tmapipe.machine.layout import Layout
from tmapipe.plan.rings import Ring
from tmapipe.stage import SharedStage

__all__ = ["Unfilled", "look_at_slots", "unfilled"]

NEAR = 4  # problems

Cut = tuple[str, int, int]


class Unfilled(NamedTuple):
    """A read of a tile that is not there. written: what of it is, in words; reader: the warp; op: what it executes."""

    buffer: str
    written: str
    reader: int
    op: Any


def look_at_slots(problems: Problems) -> list[Finding]:
    """The rule, for all tiles that threads write: for each kind of tile that has been recorded, and then for a problem that
    shows the line."""
    declared_ = problems.schedule.declared
    stages = {name: stage for name, stage in declared_.shared.items() if type(stage) is SharedStage}
    writers = {name: declared_.name_of(stage.writer) for name, stage in stages.items()}
    rings = {name: declared_.name_of(stage.ring) for name, stage in stages.items()}
    if not writers:
        return []
    found: dict[str, Finding] = {}
    by_kind = {each.buffer: each for each in problems.unfilled(unfilled, writers, rings)}
    first = Problem(problems.shapes(2 * problems.group, problems.slots + 1 if problems.inner else 1))
    near = problems_near(problems) if by_kind else ()
    for problem in (first, *itertools.islice(near, NEAR)):
        for each in unfilled(problems.layout, recorded_programs(problems, problem), writers, rings):
            found.setdefault(each.buffer, _finding(problems, each, writers[each.buffer]))
        if found.keys() >= by_kind.keys():
            break
    for name, each in by_kind.items():
        found.setdefault(name, _finding(problems, each, writers[name]))
    return list(found.values())


def _finding(problems: Problems, each: Unfilled, writer: str) -> Finding:
    body = inspect.unwrap(problems.schedule.declared.bodies[writer]).__code__
    reader, name = who(problems.layout, each.reader), each.buffer
    text = f"{reader} reads {name} in a slot in which {writer} has written {each.written} of it"
    fix = f"let {writer} write all of it, slot.{name}.write(...), each time that it enters a slot"
    own = f"{body.co_filename}:{body.co_firstlineno}"
    return Finding(Kind.UNFILLED, text, fix, (reader,), lines((own, getattr(each.op, "where", None))), slot=name)


def unfilled(
    layout: Layout, programs: Sequence[Iterable[Any]], writers: dict[str, str], rings: dict[str, str]
) -> list[Unfilled]:
    """The first such read of each buffer.

    Args:
        layout: Of the plan.
        programs: Of each warp of a cluster.
        writers: Buffer -> role, for those that threads write.
        rings: Buffer -> ring.
    """
    plan = layout.plan
    roles = {warp: role for role in plan.roles for warp in range(role.first_warp, role.first_warp + role.warps)}
    of = {ring.name: ring for ring in plan.rings if not ring.held}
    by_barrier = {barrier.name: ring for ring in of.values() for barrier in ring.barriers}
    written: dict[Any, set[Cut]] = {}
    read: dict[Any, tuple[int, Any]] = {}
    for agent, program in enumerate(programs):
        cta, warp = divmod(agent, layout.warps)
        role = roles.get(warp)
        if role is None or role.teams > 1:
            continue
        laps: dict[tuple[str, int], int] = {}
        for op in program:
            kind: Any = type(op)
            if kind is MbarWait:
                barrier, stage = layout.bars[op.bar]
                ring = by_barrier.get(barrier.name)
                if ring is not None and _awaited(ring, role.name) == barrier.name:
                    laps[ring.name, stage] = laps.get((ring.name, stage), 0) + 1
                continue
            for slot in _slots(kind):
                buffer, stage = layout.slots[getattr(op, slot)]
                ring = of.get(rings.get(buffer.name, ""))
                if ring is None or (lap := laps.get((ring.name, stage))) is None:
                    continue
                place = buffer.name, cta, stage, lap
                if kind is SlotWrite:
                    written.setdefault(place, set()).add((op.split, op.part, op.parts))
                elif _comes_after(ring, role.name, writers[buffer.name]):
                    read.setdefault(place, (agent, op))
    found: dict[str, Unfilled] = {}
    for place, (agent, op) in read.items():
        cuts = written.get(place, set())
        if sum(1 / parts for _, _, parts in cuts) < 0.999 and place[0] not in found:
            parts = f"{len(cuts)} of {max(parts for _, _, parts in cuts)} parts" if cuts else "nothing"
            found[place[0]] = Unfilled(place[0], parts, agent, op)
    return list(found.values())


def _awaited(ring: Ring, role: str) -> str | None:
    phase = ring.phase_of(role)
    return None if phase is None else ring.barriers[phase - 1].name


def _comes_after(ring: Ring, reader: str, writer: str) -> bool:
    """Whether a role enters a slot after the one that writes a tile into it."""
    phases = [ring.phase_of(role) for role in (writer, reader)]
    return None not in phases and phases[0] < phases[1]  # type: ignore[operator]


@functools.cache
def _slots(kind: Any) -> tuple[str, ...]:
    """The operands of an operation that name slots which it accesses in its own CTA."""
    return tuple(
        effect.slot
        for effect in declared(kind).effects
        if (isinstance(effect, Access) and not effect.mask and (kind is SlotWrite or not effect.write))
        or (isinstance(effect, Start) and not effect.write)
    )
