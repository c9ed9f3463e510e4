"""Descriptors that the driver encodes, for loads of which CuTe DSL's TMA atoms cannot say everything, and these loads as PTX.

The host part of a kernel has them encoded at each launch, as `tmapipe.TensorMap` does; they are parameters of the kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int16, Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import cuda, llvm

from tmapipe.gpu import control
from tmapipe.plan.model import Load
from tmapipe.tma_rules import ALIGNMENT, FILLS, SWIZZLES, TYPES, type_of

if TYPE_CHECKING:
    from tmapipe.gpu.isa import GpuIsa

__all__ = ["Descriptor", "Described", "describe", "load_boxes", "prefetch"]

L2_PROMOTION = 2  # 128 bytes, as CuTe DSL has it
UNROLLED = 16  # instructions of a load; more are a loop


class Descriptor:
    """A descriptor's 128 bytes, as a value of the host's code and a parameter of the kernel."""

    def __init__(self, value: Any):
        self.value = value

    def __extract_mlir_values__(self) -> list[Any]:
        return [self.value]

    def __new_from_mlir_values__(self, values: list[Any]) -> Descriptor:
        return Descriptor(values[0])

    def __extract_mlir_attributes__(self) -> list[Any]:
        return [ir.DictAttr.get({"cuda.grid_constant": ir.UnitAttr.get()})]

    @property
    def address(self) -> Any:
        """In the kernel: where it lies."""
        return cuda.cast(llvm.PointerType.get(), self.value)


class Described(NamedTuple):
    """What stands for a TMA atom: a descriptor, and a tensor of coordinates, core first, whose shape is the tensor's."""

    atom: Descriptor
    tma_tensor: Any


def describe(load: Load, tensor: Any) -> Described:
    """Has the load's descriptor encoded. *tensor* is core first."""
    order = (*reversed(range(load.core)), *range(load.core, len(tensor.shape)))  # the contiguous dimension first
    steps = (*load.steps[-load.core :], *load.steps[: -load.core])
    box = (*load.box, *(1,) * (len(order) - load.core))
    size = load.buffer.dtype.bytes
    shape, strides = [Int64(tensor.shape[i]) for i in order], []
    for i in order[1:]:  # along an extent of 1 any stride is valid for the library, not for the driver
        nbytes = Int64(tensor.stride[i]) * size
        strides.append(cutlass.select_(Int64(tensor.shape[i]) == 1, Int64(ALIGNMENT), nbytes))
    name, swizzles = type_of(load.buffer.dtype), list(SWIZZLES)
    error, made = cuda.tensor_map_encode_tiled(
        _word(list(TYPES).index(name)),
        _word(len(order)),
        cuda.cast(ir.Type.parse("!ptr.ptr<#ptr.generic_space>"), Int64(tensor.iterator.toint()).ir_value()),
        _array(Int64, shape),
        _array(Int64, strides or [Int64(ALIGNMENT)]),
        _array(Int32, [box[i] * steps[i] for i in order]),
        _array(Int32, [steps[i] for i in order]),
        _word(0),  # no interleave
        _word(swizzles.index(load.buffer.swizzle)),
        _word(L2_PROMOTION),
        _word(list(FILLS).index(load.outside)),
        results=[cuda.ResultType.get(), ir.Type.parse("!cuda.tensor_map")],
    )
    cuda.result_assert_success(error)
    return Described(Descriptor(made), cute.make_identity_tensor(tensor.shape))


def prefetch(descriptor: Descriptor) -> None:
    _ptx("prefetch.tensormap [$0];", "l", [descriptor.address])


def load_boxes(
    isa: GpuIsa, load: Load, stage: Any, at: Sequence[Any], barrier: Any, mask: Any, share: Any, policy: int | None
) -> None:
    """The boxes of one tile, or of a share or a part of one.

    Args:
        stage: Index of the slot.
        at: Where the tile, or the part, starts (elements), one per dimension of the tensor.
        barrier: The mbarrier's pointer.
        mask: CTAs that get the boxes; None: this one.
        share: Which share, or part.
        policy: Of L2, as createpolicy encodes it; None: the usual one.
    """
    buffer, size, core = load.buffer, load.buffer.dtype.bytes, load.core
    extents, steps, box = list(load.part[-core:]), load.steps[-core:], load.box
    start, batch = list(at[-core:]), list(at[: len(at) - core])
    extents[0] //= load.peers
    if load.peers > 1:
        start[0] = start[0] + share * (extents[0] * steps[0])
    pitch = (buffer.swizzle or buffer.tile[-1] * size) if core > 1 else size  # bytes from row to row, or of an element
    own = share * (math.prod(extents[:-1] if core > 1 else extents) * pitch)
    slot = isa.shared.toint() + buffer.offset + stage * buffer.pitch + own
    places = list(itertools.product(*(range(0, n, b) for n, b in zip(extents, box, strict=True))))

    def one(place: Sequence[Any]) -> None:
        *outer, column = place
        row: Any = 0
        for index, extent in zip(outer, extents[:-1], strict=True):
            row = row * extent + index
        span = buffer.swizzle // size
        offset = row * pitch + column * size
        if span:
            offset = row * pitch + column // span * (buffer.tile[0] * buffer.swizzle) + column % span * size
        coordinates = [first + step * i for first, step, i in zip(start, steps, place, strict=True)]
        with cute.arch.elect_one():
            _load(isa.atoms[load.name][0], slot + offset, (*reversed(coordinates), *batch), barrier, mask, policy)

    if len(places) <= UNROLLED:
        for place in places:
            one(place)
        return
    rest = list(itertools.product(*(range(0, n, b) for n, b in zip(extents[1:], box[1:], strict=True))))

    def some(i: Any) -> None:
        for place in rest:
            one((i * box[0], *place))

    control.loop(extents[0] // box[0], some)


def _load(descriptor: Descriptor, target: Any, at: Sequence[Any], barrier: Any, mask: Any, policy: int | None) -> None:
    """One instruction. target: an address in shared memory; at: the contiguous dimension first."""
    operands = [Int32(target).ir_value(), descriptor.address, Int32(barrier.toint()).ir_value()]
    operands += [Int32(x).ir_value() for x in at]
    kinds = ["r", "l", "r", *("r" for _ in at)]
    where = ", ".join(f"${3 + i}" for i in range(len(at)))
    words, last = f"cp.async.bulk.tensor.{len(at)}d.shared::{'cta' if mask is None else 'cluster'}.global.tile", ""
    words += ".mbarrier::complete_tx::bytes"
    for word, kind, value in (
        ("multicast::cluster", "h", None if mask is None else Int16(mask)),
        ("L2::cache_hint", "l", None if policy is None else Int64(policy)),
    ):
        if value is not None:
            words, last = f"{words}.{word}", f"{last}, ${len(operands)}"
            operands.append(value.ir_value())
            kinds.append(kind)
    _ptx(f"{words} [$0], [$1, {{{where}}}], [$2]{last};", ",".join(kinds), operands)


def _ptx(text: str, kinds: str, operands: list[Any]) -> None:
    llvm.inline_asm(
        None,
        operands,
        text,
        f"{kinds},~{{memory}}",
        has_side_effects=True,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def _word(value: int) -> Any:
    return Int32(value).ir_value()


def _array(kind: Any, values: Sequence[Any]) -> Any:
    """The address of an array on the host."""
    made = cutlass.Array(kind, len(values), space=cutlass.AddressSpace.rmem)
    for i, value in enumerate(values):
        made[i] = kind(value)
    return made.ir_value()
