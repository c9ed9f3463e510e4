"""Operands of an epilogue: matrices, vectors and scalars that are combined with the accumulator.

They travel as everything else does: a role of one warp loads them by TMA into a ring of their own, ahead of the warpgroups,
which read them piece by piece (`tmapipe.protocol.pieces`), dealt like the accumulator. With a matrix among them, a slot holds
what one piece needs; vectors and numbers alone share one slot for the whole tile::

    fetch (1 warp)         c, bias of piece 0, 1, 2, ...   -> ring of slots
    math (warpgroups)      mainloop | piece 0: wait, read, release, compute, store | piece 1 ...

    fetch (1 warp)         bias of tile 0, 1, 2, ...       -> ring of slots
    math (warpgroups)      mainloop | wait, piece 0: read, compute, store | piece 1 ... read, release, compute, store

The kinds of outputs that are reduced, `RowSum` and `ColumnSum`, are those of `tmapipe.epilogue.reductions`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np

from tmapipe.barrier import BarrierRing
from tmapipe.bind.bound import Bound
from tmapipe.dtypes import DType
from tmapipe.epilogue.reductions import ColumnSum, RowSum
from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.isa.values import Fragment
from tmapipe.matmul import Wgmma
from tmapipe.protocol.pieces import pieces
from tmapipe.protocol.tile import Tile
from tmapipe.stage import TmaLoadStage

__all__ = ["ColumnSum", "Matrix", "Operands", "PerColumn", "PerRow", "RowSum", "Scalar", "columns_of", "spread"]

VECTOR = 128  # a vector's slot has a multiple of as many elements, since slots start at multiples of 128 bytes


@attrs.frozen
class Matrix:
    """An operand of the output's shape, [m, n] or [l, m, n], contiguous along n. dtype: by default the tensor's; l2_hint: as
    of `TmaLoadStage`, by default that each element is read once."""

    dtype: DType | str | None = None
    l2_hint: str | None = "evict_first"
    along = ("m", "n")


@attrs.frozen
class PerColumn:
    """A vector of n elements, one a column of the output, such as a bias. dtype: by default the tensor's."""

    dtype: DType | str | None = None
    along = ("n",)


@attrs.frozen
class PerRow:
    """A vector of m elements, one a row of the output, such as a scale. dtype: by default the tensor's."""

    dtype: DType | str | None = None
    along = ("m",)


@attrs.frozen
class Scalar:
    """One number for the whole output: a float at the call, or a tensor of one fp32 element (which costs no copy)."""

    dtype = "fp32"
    along = ()


Operand = Matrix | PerColumn | PerRow | Scalar


class OperandStage(TmaLoadStage):
    """A load stage whose slots are read as `Isa.accumulator_columns` deals an accumulator. rows, width: of the output, that a
    slot is for."""

    def __init__(self, name: str, kind: Operand, ring: BarrierRing, rows: int, width: int):
        if isinstance(kind, Matrix):
            super().__init__("l m n", tile=(rows, width), ring=ring, dtype=kind.dtype, l2_hint=kind.l2_hint)
        else:
            elements = {("n",): width, ("m",): rows, (): 1}[kind.along]
            dims = kind.along[0] if kind.along else f"{name}_element"
            super().__init__(dims, tile=(ceil_div(elements, VECTOR) * VECTOR,), ring=ring, dtype=kind.dtype)

    @property
    def along(self) -> tuple[str, ...]:
        """The output's dimensions that it varies with."""
        return tuple(dim for dim in self.dims if dim in ("m", "n"))

    @property
    def spread(self) -> bool:
        return len(self.along) == 2

    @property
    def number(self) -> bool:
        return not self.along


