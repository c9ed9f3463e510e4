"""The check of one concrete run on one cluster; and why a run that deadlocks does, with what to change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from typing import Any

import attrs

from tmapipe.check import Finding, Step, events_of
from tmapipe.check.linear import LinearCheck, blamed, hazard_findings, look
from tmapipe.check.ring_uses import RingUse, cause_findings
from tmapipe.errors import DeadlockError, HazardError, PipelineError
from tmapipe.isa import Arrive, ArriveAt, SetRegisters, Start, Wait, WaitAt, declared
from tmapipe.isa import Kind as OperandKind
from tmapipe.isa.ops import BarWait, MbarWait
from tmapipe.model import Scheduler
from tmapipe.model.layout import Kind, Layout, Shapes
from tmapipe.model.run import bar_name, describe, lines, who
from tmapipe.model.state import State
from tmapipe.plan.rings import Ring

# ---- deadlocks -------------------------------------------------------------------------------------------------------
#
# Of the warps that are blocked, warp a waits *because of* warp b if b would have to signal what a waits for. The warps that
# wait because of nobody, or of each other in a circle, are the cause: what they wait for says what to change.


Programs = Sequence[Sequence[Any]]


@attrs.frozen
class Blocked:
    """A blocked warp, which stands for all warps of its role that wait at the same line.

    bar: the flat index of the mbarrier that it waits for, or None; id: of the barrier of warps that it waits for (0: the
    CTA's, -1: the cluster's), or None; ring: the ring of the mbarrier, or None; name: of what it waits for.
    """

    agent: int
    op: Any
    role: str
    bar: Any
    id: int | None
    ring: Ring | None
    name: str


class Deadlock:
    """A deadlock. causes: findings about the programs that hold for every interleaving; blame: steps that a reader is to see
    beside the waits."""

    def __init__(self, error: Any, check: LinearCheck, programs: Programs, causes: Sequence[Finding]):
        self.blocked, self.state, self.layout = error.blocked, error.state, check.layout
        self.check, self.programs, self.causes = check, programs, causes
        self.signalling, self.meeting = _signalling(self.layout, programs)
        self.waits = [self._wait(agent) for agent in self.blocked]
        self.blame: list[Step] = []

    def _wait(self, agent: int) -> Blocked:
        op, layout = self.blocked[agent], self.layout
        of = declared(type(op))
        wait, at = of.effect(Wait), of.effect(WaitAt)
        bar = None if wait is None else layout.flat_bar(agent, getattr(op, wait.bar))
        id = None if at is None else getattr(op, at.barrier) if at.barrier else -1
        ring = next((r for r in layout.plan.rings if bar is not None and layout.barrier(bar) in r.barriers), None)
        name = bar_name(layout, bar) if bar is not None else ""
        if id is not None and id >= 0:
            name = layout.named_barrier_name(id)
        return Blocked(agent, op, layout.role(agent), bar, id, ring, name)

    def roots(self) -> list[Blocked]:
        """The waits that are the cause, one of each role and line."""
        after = {wait.agent: self._because_of(wait) & set(self.blocked) for wait in self.waits}
        reach = {agent: _reached(agent, after) for agent in after}
        found: dict[Any, Blocked] = {}
        for wait in self.waits:
            if all(wait.agent in reach[other] for other in reach[wait.agent]):
                found.setdefault((wait.role, type(wait.op), wait.name.split(" of ")[0], wait.op.where), wait)
        return list(found.values())

    def _because_of(self, wait: Blocked) -> set[int]:
        """The warps that would have to go on before this wait can end: they signal the mbarrier, or have not arrived."""
        if wait.bar is not None or wait.id is None:
            return set() if wait.bar is None else set(self.signalling[wait.bar])
        layout, id = self.layout, wait.id
        warps = range(layout.agents) if id < 0 else layout.cta_warps(layout.cta_of(wait.agent))
        roles = next((names for names, made in layout.syncs.made.items() if made.id == id), ())
        taking_part = {a for a in warps if id <= 0 or a in self.meeting[id] or layout.role(a) in roles}
        return taking_part - {other.agent for other in self.waits if other.id == id}

    # ---- what to change -------------------------------------------------------------------------------------------

    def fixes(self, roots: list[Blocked]) -> list[str]:
        """What to change, by the first explanation that fits some of the causes."""
        explanations = (
            self._known, self._fills, self._bytes, self._turn, self._meet, self._registers, self._holds, self._never,
        )  # fmt: skip
        for explain in explanations:
            found = [fix for fix in map(explain, roots) if fix]
            if found:
                return found
        at_bars = [wait for wait in roots if wait.bar is not None]
        return self._circle(roots) or list(map(self._arrivals, at_bars)) or ["let no warp wait here"]

    def _known(self, wait: Blocked) -> str | None:
        """What is wrong with how the roles enter and leave the slots of its ring."""
        names = [wait.ring.name, *(b.name for b in wait.ring.barriers)] if wait.ring else []
        return next((c.fix for c in self.causes if c.slot in names or c.barrier in names), None)

    def _fills(self, wait: Blocked) -> str | None:
        """Slots of a ring that a role has begun to fill while it waits for one more."""
        ring, layout = wait.ring, self.layout
        if not ring or ring.phase_of(wait.role) != 0 or wait.bar is None:
            return None
        full, cta = ring.barriers[0], layout.cta_of(wait.agent)
        first = cta * layout.nbars + layout.bar_base[full.name]
        begun = [bar for bar in range(first, first + full.stages) if self.state.tx[bar] > 0]
        if len(begun) < ring.stages or any(self.check.phases.now[bar].steps[-1].agent != wait.agent for bar in begun):
            return None
        self.blame.append(Step(0, wait.agent, wait.op))
        one = "the slot" if ring.stages == 1 else f"all {ring.stages} slots"
        held = f"{wait.role} has acquired {one} of {ring.name} and waits for one more before it has loaded into them"
        return f"{held}: load each slot before the next one is acquired, or give {ring.name} stages={ring.stages + 1}"

    def _bytes(self, wait: Blocked) -> str | None:
        """Bytes that were armed and do not come, or that came and were not armed."""
        tx = 0 if wait.bar is None else self.state.tx[wait.bar]
        if not tx:
            return None
        counted = self.check.phases.now[wait.bar].steps
        self.blame += blamed(tx, counted)
        phase = f"phase {self.state.phase[wait.bar]} of {wait.name}"
        if tx < 0:
            return f"{phase} got {-tx} bytes that nobody armed: arm them before the loads start"
        roles = wait.ring.phases[wait.ring.barriers.index(self.layout.barrier(wait.bar))] if wait.ring else ()
        loads = [name for role in roles for name in wait.ring.loads.get(role, ())] if wait.ring else []
        started = {declared(type(s.op)).moved(s.op)[0] for s in counted}
        if loads and {each.name for each in self.layout.plan.exchanges} >= set(loads):
            send = f"let {' and '.join(roles)} of every CTA send {' and '.join(loads)} once for each slot"
            return f"{phase} has {tx} bytes armed that no CTA of the cluster sends: {send}, to all that wait for it"
        missing = [name for name in loads if name not in started]
        every = "load all parts of each tile" if loads else "start the loads"
        what = f"start the load of {' and '.join(missing)} in each slot" if missing else every
        return f"{phase} has {tx} bytes armed that no load delivers: {what}, or arm {tx} bytes fewer"

    def _turn(self, wait: Blocked) -> str | None:
        """A turnstile that not all teams pass equally often, or whose first turn waits."""
        layout = self.layout
        if wait.id is not None:
            return self._turn_of_warpgroups(wait)
        if wait.bar is None or wait.ring or not layout.barrier(wait.bar).name.endswith(".turn"):
            return None
        barrier = layout.barrier(wait.bar)
        role = layout.plan.role(wait.role)
        first = layout.cta_warps(layout.cta_of(wait.agent))[role.first_warp]
        turns: list[list[Any]] = []  # by team: its waits
        for i in range(barrier.stages):
            program, own = self.programs[first + i * role.warps // barrier.stages], layout.bar_base[barrier.name] + i
            turns.append([op for op in program if type(op) is MbarWait and op.bar == own])
            if turns[i] and turns[i][0].parity != (i == 0):
                self.blame.append(Step(0, wait.agent, turns[i][0]))
                begin = "its waits begin with parity 1, the others' with parity 0"
                return f"team 0 goes first and waits for nobody: {begin}"
        return self._equally_often(wait, "team", barrier.name, turns)

    def _turn_of_warpgroups(self, wait: Blocked) -> str | None:
        """The same of warpgroups, which take turns by named barriers."""
        layout, id = self.layout, wait.id or 0
        barrier = next((b for b in layout.plan.named_barriers if 0 <= id - b.id < b.instances), None)
        if barrier is None or not barrier.name.endswith(".turn"):
            return None
        first = layout.cta_warps(layout.cta_of(wait.agent))[layout.plan.role(wait.role).first_warp]
        turns: list[list[Any]] = []  # by warpgroup: where it waits for the one before it
        for i in range(barrier.instances):
            program = self.programs[first + 4 * i]
            turns.append([op for op in program if type(op) is BarWait and op.id == barrier.id + i])
        del turns[0][-1:]  # the first one meets the last one once more, after the last tile
        return self._equally_often(wait, "warpgroup", barrier.name, turns)

    def _equally_often(self, wait: Blocked, what: str, name: str, turns: list[list[Any]]) -> str | None:
        """What to change where some teams or warpgroups take more turns than others; None if all take as many."""
        if len(set(map(len, turns))) == 1:
            return None
        often = ", ".join(f"{what} {i} {len(ops)} times" for i, ops in enumerate(turns))
        ordered = sorted(turns, key=len)
        known = {op.where for op in ordered[0]}
        self.blame += [Step(0, wait.agent, op) for op in ordered[-1] if op.where not in known][:1]
        order = name.removesuffix(".turn")
        return f"let every {what} of {wait.role} take a turn of {order} equally often: here {often}"

    def _meet(self, wait: Blocked) -> str | None:
        """A barrier of warps at which some are missing."""
        if wait.id is None:
            return None
        missing = sorted(self._because_of(wait))
        roles = list(dict.fromkeys(self.layout.role(a) for a in missing if self.layout.role(a) != wait.role))
        others = " and ".join(roles) or wait.role
        if wait.id == -1:
            return f"let every warp of the cluster come to its barrier, those of {others} too"
        if wait.id == 0:
            return f"let every warp of the CTA execute cta_sync, those of {others} too; k.sync() is for the warps of one role"
        if roles and set(missing) <= self.meeting[wait.id] and self.blocked.keys() & set(missing):
            return None  # they come later: a circle
        if roles:
            return f"let {others} come to {wait.name} as often as {wait.role} does (k.sync by both)"
        return f"let every warp of {wait.role} execute the same: no branch that some take around k.sync, stores or reductions"

    def _registers(self, wait: Blocked) -> str | None:
        if declared(type(wait.op)).effect(SetRegisters) is None:
            return None
        cta, state = self.layout.cta_of(wait.agent), self.state
        for first in self.layout.cta_warps(cta)[:-3:4]:
            four = state.registers[first : first + 4]
            if len(set(four)) > 1 and wait.agent not in range(first, first + 4):
                late = who(self.layout, first + four.index(max(four)))
                return f"let {late} give back registers, as the others of its warpgroup do: they come free together"
        most = state.registers[wait.agent] + state.free_registers[cta] // 128 // 8 * 8
        return f"let other warpgroups give back registers first, or ask for {most} at most"

    def _holds(self, wait: Blocked) -> str | None:
        """Slots of a ring that a role has not left while it waits for one more."""
        ring = wait.ring
        phase = ring.phase_of(wait.role) if ring else None
        if not ring or not phase or ring.held:
            return None
        use, upto = RingUse(self.layout, ring, self.programs), self.check.clocks.time[wait.agent]
        held = len(use.waits(wait.agent, phase, upto)) - len(use.arrivals(wait.agent, phase, upto))
        if held < ring.stages:
            return None
        self.blame.append(Step(0, wait.agent, wait.op))
        slots = f"{held} of the {ring.stages} slot{'s' * (ring.stages > 1)} of {ring.name}"
        fix = f"leave one before, or give {ring.name} stages={held + 1}"
        return f"{wait.role} holds {slots} and waits for one more: {fix}"

    def _never(self, wait: Blocked) -> str | None:
        """An mbarrier whose arrivals cannot complete a phase, or that has gone on without this warp."""
        if wait.bar is None:
            return None
        count, phase = self.state.count[wait.bar], self.state.phase[wait.bar]
        given = sum(self.signalling[wait.bar].values())
        if 0 < given < count:
            said = f"{wait.name} counts {count} arrivals and gets {given} a phase"
            return f"{said}: initialize it with {given}, or let more arrive"
        own = [op.bar for op in self._done(wait.agent) if isinstance(op, MbarWait)]
        seen = own.count(wait.bar % self.layout.nbars)
        if phase <= seen:
            return None
        said = f"{wait.name} has completed {phase} phases, and {wait.role} has waited for {seen}"
        return f"{said}: let {self._by(wait)} wait for {wait.role} to go on before each arrival"

    def _circle(self, roots: list[Blocked]) -> list[str]:
        """Roles that wait for each other."""
        roles = {wait.role: wait for wait in roots if wait.ring or wait.id is not None}
        names = list(dict.fromkeys(wait.ring.name if wait.ring else wait.name for wait in roles.values()))
        if len(roles) < 2 or len(names) < 2:
            return []
        self.blame += [Step(0, wait.agent, wait.op) for wait in roles.values()]
        terms = [f"{role} for {wait.name}" for role, wait in sorted(roles.items())]
        said = f"{' and '.join(terms)} wait for each other: "
        if any(wait.ring and wait.ring.phase_of(role) == 0 for role, wait in roles.items()):
            return [f"{said}let both take the slots of {' and '.join(names)} in one order, or give these more stages"]
        return [f"{said}let one of them hand on what the other waits for before it waits itself"]

    def _arrivals(self, wait: Blocked) -> str:
        """The arrivals that the phase of the mbarrier still lacks."""
        count, pending = self.state.count[wait.bar], self.state.pending[wait.bar]
        phase = f"phase {self.state.phase[wait.bar]} of {wait.name} got {count - pending} of {count} arrivals"
        return f"{phase}: let {self._by(wait)} arrive at it as often as {wait.role} waits for it"

    def _by(self, wait: Blocked) -> str:
        """The roles that arrive at the mbarrier, or should. Their last arrivals there become steps to blame."""
        roles: dict[str, Step | None] = {}
        for agent in sorted(self.signalling[wait.bar]):
            for op in self._done(agent):
                arrive = declared(type(op)).effect(Arrive)
                if arrive is not None and getattr(op, arrive.bar) == wait.bar % self.layout.nbars:
                    what = f"{describe(self.layout, op)}: its last arrival there"
                    roles[self.layout.role(agent)] = Step(self.check.order, agent, op, what=what)
            roles.setdefault(self.layout.role(agent))
        self.blame += [step for step in roles.values() if step is not None]
        return " and ".join(roles or self.layout.signallers(wait.bar)) or "some role"

    def _done(self, agent: int) -> Sequence[Any]:
        """The operations that the warp has executed."""
        return self.programs[agent][: self.check.clocks.time[agent]]


def deadlock_finding(error: Any, check: LinearCheck, programs: Programs, causes: Sequence[Finding]) -> Finding:
    """The finding of a deadlock: the warps whose waits are the cause, their barriers, and what to change.

    Args:
        causes: Findings about how roles enter and leave slots, which explain deadlocks.
    """
    layout, found = check.layout, Deadlock(error, check, programs, causes)
    roots = found.roots()
    kind = Kind.REGISTERS if any(declared(type(w.op)).effect(SetRegisters) for w in roots) else Kind.DEADLOCK
    steps = [step for wait in roots if wait.bar is not None for step in check.phases.now[wait.bar].steps]
    fix = "; ".join(dict.fromkeys(found.fixes(roots)))
    steps += [step for step in found.blame if step.what]
    steps += [Step(check.order + 1, w.agent, w.op, what=f"{describe(layout, w.op)}, in vain") for w in roots]
    unique = sorted({(s.order, s.agent, type(s.op)): s for s in steps}.values(), key=lambda step: step.order)
    shown = events_of(layout, unique)
    agents = tuple(dict.fromkeys(who(layout, wait.agent) for wait in roots))
    where = lines((*(s.op.where for s in found.blame), *(w.op.where for w in roots), *(e.where for e in shown)))
    return Finding(kind, str(error), fix, agents, where, steps=shown)


def _signalling(layout: Layout, programs: Programs) -> tuple[dict[int, dict[int, int]], dict[int, set[int]]]:
    """By flat mbarrier, the warps that signal it, and how many lanes arrive at once; by named barrier, the warps that come."""
    bars: dict[int, dict[int, int]] = defaultdict(dict)
    ids: dict[int, set[int]] = defaultdict(set)
    for agent, program in enumerate(programs):
        for op in program:
            of = declared(type(op))
            arrive, at, start = of.effect(Arrive), of.effect(ArriveAt), of.effect(Start)
            by: Any = arrive or (start and start.until)
            if by is not None and by.bar:
                lanes = getattr(op, by.lanes).bit_count() if by.lanes else int(arrive is not None)
                masks = of.named(OperandKind.MASK)
                mask = getattr(op, masks[0]) if masks else None
                for cta in range(layout.ctas):
                    if (1 << layout.cta_of(agent) if mask is None else mask) >> cta & 1:
                        bars[cta * layout.nbars + getattr(op, by.bar)][agent] = lanes
            if at is not None and at.barrier:
                ids[getattr(op, at.barrier)].add(agent)
    return bars, ids


def _reached(agent: int, after: dict[int, set[int]]) -> set[int]:
    """All warps that the warp waits because of, directly or through others."""
    found: set[int] = set()
    ahead = [agent]
    while ahead:
        new = after[ahead.pop()] - found
        found |= new
        ahead += new
    return found


# ---- program ---------------------------------------------------------------------------------------------------------
#
# The check of the operations of all warps of one cluster.


MAX_STEPS = 1_000_000


def check_operations(
    layout: Layout,
    programs: Sequence[Sequence[Any]],
    shapes: Shapes | None = None,
    through_async: Container[str] = (),
) -> tuple[list[Finding], int]:
    """(findings, transitions) of a run of these operations: one list for each warp of the cluster, `Exit` last. through_async:
    names of buffers that TMA or wgmma access in other runs."""
    check = LinearCheck(layout, shapes or {})
    error: PipelineError | None = None
    try:
        operations = [iter(program) for program in programs]
        Scheduler(State(layout), operations, "fair", watchers=(check.watch, look), max_steps=MAX_STEPS).run()
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
    """The findings of an error of the machine: an operation that it refuses, or a limit that was reached."""
    if isinstance(error, HazardError):
        return hazard_findings(error, check, programs)
    if type(error) is not PipelineError:
        raise error  # not a limit: a mistake in the schedule, which says so itself
    fix = "let each loop of a body end, or check a smaller problem"
    return [Finding(Kind.LIMIT, str(error), fix, where=lines([error.where]))]
