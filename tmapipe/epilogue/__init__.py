"""What becomes of an accumulator before it is stored: functions, operands, outputs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from tmapipe.barrier import Role
from tmapipe.base.arithmetic import DType, ceil_div, dtype_of, fp32, total
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import Bound, check_apart, check_kind, check_memory
from tmapipe.epilogue.operands import (
    EpilogueOperand,
    EpilogueOutput,
    Matrix,
    Operands,
    Output,
    PerBatch,
    PerColumn,
    PerRow,
    Scalar,
    StoreForm,
    columns_of,
)
from tmapipe.errors import NOTHING, InputError, ScopeError, fill, frozen, must, optional, require
from tmapipe.isa import applied
from tmapipe.isa.fragment import Fragment, SlotRef, combine
from tmapipe.parts import RegisterTile, Wgmma
from tmapipe.plan.model import WARP
from tmapipe.plan.thread_layout import VectorLayout
from tmapipe.protocol.stores import Piece, PieceStore, mask_of
from tmapipe.protocol.tile import stands_for
from tmapipe.stage import TmaLoadStage, optional_hint
from tmapipe.store_pipeline import StoreStage, ThreadStoreStage

__all__ = [
    "ColumnSum", "Epilogue", "Matrix", "OperandSum", "Operands", "Output", "PerBatch", "PerColumn", "PerRow",
    "RowSum", "Scalar",
    "columns_of",
]  # fmt: skip


# ---- reductions ------------------------------------------------------------------------------------------------------
#
# Outputs of an epilogue that are sums over rows or columns: RowSum and ColumnSum.
#
# The kernel stores partial sums to a workspace in fp32, by threads, and `AddRows` adds them in a fixed order. So the
# bits are the same in every run.
#
# Along rows of the accumulators, one part per output tile: threads add up the numbers that they have of a row, piece by
# piece, while the piece is on its way to shared memory; then four lanes add theirs, and a warpgroup stores 64 sums.
#
# Along columns, one part per 64 rows: each warp adds up its 16 rows of a piece and leaves the sums in shared memory, before
# the barrier that the store of the piece waits at; after the barrier, one warp adds the sums of all four warps. Lanes
# exchange their numbers of each piece, which takes three times as long: sums of columns alone are of a transposed product.
#
# What lies outside the output does not count, whatever the epilogue gives there.


ROWS, WARPS = 64, 4  # of a piece, and those of the warpgroup that has it
UNIT = ALIGNMENT // fp32.bytes  # elements that rows which TMA loads are multiples of


class Reduction(EpilogueOutput):
    """Base of both. `along`: the output's dimension that is left."""

    along: str
    reduced = True

    def type_of(self, sums: DType) -> DType:
        return fp32

    def whole(self, values: Any, shape: tuple[int, ...]) -> np.ndarray:
        """In fp32, on the CPU."""
        whole = np.broadcast_to(np.asarray(values, np.float32), shape)
        return total(whole if self.along == "m" else whole.swapaxes(-1, -2))

    def stage(self, mma: Wgmma | RegisterTile, width: int, form: StoreForm) -> StoreStage:
        return RowParts(mma, form) if self.along == form.dims[0] else ColumnParts(mma, width, form)


@attrs.frozen
class RowSum(Reduction):
    """An output [m] in fp32 ([l, m] of a batch): the sums over n of each row of what the epilogue gives under its name."""

    along = "m"


@attrs.frozen
class ColumnSum(Reduction):
    """An output [n] in fp32 ([l, n] of a batch): the sums over m of each column of what the epilogue gives under its name."""

    along = "n"


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class Parts(StoreStage):
    """Base of what stores such sums: threads do, so many bytes at once. `across`: the output's dimensions along rows and
    columns of the accumulators."""

    across: tuple[str, str] = attrs.field(default=("m", "n"), init=False)

    def __init__(self, dims: str, source: Any, tile: int, vector: int, form: StoreForm):
        super().__init__(f"{form.batch}{dims}", source=source, tile=(tile,), stages=1, dtype=fp32)
        fill(self, vector=vector, across=form.dims)


