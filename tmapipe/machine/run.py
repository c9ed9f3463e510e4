"""What a run leaves: counts, and if asked for the trace of all transitions, from which a timeline can be drawn."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from tmapipe.isa.effects import Group, Start, declared
from tmapipe.isa.ops import Agent, Flight
from tmapipe.machine.layout import Layout
from tmapipe.machine.timeline import Drawn

__all__ = ["Run", "TraceEntry", "started"]


def started(op: Any, facts: Any) -> tuple[Flight, ...]:
    """The flights that an operation sets off: of a wgmma, each of the four warps that issue it has the same one."""
    start = declared(type(op)).effect(Start)
    if start is None:
        return ()
    if start.until.group is Group.WGMMA:
        return facts[:1]
    return (facts,) if start.until.group is Group.BULK else facts


class TraceEntry(NamedTuple):
    """One transition.

    Args:
        cluster: In the grid.
        number: Of the transition.
        agent: A warp or a flight.
        op: The operation.
        facts: What the machine answered.
        reached: How many transitions of the cluster had happened when the warp came to the operation: fewer than *number* if
            it then blocked.
    """

    cluster: int
    number: int
    agent: Agent
    op: Any
    facts: Any
    reached: int


class Run(Drawn):
    """What one `Machine.run` did, all clusters together.

    counts: operations by name ("MbarWait" ...), engine steps included; by_role: the same by role; loaded_bytes: bytes that
    landed in shared memory (a multicast counts once per destination); stored_tiles; max_in_flight: kind of flight -> most at
    one time in one cluster; steps: transitions; trace: `TraceEntry` in the order of execution, if asked for; layout: names of
    agents.
    """

    def __init__(self, layout: Layout, trace: bool = False):
        self.layout = layout
        self.steps = 0
        self.loaded_bytes = 0
        self.stored_tiles = 0
        self.max_in_flight: Counter[str] = Counter()
        self.trace: list[TraceEntry] | None = [] if trace else None
        self._now: Counter[str] = Counter()
        self._kinds: dict[tuple[int, type], int] = {}

    @property
    def counts(self) -> Counter[str]:
        totals: Counter[str] = Counter()
        for (_, kind), count in self._kinds.items():
            totals[kind.__name__] += count
        return totals

    @property
    def by_role(self) -> dict[str, Counter[str]]:
        totals: dict[str, Counter[str]] = {}
        for (warp, kind), count in self._kinds.items():
            role = self.layout.roles[warp] if warp >= 0 else "engines"
            totals.setdefault(role, Counter())[kind.__name__] += count
        return totals

    def watch(self, agent: Agent, op: Any, facts: Any) -> None:
        """Counts one transition."""
        kind = type(op)
        engine = type(agent) is Flight
        key = (-1 if engine else agent % self.layout.warps, kind)  # type: ignore[operator]
        self._kinds[key] = self._kinds.get(key, 0) + 1
        self.steps += 1
        flights = () if engine else started(op, facts)
        for flight in flights:
            if flight.kind != "wgmma" or facts[1]:
                self._fly(flight.kind)
        if flights and flights[0].kind == "store":
            self.stored_tiles += 1
        elif flights and flights[0].kind != "wgmma":
            self.loaded_bytes += op.nbytes * len(flights)
        if engine and kind.__name__ in ("LoadComplete", "StoreWrite", "WgmmaDone"):
            self._now[agent.kind] -= 1  # type: ignore[union-attr]

    def _fly(self, kind: str) -> None:
        self._now[kind] += 1
        if self._now[kind] > self.max_in_flight[kind]:
            self.max_in_flight[kind] = self._now[kind]

    def timeline(self) -> dict[str, Any]:
        """The trace as Chrome trace events (see `tmapipe.machine.timeline`): every operation of every warp, and each load,
        store and wgmma from its issue to its end. Raises `InputError` if the run kept no trace."""
        from tmapipe.machine.history import draw

        return draw(self)

    def __repr__(self) -> str:
        return f"Run({self.steps} steps, {self.loaded_bytes} bytes loaded, {self.stored_tiles} tiles stored)"