class Operands:
    """An epilogue with operands, for the accumulators of a `Wgmma`. A schedule sets each of `stages` as an attribute of its
    name, has a role of one warp that calls `load`, and gives `reader` to the store of the accumulators, whose `columns` are
    `width`.

    declared: name -> kind; epilogue: called with a piece of the accumulator and the operands by name; ring: from the loading
    role to the matmul's; matmul: whose accumulators these are. Raises `InputError` for operands that do not fit the epilogue.
    """

    def __init__(
        self, declared: Mapping[str, Operand], epilogue: Callable[..., Any] | None, *, ring: BarrierRing, matmul: Wgmma
    ):
        _check_operands(declared, epilogue)
        assert epilogue is not None
        self.epilogue, self.ring, self.matmul = epilogue, ring, matmul
        role = ring.phases[-1][0]
        groups = role.warps // 4 // role.teams
        self.shape = matmul.shape[:2]
        self.width = columns_of(self.shape[1])
        self.rows = 64 * groups
        self.pieces = pieces(*self.shape, groups, self.width)
        #: Row and column of the tile at which what a slot is for begins, by slot.
        self.slots = [(0, 0)]
        extents = self.shape
        if any(isinstance(kind, Matrix) for kind in declared.values()):
            self.slots = [(block * self.rows, first) for block, first in self.pieces]
            extents = self.rows, self.width
        self.stages = {name: OperandStage(name, kind, ring, *extents) for name, kind in declared.items()}

    def whole(self, bound: Bound) -> dict[str, np.ndarray]:
        """Every operand's bound tensor in fp32, so that it broadcasts to the output [l, m, n]."""
        return {name: spread(stage.along, bound.array(name).astype(np.float32)) for name, stage in self.stages.items()}

    def load(self, k: Any, tile: Tile) -> None:
        """The producing role's part: what each of the output tile's slots holds of every operand."""
        for row, column in self.slots:
            start = {"m": tile.m * self.shape[0] + row, "n": tile.n * self.shape[1] + column}
            if tile.get("l") is not None:
                start["l"] = tile.l
            with getattr(k, k.name_of(self.ring)).produce() as slot:
                for name, stage in self.stages.items():
                    getattr(slot, name).load_from(*(start.get(dim, 0) for dim in stage.dims))

    def reader(self, k: Any) -> Callable[[], dict[str, Fragment]]:
        """A function that reads the next piece's operands: to be given to the store, ``k.d.store(tile, acc,
        operands.epilogue, operands=operands.reader(k))``. It waits for their slot where that begins, and releases it after the
        last piece that the slot is for."""
        matmul, ring = k.plan.matmul(k.name_of(self.matmul)), getattr(k, k.name_of(self.ring))
        each = len(self.pieces) // len(self.slots)

        def pieces_of_tile() -> Iterator[dict[str, Fragment]]:
            for i in range(0, len(self.pieces), each):
                slot = ring.wait()
                for n, (block, first) in enumerate(self.pieces[i : i + each], 1):
                    at: dict[tuple[str, ...], int] = {("m",): block * self.rows, ("n",): first} if each > 1 else {}
                    values = {
                        name: getattr(slot, name).read_columns(matmul, stage.along, self.width, at.get(stage.along, 0))
                        for name, stage in self.stages.items()
                    }
                    if n == each:
                        ring.release(slot)
                    yield values

        return pieces_of_tile().__next__


def spread(along: tuple[str, ...], values: np.ndarray) -> np.ndarray:
    """An operand that varies with these dimensions, so that it broadcasts to the output [l, m, n]."""
    return values[:, None] if along == ("m",) else values


def columns_of(n: int) -> int:
    """Columns of a piece where all transfers of an epilogue have the same: 64, or 32 or n in narrower tiles."""
    return next((width for width in (64, 32) if width <= n), n)


def _check_operands(declared: Mapping[str, Operand], epilogue: Callable[..., Any] | None) -> None:
    """Raises `InputError` unless every operand is of a known kind and a parameter of the epilogue, and the other way round."""
    for name, kind in declared.items():
        if not isinstance(kind, (Matrix, PerColumn, PerRow, Scalar)):
            rule = "is a Matrix, PerColumn, PerRow or Scalar of tmapipe.epilogue"
            raise InputError(f"operands[{name!r}]", kind, rule, "e.g. tp.epilogue.PerColumn()")
    if epilogue is None:
        raise InputError("epilogue", None, "is needed to use the operands", "e.g. lambda acc, bias: acc + bias")
    try:
        inspect.signature(epilogue).bind(None, **dict.fromkeys(declared))
    except TypeError as error:
        rule = f"takes the accumulator and then the operands {', '.join(declared)} by name ({error})"
        raise InputError("epilogue", epilogue, rule, "name its parameters after the operands") from None
