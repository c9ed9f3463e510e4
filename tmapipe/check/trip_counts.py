"""Whether all roles of a ring enter the same number of its slots, and leave each slot that they enter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmapipe.check.findings import Finding, Kind
from tmapipe.isa.effects import Arrive, Declared, Start, Wait, declared
from tmapipe.machine.describe import event, lines, who
from tmapipe.machine.layout import Layout
from tmapipe.machine.timeline import Event
from tmapipe.plan.model import RoleWarps
from tmapipe.plan.rings import Ring

__all__ = ["slots_kept_findings", "trip_count_findings"]

_Programs = Sequence[Sequence[Any]]
_Uses = list[tuple[int, Any]]  # (index in the program of the warp, operation)


def trip_count_findings(layout: Layout, programs: _Programs) -> list[Finding]:
    """One finding for each ring whose roles enter different numbers of slots in some CTA.

    Args:
        programs: The operations of each warp of the cluster.
    """
    found = []
    for ring in layout.plan.rings:
        for cta in range(layout.ctas):
            counts = {
                role: _entered(layout, ring, layout.plan.role(role), cta, programs)
                for phase in ring.phases
                for role in phase
            }
            if len({count for count, _, _ in counts.values()}) > 1:
                found.append(_disagree(layout, ring, cta, counts))
                break
    return found


def slots_kept_findings(layout: Layout, programs: _Programs) -> list[Finding]:
    """Roles that signal fewer or more slots than they enter. That alone need not be wrong, but it explains other findings of
    the same run.
    """
    found = []
    for ring in layout.plan.rings:
        for role in (layout.plan.role(name) for phase in ring.phases[1:] for name in phase if name in ring.signals):
            for agent in _agents(layout, role):
                entered = _waits(layout, ring, role, programs[agent])
                left = _arrivals(layout, ring, role, programs[agent])
                if len(left) != len(entered):
                    found.append(_kept(layout, ring, agent, entered, left))
                    break
    return found


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
        count = _waits if ring.phase_of(role.name) else _arrivals
        found = count(layout, ring, role, program)
        team = role.team(warp)
        by_team[team] = max(by_team[team], len(found))
        if len(found) > len(uses):
            agent, uses = cta * layout.warps + warp, found
    return max(by_team) if ring.held else sum(by_team), agent, uses


def _bars(layout: Layout, ring: Ring, phase: int) -> range:
    first = layout.bar_base[ring.barriers[phase].name]
    return range(first, first + ring.barriers[phase].stages)


def _waits(layout: Layout, ring: Ring, role: RoleWarps, program: Sequence[Any]) -> _Uses:
    """Waits for phases of the barrier before the role's own. The same wait twice in a row counts once."""
    phase = ring.phase_of(role.name)
    assert phase is not None
    bars = _bars(layout, ring, phase - 1)
    found: _Uses = []
    last = None
    for i, op in enumerate(program):
        wait = declared(type(op)).effect(Wait)
        now = None if wait is None else (getattr(op, wait.bar), getattr(op, wait.parity))
        if now is not None and now[0] in bars and now != last:
            found.append((i, op))
        last = now
    return found


def _arrivals(layout: Layout, ring: Ring, role: RoleWarps, program: Sequence[Any]) -> _Uses:
    phase = ring.phase_of(role.name)
    assert phase is not None
    bars = _bars(layout, ring, phase)
    effects = [(i, op, declared(type(op))) for i, op in enumerate(program)]
    arrivals = ((i, op, of.effect(Arrive)) for i, op, of in effects)
    found = [(i, op) for i, op, arrive in arrivals if arrive is not None and getattr(op, arrive.bar) in bars]
    return found or _copies(effects, bars)


def _copies(effects: list[tuple[int, Any, Declared]], bars: range) -> _Uses:
    """Copies whose lanes arrive at one of these barriers, of each slot the first."""
    found: _Uses = []
    last = None
    for i, op, of in effects:
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
    given = ring.phases[0][0]
    terms = ", ".join(f"{role} {count}" for role, (count, _, _) in counts.items())
    at = f" in CTA {cta}" if layout.ctas > 1 else ""
    others = [role for role, (count, _, _) in counts.items() if count != counts[given][0]]
    steps: list[Event] = []
    for _, agent, uses in sorted(counts.values(), key=lambda entry: entry[0]):
        steps += _by_line(layout, agent, uses, f"enters a slot of {ring.name}")
    return Finding(
        Kind.TRIP_COUNTS,
        f"the roles of {ring.name} enter different numbers of its slots{at}: {terms}",
        f"let {given} and {', '.join(others)} enter as many slots of {ring.name} for each tile, in loops of the same count",
        agents=tuple(counts),
        where=_last_first(steps),
        slot=ring.name,
        steps=_in_order(steps),
    )


def _kept(layout: Layout, ring: Ring, agent: int, entered: _Uses, left: _Uses) -> Finding:
    phase = ring.phase_of(layout.role(agent))
    assert phase is not None
    barrier, name = ring.barriers[phase].name, who(layout, agent)
    arrives = _by_line(layout, agent, left, f"arrives at {barrier}")
    enters = _by_line(layout, agent, entered, f"enters a slot of {ring.name}")
    counts = f"{name} enters {len(entered)} slot{'s' * (len(entered) != 1)} of {ring.name} and gives back {len(left)}"
    if len(left) < len(entered):
        kind, steps = Kind.MISSING_ARRIVAL, [*arrives, *enters]
        fix = f"let {layout.role(agent)} leave each slot: `with k.{ring.name}.consume() as slot`, or `release` after `wait`"
    else:
        kind, steps = Kind.SURPLUS_ARRIVAL, [*enters, *reversed(arrives)]
        fix = f"let {layout.role(agent)} arrive at {barrier} once a slot: leaving the slot does it"
    return Finding(kind, counts, fix, (name,), _last_first(steps), barrier, steps=_in_order(steps))


def _by_line(layout: Layout, agent: int, uses: _Uses, what: str) -> list[Event]:
    """One step per source line, with how often the warp executes it. Steps are numbered in the warp's own program."""
    lines: dict[str | None, _Uses] = {}
    for i, op in uses:
        lines.setdefault(op.where, []).append((i, op))
    return [
        event(layout, at[0][0], agent, at[0][1], f"{what}, {len(at)} {'times' if len(at) > 1 else 'time'}")
        for at in lines.values()
    ]


def _last_first(steps: list[Event]) -> tuple[str, ...]:
    return lines(step.where for step in reversed(steps))


def _in_order(steps: list[Event]) -> tuple[Event, ...]:
    return tuple(sorted(steps, key=lambda step: step.order))
