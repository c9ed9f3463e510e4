"""What the engine can move: which boxes and parts of slots, and how rows are swizzled."""

from __future__ import annotations

import math

from tmapipe import tma_rules
from tmapipe.errors import InputError
from tmapipe.plan.model import Load, Store
from tmapipe.stage import SWIZZLES

__all__ = ["check_moved", "widest_swizzle"]


def check_moved(name: str, move: Load | Store) -> None:
    """Raises `InputError` unless the engine can move slots in the boxes of *move*, and the parts of a slot one by one."""
    buffer, parts, box = move.buffer, move.parts, move.box
    if parts > 1:
        rows, nbytes = buffer.tile[0] // parts, buffer.slot_bytes // parts
        if isinstance(move, Load) and move.axes:
            raise InputError(f"{name}.in_parts", parts, "is 1 where peers load shares of a tile", "drop the multicast")
        if nbytes % 128 or (buffer.swizzle and rows % 8):
            unit = "128 bytes" + (", and of 8 rows where they are swizzled" if buffer.swizzle else "")
            rule = f"makes parts of {rows} rows, {nbytes} bytes; they start at multiples of {unit}"
            raise InputError(f"{name}.in_parts", parts, rule, "use fewer parts, longer rows, or swizzle=0")
    windows = isinstance(move, Load) and move.windows is not None
    tma_rules.check_box(f"{name}.tile", box, tma_rules.MAX_PIXELS if windows else tma_rules.MAX_BOX)
    nbytes = math.prod(box) * buffer.dtype.bytes
    if nbytes < buffer.slot_bytes and nbytes % 128:
        rule = (
            f"is moved in boxes of {' x '.join(map(str, box))} elements, {nbytes} bytes, but TMA takes slots and parts of "
            "them from multiples of 128 bytes on"
        )
        fix = (
            f"use rows of at most {tma_rules.MAX_BOX} elements, or of whole pieces of 128 bytes; or, for a vector, a "
            "BulkLoadStage"
        )
        raise InputError(f"{name}.tile", buffer.tile, rule, fix)


def widest_swizzle(argument: str, row: int) -> int:
    """The widest span (bytes) that divides a row of so many bytes. Raises `InputError` if none does."""
    for span in sorted(SWIZZLES, reverse=True):
        if span and row % span == 0:
            return span
    raise InputError(argument, f"rows of {row} bytes", "must be a multiple of 32 bytes", "widen the rows")
