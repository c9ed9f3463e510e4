"""DequantGemm, a GEMM whose weights have 8 or 4 bits, and DequantGemv, which is that of few rows."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base import MulticastGroup
from tmapipe.base.arithmetic import Dim, ceil_div, fp32
from tmapipe.bind import Bound, check_kind
from tmapipe.bind.tensors import match, new_like
from tmapipe.epilogue import Epilogue, Reductions
from tmapipe.epilogue.operands import PerColumn
from tmapipe.errors import InputError, check_numbers, is_count, require
from tmapipe.kernel import KernelContext
from tmapipe.parts import RegisterTile, SharedStage, Wgmma
from tmapipe.protocol.matmuls import WEIGHTS
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.fused import adding_rows
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.mainloop import Cooperative, Operand, in_shares
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage
from tmapipe.tiles import SplitKTiles
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.persistent import Grouped, PersistentTiles

# ---- weights of 4 bits -----------------------------------------------------------------------------------------------


PACKED = 32  # elements along k, whose 4 bits are 16 bytes


def _packed(values: Any, least: int, most: int) -> Any:
    """As `DequantGemm.pack_int4`, of integers from *least* to *most*."""
    check_kind("pack_int4(values)", values)
    k = values.shape[-1] if values.ndim else 0
    if not k or k % PACKED:
        rule = f"has k, the last extent, a multiple of {PACKED}"
        raise InputError("pack_int4(values).shape", tuple(values.shape), rule, "pad with zeros")
    of_torch = hasattr(values, "data_ptr")
    wide = values.int() if of_torch else values.astype("int32")
    if 0 not in values.shape:
        inside = least <= wide.min() <= wide.max() <= most
        said, rule = f"{values.min()} to {values.max()}", f"are integers from {least} to {most}"
        require(inside and (wide == values).all(), "pack_int4(values)", said, rule, "round and clamp them")
    units = wide.reshape(*values.shape[:-1], k // PACKED, 2, 2, 4, 2) & 15  # element 16 c + 8 h + 2 q + i
    halves = units[..., 0, :, :] | units[..., 1, :, :] << 4
    moved = halves.permute if of_torch else halves.transpose
    first = range(halves.ndim - 3)
    packed = moved(*first, -2, -1, -3).reshape(*values.shape[:-1], k // 2)
    signed = packed - ((packed & 128) << 1)
    return signed.char() if of_torch else signed.astype("int8")


# ---- dequantgemm -----------------------------------------------------------------------------------------------------
#
# DequantGemm: a GEMM whose weights have 8 or 4 bits, and become bf16 or fp16 in registers.
#
# load (1 warp)        weights of k-tile 0, 1, 2, ... -> ring `narrow`, free again as soon as they are read; its a -> ring
# math (warpgroups)    while the tensor core multiplies a k-tile, the weights of the next one are converted
#
# The output is transposed: 64 columns of d, which are rows of weights, for each warpgroup. So weights are the operand that
# wgmma takes from registers, and what the warpgroups convert is never written to shared memory.


SPANS = 128, 64, 32  # of swizzles, bytes
#: Rows of a tile, above which weights of slots of up to so many elements along k are read before the matmul of the slot before
#: starts. With slots of 128, that takes 4 to 20 % longer.
AHEAD = 128, 64
SLOTS = 6  # of weights: with 10 or 12, few rows took between 1 % less and 3 % more than with 8
ROOM = 180 << 10  # bytes of shared memory for slots


class DequantGemm(Gemm):
    """``d[m, n] = epilogue(sum over k of a[m, k] * (b[n, k] - zero) * scale)``: a is bf16 or fp16, and so is what a weight
    becomes: scales of groups, and zero times scale, are rounded to a's type, and then each weight once. Sums are in fp32.

    b is [n, k] of int8 or fp8. Of 4 bits it is [n, k / 2] of int8: of each 32 elements along k, byte 4 q + 2 i + c of 16 has
    element 16 c + 2 q + i in its low half, and the element 8 further on in its high half (`pack_int4` makes it so). scale is
    [n], or [k / group, n]; so is zero. Both are of any floating type::

        d = DequantGemm("int4", group=128, zeros=True)(a, b, scale, zero)

    Args:
        weights: What b has: "int8", "int4" (from -8 to 7), "uint4" (from 0 to 15), "fp8_e4m3" or "fp8_e5m2".
        tile: (m, n, k) elements of a CTA; n is 64 for each of one to four warpgroups, k a multiple of 32.
        cluster: CTAs along (m, n).
        stages: Slots of a, and as many of b. None: 6 of b, and of a as many as fit, or of small tiles 6.
        group: Elements along k that share a scale: a multiple of those of a tile, or of 32 and dividing those. None: all, and
            d's columns are scaled.
        zeros: Whether something is subtracted from weights before they are scaled.
        epilogue: As of `Gemm`, whose further outputs are sums; "scale" is no name of an operand.
        tiles: The order of output tiles, which may be `SplitKTiles`.

    Raises:
        InputError: For parts that do not go together, or that cannot be planned.
    """

    load, math = Gemm.load, Gemm.math
    ahead = False  #: whether weights are read before the matmul of the slot before starts
    parts = 1  #: rows of scales that weights of a slot have, below each other

    def __init__(
        self,
        weights: str = "int8",
        tile: tuple[int, int, int] = (256, 128, 64),
        cluster: tuple[int, int] = (1, 2),
        stages: int | None = None,
        *,
        group: int | None = None,
        zeros: bool = False,
        epilogue: Epilogue | Callable[..., Any] | None = None,
        tiles: TileOrder = PersistentTiles(),  # noqa: B008 - immutable
    ):
        self._take(weights, group, zeros)
        k = tile[2] if isinstance(tile, (tuple, list)) and len(tile) == 3 else 0
        if is_count(k) and k % PACKED:
            raise InputError("tile[2]", k, f"is a multiple of {PACKED} elements along k", "e.g. 64")
        fits = group is None or is_count(group)
        if group and fits and is_count(k):
            fits = group % k == 0 or (k % group == 0 and group % PACKED == 0)
        rule = f"is a multiple of the {k} elements along k of a tile, or of {PACKED} and divides them"
        require(fits, "DequantGemm(group)", group, rule, "use other groups, or tiles of other elements along k")
        if k and tile[1] not in (64, 128, 192, 256):
            raise InputError("tile[1]", tile[1], "is 64 for each of one to four warpgroups", "use 64, 128, 192 or 256")
        whole = isinstance(tiles, SplitKTiles) or not (isinstance(tiles, TileOrder) and tiles.in_parts)
        if not whole or (isinstance(tiles, TileOrder) and (tiles.bounded or tiles.table)):
            raise InputError("tiles", tiles, "is an order of whole tiles, or SplitKTiles", "leave it out")
        self.relations = (
            *((Dim("bytes", of="k", per=2),) if self.bits == 4 else ()),
            *((Dim("g", of="k", per=group),) if group else ()),
        )
        self.slots = stages or SLOTS
        if stages is None and k:  # of small tiles no more
            of_weights = k * tile[1] * self.bits // 8
            stages = None if self.slots * (2 * k * tile[0] + of_weights) > ROOM else self.slots
        epilogue = epilogue if group else scaled(Epilogue.of(epilogue), self.kind)
        self.math = Role(warpgroups=tile[1] // 64) if k else self.math
        super().__init__(tile, cluster, stages, mainloop=Cooperative(along="n"), epilogue=epilogue, tiles=tiles)

    def _take(self, weights: str, group: int | None, zeros: bool) -> None:
        rule = f"is one of {', '.join(WEIGHTS)}"
        require(weights in WEIGHTS, "DequantGemm(weights)", weights, rule, 'e.g. "int8"')
        require(isinstance(zeros, bool), "DequantGemm(zeros)", zeros, "is True or False", "leave it out")
        self.weights, self.group, self.zeros = weights, group, zeros

    @property
    def bits(self) -> int:
        """Of a weight."""
        return 4 if self.weights.endswith("int4") else 8

    @property
    def kind(self) -> str:
        """What weights are converted to: 64th parts, if columns of d are scaled anyway, and that takes fewer instructions."""
        return f"{self.weights}/64" if "int" in self.weights and not self.group and not self.zeros else self.weights

    def _declare_products(self, a: Operand, b: Operand, m: int, n: int, k: int) -> None:
        across, down = self.cluster["n"], self.cluster["m"]
        self.a = a.stage("m", m, k, ring=self.ring, batch=self.tiles.input_dims, multicast="n", peers=across)
        self.narrow = ring = BarrierRing(self.slots, producer=self.load, consumer=self.math)
        dims, dtype = ("n bytes", "int8") if self.bits == 4 else ("n k", self.weights)
        shared = MulticastGroup("m", whole=not in_shares(n, down))
        row = k * self.bits // 8
        span = next((span for span in SPANS if row % span == 0), 0)  # a warp reads 8 rows at once
        self.b = TmaLoadStage(f"l {dims}", tile=(n, row), ring=ring, dtype=dtype, multicast=shared, swizzle=span)
        self.groups = max(1, k // self.group) if self.group else 1  # of a slot
        numbers, few = ("l g n", (self.groups, n)) if self.group else ("n", (n,))
        if self.group:
            self.scale = TmaLoadStage(numbers, tile=few, ring=ring)
        if self.zeros:
            self.zero = TmaLoadStage(numbers, tile=few, ring=ring)
        self.weight = RegisterTile(self.math, (n, k), dims="n k")
        self.mma = Wgmma(self.weight, self.a, in_flight=1)
        self.ahead = m > AHEAD[0] and k <= AHEAD[1]
        self.sources = (self.mma,)
        self.loaded, self.transposed = ("a", "b"), ("a",) * a.transposed

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Runs the schedule as `Schedule.__call__` does: a, b, scale, zero if there is one, then d, by position or by name;
        operands by name."""
        given = self._given(tensors, named, out)
        return super().__call__(out=given.pop("d", None), **given)

    def _given(self, tensors: tuple[Any, ...], named: dict[str, Any], out: Any) -> dict[str, Any]:
        names = ["a", "b", "scale", *(("zero",) if self.zeros else ()), "d"]
        others = {name: each for name, each in named.items() if name not in names}
        return match(names, tensors, {name: named[name] for name in names if name in named}, out, "d") | others

    def pack_int4(self, values: Any) -> Any:
        """Integers of 4 bits as the schedule takes them: [..., k] as [..., k / 2] of int8.

        Args:
            values: Torch tensor or NumPy array of integers, from -8 to 7 for "int4", from 0 to 15 for "uint4"; k is a multiple
                of 32. (On a GPU, this waits for them.)

        Raises:
            InputError: It is something else, or the schedule's weights have 8 bits.
        """
        require(
            self.bits == 4, "weights", self.weights, 'are "int4" or "uint4", which are packed', "pass them as they are"
        )
        return _packed(values, *((-8, 7) if self.weights == "int4" else (0, 15)))

    # ---- bodies -----------------------------------------------------------------------------------------------------

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        first = tile.get("first") or 0
        for step in range(self.tile_slots(k, tile)):
            with k.narrow.produce() as few:  # which the warpgroups take first
                self._load_weights(few, tile, first + step)
            with k.ring.produce() as slot:
                slot.a.load(tile, k=first + step)

    def _load_weights(self, slot: Any, tile: Tile, step: Any) -> None:
        if self.bits == 4:
            slot.b.load(tile, bytes=step)
        else:
            slot.b.load(tile, k=step)
        if self.group:
            slot.scale.load(tile, g=self._group_of(step))
        if self.zeros and self.group:
            slot.zero.load(tile, g=self._group_of(step))
        elif self.zeros:
            slot.zero.load(tile)

    def _group_of(self, step: Any) -> Any:
        return step // max(1, (self.group or 1) // self.weight.shape[1])

    def _read(self, k: KernelContext, acc: Any, few: Any) -> tuple[Any, ...]:
        """The weights of a slot, as `Accumulator.widened` takes them."""
        zero = self._of_rows(k, few.zero) if self.zeros else ()
        scale = self._of_rows(k, few.scale) if self.group else ()
        return acc.raw(few.b, self.kind), self.kind, zero, scale

    def _of_rows(self, k: KernelContext, part: Any) -> tuple[Any, ...]:
        """A number for each row of weights, of each group in a slot."""
        like = k.full("weight", 0)
        return tuple(part.read(rows_of=like, at=i * self.parts) for i in range(self.groups))

    def _add(self, k: KernelContext, acc: Any) -> None:
        """Starts the matmul of the next slots."""
        with k.ring.consume() as slot:
            with k.narrow.consume() as few:
                weights = acc.widened(*self._read(k, acc, few))
            acc.add(weights, slot.a)

    def _add_ahead(self, k: KernelContext, acc: Any, weights: Any) -> Any:
        """Reads the weights of a slot, starts the matmul of *weights*, and converts those meanwhile."""
        with k.narrow.consume() as few:
            read = self._read(k, acc, few)
            with k.ring.consume() as slot:
                acc.add(weights, slot.a)
        return acc.widened(*read)

    def _add_all(self, k: KernelContext, acc: Any, steps: Any) -> None:
        if not self.ahead:
            for _ in range(steps // 2):  # two at a time, each with registers of its own for the weights
                self._add(k, acc)
                self._add(k, acc)
            if steps % 2 > 0:
                self._add(k, acc)
            return
        with k.narrow.consume() as few:
            weights = acc.widened(*self._read(k, acc, few))
        for _ in range((steps - 1) // 2):
            weights = self._add_ahead(k, acc, weights)
            weights = self._add_ahead(k, acc, weights)
        with k.ring.consume() as slot:
            acc.add(weights, slot.a)
        if (steps - 1) % 2 > 0:
            self._add(k, acc)

    @math.jit
    def multiply(self, k: KernelContext, tile: Tile) -> None:
        steps = self.tile_slots(k, tile)
        with k.mma.accumulate(empty=self.tiles.without_steps) as acc:
            if not self.tiles.without_steps or steps > 0:
                self._add_all(k, acc, steps)
        self.store_all(k, tile, (acc,))


def scaled(epilogue: Epilogue, kind: str) -> Epilogue:
    """*epilogue* of sums whose columns are scaled before. kind: what weights were converted to."""
    if "scale" in epilogue.operands:
        raise InputError("operands['scale']", "scale", "is a name that the schedule has already", "rename it")
    parts = kind.endswith("/64")
    function = _of_scaled(epilogue.function, parts) if epilogue.function else _times_64 if parts else _times
    return attrs.evolve(epilogue, function=function, operands={"scale": PerColumn(), **epilogue.operands})


@functools.lru_cache(maxsize=256)  # one object of each function: schedules that are made alike are equal
def _of_scaled(function: Callable[..., Any], parts: bool) -> Callable[..., Any]:
    by = _times_64 if parts else _times
    return lambda acc, scale, **others: function(by(acc, scale), **others)


def _times(acc: Any, scale: Any) -> Any:
    return acc * scale


def _times_64(acc: Any, scale: Any) -> Any:
    return acc * (scale * 64.0)


# ---- dequantgemv -----------------------------------------------------------------------------------------------------
#
# DequantGemv: few rows of a, whose CTAs need no other CTA's sums.
#
# load (1 warp)        weights and a of all parts of k-tile 0, 1, 2, ... -> ring
# math (warpgroups)    a warp multiplies 16 rows of weights of one part; then all sums -> total (1 to 4 warps), which adds them
#
# Tensor cores multiply by mma.sync, which takes both operands from registers: so a lane reads 16 bytes of weights at once, and
# the elements of a that go with them, in whatever order they lie.


class DequantGemv(DequantGemm):
    """`DequantGemm` of few rows, whose warps share k: a slot has several parts of k, each of which has warps of its own. So
    outputs of few columns have CTAs for all multiprocessors, and no second kernel. a and b are matrices.

    Args:
        weights: As of `DequantGemm`.
        tile: (m, n, k): rows of a, columns of d (16 or 32), and elements along k of a part, which divide k: of 8 bits
            64 or 128, of 4 bits 128 or 256.
        parts: Parts of a slot: n * parts is 64 for each warpgroup, m * parts a multiple of 8, m * n of 32.
        ctas: How many CTAs share a multiprocessor.
        stages: Slots.
        group: Elements along k that share a scale: 16 bytes of weights or more, which divide those of a part. None: all.
        zeros: As of `DequantGemm`, with groups.
        epilogue: A function of the sums, element by element; None: d is the sums.

    Raises:
        InputError: For parts that do not go together, or that cannot be planned.
    """

    load, math, total = Gemm.load, Gemm.math, Role(warps=1)

    def __init__(
        self,
        weights: str = "int8",
        tile: tuple[int, int, int] = (16, 16, 128),
        parts: int = 4,
        ctas: int = 1,
        stages: int = SLOTS,
        *,
        group: int | None = None,
        zeros: bool = False,
        epilogue: Callable[..., Any] | None = None,
    ):
        self._take(weights, group, zeros)
        check_numbers("tile", tile, "(m, n, k)", (16, 16, 128))
        (m, n, k), row = tile, tile[2] * self.bits // 8
        fits = all(map(is_count, (*tile, parts))) and n in (16, 32)
        fits = fits and n * parts % 64 == m * parts % 8 == m * n % 32 == 0
        rule = "has n * parts a multiple of 64, m * parts of 8, m * n of 32, and n 16 or 32"
        require(fits, "DequantGemv(tile, parts)", (tile, parts), rule, "e.g. (16, 16, 128) and 4")
        require(row in SPANS[:2], "tile[2]", k, "is 128 or 64 bytes of weights", "e.g. 128")
        least = 128 // self.bits  # 16 bytes, which a lane reads at once
        whole = group is None or (is_count(group) and k % group == 0 and group >= least)
        rule = f"divides the {k} elements along k of a part, and is at least {least}"
        require(whole, "DequantGemv(group)", group, rule, "use DequantGemm")
        require(group or not zeros, "DequantGemv(zeros)", zeros, "goes with groups", "use DequantGemm")
        fused, rule = Epilogue.of(epilogue), "is a function of the sums, or None"
        require(not fused.operands and not fused.outputs, "DequantGemv(epilogue)", epilogue, rule, "use DequantGemm")
        self.epilogue, self.math = fused if group else scaled(fused, self.weights), Role(warpgroups=n * parts // 64)
        self.total = Role(warps=next(warps for warps in (4, 2, 1) if m * n % (64 * warps) == 0 or warps == 1))
        self.tile, self.parts, self.tiles, self.groups = tile, parts, GridTiles(Grouped(1), ctas), k // (group or k)
        same = [Dim(name, of="k", per=1) for name, has in (("bytes", self.bits == 4), ("g", group)) if has]
        fixed = [Dim(name, size=size) for name, size in (("e", k), ("f", row), ("h", self.groups))]
        self.relations = (*(fixed if group else fixed[:2]), *same)
        self.ring = ring = BarrierRing(stages, producer=self.load, consumer=self.math)
        self.a = TmaLoadStage("k m e", tile=(parts, m, k), ring=ring, swizzle=SPANS[0])
        dims, dtype = ("bytes n f", "int8") if self.bits == 4 else ("k n f", weights)
        self.b = TmaLoadStage(dims, tile=(parts, n, row), ring=ring, dtype=dtype, swizzle=row, l2_hint="evict_first")
        self.once = None if group else BarrierRing(1, producer=self.load, consumer=self.total)
        numbers, few = ("h g n", (self.groups, parts, n)) if group else ("n", (n,))
        self.scale = TmaLoadStage(numbers, tile=few, ring=self.once or ring)
        if zeros:
            self.zero = TmaLoadStage(numbers, tile=few, ring=ring)
        self.weight = RegisterTile(self.math, (n * parts, ceil_div(m, 8) * 8))
        self.sums = BarrierRing(1, producer=self.math, consumer=self.total)
        self.part = SharedStage(tile=(n * parts, ceil_div(m, 8) * 8), ring=self.sums, writer=self.math, dtype=fp32)
        self.d = ThreadStoreStage("m n", tile=(m, n), role=self.total, vector=2)
        self.reductions, self.operands = Reductions({}, adding_rows), None

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """As of `DequantGemm`."""
        given = self._given(tensors, named, out)
        apart = {"a": (1, self.tile[2]), "b": (1, self.b.tile[2])}  # dimension -> elements of a part
        apart |= {name: (0, self.groups) for name in given if name in ("scale", "zero") and self.group}
        for name, (dim, width) in apart.items():
            check_kind(name, given.get(name))
            shape, rule = tuple(given[name].shape), f"is a matrix, dimension {dim} of a multiple of {width} elements"
            require(len(shape) == 2 and shape[dim] % width == 0, f"{name}.shape", shape, rule, "use DequantGemm")
            view = given[name].reshape(*shape[:dim], shape[dim] // width, width, *shape[dim + 1 :])
            given[name] = view.transpose(0, 1) if hasattr(view, "data_ptr") else view.swapaxes(0, 1)
        if "d" not in given:
            given["d"] = new_like(given["a"], (given["a"].shape[1], given["b"].shape[1]))
        return Schedule.__call__(self, **given)

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        tile = tile.also(e=0, f=0, h=0)
        for step in range(self.tile_slots(k, tile)):
            with k.ring.produce() as slot:
                self._load_weights(slot, tile, step)
                slot.a.load(tile, k=step)
        if self.once is not None:
            with k.once.produce() as slot:
                slot.scale.load(tile)

    def _group_of(self, step: Any) -> Any:
        return step

    def empty_value(self, bound: Bound) -> Any:
        """The epilogue of empty sums."""
        scale = {} if self.once is None else {"scale": bound.array("scale").astype(np.float32)}
        return self.epilogue.values((np.zeros(bound.shapes["d"], np.float32),), scale)

    @math.jit
    def multiply(self, k: KernelContext, tile: Tile) -> None:
        sums = k.full("weight", 0.0)
        for _ in range(self.tile_slots(k, tile)):
            with k.ring.consume() as slot:
                zero = self._of_rows(k, slot.zero) if self.zeros else ()
                scale = self._of_rows(k, slot.scale) if self.group else ()
                sums = k.weight.products(slot.b, slot.a, sums, self.weights, self.parts, zero, scale)
        with k.sums.produce() as slot:
            slot.part.write(sums)

    @total.jit
    def add_parts(self, k: KernelContext, tile: Tile) -> None:
        with k.sums.consume() as slot:
            total = functools.reduce(operator.add, (self._part(slot, i) for i in range(self.parts)))
        if self.once is None:
            k.d.store(tile, total, self.epilogue.function)
        else:
            with k.once.consume() as slot:
                scale = slot.scale.read(tile=self.d.tile, pitch=0, at=0, width=1)  # the same in all rows
            assert self.epilogue.function is not None
            k.d.store(tile, self.epilogue.function(total, scale))

    def _part(self, slot: Any, i: int) -> Any:
        (m, n, _), pitch = self.tile, self.part.tile[1]
        return slot.part.read(tile=(m, n), pitch=pitch, at=(i * n * pitch,), transposed=True)
