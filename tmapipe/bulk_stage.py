"""BulkLoadStage: pieces of a vector, loaded into the slots of a ring without a descriptor."""

from __future__ import annotations

import attrs

from tmapipe.fields import as_tuple, is_count, must
from tmapipe.multicast import MulticastGroup
from tmapipe.stage import TmaLoadStage

__all__ = ["BulkLoadStage", "is_piece"]

#: Validator of tiles of one extent.
is_piece = must(
    lambda tile: isinstance(tile, tuple) and len(tile) == 1 and is_count(tile[0]),
    "is one extent (elements)",
    "e.g. tile=(4096,)",
)
_NONE = must(lambda value: value is None, "needs a descriptor", "use a TmaLoadStage")


@attrs.frozen(eq=False, repr=False, kw_only=True)
class BulkLoadStage(TmaLoadStage):
    """A piece of a vector, or of a row of a matrix, that ``cp.async.bulk`` loads into each slot of `ring`.

    It needs no descriptor, so one instruction moves any number of elements; a box of the TMA engine has 256 at most. There is
    a whole number of pieces, also for each cluster, since nothing fills what lies outside of the tensor.

    Args:
        dims: The name of the vector's dimension; or, with others before it, of the one that pieces lie along, such as "m n".
        tile: Elements of a piece, as a tuple of one. A multiple of 16 bytes (PTX ISA, cp.async.bulk).
        ring: Whose slots hold the pieces.
        dtype: As of `TmaLoadStage`.
        loader: As of `TmaLoadStage`.
        l2_hint: As of `TmaLoadStage`.
        swizzle, multicast: None: they need a descriptor.

    Raises:
        InputError: For a tile of more than one extent, or any other value.
    """

    tensor_map = False
    tile: tuple[int, ...] = attrs.field(converter=as_tuple, validator=is_piece)
    swizzle: int | None = attrs.field(default=None, validator=_NONE)
    multicast: MulticastGroup | None = attrs.field(default=None, validator=_NONE)
