"""Roles of a ring that hand on different numbers of slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmapipe.check.findings import Finding, Kind
from tmapipe.machine import ops
from tmapipe.machine.layout import Layout
from tmapipe.plan import Ring, RoleWarps

__all__ = ["trip_count_findings"]

_ARRIVALS = (ops.MbarArrive, ops.MbarArriveTx, ops.MbarArriveCluster)


def trip_count_findings(layout: Layout, programs: Sequence[Sequence[Any]]) -> list[Finding]:
    """One finding for each ring whose roles disagree in some CTA. programs: the operations of each warp of the cluster."""
    found = []
    for ring in layout.plan.rings:
        for cta in range(layout.ctas):
            counts = {
                role: _slots(
                    layout, ring, layout.plan.role(role), programs[cta * layout.warps : (cta + 1) * layout.warps]
                )
                for phase in ring.phases
                for role in phase
            }
            if len({count for count, _ in counts.values()}) > 1:
                found.append(_finding(layout, ring, cta, counts))
                break
    return found


def _slots(layout: Layout, ring: Ring, role: RoleWarps, programs: Sequence[Sequence[Any]]) -> tuple[int, str | None]:
    """How many slots of *ring* the role enters, all teams together, and where it last does."""
    phase = ring.phase_of(role.name)
    assert phase is not None
    barrier = ring.barriers[phase - 1] if phase else ring.barriers[0]
    first = layout.bar_base[barrier.name]
    bars = range(first, first + barrier.stages)
    by_team = [0] * role.teams
    where = None
    for warp in range(role.first_warp, role.first_warp + role.warps):
        count, place = _waits(programs[warp], bars) if phase else _arrivals(programs[warp], bars)
        team = role.team(warp)
        by_team[team] = max(by_team[team], count)
        where = place or where
    return sum(by_team), where


def _waits(program: Sequence[Any], bars: range) -> tuple[int, str | None]:
    """Phases waited for: the same wait twice in a row is one."""
    count, where, last = 0, None, None
    for op in program:
        if type(op) is ops.MbarWait and op.bar in bars and (last is None or last[:2] != op[:2]):
            count, where = count + 1, op.where
        last = op if type(op) is ops.MbarWait else None
    return count, where


def _arrivals(program: Sequence[Any], bars: range) -> tuple[int, str | None]:
    count, where = 0, None
    for op in program:
        if type(op) in _ARRIVALS and op.bar in bars:
            count, where = count + 1, op.where
    return count, where


def _finding(layout: Layout, ring: Ring, cta: int, counts: dict[str, tuple[int, str | None]]) -> Finding:
    given = ring.phases[0][0]
    terms = ", ".join(f"{role} {count}" for role, (count, _) in counts.items())
    at = f" in CTA {cta}" if layout.ctas > 1 else ""
    others = [role for role, (count, _) in counts.items() if count != counts[given][0]]
    return Finding(
        Kind.TRIP_COUNTS,
        f"the roles of ring {ring.name} hand on different numbers of slots{at}: {terms}",
        f"let {given} and {', '.join(others)} derive the trip count of their loops over {ring.name} from the same value",
        agents=tuple(counts),
        where=tuple(dict.fromkeys(place for _, place in counts.values() if place)),
        barrier=None,
        slot=ring.name,
    )
