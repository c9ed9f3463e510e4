"""Fragments in the machine: the calling warp's part as NumPy arrays, or None where there is no data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from tmapipe.errors import InputError, ScopeError
from tmapipe.isa import ops
from tmapipe.isa.fragment import Fragment, applied, where_is
from tmapipe.isa.values import SlotRef
from tmapipe.machine import elements
from tmapipe.machine.live import Live
from tmapipe.machine.memory import Accumulator, convert
from tmapipe.machine.raw_names import raw_name
from tmapipe.machine.reductions import Reductions
from tmapipe.machine.sent import SentFragments
from tmapipe.machine.varying import Condition, Varying
from tmapipe.plan.model import Buffer, Distributed, Matmul, RoleWarps
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout, VectorLayout

if TYPE_CHECKING:
    from tmapipe.machine.warp import MachineIsa

__all__ = ["MachineFragments"]


class MachineFragments(Reductions, SentFragments):
    """Methods as documented in `tmapipe.isa.fragments.Fragments`."""

    def __init__(self, isa: MachineIsa):
        self.isa, self.memory, self.exchanges = isa, isa.memory, {}
        self.live: Live | None = None

    def used(self, values: Fragment) -> None:
        if self.live is not None:
            self.live.use(values)

    # ---- accumulators ---------------------------------------------------------------------------------------------

    def accumulator(self, matmul: Matmul, empty: bool = True) -> Any:
        self.isa.emit(ops.AccumulatorWrite(matmul.name))
        return None if self.memory is None else Accumulator(matmul, self.isa.warp, empty)

    def accumulator_promote(self, matmul: Matmul, acc: Any) -> None:
        self.isa.emit(ops.AccumulatorWrite(matmul.name))  # the sums are in fp32 here anyway

    def accumulator_scale(self, matmul: Matmul, acc: Any, by: Fragment) -> None:
        self.isa.emit(ops.AccumulatorWrite(matmul.name))
        factors = self.expand(AccumulatorLayout.of(matmul), by.along, by.data, "tile")
        if self.memory is not None:
            with np.errstate(all="ignore"):
                acc.values *= factors

    def operand(self, matmul: Matmul, values: Fragment) -> Any:
        self.isa.emit(ops.AccumulatorWrite(matmul.name))
        data = values.data
        return None if self.memory is None else convert(data, matmul.b.dtype).astype(np.float32)

    def accumulator_columns(self, matmul: Matmul, acc: Any, block: int, first: int, columns: int) -> Fragment:
        values = self._accumulated(matmul, acc)
        data = None if values is None else values[block, :, first : first + columns].copy()
        return Fragment(self, None, "tile", matmul.b.dtype.kind, data)

    def accumulator_values(self, matmul: Matmul, acc: Any) -> Fragment:
        values = self._accumulated(matmul, acc)
        data = None if values is None else values.copy()
        made = Fragment(self, AccumulatorLayout.of(matmul), "tile", matmul.b.dtype.kind, data)
        if self.live is not None:
            self.live.of_matmul.add(id(made))
        return made

    def _accumulated(self, matmul: Matmul, acc: Any) -> Any:
        self.isa.emit(ops.AccumulatorRead(matmul.name))
        if self.memory is None:
            return None
        if not acc.defined:
            raise ScopeError(f"accumulate(empty=False) of {matmul.name} ended without acc.add(). Leave out empty=.")
        return acc.values

    # ---- pieces ---------------------------------------------------------------------------------------------------

    def columns_of(self, values: Fragment, block: int, first: int, columns: int) -> Fragment:
        whole = values.data
        data = None if self.memory is None else whole[block, :, first : first + columns]
        return Fragment(self, None, "tile", values.kind, data)

    def write_columns(self, matmul: Distributed, values: Fragment, slot: SlotRef, *, transposed: bool = False) -> None:
        if not transposed:
            return self._write_rows(slot, values.data)
        isa, mine = self.isa, self.isa.warp % 4
        if self.memory is not None:
            columns = slot.buffer.tile[-2]
            at = np.arange(columns)[None], 16 * mine + np.arange(16)[:, None]
            isa.give((at, _broadcast(values.data, columns)))
        isa.emit(ops.SlotWrite(isa.slot(slot.buffer, slot.stage), mine, 4, "columns"))

    def row_sums(
        self, matmul: Distributed, values: Fragment, columns: int, first: int, inside: int, before: Any
    ) -> Any:
        if self.memory is None:
            return None
        counted = _broadcast(values.data, columns)[:, first : max(first, inside)]
        with np.errstate(all="ignore"):  # infinities and NaN are values here, as on the GPU
            sums = counted.sum(1, dtype=np.float32)
            return sums if before is None else before + sums

    def write_row_sums(self, matmul: Distributed, sums: Any, slot: SlotRef) -> None:
        self._write_rows(slot, sums)

    def column_sums(self, matmul: Distributed, values: Fragment, columns: int, inside: int) -> Any:
        if self.memory is None:
            return None
        counted = _broadcast(values.data, columns)[: max(0, inside - 16 * (self.isa.warp % 4))]
        with np.errstate(all="ignore"):
            return counted.sum(0, dtype=np.float32)

    def write_column_sums(self, matmul: Distributed, sums: Any, slot: SlotRef) -> None:
        self._write_rows(slot, sums)

    def read_columns(
        self, matmul: Distributed, slot: SlotRef, along: tuple[str, ...], columns: int, first: int = 0
    ) -> Fragment:
        number, warps = self.isa.slot(slot.buffer, slot.stage), 4 * matmul.warpgroups
        mine = matmul.group(self.isa.warp) * 4 + self.isa.warp % 4
        by_rows = along == ("rows", "columns")
        self.isa.emit(ops.SlotRead(number, mine, warps, "rows") if by_rows else ops.SlotRead(number, 0, 1, "rows"))
        if self.memory is None:
            return Fragment(self, None, "tile", "fp32", None)
        values = self.memory.results[self.isa.agent].astype(np.float32)
        rows = slice(first + 16 * mine, first + 16 * mine + 16)
        if along == ("columns", "rows"):
            values = values[:, rows].T
        elif along == ("rows",):
            values = values[rows, None]
        elif not by_rows:
            values = values[None, first : first + (columns if along else 1)]
        return Fragment(self, None, "tile", "fp32", values)

    def apply(self, function: Callable[..., Any], fragments: Sequence[Fragment], named: dict[str, Fragment]) -> Any:
        made = applied(function, [self._widened(f) for f in fragments], named)
        if isinstance(made, dict):
            return {name: self._result(value, function) for name, value in made.items()}
        return self._result(made, function)

    def _widened(self, values: Fragment) -> Fragment:
        return Fragment(self, None, "tile", "fp32", self.convert(values.data, values.kind, "fp32"))

    def _result(self, value: Any, function: Callable[..., Any]) -> Fragment | None:
        if value is None or isinstance(value, Fragment):
            return value if value is None else self._widened(value)
        if not isinstance(value, (Number, np.generic)):
            text = f"{where_is(function)} returned a {type(value).__name__} in the place of what it computes"
            raise ScopeError(f"{text}. Return the value, or with further outputs a dictionary of all.")
        return Fragment(self, None, "tile", "fp32", self.number(value, "fp32"))

    # ---- slots ----------------------------------------------------------------------------------------------------

    def read(self, slot: SlotRef, layout: ThreadLayout, along: str = "tile") -> Fragment:
        isa, number = self.isa, self.isa.slot(slot.buffer, slot.stage)
        kind = slot.buffer.dtype.kind
        parts = self._parts(layout) if along == "tile" else [(0, 1, "rows")]
        found = []
        for part, count, cut in parts:
            isa.emit(ops.SlotRead(number, part, count, cut))
            if self.memory is not None:
                found.append(self.memory.results[isa.agent].astype(elements.KINDS[kind]))
        data = None
        if found:
            data = found[0] if along != "tile" else np.concatenate(found).reshape(self.indices_of(layout)[0].shape)
        return Fragment(self, layout, along, kind, data)

    def read_transposed(self, slot: SlotRef, layout: AccumulatorLayout) -> Fragment:
        self.isa.emit(ops.SlotRead(self.isa.slot(slot.buffer, slot.stage), 0, 1, "rows"))
        kind, data = slot.buffer.dtype.kind, None
        if self.memory is not None:
            rows, columns = self.indices_of(layout)
            data = self.memory.results[self.isa.agent][columns, rows].astype(elements.KINDS[kind])
        return Fragment(self, layout, "tile", kind, data)

    def read_peer(self, slot: SlotRef, cta: Any, layout: ThreadLayout, at: tuple[Any, Any]) -> Fragment:
        self.isa.emit(ops.PeerRead(self.isa.slot(slot.buffer, slot.stage), 1 << cta))
        return self._part_of(slot, layout, at)

    def read_part(self, slot: SlotRef, layout: ThreadLayout, at: tuple[Any, Any]) -> Fragment:
        self.isa.emit(ops.SlotRead(self.isa.slot(slot.buffer, slot.stage), 0, 1, "rows"))
        return self._part_of(slot, layout, at)

    def _part_of(self, slot: SlotRef, layout: ThreadLayout, at: tuple[Any, Any]) -> Fragment:
        """The warp's elements of a part of the slot that has been read."""
        kind = slot.buffer.dtype.kind
        if self.memory is None:
            return Fragment(self, layout, "tile", kind, None)
        rows, columns = self.indices_of(layout)
        whole = self.memory.results[self.isa.agent].astype(elements.KINDS[kind])
        whole = whole.reshape(-1, whole.shape[-1])
        if not (
            at[0] >= 0 and at[0] + layout.rows <= len(whole) and at[1] >= 0 and at[1] + layout.columns <= whole.shape[1]
        ):
            rule = f"lies inside the tile of {slot.buffer.tile}, with {layout.rows} x {layout.columns} elements"
            raise InputError(f"slot.{slot.buffer.name}.read(at)", at, rule, "begin it earlier")
        return Fragment(self, layout, "tile", kind, whole[rows + at[0], columns + at[1]])

    def read_number(self, slot: SlotRef, index: Any) -> Fragment:
        self.isa.emit(ops.SlotRead(self.isa.slot(slot.buffer, slot.stage), 0, 1, "rows"))
        kind = slot.buffer.dtype.kind
        if self.memory is None:
            return Fragment(self, None, "one", kind, None)
        return Fragment(self, None, "one", kind, elements.KINDS[kind](self.memory.results[self.isa.agent][index]))

    def write(self, slot: SlotRef, values: Fragment, at: tuple[int, int] | None = None) -> None:
        isa, number, layout, data = self.isa, self.isa.slot(slot.buffer, slot.stage), values.layout, values.data
        assert layout is not None
        if values.along != "tile":
            return self._write_numbers(number, values)
        parts = self._parts(layout)
        if at is not None:
            return self._write_part(number, slot.buffer, values, at)
        shares = [None] * len(parts) if self.memory is None else np.split(data, len(parts))
        for (part, count, cut), share in zip(parts, shares, strict=True):
            isa.give(share)
            isa.emit(ops.SlotWrite(number, part, count, cut))

    def _write_part(self, number: int, buffer: Buffer, values: Fragment, at: tuple[int, int]) -> None:
        """One of the blocks into which fragments of this shape cut the tile."""
        layout = values.layout
        assert layout is not None
        parts, across = self._parts(layout), buffer.tile[1] // layout.columns
        block, blocks = at[0] // layout.rows * across + at[1] // layout.columns, buffer.tile[0] // layout.rows * across
        given: list[Any] = [None] * len(parts)
        if self.memory is not None:
            each = np.broadcast_arrays(*self.indices_of(layout), values.data)
            shares = zip(*(np.split(array, len(parts)) for array in each), strict=True)
            given = [((rows + at[0], columns + at[1]), share) for rows, columns, share in shares]
        for (part, count, cut), share in zip(parts, given, strict=True):
            self.isa.give(share)
            how = f"blocks of {layout.rows} x {layout.columns}, {cut}"
            self.isa.emit(ops.SlotWrite(number, block * count + part, blocks * count, how))

    def _write_numbers(self, number: int, values: Fragment) -> None:
        """One number a row or column, written by the first of the warps that have it."""
        layout, by_row = values.layout, values.along == "rows"
        assert layout is not None
        mine = layout.warp(self.isa.warp)
        if mine % layout.row_warps if by_row else mine >= layout.row_warps:
            return
        if self.memory is not None:
            at = np.unique(self.indices_of(layout)[0 if by_row else 1])
            self.isa.give((at, values.data[at]))
        part, writers = (
            (mine // layout.row_warps, layout.warps // layout.row_warps) if by_row else (mine, layout.row_warps)
        )
        self.isa.emit(ops.SlotWrite(number, part, writers, f"numbers of {values.along}"))

    def places(self, values: Fragment) -> tuple[np.ndarray, np.ndarray] | None:
        """Where in the tile, row by row, the warp's values are, and these; None without data."""
        assert values.layout is not None
        if self.memory is None:
            return None
        rows, columns = self.indices_of(values.layout)
        if values.along == "tile":
            at = rows * values.layout.columns + columns
            return at.ravel(), np.broadcast_to(values.data, at.shape).ravel()
        at = np.unique(rows if values.along == "rows" else columns)  # the same numbers, if other warps have them too
        return at, values.data[at]

    def _parts(self, layout: ThreadLayout) -> list[tuple[int, int, str]]:
        """(part, parts, cut) of each access to a slot."""
        if isinstance(layout, VectorLayout):
            cut = f"rows in vectors of {layout.width}" if layout.by_rows else f"vectors of {layout.width}"
            return [(layout.warp(self.isa.warp), layout.warps, cut)]
        assert isinstance(layout, AccumulatorLayout)
        group = layout.group(self.isa.warp)
        strips = layout.blocks * layout.warpgroups * 4
        of_block = [4 * (block * layout.warpgroups + group) + self.isa.warp % 4 for block in range(layout.blocks)]
        return [(part, strips, "rows") for part in of_block]

    def indices_of(self, layout: ThreadLayout) -> tuple[np.ndarray, np.ndarray]:
        return _indices_of(layout, self.isa.warp)

    def raw(
        self,
        gpu: Callable[..., None],
        cpu: Callable[..., None] | None,
        accesses: Sequence[tuple[SlotRef, str]],
        role: RoleWarps,
        proxy: str = "generic",
    ) -> None:
        isa = self.isa
        if self.memory is not None and cpu is None:
            rule = "is what the model runs in place of CuTe DSL"
            raise InputError("k.raw(cpu)", cpu, rule, "pass a function of arrays")
        mine, shares = (isa.warp - role.first_warp) % role.team_warps, role.team_warps
        name = raw_name(gpu)
        arrays: list[Any] = []
        for slot, kind in accesses:
            number = isa.slot(slot.buffer, slot.stage)
            if kind != "write":
                part, parts, cut = (0, 1, "whole") if kind == "read" else (mine, shares, "rows")
                isa.emit(ops.SlotRead(number, part, parts, f"{cut}/{name}", proxy))
            if self.memory is not None:
                rows = slot.buffer.tile[0] // shares
                fresh = np.zeros((rows, *slot.buffer.tile[1:]), slot.buffer.dtype.numpy)
                arrays.append(fresh if kind == "write" else self.memory.results[isa.agent])
        if self.memory is not None and cpu is not None:
            cpu(*arrays)
        for i, (slot, kind) in enumerate(accesses):
            if kind != "read":
                isa.give(arrays[i] if arrays else None)
                isa.emit(ops.SlotWrite(isa.slot(slot.buffer, slot.stage), mine, shares, f"rows/{name}", proxy))

    def _write_rows(self, slot: SlotRef, values: Any) -> None:
        """The warp's quarter of a slot's rows."""
        isa = self.isa
        isa.give(values)
        isa.emit(ops.SlotWrite(isa.slot(slot.buffer, slot.stage), isa.warp % 4, 4, "rows"))

    # ---- data -----------------------------------------------------------------------------------------------------

    def kind_of(self, name: str, value: Any) -> str:
        if isinstance(value, (bool, np.bool_)):
            return "bool"
        if isinstance(value, (int, np.integer)):
            return "int32"
        if isinstance(value, (float, np.floating)):
            return "fp32"
        if isinstance(value, Condition):
            return "bool"
        if isinstance(value, Varying):
            return "int32"  # an extent or a coordinate that the check leaves open
        raise ScopeError(f"{name} of a fragment and {type(value).__name__}. It takes fragments and numbers.")

    def scalar(self, value: Any, kind: str) -> Any:
        return None if self.memory is None else elements.KINDS[kind](value)

    number = scalar

    def convert(self, data: Any, kind: str, to: str) -> Any:
        return data if kind == to or data is None else np.asarray(data).astype(elements.KINDS[to])

    def expand(self, layout: ThreadLayout | None, along: str, data: Any, to: str) -> Any:
        if data is None or self.memory is None or along == to or layout is None:
            return data if self.memory is not None else None
        rows, columns = self.indices_of(layout)
        if along == "one":
            shape = {"tile": rows.shape, "rows": (layout.rows,), "columns": (layout.columns,)}[to]
            return np.broadcast_to(data, shape)
        return data[rows if along == "rows" else columns]

    def indices(self, layout: ThreadLayout, along: str) -> Any:
        if self.memory is None:
            return None
        return np.arange(layout.rows if along == "rows" else layout.columns, dtype=np.int32)

    def elementwise(self, name: str, operands: list[Any]) -> Any:
        return None if self.memory is None else elements.apply(name, operands)


_indices_of = functools.lru_cache(maxsize=256)(elements.indices_of)


def _broadcast(values: Any, columns: int) -> np.ndarray:
    """A warp's 16 x *columns* values: an epilogue may have given fewer, or one, for all."""
    return np.broadcast_to(np.asarray(values, np.float32), (16, columns))
