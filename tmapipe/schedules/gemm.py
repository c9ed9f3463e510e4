"""Gemm, the warp-specialized GEMM for Hopper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base import check_cluster
from tmapipe.bind import Bound, check_kind
from tmapipe.epilogue import ADD, Epilogue
from tmapipe.errors import InputError, check_kinds, check_numbers
from tmapipe.isa.fragment import Carried
from tmapipe.kernel import KernelContext
from tmapipe.parts import Table, Wgmma
from tmapipe.protocol.ring import Slot
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.fused import Fused
from tmapipe.schedules.mainloop import (
    Cooperative,
    Operand,
    PartsOfK,
    PingPong,
    along_of,
    summed_of,
)
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.persistent import PersistentTiles

# ---- gemm ------------------------------------------------------------------------------------------------------------
#
# load (1 warp)        a, b of k-tile 0, 1, 2, ...  -> ring of slots, TMA, multicast over the cluster
# math (warpgroups)    wait, wgmma on the slot, release it one later; then accumulators -> epilogue -> smem -> TMA store
#
# Every CTA is persistent and takes output tiles in the order of `tiles`. The loader runs ahead into the next tile
# while the warpgroups still store the last one. The mainloop says how warpgroups share tiles.


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
        check_numbers("tile", tile, "(m, n, k)", (128, 256, 64))
        check_numbers("cluster", cluster, "(m, n)", (2, 1))
        for name, value in (("a", a), ("b", b)):
            check_kinds(name, value, Operand)
        check_kinds("mainloop", mainloop, Cooperative, PingPong)
        check_kinds("tiles", tiles, TileOrder)
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
        add = (ADD,) if sums else ()
        self.ring = BarrierRing(stages, producer=self.load, consumer=(self.math, *add), local=add)
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
        self.sources = tuple(getattr(self, name) for name in self.products)
        self.loaded = ("a", *self.products.values())
        self.transposed = (*(("a",) * a.transposed), *(tuple(self.products.values()) if b.transposed else ()))

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Runs the schedule as `Schedule.__call__` does: a, b, perhaps a table, then d, by position or by name; operands by
        name.

        Outputs that are reductions are vectors in fp32: [m] or [n], or [l, m] or [l, n] of a batch.
        """
        found = self._known(tensors, out, named)
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
                for name in self.loaded:
                    getattr(slot, name).load(tile, k=step if first is None else first + step)

    @math.jit
    def multiply(self, k: KernelContext, tile: Tile) -> None:
        with self.accumulate(k) as sums:
            with self.mainloop.mainloop_turn(k):
                for _ in range(self.tile_slots(k, tile)):
                    with k.ring.consume() as slot:
                        sums.add(slot)
        with self.epilogue_turn(k):
            self.store(k, tile, sums)
