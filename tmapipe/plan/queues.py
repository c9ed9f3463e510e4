"""The queue of a dynamic order of tiles, in shared memory."""

from __future__ import annotations

from tmapipe.dtypes import int32
from tmapipe.plan.model import Barrier, Buffer
from tmapipe.plan.rings import Queue
from tmapipe.plan.space import Space

__all__ = ["queue_in"]


def queue_in(space: Space, slots: int, words: int, warps: int, ctas: int) -> Queue:
    """Slots of whole 16-byte units, which is what one st.async moves.

    Args:
        words: Of 4 bytes, in a slot.
        warps: Of a CTA, all of which read.
        ctas: Of the cluster.
    """
    full = Barrier("tiles.full", space.take(8 * slots, 8), slots, 1, "1 expect-tx (scheduler)")
    free = Barrier("tiles.free", space.take(8 * slots, 8), slots, warps * ctas, f"{warps} warps x {ctas} CTAs")
    unit = -(-words // 4) * 4
    return Queue(Buffer("tiles", space.take(slots * unit * 4, 128), slots, (unit,), int32), full, free)
