"""What may still come in a run, as far as the recorded runs show.

Rings are uniform: whoever uses one stage of a ring comes to use all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tmapipe.check.positions import CLUSTER, Key, Live, Positions, Shifts, slot_position, tells_parity
from tmapipe.check.relative import Renaming
from tmapipe.isa.effects import Start, declared
from tmapipe.machine.layout import Layout

__all__ = ["Future"]


class Future:
    """What may still come.

    live: the sorts of operations that come again; waiters: the warps that wait for each mbarrier of the cluster; users: the
    warps that access each slot of the cluster, or one that shares bytes with it; arrivers: the warps that arrive at each
    barrier of warps.
    """

    def __init__(self, layout: Layout, ends: Iterable[Positions]):
        self.layout = layout
        self.touched: dict[Key, set[int]] = {}
        self.arrivers: dict[int, list[int]] = {CLUSTER: []}
        for end in ends:
            for key, stages in end.touched.items():
                self.touched.setdefault(key, set()).update(stages)
            for agent, id in sorted(end.arrivals):
                which = CLUSTER if id == CLUSTER else 16 * (agent // layout.warps) + id
                if agent not in self.arrivers.setdefault(which, []):
                    self.arrivers[which].append(agent)
        self.live = Live(layout, self.touched)
        self.facts: dict[Any, int] = {}  # numbers of all that can be known, the same in all states
        self.knowers: dict[Any, int] = {}  # and of all who can know it
        self.renamings: dict[tuple[int, ...], Renaming] = {}
        self.waiters = self._waiters()
        self.users = self._users()

    def renaming(self, shifts: Shifts) -> Renaming:
        """The renaming by these shifts of the arrays of `live`."""
        key = tuple(shifts.values())
        if key not in self.renamings:
            self.renamings[key] = Renaming(self.layout, shifts)
        return self.renamings[key]

    def _waiters(self) -> dict[int, list[int]]:
        layout = self.layout
        found: dict[int, list[int]] = {}
        for agent, sort, array in self.live.keys:
            if tells_parity(sort):
                first = agent // layout.warps * layout.nbars + layout.bar_base[array]
                for stage in range(layout.plan.barrier(array).stages):
                    found.setdefault(first + stage, []).append(agent)
        return found

    def _users(self) -> dict[int, list[int]]:
        """Whoever accesses one slot of a buffer accesses all slots that others who access this one do."""
        layout = self.layout
        found: dict[int, list[int]] = {}
        first_slots: dict[str, int] = {}
        for i, (buffer, stage) in enumerate(layout.slots):
            first_slots.setdefault(slot_position(buffer, stage)[0], i)
        for (agent, sort, array), stages in self.touched.items():
            if array not in first_slots:
                continue
            for others in [s for (_, _, other), s in self.touched.items() if other == array for _ in range(2)]:
                stages = stages | others if stages & others else stages
            for cta in range(layout.ctas) if _reaches_peers(sort[0]) else (agent // layout.warps,):
                for stage in stages:
                    for alias in layout.aliases[first_slots[array] + stage]:
                        found.setdefault(cta * layout.nslots + alias, []).append(agent)
        return found


def _reaches_peers(op: type) -> bool:
    """Whether operations of this class start work on slots of other CTAs."""
    return any(start.mask for start in declared(op).all(Start))
