"""Gemm: the cooperative warp-specialized GEMM for Hopper.

    load (1 warp)        a, b of k-tile 0, 1, 2, ...  -> ring of slots, TMA, multicast over the cluster
    math (2 warpgroups)  wait, wgmma on the slot, release it one later; then accumulators -> smem -> TMA store

Every CTA is persistent and takes output tiles in grouped order; the loader runs ahead into the next tile while the
warpgroups still store the last one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tmapipe.barrier import BarrierRing
from tmapipe.bind.bound import Bound
from tmapipe.dtypes import DType
from tmapipe.epilogue.operands import Operand, Operands, columns_of
from tmapipe.epilogue.reductions import Reduction
from tmapipe.errors import InputError
from tmapipe.matmul import Wgmma
from tmapipe.multicast import MulticastGroup
from tmapipe.protocol.tile import Tile
from tmapipe.role import Role
from tmapipe.schedule import Schedule
from tmapipe.schedules.reduced import Reductions
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.tiles.persistent import PersistentTiles

__all__ = ["Gemm"]

FETCH = Role(warps=1)  # loads the epilogue's operands, in schedules that have some


def check_majors(majors: Any) -> tuple[str, str]:
    """*majors*: the dimensions along which a [m, k] and b [n, k] are contiguous. Raises `InputError` for others."""
    if not isinstance(majors, (tuple, list)) or tuple(majors) not in itertools.product("mk", "nk"):
        raise InputError("majors", majors, 'is ("m" or "k", "n" or "k")', 'e.g. ("k", "n")')
    return majors[0], majors[1]


def check_pair(argument: str, value: Any, example: str) -> None:
    """Raises `InputError` unless *value* is one for a and one for b."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise InputError(argument, value, "is a word for a and one for b", example)


def check_tile(tile: tuple[int, ...]) -> tuple[int, int, int]:
    """*tile*: (m, n, k) elements of a CTA. Raises `InputError` for other numbers of extents."""
    if len(tile) != 3:
        raise InputError("tile", tile, "is (m, n, k)", "e.g. (128, 256, 64)")
    return tile


def consumers(role: Role, m: int) -> Role:
    """*role*, or where its two warpgroups cannot share *m* rows, another of three or one; teams take tiles by themselves."""
    if role.teams > 1 or m % 128 == 0:
        return role
    return Role(warpgroups=3 if m % 192 == 0 else 1)


def operand(side: str, extent: int, k: int, major: str, batch: str = "l ", **options: Any) -> TmaLoadStage:
    """The stage of an operand [*side*, k] in tiles of (*extent*, *k*) elements that is contiguous along *major*. batch: names
    of the dimensions before."""
    if major == "k":
        return TmaLoadStage(f"{batch}{side} k", tile=(extent, k), **options)
    if options.get("outside", "zeros") != "zeros":
        rule = f"is zeros for an operand that is contiguous along {side}: its rows are added up"
        raise InputError("outside", options["outside"], rule, 'use "zeros"')
    return TmaLoadStage(f"{batch}k {side}", tile=(k, extent), **options)


def turned(**along: str) -> tuple[str, ...]:
    """The operands (name=major) that are passed with their dimensions in the other order than `operand` declares."""
    return tuple(name for name, major in along.items() if major != "k")


