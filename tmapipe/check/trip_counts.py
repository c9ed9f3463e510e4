"""Whether all roles of a ring enter the same number of its slots, and leave each slot that they enter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tmapipe.check.findings import Finding, Kind
from tmapipe.isa.effects import Arm, Arrive, Start, Wait, declared
from tmapipe.machine.describe import event, lines, who
from tmapipe.machine.layout import Layout
from tmapipe.machine.timeline import Event
from tmapipe.plan.model import RoleWarps
from tmapipe.plan.rings import Ring

__all__ = ["arrivals_of", "cause_findings", "waits_of"]

_Programs = Sequence[Sequence[Any]]
_Uses = list[tuple[int, Any]]  # (index in the program of the warp, operation)


def cause_findings(layout: Layout, programs: _Programs, wrong: bool) -> list[Finding]:
    """What roles do to the slots of each ring that other findings follow from.

    Args:
        programs: The operations of each warp of the cluster.
        wrong: Whether the run went wrong. If so, also what need not be wrong alone, but explains it: slots waited for in
            another order, and slots that are not left as often as they are entered.
    """
    found: list[Finding] = []
    for ring in layout.plan.rings:
        first = (_out_of_order(layout, ring, programs) or _not_left(layout, ring, programs, 0)) if wrong else []
        found += first or _uneven(layout, ring, programs)
        for phase in range(1, len(ring.phases)) if wrong and not first else ():
            found += _not_left(layout, ring, programs, phase)
    return found


def _uneven(layout: Layout, ring: Ring, programs: _Programs) -> list[Finding]:
    """A finding if the roles of a ring enter different numbers of slots in some CTA."""
    for cta in range(layout.ctas):
        counts = {
            role: _entered(layout, ring, layout.plan.role(role), cta, programs)
            for phase in ring.phases
            for role in phase
        }
        if len({count for count, _, _ in counts.values()}) > 1:
            return [_disagree(layout, ring, cta, counts)]
    return []


def _not_left(layout: Layout, ring: Ring, programs: _Programs, phase: int) -> list[Finding]:
    """Roles of a phase that signal fewer or more slots than they enter."""
    found = []
    for role in (layout.plan.role(name) for name in ring.phases[phase] if name in ring.signals):
        for agent in _agents(layout, role):
            entered, left = (each(layout, ring, phase, programs[agent]) for each in (waits_of, arrivals_of))
            tail = ring.stages if phase == 0 and ring.peers > 1 else 0  # slots that are only waited for
            if len(left) != len(entered) - tail:
                found.append(_kept(layout, ring, agent, entered, left))
                break
            if wrong_one := _of_another_slot(layout, entered, left):
                found.append(_gives_back(layout, ring, agent, wrong_one))
                break
    return found


def _of_another_slot(layout: Layout, entered: _Uses, left: _Uses) -> _Uses:
    """The last wait and the arrival after it that is at a slot which has not been entered, if there is one."""
    inside: Counter[int] = Counter()
    last: _Uses = []
    for i, op in sorted([*entered, *left], key=lambda use: use[0]):
        stage = layout.bars[op.bar][1]
        if (i, op) in entered:
            inside[stage] += 1
            last = [(i, op)]
        elif not inside[stage]:
            return [*last, (i, op)]
        else:
            inside[stage] -= 1
    return []


def _out_of_order(layout: Layout, ring: Ring, programs: _Programs) -> list[Finding]:
    """A finding if a role waits for another slot or parity of a ring than the next one, or the last one again."""
    for role in () if ring.held else (layout.plan.role(name) for phase in ring.phases for name in phase):
        phase: Any = ring.phase_of(role.name)
        around, bars = 2 * ring.stages, _bars(layout, ring, phase - 1)
        found = [(agent, waits_of(layout, ring, phase, programs[agent])) for agent in _agents(layout, role)]
        if role.teams > 1:
            teams = found[: role.warps : role.team_warps]
            uses = [use for _, uses in teams for use in uses]
            slots = Counter(_place(op, bars) for _, op in uses)
            if slots != Counter(i % around for i in range(len(uses))):
                return [_skipped(layout, ring, teams)]
            continue
        for agent, uses in found:
            following = ring.stages if phase == 0 else 0
            for n, (_, op) in enumerate(uses):
                place = _place(op, bars)
                if place == following:
                    following = (place + 1) % around
                elif not n or place != (following - 1) % around:
                    return [_misplaced(layout, ring, agent, uses[max(0, n - 1) : n + 1], following, bars)]
    return []


def _place(op: Any, bars: range) -> int:
    """Of a wait, in two laps around its ring."""
    return op.bar - bars.start + len(bars) * op.parity


# ---- counting ---------------------------------------------------------------------------------------------------------


def _agents(layout: Layout, role: RoleWarps) -> list[int]:
    warps = range(role.first_warp, role.first_warp + role.warps)
    return [cta * layout.warps + warp for cta in range(layout.ctas) for warp in warps]


def _entered(layout: Layout, ring: Ring, role: RoleWarps, cta: int, programs: _Programs) -> tuple[int, int, _Uses]:
    """(slots of *ring* that the role enters, all teams together; a warp of it; where that warp does)."""
    by_team = [0] * role.teams
    agent, uses = cta * layout.warps + role.first_warp, _Uses()
    for warp in range(role.first_warp, role.first_warp + role.warps):
        program = programs[cta * layout.warps + warp]
        phase: Any = ring.phase_of(role.name)
        found = (waits_of if phase else arrivals_of)(layout, ring, phase, program)
        team = role.team(warp)
        by_team[team] = max(by_team[team], len(found))
        if len(found) > len(uses):
            agent, uses = cta * layout.warps + warp, found
    return max(by_team) if ring.held else sum(by_team), agent, uses


def _bars(layout: Layout, ring: Ring, phase: int) -> range:
    first = layout.bar_base[ring.barriers[phase].name]
    return range(first, first + ring.barriers[phase].stages)


def waits_of(layout: Layout, ring: Ring, phase: int, program: Sequence[Any]) -> _Uses:
    """Waits for slots that the phase before this one has handed on. The same wait twice in a row counts once."""
    bars = _bars(layout, ring, phase - 1)
    found: _Uses = []
    last = None
    for i, op in enumerate(program):
        wait = declared(type(op)).effect(Wait)
        now = None if wait is None else (getattr(op, wait.bar), getattr(op, wait.parity))
        if now is not None and now[0] in bars and now[1] in (0, 1) and now != last:
            found.append((i, op))
        last = now
    return found


def arrivals_of(layout: Layout, ring: Ring, phase: int, program: Sequence[Any]) -> _Uses:
    """Arrivals by which this phase hands slots on, or else the first copy by threads into each. Those that arm bytes count
    only where the role has no others. The last phase of a ring that is held has none."""
    if phase == len(ring.barriers):
        return []
    bars = _bars(layout, ring, phase)
    arrivals = ((i, op, declared(type(op)).effect(Arrive)) for i, op in enumerate(program))
    found = [(i, op) for i, op, arrive in arrivals if arrive is not None and getattr(op, arrive.bar) in bars]
    besides = [(i, op) for i, op in found if declared(type(op)).effect(Arm) is None]
    return besides or found or _copies(program, bars)


def _copies(program: Sequence[Any], bars: range) -> _Uses:
    """Copies whose lanes arrive at one of these barriers, of each slot the first."""
    found: _Uses = []
    last = None
    for i, op in enumerate(program):
        of = declared(type(op))
        start = of.effect(Start)
        if start is not None and start.until.lanes and getattr(op, start.until.bar) in bars:
            bar = getattr(op, start.until.bar)
            found += [(i, op)] if bar != last else []
            last = bar
        elif of.effect(Wait) is not None and len(bars) == 1:
            last = None
    return found


# ---- findings ---------------------------------------------------------------------------------------------------------


def _disagree(layout: Layout, ring: Ring, cta: int, counts: dict[str, tuple[int, int, _Uses]]) -> Finding:
    terms = ", ".join(f"{role} {count}" for role, (count, _, _) in counts.items())
    usual, often = Counter(count for count, _, _ in counts.values()).most_common(1)[0]
    usual = usual if often > 1 else counts[ring.phases[0][0]][0]
    most = " and ".join(role for role, (count, _, _) in counts.items() if count == usual)
    others = " and ".join(role for role, (count, _, _) in counts.items() if count != usual)
    who_does = f"{others} enter as many slots of {ring.name} as {most}" if often > 1 else ""
    who_does = who_does or f"{most} and {others} enter as many slots of {ring.name}"
    blamed = sorted(counts.values(), key=lambda each: each[0] != usual if often > 1 else each[0])  # the last ones first
    steps = [
        step for _, agent, uses in blamed for step in _by_line(layout, agent, uses, f"enters a slot of {ring.name}")
    ]
    at = f" in CTA {cta}" if layout.ctas > 1 else ""
    text = f"the roles of {ring.name} enter different numbers of its slots{at}: {terms}"
    return _finding(ring, Kind.TRIP_COUNTS, text, f"let {who_does} for each tile, in loops of the same count", steps)


def _misplaced(layout: Layout, ring: Ring, agent: int, uses: _Uses, following: int, bars: range) -> Finding:
    """uses: the wait that is out of order, last, and the one before it, if any; following: the place that should follow."""
    op, role = uses[-1][1], layout.role(agent)
    lap, stage = divmod(following, ring.stages)
    wanted = f"{layout.bar_name(bars.start + stage)} with parity {lap}"
    since = f"after {layout.bar_name(uses[0][1].bar)} with parity {uses[0][1].parity}" if len(uses) > 1 else "at first"
    first = len(uses) == 1 and ring.phase_of(role) == 0
    why = ", since all slots are free in the first lap" if first else ""
    waited = f"{layout.bar_name(op.bar)} with parity {op.parity}"
    text = f"{who(layout, agent)} waits for {waited} {since}, where {wanted} is next{why}"
    lap_1 = " in the first lap" * first
    fix = f"let {role} wait for {wanted} there{lap_1}: the index goes around, and the parity flips with each lap"
    return _finding(ring, Kind.SLOT_ORDER, text, fix, [event(layout, i, agent, each) for i, each in uses])


def _skipped(layout: Layout, ring: Ring, teams: list[tuple[int, _Uses]]) -> Finding:
    steps = [step for agent, uses in teams for step in _by_line(layout, agent, uses, f"enters a slot of {ring.name}")]
    text = f"the teams of {layout.role(teams[0][0])} do not pass over each other's slots of {ring.name}"
    fix = f"let tile_slots(k, tile) of the schedule return how many slots of {ring.name} a tile takes (ring_slots: by ring)"
    return _finding(ring, Kind.SLOT_ORDER, text, fix, steps)


def _gives_back(layout: Layout, ring: Ring, agent: int, uses: _Uses) -> Finding:
    text = (
        f"{who(layout, agent)} arrives at {layout.bar_name(uses[-1][1].bar)}, but it is not in that slot of {ring.name}"
    )
    fix = f"let {layout.role(agent)} arrive at the slot that it is in: its number is slot.index, and leaving the slot does it"
    return _finding(ring, Kind.SLOT_ORDER, text, fix, [event(layout, i, agent, op) for i, op in uses])


def _kept(layout: Layout, ring: Ring, agent: int, entered: _Uses, left: _Uses) -> Finding:
    role = layout.role(agent)
    phase: Any = ring.phase_of(role)
    barrier = ring.barriers[phase].name
    arrives = _by_line(layout, agent, left, f"arrives at {barrier}")
    enters = _by_line(layout, agent, entered, f"enters a slot of {ring.name}")
    slots = f"{len(entered)} slot{'s' * (len(entered) != 1)}"
    text = f"{who(layout, agent)} enters {slots} of {ring.name} and gives back {len(left)}"
    if len(left) > len(entered):
        fix = f"let {role} arrive at {barrier} once a slot: leaving the slot does it"
        return _finding(ring, Kind.SURPLUS_ARRIVAL, text, fix, [*enters, *reversed(arrives)], barrier)
    scope, leave, enter = ("consume", "release", "wait") if phase else ("produce", "commit", "acquire")
    fix = f"let {role} leave each slot: `with k.{ring.name}.{scope}() as slot`, or `{leave}` after `{enter}`"
    return _finding(ring, Kind.MISSING_ARRIVAL, text, fix, [*arrives, *enters], barrier)


def _finding(ring: Ring, kind: Kind, text: str, fix: str, steps: list[Event], barrier: str | None = None) -> Finding:
    """steps: those to look at first, last. Steps are numbered in the warps' own programs."""
    agents = tuple(dict.fromkeys(step.agent for step in steps))
    where = lines(step.where for step in reversed(steps))
    return Finding(
        kind, text, fix, agents, where, barrier, ring.name, steps=tuple(sorted(steps, key=lambda step: step.order))
    )


def _by_line(layout: Layout, agent: int, uses: _Uses, what: str) -> list[Event]:
    """One step per source line, with how often the warp executes it."""
    by_line: dict[str | None, _Uses] = {}
    for i, op in uses:
        by_line.setdefault(op.where, []).append((i, op))
    return [
        event(layout, at[0][0], agent, at[0][1], f"{what}, {len(at)} {'times' if len(at) > 1 else 'time'}")
        for at in by_line.values()
    ]
