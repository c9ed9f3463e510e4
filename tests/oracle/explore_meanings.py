"""What an operation means, for the exhaustive oracle: it must be the same in all interleavings.

A wait means the phase that it sees, an arrival, an arming or a landing the phases that it counts in, an arrival at another
barrier the generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tmapipe.isa import ops
from tmapipe.isa.ops import Flight
from tmapipe.model.layout import Kind, Layout

__all__ = ["Meanings"]


class Meanings:
    """Of all operations executed so far, in whatever interleaving."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.known: dict[tuple[int | Flight, int], Any] = {}  # (agent, index of the operation) -> what it meant

    def of(self, agent: int, index: int, op: Any, facts: Any) -> Iterator[Kind]:
        """What is wrong with an operation that was executed with *facts*."""
        if isinstance(op, ops.MbarWait):
            yield from self._differs(agent, index, facts, Kind.LAPPED_WAIT)
        elif isinstance(op, (ops.MbarArrive, ops.MbarArriveCluster, ops.MbarArriveTx, ops.MbarExpectTx)):
            phases = tuple((counted.cta, counted.phase) for counted in facts)
            yield from self._differs(agent, index, phases, Kind.EARLY_ARRIVAL)
            if isinstance(op, ops.MbarArrive) and len(facts) > 1:
                yield Kind.SURPLUS_ARRIVAL
            if (
                isinstance(op, ops.MbarArriveCluster)
                and op.scope == "cta"
                and op.mask & ~(1 << agent // self.layout.warps)
            ):
                yield Kind.SCOPE
        elif isinstance(op, (ops.BarArrive, ops.ClusterArrive)):
            yield from self._differs(agent, index, facts[0], Kind.NAMED_BARRIER)

    def landed(self, flight: Flight, phase: int) -> Iterator[Kind]:
        """The same for the bytes of a load."""
        yield from self._differs(flight, 0, phase, Kind.EARLY_ARRIVAL)

    def _differs(self, agent: int | Flight, index: int, what: Any, kind: Kind) -> Iterator[Kind]:
        if self.known.setdefault((agent, index), what) != what:
            yield kind
