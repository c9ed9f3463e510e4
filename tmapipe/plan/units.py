"""Extents that calls may have: `bind` refuses others, so no problem that is looked at has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tmapipe.integers import ceil_div
from tmapipe.tma_rules import ALIGNMENT

if TYPE_CHECKING:
    from tmapipe.plan.model import Plan


def units_of(plan: Plan) -> dict[str, int]:
    """Elements that the extent of a dimension is a multiple of, by dimension.

    What is loaded without a descriptor comes in whole pieces of a cluster. The rows of an output are whole units of 16 bytes,
    or of what a thread stores at once.
    """
    found: dict[str, int] = {}
    for load in plan.loads:
        if not load.tensor_map and not load.vector:
            for dim, extent in zip(load.dims, load.tile, strict=True):
                found[dim] = math.lcm(found.get(dim, 1), extent * plan.cluster.get(dim, 1))
    for store in plan.stores:
        unit, size = store.vector or ALIGNMENT, store.buffer.dtype.in_memory.bytes
        found[store.dims[-1]] = math.lcm(found.get(store.dims[-1], 1), unit // math.gcd(unit, size))
    return {dim: unit for dim, unit in found.items() if unit > 1}


def in_units(extents: Mapping[str, int], units: Mapping[str, int], most: Mapping[str, int]) -> dict[str, int]:
    """*extents*, made longer to whole *units*, or shorter where they would be beyond the *most*."""
    found = dict(extents)
    for dim, unit in units.items():
        if found.get(dim, 0) % unit:
            longer = ceil_div(found[dim], unit) * unit
            found[dim] = longer if longer <= most.get(dim, longer) else found[dim] // unit * unit or found[dim]
    return found
