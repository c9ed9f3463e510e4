"""Shared memory of a CTA as it is given out, from offset 0 on, and the slots in it."""

from __future__ import annotations

import math

from tmapipe.dtypes import DType
from tmapipe.errors import InputError
from tmapipe.plan.distributed import Buffer
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["Space"]


class Space:
    """What has been given out. bytes: in all, with what alignment has left free."""

    def __init__(self) -> None:
        self.bytes = 0
        self.gaps: list[tuple[int, int]] = []  # (start, end) of what alignment has left free before that

    def take(self, nbytes: int, alignment: int) -> int:
        """The offset of so many bytes: in a gap that alignment has left, if they fit, else at the end."""
        for i, (start, end) in enumerate(self.gaps):
            offset = _aligned(start, alignment)
            if offset + nbytes <= end:
                self.gaps[i : i + 1] = [(start, offset), (offset + nbytes, end)]
                return offset
        offset = _aligned(self.bytes, alignment)
        self.gaps.append((self.bytes, offset))
        self.bytes = offset + nbytes
        return offset

    def buffer(
        self,
        name: str,
        slots: int,
        tile: tuple[int, ...],
        dtype: DType,
        swizzle: int,
        owners: int = 1,
        below: Buffer | None = None,
    ) -> Buffer:
        """Slots of *tile*: in the memory of *below*, or in their own. Raises `InputError` for what TMA does not take."""
        row = tile[-1] * dtype.bytes
        if row % ALIGNMENT:
            rule = f"a row is {row} bytes, but TMA moves multiples of {ALIGNMENT}"
            raise InputError(f"{name}.tile", tile, rule, "widen the tile")
        if swizzle and (len(tile) != 2 or tile[0] % 8):
            rule = f"repeats every 8 rows, so not in a tile of {tile}"
            raise InputError(f"{name}.swizzle", swizzle, rule, "pass swizzle=0")
        alignment = 1024 if swizzle else 128
        slot = math.prod(tile) * dtype.bytes
        gap = -slot % alignment if slots > 1 else 0
        if gap and swizzle:
            rule = f"a slot is {slot} bytes, but swizzled slots start at multiples of {alignment}"
            raise InputError(f"{name}.tile", tile, rule, "use a larger tile, or pass swizzle=0")
        if below is None:
            place = self.take(slots * (slot + gap), alignment)
        else:
            place, gap = below.offset, below.pitch - slot
            if gap < 0 or (swizzle and (place % alignment or (gap and slots > 1))):
                rule = f"lies over {below.name}, whose slots have {below.slot_bytes} bytes: " + (
                    f"it has {slot}" if gap < 0 else "swizzled slots begin at multiples of 1024, with none between"
                )
                raise InputError(f"{name}.tile", tile, rule, "choose another tile or swizzle, or leave over= out")
        return Buffer(name, place, slots, tile, dtype, swizzle, owners, gap, None if below is None else below.name)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
