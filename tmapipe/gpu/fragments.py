"""Fragments as CuTe DSL values: from accumulators, from and to slots, and epilogues applied to them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass.cute.nvgpu import warp
from cutlass.tensor_utils import LayoutEnum

from tmapipe.dtypes import bf16
from tmapipe.gpu.layouts import cute_type
from tmapipe.gpu.matmuls import sums_type, tiled_mma
from tmapipe.gpu.sums import Sums
from tmapipe.isa.values import Carried, SlotRef
from tmapipe.plan.model import Distributed, Matmul, RoleWarps
from tmapipe.plan.sharing import row_width

if TYPE_CHECKING:
    from tmapipe.gpu.isa import GpuIsa

__all__ = ["GpuFragments"]

#: Values per thread that an epilogue is applied to at a time: 16 columns.
PART = 8


class GpuFragments(Sums, Carried):
    """Methods as documented in `tmapipe.isa.fragments.Fragments`."""

    def __init__(self, isa: GpuIsa):
        self.isa = isa

    def accumulator(self, matmul: Matmul, empty: bool = True) -> Any:
        found = self.isa.matmuls[matmul.name].accumulator
        found.begin(empty)
        return found

    def accumulator_promote(self, matmul: Matmul, acc: Any) -> None:
        acc.promote()

    def accumulator_columns(self, matmul: Matmul, acc: Any, block: int, first: int, columns: int) -> Any:
        # A thread holds 2 x 2 values of every 64 x 8 block of the accumulator, blocks along n first, then along m.
        values = cute.make_rmem_tensor(((2, 2, columns // 8), 1, 1), sums_type(matmul.a.dtype))
        base = block * (matmul.shape[1] // 2) + first // 2
        for i in range(columns // 2):
            values[i] = acc.value(base + i)
        return values.load()

    def write_columns(self, matmul: Distributed, values: Any, slot: SlotRef) -> None:
        isa = self.isa
        dtype = cute_type(slot.buffer.dtype)
        columns = slot.buffer.tile[1]
        one_group = tiled_mma(bf16, bf16, (1, 1, 1), columns)  # accumulators have the same layout for all types
        row_major = LayoutEnum.ROW_MAJOR
        to_shared = hopper.sm90_get_smem_store_op(row_major, elem_ty_d=dtype, elem_ty_acc=cutlass.Float32)
        fragment_atom = cute.make_copy_atom(
            warp.StMatrix8x8x16bOp(False, 4 if columns % 16 == 0 else 2), cutlass.Float16
        )
        tiled = cute.make_tiled_copy_S(to_shared, cute.make_tiled_copy_C_atom(fragment_atom, one_group))
        converted = cute.make_rmem_tensor(values.shape, dtype)
        converted.store(values.to(dtype))
        thread = tiled.get_slice(isa.thread % 128)
        target = thread.partition_D(isa.buffers[slot.buffer.name])[(None, None, None, slot.stage)]
        source = cute.make_tensor(converted.iterator, cute.make_layout(target.shape))
        cute.copy(tiled, source, target)

    def read_columns(
        self, matmul: Distributed, slot: SlotRef, along: tuple[str, ...], columns: int, first: int = 0
    ) -> Any:
        isa = self.isa
        # Lane i holds columns 2 (i % 4) + {0, 1} of each 8, of the rows i / 4 and i / 4 + 8 of the warp's 16.
        tensor = isa.buffers[slot.buffer.name]
        dtype = cute_type(slot.buffer.dtype)
        values = cute.make_rmem_tensor(((2, 2, columns // 8), 1, 1), dtype)
        group = matmul.group(isa.warp) if matmul.warpgroups > 1 else 0
        row = group * 64 + isa.warp % 4 * 16 + isa.lane // 4
        pair = isa.lane % 4
        if along == ("m", "n"):
            inside = tensor[(None, None, slot.stage)]
            for half, eight in itertools.product(range(2), range(columns // 8)):
                two = cute.local_tile(inside, (1, 2), (row + 8 * half, pair + 4 * eight))
                cute.autovec_copy(cute.coalesce(two), values[((None, half, eight), 0, 0)])
        else:
            inside = tensor[(None, slot.stage)]
            few = cute.make_rmem_tensor((2, columns // 8), dtype)  # one per column, or one per row
            for eight in range(columns // 8 if along == ("n",) else 0):
                cute.autovec_copy(cute.local_tile(inside, (2,), (first // 2 + pair + 4 * eight,)), few[(None, eight)])
            for half in range(0 if along == ("n",) else 2):
                few[half] = inside[first + (row + 8 * half if along else 0)]
            for i, half, eight in itertools.product(range(2), range(2), range(columns // 8)):
                values[((i, half, eight), 0, 0)] = few[i, eight] if along == ("n",) else few[half]
        return values.load().to(cutlass.Float32)

    def apply(self, function: Callable[..., Any], fragments: Sequence[Any], named: dict[str, Any]) -> Any:
        # Applied to a whole piece (32 values per thread), ptxas keeps so many intermediate values that it spills.
        shape, size = fragments[0].shape, cute.size(fragments[0].shape)
        step = PART if size % PART == 0 else PART // 2
        made: dict[str, Any] = {}
        for first in range(0, size, step):
            given = [_part(values, first, step) for values in fragments]
            result = function(*given, **{name: _part(values, first, step) for name, values in named.items()})
            for name, values in result.items() if isinstance(result, dict) else (("", result),):
                whole = made.setdefault(name, cute.make_rmem_tensor(shape, cutlass.Float32))
                for i in range(step):
                    whole[first + i] = cutlass.Float32(values[i] if isinstance(values, cute.TensorSSA) else values)
        values = {name: tensor.load() for name, tensor in made.items()}
        return values.get("", values)

    def read(self, slot: SlotRef, role: RoleWarps) -> Any:
        vectors, count, width = self._vectors(slot, role)
        values = cute.make_rmem_tensor((width, count), cute_type(slot.buffer.dtype))
        for i in range(count):
            cute.autovec_copy(vectors(i), values[(None, i)])
        return values.load()

    def write(self, slot: SlotRef, values: Any, role: RoleWarps) -> None:
        vectors, count, width = self._vectors(slot, role)
        dtype = cute_type(slot.buffer.dtype)
        converted = cute.make_rmem_tensor((width, count), dtype)
        converted.store(values.to(dtype))
        for i in range(count):
            cute.autovec_copy(converted[(None, i)], vectors(i))

    def raw(
        self,
        gpu: Callable[..., None],
        cpu: Callable[..., None] | None,
        accesses: Sequence[tuple[SlotRef, str]],
        role: RoleWarps,
        proxy: str = "generic",
    ) -> None:
        tensors = []
        for slot, kind in accesses:
            tile = slot.buffer.tile
            tensor = self.isa.buffers[slot.buffer.name][(*(None,) * len(tile), slot.stage)]
            if kind != "read":
                mine = (self.isa.warp - role.first_warp) % role.team_warps
                share = (tile[0] // role.team_warps, *tile[1:])
                tensor = cute.local_tile(tensor, share, (mine, *(0,) * (len(tile) - 1)))
            tensors.append(tensor)
        gpu(*tensors)

    def _vectors(self, slot: SlotRef, role: RoleWarps) -> tuple[Callable[[int], Any], int, int]:
        """Short rows of a slot's elements, distributed over the role's threads.

        Returns (a function from i to the thread's i-th row, rows per thread, elements per row).
        """
        buffer = slot.buffer
        width = row_width(buffer.name, buffer.tile, role)
        rows = buffer.tile[-1] // width
        me = self.isa.thread - 32 * role.first_warp
        tensor = self.isa.buffers[buffer.name]

        def vector(i: int) -> Any:
            which = me + i * role.threads
            place = (which // rows, which % rows) if len(buffer.tile) == 2 else (which,)
            tiler = (1,) * (len(buffer.tile) - 1) + (width,)
            return cute.coalesce(cute.local_tile(tensor[(*(None,) * len(tiler), slot.stage)], tiler, place))

        return vector, math.prod(buffer.tile) // (width * role.threads), width


def _part(values: Any, first: int, count: int) -> Any:
    """Values [first, first + count) of a fragment, in fp32: whole groups of 8 columns, 4 values per thread."""
    part = cute.make_rmem_tensor(((2, 2, count // 4), 1, 1), cutlass.Float32)
    for i in range(count):
        part[i] = cutlass.Float32(values[first + i])
    return part.load()
