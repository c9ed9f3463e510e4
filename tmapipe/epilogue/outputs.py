"""Outputs of an epilogue beside the first one, d: further outputs of d's shape, or sums of its rows or columns."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from tmapipe.dtypes import DType, as_dtype
from tmapipe.matmul import Wgmma
from tmapipe.register_tile import RegisterTile
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["EpilogueOutput", "Output", "StoreForm"]


@attrs.frozen
class StoreForm:
    """What the stores of all outputs of an epilogue have in common.

    batch: names of the dimensions before m, each with a space; and of whole outputs: stages: buffers of a warpgroup; columns:
    of a buffer (None: as many as fill 128 bytes); l2_hint: of the stores.
    """

    batch: str
    stages: int
    columns: int | None = None
    l2_hint: str | None = None


class EpilogueOutput:
    """Base of the kinds. `reduced`: whether the kernel stores parts of it, which a second kernel adds."""

    reduced = False

    def stage(self, mma: Wgmma | RegisterTile, width: int, form: StoreForm) -> TmaStoreStage:
        """The store of what the epilogue makes of *mma*'s tiles, in pieces of *width* columns."""
        raise NotImplementedError

    def type_of(self, sums: DType) -> DType:
        """Type of its tensor, if a call makes one of sums of this type."""
        raise NotImplementedError

    def whole(self, values: Any, shape: tuple[int, ...]) -> np.ndarray:
        """The output, from what the epilogue gives for a whole d of *shape*."""
        raise NotImplementedError


@attrs.frozen
class Output(EpilogueOutput):
    """An output of d's shape.

    Args:
        dtype: Of its elements; None: the tensor's, or where a call makes it a's.
    """

    dtype: DType | str | None = None

    def stage(self, mma: Wgmma | RegisterTile, width: int, form: StoreForm) -> TmaStoreStage:
        options: dict[str, Any] = {"stages": form.stages, "columns": form.columns, "dtype": self.dtype}
        return TmaStoreStage(f"{form.batch}m n", source=mma, **options).with_l2_hint(form.l2_hint)

    def type_of(self, sums: DType) -> DType:
        return as_dtype(self.dtype or sums)

    def whole(self, values: Any, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(np.asarray(values, np.float32), shape).copy()
