"""What the plan alone shows: shared memory, registers, ids of named barriers."""

from __future__ import annotations

from collections.abc import Iterator

from tmapipe.check.findings import Finding, Kind
from tmapipe.plan.model import Plan

__all__ = ["budget_findings"]

NAMED_BARRIERS = range(1, 16)  # of a CTA; 0 is its own (PTX ISA, barrier)


def budget_findings(plan: Plan) -> Iterator[Finding]:
    """Budgets that do not fit, whatever runs."""
    limit, buffers = plan.target.smem, plan.buffers
    end = max([plan.smem_bytes, *(b.offset + b.stages * b.pitch for b in buffers)])
    if end > limit:
        terms = ", ".join(f"{b.name} {b.stages} x {b.pitch}" for b in buffers if b.over is None)
        message = f"the plan takes {end} bytes of shared memory ({terms}); a CTA on {plan.arch} has {limit}"
        yield Finding(Kind.SHARED_MEMORY, message, "use fewer stages or a smaller tile")
    groups, given = -(-plan.warps // 4), plan.registers.values()
    budget, total = plan.launch_registers * groups, sum(given)
    if given and total > budget:
        terms = " + ".join(map(str, given))
        message = (
            f"setmaxnreg asks for {terms} = {total} registers a thread over {groups} warpgroups; the CTA is launched with "
            f"{plan.launch_registers} x {groups} = {budget}"
        )
        yield Finding(Kind.REGISTERS, message, f"take {total - budget} registers from some role")
    owners: dict[int, str] = {}
    for barrier in plan.named_barriers:
        for id in range(barrier.id, barrier.id + barrier.instances):
            if id not in NAMED_BARRIERS:
                message = f"named barrier {barrier.name} has id {id}; ids run from 1 to 15"
                yield Finding(Kind.NAMED_BARRIER, message, "use an id from 1 to 15 that no other barrier has")
            elif id in owners:
                message = f"named barriers {owners[id]} and {barrier.name} have the same id {id}"
                yield Finding(Kind.NAMED_BARRIER, message, "give each named barrier an id of its own")
            owners[id] = barrier.name
