"""Gemm, the warp-specialized GEMM for Hopper, and DequantGemm, whose weights have 8 or 4 bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import attrs

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base import MulticastGroup, check_cluster
from tmapipe.base.arithmetic import Dim
from tmapipe.bind import Bound, check_kind
from tmapipe.bind.tensors import match
from tmapipe.epilogue import ADD, Epilogue
from tmapipe.epilogue.operands import PerColumn
from tmapipe.errors import InputError, is_count, require
from tmapipe.isa.fragment import Carried
from tmapipe.kernel import KernelContext
from tmapipe.parts import RegisterTile, Table, Wgmma
from tmapipe.protocol.ring import Slot
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.fused import Fused
from tmapipe.schedules.mainloop import Cooperative, Operand, PartsOfK, PingPong, along_of, in_shares, summed_of
from tmapipe.stage import TmaLoadStage
from tmapipe.tiles import SplitKTiles
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.persistent import PersistentTiles

# ---- gemm ------------------------------------------------------------------------------------------------------------
#
# load (1 warp)        a, b of k-tile 0, 1, 2, ...  -> ring of slots, TMA, multicast over the cluster
# math (warpgroups)    wait, wgmma on the slot, release it one later; then accumulators -> epilogue -> smem -> TMA store
#
# Every CTA is persistent and takes output tiles in the order of `tiles`. The loader runs ahead into the next tile
# while the warpgroups still store the last one. The mainloop says how warpgroups share tiles.

# What the stages of a schedule follow from, of an order of tiles.
_SHAPING = ("in_parts", "bounded", "table", "input_dims", "output_dims", "without_steps")


class Gemm(Fused):
    """``d[m, n] = epilogue(sum over k of a[m, k] * b[n, k])``, with a batch dimension before each if the tensors have one.

    a and b are bf16, fp16, int8 (both the same), fp32 (as tf32), or fp8_e4m3 and fp8_e5m2 (also mixed). d is bf16, fp16, fp32
    or fp8, or for int8 also int32, contiguous along n. Sums are in fp32, or for int8 in int32. m, n and k are free, except
    that strides are multiples of 16 bytes (TMA).

    Args:
        tile: (m, n, k) elements of a CTA.
        cluster: CTAs along (m, n). Those that want the same tile load equal parts of it; if its rows are no multiple of 8 for
            each, the first one loads all.
        stages: Slots of a and b; None: as many as fit.
        a: How a lies in memory, and is loaded.
        b: The same for b.
        mainloop: How warpgroups share tiles: `Cooperative` or `PingPong` of `tmapipe.mainloop`.
        epilogue: A function of the sums in fp32, element by element; or an `Epilogue`, with operands (passed to the call by
            name), further outputs (the call returns a tuple, d first), and the type of d.
        tiles: The order of output tiles, e.g. ``PersistentTiles(Snake(8))``, or for large outputs ``GpcTiles(Snake(8))`` with
            cluster (1, 2). ``SplitKTiles(4)`` and ``StreamKTiles(shares=66)`` divide k among CTAs. ``GroupedTiles()`` has one
            matrix b for each group of rows (see `SplitK`, `StreamK`, `GroupedGemm`).

    Raises:
        InputError: For parts that do not go together, or that cannot be planned.
    """

    load = Role(warps=1)
    math = Role(warpgroups=2)
    #: Axes of the cluster along which CTAs want the same tiles of an operand; None: they want different ones everywhere.
    shared: dict[str, str | None] = {"a": "n", "b": "m"}  # noqa: RUF012 - never changed
    turns = True  #: whether warpgroups may share a tile's columns
    products = {"mma": "b"}  # noqa: RUF012 - never changed; accumulators: name of the `Wgmma` -> that of its second operand

    def __init__(
        self,
        tile: tuple[int, int, int] = (128, 256, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        a: Operand = Operand(),  # noqa: B008 - immutable
        b: Operand = Operand(),  # noqa: B008
        mainloop: Cooperative | PingPong = Cooperative(),  # noqa: B008
        epilogue: Epilogue | Callable[..., Any] | None = None,
        tiles: TileOrder = PersistentTiles(),  # noqa: B008
    ):
        _check_numbers("tile", tile, "(m, n, k)", (128, 256, 64))
        _check_numbers("cluster", cluster, "(m, n)", (2, 1))
        for name, value in (("a", a), ("b", b)):
            _check_kind(name, value, Operand)
        _check_kind("mainloop", mainloop, Cooperative, PingPong)
        _check_kind("tiles", tiles, TileOrder)
        if a.major in tiles.bounded:
            rule = 'is "k" if groups begin at any row: TMA starts at multiples of 16 bytes along contiguous dimensions'
            raise InputError("a.major", a.major, rule, "pass a contiguous along k")
        m, n, k = tile
        self.epilogue = Epilogue.of(epilogue)
        self.cluster = {"m": cluster[0], "n": cluster[1]}
        check_cluster(self.cluster)
        self.mainloop: Any = along_of(mainloop, self, tile, tiles)
        self.tiles = tiles.of_rows(m)
        self.math = self.mainloop.role(self.math, m if self.mainloop.along == "m" else n)
        operand, sums = summed_of(a, b, self.products)
        self.ring = BarrierRing(stages, producer=self.load, consumer=(self.math, *((ADD,) if sums else ())))
        self._declare_products(a, b, m, n, k)
        stored, first = self.epilogue, None
        if tiles.in_parts:
            self.parts_of_k = PartsOfK(self.tiles, self.epilogue, len(self.products))
            stored, first = self.parts_of_k.stored, self.parts_of_k
        mainloop.check(tiles, stored)  # as it was given
        whole = self.declare_epilogue(stored, self.sources, self.tiles.output_dims, first)
        self.declare_sums(operand, sums, self.tiles.output_dims)
        for name, turnstile in mainloop.turnstiles(self.math, whole).items():
            setattr(self, name, turnstile)

    def __setattr__(self, name: str, value: Any) -> None:
        made = "sources" in vars(self)
        if made and name == "mainloop":
            rule = "is fixed once a schedule is made, since its roles follow from it"
            raise InputError(f"{type(self).__name__}.mainloop", value, rule, "make another schedule, with mainloop=")
        if made and name == "tiles":
            _check_kind("tiles", value, TileOrder)
            value = value.of_rows(self.sources[0].shape[0])
            parts = self.tiles.in_parts and value != self.tiles
            if parts or any(getattr(value, each) != getattr(self.tiles, each) for each in _SHAPING):
                rule = f"takes the place of {type(self.tiles).__name__}, for which the stages were declared"
                raise InputError(f"{type(self).__name__}.tiles", value, rule, "make another schedule, with tiles=")
        super().__setattr__(name, value)

    def _declare_products(self, a: Operand, b: Operand, m: int, n: int, k: int) -> None:
        of_a, of_b = self.shared["a"], self.shared["b"]
        peers = {axis: self.cluster.get(axis or "", 1) for axis in (None, "m", "n")}
        batch = self.tiles.input_dims
        self.a = a.stage("m", m, k, ring=self.ring, batch=batch, multicast=of_a, peers=peers[of_a])
        for name in self.products.values():
            setattr(self, name, b.stage("n", n, k, ring=self.ring, multicast=of_b, peers=peers[of_b]))
        if self.tiles.table:
            setattr(self, self.tiles.table, Table("l", ascending=True))
        how: dict[str, Any] = {"promote": self.mainloop.promote}
        if self.ring.stages == 1:  # which is filled anew once it has been multiplied
            how["in_flight"] = 0
        for name, second in self.products.items():
            of = (self.a, getattr(self, second))
            setattr(self, name, Wgmma(*(of if self.mainloop.along == "m" else of[::-1]), **how))
        self.sources: tuple[Any, ...] = tuple(getattr(self, name) for name in self.products)
        self.loaded = ("a", *self.products.values())
        self.transposed = (*(("a",) * a.transposed), *(tuple(self.products.values()) if b.transposed else ()))

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Runs the schedule as `Schedule.__call__` does: a, b, perhaps a table, then d, by position or by name; operands by
        name.

        Outputs that are reductions are vectors in fp32: [m] or [n], or [l, m] or [l, n] of a batch.
        """
        for call in self._callers:  # calls of one kernel with these tensors
            found = call(tensors, out, named)
            if found is not None:
                return found
        if self.tiles.in_parts:
            return self.parts_of_k.call(self, super().__call__, tensors, out, named)
        if self.tiles.table and self.operands:  # which come before the table in the order of declaration
            first = 1 + len(self.products)
            named |= dict(zip((self.tiles.table, "d"), tensors[first:], strict=False))
            tensors = tensors[:first]
        return super().__call__(*tensors, out=out, **named)

    def empty_value(self, bound: Bound) -> Any:
        """The epilogue of empty sums."""
        return 0.0 if self.tiles.in_parts else self.whole_value(bound, len(self.products))

    def shape_of_output(self, given: Mapping[str, Any]) -> tuple[int, ...]:
        """As in `Fused`."""
        second = next(iter(self.products.values()))
        for name in ("a", second):
            check_kind(name, given.get(name))
            if given[name].ndim < 2:
                rule = f"has the dimensions {'m' if name == 'a' else 'n'} k"
                raise InputError(f"{name}.shape", tuple(given[name].shape), rule, "pass a matrix, or a batch of them")
        return (*given["a"].shape[:-1], given[second].shape[-2])

    def tile_slots(self, k: KernelContext, tile: Tile) -> Any:
        """One slot per k-tile: all, or those of the tile's part."""
        return k.steps("a", "k") if tile.get("steps") is None else tile.steps

    def accumulate(self, k: KernelContext) -> Sums:
        """The scope in which all products are summed up. *k* is as in bodies."""
        parts = {name: getattr(k, name).accumulate(empty=self.tiles.without_steps) for name in self.products}
        return Sums({second: parts[name] for name, second in self.products.items()}, self.mainloop.along)

    def epilogue_turn(self, k: KernelContext) -> AbstractContextManager[object]:
        """The scope of an epilogue, as of `Cooperative.epilogue_turn`."""
        return self.mainloop.epilogue_turn(k)

    @property
    def applied(self) -> Epilogue:
        return self.parts_of_k.stored if self.tiles.in_parts else self.epilogue

    def store(self, k: KernelContext, tile: Tile, sums: Sums) -> None:
        """Stores the epilogue of *sums*, the accumulators of *tile* of the output, to all outputs. *k* is as in bodies."""
        self.store_all(k, tile, sums.accumulators)

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        first = tile.get("first")
        for step in range(self.tile_slots(k, tile)):
            with k.ring.produce() as slot:
                load_all(slot, self.loaded, tile, first, step)

    @math.jit
    def multiply(self, k: KernelContext, tile: Tile) -> None:
        with self.accumulate(k) as sums:
            with self.mainloop.mainloop_turn(k):
                for _ in range(self.tile_slots(k, tile)):
                    with k.ring.consume() as slot:
                        sums.add(slot)
        with self.epilogue_turn(k):
            self.store(k, tile, sums)


