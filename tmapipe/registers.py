"""What fragments need, by role, from recording the bodies on a small problem: registers, and accesses of shared memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tmapipe.errors import PipelineError
from tmapipe.kernel import kernel_main
from tmapipe.machine import Layout, record
from tmapipe.machine.banks import Accesses, WatchedFragments, copies
from tmapipe.machine.live import Live, Most
from tmapipe.machine.warp import MachineIsa
from tmapipe.plan.explain import Touched
from tmapipe.plan.model import Plan

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["Needs", "fragments_held", "fragments_need", "touched_by"]

ITERATIONS = 3  # tiles along each dimension: an inner loop's first iteration, one between, and the last


class Needs(NamedTuple):
    """Of one role. most: registers of its fragments; accesses: of its first warp, to slots."""

    most: Most
    accesses: Accesses


def fragments_held(schedule: Schedule, plan: Plan) -> dict[str, Most]:
    """Role -> the registers of `fragments_need`, of roles that have fragments."""
    return {role: needs.most for role, needs in fragments_need(schedule, plan).items() if needs.most.registers}


def fragments_need(schedule: Schedule, plan: Plan) -> dict[str, Needs]:
    """Role -> what its fragments need at most, of a problem of a few tiles along each dimension. Left out is what bodies do
    that cannot be recorded.
    """
    sizes = {dim: size for part in plan.transfers for dim, size in zip(part.dims, part.tile, strict=True)}
    shapes = plan.shapes({dim: size * (ITERATIONS if size > 1 else 1) for dim, size in sizes.items()})
    found = {}
    for role in plan.roles:
        live, seen = Live(), Accesses()

        def make(
            layout: Layout, agent: int, emit: Callable[[Any], None], live: Live = live, seen: Accesses = seen
        ) -> MachineIsa:
            isa = _Watched(layout, agent, 0, 1, shapes, emit)
            isa.fragments = WatchedFragments(isa, live, seen)
            return isa

        with contextlib.suppress(PipelineError):  # which a call or a check will raise
            record(plan, lambda isa: kernel_main(isa, schedule), shapes, only=role.first_warp, make=make)
        found[role.name] = Needs(live.most(), seen)
    return found


class _Watched(MachineIsa):
    """The instruction set of a warp whose fragments are noted. Each entry of a table is larger than the one before."""

    def load_entry(self, table: str, i: int, without_data: int) -> int:
        return super().load_entry(table, i, without_data or ITERATIONS * i)


def touched_by(plan: Plan, needs: Mapping[str, Needs]) -> dict[str, list[Touched]]:
    """Role -> what its first warp does to slots, as `explain` shows it."""
    found: dict[str, list[Touched]] = {}
    copied = {load.name: load for load in plan.loads if load.vector}
    for ring in plan.rings:
        for role, loads in ring.loads.items():
            for load in (copied[name] for name in loads if name in copied):
                warps = plan.role(role).warps if ring.held else plan.role(role).team_warps
                found.setdefault(role, []).append((load.name, *copies(load, warps)))
    for role, need in needs.items():
        for (stage, what), access in need.accesses.items():
            found.setdefault(role, []).append((stage, what, access.taken, access.least))
    return found
