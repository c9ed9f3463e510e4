"""Mistakes that need no interleaving: roles that enter unequal numbers of a ring's slots, budgets that do not fit, and bodies
of a user's that do too little."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import attrs

from tmapipe.check import Finding, Step, events_of, of_library
from tmapipe.isa import Arm, Arrive, Start, Wait, declared
from tmapipe.model.layout import Kind, Layout
from tmapipe.model.run import lines, who
from tmapipe.plan.model import Plan
from tmapipe.plan.rings import Ring

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule


# ---- ring uses -------------------------------------------------------------------------------------------------------
#
# All roles of a ring enter the same number of its slots, and leave each slot that they enter.


def cause_findings(layout: Layout, programs: Sequence[Sequence[Any]], wrong: bool) -> list[Finding]:
    """Findings about roles and slots of rings, from which other findings follow.

    Args:
        programs: The operations of each warp of the cluster.
        wrong: Whether the run went wrong. Then there are also findings that need not be mistakes, but explain one: slots that
            are waited for in another order, or not left as often as they are entered.
    """
    return [finding for ring in layout.plan.rings for finding in RingUse(layout, ring, programs).findings(wrong)]


class RingUse:
    """What the warps of a cluster do to the slots of one ring. Their steps are numbered in their own programs."""

    def __init__(self, layout: Layout, ring: Ring, programs: Sequence[Sequence[Any]]):
        self.layout, self.ring, self.programs = layout, ring, programs

    def findings(self, wrong: bool) -> list[Finding]:
        """As of `cause_findings`."""
        first = (self._out_of_order() or self._not_left(0)) if wrong else []
        found = first or self._uneven()
        for phase in range(1, len(self.ring.phases)) if wrong and not first else ():
            found += self._not_left(phase)
        return found

    # ---- what warps do --------------------------------------------------------------------------------------------

    def waits(self, agent: int, phase: int, upto: int | None = None) -> list[Step]:
        """Waits of a warp, of its first *upto* operations, for slots that the phase before this one has handed on. The same
        wait twice in a row counts once."""
        bars = self._bars(phase - 1)
        found: list[Step] = []
        last = None
        for i, op in enumerate(self.programs[agent][:upto]):
            wait = declared(type(op)).effect(Wait)
            now = None if wait is None else (getattr(op, wait.bar), getattr(op, wait.parity))
            if now is not None and now[0] in bars and now[1] in (0, 1) and now != last:
                found.append(Step(i, agent, op))
            last = now
        return found

    def arrivals(self, agent: int, phase: int, upto: int | None = None) -> list[Step]:
        """Arrivals by which a warp of this phase hands slots on, or else its first copy by threads into each. Those that arm
        bytes count only where the role has no others. The last phase of a ring that is held has none."""
        if phase == len(self.ring.barriers):
            return []
        bars, program = self._bars(phase), self.programs[agent][:upto]
        arrivals = ((i, op, declared(type(op)).effect(Arrive)) for i, op in enumerate(program))
        found = [Step(i, agent, op) for i, op, arrive in arrivals if arrive and getattr(op, arrive.bar) in bars]
        besides = [step for step in found if declared(type(step.op)).effect(Arm) is None]
        return besides or found or self._copies(agent, program, bars)

    @staticmethod
    def _copies(agent: int, program: Sequence[Any], bars: range) -> list[Step]:
        """Copies whose lanes arrive at one of these barriers, of each slot the first."""
        found: list[Step] = []
        last = None
        for i, op in enumerate(program):
            of = declared(type(op))
            start = of.effect(Start)
            if start is not None and start.until.lanes and getattr(op, start.until.bar) in bars:
                bar = getattr(op, start.until.bar)
                found += [Step(i, agent, op)] if bar != last else []
                last = bar
            elif of.effect(Wait) is not None and len(bars) == 1:
                last = None
        return found

    def _entered(self, name: str, cta: int) -> tuple[int, list[Step]]:
        """How many slots a role enters, all its teams together; and the entries of the warp that enters most."""
        role, phase, most = self.layout.plan.role(name), self.ring.phase_of(name), list[Step]()
        assert phase is not None
        by_team = [0] * role.teams
        for warp in range(role.first_warp, role.first_warp + role.warps):
            found = (self.waits if phase else self.arrivals)(cta * self.layout.warps + warp, phase)
            by_team[role.team(warp)] = max(by_team[role.team(warp)], len(found))
            most = max(most, found, key=len)
        return (max if self.ring.held else sum)(by_team), most

    def _agents(self, name: str) -> list[int]:
        role = self.layout.plan.role(name)
        firsts = [cta * self.layout.warps + role.first_warp for cta in range(self.layout.ctas)]
        return [agent for first in firsts for agent in range(first, first + role.warps)]

    def _bars(self, phase: int) -> range:
        barrier = self.ring.barriers[phase]
        return range(self.layout.bar_base[barrier.name], self.layout.bar_base[barrier.name] + barrier.stages)

    def _place(self, wait: Step, phase: int) -> int:
        """The place of a wait in two laps around the ring."""
        return wait.op.bar - self._bars(phase - 1).start + self.ring.stages * wait.op.parity

    # ---- what is wrong --------------------------------------------------------------------------------------------

    def _uneven(self) -> list[Finding]:
        """A finding if the roles enter different numbers of slots in some CTA."""
        for cta in range(self.layout.ctas):
            entered = {role: self._entered(role, cta) for phase in self.ring.phases for role in phase}
            if len({count for count, _ in entered.values()}) > 1:
                return [self._disagree(cta, entered)]
        return []

    def _not_left(self, phase: int) -> list[Finding]:
        """Findings of roles of a phase that signal fewer or more slots than they enter, or slots that they are not in."""
        found = []
        for role in self.ring.phases[phase]:
            for agent in self._agents(role) if role in self.ring.signals else ():
                entered, left = self.waits(agent, phase), self.arrivals(agent, phase)
                tail = self.ring.stages if phase == 0 and self.ring.peers > 1 else 0  # slots that are only waited for
                once = self.ring.held and phase == 0  # it enters the only slot, without a wait
                uneven, other = len(left) != (1 if once else len(entered) - tail), []
                if not uneven and not once:
                    other = self._of_another_slot(entered, left)
                if uneven or other:
                    found.append(self._kept(agent, phase, entered, left) if uneven else self._gives_back(other))
                    break
        return found

    def _of_another_slot(self, entered: list[Step], left: list[Step]) -> list[Step]:
        """The last wait and the arrival after it that is at a slot which has not been entered, if there is one."""
        inside: Counter[int] = Counter()
        last: list[Step] = []
        for step in sorted([*entered, *left], key=lambda step: step.order):
            stage = self.layout.bars[step.op.bar][1]
            if step in entered:
                inside[stage] += 1
                last = [step]
            elif not inside[stage]:
                return [*last, step]
            else:
                inside[stage] -= 1
        return []

    def _out_of_order(self) -> list[Finding]:
        """A finding if a role waits for another slot or parity than the next one, or the last one again."""
        around = 2 * self.ring.stages
        phases = () if self.ring.held else self.ring.phases
        for phase, name in ((phase, name) for phase, names in enumerate(phases) for name in names):
            role, found = self.layout.plan.role(name), [self.waits(agent, phase) for agent in self._agents(name)]
            if role.teams > 1:
                teams = found[: role.warps : role.team_warps]
                places = Counter(self._place(wait, phase) for waits in teams for wait in waits)
                if places != Counter(i % around for i in range(places.total())):
                    return [self._skipped(name, teams)]
                continue
            for waits in found:
                following = self.ring.stages if phase == 0 else 0
                for n, wait in enumerate(waits):
                    place = self._place(wait, phase)
                    if place == following:
                        following = (place + 1) % around
                    elif not n or place != (following - 1) % around:
                        return [self._misplaced(waits[max(0, n - 1) : n + 1], following, phase)]
        return []

    # ---- findings -------------------------------------------------------------------------------------------------

    def _disagree(self, cta: int, entered: dict[str, tuple[int, list[Step]]]) -> Finding:
        name = self.ring.name
        terms = ", ".join(f"{role} {count}" for role, (count, _) in entered.items())
        usual, often = Counter(count for count, _ in entered.values()).most_common(1)[0]
        usual = usual if often > 1 else entered[self.ring.phases[0][0]][0]
        most = " and ".join(role for role, (count, _) in entered.items() if count == usual)
        others = " and ".join(role for role, (count, _) in entered.items() if count != usual)
        as_many = f"{others} enter as many slots of {name} as {most}"
        both = f"{most} and {others} enter as many slots of {name}"
        last = sorted(entered.values(), key=lambda each: each[0] != usual if often > 1 else each[0])  # to blame first
        steps = [step for _, uses in last for step in _by_line(uses, f"enters a slot of {name}")]
        at = f" in CTA {cta}" if self.layout.ctas > 1 else ""
        text = f"the roles of {name} enter different numbers of its slots{at}: {terms}"
        fix = f"let {as_many if often > 1 else both} for each tile, in loops of the same count"
        return self._finding(Kind.TRIP_COUNTS, text, fix, steps)

    def _misplaced(self, waits: list[Step], following: int, phase: int) -> Finding:
        """The finding of a wait that is out of order. waits: that wait as the last, after the wait before it, if any;
        following: the place that should follow."""
        role, (lap, stage) = self.layout.role(waits[-1].agent), divmod(following, self.ring.stages)
        texts = [f"{self.layout.bar_name(wait.op.bar)} with parity {wait.op.parity}" for wait in waits]
        wanted = f"{self.layout.bar_name(self._bars(phase - 1)[stage])} with parity {lap}"
        since = f"after {texts[0]}" if len(waits) > 1 else "at first"
        first = len(waits) == 1 and phase == 0
        why = ", since all slots are free in the first lap" if first else ""
        text = f"{who(self.layout, waits[-1].agent)} waits for {texts[-1]} {since}, where {wanted} is next{why}"
        lap_1 = " in the first lap" * first
        fix = f"let {role} wait for {wanted} there{lap_1}: the index goes around, and the parity flips with each lap"
        return self._finding(Kind.SLOT_ORDER, text, fix, waits)

    def _skipped(self, role: str, teams: list[list[Step]]) -> Finding:
        name = self.ring.name
        steps = [step for uses in teams for step in _by_line(uses, f"enters a slot of {name}")]
        text = f"the teams of {role} do not pass over each other's slots of {name}"
        fix = f"let tile_slots(k, tile) of the schedule return how many slots of {name} a tile takes (ring_slots: by ring)"
        return self._finding(Kind.SLOT_ORDER, text, fix, steps)

    def _gives_back(self, steps: list[Step]) -> Finding:
        agent, bar = steps[-1].agent, self.layout.bar_name(steps[-1].op.bar)
        text = f"{who(self.layout, agent)} arrives at {bar}, but it is not in that slot of {self.ring.name}"
        role = self.layout.role(agent)
        fix = f"let {role} arrive at the slot that it is in: its number is slot.index, and leaving the slot does it"
        return self._finding(Kind.SLOT_ORDER, text, fix, steps)

    def _kept(self, agent: int, phase: int, entered: list[Step], left: list[Step]) -> Finding:
        role, name, barrier = self.layout.role(agent), self.ring.name, self.ring.barriers[phase].name
        arrives = _by_line(left, f"arrives at {barrier}")
        enters = _by_line(entered, f"enters a slot of {name}")
        many = 1 if self.ring.held and phase == 0 else len(entered)
        text = f"{who(self.layout, agent)} enters {many} slot{'s' * (many != 1)} of {name} and gives back {len(left)}"
        if len(left) > many:
            fix = f"let {role} arrive at {barrier} once a slot: leaving the slot does it"
            return self._finding(Kind.SURPLUS_ARRIVAL, text, fix, [*enters, *reversed(arrives)], barrier)
        scope, leave, enter = ("consume", "release", "wait") if phase else ("produce", "commit", "acquire")
        fix = f"let {role} leave each slot: `with k.{name}.{scope}() as slot`, or `{leave}` after `{enter}`"
        return self._finding(Kind.MISSING_ARRIVAL, text, fix, [*arrives, *enters], barrier)

    def _finding(self, kind: Kind, text: str, fix: str, steps: list[Step], barrier: str | None = None) -> Finding:
        """steps: those to look at first, last."""
        agents = tuple(dict.fromkeys(who(self.layout, step.agent) for step in steps))
        where = lines(step.op.where for step in reversed(steps))
        shown = events_of(self.layout, sorted(steps, key=lambda step: step.order))
        return Finding(kind, text, fix, agents, where, barrier, self.ring.name, steps=shown)


def _by_line(uses: list[Step], what: str) -> list[Step]:
    """One step per source line, with how often the warp executes it."""
    by_line: dict[str | None, list[Step]] = {}
    for step in uses:
        by_line.setdefault(step.op.where, []).append(step)
    return [at[0]._replace(what=f"{what}, {len(at)} time{'s' * (len(at) > 1)}") for at in by_line.values()]


# ---- budgets ---------------------------------------------------------------------------------------------------------
#
# Budgets of the plan: shared memory, registers, ids of named barriers.


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
        asked = f"setmaxnreg asks for {terms} = {total} registers a thread over {groups} warpgroups"
        message = f"{asked}; the CTA is launched with {plan.launch_registers} x {groups} = {budget}"
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


# ---- overrides -------------------------------------------------------------------------------------------------------
#
# Lines of a user's where no operation is at fault: a body that enters no slot, and functions by which a subclass of a shipped
# schedule replaces shipped ones, such as a method that returns too early.


#: Findings that are about the plan or the library, whoever wrote the bodies
_OF_LIBRARY = (Kind.REDUNDANT_FENCE, Kind.REGISTERS, Kind.SHARED_MEMORY, Kind.LIMIT)


def placed(schedule: Schedule, plan: Plan, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, with further source lines.

    Where roles enter unequal numbers of slots, the line of a user's body that enters none is added: as the first line, if the
    body does not even name the ring, or if a shipped body enters the others. A finding without a line of the user's gets the
    lines of functions by which *schedule* replaces shipped ones, first the bodies of the roles that take part.
    """
    bodies = {role: inspect.unwrap(body) for role, body in schedule.declared.bodies.items() if _of_user(body)}
    own = [*bodies.values(), *_overrides(type(schedule))]
    found = []
    for finding in findings:
        idle = [bodies[role] for role in _idle(plan, finding) if role in bodies]
        shipped = any(map(of_library, finding.where))
        first = [body for body in idle if shipped or finding.slot not in _names(body.__code__)]
        last = idle
        if finding.kind not in _OF_LIBRARY and all(map(of_library, finding.where)):
            last = [*idle, *(bodies[step.role] for step in finding.steps if step.role in bodies), *own]
        where = (*map(_line, first), *finding.where, *map(_line, last))
        found.append(attrs.evolve(finding, where=where))
    return tuple(found)


