"""StoredStage: that tiles of an output have been written, for roles of the same kernel that load them."""

from __future__ import annotations

import attrs

from tmapipe.barrier import BarrierRing
from tmapipe.errors import InputError
from tmapipe.stage import TokenStage
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["StoredStage"]


@attrs.frozen(eq=False, repr=False, kw_only=True)
class StoredStage(TokenStage):
    """That a CTA's tiles of an output have been written, and may be loaded by the same CTA.

    Its slots have no memory. The role that stores calls ``slot.<stage>.publish()`` in one, after its stores: that waits until
    the engine has written them, and fences. The next roles of the ring load them, by a stage ``of_result(store)``, once they
    have entered the slot. Tiles of the next output tile may be stored meanwhile. The same tile is stored again only once its
    bytes have come.

    (For the next kernel of the stream nothing is needed: it waits until this one has ended, and written everything.)

    Args:
        store: The stage that stores the tiles.
        ring: Produced by the role that stores.

    Raises:
        InputError: For any other value.
    """

    store: TmaStoreStage = attrs.field(kw_only=False)

    def __attrs_post_init__(self) -> None:
        store, ring = self.store, self.ring
        if not isinstance(store, TmaStoreStage):
            raise InputError("StoredStage(store)", store, "is a stage that stores tiles", "e.g. a TmaStoreStage")
        if not isinstance(ring, BarrierRing) or ring.per == "cta":
            rule = "is a BarrierRing whose slots follow the tiles"
            raise InputError("StoredStage(ring)", ring, rule, "e.g. BarrierRing(1, producer=store, consumer=load)")
        if store.storing is not None and not any(store.storing is role for role in ring.phases[0]):
            raise InputError("StoredStage(ring)", ring, "is produced by the role that stores", "name that as producer")
