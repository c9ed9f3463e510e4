"""Rule of tiles that threads write (`SharedStage`): what is read of a slot has been written since its writer entered it.

A warp of the writer enters a slot by waiting for it. What it has written there before is of no matter then. Until all parts
are written again, the slot must not be read by roles that come after the writer in the ring.
"""

from __future__ import annotations

from typing import Any

from tmapipe.check.clocks import Clocks
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.check.rules import Rules
from tmapipe.isa.ops import SlotWrite
from tmapipe.machine.describe import who
from tmapipe.plan.rings import Ring

__all__ = ["Contents"]

Cut = tuple[str, int, int]


class Contents(Rules):
    """short: by slot that is not whole, the cuts that each warp has written since it has entered it."""

    kept = ("short", "parts")

    def __init__(self, clocks: Clocks, log: FindingLog):
        super().__init__(clocks, log)
        layout, self.short = self.layout, dict[int, dict[int, frozenset[Cut]]]()
        self.parts: dict[int, dict[int, frozenset[Cut]]] = {}
        rings = {ring.name: ring for ring in layout.plan.rings}
        #: buffer -> ring, writer and line of the writer's body
        self.of: dict[str, tuple[Ring, str, str | None]] = {
            name: (rings[ring], writer, where) for name, (writer, ring, where) in layout.written.items()
        }
        self.entered: dict[
            tuple[str, str], list[str]
        ] = {}  # (role, barrier that it waits for) -> buffers that it writes
        for name, (ring, writer, _) in self.of.items():
            if ring.held and not ring.phase_of(writer):  # it enters the only slot without a wait
                first = layout.slot_base[name]
                self.short |= {cta * layout.nslots + first: {} for cta in range(layout.ctas)}
                continue
            awaited = ring.barriers[(ring.phase_of(writer) or 0) - 1].name
            self.entered.setdefault((writer, awaited), []).append(name)

    def wait(self, agent: int, bar: int) -> None:
        """A warp waits for an mbarrier of its CTA."""
        barrier, stage = self.layout.bars[bar]
        for name in self.entered.get((self.layout.role(agent), barrier.name), ()):
            slot = self._flat(agent, self.layout.slot_base[name] + stage)
            team = self._team(agent)  # of what another team has written there, nothing counts any more
            known = {other: cuts for other, cuts in self.parts.get(slot, {}).items() if self._team(other) == team}
            self.note(slot, {**known, agent: frozenset()})

    def access(self, step: Step, own: int, write: bool) -> None:
        """Threads, TMA or wgmma read a slot of their CTA, or threads write a part of it."""
        buffer, _ = self.layout.slots[own]
        if buffer.name not in self.of:
            return
        slot, op = self._flat(step.agent, own), step.op
        if write:
            if type(op) is SlotWrite:
                known = self.parts.get(slot, {})
                cuts = known.get(step.agent, frozenset()) | {(op.split, op.part, op.parts)}
                self.note(slot, {**known, step.agent: cuts})
        elif slot in self.short:
            self._look(step, slot, buffer.name)

    def note(self, slot: int, known: dict[int, frozenset[Cut]]) -> None:
        self.parts[slot] = known
        if sum(1 / parts for _, _, parts in frozenset().union(*known.values())) > 0.999:
            self.short.pop(slot, None)
        else:
            self.short[slot] = known

    def _team(self, agent: int) -> int:
        warp = agent % self.layout.warps
        return int(self.layout.plan.role(self.layout.role(agent)).team(warp))

    def _flat(self, agent: int, own: int) -> int:
        return self.layout.cta_of(agent) * self.layout.nslots + own

    def _look(self, step: Step, slot: int, name: str) -> None:
        ring, writer, where = self.of[name]
        phases = [ring.phase_of(role) for role in (writer, self.layout.role(step.agent))]
        if None in phases or phases[0] >= phases[1]:  # type: ignore[operator]
            return
        cuts = frozenset().union(*self.short[slot].values())
        written = f"{len(cuts)} of {max(parts for _, _, parts in cuts)} parts" if cuts else "nothing"
        reader = who(self.layout, step.agent)
        text = f"{reader} reads {name} in a slot in which {writer} has written {written} of it"
        fix = f"let {writer} write all of it, slot.{name}.write(...), each time that it enters a slot"
        self.log.add(Kind.UNFILLED, text, fix, step, slot=slot, line=where)

    def facts(self, state: Any) -> Any:
        return ()
