"""Schedules that are a `Gemm` with other tiles, another mainloop or other loads, among them Conv and ClusterSplitK."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tmapipe import math as functions
from tmapipe.barrier import Role
from tmapipe.base import MulticastGroup
from tmapipe.base.arithmetic import Dim, as_dtype, ceil_div
from tmapipe.base.tma_rules import Windows
from tmapipe.bind import check_kind
from tmapipe.bind.tensors import match, new_like
from tmapipe.epilogue import Epilogue
from tmapipe.errors import InputError, check_bool, check_type, is_count, require
from tmapipe.kernel import KernelContext
from tmapipe.parts import ClusterSum, Wgmma
from tmapipe.plan.model import Plan
from tmapipe.protocol.tile import Tile
from tmapipe.schedules import mainloop
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.mainloop import Cooperative, Operand
from tmapipe.stage import Im2colLoadStage, TmaLoadStage
from tmapipe.tiles import GroupedTiles, SplitKTiles, StreamKTiles
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.persistent import Grouped, PersistentTiles, Triangle

# ---- gated -----------------------------------------------------------------------------------------------------------
#
# GatedGemm: two products of the same a, combined in the epilogue, as in a gated feed-forward layer (SwiGLU).
#
# load (1 warp)        a, gate, up of k-tile 0, 1, 2, ...    -> ring of slots
# math (warpgroups)    two wgmma on the slot, into two accumulators; then epilogue(gate, up) -> TMA store


def swiglu(gate: Any, up: Any) -> Any:
    """silu(gate) * up."""
    return functions.silu(gate) * up


class GatedGemm(Gemm):
    """``d[m, n] = epilogue(a gate^T, a up^T)``, with a [m, k], and gate and up [n, k].

    Each may have a batch dimension before these. Weights that lie one after the other in one tensor w [2 n, k] are passed as
    ``w[:n], w[n:]``. Raises `InputError` if *epilogue* is None.

    Args:
        tile: (m, n, k) elements of a CTA. Both accumulators must fit in the warpgroups' registers: n is at most 192 of
            m = 64, 184 of 128, 112 of 192 and 88 of 256, or if sums are promoted, 128, 128, 80 and 56 (in k-tiles of 256
            bytes, 112, 112, 72 and 56).
        cluster: CTAs along (m, n).
        stages: Slots of a, gate and up; None: as many as fit.
        epilogue: A function of the two sums in fp32, element by element, or an `Epilogue`, as of `Gemm`.
        options: a, b (for gate and up), mainloop and tiles, as of `Gemm`; not in parts of k.
    """

    products = {"gate_mma": "gate", "up_mma": "up"}  # noqa: RUF012 - never changed

    def __init__(
        self,
        tile: tuple[int, int, int] = (128, 128, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        epilogue: Epilogue | Callable[..., Any] = swiglu,
        **options: Any,
    ):
        require(epilogue is not None, "epilogue", None, "combines both sums", "leave it out for swiglu")
        given = Epilogue.of(epilogue)
        if given.function is None:  # the type of d alone, say
            given = attrs.evolve(given, function=swiglu)
        super().__init__(tile, cluster, stages, epilogue=given, **options)


# ---- symmetric -------------------------------------------------------------------------------------------------------
#
# SymmetricGemm: of a symmetric product, the tiles at and below the diagonal. Their transposes are the others.


class SymmetricGemm(Gemm):
    """``d[m, n] = epilogue(sum over k of a[m, k] * b[n, k])``, which is symmetric; x x^T of one x: ``SymmetricGemm()(x)``.
    Half of the tiles are computed, and stored twice. That d is symmetric is not checked. It is of 16 bits.

    Args:
        tile, cluster, stages: As of `Gemm`. The tiles of a cluster together are square, of a multiple of 64.
        tiles: An order by `Triangle`, e.g. ``GpcTiles(Triangle(8))``; `InputError` for another.
        options: mainloop, by default `PingPong`, and epilogue, as of `Gemm`, with one output, in pieces of 64 columns.
    """

    def __init__(
        self,
        tile: tuple[int, int, int] = (128, 128, 64),
        cluster: tuple[int, int] = (1, 1),
        stages: int | None = None,
        *,
        tiles: TileOrder = PersistentTiles(Triangle(8)),  # noqa: B008 - immutable
        **options: Any,
    ):
        ordered, outputs = getattr(tiles, "lower", True), getattr(options.get("epilogue"), "outputs", {})
        require(ordered, "tiles", tiles, "is an order by Triangle", "e.g. PersistentTiles(Triangle(8))")
        require(not outputs, "epilogue.outputs", [*outputs], "is empty: d alone is stored twice", "use Gemm()(x, x)")
        super().__init__(tile, cluster, stages, tiles=tiles, **{"mainloop": mainloop.PingPong(), **options})

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """As of `Gemm`, of a, or of a and b. d is named, or is `out`; so are operands."""
        alone = {"b": tensors[0] if tensors else named.get("a")} if len(tensors) < 2 else {}
        return super().__call__(*tensors, out=out, **{**alone, **named})

    def store(self, k: KernelContext, tile: Tile, sums: Any) -> None:
        """As `Gemm` does, and off the diagonal the transpose too."""
        of_m, of_n = (tile[dim] // self.cluster[dim] for dim in "mn")
        self.store_all(k, tile, sums.accumulators, mirror=of_m != of_n)


# ---- grouped ---------------------------------------------------------------------------------------------------------
#
# GroupedGemm: one matrix b for each group of rows of a, as in a mixture of experts.


class GroupedGemm(Gemm):
    """``d[i, n] = epilogue(sum over k of a[i, k] * b[g, n, k])``: `Gemm` with ``tiles=GroupedTiles(raster)``.

    Row i belongs to group g if it is before ``offsets[g]`` and not before ``offsets[g - 1]``. a [m, k] and d [m, n] hold the
    rows of all groups, one group after another. b [l, n, k] has a matrix for each group. offsets [l], int32, says where the
    rows of each group end, ascending, on the same device; nothing waits for its values. Groups may be empty. Rows from the
    last offset on are left as they are. Matrices of the epilogue are [m, n], as d is::

        d = GroupedGemm()(tokens, weights, offsets)

    Args:
        tile: (m, n, k) elements of a CTA.
        cluster: CTAs along (m, n). The rows of a group are padded to whole tiles of a cluster, so clusters along m only pay
            for large groups.
        stages: Slots of a and b; None: as many as fit.
        raster: Numbers the output tiles.
        options: a, b, mainloop and epilogue, as of `Gemm`; no sums of rows or columns.
    """

    def __init__(
        self,
        tile: tuple[int, int, int] = (128, 256, 64),
        cluster: tuple[int, int] = (1, 2),
        stages: int | None = None,
        *,
        raster: Grouped = Grouped(8),  # noqa: B008 - immutable
        **options: Any,
    ):
        super().__init__(tile, cluster, stages, tiles=GroupedTiles(raster), **options)


# ---- pingpong --------------------------------------------------------------------------------------------------------
#
# PingPong: a GEMM of two warpgroups on two output tiles, so that one's epilogue runs under the other's mainloop.


class PingPong(Gemm):
    """`Gemm` with ``mainloop=tp.mainloop.PingPong(promote, in_turn, along=along)``.

    Args:
        tile: (m, n, k) elements of a CTA, whose accumulators fit in one warpgroup: up to 64 x 256 or 128 x 192.
        cluster: CTAs along (m, n).
        stages: Slots of a and b; None: as many as fit.
        promote, in_turn, along: As of `tmapipe.mainloop.PingPong`.
        options: a, b, epilogue and tiles, as of `Gemm`.
    """

    math = Role(warpgroups=2, teams=2)

    def __init__(
        self,
        tile: tuple[int, int, int] = (128, 128, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        promote: bool = False,
        in_turn: bool = True,
        along: str | None = None,
        **options: Any,
    ):
        super().__init__(tile, cluster, stages, mainloop=mainloop.PingPong(promote, in_turn, along=along), **options)


# ---- splitk ----------------------------------------------------------------------------------------------------------
#
# SplitK: a GEMM whose k is shared among CTAs, for outputs of few tiles and long k.


class SplitK(Gemm):
    """`Gemm` with ``tiles=SplitKTiles(parts, tiles, reduce=reduce)``: of two matrices, or, where the epilogue has no operands
    and parts are not added to d, of batches of these.

    Args:
        parts: How many parts k is divided into.
        tile: (m, n, k) elements of a CTA.
        cluster: CTAs along (m, n).
        stages: Slots of a and b; None: as many as fit.
        tiles: The order in which the tiles of all parts are taken.
        reduce: None: a second kernel adds the parts in a fixed order, and applies the epilogue. "add": the TMA engine adds
            them to d, fp32 by default, as they arrive.
        options: a, b and epilogue, as of `Gemm`.
    """

    def __init__(
        self,
        parts: int,
        tile: tuple[int, int, int] = (128, 128, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        tiles: TileOrder = PersistentTiles(),  # noqa: B008 - immutable
        reduce: str | None = None,
        **options: Any,
    ):
        super().__init__(tile, cluster, stages, tiles=SplitKTiles(parts, tiles, reduce=reduce), **options)


# ---- streamk ---------------------------------------------------------------------------------------------------------
#
# StreamK: a GEMM in which every CTA does the same number of k-tiles, whatever the number of output tiles.


class StreamK(Gemm):
    """`Gemm` of two matrices, with ``tiles=StreamKTiles(raster, shares=shares, reduce=reduce)``.

    For outputs of few tiles, since the workspace has an fp32 matrix for each piece of a tile.

    Args:
        shares: How many shares all k-tiles are divided into: the CTAs that work at once, divided by those of a cluster.
        tile: (m, n, k) elements of a CTA.
        cluster: CTAs along (m, n).
        stages: Slots of a and b; None: as many as fit.
        raster: Numbers the output tiles.
        reduce: As of `SplitK`.
        options: a, b and epilogue, as of `Gemm`.
    """

    def __init__(
        self,
        shares: int,
        tile: tuple[int, int, int] = (128, 256, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        raster: Grouped = Grouped(),  # noqa: B008 - immutable
        reduce: str | None = None,
        **options: Any,
    ):
        super().__init__(tile, cluster, stages, tiles=StreamKTiles(raster, shares=shares, reduce=reduce), **options)


# ---- clustersplitk ---------------------------------------------------------------------------------------------------
#
# ClusterSplitK: a GEMM whose k is shared among the CTAs of a cluster, which add their sums through shared memory.
#
# load (1 warp)       k-tiles of this CTA's part  -> ring of slots math (warpgroups)   wgmma; then each CTA sends its
# peers their columns of the sums, adds those that it gets, and stores


class ClusterSplitK(Gemm):
    """`Gemm` in which the CTAs of a cluster compute one output tile from different parts of k.

    For outputs of very few tiles and long k: there is no workspace and no second kernel. Sums are added in the order of the
    CTAs, so the bits are the same in every run. With ``tiles=SplitKTiles(4)`` each tile is computed by four clusters, whose
    sums end as those of `SplitK`. Raises `InputError` for *parts*, a mainloop or an order that are not as below.

    Args:
        parts: How many parts k is divided into: CTAs of a cluster. Each stores n / parts columns of a tile, a multiple of 8
            up to 64.
        tile: (m, n, k) elements of a cluster's output tile and a k-tile; m is 64, 128 or 192.
        along_m: Output tiles of a cluster, below each other: they share each load of b.
        stages: Slots of a and b; None: as many as fit.
        mainloop: `Cooperative`, whose warpgroups share rows.
        tiles: The order of output tiles, or `SplitKTiles`.
        options: a, b and epilogue, as of `Gemm`.
    """

    load, math = Gemm.load, Gemm.math
    shared = {"a": None, "b": "m"}  # noqa: RUF012 - never changed
    turns = False

    def __init__(
        self,
        parts: int,
        tile: tuple[int, int, int] = (64, 64, 64),
        along_m: int = 1,
        stages: int | None = None,
        *,
        mainloop: Cooperative = Cooperative(),  # noqa: B008 - immutable
        tiles: TileOrder = PersistentTiles(),  # noqa: B008
        **options: Any,
    ):
        require(is_count(parts), "ClusterSplitK(parts)", parts, "is how many CTAs of a cluster share k", "use 8")
        if not isinstance(mainloop, Cooperative) or mainloop.along == "n":
            rule = "is one whose warpgroups share the rows of a tile"
            raise InputError("mainloop", mainloop, rule, 'use Cooperative(), with along="m"')
        check_type("tiles", tiles, TileOrder, "e.g. PersistentTiles(Snake(8))")
        if tiles.bounded or (tiles.in_parts and not isinstance(tiles, SplitKTiles)):
            raise InputError("tiles", tiles, "is an order of whole tiles, or SplitKTiles", "leave it out")
        self.parts, self.clusters = parts, tiles.parts if isinstance(tiles, SplitKTiles) else 1
        options["mainloop"] = mainloop
        super().__init__(tile, (along_m, parts), stages, tiles=tiles, **options)

    def check_plan(self, plan: Plan) -> None:
        if plan.matmul("mma").b.dtype.integer:
            raise InputError("a", plan.matmul("mma").b.dtype.name, "is of a type whose sums are in fp32", "use SplitK")
        super().check_plan(plan)

    def _declare_products(self, a: Operand, b: Operand, m: int, n: int, k: int) -> None:
        super()._declare_products(a, b, m, n, k)
        mma: Any = vars(self)["mma"]
        self.total = ClusterSum(self.math, mma, "n", self.parts)
        self.sources = (self.total,)

    def tile_slots(self, k: KernelContext, tile: Tile) -> Any:
        """k-tiles of each part, as many in all: the last ones may lie beyond the end, where loads give zeros."""
        return ceil_div(k.steps("a", "k"), self.parts * self.clusters)

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        m, n, width = k.plan.matmul("mma").shape
        steps = self.tile_slots(k, tile)
        part = tile.n % self.parts + (0 if self.clusters == 1 else tile.s % self.clusters * self.parts)
        for step in range(steps):
            with k.ring.produce() as slot:
                for name, starts in (("a", {"m": tile.m * m}), ("b", {"n": tile.n // self.parts * n})):
                    at = {"l": tile.l, "k": (part * steps + step) * width, **starts}
                    getattr(slot, name).load_from(*(at[dim] for dim in getattr(self, name).dims))

    @math.jit
    def multiply(self, k: KernelContext, tile: Tile) -> None:
        k.total.start()
        with k.mma.accumulate(empty=False) as acc:
            for _ in range(self.tile_slots(k, tile)):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
        self.store_all(k, tile, (k.total.add(acc),))


# ---- conv ------------------------------------------------------------------------------------------------------------
#
# Conv: convolutions as matmuls, whose first operand is loaded window by window.
#
# load (1 warp)        for each element of a window and each k-tile of channels: a, b -> ring of slots, im2col
# math (warpgroups)    as in `Gemm`


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
        tf32: Whether x and f are fp32, and are rounded to tf32 as they are loaded.

    Raises:
        InputError: For parts that do not go together, or that cannot be planned.
    """

    load, math = Gemm.load, Gemm.math
    turns = False

    def __init__(
        self,
        windows: Windows,
        tile: tuple[int, int, int] = (128, 128, 64),
        cluster: tuple[int, int] = (1, 1),
        stages: int | None = None,
        *,
        mainloop: Cooperative | mainloop.PingPong = Cooperative(),  # noqa: B008 - immutable
        epilogue: Epilogue | Callable[..., Any] | None = None,
        tiles: TileOrder = PersistentTiles(),  # noqa: B008
        tf32: bool = False,
    ):
        check_bool("Conv(tf32)", tf32)
        if not isinstance(windows, Windows):
            raise InputError("Conv(windows)", windows, "is a Windows", "e.g. Windows((3, 3), padding=1)")
        if getattr(mainloop, "along", None) == "n":
            raise InputError("Conv(mainloop)", mainloop, "shares tiles along m", 'leave out along="n"')
        if isinstance(tiles, TileOrder) and (tiles.in_parts or tiles.table):
            raise InputError("Conv(tiles)", tiles, "is an order of whole tiles", "e.g. PersistentTiles(Snake(8))")
        self.windows_of_images, self.rounded = windows, "tf32" if tf32 else None
        rank = len(windows.size)
        self.image_dims, self.window_dims = tuple(IMAGE[-rank:]), tuple(WINDOW[-rank:])
        self.relations = tuple(Dim(name, size=n) for name, n in zip(self.window_dims, windows.size, strict=True))
        super().__init__(tile, cluster, stages, mainloop=mainloop, epilogue=epilogue, tiles=tiles)

    def _declare_products(self, a: Operand, b: Operand, m: int, n: int, k: int) -> None:
        images, ones = " ".join(self.image_dims), (1,) * len(self.window_dims)
        (of_a, of_b), windows = map(MulticastGroup, "nm"), self.windows_of_images
        how: dict[str, Any] = {"ring": self.ring, "dtype": self.rounded}
        self.a = Im2colLoadStage(f"i {images} c", tile=(m, k), windows=windows, multicast=of_a, **how)
        dims = " ".join(("n", *self.window_dims, "c"))
        self.b = TmaLoadStage(dims, tile=(n, *ones, k), multicast=of_b, **how)
        self.mma = Wgmma(self.a, self.b, promote=self.mainloop.promote)
        self.sources = (self.mma,)
        self.tile_extents = m, n, k

    one_kernel = False  # nor one view of its tensors

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Runs the schedule as `Schedule.__call__` does: x, f, then d, by position or by name (a, b, d); then operands.

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
