"""The findings of one run. Each is reported once per rule, pair of source lines, and ring or buffer."""

from __future__ import annotations

from typing import Any, NamedTuple

from tmapipe.check.findings import Finding, Kind
from tmapipe.isa.ops import Agent
from tmapipe.machine.describe import bar_name, event, lines, slot_name, who
from tmapipe.machine.layout import Layout

__all__ = ["FindingLog", "Step"]


class Step(NamedTuple):
    """An operation that a finding may show.

    order: its number in the run; phase: the one that it counted in or saw complete; what: words, if they say more than the
    operation.
    """

    order: int
    agent: Agent
    op: Any
    phase: int | None = None
    what: str = ""  #: if it says more than the operation itself


class FindingLog:
    """Collects `Finding`s. order: the number of the transition that is being looked at."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.order = 0
        self.found: dict[Any, Finding] = {}

    def add(
        self,
        kind: Kind,
        text: tuple[str, str],
        last: Step,
        *others: Step,
        bar: int | None = None,
        slot: int | None = None,
        phase: int | None = None,
        blame: Step | None = None,
    ) -> None:
        """Adds a finding, unless one like it has been found.

        Args:
            kind: Of the finding.
            text: One sentence of what can happen, and one of what to change.
            last: The operation that shows it.
            others: Earlier ones, shown in order.
            bar, slot: Flat indices in the cluster of the mbarrier and the slot that it is about.
            phase: Of the mbarrier.
            blame: The step at which to change something, if not the last.
        """
        layout, key = self.layout, self._key(kind, last, others, bar, slot)
        if key in self.found:
            return
        steps = sorted({(s.order, str(s.agent)): s for s in (*others, last)}.values(), key=lambda s: s.order)
        blamed = None if blame is None else getattr(blame.op, "where", None)
        shown = tuple(event(layout, s.order, s.agent, s.op, s.what, s.phase) for s in steps)
        self.found[key] = Finding(
            kind=kind,
            message=text[0],
            fix=text[1],
            agents=tuple(dict.fromkeys(who(layout, s.agent) for s in (last, *others))),
            where=lines((blamed, *(e.where for e in reversed(shown)))),
            barrier=None if bar is None else bar_name(layout, bar),
            slot=None if slot is None else slot_name(layout, slot),
            phase=phase,
            steps=shown,
        )

    def _key(self, kind: Kind, last: Step, others: tuple[Step, ...], bar: int | None, slot: int | None) -> Any:
        layout = self.layout
        ends = [last, *others[:1]]
        lines = tuple((_role(layout, s.agent), type(s.op), getattr(s.op, "where", None)) for s in ends)
        array = layout.bars[bar % layout.nbars][0].name if bar is not None else None
        buffer = layout.slots[slot % layout.nslots][0].name if slot is not None else None
        return kind, lines, array, buffer


def _role(layout: Layout, agent: Agent) -> str:
    return layout.role(agent) if isinstance(agent, int) else agent.kind
