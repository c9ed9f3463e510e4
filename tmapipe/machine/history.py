"""A run's trace as a timeline: operations of warps, and what engines had in flight."""

from __future__ import annotations

from typing import Any

from tmapipe.errors import InputError
from tmapipe.isa import ops
from tmapipe.isa.effects import Wait, declared
from tmapipe.isa.ops import Counted, Flight
from tmapipe.machine.describe import describe, event
from tmapipe.machine.run import Run, started
from tmapipe.machine.timeline import Timeline

__all__ = ["draw"]

_ENDS = (ops.LoadComplete, ops.StoreWrite, ops.WgmmaDone)


def draw(run: Run) -> dict[str, Any]:
    """The Chrome trace events of *run*; a cluster's CTAs are processes of their own."""
    if run.trace is None:
        raise InputError("Run.trace", None, "is kept only if the run was asked to", "simulate(..., trace=True)")
    layout = run.layout
    made = Timeline(layout.plan.name)
    issued: dict[tuple[int, Flight], tuple[int, Any]] = {}
    several = any(entry.cluster for entry in run.trace)
    for entry in run.trace:
        process, title = entry.cluster * layout.ctas, f"cluster {entry.cluster}, " if several else ""
        if isinstance(entry.agent, int):
            for flight in started(entry.op, entry.facts):
                issued.setdefault((entry.cluster, flight), (entry.number, entry.op))
            step = event(layout, entry.number, entry.agent, entry.op, phase=_phase(entry), began=entry.reached)
            made.add(step, process, title)
        elif isinstance(entry.op, _ENDS):
            began, op = issued.pop((entry.cluster, entry.agent))
            what = _what(layout, op)
            made.add(event(layout, entry.number, entry.agent, op, what, _phase(entry), began), process, title)
    return made.document()


def _phase(entry: Any) -> int | None:
    """The phase that an operation counted in, or saw complete."""
    if isinstance(entry.agent, int) and declared(type(entry.op)).effect(Wait) is not None:
        return entry.facts
    counted = isinstance(entry.facts, tuple) and entry.facts and isinstance(entry.facts[0], Counted)
    return entry.facts[0].phase if counted else None


def _what(layout: Any, op: Any) -> str:
    """What is under way, as its operation's sentence says it."""
    text = describe(layout, op)
    return text.removeprefix("starts ").removeprefix("the TMA load of ").removeprefix("the TMA store ")
