"""Im2colLoadStage: elements of a convolution's windows, which the TMA engine gathers into the rows of a tile."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.stage import TmaLoadStage
from tmapipe.windows import Windows

__all__ = ["Im2colLoadStage"]


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class Im2colLoadStage(TmaLoadStage):
    """A tile whose rows are windows of images, and whose columns are channels: of each window one element, such as the upper
    left one. It is what an implicit GEMM multiplies.

    Windows are numbered through all images, the last dimension fastest: row m of the output [m, o] belongs to window m. Once
    a tile, ``first = k.windows("x", m)`` says where one begins. Then ``slot.x.load_windows(first, r, s, c)`` loads element
    (r, s) of it and of those after it, from channel c on. Outside of an image, and after the last one, there are zeros.

    Args:
        dims: Names of the tensor's dimensions: images, one to three of their own, channels, which are contiguous: "n h w c".
        tile: (windows, channels) of a slot; up to 1024 windows, and 256 channels or any whole number of swizzle spans.
        ring: Whose slots hold the tiles.
        windows: Their size, padding, stride and dilation.
        **options: As of `TmaLoadStage`.

    Raises:
        InputError: For any other value.
    """

    def __init__(self, dims: str, *, tile: tuple[int, int], windows: Windows, **options: Any):
        if not isinstance(windows, Windows):
            raise InputError("Im2colLoadStage(windows)", windows, "is a Windows", "e.g. Windows((3, 3), padding=1)")
        if not isinstance(tile, (tuple, list)) or len(tile) != 2:
            raise InputError("Im2colLoadStage(tile)", tile, "is (windows, channels)", "e.g. (128, 64)")
        super().__init__(dims, tile=tuple(tile), **options)
        object.__setattr__(self, "windows", windows)
        if len(self.dims) != len(windows.size) + 2:
            rule = f"names images, the {len(windows.size)} dimensions that windows have, and channels"
            raise InputError("Im2colLoadStage(dims)", dims, rule, 'e.g. "n h w c"')

    @property
    def extents(self) -> tuple[int, ...]:
        return (*(1,) * (len(self.dims) - 1), self.tile[-1])