def _names(code: CodeType) -> set[str]:
    """Names of attributes and functions that a function uses."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _of_user(part: Any) -> bool:
    return str(part.__module__).partition(".")[0] != "tmapipe" and part is not object


def _overrides(cls: type) -> Iterator[Any]:
    """The user's functions that override functions of a shipped schedule, other than ``__init__``."""
    shipped = [each for each in cls.__mro__ if not _of_user(each)]
    for each in filter(_of_user, cls.__mro__):
        for name, value in vars(each).items():
            function = inspect.unwrap(getattr(value, "fget", None) or value)
            if inspect.isfunction(function) and not name.startswith("__") and any(name in vars(c) for c in shipped):
                yield function


def _line(function: Any) -> str:
    """ "file:line" of its ``def``."""
    code, line = function.__code__, function.__code__.co_firstlineno
    try:
        above = next((i for i, text in enumerate(inspect.getsourcelines(function)[0]) if "def " in text), 0)
    except (OSError, TypeError):
        above = 0
    return f"{code.co_filename}:{line + above}"


def _idle(plan: Plan, finding: Finding) -> list[str]:
    """The roles of a ring that enter none of its slots, where that is the finding."""
    ring = next((ring for ring in plan.rings if ring.name == finding.slot), None)
    if finding.kind is not Kind.TRIP_COUNTS or ring is None:
        return []
    return [role for roles in ring.phases for role in roles if role not in {step.role for step in finding.steps}]
