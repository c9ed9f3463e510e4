"""Shared memory of single roles, and the mbarriers on which numbers from other CTAs of the cluster complete."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tmapipe.plan.model import Barrier, Buffer
from tmapipe.plan.space import Space
from tmapipe.reduction_scratch import ReductionScratch
from tmapipe.scratch import Scratch
from tmapipe.stage import as_matrix

__all__ = ["exchange_barriers", "scratch_buffer"]


def exchange_barriers(
    space: Space, name: str, scratch: Scratch, cluster: Mapping[str, int], role: str
) -> list[Barrier]:
    """One for each copy of what CTAs send each other; none for shared memory of one CTA alone."""
    if _peers(scratch, cluster) == 1:
        return []
    offset, warps = space.take(8 * scratch.copies, 8), scratch.role.warps
    return [Barrier(f"{name}.full", offset, scratch.copies, warps, f"{warps} expect-tx ({role})")]


def scratch_buffer(space: Space, name: str, scratch: Scratch, cluster: Mapping[str, int]) -> Buffer:
    """Its copies; of those of a reduction over several CTAs, the numbers of all their warps."""
    tile = (scratch.tile[0] * _peers(scratch, cluster), *scratch.tile[1:])
    nbytes = math.prod(tile) * scratch.dtype.bytes
    gap = -nbytes % 128
    place = space.take(scratch.copies * (nbytes + gap), 128)
    return Buffer(name, place, scratch.copies, as_matrix(tile), scratch.dtype, 0, 1, gap)


def _peers(scratch: Scratch, cluster: Mapping[str, int]) -> int:
    group = scratch.group if isinstance(scratch, ReductionScratch) else None
    return 1 if group is None else group.size(cluster)
