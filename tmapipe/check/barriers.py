"""Rules of the barriers of warps: the CTA's, the named ones and the cluster's.

Whatever arrives in generation n + 1 must know that generation n is complete, or it could count there. Warps that have returned
count as arrived at the CTA's and the cluster's barrier, so their last clock joins what these release.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tmapipe.check.clocks import Clock, Clocks
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.machine.describe import who

__all__ = ["Barriers"]

CLUSTER = -1


class Generation:
    """What has arrived in one generation. by: warp -> time."""

    __slots__ = ("by", "clock", "complete", "steps")

    def __init__(self, clock: Clock):
        self.clock = clock
        self.complete = False
        self.by: dict[int, int] = {}
        self.steps: list[Step] = []

    def copy(self) -> Generation:
        other = Generation(self.clock.copy())
        other.complete, other.by, other.steps = self.complete, dict(self.by), list(self.steps)
        return other


class Barriers:
    """Barriers by number: ``16 * cta + id``, or `CLUSTER`."""

    def __init__(self, clocks: Clocks, log: FindingLog):
        self.clocks, self.log, self.layout = clocks, log, log.layout
        self.generations: dict[tuple[int, int], Generation] = {}
        self.latest: dict[int, Generation] = {}
        self.returned: set[int] = set()

    def take(self, other: Barriers) -> None:
        """Copies *other*, to go on independently."""
        self.generations = {key: generation.copy() for key, generation in other.generations.items()}
        self.latest = {which: self.generations[key] for key in sorted(self.generations) for which in key[:1]}
        self.returned = set(other.returned)

    def recent(self) -> Iterator[tuple[tuple[int, Any], Generation]]:
        """Generations at which those who still come may look: the latest of each barrier, and the one before if it is not
        complete. Each with the barrier's number, and whether it is complete."""
        for (which, number), generation in self.generations.items():
            latest = self.latest[which]
            if generation is latest:
                yield (which, generation.complete), generation
            elif not latest.complete and self.generations.get((which, number + 1)) is latest:
                yield (which, "before"), generation

    def arrive(self, agent: int, op: Any, id: int | None, facts: tuple[int, bool], order_only: bool) -> None:
        """The warp arrives at a barrier.

        Args:
            id: A hardware barrier of its CTA; None: the cluster's.
            facts: The generation that it counts in, and whether that is then complete.
            order_only: Whether it releases nothing.
        """
        (number, complete), clocks = facts, self.clocks
        which, warps = self._barrier(agent, id)
        step = Step(self.log.order, agent, op, number)
        before = self.generations.get((which, number - 1))
        if before is not None and any(clocks.of[agent][other] < time for other, time in before.by.items()):
            self._early(step, number, before)
        now = self.generations.get((which, number))
        if now is None:
            now = self.latest[which] = self.generations[which, number] = Generation(clocks.zero())
            self.generations.pop((which, number - 3), None)
        now.by[agent] = clocks.time[agent]
        now.steps.append(step)
        now.complete = complete
        if order_only:
            clocks.execute(agent, now.clock)
        else:
            clocks.release(agent, now.clock, all_lanes=True)
        if complete and not id:
            self._join_returned(now, warps)

    def wait(self, agent: int, id: int | None, generation: int) -> None:
        """The warp saw the generation complete."""
        found = self.generations.get((self._barrier(agent, id)[0], generation))
        if found is not None:
            self.clocks.acquire(agent, found.clock)

    def exit(self, agent: int) -> None:
        """The warp returns, which may complete what all others have arrived at."""
        self.returned.add(agent)
        for which, warps in (self._barrier(agent, 0), self._barrier(agent, None)):
            latest = self.latest.get(which)
            if latest is not None and not latest.complete and all(w in latest.by or w in self.returned for w in warps):
                latest.complete = True
                self._join_returned(latest, warps)

    def _barrier(self, agent: int, id: int | None) -> tuple[int, range]:
        """The number of a barrier of the warp, and the warps that may take part in it."""
        cta = self.layout.cta_of(agent)
        return (CLUSTER, range(self.layout.agents)) if id is None else (16 * cta + id, self.layout.cta_warps(cta))

    def _join_returned(self, latest: Generation, warps: range) -> None:
        """Joins the clocks of those that have returned without arriving: the barrier could not complete before."""
        for agent in self.returned:
            if agent in warps and agent not in latest.by:
                self.clocks.release(agent, latest.clock, all_lanes=True)

    def _early(self, step: Step, number: int, before: Generation) -> None:
        name = self.layout.named_barrier_name(getattr(step.op, "id", 0))
        others = ", ".join(dict.fromkeys(self.layout.role(s.agent) for s in before.steps))
        text = (
            f"{who(self.layout, step.agent)} arrives at {name} for its use number {number} and does not know that use number "
            f"{number - 1} (by {others}) is over, so it can count there"
        )
        fix = (
            "give each group of warps an id of its own, and let a warp that only arrives know that the last use is over"
        )
        self.log.add(Kind.NAMED_BARRIER, text, fix, step, *before.steps)
