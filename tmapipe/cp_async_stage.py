"""CpAsyncLoadStage: tiles that threads copy into the slots of a ring, of tensors that the TMA engine does not take."""

from __future__ import annotations

import attrs

from tmapipe.dtypes import DType, as_dtype
from tmapipe.fields import must
from tmapipe.multicast import MulticastGroup
from tmapipe.stage import TmaLoadStage, is_written

__all__ = ["CpAsyncLoadStage"]


@attrs.frozen(eq=False, repr=False, kw_only=True)
class CpAsyncLoadStage(TmaLoadStage):
    """A tile that the threads of a role copy into each slot of `ring` with ``cp.async``, and go on meanwhile.

    It needs no descriptor: rows of the tensor may begin at any multiple of `vector` bytes, where TMA wants multiples of 16.
    The copies signal the same mbarriers as TMA loads, so a ring may have stages of both kinds. Beyond the tensor's edge a
    slot holds zeros.

    Args:
        dims: Names of the tensor's dimensions, as in `TmaLoadStage`.
        tile: Elements, as in `TmaLoadStage`. Rows are whole units of 16 bytes.
        ring: Whose slots hold the tiles.
        vector: Bytes that a thread copies at once: 4, 8 or 16. The tensor's address and strides are multiples of it, and so
            is where a tile starts along the contiguous dimension.
        dtype: Of the elements, by default that of the tensor.
        swizzle: Span (bytes), as in `TmaLoadStage`.
        loader: The role that copies, with any number of warps, where the ring's first phase has several.

    Raises:
        InputError: For any other value.
    """

    filled_by = "threads"
    tensor_map = False
    dtype: DType | None = attrs.field(default=None, converter=attrs.converters.optional(as_dtype), validator=is_written)
    vector: int = attrs.field(
        default=16,
        validator=must(
            lambda n: type(n) is int and n in (4, 8, 16), "is 4, 8 or 16 bytes", "the most that divides the row pitch"
        ),
    )
    multicast: MulticastGroup | None = attrs.field(default=None, init=False)
    l2_hint: str | None = attrs.field(default=None, init=False)
