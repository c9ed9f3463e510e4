"""Fragments in the machine: the calling warp's part as NumPy arrays, or None where there is no data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from tmapipe.arithmetic import total
from tmapipe.errors import InputError, ScopeError
from tmapipe.isa import ops
from tmapipe.isa.fragment import Fragment, applied, where_is
from tmapipe.isa.raw import call_raw
from tmapipe.isa.values import SlotRef
from tmapipe.machine import elements
from tmapipe.machine.accesses import WHOLE, Cut, of_data
from tmapipe.machine.memory import Accumulator, convert
from tmapipe.machine.raw_names import raw_name
from tmapipe.machine.reductions import Reductions
from tmapipe.plan.model import Barrier, Distributed, Matmul, RoleWarps
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout

if TYPE_CHECKING:
    from tmapipe.machine.warp import MachineIsa

__all__ = ["MachineFragments"]


class MachineFragments(Reductions):
    """Methods as documented in `tmapipe.isa.fragments.Fragments`."""

    def __init__(self, isa: MachineIsa):
        self.isa, self.memory, self.exchanges = isa, isa.memory, {}

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

    def packed(self, matmul: Matmul, values: Fragment) -> Any:
        data = values.data
        return None if self.memory is None else convert(data, matmul.b.dtype).astype(np.float32)

    def operand(self, matmul: Matmul, values: Fragment) -> Any:
        self.isa.emit(ops.AccumulatorWrite(matmul.name))
        return values.data if values.kind == "operand" else self.packed(matmul, values)

    def accumulator_columns(self, matmul: Matmul, acc: Any, block: int, first: int, columns: int) -> Fragment:
        values = self._accumulated(matmul, acc)
        data = None if values is None else values[block, :, first : first + columns].copy()
        return Fragment(self, None, "tile", matmul.b.dtype.kind, data)

    def accumulator_values(self, matmul: Matmul, acc: Any) -> Fragment:
        values = self._accumulated(matmul, acc)
        data = None if values is None else values.copy()
        return Fragment(self, AccumulatorLayout.of(matmul), "tile", matmul.b.dtype.kind, data)

    def _accumulated(self, matmul: Matmul, acc: Any) -> Any:
        self.isa.emit(ops.AccumulatorRead(matmul.name))
        if self.memory is None:
            return None
        if not acc.defined:
            raise ScopeError(f"accumulate(empty=False) of {matmul.name} ended without acc.add(). Leave out empty=.")
        return acc.values

    # ---- reductions -----------------------------------------------------------------------------------------------

    def reduce(self, values: Fragment, op: str, along: str, inside: Any = None, surely: Any = None) -> Fragment:
        self.isa.reduces(values, along, inside[1] if isinstance(inside, tuple) else inside)
        return super().reduce(values, op, along, inside, surely)

    # ---- pieces ---------------------------------------------------------------------------------------------------

    def columns_of(self, values: Fragment, block: int, first: int, columns: int) -> Fragment:
        whole = values.data
        data = None if self.memory is None else whole[block, :, first : first + columns]
        return Fragment(self, None, "tile", values.kind, data)

    def write_columns(self, values: Fragment, slot: SlotRef, *, transposed: bool = False) -> None:
        if not transposed:
            return self._write(slot, self._piece(values, slot.buffer.tile[-1]), self._quarter())
        mine, columns = self.isa.warp % 4, slot.buffer.tile[-2]
        at = None if self.memory is None else 64 * np.arange(columns) + 16 * mine + np.arange(16)[:, None]
        self._write(slot, self._piece(values, columns), (mine, 4, "columns"), at)

    def _quarter(self) -> Cut:
        """The warp's part of 64 rows."""
        return self.isa.warp % 4, 4, "rows"

    @of_data
    def _piece(self, values: Fragment, columns: int) -> np.ndarray:
        """A warp's 16 x *columns* values: an epilogue may have given fewer, or one, for all."""
        return np.broadcast_to(np.asarray(values.data, np.float32), (16, columns))

    @of_data
    def row_sums(self, values: Fragment, columns: int, first: int, inside: int, before: Any) -> Any:
        sums = total(self._piece(values, columns)[:, first : max(first, inside)])
        return sums if before is None else before + sums

    @of_data
    def column_sums(self, values: Fragment, columns: int, inside: int) -> Any:
        rows = max(0, inside - 16 * (self.isa.warp % 4))
        return total(self._piece(values, columns)[:rows].T)

    def write_row_sums(self, sums: Any, slot: SlotRef) -> None:
        self._write(slot, sums, self._quarter())

    write_column_sums = write_row_sums

    def read_columns(
        self, matmul: Distributed, slot: SlotRef, along: tuple[str, ...], columns: int, first: int = 0
    ) -> Fragment:
        mine = matmul.group(self.isa.warp) * 4 + self.isa.warp % 4
        by_rows = along == ("rows", "columns")
        values = self._read(slot, (mine, 4 * matmul.warpgroups, "rows") if by_rows else WHOLE)
        if values is not None and not by_rows:
            rows = slice(first + 16 * mine, first + 16 * mine + 16)
            if along == ("columns", "rows"):
                values = values[:, rows].T
            elif along == ("rows",):
                values = values[rows, None]
            else:
                values = values[None, first : first + (columns if along else 1)]
        return self._in_fp32(values)

    def _in_fp32(self, values: Any) -> Fragment:
        return Fragment(self, None, "tile", "fp32", None if values is None else values.astype(np.float32))

    # ---- to other CTAs --------------------------------------------------------------------------------------------

    def send(self, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Any, share: Any, shares: int) -> None:
        self._send(values.data, slot, barrier, cta, share, shares)

    def send_tile(self, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Any) -> None:
        layout = values.layout
        assert layout is not None
        self._send(self.places(values), slot, barrier, cta, layout.warp(self.isa.warp), layout.warps)

    def _send(self, given: Any, slot: SlotRef, barrier: Barrier, cta: Any, share: Any, shares: int) -> None:
        isa = self.isa
        isa.give(given)
        place, bar = isa.slot(slot.buffer, slot.stage), isa.bar(barrier, slot.stage)
        isa.emit(ops.StAsync(place, bar, slot.buffer.slot_bytes // shares, 1 << cta, (), share, shares))

    # ---- epilogues ------------------------------------------------------------------------------------------------

    def apply(self, function: Callable[..., Any], fragments: Sequence[Fragment], named: dict[str, Fragment]) -> Any:
        made = applied(function, [self._in_fp32(f.data) for f in fragments], named)
        if isinstance(made, dict):
            return {name: self._result(value, function) for name, value in made.items()}
        return self._result(made, function)

    def _result(self, value: Any, function: Callable[..., Any]) -> Fragment | None:
        if value is None or isinstance(value, Fragment):
            return value if value is None else self._in_fp32(value.data)
        if not isinstance(value, (Number, np.generic)):
            text = f"{where_is(function)} returned a {type(value).__name__} in the place of what it computes"
            raise ScopeError(f"{text}. Return the value, or with further outputs a dictionary of all.")
        return Fragment(self, None, "tile", "fp32", self.number(value, "fp32"))

    # ---- raw code -------------------------------------------------------------------------------------------------

    def raw(
        self,
        gpu: Callable[..., None],
        cpu: Callable[..., None] | None,
        accesses: Sequence[tuple[SlotRef, str]],
        role: RoleWarps,
        proxy: str = "generic",
    ) -> None:
        if self.memory is not None and cpu is None:
            rule = "is what the model runs in place of CuTe DSL"
            raise InputError("k.raw(cpu)", cpu, rule, "pass a function of arrays")
        mine, shares = (self.isa.warp - role.first_warp) % role.team_warps, role.team_warps
        name = raw_name(gpu)
        arrays: list[Any] = []
        for slot, kind in accesses:
            cut = (0, 1, f"whole/{name}") if kind == "read" else (mine, shares, f"rows/{name}")
            if kind != "write":
                arrays.append(self._read(slot, cut, proxy=proxy))
            else:
                tile, dtype = slot.buffer.tile, slot.buffer.dtype.numpy
                arrays.append(None if self.memory is None else np.zeros((tile[0] // shares, *tile[1:]), dtype))
        if self.memory is not None and cpu is not None:
            call_raw(cpu, arrays, self.isa, role)
        for (slot, kind), array in zip(accesses, arrays, strict=True):
            if kind != "read":
                self._write(slot, array, (mine, shares, f"rows/{name}"), proxy=proxy)

    def only_inside(
        self, tile: Fragment, along: str, first: Any, end: Any, surely: tuple[int, int], other: Any
    ) -> Fragment:
        low, high = surely
        if self.memory is not None and low < high and not ((first or 0) <= low and high <= end):
            rule = f"are {along} that count, but those that do are {first or 0} to {end}"
            raise InputError("reduction of a tile (surely)", surely, rule, "say so of those alone that always do")
        return super().only_inside(tile, along, first, end, surely, other)

    # ---- data -----------------------------------------------------------------------------------------------------

    numbers = (("bool", (bool, np.bool_)), ("int32", (int, np.integer)), ("fp32", (float, np.floating)))

    @of_data
    def number(self, value: Any, kind: str) -> Any:
        return elements.KINDS[kind](value)

    def convert(self, data: Any, kind: str, to: str) -> Any:
        return data if kind == to or data is None else np.asarray(data).astype(elements.KINDS[to])

    @of_data
    def expand(self, layout: ThreadLayout | None, along: str, data: Any, to: str) -> Any:
        if along == to or layout is None:
            return data
        if along == "rows" and to == "parts":
            return np.broadcast_to(data[:, None], (layout.rows, layout.row_lanes))
        rows, columns = self._indices(layout)
        if along == "one":
            parts = layout.rows, layout.row_lanes
            shape = {"tile": rows.shape, "rows": (layout.rows,), "columns": (layout.columns,), "parts": parts}[to]
            return np.broadcast_to(data, shape)
        return data[rows if along == "rows" else columns]

    @of_data
    def indices(self, layout: ThreadLayout, along: str) -> Any:
        return np.arange(layout.rows if along == "rows" else layout.columns, dtype=np.int32)

    @of_data
    def elementwise(self, name: str, operands: list[Any]) -> Any:
        return elements.apply(name, operands)