class RowParts(Parts):
    """Stores the sums of each tile's rows to a workspace [l, tiles along columns, rows], a block of rows at a time."""

    def __init__(self, mma: Wgmma | RegisterTile, form: StoreForm):
        height = ROWS * (form.role.warps // WARPS // form.role.teams)
        rows, columns = form.dims
        super().__init__(f"{columns}_tiles {rows}_padded", mma, height, fp32.bytes, form)

    def derive(self, extents: Mapping[str, int]) -> dict[str, int]:
        rows, columns = self.across
        tiles = ceil_div(extents[columns], self.source.shape[1])  # type: ignore[union-attr]
        return {f"{columns}_tiles": tiles, f"{rows}_padded": ceil_div(extents[rows], UNIT) * UNIT}


class ColumnParts(Parts):
    """Stores the sums of each 64 rows' columns to a workspace [l, 64s of rows, columns], *width* of them at a time."""

    def __init__(self, mma: Wgmma | RegisterTile, width: int, form: StoreForm):
        rows, columns = form.dims
        last = columns if columns == "n" else f"{columns}_padded"
        super().__init__(f"{rows}_blocks {last}", mma, width, ceil_div(width, WARP) * fp32.bytes, form)

    @property
    def parts_tile(self) -> tuple[int, ...]:
        return WARPS, ceil_div(self.tile[0], WARP) * WARP  # a warp reads a whole row at once

    def derive(self, extents: Mapping[str, int]) -> dict[str, int]:
        (rows, columns), height = self.across, self.source.shape[0]  # type: ignore[union-attr]
        blocks = ceil_div(extents[rows], height) * (height // ROWS)
        return {f"{rows}_blocks": blocks, f"{columns}_padded": ceil_div(extents[columns], UNIT) * UNIT}


# ---- sums of operands ------------------------------------------------------------------------------------------------
#
# Sums of a GEMM's operands, which two warps add up from the slots that the matmul reads.
#
# load (1 warp)        a, b of k-tile 0, 1, 2, ...   -> ring of slots
# math (warpgroups)    wgmma on the slot
# add (2 warps)        read a from the slot, add; or pass the slot on. Likewise of b, with m and n exchanged:
#                      sums over k are those of the first tiles along n; for sums over m, tiles along n take k-tiles in turn
#
# The adding warps tell their own CTA alone that a slot has been read: no peer writes the operand's tiles. Telling peers, by an
# arrival that releases in cluster scope, takes as long as several k-tiles: a GEMM with sums ran at 0.67 of the plain speed.


ADD = Role(warps=2, registers=72)


def _of_zero(function: Any) -> bool:
    """Whether a function of elements leaves 0 as it is."""
    return function is None or (callable(function) and not np.any(function(np.zeros(1, np.float32))))


@attrs.frozen
class OperandSum:
    """Sums of the elements of a GEMM's operand, in fp32: ``Operand(sums={"squares": OperandSum("k", lambda x: x * x)})``.
    For `Cooperative` GEMMs of whole tiles, in clusters along m alone for sums of a, or along n for sums of b.

    Args:
        over: The dimension that is summed over: "k", which leaves a number for each row of a [m], or of b [n]; or "m" of a,
            "n" of b, which leaves one for each k, [k].
        function: Of each element, in fp32; it gives 0 for 0, which tiles have beyond the edges. None: the elements.

    Raises:
        InputError: For any other value.
    """

    over: str = attrs.field(default="k", validator=must(lambda dim: dim in ("k", "m", "n"), "is k, m or n", 'use "k"'))
    function: Callable[[Any], Any] | None = attrs.field(
        default=None, validator=must(_of_zero, "is a function of elements that gives 0 for 0", "e.g. lambda x: x * x")
    )

    def stage(self, load: TmaLoadStage, block: int, batch: str) -> ThreadStoreStage:
        """The store of the sums of what *load* loads, whose dimensions are "m k" or "n k" after *batch*; those over k are
        stored in blocks of *block* rows."""
        side, (rows, width) = load.dims[-2], load.tile
        if self.over == "k":
            return ThreadStoreStage(f"{batch}{side}", tile=(block,), role=ADD, dtype=fp32, vector=fp32.bytes)
        return SumParts(f"{batch}{side}_tiles k_padded", side, rows, width)

    def of(self, values: Fragment) -> Fragment:
        """What is added up of these elements, *values*."""
        wide = combine("widen", values)
        return wide if self.function is None else self.function(wide)


def sums_by_name(value: Any) -> Mapping[str, OperandSum]:
    """By-products of an operand: a converter. Raises `InputError` for what is no dictionary of `OperandSum`."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InputError("Operand(sums)", value, "is a dictionary by name", 'e.g. {"totals": OperandSum("k")}')
    for name, kind in value.items():
        if not isinstance(kind, OperandSum):
            raise InputError(f"sums[{name!r}]", kind, "is an OperandSum of tmapipe.epilogue", 'e.g. OperandSum("k")')
    return frozen(value)


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class SumParts(ThreadStoreStage):
    """Stores sums over the rows of each tile of an operand to a workspace [l, tiles, k], 16 bytes at once. `along`: the
    dimension of the rows, and how many a tile has."""

    along: tuple[str, int] = attrs.field(default=("m", 1), init=False)

    def __init__(self, dims: str, side: str, rows: int, width: int):
        super().__init__(dims, tile=(width,), role=ADD, dtype=fp32, vector=ALIGNMENT)
        fill(self, along=(side, rows))

    def derive(self, extents: Mapping[str, int]) -> dict[str, int]:
        side, rows = self.along
        return {self.dims[-2]: ceil_div(extents[side], rows), self.dims[-1]: ceil_div(extents["k"], UNIT) * UNIT}


@attrs.frozen
class SumsOfRows(Reduction):
    """The parts in such a workspace, of which [k] is left."""

    along = "k"


class BoundParts(PieceStore):
    """Base of both. `rows`, `columns`: where the dimensions along rows and columns of the accumulators are among the output's,
    counted from the end."""

    def __init__(self, k: Any, name: str, stage: Parts):
        super().__init__(k.isa, k.plan.store(name))
        self.rows, self.columns = (-2, -1) if stage.across == ("m", "n") else (-1, -2)

    def inside(self, piece: Piece, dim: int) -> Any:
        """How far the output goes on from the piece's first element, along *dim*."""
        return self.isa.extent(piece.output.argument, len(piece.output.dims) + dim) - piece.at[dim]


@stands_for(RowParts)
class BoundRowParts(BoundParts):
    """`RowParts` in the role that adds up. While a tile is stored, the sums so far are in registers."""

    def __init__(self, k: Any, name: str, stage: RowParts):
        super().__init__(k, name, stage)
        self.sums: Any = None
        self.whole: Any = None  # as if all of the piece's columns were inside
        self.ended: list[tuple[Piece, Any]] = []  # the last piece of each block of a tile's rows, with the sums

    def leave(self, piece: Piece, values: Fragment) -> None:
        """Adds the piece's columns, except those that the piece before had: here, while its elements are on their way to
        shared memory, which all threads then wait for. A branch would keep ptxas from adding while the fence is waited for."""
        self.whole = self._added(piece, values, None, None)

    def _added(self, piece: Piece, values: Fragment, inside: Any, whole: Any) -> Any:
        before = None if piece.first == 0 else self.sums
        return self.isa.fragments.row_sums(values, piece.width, piece.seen, inside, before, whole)

    def put(self, piece: Piece, values: Fragment) -> None:
        """Takes back what lies outside. After the last piece of a tile, stores the sums of all its rows, whose exchanges then
        overlap."""
        self.sums = self._added(piece, values, self.inside(piece, self.columns), self.whole)
        if not piece.last:
            return
        self.ended.append((piece, self.sums))
        if len(self.ended) < piece.whole.rows // piece.layout.rows:
            return
        part = piece.tile["mn"[self.columns]]
        joined = [(each, self.isa.fragments.join_row_sums(each.layout, sums)) for each, sums in self.ended]
        for each, sums in joined:
            first = each.at[self.rows] - each.layout.group(self.isa.warp) * ROWS
            self.isa.store_values(self.plan, (*each.at[:-2], part, first), sums, (0, 0), None)
        self.ended.clear()


@stands_for(ColumnParts)
class BoundColumnParts(BoundParts):
    """`ColumnParts` in the role that adds up."""

    def __init__(self, k: Any, name: str, stage: ColumnParts):
        super().__init__(k, name, stage)
        (_, columns), role = stage.parts_tile, k.role
        self.layout = VectorLayout((1, columns), columns // WARP, 1, role.first_warp, role.warps)
        self.slot = SlotRef(self.plan.buffer, k.isa.warp // WARPS - role.first_warp // WARPS)

    def reduced(self, piece: Piece, values: Fragment) -> Any:
        """Each warp's sums of the piece."""
        return self.isa.fragments.column_sums(values, piece.width, self.inside(piece, self.rows))

    def leave(self, piece: Piece, values: Any) -> None:
        self.isa.fragments.write_column_sums(values, self.slot)

    def put(self, piece: Piece, values: Any) -> None:
        """One warp stores the sums of all four, always added in the same order: warps take turns, but for the first one, which
        starts the store of d's piece."""
        first = piece.at[self.columns]
        part = piece.tile["mn"[self.rows]] * (piece.whole.rows // ROWS) + piece.strip
        isa, columns = self.isa, self.layout.columns

        def store() -> None:
            parts = (isa.fragments.read_part(self.slot, self.layout, (warp, 0)) for warp in range(WARPS))
            total = functools.reduce(operator.add, parts)
            inside = None
            if piece.width < columns:
                inside = mask_of(self.plan.name, total.columns < piece.width, total)
            isa.store_values(self.plan, (*piece.at[:-2], part, first), total, (0, 0), inside)

        isa.when(isa.warp % WARPS == 1 + piece.first // piece.width % (WARPS - 1), store)


# ---- reduced ---------------------------------------------------------------------------------------------------------
#
# Reductions: what a GEMM with outputs that are sums over rows or columns does around its kernel.


class Reductions:
    """The reductions among a GEMM's outputs. Its kernel stores parts to workspaces, and another adds these up.

    kinds: of the reductions, by name; adding: gives, for the shape of a workspace, what adds up its rows.
    """

    def __init__(self, kinds: Mapping[str, Reduction], adding: Callable[[tuple[int, ...]], Callable[[Any], Any]]):
        self.kinds, self.adding = dict(kinds), adding

    def call(self, schedule: Any, run: Callable[..., Any], tensors: tuple[Any, ...], out: Any, named: Any) -> Any:
        """Calls *run*, which makes the workspaces, then adds up the parts. Returns all outputs."""
        loads, stores = tuple(schedule.declared.loads), tuple(schedule.declared.stores)
        tensors, named = self._split((*loads, *stores), tensors, named)
        wanted = {name: named.pop(name, None) for name in self.kinds}
        wanted = {name: tensor for name, tensor in wanted.items() if tensor is not None}
        if wanted:
            self._check(schedule, wanted, {**dict(zip((*loads, *stores), tensors, strict=False)), **named}, out)
        results = dict(zip(stores, run(*tensors, out=out, **named), strict=True))
        *_, m, n = results["d"].shape
        k = (tensors[0] if tensors else named[loads[0]]).shape[-1]
        for name, kind in self.kinds.items():
            parts, extent = results[name], {"m": m, "n": n, "k": k}[kind.along]
            sums = self.adding((*parts.shape[:-1], extent))(parts[..., :extent])
            if name in wanted:
                wanted[name][...] = sums
            results[name] = wanted.get(name, sums)
        return tuple(results.values())

    def whole(self, values: Any, bound: Bound) -> dict[str, Any]:
        """*values*, which an epilogue gives for a whole output, with workspaces for those that are reduced."""
        if not isinstance(values, dict):
            fix = f"Return a dictionary of d, {', '.join(self.kinds)}."
            raise ScopeError(f"an epilogue returned a {type(values).__name__}, not one value for each output. {fix}")
        found = dict(values)
        for name, kind in self.kinds.items():
            sums = kind.whole(values[name], bound.shapes["d"])
            found[name] = np.zeros(bound.shapes[name], np.float32)
            found[name][:, :1, : sums.shape[-1]] = sums[:, None]
        return found

    def _split(
        self, names: tuple[str, ...], tensors: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The tensors by position up to the first reduction, and all others by name."""
        first = next((i for i, name in enumerate(names[: len(tensors)]) if name in self.kinds), None)
        if first is None or len(tensors) > len(names):
            return tensors, dict(named)
        moved = dict(zip(names[first:], tensors[first:], strict=False))
        for name in moved:
            if name in named:
                raise InputError(name, type(named[name]).__name__, "is given twice", "pass it once")
        return tensors[:first], {**named, **moved}

    def _check(self, schedule: Any, wanted: dict[str, Any], others: dict[str, Any], out: Any) -> None:
        """Raises `InputError` for tensors that the sums cannot be written to."""
        *batch, m, n = schedule.shape_of_output(others)
        a = next(iter(others.values()))
        for name, tensor in wanted.items():
            check_kind(name, tensor)
            check_memory(name, tensor, output=True)
            shape = (*batch, {"m": m, "n": n, "k": a.shape[-1]}[self.kinds[name].along])
            if tuple(tensor.shape) != tuple(shape):
                rule = f"has one element for each of {self.kinds[name].along}, and of the batch: {tuple(shape)}"
                raise InputError(f"{name}.shape", tuple(tensor.shape), rule, "pass such a tensor, or leave it out")
            if dtype_of(tensor, name) != fp32:
                raise InputError(name, dtype_of(tensor, name).name, "sums are in fp32", "pass a tensor of fp32")
            if type(tensor) is not type(a) or getattr(tensor, "device", None) != getattr(a, "device", None):
                raise InputError(name, type(tensor).__name__, "is of the kind and device of a", "convert or move it")
        given = {**others, **wanted} | ({} if out is None else {"d": out})
        check_apart({n: t for n, t in given.items() if hasattr(t, "shape")}, tuple(wanted))


# ---- epilogue --------------------------------------------------------------------------------------------------------
#
# Epilogue: what becomes of a matmul's sums before they are stored.


def _check_function(epilogue: Any, attribute: Any, value: Any) -> None:
    if value is not None and (not callable(value) or value is Epilogue):
        raise InputError("epilogue", value, "is a function of the sums, or an Epilogue", "e.g. lambda acc: acc * 0.5")


def _frozen(items: Any) -> Any:
    """What can be hashed, of a dictionary."""
    return frozen(items) if isinstance(items, Mapping) else items


def _check_names(epilogue: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InputError(f"Epilogue({attribute.name})", value, "is a dictionary by name", 'e.g. {"bias": PerColumn()}')


def _check_outputs(epilogue: Any, attribute: Any, value: Any) -> None:
    _check_names(epilogue, attribute, value)
    for name, kind in value.items():
        if not isinstance(kind, EpilogueOutput):
            a_class = isinstance(kind, type) and issubclass(kind, EpilogueOutput)
            fix = f"{kind.__name__}()" if a_class else f"Output({kind!r})"
            raise InputError(f"outputs[{name!r}]", kind, "is an Output, RowSum or ColumnSum of tmapipe.epilogue", fix)
        rule = "is the first output, which is always there"
        require(name != "d", "outputs['d']", kind, rule, "say dtype= or stages=")


_check_columns = must(
    optional(lambda n: isinstance(n, int) and n in range(8, 257, 8)), "is a multiple of 8 up to 256", "e.g. 32"
)


@attrs.frozen
class Epilogue:
    """A function of each element of a matmul's sums, in fp32, with its operands and outputs.

    Args:
        function: Takes the accumulator (or each accumulator) and the operands by name, and works element by element. With
            further outputs it returns a dictionary of all of them, "d" among them. None: the sums themselves.
        operands: Name -> `Matrix`, `PerBatch`, `PerColumn`, `PerRow` or `Scalar`.
        outputs: Name -> `Output`, `RowSum` or `ColumnSum`, which a call returns after d.
        dtype: Of d; None: the tensor's, or if a call makes it that of a (bf16 for fp8 operands, int32 for int8).
        stages: Output buffers of each warpgroup.
        ahead: Slots of the ring that operands are loaded into: one per tile, or with a matrix one per piece of 64 rows a
            warpgroup and up to `columns`.
        columns: Of a piece, a multiple of 8 up to 256, in which operands are loaded and outputs stored; None: 64, which is
            the most with operands or further outputs. Fewer leave more shared memory to the ring of a and b. An odd multiple
            of 8 is stored as one box, without a swizzle: for rows of d that begin within sectors of 32 bytes.
        l2_hint: Of whole outputs, "evict_first" (of outputs larger than L2), "evict_last" or "evict_normal".

    Raises:
        InputError: Operands or outputs of no known kind, or another hint.

    ::

        Epilogue(lambda acc, bias: tp.math.gelu(acc + bias), operands={"bias": PerColumn()})
        Epilogue(lambda acc: {"d": tp.math.relu(acc), "sums": acc}, outputs={"sums": Output("fp32")})
        Epilogue(lambda acc: {"d": acc, "squares": acc * acc}, outputs={"squares": RowSum()})
    """

    function: Callable[..., Any] | None = attrs.field(default=None, validator=_check_function)
    operands: Mapping[str, EpilogueOperand] = attrs.field(
        default=NOTHING, converter=_frozen, validator=_check_names, kw_only=True
    )
    outputs: Mapping[str, EpilogueOutput] = attrs.field(
        default=NOTHING, converter=_frozen, validator=_check_outputs, kw_only=True
    )
    dtype: DType | str | None = attrs.field(default=None, kw_only=True)
    stages: int = attrs.field(default=2, kw_only=True)
    ahead: int = attrs.field(default=2, kw_only=True)
    columns: int | None = attrs.field(default=None, kw_only=True, validator=_check_columns)
    l2_hint: str | None = attrs.field(default=None, kw_only=True, validator=optional_hint)

    @classmethod
    def of(cls, value: Epilogue | Callable[..., Any] | None) -> Epilogue:
        """*value*, or the epilogue of a plain function."""
        return value if isinstance(value, Epilogue) else cls(value)

    @property
    def plain(self) -> bool:
        """Whether it only stores the sums themselves."""
        return self.function is None and not self.operands and not self.outputs

    @property
    def whole_outputs(self) -> dict[str, EpilogueOutput]:
        """All outputs by name, d first."""
        return {"d": Output(self.dtype), **self.outputs}

    @property
    def reductions(self) -> dict[str, Reduction]:
        """The outputs that are sums of rows or columns."""
        return {name: kind for name, kind in self.outputs.items() if isinstance(kind, Reduction)}

    def values(self, sums: tuple[Any, ...], operands: Mapping[str, Any]) -> Any:
        """What the function makes of whole *sums* and *operands*, NumPy arrays in fp32: an array, or several by name."""
        return sums[0] if self.function is None else applied(self.function, sums, operands)
