"""Shared memory of a CTA as it is given out, from offset 0 on: mbarriers, and slots."""

from __future__ import annotations

import math

from tmapipe.dtypes import DType
from tmapipe.integers import ceil_div
from tmapipe.plan.barriers import Barrier
from tmapipe.plan.distributed import Buffer

__all__ = ["Space"]


class Space:
    """What has been given out.

    bytes: in all, with what alignment has left free; barriers, buffers: what they are for, in this order.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.barriers: list[Barrier] = []
        self.buffers: list[Buffer] = []
        self.gaps: list[tuple[int, int]] = []  # (start, end) of what alignment has left free before that

    def barrier(self, name: str, stages: int, count: int, formula: str) -> Barrier:
        """So many mbarriers. Arguments as of `Barrier`."""
        made = Barrier(name, self._take(8 * stages, 8), stages, count, formula)
        self.barriers.append(made)
        return made

    def slots(
        self,
        name: str,
        stages: int,
        tile: tuple[int, ...],
        dtype: DType,
        swizzle: int = 0,
        owners: int = 1,
        gap: int = 0,
    ) -> Buffer:
        """Slots with memory of their own. Arguments as of `Buffer`."""
        pitch = math.prod(tile) * dtype.bytes + gap
        place = self._take(stages * pitch, 1024 if swizzle else 128)
        self.buffers.append(Buffer(name, place, stages, tile, dtype, swizzle, owners, gap))
        return self.buffers[-1]

    def _take(self, nbytes: int, alignment: int) -> int:
        """The offset of so many bytes: in a gap that alignment has left, if they fit, else at the end."""
        for i, (start, end) in enumerate(self.gaps):
            offset = ceil_div(start, alignment) * alignment
            if offset + nbytes <= end:
                self.gaps[i : i + 1] = [(start, offset), (offset + nbytes, end)]
                return offset
        offset = ceil_div(self.bytes, alignment) * alignment
        self.gaps.append((self.bytes, offset))
        self.bytes = offset + nbytes
        return offset
