"""Operands and further outputs of an epilogue: tensors that it combines with the accumulator, and results that are stored
beside d; and whether registers suffice for them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import DType, as_dtype, ceil_div
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import Bound
from tmapipe.errors import InputError, check_bool, check_type, is_count, require
from tmapipe.isa.fragment import Fragment
from tmapipe.parts import RegisterTile, Wgmma
from tmapipe.plan.thread_layout import AccumulatorLayout
from tmapipe.plan.transfers import even_columns, pieces
from tmapipe.protocol.tile import Tile, check_rounded
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import StoreStage, TmaStoreStage

if TYPE_CHECKING:
    from tmapipe.epilogue import Epilogue
    from tmapipe.plan.model import Plan

# ---- outputs ---------------------------------------------------------------------------------------------------------
#
# Outputs of an epilogue beside the first one, d: further outputs of d's shape, or sums of its rows or columns.


@attrs.frozen
class StoreForm:
    """What the stores of all outputs of an epilogue have in common.

    batch: names of the dimensions before m, each followed by a space. role: the role that stores. dims: those of the output
    along rows and columns of the accumulators. For whole outputs: stages: buffers of a warpgroup; columns: columns of a buffer
    (None: as many as fill 128 bytes); l2_hint: the L2 hint of the stores.
    """

    batch: str
    role: Role
    dims: tuple[str, str]
    stages: int
    columns: int | None = None
    l2_hint: str | None = None


class EpilogueOutput:
    """Base of the kinds. `reduced`: whether the kernel stores parts of it, which a second kernel adds."""

    reduced = False

    def stage(self, mma: Wgmma | RegisterTile, width: int, form: StoreForm) -> StoreStage:
        """The store of what the epilogue makes of *mma*'s tiles, in pieces of *width* columns."""
        raise NotImplementedError

    def type_of(self, sums: DType) -> DType:
        """The type of the output's tensor, if a call makes it and the sums have this type."""
        raise NotImplementedError

    def whole(self, values: Any, shape: tuple[int, ...]) -> np.ndarray:
        """The output as a whole, computed from the epilogue's result for a whole d of *shape*."""
        raise NotImplementedError


