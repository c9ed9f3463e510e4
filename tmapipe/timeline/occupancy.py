"""How full rings are: what each slot is at any time, and how many slots are being filled and in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tmapipe.isa import ops
from tmapipe.isa.ops import Counted
from tmapipe.machine.layout import Layout
from tmapipe.machine.timeline import Timeline
from tmapipe.plan.barriers import Barrier
from tmapipe.plan.rings import Ring
from tmapipe.timeline.timed import Step

__all__ = ["Occupancy"]

FREE, FILLING, FULL = "free", "filling", "in use"
Slot = tuple[int, int, str, int]  # cluster, CTA, ring, number


class Occupancy:
    """What each slot of each ring was, from the steps of a run.

    A slot is being filled from the time when the ring's first role has found it free, if it then fills it; in use from the
    phase in which the first barrier completes, and free again when the last one does. changes: (time, what it is then,
    iteration) of each slot, by (cluster, CTA, ring, slot).
    """

    def __init__(self, layout: Layout, steps: Iterable[Step], end: float):
        self.layout, self.end = layout, end
        self.changes: dict[Slot, list[tuple[float, str, int]]] = {}
        self.found_free: dict[tuple[Slot, int], float] = {}
        rings = {barrier: ring for ring in layout.plan.rings for barrier in ring.barriers}
        for step in steps:
            if isinstance(step.op, ops.MbarWait) and isinstance(step.agent, int):
                cta, bar = step.agent // layout.warps, step.op.bar
                barrier, stage = layout.bars[bar]
                ring = rings.get(barrier)
                if ring is not None and barrier == ring.barriers[-1] and not ring.held:
                    slot = step.cluster, cta, ring.name, stage % ring.stages
                    self.found_free.setdefault((slot, int(step.facts) + 1), step.began)
            for fact in step.facts if isinstance(step.facts, tuple) else ():
                if isinstance(fact, Counted):
                    barrier, stage = layout.bars[fact.bar % layout.nbars]
                    if barrier in rings:
                        self._count(rings[barrier], barrier, stage, fact, step)

    def _count(self, ring: Ring, barrier: Barrier, stage: int, fact: Counted, step: Step) -> None:
        """Something counts in a phase of a ring's barrier."""
        slot: Slot = step.cluster, fact.cta, ring.name, stage % ring.stages
        iteration, known = fact.phase * ring.stages + slot[-1], self.changes.setdefault(slot, [])
        if barrier == ring.barriers[0] and (not known or known[-1][1] == FREE):
            known.append((self.found_free.get((slot, fact.phase), step.began), FILLING, iteration))
        if fact.completed and barrier == ring.barriers[0]:
            known.append((step.end, FULL, iteration))
        elif fact.completed and barrier == ring.barriers[-1]:
            known.append((step.end, FREE, iteration))

    def slots(self) -> Iterator[tuple[Slot, float, float, str, int]]:
        """(slot, from, to, what it is, iteration), of slots that are not free."""
        for key, changes in self.changes.items():
            ends = [time for time, _, _ in changes[1:]] + [self.end]
            for (began, what, iteration), end in zip(changes, ends, strict=True):
                if what != FREE and end > began:
                    yield key, began, end, what, iteration

    def counts(self) -> Iterator[tuple[tuple[int, int, str], float, dict[str, int]]]:
        """(ring, time, how many slots are what), at each change."""
        rings: dict[tuple[int, int, str], list[tuple[float, int, str]]] = {}
        for key, changes in self.changes.items():
            rings.setdefault(key[:3], []).extend((time, key[3], what) for time, what, _ in changes)
        for ring, found in rings.items():
            now: dict[int, str] = {}
            for time, slot, what in sorted(found, key=lambda each: each[0]):
                now[slot] = what
                yield ring, time, {name: list(now.values()).count(name) for name in (FULL, FILLING)}

    def draw(self, made: Timeline, ns: Callable[[float], int], title: Callable[[int], str]) -> None:
        """Adds both to *made*. ns: a time in its unit; title: what stands before a CTA of a cluster."""
        ctas, order = self.layout.ctas, [ring.name for ring in self.layout.plan.rings]
        for (cluster, cta, ring, slot), began, end, what, iteration in self.slots():
            more = {"ring": ring, "slot": f"{ring}[{slot}]", "iteration": iteration}
            place = cluster * ctas + cta, title(cluster) + f"CTA {cta}"
            made.slot(place, (order.index(ring), ring, slot), what, ns(began), ns(end), more)
        for (cluster, cta, ring), time, numbers in self.counts():
            made.count(cluster * ctas + cta, f"{ring}: slots", ns(time), numbers)
