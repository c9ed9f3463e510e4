"""Conv: convolutions as matmuls, whose first operand is loaded window by window.

load (1 warp)        for each element of a window and each k-tile of channels: a, b -> ring of slots, im2col
math (warpgroups)    as in `Gemm`
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from tmapipe.bind.memory import check_kind
from tmapipe.bind.tensors import match, new_like
from tmapipe.dim import Dim
from tmapipe.dtypes import as_dtype
from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.errors import InputError
from tmapipe.im2col_stage import Im2colLoadStage
from tmapipe.kernel import KernelContext
from tmapipe.matmul import Wgmma
from tmapipe.multicast import MulticastGroup
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.mainloop import Cooperative, PingPong
from tmapipe.schedules.operand import Operand
from tmapipe.stage import TmaLoadStage
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.persistent import PersistentTiles
from tmapipe.windows import Windows

__all__ = ["Conv"]

IMAGE, WINDOW = "thw", "qrs"  # dimensions of images and of windows, of which the last ones are taken


class Conv(Gemm):
    """``d[i, p, q, o] = epilogue(sum over r, s, c of x[i, p + r, q + s, c] * f[o, r, s, c])``, with padding, stride and
    dilation, for images of 1 to 3 dimensions. Channels are contiguous (channels last)::

        d = Conv(tp.Windows((3, 3), padding=1))(x, f)  # x [n, h, w, c], f [o, r, s, c]

    Of tensors of PyTorch in channels_last, pass ``x.permute(0, 2, 3, 1)`` and ``f.permute(0, 2, 3, 1)``.

    Args:
        windows: Of the convolution.
        tile: Of a CTA: windows (rows of the output), output channels, channels a slot.
        cluster: CTAs along (windows, output channels).
        stages: Slots; None: as many as fit.
        mainloop: How warpgroups share tiles, as of `Gemm`, along m.
        epilogue: As of `Gemm`. Its operands by element are images too.
        tiles: The order of output tiles, whole ones.

    Raises:
        InputError: For parts that do not go together, or that cannot be planned.
    """

    load, math = Gemm.load, Gemm.math

    def __init__(
        self,
        windows: Windows,
        tile: tuple[int, int, int] = (128, 128, 64),
        cluster: tuple[int, int] = (1, 1),
        stages: int | None = None,
        *,
        mainloop: Cooperative | PingPong = Cooperative(),  # noqa: B008 - immutable
        epilogue: Epilogue | Callable[..., Any] | None = None,
        tiles: TileOrder = PersistentTiles(),  # noqa: B008
    ):
        if not isinstance(windows, Windows):
            raise InputError("Conv(windows)", windows, "is a Windows", "e.g. Windows((3, 3), padding=1)")
        if getattr(mainloop, "along", "m") != "m":
            raise InputError("Conv(mainloop)", mainloop, "shares tiles along m", 'leave out along="n"')
        if isinstance(tiles, TileOrder) and (tiles.in_parts or tiles.table):
            raise InputError("Conv(tiles)", tiles, "is an order of whole tiles", "e.g. PersistentTiles(Snake(8))")
        self.windows_of_images = windows
        rank = len(windows.size)
        self.image_dims, self.window_dims = tuple(IMAGE[-rank:]), tuple(WINDOW[-rank:])
        self.relations = tuple(Dim(name, size=n) for name, n in zip(self.window_dims, windows.size, strict=True))
        super().__init__(tile, cluster, stages, mainloop=mainloop, epilogue=epilogue, tiles=tiles)

    def _declare_products(self, a: Operand, b: Operand, m: int, n: int, k: int) -> None:
        images, ones = " ".join(self.image_dims), (1,) * len(self.window_dims)
        self.a = Im2colLoadStage(
            f"i {images} c",
            tile=(m, k),
            windows=self.windows_of_images,
            ring=self.ring,
            multicast=MulticastGroup("n"),
        )
        dims = " ".join(("n", *self.window_dims, "c"))
        self.b = TmaLoadStage(dims, tile=(n, *ones, k), ring=self.ring, multicast=MulticastGroup("m"))
        self.mma = Wgmma(self.a, self.b, promote=self.mainloop.promote)
        self.sources = (self.mma,)
        self.tile_extents = m, n, k

    one_kernel = False  # nor one view of its tensors

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """As `Schedule.__call__`: x, f, then d, by position or by name (a, b, d); then operands.

        Outputs that are reductions are vectors in fp32, of all windows or of all output channels.
        """
        given = match(["a", "b", "d", *self.epilogue.operands, *self.epilogue.outputs], tensors, named, out, "d")
        rank = len(self.image_dims) + 2
        for name in ("a", "b"):
            if getattr(given.get(name), "ndim", None) != rank:
                check_kind(name, given.get(name))
                rule = f"has {rank} dimensions, channels last"
                raise InputError(f"{name}.shape", tuple(given[name].shape), rule, "x [n, h, w, c] and f [o, r, s, c]")
        shape = self._shape_of_images(given)
        d = given.pop("d", None)
        if d is None:
            kind = self.epilogue.dtype
            d = new_like(given["a"], shape, None if kind is None else as_dtype(kind))
        if tuple(getattr(d, "shape", ())) != shape:
            check_kind("d", d)
            raise InputError("d.shape", tuple(d.shape), f"is {shape}", "make it so")
        flat = {name: _as_rows(name, each) for name, each in given.items() if name not in ("a", "b")}
        found = super().__call__(given["a"], given["b"], out=_as_rows("d", d), **flat)
        if not isinstance(found, tuple):
            return d
        shapes = [(-1,) if name in self.reductions.kinds else shape for name in self.outputs[1:]]
        return (d, *(each.reshape(of) for each, of in zip(found[1:], shapes, strict=True)))

    def _shape_of_images(self, given: Mapping[str, Any]) -> tuple[int, ...]:
        return _shape(self.windows_of_images, tuple(given["a"].shape), given["b"].shape[0])

    def shape_of_output(self, given: Mapping[str, Any]) -> tuple[int, ...]:
        """As in `Fused`."""
        *rows, columns = self._shape_of_images(given)
        return math.prod(rows), columns

    def tile_slots(self, k: KernelContext, tile: Tile) -> Any:
        """One slot for each element of a window and each k-tile of channels."""
        return math.prod(self.windows_of_images.size) * k.steps("a", "c")

    def element(self, number: Any) -> tuple[Any, ...]:
        """Which element of a window has this number, the last dimension fastest; run-time values too."""
        found: list[Any] = []
        for size in reversed(self.windows_of_images.size):
            found.insert(0, number % size)
            number = number // size
        return tuple(found)

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        windows, columns, channels = self.tile_extents
        first = k.windows("a", tile.m * windows)
        many = math.prod(self.windows_of_images.size)
        for step in range(self.tile_slots(k, tile)):
            element, channel = self.element(step % many), step // many * channels
            with k.ring.produce() as slot:
                slot.a.load_windows(first, *element, channel)
                slot.b.load_from(tile.n * columns, *element, channel)


@functools.lru_cache(maxsize=1024)
def _shape(windows: Windows, images: tuple[int, ...], channels: int) -> tuple[int, ...]:
    """Of the output. images: shape of the input; channels: of the output. Raises `InputError` if no window fits."""
    many, *image, _ = images
    windows.check_image("a.shape", image)
    return (int(many), *map(int, windows.counts(image)), int(channels))


def _as_rows(name: str, tensor: Any) -> Any:
    """Images [..., channels] as rows of channels, in the same memory. Raises `InputError` if that takes a copy."""
    if getattr(tensor, "ndim", 0) < 3:  # or what is no tensor, and refused later
        return tensor
    try:
        return tensor.view(-1, tensor.shape[-1]) if hasattr(tensor, "data_ptr") else _reshaped(tensor)
    except (RuntimeError, AttributeError):  # of torch and of NumPy
        raise InputError(f"{name}.stride", tensor.shape, "has rows at equal distances", "pass a dense tensor") from None


def _reshaped(array: Any) -> Any:
    found = array.view()
    found.shape = (-1, array.shape[-1])  # raises what a copy would be needed for
    return found
