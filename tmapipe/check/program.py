"""Checking one concrete run of a program: a plan, an entry, the tensors' shapes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tmapipe.arch import arch_named
from tmapipe.check.findings import Event, Finding, Kind, Report
from tmapipe.check.linear import LinearCheck
from tmapipe.errors import DeadlockError, HazardError, PipelineError
from tmapipe.machine import Layout, State, record
from tmapipe.machine.ops import SetMaxNreg
from tmapipe.machine.scheduler import Scheduler
from tmapipe.plan import Plan

__all__ = ["check_program", "run_checked", "static_findings"]

#: The machine's rules, as kinds; what to change about them.
RULES = {
    "surplus-arrival": (Kind.SURPLUS_ARRIVAL, "make the count match the arrivals of a phase"),
    "tx-below-zero": (Kind.TX_MISMATCH, "arm as many bytes as the copies deliver"),
    "tx-overflow": (Kind.TX_MISMATCH, "arm as many bytes as the copies deliver"),
    "exit-bytes-pending": (Kind.TX_MISMATCH, "deliver what is armed, or arm less"),
    "barrier-before-init": (Kind.INIT_NOT_VISIBLE, "initialize it, then fence and synchronize, before the first use"),
    "barrier-init-twice": (Kind.INIT_NOT_VISIBLE, "initialize each barrier once"),
    "cluster-barrier": (Kind.NAMED_BARRIER, "let all warps of the cluster arrive and wait in turn"),
    "named-barrier-id": (Kind.NAMED_BARRIER, "use an id from 1 to 15 that no one else uses"),
    "named-barrier-threads": (Kind.NAMED_BARRIER, "let all participants name the same number of threads"),
    "mask-outside-cluster": (Kind.OUT_OF_RANGE, "set bits only for CTAs that the cluster has"),
    "no-such-stage": (Kind.OUT_OF_RANGE, "count stages from 0 to stages - 1"),
    "peer-exited": (Kind.EXITED_PEER, "let each CTA wait for its peers' last signals before it leaves"),
    "exit-load-in-flight": (Kind.IN_FLIGHT_AT_EXIT, "wait for every load before the CTA leaves"),
    "exit-uncommitted-store": (Kind.IN_FLIGHT_AT_EXIT, "commit the group and wait for it"),
    "exit-unawaited-store": (
        Kind.IN_FLIGHT_AT_EXIT,
        "wait for the group before the CTA leaves, in the thread that committed it",
    ),
    "exit-unawaited-wgmma": (Kind.IN_FLIGHT_AT_EXIT, "wait for the wgmma groups"),
    "accumulator-in-flight": (Kind.RESULT_TOO_EARLY, "wait for all wgmma groups before the accumulators are read"),
    "wgmma-fence": (Kind.RESULT_TOO_EARLY, "put wgmma.fence before the first wgmma on these registers"),
    "setmaxnreg-direction": (Kind.REGISTERS, "decrease to fewer, increase to more"),
    "setmaxnreg-range": (Kind.REGISTERS, "use 24 to 256 in steps of 8"),
    "setmaxnreg-warpgroup": (Kind.REGISTERS, "let all four warps of the warpgroup set the same"),
}


def check_program(
    plan: Plan, entry: Callable[[Any], None], shapes: dict[str, tuple[int, ...]], clusters: int = 1, name: str = ""
) -> Report:
    """The verdict on one concrete run, for every interleaving of it. One cluster is run for each that has its own number
    of tiles; clusters share no barriers."""
    started = time.perf_counter()
    found = dict.fromkeys(static_findings(plan))
    events = 0
    for cluster in dict.fromkeys((0, clusters - 1)):
        run, steps = run_checked(plan, entry, shapes, cluster, clusters)
        found.update(dict.fromkeys(run))
        events += steps
    ordered = sorted(found, key=lambda finding: finding.kind.note)
    shape = ", ".join(f"{n} {'x'.join(map(str, s))}" for n, s in shapes.items())
    return Report(name or plan.name, tuple(ordered), f"this run ({shape})", events, time.perf_counter() - started)


def run_checked(
    plan: Plan,
    entry: Callable[[Any], None],
    shapes: dict[str, tuple[int, ...]],
    cluster: int,
    clusters: int,
    max_steps: int = 5_000_000,
) -> tuple[list[Finding], int]:
    """(findings, transitions) of one cluster."""
    layout = Layout(plan)
    check = LinearCheck(layout, shapes)
    try:
        programs = record(plan, entry, shapes, cluster, clusters, layout=layout, locate=True, max_steps=max_steps)
        places: dict[int, Any] = {}

        def tracked(agent: int, program: list[Any]) -> Any:
            for op in program:
                places[agent] = getattr(op, "where", None)
                yield op

        scheduler = Scheduler(
            State(layout),
            [tracked(i, p) for i, p in enumerate(programs)],
            "fair",
            watchers=(check.watch,),
            max_steps=max_steps,
            where=places.get,
        )
        scheduler.run()
        check.finish()
    except DeadlockError as error:
        dead = _deadlock(error, check)
        return [*dead, *check.findings.values()], check.order
    except HazardError as error:
        return [*_hazard(error, check), *check.findings.values()], check.order
    except PipelineError as error:
        limit = Finding(Kind.LIMIT, str(error), "check a smaller problem, or raise the limit")
        return [limit, *check.findings.values()], check.order
    return list(check.findings.values()), check.order


def _hazard(error: Any, check: LinearCheck) -> list[Finding]:
    rule = getattr(error, "rule", None)
    kind, fix = RULES.get(rule or "", (Kind.RACE, "see the message"))
    agent = getattr(error, "agent", None)
    issue = check.last_issue.get(agent) if isinstance(agent, int) else None  # what an exit leaves behind
    places = (error, getattr(error, "op", None), issue)
    where = next((place for part in places if (place := getattr(part, "where", None))), None)
    who = (check.layout.agent_name(agent),) if agent is not None else ()
    event = Event(check.order, 0, who[0] if who else "", str(error), where)
    return [Finding(kind, str(error), fix, who, (where,) if where else (), timeline=(event,))]


def _deadlock(error: Any, check: LinearCheck) -> list[Finding]:
    """The deadlock: who waits for what, as the machine tells it."""
    blocked = error.blocked
    places = tuple(dict.fromkeys(op.where for op in blocked.values() if getattr(op, "where", None)))
    agents = tuple(check.layout.agent_name(agent) for agent in blocked)
    event = Event(check.order, 0, agents[0] if agents else "", str(error), places[0] if places else None)
    registers = any(isinstance(op, SetMaxNreg) for op in blocked.values())
    return [
        Finding(
            Kind.REGISTERS if registers else Kind.DEADLOCK,
            str(error),
            "let the roles named signal as often as the others wait, with the counts and bytes that the barrier was given",
            agents,
            places,
            timeline=(event,),
        )
    ]


def static_findings(plan: Plan) -> list[Finding]:
    """What the plan alone shows: budgets and ids."""
    found = []
    arch = arch_named(plan.arch)
    if plan.smem_bytes > arch.smem:
        found.append(
            Finding(
                Kind.SHARED_MEMORY, f"{plan.smem_bytes} bytes of shared memory, above {arch.smem}", "use fewer stages"
            )
        )
    groups = -(-plan.warps // 4)
    if plan.registers and sum(plan.registers.values()) > plan.launch_registers * groups:
        total, budget = sum(plan.registers.values()), plan.launch_registers * groups
        terms = " + ".join(map(str, plan.registers.values()))
        found.append(
            Finding(
                Kind.REGISTERS,
                f"setmaxnreg asks for {terms} = {total} registers a thread over {groups} warpgroups, but the CTA is launched "
                f"with {plan.launch_registers} x {groups} = {budget}",
                "ask for fewer in some role",
            )
        )
    ids: dict[int, str] = {}
    for barrier in plan.named_barriers:
        for i in range(barrier.id, barrier.id + barrier.instances):
            if not 1 <= i <= 15 or i in ids:
                why = f"shared with {ids[i]}" if i in ids else "outside 1 to 15"
                found.append(
                    Finding(
                        Kind.NAMED_BARRIER, f"named barrier {barrier.name} has id {i}, {why}", "give each its own id"
                    )
                )
            ids[i] = barrier.name
    return found
