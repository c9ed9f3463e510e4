"""BulkLoadStage: pieces of a vector, loaded into the slots of a ring without a descriptor."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.stage import TmaLoadStage

__all__ = ["BulkLoadStage"]


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class BulkLoadStage(TmaLoadStage):
    """A piece of a vector, or of a row of a matrix, that ``cp.async.bulk`` loads into each slot of `ring`.

    It needs no descriptor, so one instruction moves any number of elements; a box of the TMA engine has 256 at most. There is
    a whole number of pieces, also for each cluster, since nothing fills what lies outside of the tensor.

    Args:
        dims: The name of the vector's dimension; or, with others before it, of the one that pieces lie along, such as "m n".
        tile: Elements of a piece, as a tuple of one. A multiple of 16 bytes (PTX ISA, cp.async.bulk).
        ring: Whose slots hold the pieces.
        **options: `dtype`, `loader` and `l2_hint`, as of `TmaLoadStage`.

    Raises:
        InputError: For a tile of more than one extent, or an option that needs a descriptor.
    """

    def __init__(self, dims: str | None = None, *, tile: tuple[int], **options: Any):
        if not isinstance(tile, (tuple, list)) or len(tile) != 1:
            raise InputError("BulkLoadStage(tile)", tile, "is one extent (elements)", "e.g. tile=(4096,)")
        for name in options:
            if name not in ("ring", "dtype", "loader", "l2_hint"):
                raise InputError(f"BulkLoadStage({name})", options[name], "needs a descriptor", "use a TmaLoadStage")
        super().__init__(dims, tile=tuple(tile), **options)

    @property
    def tensor_map(self) -> bool:
        return False