def _check_numbers(argument: str, value: Any, names: str, example: tuple[int, ...]) -> None:
    """Raises `InputError` unless *value* is as many integers as the *example*."""
    whole = isinstance(value, (tuple, list)) and len(value) == len(example)
    if not whole or not all(isinstance(extent, int) and not isinstance(extent, bool) for extent in value):
        raise InputError(argument, value, f"is {names}, {len(example)} integers", f"e.g. {example}")


def _check_kind(argument: str, value: Any, *kinds: type) -> None:
    """Raises `InputError` unless *value* is of one of *kinds*."""
    known = [kind.__name__ for kind in kinds]
    fix = "PersistentTiles(Snake(8))" if kinds == (TileOrder,) else f"{known[0]}()"
    require(isinstance(value, kinds), argument, value, f"is an object of type {' or '.join(known)}", f"e.g. {fix}")


def load_all(slot: Slot, stages: tuple[str, ...], tile: Tile, first: Any, step: Any) -> None:
    """Starts the loads of *stages* for k-tile number *step* of *tile*, counted from *first* (None: from 0)."""
    for name in stages:
        getattr(slot, name).load(tile, k=step if first is None else first + step)


class Sums(Carried):
    """The open accumulators of one a with one or several b, by the names of these; their rows go along m or n."""

    def __init__(self, by_operand: dict[str, Any], along: str = "m"):
        self.by_operand, self.along = by_operand, along

    @property
    def accumulators(self) -> tuple[Any, ...]:
        return tuple(self.by_operand.values())

    def __enter__(self) -> Sums:
        for accumulator in self.accumulators:
            accumulator.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for accumulator in reversed(self.accumulators):
            accumulator.__exit__(*error)

    def add(self, slot: Slot) -> None:
        """Starts the matmuls of one slot."""
        for name, accumulator in self.by_operand.items():
            of = (slot.a, getattr(slot, name))
            accumulator.add(*(of if self.along == "m" else of[::-1]))


