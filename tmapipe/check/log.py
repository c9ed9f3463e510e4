"""The findings of one run. Each is reported once per rule, pair of source lines, and ring or buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tmapipe.check.findings import Event, Finding, Kind
from tmapipe.machine.describe import bar_name, event, lines, slot_name, who
from tmapipe.machine.layout import Layout

__all__ = ["FindingLog", "Step", "events_of"]


class Step(NamedTuple):
    """An operation of a warp that a finding may show.

    order: its number in the run; phase: the one that it counted in or saw complete; what: words, if they say more than the
    operation; time: the warp's, when it executed it.
    """

    order: int
    agent: int
    op: Any
    phase: int | None = None
    what: str = ""
    time: int = 0


def events_of(layout: Layout, steps: Iterable[Step]) -> tuple[Event, ...]:
    """The steps of a timeline."""
    return tuple(event(layout, s.order, s.agent, s.op, s.what, s.phase) for s in steps)


class FindingLog:
    """Collects `Finding`s. order: the number of the transition that is being looked at."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.order = 0
        self.found: dict[Any, Finding] = {}

    def add(
        self,
        kind: Kind,
        text: str,
        fix: str,
        last: Step,
        *others: Step,
        bar: int | None = None,
        slot: int | None = None,
        phase: int | None = None,
        blame: Step | None = None,
        line: str | None = None,
    ) -> None:
        """Adds a finding, unless one like it has been found.

        Args:
            kind: Of the finding.
            text: One sentence of what can happen.
            fix: One sentence of what to change.
            last: The operation that shows it.
            others: Earlier ones, shown in order.
            bar, slot: Flat indices in the cluster of the mbarrier and the slot that it is about.
            phase: Of the mbarrier.
            blame: The step at which to change something, if not the last.
            line: The source line at which to, if that is no step's.
        """
        layout = self.layout
        places = tuple((layout.role(s.agent), type(s.op), s.op.where) for s in (last, *others[:1]))
        array = None if bar is None else layout.barrier(bar).name
        buffer = None if slot is None else layout.slots[slot % layout.nslots][0].name
        key = kind, places, array, buffer
        if key in self.found:
            return
        steps = {(step.order, step.agent): step for step in (*others, last)}
        shown = events_of(layout, sorted(steps.values(), key=lambda step: step.order))
        self.found[key] = Finding(
            kind=kind,
            message=text,
            fix=fix,
            agents=tuple(dict.fromkeys(who(layout, s.agent) for s in (last, *others))),
            where=lines((line, blame and blame.op.where, *(e.where for e in reversed(shown)))),
            barrier=None if bar is None else bar_name(layout, bar),
            slot=None if slot is None else slot_name(layout, slot),
            phase=phase,
            steps=shown,
        )
