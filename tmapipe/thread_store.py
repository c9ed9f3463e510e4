"""ThreadStoreStage: results that threads store from registers, to tensors that the TMA engine does not take."""

from __future__ import annotations

import attrs

from tmapipe.dtypes import DType
from tmapipe.errors import InputError
from tmapipe.role import Role
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["ThreadStoreStage"]

VECTORS = (1, 2, 4, 8, 16)  # bytes


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
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
        dtype: Of the elements, by default that of the tensor.

    Raises:
        InputError: For any other value.
    """

    vector: int = attrs.field(default=16, init=False)

    def __init__(
        self,
        dims: str | None = None,
        *,
        tile: tuple[int, ...],
        role: Role,
        vector: int = 16,
        dtype: DType | str | None = None,
    ):
        if type(vector) is not int or vector not in VECTORS:
            rule = f"is one of {', '.join(map(str, VECTORS))} bytes"
            raise InputError("ThreadStoreStage(vector)", vector, rule, "the most that divides the row pitch")
        super().__init__(dims, tile=tile, role=role, stages=1, dtype=dtype)
        object.__setattr__(self, "vector", vector)