# ---- dequantgemm -----------------------------------------------------------------------------------------------------
#
# DequantGemm: a GEMM whose weights have 8 or 4 bits, and become bf16 or fp16 in registers.
#
# load (1 warp)        a of k-tile 0, 1, 2, ...  -> ring; its weights -> ring `narrow`, free again as soon as they are read
# math (warpgroups)    while the tensor core multiplies a k-tile, the weights of the next one are read and converted
#
# The output is transposed: 64 columns of d, which are rows of weights, for each warpgroup. So weights are the operand that
# wgmma takes from registers, and what the warpgroups convert is never written to shared memory.


WEIGHTS = ("int8", "int4", "uint4", "fp8_e4m3", "fp8_e5m2")
PACKED = 32  # elements along k, whose 4 bits are 16 bytes
SPANS = 128, 64, 32  # of swizzles, bytes
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
        require(isinstance(zeros, bool), "DequantGemm(zeros)", zeros, "is True or False", "leave it out")
        k = tile[2] if isinstance(tile, (tuple, list)) and len(tile) == 3 else 0
        if is_count(k) and k % PACKED:
            raise InputError("tile[2]", k, f"is a multiple of {PACKED} elements along k", "e.g. 64")
        fits = group is None or is_count(group)
        if group and fits and is_count(k):
            fits = group % k == 0 or (k % group == 0 and group % PACKED == 0)
        rule = f"is a multiple of the {k} elements along k of a tile, or of {PACKED} and divides them"
        require(fits, "DequantGemm(group)", group, rule, "use other groups, or tiles of other elements along k")
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
        self.slots = stages or SLOTS
        if stages is None and k:  # of small tiles no more
            of_weights = k * tile[1] * self.bits // 8
            stages = None if self.slots * (2 * k * tile[0] + of_weights) > ROOM else self.slots
        epilogue = epilogue if group else scaled(Epilogue.of(epilogue))
        self.math = Role(warpgroups=tile[1] // 64) if k else self.math
        super().__init__(tile, cluster, stages, mainloop=Cooperative(along="n"), epilogue=epilogue, tiles=tiles)

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
        units = wide.reshape(*values.shape[:-1], k // PACKED, 2, 2, 4, 2) & 15  # element 16 c + 8 h + 2 q + i
        halves = units[..., 0, :, :] | units[..., 1, :, :] << 4
        moved = halves.permute if of_torch else halves.transpose
        first = range(halves.ndim - 3)
        packed = moved(*first, -2, -1, -3).reshape(*values.shape[:-1], k // 2)
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
