"""What a run leaves: counts, and if asked for the trace of all transitions, from which a timeline can be drawn."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from tmapipe.errors import InputError
from tmapipe.isa.effects import Start, Wait, declared
from tmapipe.isa.ops import Agent, Counted, Flight, LoadComplete, StoreWrite, WgmmaDone
from tmapipe.machine.describe import describe, event
from tmapipe.machine.layout import Layout
from tmapipe.machine.timeline import Drawn, Timeline

__all__ = ["Run", "TraceEntry"]

_ENDS = (LoadComplete, StoreWrite, WgmmaDone)


def _started(op: Any, facts: Any) -> tuple[Flight, ...]:
    """The flights that an operation sets off: of a wgmma, each of the four warps that issue it has the same one."""
    return facts if declared(type(op)).effect(Start) is not None else ()


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
        flights = () if type(agent) is Flight else _started(op, facts)
        if flights and flights[0].kind == "store":
            self.stored_tiles += 1
        elif flights and flights[0].kind != "wgmma":
            self.loaded_bytes += op.nbytes * len(flights)

    def timeline(self) -> dict[str, Any]:
        """The trace as Chrome trace events (see `tmapipe.machine.timeline`): every operation of every warp, and each load,
        store and wgmma from its issue to its end. A cluster's CTAs are processes of their own. Raises `InputError` if the run
        kept no trace."""
        if self.trace is None:
            raise InputError("Run.trace", None, "is kept only if the run was asked to", "simulate(..., trace=True)")
        layout, made = self.layout, Timeline(self.layout.plan.name)
        issued: dict[tuple[int, Flight], tuple[int, Any]] = {}
        several = any(entry.cluster for entry in self.trace)
        for cluster, number, agent, op, facts, reached in self.trace:
            what = ""
            if isinstance(agent, int):
                for flight in _started(op, facts):
                    issued.setdefault((cluster, flight), (number, op))
            elif isinstance(op, _ENDS):
                reached, op = issued.pop((cluster, agent))
                what = _what(layout, op)
            else:
                continue
            step = event(layout, number, agent, op, what, _phase(agent, op, facts), reached)
            made.add(step, cluster * layout.ctas, f"cluster {cluster}, " if several else "")
        return made.document()

    def __repr__(self) -> str:
        return f"Run({self.steps} steps, {self.loaded_bytes} bytes loaded, {self.stored_tiles} tiles stored)"


def _phase(agent: Agent, op: Any, facts: Any) -> int | None:
    """The phase that an operation counted in, or saw complete."""
    if isinstance(agent, int) and declared(type(op)).effect(Wait) is not None:
        return facts
    counted = isinstance(facts, tuple) and facts and isinstance(facts[0], Counted)
    return facts[0].phase if counted else None


def _what(layout: Layout, op: Any) -> str:
    """What is under way, as its operation's sentence says it."""
    text = describe(layout, op)
    return text.removeprefix("starts ").removeprefix("the TMA load of ").removeprefix("the TMA store ")
