"""ThreadStoreStage: results that threads store from registers, to tensors that the TMA engine does not take."""

from __future__ import annotations

import attrs

from tmapipe.fields import must
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["ThreadStoreStage"]


@attrs.frozen(eq=False, repr=False, kw_only=True)
class ThreadStoreStage(TmaStoreStage):
    """Stores what the threads of `role` have computed straight from their registers, with ``st.global``.

    It needs no descriptor, no shared memory and no waits: rows of the tensor may begin at any multiple of `vector` bytes,
    where TMA wants multiples of 16, and it runs on sm_80. Elements outside the tensor are not written.

    Args:
        dims: Names of the tensor's dimensions, as in `TmaStoreStage`.
        tile: Elements, as in `TmaStoreStage`: the extents of the fragments that are stored.
        role: Who stores.
        vector: Bytes that a thread stores at once, if it has so many side by side: 1, 2, 4, 8 or 16, and no less than an
            element. The tensor's address, strides and rows are multiples of it, and so is where a tile starts along the
            contiguous dimension.
        wide: Whether a thread stores 16 bytes at once where so many lie side by side at a multiple of 16, which it finds out
            when it stores, and the others by `vector`: for rows that begin anywhere, with tiles that start before them.
        dtype: Of the elements, by default that of the tensor.

    Raises:
        InputError: For any other value.
    """

    vector: int = attrs.field(
        default=16,
        validator=must(
            lambda n: type(n) is int and n in (1, 2, 4, 8, 16),
            "is one of 1, 2, 4, 8, 16 bytes",
            "the most that divides the row pitch",
        ),
    )
    wide: bool = attrs.field(
        default=False, validator=must(lambda value: isinstance(value, bool), "is True or False", "leave it out")
    )
    tensor_map = False
    source: None = attrs.field(default=None, init=False)
    stages: int = attrs.field(default=1, init=False)
    columns: int | None = attrs.field(default=None, init=False)
    reduce: str | None = attrs.field(default=None, init=False)
