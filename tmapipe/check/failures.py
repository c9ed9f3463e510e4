"""Errors of the machine as findings: what it refused, and deadlocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmapipe.check.findings import Finding, Kind
from tmapipe.check.linear import LinearCheck
from tmapipe.check.log import Step
from tmapipe.isa.effects import Arm, Init, SetRegisters, Start, Wait, declared
from tmapipe.isa.operands import Kind as OperandKind
from tmapipe.machine.describe import bar_name, describe, event, lines, who
from tmapipe.machine.layout import Layout

__all__ = ["deadlock_finding", "hazard_findings"]

#: The machine's rules: the kind, and what to change.
RULES = {
    "surplus-arrival": (Kind.SURPLUS_ARRIVAL, "make the count of the barrier match the arrivals of one phase"),
    "tx-below-zero": (Kind.TX_MISMATCH, "arm as many bytes as the copies of one phase deliver"),
    "tx-overflow": (Kind.TX_MISMATCH, "arm as many bytes as the copies of one phase deliver"),
    "exit-bytes-pending": (Kind.TX_MISMATCH, "deliver the bytes that are armed, or arm fewer"),
    "barrier-count": (Kind.OUT_OF_RANGE, "initialize it with the number of arrivals of one phase"),
    "barrier-before-init": (Kind.INIT_NOT_VISIBLE, "initialize it, then fence and synchronize, before the first use"),
    "barrier-init-twice": (Kind.INIT_NOT_VISIBLE, "initialize each barrier once"),
    "cluster-barrier": (Kind.NAMED_BARRIER, "let every warp of the cluster arrive and wait in turn"),
    "named-barrier-id": (Kind.NAMED_BARRIER, "use an id from 1 to 15 that no other barrier has"),
    "named-barrier-threads": (Kind.NAMED_BARRIER, "let all participants name the same number of threads"),
    "mask-outside-cluster": (Kind.OUT_OF_RANGE, "set bits only for CTAs that the cluster has"),
    "tma-alignment": (Kind.OUT_OF_RANGE, "start tiles at multiples of 16 bytes along the contiguous dimension"),
    "copy-alignment": (Kind.OUT_OF_RANGE, "start tiles at multiples of the bytes that a thread copies"),
    "tma-store-start": (Kind.OUT_OF_RANGE, "start stores at index 0 or later along every dimension"),
    "wait-parity": (Kind.OUT_OF_RANGE, "wait for the lowest bit of the number of laps: laps & 1"),
    "no-such-stage": (Kind.OUT_OF_RANGE, "count stages from 0 to stages - 1"),
    "peer-exited": (Kind.EXITED_PEER, "let each CTA wait for its peers' last signals before it leaves"),
    "exit-load-in-flight": (Kind.IN_FLIGHT_AT_EXIT, "wait for every load before the CTA leaves"),
    "exit-uncommitted-store": (
        Kind.IN_FLIGHT_AT_EXIT,
        "commit the group (bulk_commit_group) and wait for it; leaving a slot after its store does both",
    ),
    "exit-unawaited-store": (
        Kind.IN_FLIGHT_AT_EXIT,
        "wait for the group (bulk_wait_group) in the thread that commits it",
    ),
    "exit-unawaited-wgmma": (Kind.IN_FLIGHT_AT_EXIT, "wait for the groups (wgmma_wait) before the warp returns"),
    "accumulator-in-flight": (
        Kind.RESULT_TOO_EARLY,
        "wait for all groups (wgmma_wait(0)) before the accumulators are used",
    ),
    "wgmma-fence": (Kind.RESULT_TOO_EARLY, "execute wgmma_fence before the first wgmma on these registers"),
    "wgmma-warpgroup": (Kind.OUT_OF_RANGE, "give the role whole warpgroups"),
    "wgmma-diverged": (Kind.OUT_OF_RANGE, "let all four warps of the warpgroup issue the same wgmmas"),
    "setmaxnreg-direction": (Kind.REGISTERS, "decrease to fewer registers, increase to more"),
    "setmaxnreg-range": (Kind.REGISTERS, "use 24 to 256 registers in steps of 8"),
    "setmaxnreg-warpgroup": (Kind.REGISTERS, "let all four warps of the warpgroup set the same number"),
}
_IN_FLIGHT = ("slot-being-loaded", "slot-being-stored", "slot-read-by-wgmma")


def hazard_findings(error: Any, check: LinearCheck) -> list[Finding]:
    """What the machine refused. Accesses to slots in flight are races, which the clocks describe better."""
    rule, agent, op = getattr(error, "rule", ""), getattr(error, "agent", None), getattr(error, "op", None)
    if rule in _IN_FLIGHT and isinstance(agent, int) and op is not None:
        known = len(check.findings)
        check.refused(agent, op)
        if len(check.findings) > known:
            return []
    kind, fix = RULES.get(rule, (Kind.RACE, "let the second access wait for the first"))
    steps = [Step(check.order + 1, agent, op)] if isinstance(agent, int) and op is not None else []
    issue = check.last.get(agent) if isinstance(agent, int) and rule.startswith("exit-") else None
    if rule == "exit-unawaited-store" and check.slots.idle_waits:
        other, (_, wait) = next(iter(check.slots.idle_waits.items()))
        if other != agent:
            kind, issue = Kind.GROUP_OWNER, wait
            fix = f"let {who(check.layout, agent)}, which commits the group, wait for it"  # type: ignore[arg-type]
    shown = tuple(event(check.layout, s.order, s.agent, s.op) for s in ([issue] if issue else []) + steps)
    location = getattr(error, "where", None)
    where = lines((*(e.where for e in shown), location))
    agents = (who(check.layout, agent),) if isinstance(agent, int) else ()
    text = str(error).removesuffix(f" at {location}").removesuffix(f" [{rule}]")
    return [Finding(kind, text, fix, agents, where, steps=shown)]


def deadlock_finding(error: Any, check: LinearCheck, programs: Sequence[Sequence[Any]]) -> Finding:
    """Who waits for what; and for each mbarrier that does not complete, what it got, and where those who signal it are."""
    layout, blocked = check.layout, error.blocked
    kind = Kind.DEADLOCK
    if any(declared(type(op)).effect(SetRegisters) for op in blocked.values()):
        kind = Kind.REGISTERS
    steps: list[Step] = []
    fixes: list[str] = []
    blamed: list[Step] = []
    waits: dict[Any, int] = {}  # one warp for each (role, operation)
    for agent, op in blocked.items():
        wait = declared(type(op)).effect(Wait)
        waits.setdefault((layout.role(agent), type(op), wait and getattr(op, wait.bar), op.where), agent)
    for agent in waits.values():
        op = blocked[agent]
        wait = declared(type(op)).effect(Wait)
        if wait is not None:
            own = getattr(op, wait.bar)
            bar = agent // layout.warps * layout.nbars + own
            known = check.phases.now[bar].steps
            blamed += _blamed(error.state, bar, known)
            fixes += (
                _wrong_parity(check, programs[agent], agent, op, wait)
                or _cycle(check, blocked, agent, own)
                or _missing(error.state, check, bar)
            )
            last = _signallers(check, programs, agent, own)
            steps += known
            steps += [s for s in last if (s.agent, s.op) not in [(k.agent, k.op) for k in known]]
        elif declared(type(op)).effect(SetRegisters):
            fixes.append("let all four warps of other warpgroups give back as many registers first, or ask for fewer")
        steps.append(Step(check.order + 1, agent, op, what=f"{describe(layout, op)}, in vain"))
    unique = {(s.order, s.agent, type(s.op)): s for s in steps}
    shown = tuple(
        event(layout, s.order, s.agent, s.op, s.what, s.phase) for s in sorted(unique.values(), key=lambda s: s.order)
    )
    return Finding(
        kind,
        str(error),
        "; ".join(dict.fromkeys(fixes)) or "let the roles named arrive as often as the others wait",
        tuple(dict.fromkeys(who(layout, agent) for agent in waits.values())),
        lines((*(s.op.where for s in blamed), *(e.where for e in shown))),
        steps=shown,
    )


def _blamed(state: Any, bar: int, steps: list[Step]) -> list[Step]:
    """Of what counted in the mbarrier's phase, the step that leaves it with bytes: the matching expect-tx, or the last
    step.
    """
    tx = state.tx[bar]
    counts = ((step, _nbytes(step.op, armed=tx > 0)) for step in reversed(steps) if tx)
    found = [(step, nbytes) for step, nbytes in counts if nbytes is not None]
    return [step for step, nbytes in found if nbytes == abs(tx)][:1] or [step for step, _ in found][:1]


def _nbytes(op: Any, armed: bool) -> int | None:
    """Bytes that an operation arms, or that it delivers; None if it does not."""
    of = declared(type(op))
    arm, start = of.effect(Arm), of.effect(Start)
    if armed:
        return None if arm is None else getattr(op, arm.nbytes)
    return None if start is None or not start.until.nbytes else getattr(op, start.until.nbytes)


def _wrong_parity(check: LinearCheck, program: Sequence[Any], agent: int, op: Any, wait: Wait) -> list[str]:
    """What to change if the warp is the first to wait, for slots that are free at first."""
    layout, own = check.layout, getattr(op, wait.bar)
    done = program[: check.clocks.time[agent]]
    again = any(getattr(each, of.bar) == own for each in done for of in declared(type(each)).all(Wait))
    ring = next((r for r in layout.plan.rings if layout.bars[own][0] == r.barriers[-1]), None)
    if again or getattr(op, wait.parity) != 0 or ring is None or layout.role(agent) not in ring.phases[0]:
        return []
    name = bar_name(layout, own)
    return [f"nobody has released {name} when the ring begins: wait for parity 1 in the first lap, then for parity 0"]


def _cycle(check: LinearCheck, blocked: dict[int, Any], agent: int, own: int) -> list[str]:
    """What to change if whoever signals this mbarrier waits for one of another ring that the warp's own role signals."""
    layout, role = check.layout, check.layout.role(agent)
    for other, op in blocked.items():
        wait = declared(type(op)).effect(Wait)
        if wait is None or layout.role(other) not in layout.signallers(own) or layout.role(other) == role:
            continue
        if role in layout.signallers(getattr(op, wait.bar)) and layout.ring_of(own, None) != layout.ring_of(
            getattr(op, wait.bar), None
        ):
            names = [bar_name(layout, each) for each in (own, getattr(op, wait.bar))]
            first, second = sorted((f"{role} for {names[0]}", f"{layout.role(other)} for {names[1]}"))
            return [f"{first} and {second} wait for each other: let both roles take the rings in one order"]
    return []


