"""Fragments dealt like an accumulator: taken from one, read from slots and written to them, and epilogues applied to them.
Methods of `GpuIsa`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass.cute.nvgpu import warp
from cutlass.tensor_utils import LayoutEnum

from tmapipe.dtypes import bf16
from tmapipe.gpu.layouts import cute_type
from tmapipe.gpu.matmuls import sums_type, tiled_mma
from tmapipe.isa.interface import SlotRef
from tmapipe.plan.model import Matmul

__all__ = ["accumulator_columns", "apply", "read_columns", "write_columns"]

#: Values of a fragment, a thread, that an epilogue is applied to at a time: 16 columns.
PART = 8


def accumulator_columns(isa: Any, matmul: Matmul, acc: Any, block: int, first: int, columns: int) -> Any:
    """See `tmapipe.isa.Isa`."""
    # A thread holds 2 x 2 values of every 64 x 8 block of the accumulator, blocks along n first, then along m.
    values = cute.make_rmem_tensor(((2, 2, columns // 8), 1, 1), sums_type(matmul.a.dtype))
    base = block * (matmul.shape[1] // 2) + first // 2
    for i in range(columns // 2):
        values[i] = acc.value(base + i)
    return values.load()


def write_columns(isa: Any, matmul: Matmul, values: Any, slot: SlotRef) -> None:
    """See `tmapipe.isa.Isa`."""
    dtype = cute_type(slot.buffer.dtype)
    columns = slot.buffer.tile[1]
    one_group = tiled_mma(bf16, bf16, (1, 1, 1), columns)  # accumulators lie alike for all types
    row_major = LayoutEnum.ROW_MAJOR
    to_shared = hopper.sm90_get_smem_store_op(row_major, elem_ty_d=dtype, elem_ty_acc=cutlass.Float32)
    fragment_atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4 if columns % 16 == 0 else 2), cutlass.Float16)
    tiled = cute.make_tiled_copy_S(to_shared, cute.make_tiled_copy_C_atom(fragment_atom, one_group))
    converted = cute.make_rmem_tensor(values.shape, dtype)
    converted.store(values.to(dtype))
    thread = tiled.get_slice(isa.thread % 128)
    target = thread.partition_D(isa.buffers[slot.buffer.name])[(None, None, None, slot.stage)]
    source = cute.make_tensor(converted.iterator, cute.make_layout(target.shape))
    cute.copy(tiled, source, target)


def read_columns(isa: Any, matmul: Matmul, slot: SlotRef, along: tuple[str, ...], columns: int, first: int = 0) -> Any:
    """See `tmapipe.isa.Isa`."""
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
        few = cute.make_rmem_tensor((2, columns // 8), dtype)  # of each column, or of both rows
        for eight in range(columns // 8 if along == ("n",) else 0):
            cute.autovec_copy(cute.local_tile(inside, (2,), (first // 2 + pair + 4 * eight,)), few[(None, eight)])
        for half in range(0 if along == ("n",) else 2):
            few[half] = inside[first + row + 8 * half if along else 0]
        for i, half, eight in itertools.product(range(2), range(2), range(columns // 8)):
            values[((i, half, eight), 0, 0)] = few[i, eight] if along == ("n",) else few[half]
    return values.load().to(cutlass.Float32)


def apply(isa: Any, function: Callable[..., Any], fragments: Sequence[Any], named: dict[str, Any]) -> Any:
    """See `tmapipe.isa.Isa`."""
    # On whole pieces (32 values a thread), ptxas keeps so many intermediate values at a time that it spills.
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


def _part(values: Any, first: int, count: int) -> Any:
    """Elements of a fragment that belong to whole groups of 8 columns, 4 a thread each, in fp32."""
    part = cute.make_rmem_tensor(((2, 2, count // 4), 1, 1), cutlass.Float32)
    for i in range(count):
        part[i] = cutlass.Float32(values[first + i])
    return part.load()
