"""DequantGemm, the GEMM whose weights have 8 or 4 bits, which become bf16 or fp16 in registers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import attrs

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import Dim, ceil_div
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
SPANS = 128, 64, 32  # of swizzles, bytes
LEAST_SLOTS, MOST_SLOTS = 6, 12  # of weights
IN_FLIGHT = 96 << 10  # bytes of weights on their way, a third more than keep DRAM busy (`tmapipe.schedules.rowform`)
ROOM = 180 << 10  # bytes of shared memory for slots


class DequantGemm(Gemm):
    """``d[m, n] = epilogue(sum over k of a[m, k] * (b[n, k] - zero) * scale)``: a is bf16 or fp16, and so is what a weight
    becomes, rounded once; sums are in fp32.

    b is [n, k] of int8 or fp8. Of 4 bits it is [n, k / 2] of int8: of each 32 elements along k, byte j of 16 has element j in
    its low half and element j + 16 in its high half (`pack_int4` makes it so). scale is [n], or [k / group, n]; so is zero.
    Both are of any floating type::

        d = DequantGemm("int4", group=128, zeros=True)(a, b, scale, zero)

    Args:
        weights: What b has: "int8", "int4" (from -8 to 7), "uint4" (from 0 to 15), "fp8_e4m3" or "fp8_e5m2".
        tile: (m, n, k) elements of a CTA; n is 64 for each of one to four warpgroups, k a multiple of 32.
        cluster: CTAs along (m, n).
        stages: Slots of a, and as many of b. None: 6 to 12 of b, and of a as many as fit, or of small tiles as of b.
        group: Elements along k that share a scale: a multiple of those of a tile, or of 32 and dividing those. None: all, and
            d's columns are scaled.
        zeros: Whether something is subtracted from weights before they are scaled.
        epilogue: As of `Gemm`, without further outputs; "scale" is no name of an operand.
        tiles: The order of output tiles, which may be `SplitKTiles`.

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
        fits = group is None or is_count(group)
        if group and fits and is_count(k):
            fits = group % k == 0 or (k % group == 0 and group % PACKED == 0)
        if not fits:
            rule = f"is a multiple of the {k} elements along k of a tile, or of {PACKED} and divides them"
            raise InputError("DequantGemm(group)", group, rule, "use other groups, or tiles of other elements along k")
        if k and tile[1] not in (64, 128, 192, 256):
            rule = "is 64 for each of one to four warpgroups"
            raise InputError("tile[1]", tile[1], rule, "use 64, 128, 192 or 256")
        in_parts = isinstance(tiles, SplitKTiles)
        if isinstance(tiles, TileOrder) and (tiles.bounded or tiles.table or (tiles.in_parts and not in_parts)):
            rule = "is an order of whole tiles, or SplitKTiles"
            raise InputError("tiles", tiles, rule, "leave it out")
        self.weights, self.group, self.zeros = weights, group, zeros
        self.relations = (
            *((Dim("bytes", of="k", per=2),) if self.bits == 4 else ()),
            *((Dim("g", of="k", per=group),) if group else ()),
        )
        self.slots = stages or LEAST_SLOTS
        if stages is None and k:  # of small tiles not as many as fit, which take long to prove
            of_weights = k * tile[1] * self.bits // 8
            self.slots = max(LEAST_SLOTS, min(MOST_SLOTS, IN_FLIGHT // of_weights))
            stages = None if self.slots * (2 * k * tile[0] + of_weights) > ROOM else self.slots
        epilogue = epilogue if group else scaled(Epilogue.of(epilogue))
        self.math = Role(warpgroups=tile[1] // 64) if k else self.math
        super().__init__(tile, cluster, stages, mainloop=Cooperative(along="n"), epilogue=epilogue, tiles=tiles)

    @classmethod
    def of(
        cls,
        shape: tuple[int, int, int],
        weights: str = "int8",
        *,
        group: int | None = None,
        zeros: bool = False,
        epilogue: Epilogue | Callable[..., Any] | None = None,
        multiprocessors: int = 132,
    ) -> DequantGemm:
        """The schedule with the form that a model finds fastest for a product (see `ranked`).

        Args:
            shape: (m, n, k) of the product.
            weights: As of the schedule, as group, zeros and epilogue.
            group: See there.
            zeros: See there.
            epilogue: See there.
            multiprocessors: Of the device.

        Raises:
            InputError: As the schedule raises it, or for a shape that is not three positive integers.
        """
        if not (isinstance(shape, (tuple, list)) and len(shape) == 3 and all(map(is_count, shape))):
            raise InputError(
                "DequantGemm.of(shape)", shape, "is (m, n, k), three positive integers", "e.g. (16, 4096, 4096)"
            )
        m, n, k = shape
        found = ranked((m, n, k), weights, group, zeros, multiprocessors)
        tile, cluster, parts = found[0] if found else ((256, 128, group or 64), (1, 2), 1)
        tiles = SplitKTiles(parts) if parts > 1 else PersistentTiles()
        return cls(weights, tile, cluster, group=group, zeros=zeros, epilogue=epilogue, tiles=tiles)

    @property
    def bits(self) -> int:
        """Of a weight."""
        return 4 if self.weights.endswith("int4") else 8

    def _declare_products(self, a: Operand, b: Operand, m: int, n: int, k: int) -> None:
        across, down = self.cluster["n"], self.cluster["m"]
        batch = self.tiles.input_dims
        self.a = a.stage("m", m, k, ring=self.ring, batch=batch, multicast="n", peers=across)
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
        return step // max(1, self.group // self.weight.shape[1])

    def _widened(self, k: KernelContext, acc: Any, few: Any) -> Any:
        """The weights of a slot as operand of the matmul."""
        zero = self._of_rows(k, few.zero) if self.zeros else ()
        scale = self._of_rows(k, few.scale) if self.group else ()
        return acc.widened(few.b, self.weights, zero, scale)

    def _of_rows(self, k: KernelContext, part: Any) -> tuple[Any, ...]:
        """A number for each row of weights, of each group in a slot."""
        like = k.full("weight", 0)
        return (
            tuple(part.read(rows_of=like, at=i) for i in range(self.groups))
            if self.group
            else (part.read(rows_of=like),)
        )

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


# ---- choice ----------------------------------------------------------------------------------------------------------
#
# Which form is fastest, by clocks of a multiprocessor. For each tile of k: those of the tensor cores, of the schedulers,
# which issue what converts the weights, and of L2 and DRAM. The longest counts; of the first two, also a quarter of the
# shorter one, which is not hidden.


Form = tuple[tuple[int, int, int], tuple[int, int], int]  #: tile, cluster, parts of k

PRODUCTS = (
    1780.0  # multiplications of bf16 a clock: 2048 (H100 data sheet) at the 0.87 that cuBLAS reaches for large products
)
INSTRUCTIONS = {"int8": 3.0, "fp8": 2.7, "int4": 1.7}  # a weight, counted in SASS (benchmarks.sass_loops)
SCALED, A_STEP = {"int8": 5.0, "fp8": 3.7, "int4": 4.0}, 60  # with groups or zeros; and a tile of k, of a warp
ISSUED = 0.7  # instructions a clock and scheduler, of one to four warps: 9 x 6016 x 13312, 4 x 10112 x 11904, H200
DRAM, L2 = 2280.0, 32.0  # bytes a clock: 4.0 TB/s at 1.755 GHz; and of one multiprocessor
LAUNCH, EPILOGUE = 5000, 3000  # clocks of a kernel, and of a tile besides its loop
ADDING = 4500  # clocks of the kernel that adds parts, besides its bytes
FEW_ROWS, MOST_PARTS = 64, 16


def ranked(
    shape: tuple[int, int, int],
    weights: str,
    group: int | None = None,
    zeros: bool = False,
    multiprocessors: int = 132,
) -> list[Form]:
    """Forms of `DequantGemm` for a product of *shape* (m, n, k), the fastest of the model first. Arguments as of
    `DequantGemm.of`."""
    m, n, k = shape
    if m <= FEW_ROWS:
        rows, spans = [ceil_div(m, 8) * 8], [(64, 64), (64, 128), (128, 64), (128, 128), (192, 128), (256, 64)]
    else:
        rows, spans = list(range(min(256, ceil_div(m, 8) * 8), 56, -8)), [(128, 64), (64, 64)]
    found = []
    for tm, (tn, tk), parts in itertools.product(rows, spans, range(1, MOST_PARTS + 1)):
        if group and group % tk and (tk % group or group % PACKED):
            continue
        cluster = (1, 2) if m > FEW_ROWS and n > tn else (1, 1)
        if parts > 1 and k // tk // parts < 2:
            continue
        found.append(
            (
                clocks(shape, ((tm, tn, tk), cluster, parts), weights, bool(group) or zeros, multiprocessors),
                -tm,
                parts,
                tn,
                tk,
                cluster,
            )
        )
    return [((-tm, tn, tk), cluster, parts) for _, tm, parts, tn, tk, cluster in sorted(found)]


def clocks(shape: tuple[int, int, int], form: Form, weights: str, scaled: bool, multiprocessors: int = 132) -> float:
    """What *form* takes, by the model. scaled: whether weights have groups or zeros. Other arguments as of `ranked`."""
    (m, n, k), ((tm, tn, tk), (_, across), parts) = shape, form
    bits = 4 if weights.endswith("int4") else 8
    each = (SCALED if scaled else INSTRUCTIONS)["int4" if bits == 4 else weights.split("_")[0]]
    down, right = ceil_div(m, tm), ceil_div(ceil_div(n, tn), across) * across
    tiles = down * right * parts
    waves, busy = ceil_div(tiles, multiprocessors), min(tiles, multiprocessors)
    tensor = tm * tn * tk / PRODUCTS
    issue = tn / 64 * (each * tk / 2 + A_STEP) / ISSUED
    few, of_a = tn * tk * bits / 8, 2 * tm * tk / across
    memory = max((few + of_a) / L2, few * busy / down / DRAM)
    step = max(tensor, issue, memory) + min(tensor, issue) / 4
    whole = LAUNCH + waves * (ceil_div(ceil_div(k, tk), parts) * step + EPILOGUE)
    return whole if parts == 1 else whole + ADDING + 8.0 * parts * m * n / DRAM
