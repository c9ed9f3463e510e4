"""Redundant proxy fences, reported as notes: those that order nothing."""

from __future__ import annotations

import linecache
from collections.abc import Container
from typing import Any

from tmapipe.check.clocks import Clocks
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.check.slots import Slots
from tmapipe.machine.describe import who

__all__ = ["Fences"]


class Fences:
    """Proxy fences, by source line.

    A line is redundant if, each time that the run came by, the warp had not accessed any slot that TMA or wgmma access, in
    this run or another one of the program, since its last fence.
    """

    def __init__(self, clocks: Clocks, log: FindingLog, slots: Slots):
        self.clocks, self.log, self.slots = clocks, log, slots
        self.touched: list[set[int]] = [set() for _ in range(clocks.agents)]  # slots since the last fence
        self.lines: dict[Any, tuple[set[int], Step]] = {}

    def access(self, agent: int, slot: int) -> None:
        self.touched[agent].add(slot)

    def fence(self, step: Step) -> None:
        agent, where = step.agent, step.op.where
        again = self.clocks.fence[agent] == step.time - 1  # the same line, once more at once
        self.clocks.fence_proxy(agent)
        key = (self.log.layout.role(agent), where, again) if where else (agent, step.time)
        self.lines.setdefault(key, (set(), step))[0].update(self.touched[agent])
        self.touched[agent].clear()

    def finish(self, through_async: Container[str]) -> None:
        """After a run. through_async: names of what TMA or wgmma access in other runs."""
        layout = self.log.layout
        touched = self.slots.async_slots | {i for i in range(layout.nslots) if layout.slots[i][0].name in through_async}
        wanted = {alias for slot in touched for alias in layout.aliases[slot]}
        for covered, step in self.lines.values():
            if covered & wanted:
                continue
            names = ", ".join(dict.fromkeys(layout.slots[slot][0].name for slot in sorted(covered)))
            why = f"only threads touch {names}" if names else "it has touched no slot since its last fence"
            text = f"the proxy fence of {who(layout, step.agent)} orders nothing: {why}"
            fix = "none: a `with` block put it there, and it does no harm"
            self.log.add(Kind.REDUNDANT_FENCE, text, "drop this fence" if _asked_for(step.op.where) else fix, step)


def _asked_for(where: str | None) -> bool:
    """Whether the source line itself asks for the fence."""
    path, _, line = (where or ":0").rpartition(":")
    return where is None or "fence" in linecache.getline(path, int(line))
