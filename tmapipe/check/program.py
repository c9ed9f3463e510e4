"""Checks one concrete run on one cluster: the operations of its warps."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

from tmapipe.check.deadlocks import deadlock_finding
from tmapipe.check.failures import hazard_findings
from tmapipe.check.findings import Finding, Kind
from tmapipe.check.linear import LinearCheck
from tmapipe.check.trip_counts import cause_findings
from tmapipe.errors import DeadlockError, HazardError, PipelineError
from tmapipe.machine import Layout, State
from tmapipe.machine.describe import lines
from tmapipe.machine.layout import Shapes
from tmapipe.machine.scheduler import Scheduler

__all__ = ["MAX_STEPS", "check_operations", "ordered", "refused"]

MAX_STEPS = 1_000_000


def check_operations(
    layout: Layout,
    programs: Sequence[Sequence[Any]],
    shapes: Shapes | None = None,
    through_async: Container[str] = (),
) -> tuple[list[Finding], int]:
    """(findings, transitions) for operations: one list per warp of the cluster, `Exit` last.
    through_async: names of what TMA or wgmma access in other runs."""
    check = LinearCheck(layout, shapes or {})
    error: PipelineError | None = None
    try:
        run_segment(State(layout), [iter(program) for program in programs], check)
        check.finish(through_async)
    except PipelineError as stopped:
        error = stopped
    wrong = error is not None or any(not finding.kind.note for finding in check.findings)
    causes = cause_findings(layout, programs, wrong)  # first, since the others follow from them
    if isinstance(error, DeadlockError):
        last = [deadlock_finding(error, check, programs, causes)]
    else:  # a hazard may add to the findings of the check
        last = [] if error is None else refused(error, check, programs)
    return [*causes, *check.findings, *last], check.order


def run_segment(state: State, programs: list[Iterator[Any]], check: LinearCheck) -> None:
    """Executes these operations until all warps are through and nothing is in flight."""
    Scheduler(state, programs, "fair", watchers=(check.watch,), max_steps=MAX_STEPS).run()


def ordered(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Each finding once: errors first, then notes."""
    seen: dict[Any, Finding] = {}
    for finding in findings:
        name = (finding.barrier or finding.slot or "").split("[")[0]
        key = (finding.kind, finding.where or finding.message, name)
        if key not in seen:
            seen[key] = finding
    return tuple(sorted(seen.values(), key=lambda finding: finding.kind.note))


def refused(error: PipelineError, check: LinearCheck, programs: Sequence[Sequence[Any]] = ()) -> list[Finding]:
    """What the machine does not do, while bodies are recorded or run, or the limit that was reached."""
    if isinstance(error, HazardError):
        return hazard_findings(error, check, programs)
    if type(error) is not PipelineError:
        raise error  # not a limit: a mistake in the schedule, which says so itself
    fix = "let each loop of a body end, or check a smaller problem"
    return [Finding(Kind.LIMIT, str(error), fix, where=lines([error.where]))]
