"""Errors of the machine as findings: what it refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmapipe.check.findings import Finding, Kind
from tmapipe.check.linear import LinearCheck
from tmapipe.check.log import Step, events_of
from tmapipe.isa.effects import Arm, SetRegisters, Start, declared
from tmapipe.isa.ops import Flight
from tmapipe.machine.describe import lines, who

__all__ = ["blamed", "hazard_findings"]

_IN_FLIGHT = ("slot-being-loaded", "slot-being-stored", "slot-read-by-wgmma")


def hazard_findings(error: Any, check: LinearCheck, programs: Sequence[Sequence[Any]] = ()) -> list[Finding]:
    """What the machine refused. Accesses to slots in flight are races, which the clocks describe better."""
    rule, agent, op = error.rule, error.agent, error.op
    if rule in _IN_FLIGHT and isinstance(agent, int) and op is not None:
        known = len(check.findings)
        check.refused(agent, op)
        if len(check.findings) > known:
            return []
    kind, fix, layout = error.kind, error.fix, check.layout
    steps = [Step(check.order + 1, agent, op)] if isinstance(agent, int) and op is not None else []
    issues: list[Step] = []
    if isinstance(agent, Flight):
        issues = [check.loads[agent][1]] if agent in check.loads else []
    elif rule == "exit-bytes-pending":
        issues = _left_with_bytes(check, layout.cta_of(agent))
    elif rule == "setmaxnreg-warpgroup":
        issues = _uneven_sets(programs, layout.cta_warps(layout.cta_of(agent)))
    elif rule.startswith("exit-") and agent in check.last:
        issues = [check.last[agent]]
    if rule == "exit-unawaited-store" and check.slots.idle_waits:
        wait = next(iter(check.slots.idle_waits.values()))
        if wait.agent != agent:
            kind, issues = Kind.GROUP_OWNER, [wait]
            fix = f"let {who(layout, agent)}, which commits the group, wait for it"
    shown = events_of(layout, [*issues, *steps])
    where = lines((*(e.where for e in shown), error.where))
    agents = (who(layout, agent),) if isinstance(agent, int) else ()
    return [Finding(kind, error.text, fix, agents, where, steps=shown)]


def blamed(tx: int, steps: list[Step]) -> list[Step]:
    """Of what counted in an mbarrier's phase, the step that leaves it with *tx* bytes: the matching expect-tx (or load, if
    fewer than none), or the last step.
    """
    counts = ((step, _nbytes(step.op, armed=tx > 0)) for step in reversed(steps))
    found = [(step, nbytes) for step, nbytes in counts if nbytes]
    return [step for step, nbytes in found if nbytes == abs(tx)][:1] or [step for step, _ in found][:1]


def _uneven_sets(programs: Sequence[Sequence[Any]], agents: range) -> list[Step]:
    """The last setmaxnreg of a warp of a CTA whose warpgroup does not do as it does."""
    sets = {a: [op for op in programs[a] if declared(type(op)).effect(SetRegisters)] for a in agents}
    counts = {a: [op.registers for op in sets[a]] for a in agents}
    for first in agents[::4]:
        four = [counts[a] for a in agents if a in range(first, first + 4)]
        odd = min(range(len(four)), key=lambda i: (four.count(four[i]), -len(four[i])))
        if four.count(four[odd]) < len(four):
            return [Step(0, first + odd, op) for op in sets[first + odd][-1:]]
    return []


def _left_with_bytes(check: LinearCheck, cta: int) -> list[Step]:
    """The step that leaves bytes on an mbarrier of a CTA that exits."""
    for phase in check.phases.now[cta * check.layout.nbars : (cta + 1) * check.layout.nbars]:
        tx = sum(_nbytes(s.op, armed=True) - _nbytes(s.op, armed=False) for s in phase.steps)
        if tx:
            return blamed(tx, phase.steps)
    return []


def _nbytes(op: Any, armed: bool) -> int:
    """Bytes that an operation arms, or that it delivers."""
    of = declared(type(op))
    arm, start = of.effect(Arm), of.effect(Start)
    if armed:
        return 0 if arm is None else getattr(op, arm.nbytes)
    return 0 if start is None or not start.until.nbytes else getattr(op, start.until.nbytes)
