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

    counts: operations by name ("MbarWait" ...), engine steps included; loaded_bytes: bytes that landed in shared memory (a
    multicast counts once per destination); stored_tiles; steps: transitions; trace: `TraceEntry` in the order of execution, if
    asked for; layout: names of agents.
    """

    def __init__(self, layout: Layout, trace: bool = False):
        self.layout = layout
        self.counts: Counter[str] = Counter()
        self.steps = self.loaded_bytes = self.stored_tiles = 0
        self.trace: list[TraceEntry] | None = [] if trace else None

    def watch(self, agent: Agent, op: Any, facts: Any) -> None:
        """Counts one transition."""
        self.counts[type(op).__name__] += 1
        self.steps += 1
        flights = () if type(agent) is Flight else started(op, facts)
        if flights and flights[0].kind == "store":
            self.stored_tiles += 1
        elif flights and flights[0].kind != "wgmma":
            self.loaded_bytes += op.nbytes * len(flights)

    def timeline(self) -> dict[str, Any]:
        """The trace as Chrome trace events (see `tmapipe.machine.timeline`): every operation of every warp, and each load,
        store and wgmma from its issue to its end. Raises `InputError` if the run kept no trace."""
        from tmapipe.machine.history import draw

        return draw(self)

    def __repr__(self) -> str:
        return f"Run({self.steps} steps, {self.loaded_bytes} bytes loaded, {self.stored_tiles} tiles stored)"
