"""DequantGemm, the GEMM whose weights have 8 or 4 bits, which become bf16 or fp16 in registers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs

from tmapipe.barrier import BarrierRing
from tmapipe.base.arithmetic import Dim
from tmapipe.base.tensor_map import MulticastGroup
from tmapipe.bind.bound import check_kind
from tmapipe.bind.tensors import match
from tmapipe.epilogue import Epilogue
from tmapipe.epilogue.operands import PerColumn
from tmapipe.errors import InputError, is_count
from tmapipe.kernel import KernelContext
from tmapipe.parts.matmul import RegisterTile, Wgmma
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.mainloop import Cooperative, Operand, in_shares
from tmapipe.stage import TmaLoadStage
from tmapipe.tiles.grouped import SplitKTiles
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.persistent import PersistentTiles

# load (1 warp)        a of k-tile 0, 1, 2, ...  -> ring; its weights -> ring `narrow`, free again as soon as they are read
# math (warpgroups)    while the tensor core multiplies a k-tile, the weights of the next one are read and converted
#
# The output is transposed: 64 columns of d, which are rows of weights, for each warpgroup. So weights are the operand that
# wgmma takes from registers, and what the warpgroups convert is never written to shared memory.


WEIGHTS = ("int8", "int4", "uint4", "fp8_e4m3", "fp8_e5m2")
PACKED = 32  # elements along k, of which 16 bytes have those of the first half in their low bits
NARROW = 6
SPANS = 128, 64, 32  # of swizzles, bytes
MOST_SLOTS, SMALL = 6, 180 << 10  # slots of a ring by default; bytes of so many beside which all else has room


class DequantGemm(Gemm):
    """``d[m, n] = epilogue(sum over k of a[m, k] * (b[n, k] - zero) * scale)``: a is bf16 or fp16, and so is what a weight
    becomes, rounded once; sums are in fp32.

    b is [n, k] of int8 or fp8. Of 4 bits it is [n, k / 2] of int8: of each 32 elements along k, byte j of 16 has element j in
    its low half and element j + 16 in its high half (`pack_int4` makes it so). scale is [n], or [k / group, n]; so is zero.
    Both are of any floating type::

        d = DequantGemm("int4", group=128, zeros=True)(a, b, scale, zero)

    Args:
        weights: What b has: "int8", "int4" (from -8 to 7), "uint4" (from 0 to 15), "fp8_e4m3" or "fp8_e5m2".
        tile: (m, n, k) elements of a CTA; n is 64 for each of one, two or three warpgroups, k a multiple of 32.
        cluster: CTAs along (m, n).
        stages: Slots of a and b; None: as many as fit, at most 6 of small tiles.
        group: Elements along k that share a scale, a multiple of those of a tile; None: all, and d's columns are scaled.
        zeros: Whether something is subtracted from weights before they are scaled.
        epilogue: As of `Gemm`, without further outputs; "scale" is no name of an operand.
        tiles: The order of output tiles; `SplitKTiles` where there are neither groups nor zeros.

    Raises:
        InputError: For parts that do not go together, or that cannot be planned.
    """

    load, math = Gemm.load, Gemm.math

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
        if weights not in WEIGHTS:
            raise InputError("DequantGemm(weights)", weights, f"is one of {', '.join(WEIGHTS)}", 'e.g. "int8"')
        if not isinstance(zeros, bool):
            raise InputError("DequantGemm(zeros)", zeros, "is True or False", "leave it out")
        k = tile[2] if isinstance(tile, (tuple, list)) and len(tile) == 3 else 0
        if is_count(k) and k % PACKED:
            raise InputError("tile[2]", k, f"is a multiple of {PACKED} elements along k", "e.g. 64")
        if group is not None and not (is_count(group) and is_count(k) and group % k == 0):
            rule = f"is a multiple of the {k} elements along k of a tile"
            raise InputError("DequantGemm(group)", group, rule, "use such groups, or tiles of fewer elements along k")
        if k and tile[1] not in (64, 128, 192):
            rule = "is 64 for each of one, two or three warpgroups"
            raise InputError("tile[1]", tile[1], rule, "use 64, 128 or 192")
        in_parts = isinstance(tiles, SplitKTiles)
        if isinstance(tiles, TileOrder) and (tiles.bounded or tiles.table or (tiles.in_parts and not in_parts)):
            rule = "is an order of whole tiles, or SplitKTiles"
            raise InputError("tiles", tiles, rule, "leave it out")
        self.weights, self.group, self.zeros = weights, group, zeros
        self.relations = (
            *((Dim("bytes", of="k", per=2),) if self.bits == 4 else ()),
            *((Dim("g", of="k", per=group),) if group else ()),
        )
        if stages is None and k:  # of small tiles not as many as fit, which take long to prove
            each = k * (2 * tile[0] + tile[1] * self.bits // 8)
            stages = None if MOST_SLOTS * each > SMALL else MOST_SLOTS
        epilogue = epilogue if group else scaled(Epilogue.of(epilogue))
        super().__init__(tile, cluster, stages, mainloop=Cooperative(along="n"), epilogue=epilogue, tiles=tiles)

    @property
    def bits(self) -> int:
        """Of a weight."""
        return 4 if self.weights.endswith("int4") else 8

    def _declare_products(self, a: Operand, b: Operand, m: int, n: int, k: int) -> None:
        across, down = self.cluster["n"], self.cluster["m"]
        batch = self.tiles.input_dims
        self.a = a.stage("m", m, k, ring=self.ring, batch=batch, multicast="n", peers=across)
        self.narrow = ring = BarrierRing(NARROW, producer=self.load, consumer=self.math)
        dims, dtype = ("n bytes", "int8") if self.bits == 4 else ("n k", self.weights)
        shared = MulticastGroup("m", whole=not in_shares(n, down))
        row = k * self.bits // 8
        span = next((span for span in SPANS if row % span == 0), 0)  # a warp reads 8 rows at once
        self.b = TmaLoadStage(f"l {dims}", tile=(n, row), ring=ring, dtype=dtype, multicast=shared, swizzle=span)
        numbers = "l g n" if self.group else "n"
        if self.group:
            self.scale = TmaLoadStage(numbers, tile=(n,), ring=ring)
        if self.zeros:
            self.zero = TmaLoadStage(numbers, tile=(n,), ring=ring)
        self.weight = RegisterTile(self.math, (n, k), dims="n k")
        self.mma = Wgmma(self.weight, self.a, in_flight=1)
        self.sources: tuple[Any, ...] = (self.mma,)
        self.loaded, self.transposed = ("a", "b"), ("a",) * a.transposed

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Runs the schedule as `Schedule.__call__` does: a, b, scale, zero if there is one, then d, by position or by name;
        operands by name."""
        names = ["a", "b", "scale", *(("zero",) if self.zeros else ()), "d"]
        given = match(names, tensors, {name: each for name, each in named.items() if name in names}, out, "d")
        others = {name: each for name, each in named.items() if name not in names}
        return super().__call__(out=given.pop("d", None), **given, **others)

    @staticmethod
    def pack_int4(values: Any) -> Any:
        """Integers of 4 bits as the schedule takes them: [..., k] as [..., k / 2] of int8.

        Args:
            values: Torch tensor or NumPy array of integers, from -8 to 7 or from 0 to 15; k is a multiple of 32.

        Raises:
            InputError: It is something else.
        """
        check_kind("pack_int4(values)", values)
        k = values.shape[-1] if values.ndim else 0
        if not k or k % PACKED:
            rule = f"has k, the last extent, a multiple of {PACKED}"
            raise InputError("pack_int4(values).shape", tuple(values.shape), rule, "pad with zeros")
        of_torch = hasattr(values, "data_ptr")
        wide = values.int() if of_torch else values.astype("int32")
        halves = wide.reshape(*values.shape[:-1], k // PACKED, 2, PACKED // 2) & 15
        packed = (halves[..., 0, :] | halves[..., 1, :] << 4).reshape(*values.shape[:-1], k // 2)
        signed = packed - ((packed & 128) << 1)
        return signed.char() if of_torch else signed.astype("int8")

    # ---- bodies -----------------------------------------------------------------------------------------------------

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        first = tile.get("first") or 0
        for step in range(self.tile_slots(k, tile)):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=first + step)
            with k.narrow.produce() as few:
                self._load_weights(few, tile, first + step)

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
        assert self.group is not None
        return step // (self.group // self.weight.shape[1])

    def _widened(self, k: KernelContext, acc: Any, few: Any) -> Any:
        """The weights of a slot as operand of the matmul."""
        like: Any = k.full("weight", 0)
        zero = few.zero.read(rows_of=like) if self.zeros else None
        scale = few.scale.read(rows_of=like) if self.group else None
        return acc.widened(few.b, self.weights, zero, scale)

    def _add(self, k: KernelContext, acc: Any) -> None:
        """Starts the matmul of the next slots."""
        with k.ring.consume() as slot:
            with k.narrow.consume() as few:
                weights = self._widened(k, acc, few)
            acc.add(weights, slot.a)

    def _add_all(self, k: KernelContext, acc: Any, steps: Any) -> None:
        for _ in range(steps // 2):  # two at a time, each with registers of its own for the weights
            self._add(k, acc)
            self._add(k, acc)
        if steps % 2 > 0:
            self._add(k, acc)

    @math.jit
    def multiply(self, k: KernelContext, tile: Tile) -> None:
        steps = self.tile_slots(k, tile)
        with k.mma.accumulate(empty=self.tiles.without_steps) as acc:
            if not self.tiles.without_steps or steps > 0:
                self._add_all(k, acc, steps)
        self.store_all(k, tile, (acc,))


def scaled(epilogue: Epilogue) -> Epilogue:
    """*epilogue* of sums whose columns are scaled before."""
    if "scale" in epilogue.operands:
        raise InputError("operands['scale']", "scale", "is a name that the schedule has already", "rename it")
    function = _times if epilogue.function is None else _of_scaled(epilogue.function)
    return attrs.evolve(epilogue, function=function, operands={"scale": PerColumn(), **epilogue.operands})


@functools.lru_cache(maxsize=256)  # one object of each function: schedules that are made alike are equal
def _of_scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda acc, scale, **others: function(acc * scale, **others)


def _times(acc: Any, scale: Any) -> Any:
    return acc * scale
