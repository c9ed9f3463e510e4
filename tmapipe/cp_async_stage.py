"""CpAsyncLoadStage: tiles that threads copy into the slots of a ring, of tensors that the TMA engine does not take."""

from __future__ import annotations

import attrs

from tmapipe.barrier import BarrierRing
from tmapipe.dtypes import DType, in_memory
from tmapipe.errors import InputError
from tmapipe.role import Role
from tmapipe.stage import TmaLoadStage

__all__ = ["CpAsyncLoadStage"]

VECTORS = (4, 8, 16)  # bytes


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
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
    vector: int = attrs.field(default=16, init=False)

    def __init__(
        self,
        dims: str | None = None,
        *,
        tile: tuple[int, ...],
        ring: BarrierRing,
        vector: int = 16,
        dtype: DType | str | None = None,
        swizzle: int | None = None,
        loader: Role | None = None,
    ):
        if type(vector) is not int or vector not in VECTORS:
            rule = "is 4, 8 or 16 bytes"
            raise InputError("CpAsyncLoadStage(vector)", vector, rule, "the most that divides the row pitch")
        if dtype is not None:
            in_memory("CpAsyncLoadStage(dtype)", dtype)
        super().__init__(dims, tile=tile, ring=ring, dtype=dtype, swizzle=swizzle, loader=loader)
        object.__setattr__(self, "vector", vector)

    @property
    def tensor_map(self) -> bool:
        return False
