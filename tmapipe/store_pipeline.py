"""TmaStoreStage: results on their way to global memory through the TMA engine.

A buffer goes through: free -> written by threads -> fenced and synchronized -> read by the engine -> free. One thread
issues all stores of a unit and tracks them as bulk groups: ``wait_group.read`` says that a buffer's bytes have been read:
threads may overwrite it, and in the end the CTA may leave. (Its writes are visible when the kernel has ended.)

From a loaded slot (``source=`` a load stage) there is no buffer and no copy: the engine reads the slot, and the ring
releases it when the read has retired.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tmapipe.dtypes import DType, as_dtype
from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.matmul import Wgmma
from tmapipe.role import Role
from tmapipe.stage import SWIZZLES, TmaLoadStage, check_dims

__all__ = ["TmaStoreStage"]


class TmaStoreStage:
    """Stores tiles to a tensor through the TMA engine.

    dims: names of the tensor's dimensions, the last one contiguous (by default those of `source`); source: a
    `TmaLoadStage` (store straight from the loaded slot), a `Wgmma` (store its accumulators, through buffers of 64 rows
    that each warpgroup fills and stores by itself) or None (store what the threads of `role` computed, through buffers of
    one tile); tile: elements along the last dimensions (by default the source's); stages: buffers (per warpgroup, for
    accumulators), or, from a slot, stores that may still read while the next slot is waited for; columns: of a buffer for
    accumulators, by default as many as fill a swizzle span of 128 bytes; dtype: by default that of the tensor;
    reduce="add": add to the tensor instead of overwriting it, in no fixed order; folded: leading dimensions of `dims` that the
    tensor lacks, with their extents (tiles): all tiles along them are added to the same place; clipped: of accumulators, write
    only the first ``tile.rows`` rows of a tile (0 to all), from row ``tile.row`` of a tensor of two dimensions on; shared: of
    accumulators, the teams of their role have the same buffers, and store each tile in a turn of a `Turnstile`.

    Of subclasses: partial: whether a buffer has one `tile` of what a warpgroup makes of its accumulators, not 64 rows of them;
    derived: dimensions of a workspace, each (dim, per, times) for an extent of ceil(extent of dim / per) * times.
    """

    partial = False
    bound: Any = None  #: the class of the store in the role that fills its buffers, if not `BoundStore`
    derived: Mapping[str, tuple[str, int, int]] = MappingProxyType({})

    def __init__(
        self,
        dims: str | None = None,
        *,
        source: TmaLoadStage | Wgmma | None = None,
        tile: tuple[int, ...] | None = None,
        role: Role | None = None,
        stages: int | None = None,
        columns: int | None = None,
        dtype: DType | str | None = None,
        swizzle: int | None = None,
        reduce: str | None = None,
        folded: dict[str, int] | None = None,
        clipped: bool = False,
        shared: bool = False,
    ):
        if source is not None and not isinstance(source, (TmaLoadStage, Wgmma)):
            raise InputError("TmaStoreStage(source)", source, "is a TmaLoadStage, a Wgmma or None", "pass one of these")
        if source is None and (tile is None or role is None):
            raise InputError("TmaStoreStage(tile, role)", (tile, role), "are needed without a source", "pass both")
        if isinstance(source, TmaLoadStage):
            tile = tile or source.tile
            dims = dims or " ".join(source.dims)
            if (
                tuple(tile) != source.tile
                or columns is not None
                or (dtype and source.dtype not in (None, as_dtype(dtype)))
            ):
                raise InputError(
                    "TmaStoreStage(tile, columns, dtype)",
                    (tile, columns, dtype),
                    "follow from the loaded slot",
                    "leave them out",
                )
        if isinstance(source, Wgmma):
            tile = tile or source.shape[:2]
        assert tile is not None
        self.tile = tuple(tile)
        self.dims = check_dims("TmaStoreStage(dims)", dims, self.tile)
        lowest = 0 if isinstance(source, TmaLoadStage) else 1
        self.stages = stages if stages is not None else (1 if isinstance(source, TmaLoadStage) else 2)
        if not isinstance(self.stages, int) or self.stages < lowest:
            raise InputError("TmaStoreStage(stages)", stages, f"is an integer of at least {lowest}", "use 2")
        if reduce not in (None, "add"):
            raise InputError("TmaStoreStage(reduce)", reduce, 'is None or "add"', 'use "add"')
        self.folded = dict(folded or {})
        leading = self.dims[: min(len(self.folded), len(self.dims) - len(self.tile))]
        if tuple(self.folded) != leading or any(extent < 1 for extent in self.folded.values()):
            raise InputError("TmaStoreStage(folded)", folded, f"names leading ones of {self.dims}", 'e.g. {"s": 4}')
        if self.folded and reduce is None:
            raise InputError("TmaStoreStage(folded)", folded, "needs a reduction", 'pass reduce="add"')
        if clipped and not (isinstance(source, Wgmma) and len(self.dims) == 2):
            raise InputError(
                "TmaStoreStage(clipped)", True, "is for accumulators stored to two dimensions", "leave it out"
            )
        if shared and not isinstance(source, Wgmma):
            raise InputError(
                "TmaStoreStage(shared)", True, "is for accumulators, which teams take in turn", "leave it out"
            )
        self.clipped, self.shared = clipped, shared
        if swizzle is not None and swizzle not in SWIZZLES:
            raise InputError("TmaStoreStage(swizzle)", swizzle, "is 0, 32, 64 or 128 (bytes)", "leave it out")
        self.source, self.role, self.columns, self.swizzle, self.reduce = source, role, columns, swizzle, reduce
        self.dtype = None if dtype is None else as_dtype(dtype)

    def derive(self, extents: Mapping[str, int]) -> dict[str, int]:
        """The extents of the `derived` dimensions that follow from those in *extents*."""
        found = {dim: rule for dim, rule in self.derived.items() if rule[0] in extents}
        return {dim: ceil_div(extents[of], per) * times for dim, (of, per, times) in found.items()}