@attrs.frozen
class Output(EpilogueOutput):
    """An output of d's shape.

    Args:
        dtype: The type of its elements. None: the type of the tensor that is passed; if the call makes it, the type of a.
    """

    dtype: DType | str | None = None

    def stage(self, mma: Wgmma | RegisterTile, width: int, form: StoreForm) -> TmaStoreStage:
        options: dict[str, Any] = {"stages": form.stages, "columns": form.columns, "dtype": self.dtype}
        return TmaStoreStage(f"{form.batch}m n", source=mma, **options).with_l2_hint(form.l2_hint)

    def type_of(self, sums: DType) -> DType:
        return as_dtype(self.dtype or sums)

    def whole(self, values: Any, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(np.asarray(values, np.float32), shape).copy()


# ---- operands --------------------------------------------------------------------------------------------------------
#
# Operands of an epilogue: matrices, vectors and scalars that are combined with the accumulator.
#
# A role of one warp loads them by TMA into a ring of their own, ahead of the warpgroups. These read them piece by
# piece (`tmapipe.protocol.matmuls`), distributed like the accumulator. If there is a matrix, a slot holds what one
# piece needs. Vectors and numbers alone share one slot for the whole tile::
#
# fetch (1 warp)         c, bias of piece 0, 1, 2, ...   -> ring of slots
# math (warpgroups)      mainloop | piece 0: wait, read, release, compute, store | piece 1 ...
#
# fetch (1 warp)         bias of tile 0, 1, 2, ...       -> ring of slots
# math (warpgroups)      mainloop | wait, piece 0: read, compute, store | piece 1 ... read, compute, store, release


ELEMENT = "_element"  # ends the name of a number's only dimension
VECTOR = 128  # a vector's slot has a multiple of as many elements, since slots start at multiples of 128 bytes


class OperandStage(TmaLoadStage):
    """A load stage whose slots are read as fragments distributed like an accumulator."""

    @property
    def along(self) -> tuple[str, ...]:
        """The output's dimensions that it varies with."""
        return tuple(dim for dim in self.dims if dim in ("m", "n"))

    @property
    def spread(self) -> bool:
        return len(self.along) == 2

    @property
    def number(self) -> bool:
        return self.dims[-1].endswith(ELEMENT)


@attrs.frozen
class EpilogueOperand:
    """Base of the kinds. `varies`: the output's dimensions that it varies with; `dtype`: of its elements."""

    varies: ClassVar[tuple[str, ...]] = ()
    dtype: DType | str | None = None

    def loose(self, batch: str) -> bool:
        """Whether a tile's part may begin at any element, which TMA cannot: rows do in an order of tiles by groups. It is then
        loaded from up to 15 elements before."""
        return self.varies == ("l",) or (self.varies == ("m",) and not batch)

    def stage(self, name: str, ring: BarrierRing, rows: int, width: int, batch: str) -> OperandStage:
        """The load stage of the operand.

        Args:
            name: The operand's name.
            ring: The ring whose slots hold the operand.
            rows, width: Rows and columns of the part of the output that a slot is for.
            batch: Names of the output's dimensions before m, each followed by a space.
        """
        if self.varies == ("l",) and not batch:
            rule = "is one number a matrix of a batch, but with groups of rows or parts of k there is no batch"
            raise InputError(f"operands[{name!r}]", self, rule, "use a Scalar(), or for groups a PerRow()")
        dims = self.varies[0] if self.varies else name + ELEMENT
        elements = {"m": rows, "n": width}.get(dims, 1) + (ALIGNMENT if self.loose(batch) else 0)
        tile = (ceil_div(elements, VECTOR) * VECTOR,)
        return OperandStage(dims, tile=tile, ring=ring, dtype=self.dtype)

    def shape(self, m: int, n: int, batch: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Shape of its tensor, for an output [*batch, m, n]."""
        extents = {"l": batch, "m": (m,), "n": (n,)}
        return tuple(extent for dim in self.varies for extent in extents[dim]) or (1,)

    def type_of(self, output: DType) -> DType:
        """Default type of its tensor, beside an output of this type."""
        return as_dtype(self.dtype or output)

    def whole(self, values: np.ndarray) -> np.ndarray:
        """Its tensor, in a form that broadcasts to the output [l, m, n]."""
        after = {"l": 2, "m": 1}.get(self.varies[-1], 0) if self.varies else 0
        return values.reshape(*values.shape, *(1,) * after)


@attrs.frozen
class Matrix(EpilogueOperand):
    """An operand of the output's shape, [m, n] or [l, m, n], contiguous along n.

    Args:
        dtype: The type of its elements; None: the type of the tensor that is passed.
        l2_hint: As in `TmaLoadStage`; by default, that each element is read once.
    """

    l2_hint: str | None = "evict_first"
    varies = ("l", "m", "n")

    def stage(self, name: str, ring: BarrierRing, rows: int, width: int, batch: str) -> OperandStage:
        options: dict[str, Any] = {"dtype": self.dtype, "l2_hint": self.l2_hint}
        return OperandStage(f"{batch}m n", tile=(rows, width), ring=ring, **options)


class PerColumn(EpilogueOperand):
    """A vector of n elements, one for each column of the output, such as a bias.

    Args:
        dtype: The type of its elements; None: the type of the tensor that is passed.
    """

    varies = ("n",)


class PerRow(EpilogueOperand):
    """A vector of m elements, one for each row of the output, such as a scale.

    Args:
        dtype: The type of its elements; None: the type of the tensor that is passed.
    """

    varies = ("m",)


class PerBatch(EpilogueOperand):
    """A vector of l elements, one for each matrix of a batch, such as the scale of its weights.

    Args:
        dtype: The type of its elements; None: the type of the tensor that is passed.
    """

    varies = ("l",)


@attrs.frozen
class Scalar(EpilogueOperand):
    """One number for the whole output: a float at the call, or a tensor of one fp32 element (which costs no copy)."""

    dtype: str = attrs.field(default="fp32", init=False, repr=False)


class Operands:
    """An epilogue with operands, for the accumulators of a `Wgmma` or a `RegisterTile`.

    A schedule sets each of `stages` as an attribute of its name. It has a role of one warp that calls `load`. It passes
    `reader` to the store of the accumulators, whose `columns` are `width`.

    Args:
        declared: The kind of each operand, by the operand's name.
        epilogue: The function, called with pieces of the accumulators and with the operands by name.
        ring: The ring from the loading role to the matmul's role.
        matmul: The matmul, or the tile in registers, that has the accumulators.
        accumulators: How many accumulators the epilogue takes.
        batch: Names of the output's dimensions before m, each followed by a space.
        columns: How many columns a piece has at most.

    Raises:
        InputError: The operands do not fit the epilogue.
    """

    def __init__(
        self,
        declared: Mapping[str, EpilogueOperand],
        epilogue: Callable[..., Any] | None,
        *,
        ring: BarrierRing,
        matmul: Wgmma | RegisterTile,
        accumulators: int = 1,
        batch: str = "l ",
        columns: int | None = None,
    ):
        self.epilogue = check_operands(declared, epilogue, accumulators)
        self.kinds, self.ring, self.matmul = dict(declared), ring, matmul
        role = ring.phases[-1][0]
        groups = role.warps // 4 // role.teams
        self.shape = matmul.shape[:2]
        #: Dimensions of the output along rows and columns of the accumulators.
        self.dims = dims_of(matmul)
        width = columns_of(self.shape[1], self.dims[0] == "n")
        self.width = min(columns or width, width)
        self.rows = 64 * groups
        self.pieces = pieces(*self.shape, groups, self.width)
        #: Row and column of the accumulators at which what a slot is for begins, by slot.
        self.slots = [(0, 0)]
        extents = self.shape
        if any(isinstance(kind, Matrix) for kind in declared.values()):
            self.slots = [(block * self.rows, first) for block, first in self.pieces]
            extents = self.rows, self.width
        of = dict(zip(self.dims, extents, strict=True))
        self.stages = {name: kind.stage(name, ring, of["m"], of["n"], batch) for name, kind in declared.items()}
        self.loose = {name for name, kind in declared.items() if kind.loose(batch)}

    def whole(self, bound: Bound) -> dict[str, np.ndarray]:
        """Every operand's bound tensor in fp32, in a form that broadcasts to the output [l, m, n]."""
        return {name: kind.whole(bound.array(name).astype(np.float32)) for name, kind in self.kinds.items()}

    def load(self, k: Any, tile: Tile) -> None:
        """The producer's part: loads what each slot of *tile*, of the output, holds of every operand. *k* is as in bodies."""
        starts = [tile.start(dim, extent) for dim, extent in zip(self.dims, self.shape, strict=True)]
        for slot_starts in self.slots:
            at = {dim: start + own for dim, start, own in zip(self.dims, starts, slot_starts, strict=True)}
            at["l"] = tile.get("l")
            with getattr(k, k.name_of(self.ring)).produce() as slot:
                for name, stage in self.stages.items():
                    start = [at.get(dim, 0) for dim in stage.dims]
                    start[-1] -= self._before(k, name, tile)
                    getattr(slot, name).load_from(*start)

    def _before(self, k: Any, name: str, tile: Tile) -> Any:
        """How many elements before the operand's own part the load begins, in each slot, since slots are for multiples of 64
        rows."""
        if name not in self.loose:
            return 0
        start = tile.start("m", self.shape[0]) if self.stages[name].along else tile.l
        return start % (ALIGNMENT // k.plan.load(name).buffer.dtype.bytes)

    def _varying(self, stage: OperandStage) -> tuple[str, ...]:
        """Along what the operand's values vary, "rows" and "columns" of the accumulators, in the order in which they lie in a
        slot."""
        return tuple("rows" if dim == self.dims[0] else "columns" for dim in stage.along)

    def reader(self, k: Any, tile: Tile) -> Iterator[dict[str, Fragment]]:
        """Reads each piece's operands of this output tile. The store takes it: ``operands=operands.reader(k, tile)``. The
        epilogue of the store is ``operands.epilogue``.

        It waits for a slot before the slot's first piece. A slot for the whole tile is released after the last store, so that
        the release does not delay stores. If there are several slots, each is released as soon as it has been read.
        """
        layout = AccumulatorLayout.of(k.plan.distributed(k.name_of(self.matmul))).piece(self.width)
        ring = getattr(k, k.name_of(self.ring))
        each = len(self.pieces) // len(self.slots)
        before = {name: self._before(k, name, tile) for name in self.stages}
        for i in range(0, len(self.pieces), each):
            slot = ring.wait()
            for block, first in self.pieces[i : i + each]:
                at = dict(zip(self.dims, (block * self.rows, first), strict=True)) if each > 1 else {}
                values = {
                    name: getattr(slot, name).read_piece(
                        layout, self._varying(stage), before[name] + sum(at.get(dim, 0) for dim in stage.along)
                    )
                    for name, stage in self.stages.items()
                }
                if len(self.slots) > 1:
                    ring.release(slot)
                yield values
            if len(self.slots) == 1:
                ring.release(slot)


def dims_of(matmul: Wgmma | RegisterTile) -> tuple[str, str]:
    """The output's dimensions along rows and columns of the accumulators."""
    return ("n", "m") if isinstance(matmul, Wgmma) and matmul.dims == ("n", "m") else ("m", "n")


def columns_of(n: int, transposed: bool = False) -> int:
    """How many columns a piece has, if all transfers of an epilogue use the same pieces: 64, or 32 or n in narrower tiles. For
    transposed accumulators, up to 64, in pieces of equal width. Raises `InputError` unless *n* is a positive integer."""
    require(is_count(n), "columns_of(n)", n, "is a positive number of columns", "e.g. 128")
    check_bool("columns_of(transposed)", transposed)
    return even_columns(n, 64) if transposed else next((width for width in (64, 32) if width <= n), n)


def check_operands(
    declared: Mapping[str, EpilogueOperand], epilogue: Callable[..., Any] | None, accumulators: int
) -> Callable[..., Any]:
    """The epilogue. Raises `InputError` unless its operands are of known kinds and are exactly its parameters."""
    check_type("operands", declared, Mapping, 'e.g. {"bias": tp.epilogue.PerColumn()}')
    for name, kind in declared.items():
        rule = "is a Matrix, PerBatch, PerColumn, PerRow or Scalar of tmapipe.epilogue"
        require(isinstance(kind, EpilogueOperand), f"operands[{name!r}]", kind, rule, "e.g. tp.epilogue.PerColumn()")
    if epilogue is None:
        raise InputError("epilogue", None, "is needed to use the operands", "e.g. lambda acc, bias: acc + bias")
    if not callable(epilogue):
        raise InputError("epilogue", epilogue, "is a function of the accumulator", "e.g. lambda acc, bias: acc + bias")
    try:
        inspect.signature(epilogue).bind(*[None] * accumulators, **dict.fromkeys(declared))
    except (TypeError, ValueError) as error:  # ValueError: of some functions of C, of which nothing says what they take
        several = "the accumulator" if accumulators == 1 else f"{accumulators} accumulators"
        rule = f"takes {several} and then the operands {', '.join(declared)} by name ({error})"
        raise InputError("epilogue", epilogue, rule, "name its parameters after the operands") from None
    return epilogue


# ---- room ------------------------------------------------------------------------------------------------------------
#
# Whether an epilogue has enough registers beside the accumulators.
#
# The numbers are from compiling random configurations: ``python -m tests.fuzz.compiling``.


def check_room(plan: Plan, epilogue: Epilogue) -> None:
    """Checks a plan whose accumulators end with *epilogue*.

    Raises:
        InputError: The compiler would keep accumulators in local memory, or results would be rounded to integers.

    Warns:
        UserWarning: It may keep some there.
    """
    for name in epilogue.whole_outputs:
        if epilogue.function is not None:
            check_rounded(name, plan.store(name).buffer.dtype)
    if not plan.matmuls:
        return
    first = plan.matmuls[0]
    groups = first.warpgroups * first.teams
    kinds = (*epilogue.operands.values(), *epilogue.outputs.values())
    tiles = any(isinstance(kind, (Matrix, Output)) for kind in kinds)
    # A second set of registers for operands is in use before the epilogue alone.
    needed = sum(each.registers.sums + each.registers.a // (1 + each.in_flight) for each in plan.matmuls)
    if len(plan.matmuls) > 1:  # the planner has checked these
        room, sure = 184 if first.transposed[0] else 192, 168
        sure = 0 if groups > 2 and all(first.transposed) else sure
        spans = ceil_div(first.shape[2] * first.b.dtype.bytes, 128)
        if first.promote and spans > 1:  # each adds wgmmas between two promotions
            room, sure = (112, 104) if spans == 2 else (96, 88)
            room, sure = (room, sure) if groups < 3 else (sure - 32, sure - 32)
    elif epilogue.plain:
        room, sure = 200, 192
        if first.shape[0] // (64 * first.warpgroups) > 2:  # blocks of 64 rows
            sure = 184
    elif tiles:
        room, sure = (152, 144) if groups < 3 else (96, 80)
    elif kinds:
        room, sure = (160, 152) if groups < 3 else (104, 96)
    else:
        room, sure = 200, 160
    more = " with further tiles" if tiles else " with operands or sums" if kinds else ""
    what = "the stores" if epilogue.plain else f"an epilogue{more}"
    rule = f"needs {needed} accumulator registers a thread; {room} leave room for {what} with {groups} warpgroups"
    require(needed <= room, f"Wgmma({first.name}) tile", first.shape[:2], rule, "use a smaller tile or more warpgroups")
    if needed > sure:
        text = f"{plan.name}: {needed} accumulator registers a thread beside {what} may spill to local memory. "
        warnings.warn(text + "Fix: use a smaller tile or more warpgroups.", stacklevel=4)
