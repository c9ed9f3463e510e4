"""Vector clocks: what each warp, and each phase of a barrier, has in its past.

A clock is one array of integers with six parts. The time of a warp is the number of its operations so far.

    executed   by warp: its operations up to this time have been executed
    published  by warp: what all of its lanes accessed up to this time is visible here
    fenced     by warp: what it accessed up to this time was followed by its own proxy fence, which is visible here
    told       by warp: the mbarriers that its elected lane initialized up to this time are initialized here
    phases     by mbarrier: this many of its phases have been waited for
    handed_on  by mbarrier: this many of its phases have been waited for, and then a proxy fence was executed

The lanes of a body are converged at every call, so an operation of one lane is *executed* for all. Memory differs: the arrival
of one lane publishes the other lanes' accesses and fences only up to their last common synchronization. The elected lane
tells of what it initializes itself.
"""

from __future__ import annotations

import numpy as np

from tmapipe.machine.layout import Layout

__all__ = ["Clock", "Clocks", "Known", "knows"]

Clock = np.ndarray
Known = tuple[tuple[int, int], ...]  # (entry of a clock, least value): a fact is known to clocks that have one of them


def knows(clock: Clock, known: Known) -> bool:
    """Whether a fact is in the past of a clock."""
    for entry, least in known:  # noqa: SIM110 - any() takes twice as long, and most of a check asks this
        if clock[entry] >= least:
            return True
    return False


class Clocks:
    """The warps' clocks.

    of: by warp, what it knows (in its own entries: executed now; published and fenced at its lanes' last common
    synchronization); time: by warp; fence: by warp, the time of its last proxy fence.
    """

    def __init__(self, layout: Layout):
        self.agents = layout.agents
        self.published, self.fenced, self.told, self.phases = (i * layout.agents for i in range(1, 5))
        self.handed_on = self.phases + layout.ctas * layout.nbars
        self.size = self.handed_on + layout.ctas * layout.nbars
        self.of = [self.zero() for _ in range(layout.agents)]
        self.time = [0] * layout.agents
        self.fence = [0] * layout.agents

    def take(self, other: Clocks) -> None:
        """Copies *other*, to go on independently."""
        self.of = [clock.copy() for clock in other.of]
        self.time, self.fence = list(other.time), list(other.fence)

    def zero(self) -> Clock:
        return np.zeros(self.size, np.int32)

    def tick(self, agent: int) -> int:
        """The warp executes its next operation, at the time returned."""
        time = self.time[agent] + 1
        self.time[agent] = time
        self.of[agent][agent] = time
        return time

    def release(self, agent: int, into: Clock, all_lanes: bool, elected: bool = False) -> None:
        """Joins what the warp knows into a barrier's clock: as known to all of its lanes, or to one, maybe the elected one."""
        clock = self.of[agent]
        np.maximum(into, clock, out=into)
        if all_lanes or elected:
            into[self.told + agent] = self.time[agent]
        if all_lanes:
            into[self.published + agent] = self.time[agent]
            into[self.fenced + agent] = self.fence[agent]

    def execute(self, agent: int, into: Clock) -> None:
        """Joins only what has been executed and waited for: for an operation that counts but releases no accesses."""
        self.join_executed(self.of[agent], into)

    def join_executed(self, clock: Clock, into: Clock) -> None:
        """Joins what *clock* has of what has been executed and waited for."""
        np.maximum(into[: self.agents], clock[: self.agents], out=into[: self.agents])
        np.maximum(into[self.phases :], clock[self.phases :], out=into[self.phases :])

    def fence_proxy(self, agent: int) -> None:
        """The warp executes a proxy fence: after its own accesses, and after what threads have copied that it has waited
        for."""
        self.fence[agent] = self.time[agent]
        own = self.of[agent]
        waited = own[self.phases : self.handed_on]
        np.maximum(own[self.handed_on :], waited, out=own[self.handed_on :])

    def acquire(self, agent: int, clock: Clock) -> None:
        """All lanes of the warp come to know *clock*."""
        own = self.of[agent]
        np.maximum(own, clock, out=own)

    def synchronize_lanes(self, agent: int) -> None:
        """``bar.warp.sync``: each lane knows what the others did."""
        clock = self.of[agent]
        clock[self.told + agent] = clock[self.published + agent] = self.time[agent]
        clock[self.fenced + agent] = self.fence[agent]
