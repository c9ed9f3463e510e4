"""Registers of fragments by role, from recording the bodies on a small problem."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tmapipe.errors import PipelineError
from tmapipe.kernel import kernel_main
from tmapipe.machine import Layout, record
from tmapipe.machine.fragments import MachineFragments
from tmapipe.machine.live import Live, Most
from tmapipe.machine.warp import MachineIsa
from tmapipe.plan.model import Plan

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["fragments_held"]

TURNS = 3  # tiles along each dimension: an inner loop's first turn, one between, and the last


def fragments_held(schedule: Schedule, plan: Plan) -> dict[str, Most]:
    """Role -> what its fragments need at most, of a problem of a few tiles along each dimension. Left out are roles without
    any, and those whose bodies cannot be recorded.
    """
    sizes = {dim: size for part in plan.transfers for dim, size in zip(part.dims, part.tile, strict=True)}
    shapes = plan.shapes({dim: size * (TURNS if size > 1 else 1) for dim, size in sizes.items()})
    found = {}
    for role in plan.roles:
        live = Live()

        def make(layout: Layout, agent: int, emit: Callable[[Any], None], live: Live = live) -> MachineIsa:
            return _Watched(layout, agent, 0, 1, shapes, emit, live)

        with contextlib.suppress(PipelineError):  # which a call or a check will raise
            record(plan, lambda isa: kernel_main(isa, schedule), shapes, only=role.first_warp, make=make)
        most = live.most()
        if most.registers:
            found[role.name] = most
    return found


class _Watched(MachineIsa):
    """The instruction set of a warp whose fragments are noted. Each entry of a table is larger than the one before."""

    def __init__(self, layout: Layout, agent: int, cluster: int, clusters: int, shapes: Any, emit: Any, live: Live):
        super().__init__(layout, agent, cluster, clusters, shapes, emit)
        assert isinstance(self.fragments, MachineFragments)
        self.fragments.live = live

    def load_entry(self, table: str, i: int, without_data: int) -> int:
        return super().load_entry(table, i, without_data or TURNS * i)
