"""Fragments in the machine: the calling warp's part as a NumPy array, or a placeholder where there is no data."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from tmapipe.errors import InputError, ScopeError
from tmapipe.isa import ops
from tmapipe.isa.values import SlotRef
from tmapipe.machine.memory import Accumulator
from tmapipe.machine.nodata import NO_DATA, NoData, Values
from tmapipe.plan.model import Distributed, Matmul, RoleWarps

if TYPE_CHECKING:
    from tmapipe.machine.warp import MachineIsa

__all__ = ["MachineFragments"]


class MachineFragments:
    """Methods as documented in `tmapipe.isa.fragments.Fragments`."""

    def __init__(self, isa: MachineIsa):
        self.isa, self.memory = isa, isa.memory

    # ---- accumulators ---------------------------------------------------------------------------------------------

    def accumulator(self, matmul: Matmul, empty: bool = True) -> Any:
        self.isa.emit(ops.AccumulatorWrite(matmul.name))
        return NO_DATA if self.memory is None else Accumulator(matmul, self.isa.warp, empty)

    def accumulator_promote(self, matmul: Matmul, acc: Any) -> None:
        self.isa.emit(ops.AccumulatorWrite(matmul.name))  # the sums are in fp32 here anyway

    def accumulator_columns(self, matmul: Matmul, acc: Any, block: int, first: int, columns: int) -> Any:
        self.isa.emit(ops.AccumulatorRead(matmul.name))
        if self.memory is None:
            return NO_DATA
        if not acc.defined:
            raise ScopeError(f"accumulate(empty=False) of {matmul.name} ended without acc.add(). Leave out empty=.")
        return acc.values[block, :, first : first + columns].copy()

    # ---- distributed like an accumulator --------------------------------------------------------------------------

    def write_columns(self, matmul: Distributed, values: Any, slot: SlotRef) -> None:
        self._write_rows(slot, values)

    def row_sums(self, matmul: Distributed, values: Any, columns: int, first: int, inside: int, before: Any) -> Any:
        if self.memory is None:
            return NO_DATA
        counted = _broadcast(values, columns)[:, first : max(first, inside)]
        with np.errstate(all="ignore"):  # infinities and NaN are values here, as on the GPU
            sums = counted.sum(1, dtype=np.float32)
            return sums if before is None else before + sums

    def write_row_sums(self, matmul: Distributed, sums: Any, slot: SlotRef) -> None:
        self._write_rows(slot, sums)

    def column_sums(self, matmul: Distributed, values: Any, columns: int, inside: int) -> Any:
        if self.memory is None:
            return NO_DATA
        counted = _broadcast(values, columns)[: max(0, inside - 16 * (self.isa.warp % 4))]
        with np.errstate(all="ignore"):
            return counted.sum(0, dtype=np.float32)

    def write_column_sums(self, matmul: Distributed, sums: Any, slot: SlotRef) -> None:
        self._write_rows(slot, sums)

    def read_columns(
        self, matmul: Distributed, slot: SlotRef, along: tuple[str, ...], columns: int, first: int = 0
    ) -> Any:
        number, warps = self.isa.slot(slot.buffer, slot.stage), 4 * matmul.warpgroups
        mine = matmul.group(self.isa.warp) * 4 + self.isa.warp % 4
        whole = along != ("m", "n")
        self.isa.emit(ops.SlotRead(number, 0, 1, "rows") if whole else ops.SlotRead(number, mine, warps, "rows"))
        if self.memory is None:
            return NO_DATA
        values = self.memory.results[self.isa.agent].astype(np.float32)
        if along == ("m",):
            return values[first + 16 * mine : first + 16 * mine + 16, None]
        return values[None, first : first + (columns if along else 1)] if whole else values

    def apply(self, function: Callable[..., Any], fragments: Sequence[Any], named: dict[str, Any]) -> Any:
        widened = (
            f.astype(np.float32).view(Values) if isinstance(f, np.ndarray) else f for f in fragments
        )  # from int32, of integers
        values = {name: f.view(Values) if isinstance(f, np.ndarray) else f for name, f in named.items()}
        made = _called(function, list(widened), values)
        for value in made.values() if isinstance(made, dict) else (made,):
            if not isinstance(value, (NoData, np.ndarray, np.generic, float, int, type(None))):
                raise ScopeError(f"an epilogue returned {type(value).__name__}; it returns fragments.")
        return made

    # ---- distributed over a role's threads ------------------------------------------------------------------------

    def read(self, slot: SlotRef, role: RoleWarps) -> Any:
        isa = self.isa
        isa.emit(ops.SlotRead(isa.slot(slot.buffer, slot.stage), isa.warp - role.first_warp, role.warps))
        return NO_DATA if self.memory is None else self.memory.results[isa.agent]

    def write(self, slot: SlotRef, values: Any, role: RoleWarps) -> None:
        isa = self.isa
        if not isinstance(values, (NoData, np.ndarray, Number, type(None))):
            raise InputError("write(values)", values, "is a fragment", "compute values from slot.x.read()")
        share = math.prod(slot.buffer.tile) // role.warps
        if isinstance(values, np.ndarray) and values.shape != (share,):
            rule = f"is the shape of a warp's share of {slot.buffer.name}'s tile, {share} elements"
            fix = "compute values from slot.x.read(), which is distributed alike"
            raise InputError("write(values)", values.shape, rule, fix)
        isa.give(values)
        isa.emit(ops.SlotWrite(isa.slot(slot.buffer, slot.stage), isa.warp - role.first_warp, role.warps))

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
            raise InputError(
                "k.raw(cpu)", cpu, "is what the model runs in place of CuTe DSL", "pass a function of arrays"
            )
        mine, shares = (isa.warp - role.first_warp) % role.team_warps, role.team_warps
        name = _name(gpu)
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


def _called(function: Callable[..., Any], fragments: Sequence[Any], named: dict[str, Any]) -> Any:
    try:
        return function(*fragments, **named)
    except TypeError:
        try:
            inspect.signature(function).bind(*fragments, **named)
        except TypeError as error:
            given = [f"{len(fragments)} accumulator{'s' * (len(fragments) != 1)}", *named]
            raise ScopeError(f"an epilogue is called with {', '.join(given)}: {error}.") from None
        raise


def _broadcast(values: Any, columns: int) -> np.ndarray:
    """A warp's 16 x *columns* values: an epilogue may have given fewer, or one, for all."""
    return np.broadcast_to(np.asarray(values, np.float32), (16, columns))


def _name(function: Callable[..., None]) -> str:
    """A raw function's name and first line, which tell it from others."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return name if code is None else f"{name} (line {code.co_firstlineno})"
