"""How many cycles a kernel takes from one slot of a ring to the next in the steady state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmapipe.errors import InputError
from tmapipe.isa import ops
from tmapipe.model.layout import Layout
from tmapipe.timeline.timed import Step

LEAST = 8  #: waits of a tile of which the middle counts
Waits = dict[str, dict[Any, dict[Any, list[float]]]]  #: by ring, warp and tile, when waits for a filled slot have ended


def pace_of(layout: Layout, steps: Sequence[Step], ring: str | None = None) -> float:
    """As `Trace.pace` of `tmapipe.timeline.trace`."""
    fulls = {r.barriers[0]: r.name for r in layout.plan.rings}
    waits: Waits = {}
    for step in steps:
        if isinstance(step.op, ops.MbarWait):
            name = fulls.get(layout.barrier(step.op.bar))
            if name is not None and ring in (None, name):
                of_warp = waits.setdefault(name, {}).setdefault((step.cluster, step.agent), {})
                of_warp.setdefault(step.tile, []).append(step.began)
    return pace_among(waits, ring)


def pace_among(waits: Waits, ring: str | None = None) -> float:
    """The pace of the ring that is waited for most. Others as of `Trace.pace`."""
    most: dict[Any, dict[Any, list[float]]] = max(waits.values(), key=_count_of, default={})
    spans = []
    for by_tile in most.values():
        series = [times for times in by_tile.values() if len(times) >= LEAST] or [
            [time for times in by_tile.values() for time in times]
        ]
        for times in series:
            first, last = len(times) // 4, 3 * len(times) // 4
            if last > first:
                spans.append((times[last] - times[first], last - first))
    if not spans:
        raise InputError("ring", ring, "is one whose slots were waited for, four times or more", "pass larger tensors")
    return sum(span for span, _ in spans) / sum(count for _, count in spans)


def _count_of(waits: dict[Any, dict[Any, list[float]]]) -> int:
    return sum(len(times) for by_tile in waits.values() for times in by_tile.values())
