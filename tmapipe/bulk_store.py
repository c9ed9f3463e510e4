"""BulkStoreStage: pieces of a vector, stored without a descriptor."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.role import Role
from tmapipe.stage import SlotStage
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["BulkStoreStage"]


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
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
        **options: `stages` and `dtype`, as of `TmaStoreStage`.

    Raises:
        InputError: For a tile of more than one extent, or another source.
    """

    def __init__(
        self,
        dims: str | None = None,
        *,
        source: SlotStage | None = None,
        tile: tuple[int] | None = None,
        role: Role | None = None,
        reduce: str | None = None,
        **options: Any,
    ):
        if source is not None and not isinstance(source, SlotStage):
            raise InputError("BulkStoreStage(source)", source, "is a stage of slots, or None", "use a TmaStoreStage")
        piece = source.tile if tile is None and source is not None else tile
        if not isinstance(piece, (tuple, list)) or len(piece) != 1:
            raise InputError("BulkStoreStage(tile)", piece, "is one extent (elements)", "e.g. tile=(4096,)")
        for name in options:
            if name not in ("stages", "dtype"):
                raise InputError(f"BulkStoreStage({name})", options[name], "is of other stores", "use a TmaStoreStage")
        super().__init__(dims, source=source, tile=tile, role=role, reduce=reduce, **options)

    @property
    def tensor_map(self) -> bool:
        return False

    @property
    def reducible(self) -> tuple[str, ...]:
        return (*super().reducible, *(("int32", "int64") if self.reduce in ("min", "max") else ()))
