"""Rules of the barriers of warps: the CTA's, the named ones and the cluster's.

Whatever arrives in generation n + 1 must know that generation n is complete, or it could count there. Warps that have returned
count as arrived at the CTA's and the cluster's barrier, so their last clock joins what these release.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tmapipe.check.clocks import Clocks, Known
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.check.phases import Phase
from tmapipe.check.rules import Key, Rules
from tmapipe.machine.describe import who
from tmapipe.machine.state import State

__all__ = ["Barriers"]

CLUSTER = -1


class Barriers(Rules):
    """Barriers by number: ``16 * cta + id``, or `CLUSTER`. generations: by barrier and number; latest: the number of that of
    each barrier; returned: warps."""

    kept = ("generations", "latest", "returned")

    def __init__(self, clocks: Clocks, log: FindingLog):
        super().__init__(clocks, log)
        self.generations: dict[tuple[int, int], Phase] = {}
        self.latest: dict[int, int] = {}
        self.returned: set[int] = set()

    def recent(self) -> Iterator[tuple[tuple[int, Any], Phase]]:
        """Generations at which those who still come may look: the latest of each barrier, and the one before if it is not
        complete. Each with the barrier's number, and whether it is complete."""
        for which, number in self.latest.items():
            latest, before = self.generations[which, number], self.generations.get((which, number - 1))
            yield (which, latest.complete), latest
            if before is not None and not latest.complete:
                yield (which, "before"), before

    def facts(self, state: State) -> Iterator[tuple[Key, Known]]:
        for key, generation in self.recent():
            for agent, time in generation.by.items():
                yield ("barrier", *key, agent), ((agent, time),)

    def arrive(self, step: Step, id: int | None, facts: tuple[int, bool], order_only: bool) -> None:
        """The warp arrives at a barrier.

        Args:
            id: A hardware barrier of its CTA; None: the cluster's.
            facts: The generation that it counts in, and whether that is then complete.
            order_only: Whether it releases nothing.
        """
        (number, complete), clocks, agent = facts, self.clocks, step.agent
        which, warps = self._barrier(agent, id)
        step = step._replace(phase=number)
        before = self.generations.get((which, number - 1))
        if before is not None and any(clocks.of[agent][other] < time for other, time in before.by.items()):
            self._early(step, number, before)
        now = self.generations.get((which, number))
        if now is None:
            now = self.generations[which, number] = Phase(clocks.zero())
            self.latest[which] = number
            self.generations.pop((which, number - 3), None)
        now.by[agent] = step.time
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
            latest = self.generations.get((which, self.latest.get(which, -1)))
            if latest is not None and not latest.complete and all(w in latest.by or w in self.returned for w in warps):
                latest.complete = True
                self._join_returned(latest, warps)

    def _barrier(self, agent: int, id: int | None) -> tuple[int, range]:
        """The number of a barrier of the warp, and the warps that may take part in it."""
        cta = self.layout.cta_of(agent)
        return (CLUSTER, range(self.layout.agents)) if id is None else (16 * cta + id, self.layout.cta_warps(cta))

    def _join_returned(self, latest: Phase, warps: range) -> None:
        """Joins the clocks of those that have returned without arriving: the barrier could not complete before."""
        for agent in self.returned:
            if agent in warps and agent not in latest.by:
                self.clocks.release(agent, latest.clock, all_lanes=True)

    def _early(self, step: Step, number: int, before: Phase) -> None:
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
