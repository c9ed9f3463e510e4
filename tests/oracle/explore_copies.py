"""Copies by threads that have landed, and proxy fences, for the exhaustive oracle: followed along each interleaving.

What threads have copied may be accessed through the async proxy once some warp has executed a proxy fence after it had landed,
and that warp's next step, which is all that others can see of the fence, came before the access. If a copy and an access are
not ordered so, some interleaving has no such fence between them. The copy is then still *fresh*, which is an error.

A fence is executed together with the operation before it that others can notice, as early as it can be, and counts for others
with the next one, as late as it can be. Both make fewer programs right, none wrong that is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.oracle.explore_accesses import COPIES, FENCES, FROM_SLOTS, LOADS, WHOLE, Classes, Part
from tmapipe.isa import ops
from tmapipe.isa.ops import Flight

__all__ = ["Places", "async_bits", "told"]


class Places(list):
    """By agent, its place in its program.

    fresh: (slot in the cluster, part) -> the copies that wrote it last, and have landed; fenced: agent -> those that it has
    executed a fence after, which no other agent can know yet.
    """

    def __init__(self, at: list[int]):
        super().__init__(at)
        self.fresh: dict[tuple[int, Part], Flight] = {}
        self.fenced: dict[int, frozenset[Flight]] = {}

    def copy(self) -> Places:
        other = Places(self)
        other.fresh, other.fenced = dict(self.fresh), dict(self.fenced)
        return other

    def key(self) -> Any:
        return tuple(self), frozenset(self.fresh.items()), frozenset(self.fenced.items())

    def landed(self, flight: Flight, record: tuple[Any, ...]) -> None:
        """A load has ended. record: as of `State.loads`."""
        place, share, shares = record[:3]
        if flight.kind == "cp.async":
            self.fresh[place, ("shares", share, shares)] = flight

    def fence(self, agent: int) -> None:
        """The agent executes a proxy fence."""
        if self.fresh:
            self.fenced[agent] = frozenset(self.fresh.values())

    def tell(self, agent: int) -> None:
        """The agent executes an operation that others can notice."""
        known = self.fenced.pop(agent, None)
        if known:
            self.fresh = {where: flight for where, flight in self.fresh.items() if flight not in known}

    def is_fresh(self, classes: Classes, agent: int, bits: int) -> bool:
        """Whether an access of the agent through the async proxy, of classes *bits*, comes too early."""
        own = self.fenced.get(agent, frozenset())
        return any(
            flight not in own and classes.against(classes.bit(*where, True)) & bits
            for where, flight in self.fresh.items()
        )


def async_bits(classes: Classes, agent: int, op: Any) -> int:
    """Classes of what an operation accesses through the async proxy in its own CTA."""
    layout, kind = classes.layout, type(op)
    base = agent // layout.warps * layout.nslots
    found = 0
    if kind in (ops.TmaStore, ops.TmaScatter, ops.BulkStore):
        found = classes.bit(base + op.slot, WHOLE, False)
    elif kind in (ops.Wgmma, ops.WgmmaFromRegisters):
        slots = [op.b] if kind is ops.WgmmaFromRegisters else [op.a, op.b]
        for slot in slots:
            found |= classes.bit(base + slot, WHOLE, False)
    elif kind in (ops.SlotRead, ops.SlotWrite) and op.proxy == "async":
        found = classes.bit(base + op.slot, (op.split, op.part, op.parts), kind is ops.SlotWrite)
    elif kind in LOADS and kind not in COPIES:
        found = classes.bit(base + op.slot, WHOLE, True)
        if kind in (ops.PeerCopy, ops.PeerReduce, ops.RedAsync):  # which write elsewhere
            found = 0
        if kind in FROM_SLOTS:
            found |= classes.bit(base + op.source, WHOLE, False)
    return found


def told(program: Any, visible: list[int]) -> Iterator[tuple[int, int]]:
    """For each proxy fence, where in *visible* (indices of what others can notice) the operations before and after it are."""
    for i, op in enumerate(program):
        if isinstance(op, FENCES):
            after = next((n for n, index in enumerate(visible) if index > i), len(visible))
            yield after - 1, after
