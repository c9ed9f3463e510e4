"""Fragments: values distributed over the registers of the threads of a role, and what bodies do with them.

A fragment is a NumPy array (the calling warp's part) in the machine and a ``TensorSSA`` when traced. Each method is made of
instructions (`tmapipe.isa.compute`), or of registers alone. *Distributed like an accumulator* means as `accumulator_columns`
gives its values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tmapipe.isa.values import Fragment, SlotRef, Value
from tmapipe.plan.model import Distributed, Matmul, RoleWarps

__all__ = ["Fragments"]


class Fragments(Protocol):
    """What one warp does with fragments."""

    def accumulator(self, matmul: Matmul, empty: bool = True) -> Fragment:
        """Registers for this warpgroup's part of ``acc[m, n]``, in fp32, or in int32 for int8 operands.

        They count as zero until the first wgmma. Each call gives the same registers, so only those of the last call can be
        used.

        Args:
            empty: Whether they may be read without a wgmma.
        """

    def accumulator_promote(self, matmul: Matmul, acc: Fragment) -> None:
        """Adds what wgmma has summed since the last time to other sums in fp32. The next wgmma starts from zero.

        All wgmma groups must be complete.
        """

    def accumulator_columns(self, matmul: Matmul, acc: Fragment, block: int, first: int, columns: int) -> Fragment:
        """The values of columns [first, first + columns) of row block *block* of *acc*: 64 x *columns* over the warpgroup, in
        the type of the sums.

        Warpgroup g has the tile's rows from ``(block * warpgroups + g) * 64`` on. All wgmma groups must be complete.
        """

    def write_columns(self, matmul: Distributed, values: Fragment, slot: SlotRef) -> None:
        """Converts *values* to the slot's type and writes them to the slot, by ``stmatrix`` or ``st.shared``. Generic proxy.

        Args:
            values: 64 x columns, distributed like an accumulator: 16 rows per warp.
            slot: Its extents are (64, columns).
        """

    def row_sums(
        self, matmul: Distributed, values: Fragment, columns: int, first: int, inside: Value, before: Fragment | None
    ) -> Fragment:
        """For each row, *before* plus the sum of *values* in columns [first, inside). For `write_row_sums` alone: each thread
        has the sums of its own columns.

        Args:
            values: 64 x *columns*, fp32, distributed like an accumulator.
            first: A multiple of 8.
            inside: A run-time value, perhaps negative or more than there are columns.
            before: What `row_sums` gave for earlier columns; None: zero.
        """

    def write_row_sums(self, matmul: Distributed, sums: Fragment, slot: SlotRef) -> None:
        """Writes the sums of `row_sums` to a slot of 64 elements, 16 per warp. Generic proxy.

        They are added over the 4 lanes that share a row by ``shfl.bfly``, always in the same order.
        """

    def column_sums(self, matmul: Distributed, values: Fragment, columns: int, inside: Value) -> Fragment:
        """For each warp and column, the sum of *values* over those of the warp's rows that are among the first *inside* of the
        64. For `write_column_sums` alone.

        They are added over lanes by ``shfl.bfly``, always in the same order.

        Args:
            values: 64 x *columns*, fp32, distributed like an accumulator.
            inside: A run-time value, perhaps negative or more than 64.
        """

    def write_column_sums(self, matmul: Distributed, sums: Fragment, slot: SlotRef) -> None:
        """Writes the sums of `column_sums` to the warp's row of a slot of (4, columns). Generic proxy."""

    def read_columns(
        self, matmul: Distributed, slot: SlotRef, along: tuple[str, ...], columns: int, first: int = 0
    ) -> Fragment:
        """``ld.shared``: values of a slot in fp32, 64 x *columns* over the warpgroup, distributed like an accumulator. Generic
        proxy.

        Args:
            along: The dimensions that the values vary with. ("m", "n"): the slot's extents are (64 * matmul.warpgroups,
                columns), and warpgroup g has the rows from 64 * g on. ("m",): one value per row, from element *first* + 64 * g
                on. ("n",): one per column, from element *first* on. (): element *first* for all.
        """

    def apply(self, function: Callable[..., Any], fragments: Sequence[Fragment], named: dict[str, Fragment]) -> Any:
        """``function(*fragments, **named)`` in fp32: a fragment, or a dictionary of fragments.

        All are distributed like an accumulator, and the function works element by element. It may be called on some columns
        after others, so that few intermediate values need registers at a time.
        """

    def read(self, slot: SlotRef, role: RoleWarps) -> Fragment:
        """``ld.shared``: the slot, distributed over the threads of *role*; the caller has its part. Generic proxy."""

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
        """Calls *gpu* with tensors, or *cpu* with arrays, in the order of *accesses*.

        Args:
            accesses: (slot, "read" for the whole of it, or "write" or "update" for the calling warp's rows, of which each lane
                takes the same elements whenever *gpu* is called).
            proxy: "generic", or "async" if *gpu* uses TMA or wgmma; all lanes then wait in it until that has ended.
        """
