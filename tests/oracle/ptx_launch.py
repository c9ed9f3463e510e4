"""What the host gives an emitted kernel: its parameters, and where in global memory tensors and tables lie."""

from __future__ import annotations

import math
from typing import Any

import attrs

from tmapipe.plan.model import Store
from tmapipe.tiles.dynamic import keep_positions

__all__ = ["Launch", "parameters"]

TABLES = 1 << 40  # where tables are put in global memory, a megabyte apart
VECTORS = 1 << 45  # where the tensors of loads without a descriptor are put, 64 gigabytes apart
WORKSPACE = 1 << 52  # where the descriptors are put that a kernel makes
COUNTERS = 1 << 50  # where those of a queued order are put


@attrs.frozen
class Launch:
    """extents: of each tensor, with batch dimensions; clusters: in the grid; cluster_id, cta_rank: this CTA's place; tables:
    their entries; places: of tensors that lie elsewhere than here, (address, strides in elements, extents without the
    dimensions that they lack); counters: where those of a queued order are put."""

    extents: dict[str, tuple[int, ...]]
    clusters: int = 1
    cluster_id: int = 0
    cta_rank: int = 0
    tables: dict[str, tuple[int, ...]] = attrs.field(factory=dict)
    places: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = attrs.field(factory=dict)
    counters: int = COUNTERS


def parameters(plan: Any, schedule: Any, launch: Launch) -> list[dict[int, Any]]:
    """By parameter, then by byte offset: for each transfer its descriptor and its extents, then for each load's edge, for each
    divisor its fast division (struct, and divisor), then the number of clusters."""
    found: list[dict[int, Any]] = []
    for part in (*plan.described, *(load for load in plan.loads if load.edge_rows)):
        name, core = part.argument, part.core
        extents = launch.places[name][2] if name in launch.places else launch.extents[name]
        first = max(0, len(extents) - core)
        ordered = (*extents[first:], *extents[:first])
        if isinstance(part, Store) and part.clipped:
            ordered = extents[1], extents[0] + 1  # after a slot's rows, which are a constant
        found += [{0: name}, {4 * n: extent for n, extent in enumerate(ordered)}]
    grid = schedule.grid(lambda name, i: launch.extents[name][i])
    for divisor in schedule.tiles.divisors(grid, plan.cluster, launch.clusters).values():
        found += [_fast_division(divisor), {0: divisor}]
    last = {name: (1,) if name in plan.entries else () for name in launch.tables}
    tables = [_tensor(launch, name, TABLES + (i << 20), last[name]) for i, name in enumerate(last)]
    tensors = [name for name in plan.by_address if name not in plan.tables]
    tables += [_tensor(launch, name, VECTORS + (i << 36)) for i, name in enumerate(tensors)]
    kept = keep_positions((), 1, launch.clusters, launch.clusters)[1:]  # all for whoever comes
    tables += [{0: launch.counters}] if plan.queue is not None or not plan.made else []
    tables += [{0: WORKSPACE}] if plan.made else []
    return [*found, {0: launch.clusters}, *tables, *({0: word} for word in kept)]


def _tensor(launch: Launch, name: str, address: int, last: tuple[int, ...] = ()) -> dict[int, int]:
    """A tensor, dense unless its place says otherwise: its address, extents, and strides; the last one is a constant, but of
    tables."""
    if name in launch.places:
        address, given, extents = launch.places[name]
        strides = [*given[:-1], *(given[-1:] if last else ())]
    else:
        extents = launch.extents[name]
        strides = [*(math.prod(extents[i + 1 :]) for i in range(len(extents) - 1)), *last]
    after = 8 + -(-4 * len(extents) // 8) * 8
    shape = {8 + 4 * i: extent for i, extent in enumerate(extents)}
    return {0: address, **shape, **{after + 8 * i: stride for i, stride in enumerate(strides)}}


def _fast_division(divisor: int) -> dict[int, int]:
    """x // d = (((x - h) >> s1) + h) >> s2 with h = x * m >> 32 (Granlund and Montgomery, 1994)."""
    length = (divisor - 1).bit_length()
    multiplier = (((1 << length) - divisor) << 32) // divisor + 1
    return {0: divisor, 4: multiplier, 8: min(length, 1), 9: max(length - 1, 0)}