def _missing(state: Any, check: LinearCheck, bar: int) -> list[str]:
    """What the mbarrier still needs to complete, as something to change."""
    layout = check.layout
    name = bar_name(layout, bar)
    count, pending, tx = state.count[bar], state.pending[bar], state.tx[bar]
    roles = " and ".join(layout.signallers(bar)) or "those who signal it"
    phase = f"phase {state.phase[bar]} of {name}"
    if tx > 0:
        loads = _loads(layout, bar)
        return [f"{phase} has {tx} bytes armed that no load delivers: start the {loads}, or arm {tx} bytes fewer"]
    if tx < 0:
        return [f"{phase} got {-tx} bytes that nobody armed: arm them before the loads start"]
    if pending:
        got = count - pending
        often = "once more" if pending == 1 else f"{pending} more times"
        less = f", or set the count to {got}" if got else ", or nobody wait for it"
        return [f"{phase} got {got} of {count} arrivals: let {roles} arrive {often}{less}"]
    return []


def _loads(layout: Layout, bar: int) -> str:
    """The loads whose bytes the mbarrier's ring waits for."""
    for ring in layout.plan.rings:
        names = [name for loads in ring.loads.values() for name in loads]
        if layout.bars[bar % layout.nbars][0] in ring.barriers and names:
            return f"load of {' and '.join(names)} in each slot"
    return "loads"


def _signallers(check: LinearCheck, programs: Sequence[Sequence[Any]], agent: int, own: int) -> list[Step]:
    """Where the roles that signal an mbarrier last accessed the same stage, and did not go on to signal."""
    layout = check.layout
    stage = layout.bars[own][1]
    first = agent // layout.warps * layout.warps
    found = []
    for role in layout.signallers(own):
        other = first + layout.plan.role(role).first_warp
        done = programs[other][: check.clocks.time[other]]
        for op in reversed(done):
            of = declared(type(op))
            slots = [layout.slots[getattr(op, name)][1] for name in of.named(OperandKind.SLOT)]
            stages = slots or [layout.bars[getattr(op, name)][1] for name in of.named(OperandKind.BAR)]
            if stages[:1] == [stage] and op.where and of.effect(Init) is None:
                what = f"{describe(layout, op)}: its last use of stage {stage}"
                found.append(Step(check.order, other, op, what=what))
                break
    return found
