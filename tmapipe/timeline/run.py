"""Traces a call of a schedule on the timed model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tmapipe.bind.bound import Bound
from tmapipe.calling import on_model
from tmapipe.errors import DeadlockError, HazardError, InputError
from tmapipe.machine.describe import event
from tmapipe.timeline.costs import H200, Costs
from tmapipe.timeline.timed import Share, TimedMachine
from tmapipe.timeline.trace import Mark, Trace, clock_of

if TYPE_CHECKING:
    from tmapipe.check import Report
    from tmapipe.schedule import Schedule

__all__ = ["share_of", "trace"]

CLUSTERS = 2  #: of a grid, that are drawn


def trace(schedule: Schedule, bound: Bound, clusters: int | None) -> Trace:
    """A timed run of a call with these tensors. Arguments as of `Schedule.trace`."""
    if bound.empty:
        raise InputError("tensors", bound.shapes, "have elements to compute from", "pass some that are not empty")
    plan, made = schedule.plan(bound.dtypes), []
    share = share_of(schedule, bound)

    def machine(plan: Any, **options: Any) -> TimedMachine:
        made.append(TimedMachine(plan, share, clusters or CLUSTERS, **options))
        return made[-1]

    failure: Exception | None = None
    try:
        on_model(schedule, bound, clusters, machine)
    except (DeadlockError, HazardError) as error:
        failure = error
    return Trace(plan, made[-1], findings(made[-1], schedule.check(bound.dtypes), failure))


def share_of(schedule: Schedule, bound: Bound, costs: Costs = H200) -> Share:
    """What a CTA has of an H200, if all CTAs that the problem keeps at work do what it does."""
    plan, grid = schedule.plan(bound.dtypes), schedule.grid(lambda name, i: bound.shapes[name][i])

    def nbytes(part: Any) -> float:
        return math.prod(bound.shapes[part.argument]) * part.buffer.dtype.bytes

    loaded, stored = (sum(map(nbytes, parts)) for parts in (plan.loads, plan.stores))
    room = int(getattr(schedule.tiles, "ctas", 1))  # CTAs of a multiprocessor
    ctas = min(schedule.cluster_count(bound.shapes) * plan.cluster_size, costs.multiprocessors * room)
    total = costs.memory / clock_of(plan, costs) / max(1, ctas)
    return Share(
        reuse={p.name: math.prod(n for dim, n in grid.items() if dim not in p.dims) for p in plan.loads},
        read=total * loaded / max(1, loaded + stored),
        write=total * stored / max(1, loaded + stored) or total,
        resident=max(1, -(-ctas // costs.multiprocessors)),
    )


def findings(machine: TimedMachine, report: Report, failure: Exception | None) -> list[Mark]:
    """What the check says, each at its last step, or else what stopped the run."""
    found = []
    for each in report.findings:
        step = each.steps[-1] if each.steps else None
        source = next(iter(each.where), "")
        said = {"kind": each.kind.name, "message": each.message, "fix": each.fix, "source": source}
        place = (0, 0, "") if step is None else (step.cta, step.warp, step.what)
        found.append(Mark(each.kind.value, said, *place, each.kind.note))
    if failure is not None and report.ok:
        agent, op = getattr(failure, "agent", None), getattr(failure, "op", None)
        at = event(machine.layout, 0, agent, op) if isinstance(agent, int) and op is not None else None
        place = (0, 0, "") if at is None else (at.cta, at.warp, at.what)
        kind = type(failure).__name__
        found.append(Mark(kind, {"kind": kind, "message": str(failure), "fix": "", "source": ""}, *place))
    return found
