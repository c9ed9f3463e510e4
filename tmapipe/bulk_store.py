"""BulkStoreStage: pieces of a vector, stored without a descriptor."""

from __future__ import annotations

import attrs

from tmapipe.bulk_stage import is_piece
from tmapipe.fields import as_tuple, must, optional
from tmapipe.stage import SlotStage
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["BulkStoreStage"]


@attrs.frozen(eq=False, repr=False, kw_only=True)
class BulkStoreStage(TmaStoreStage):
    """Stores pieces of a vector by ``cp.async.bulk``, or adds to it by ``cp.reduce.async.bulk``.

    It needs no descriptor. The vector has a multiple of 16 bytes, of which the last piece may be shorter; for others there is
    `ThreadStoreStage`.

    Args:
        dims: The name of the vector's dimension, by default the source's.
        source: The stage whose slots are stored; None: what the threads of `role` computed.
        tile: Elements of a piece, as a tuple of one, by default the source's. A multiple of 16 bytes.
        role: Who stores, where that does not follow from the source.
        reduce: As of `TmaStoreStage`; "min" and "max" of int32 and int64 too.
        stages: As of `TmaStoreStage`.
        columns: None: it is of stores of accumulators.
        dtype: As of `TmaStoreStage`.

    Raises:
        InputError: For a tile of more than one extent, or another source.
    """

    tensor_map = False
    source: SlotStage | None = attrs.field(
        default=None,
        validator=must(
            optional(lambda source: isinstance(source, SlotStage) and len(source.tile) == 1),
            "is a stage of slots with one extent, or None",
            "use a TmaStoreStage",
        ),
    )
    tile: tuple[int, ...] = attrs.field(default=None, converter=as_tuple, validator=attrs.validators.optional(is_piece))
    columns: int | None = attrs.field(
        default=None, validator=must(lambda columns: columns is None, "is of other stores", "use a TmaStoreStage")
    )

    @property
    def reducible(self) -> tuple[str, ...]:
        return (*super().reducible, *(("int32", "int64") if self.reduce in ("min", "max") else ()))
