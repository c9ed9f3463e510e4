"""L2Stage: tiles that are asked into L2 ahead of their loads."""

from __future__ import annotations

import attrs

from tmapipe.barrier import BarrierRing
from tmapipe.errors import InputError
from tmapipe.stage import TmaLoadStage, TokenStage

__all__ = ["L2Stage"]


@attrs.frozen(eq=False, repr=False, kw_only=True)
class L2Stage(TokenStage):
    """Tiles of another stage's tensor, which one role asks into L2 some slots before another role loads them.

    Its slots have no memory. Their ring says how far the asking role is ahead, across output tiles too: with 8 slots, at most
    8 tiles. Use it where the slots of shared memory alone do not cover the latency of memory; within one loop,
    ``slot.x.prefetch(tile, k=step + 8)`` does the same without a further role.

    Args:
        source: The stage that loads the tiles, each as a whole: a `TmaLoadStage` or a `BulkLoadStage`.
        ring: Produced by the role that asks, with ``slot.<stage>.prefetch(tile)``, and consumed by the one that loads.

    Raises:
        InputError: For any other value.
    """

    source: TmaLoadStage = attrs.field(kw_only=False)

    def __attrs_post_init__(self) -> None:
        source, ring = self.source, self.ring
        whole = isinstance(source, TmaLoadStage) and source.filled_by == "engine" and source.parts == 1
        if not whole or source.windows is not None or source.strides or source.outside == "nan":
            rule = "is a stage whose tiles an engine loads whole, without strides, and zeros outside"
            raise InputError("L2Stage(source)", source, rule, "name such a stage, or leave the L2Stage out")
        if not isinstance(ring, BarrierRing) or ring is source.ring or ring.per == "cta":
            rule = "is a BarrierRing of its own, whose slots follow the tiles"
            raise InputError("L2Stage(ring)", ring, rule, "e.g. BarrierRing(8, producer=ask, consumer=load)")
        if not any(source.loader is role for role in ring.phases[-1]):
            rule = "is consumed by the role that loads the source"
            raise InputError("L2Stage(ring)", ring, rule, "name that role as its consumer")
