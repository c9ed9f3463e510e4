"""TmaLoadStage and SharedStage: what lies in the slots of a ring, and how it gets there."""

from __future__ import annotations

from typing import Any

from tmapipe.barrier import BarrierRing
from tmapipe.dtypes import DType, as_dtype, tf32
from tmapipe.errors import InputError
from tmapipe.multicast import MulticastGroup
from tmapipe.role import Role

__all__ = ["DEFAULT_DIMS", "L2_HINTS", "OUTSIDE", "SWIZZLES", "SharedStage", "TmaLoadStage", "check_dims"]


DEFAULT_DIMS = {1: "n", 2: "m n"}


L2_HINTS = ("evict_first", "evict_last", "evict_normal")


OUTSIDE = ("zeros", "anything")


#: Attributes of an open slot (`tmapipe.protocol.ring.Slot`), which no stage can be called.
RESERVED = ("end", "index", "open", "retired", "touched_by_threads")
SWIZZLES = (0, 32, 64, 128)


class _SlotStage:
    """What the stages in a slot have in common: a tile, an element type, a swizzle and a ring. spread: whether each warp reads
    from many rows at once, so that rows should be swizzled; number: whether the tensor is a single number."""

    spread = False
    number = False

    def __init__(self, tile: tuple[int, ...], ring: BarrierRing, dtype: DType | str | None, swizzle: int | None):
        kind = type(self).__name__
        self.tile = tuple(tile) if isinstance(tile, (tuple, list)) else tile
        if not isinstance(self.tile, tuple) or len(self.tile) not in (1, 2) or not all(_positive(e) for e in self.tile):
            raise InputError(f"{kind}(tile)", tile, "is one or two positive extents (elements)", "e.g. tile=(128, 64)")
        if not isinstance(ring, BarrierRing):
            raise InputError(f"{kind}(ring)", ring, "is the BarrierRing that the slots belong to", "pass ring=")
        if swizzle is not None and swizzle not in SWIZZLES:
            raise InputError(f"{kind}(swizzle)", swizzle, "is 0, 32, 64 or 128 (bytes)", "leave it out to derive it")
        self.ring, self.swizzle = ring, swizzle
        self.dtype = None if dtype is None else as_dtype(dtype)
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name


class TmaLoadStage(_SlotStage):
    """A tile that the TMA engine loads into each slot of `ring`.

    dims: names of the tensor's dimensions, the last one contiguous ("l m k": a batch of matrices; by default "m n", or
    "n" for a tile of one extent); tile: elements along the last of them (batch dimensions before the tile count 1);
    dtype: of the elements, by default that of the tensor ("tf32": a tensor of fp32, rounded as it is loaded); multicast: the
    CTAs that share the tile; swizzle: span in bytes, by default the largest that the tile and its readers allow; loader: the
    role that loads, where the ring's first phase has several; l2_hint: "evict_first", "evict_last" or "evict_normal".

    outside: what a slot holds of rows (of a tile of two extents) beyond the tensor's edge. "zeros": the hardware fills them,
    and counts their full bytes, but takes some 5 ns a row (on an H200). "anything": for where nobody looks
    at them, as in a GEMM's operand whose few rows fill little of a tile; on the GPU these are copies of other rows, on the
    CPU model NaN. Beyond the edge within rows there are zeros in any case.
    """

    def __init__(
        self,
        dims: str | None = None,
        *,
        tile: tuple[int, ...],
        ring: BarrierRing,
        dtype: DType | str | None = None,
        multicast: MulticastGroup | None = None,
        swizzle: int | None = None,
        loader: Role | None = None,
        l2_hint: str | None = None,
        outside: str = "zeros",
    ):
        super().__init__(tile, ring, dtype, swizzle)
        self.dims = check_dims("TmaLoadStage(dims)", dims, self.tile)
        if multicast is not None and not isinstance(multicast, MulticastGroup):
            raise InputError("TmaLoadStage(multicast)", multicast, "is a MulticastGroup", 'e.g. MulticastGroup("n")')
        if l2_hint is not None and l2_hint not in L2_HINTS:
            raise InputError("TmaLoadStage(l2_hint)", l2_hint, f"is one of {', '.join(L2_HINTS)}", "use one of these")
        if outside not in OUTSIDE:
            raise InputError("TmaLoadStage(outside)", outside, f"is one of {', '.join(OUTSIDE)}", "leave it out")
        if outside != "zeros" and len(self.tile) != 2:
            raise InputError("TmaLoadStage(outside)", outside, "is for rows, of tiles of two extents", "leave it out")
        if loader is not None and loader not in ring.phases[0]:
            raise InputError("TmaLoadStage(loader)", loader, "is a role of the ring's first phase", "name one of those")
        if loader is None and len(ring.phases[0]) > 1:
            raise InputError(
                "TmaLoadStage(loader)", None, "must say which of the producing roles loads this stage", "pass loader="
            )
        self.multicast, self.l2_hint, self.outside = multicast, l2_hint, outside
        self.loader = loader or ring.phases[0][0]


class SharedStage(_SlotStage):
    """A tile that threads write into each slot of `ring`: scratch handed along with it, or the result of a transform.

    writer: the role that writes it, one of the ring's; tile, dtype, swizzle as in `TmaLoadStage`.
    """

    def __init__(
        self,
        *,
        tile: tuple[int, ...],
        ring: BarrierRing,
        writer: Role,
        dtype: DType | str,
        swizzle: int | None = None,
    ):
        super().__init__(tile, ring, dtype, swizzle)
        if not any(writer in phase for phase in ring.phases):
            raise InputError("SharedStage(writer)", writer, "is one of the ring's roles", "name one of those")
        if self.dtype == tf32:
            raise InputError("SharedStage(dtype)", "tf32", "is a type of TMA loads, which round fp32 to it", "fp32")
        self.writer = writer


def check_dims(argument: str, dims: str | None, tile: tuple[int, ...]) -> tuple[str, ...]:
    """The dimension names in *dims*. Raises `InputError` unless they are distinct, at most 5 and no fewer than the tile's."""
    names = tuple((dims if dims is not None else DEFAULT_DIMS[len(tile)]).split())
    if not len(tile) <= len(names) <= 5 or len(set(names)) != len(names) or not all(n.isidentifier() for n in names):
        raise InputError(
            argument,
            dims,
            f"is up to 5 different names, {len(tile)} or more for a tile of {tile}",
            'e.g. "m k" or "l m k"',
        )
    return names


def _positive(value: Any) -> bool:
    return isinstance(value, int) and value > 0