class Gemm(Schedule):
    """``d[m, n] = epilogue(sum over k of a[m, k] * b[n, k])``, with a batch dimension before each if the tensors have one.

    a, b: bf16, fp16, int8 (both the same), fp32 (with `tf32`), or fp8_e4m3 and fp8_e5m2 (also mixed), contiguous along k
    unless `majors` says otherwise; d: bf16, fp16, fp32 or fp8, of int8 also int32, contiguous along n; sums in fp32, of int8
    in int32. m, n and k are free within TMA's rule that strides are multiples of 16 bytes.

    tile: (m, n, k) elements of one CTA, whose m sets the warpgroups: 1 for 64, 2 for 128 or 256, 3 for 192; cluster: CTAs
    along (m, n); stages: slots of a and b (None: as many as fit); store_stages: output buffers of each warpgroup; order: of
    output tiles, e.g. ``PersistentTiles(Snake(8))``, or for large outputs ``GpcTiles(Snake(8))`` with cluster (1, 2);
    majors: the dimensions along which a and b are contiguous, ("m" or "k", "n" or "k"), for 16-bit types: torch's usual
    weight w, [k, n], is passed as ``w.t()`` with majors=("k", "n"); l2_hints: of the loads of (a, b), e.g. "evict_first" for
    an operand that is read once; outside: what slots hold of rows of (a, b) beyond the edge, as of `TmaLoadStage`:
    ("anything", "zeros") where few rows of a fill little of a tile (an m of 16 takes 6 to 16 % less time so); dtype: of d,
    by default that of a (of fp8 operands bf16, of int8 int32); promote: sums of fp8 operands leave the tensor core after
    each slot (see `Wgmma`); tf32: a and b are fp32, rounded to tf32 on their way into shared memory; epilogue: a function of
    the sums in fp32, element by element, for a d of a floating type; operands: what the epilogue takes besides the
    accumulator, by the names of its parameters and of the call's arguments, each a kind of `tmapipe.epilogue`;
    operand_stages: slots of the ring that they are loaded into, one a tile, or with a matrix one a piece of 64 rows a
    warpgroup and up to 64 columns; outputs: further outputs of d's shape, name -> type (None: the tensor's, or a's), or
    vectors in fp32, name -> ``RowSum()`` (over n, [m]) or ``ColumnSum()`` (over m, [n]) of `tmapipe.epilogue`, the same bits
    in every run. The epilogue then returns a dictionary of all outputs, element by element, and the call a tuple of them, d
    first::

        gemm = Gemm(epilogue=lambda acc, bias: tp.math.gelu(acc + bias), operands={"bias": tp.epilogue.PerColumn()})
        d = gemm(a, b, bias=bias)
        gemm = Gemm(epilogue=lambda acc: {"d": tp.math.relu(acc), "sums": acc}, outputs={"sums": "fp32"})
        d, sums = gemm(a, b)
        gemm = Gemm(epilogue=lambda acc: {"d": acc, "squares": acc * acc}, outputs={"squares": tp.epilogue.RowSum()})
        d, squares = gemm(a, b)
    """

    load = Role(warps=1)
    math = Role(warpgroups=2)
    in_turn = False  # whether teams store in turn, through the same buffers
    empty_tiles = False  # whether a tile may have no k-tiles

    def __init__(
        self,
        tile: tuple[int, int, int] = (128, 256, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        store_stages: int = 2,
        order: PersistentTiles = PersistentTiles(),  # noqa: B008 - immutable
        majors: tuple[str, str] = ("k", "k"),
        l2_hints: tuple[str | None, str | None] = (None, None),
        outside: tuple[str, str] = ("zeros", "zeros"),
        dtype: DType | str | None = None,
        promote: bool = False,
        tf32: bool = False,
        epilogue: Callable[..., Any] | None = None,
        operands: Mapping[str, Operand] | None = None,
        operand_stages: int = 2,
        outputs: Mapping[str, DType | str | Reduction | None] | None = None,
    ):
        m, n, k = check_tile(tile)
        self.cluster = {"m": cluster[0], "n": cluster[1]}
        self.tiles = order
        self.math = consumers(self.math, m)
        self.ring = BarrierRing(stages, producer=self.load, consumer=self.math)
        along_a, along_b = check_majors(majors)
        common: dict[str, Any] = {"ring": self.ring, "dtype": "tf32" if tf32 else None}
        check_pair("l2_hints", l2_hints, 'e.g. (None, "evict_first")')
        check_pair("outside", outside, 'e.g. ("anything", "zeros")')
        of_a, of_b = (
            {**common, "l2_hint": hint, "outside": rest} for hint, rest in zip(l2_hints, outside, strict=True)
        )
        self.a = operand("m", m, k, along_a, multicast=MulticastGroup("n"), **of_a)
        self.b = operand("n", n, k, along_b, multicast=MulticastGroup("m"), **of_b)
        self.turned = turned(a=along_a, b=along_b)
        self.mma = Wgmma(self.a, self.b, promote=promote)
        self.epilogue = epilogue
        self.operands = self._declare_operands(operands, operand_stages) if operands else None
        for name in outputs or ():
            self._check_free("outputs", name)
        self.outputs = ("d", *(outputs or ()))
        width = columns_of(n) if self.operands or outputs else None
        self.reductions = Reductions(outputs or {}, m)
        for name, kind in {"d": dtype, **(outputs or {})}.items():
            if isinstance(kind, Reduction):
                setattr(self, name, kind.stage(self.mma, columns_of(n)))
            else:
                form: dict[str, Any] = {"stages": store_stages, "columns": width, "shared": self.in_turn}
                setattr(self, name, TmaStoreStage("l m n", source=self.mma, dtype=kind, **form))

    def _declare_operands(self, declared: Mapping[str, Operand], stages: int) -> Operands:
        for name in declared:
            self._check_free("operands", name)
        self.fetch = FETCH
        self.operand_ring = BarrierRing(stages, producer=FETCH, consumer=self.math)
        operands = Operands(declared, self.epilogue, ring=self.operand_ring, matmul=self.mma)
        for name, stage in operands.stages.items():
            setattr(self, name, stage)
        return operands

    def _check_free(self, argument: str, name: str) -> None:
        if hasattr(self, name) or name in ("d", "out"):
            raise InputError(f"{argument}[{name!r}]", name, "is a name that the schedule has already", "rename it")

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """As `Schedule.__call__`. Outputs that are reductions are vectors in fp32: [m] or [n], of a batch [l, m] or [l, n]."""
        if not self.reductions.kinds:
            return super().__call__(*tensors, out=out, **named)
        return self.reductions.call(self, super().__call__, tensors, out, named)

    def empty_value(self, bound: Bound) -> Any:
        """The epilogue of an empty sum."""
        zero = np.zeros(bound.shapes["d"], np.float32)
        if self.epilogue is None:
            return 0.0
        values = self.epilogue(zero, **(self.operands.whole(bound) if self.operands else {}))
        return values if not self.reductions.kinds else self.reductions.whole(values, bound)

    def tile_slots(self, k: Any, tile: Tile) -> Any:
        """One slot a k-tile."""
        return k.steps("a", "k")

    def ring_slots(self, k: Any, ring: str, tile: Tile) -> Any:
        """Of the operands' ring, one slot a piece or a tile."""
        if self.operands is not None and ring == self.declared.name_of(self.operand_ring):
            return len(self.operands.slots)
        return self.tile_slots(k, tile)

    def store(self, k: Any, tile: Tile, acc: Any) -> None:
        """Stores the epilogue of the accumulator to all outputs."""
        also = {name: getattr(k, name) for name in self.outputs[1:]}
        k.d.store(tile, acc, self.epilogue, also=also, operands=self.operands.reader(k) if self.operands else None)

    @load.jit
    def fill(self, k: Any, tile: Tile) -> None:
        for step in range(self.tile_slots(k, tile)):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.b.load(tile, k=step)

    @FETCH.jit
    def fetch_operands(self, k: Any, tile: Tile) -> None:
        assert self.operands is not None
        self.operands.load(k, tile)

    @math.jit
    def multiply(self, k: Any, tile: Tile) -> None:
        with k.mma.accumulate(empty=self.empty_tiles) as acc:
            for _ in range(self.tile_slots(k, tile)):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
        self.store(k, tile, acc)
