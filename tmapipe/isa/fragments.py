"""Fragments: values spread over the registers of the threads of a role, and what bodies do with them.

A fragment is a NumPy array (the calling warp's part) in the machine and a ``TensorSSA`` when traced. Each method is made of
instructions (`tmapipe.isa.compute`), or of registers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tmapipe.isa.values import Fragment, SlotRef, Value
from tmapipe.plan.model import Matmul, RoleWarps

__all__ = ["Fragments"]


class Fragments(Protocol):
    """Of one warp."""

    def accumulator(self, matmul: Matmul, empty: bool = True) -> Fragment:
        """Registers for this warpgroup's part of ``acc[m, n]``, in fp32, or int32 of int8 operands: zero, until the first
        wgmma. The same ones at each call, so that only the last one called can be used. empty: whether they may be read
        without one."""

    def accumulator_promote(self, matmul: Matmul, acc: Fragment) -> None:
        """Adds what wgmma has summed since the last time to sums in fp32, and lets the next wgmma start from zero. All wgmma
        groups must be complete."""

    def accumulator_columns(self, matmul: Matmul, acc: Fragment, block: int, first: int, columns: int) -> Fragment:
        """The values (of the sums' type, 64 x *columns* over the warpgroup) of columns [first, first + columns) of row block
        *block* of *acc*: the tile's rows ``(block * warpgroups + g) * 64`` on. All wgmma groups must be complete."""

    def write_columns(self, matmul: Matmul, values: Fragment, slot: SlotRef) -> None:
        """Converts *values* (as `accumulator_columns` deals them: 64 x columns, 16 rows a warp) to the slot's type and
        writes them to the slot, whose extents are (64, columns), by ``stmatrix`` or ``st.shared``. Generic proxy."""

    def row_sums(
        self, matmul: Matmul, values: Fragment, columns: int, first: int, inside: Value, before: Fragment | None
    ) -> Fragment:
        """*before* (None: zero) plus, for each row, the sum of *values* (as `accumulator_columns` deals them: 64 x *columns*,
        fp32) in columns [first, inside): what the others are does not matter. first: a multiple of 8; inside: at run time,
        perhaps negative or more than there are. For `write_row_sums` alone, since each thread has sums of its own columns."""

    def write_row_sums(self, matmul: Matmul, sums: Fragment, slot: SlotRef) -> None:
        """The sums that `row_sums` gave, added over the 4 lanes that share a row by ``shfl.bfly``, to a slot of 64 elements:
        16 a warp. Always in the same order. Generic proxy."""

    def column_sums(self, matmul: Matmul, values: Fragment, columns: int, inside: Value) -> Fragment:
        """For each warp and column, the sum of *values* (as `accumulator_columns` deals them: 64 x *columns*, fp32) over those
        of the warp's rows that are among the first *inside* of the 64 (at run time, perhaps negative or more), for
        `write_column_sums` alone. Added over lanes by ``shfl.bfly``, always in the same order."""

    def write_column_sums(self, matmul: Matmul, sums: Fragment, slot: SlotRef) -> None:
        """The sums that `column_sums` gave, to the warp's row of a slot of (4, columns). Generic proxy."""

    def read_columns(
        self, matmul: Matmul, slot: SlotRef, along: tuple[str, ...], columns: int, first: int = 0
    ) -> Fragment:
        """``ld.shared``: values of a slot in fp32, dealt as `accumulator_columns` deals them: 64 x *columns* over the
        warpgroup. along: what they vary with. ("m", "n"): the slot's extents are (64 * matmul.warpgroups, columns), and
        warpgroup g has the rows from 64 * g on; ("m",): one value a row, from element *first* + 64 * g on; ("n",): one a
        column, from element *first* on; (): the first element for all. Generic proxy."""

    def apply(self, function: Callable[..., Any], fragments: Sequence[Fragment], named: dict[str, Fragment]) -> Any:
        """``function(*fragments, **named)`` in fp32, a fragment or a dictionary of fragments, where all are dealt as
        `accumulator_columns` deals them and the function works element by element: it may be called on one part of the
        columns after the other, so that few intermediate values need registers at a time."""

    def read(self, slot: SlotRef, role: RoleWarps) -> Fragment:
        """``ld.shared``: the slot, dealt over the threads of *role*; the caller holds its part. Generic proxy."""

    def write(self, slot: SlotRef, values: Fragment, role: RoleWarps) -> None:
        """``st.shared``: the counterpart of `read`, converting to the slot's type. Generic proxy."""

    def raw(
        self,
        gpu: Callable[..., None],
        cpu: Callable[..., None] | None,
        accesses: Sequence[tuple[SlotRef, str]],
        role: RoleWarps,
        proxy: str = "generic",
    ) -> None:
        """Code of one reading: *gpu* with tensors, *cpu* with arrays, in the order of *accesses*: (slot, "read": the whole
        of it, or "write", "update": the calling warp's rows of it, of which each lane takes the same elements whenever *gpu*
        is called). proxy: "generic", or "async" if *gpu* reaches them by TMA or wgmma; then all lanes wait in it until that
        has ended."""
