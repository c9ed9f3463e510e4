"""Descriptors that the library encodes, for loads of which CuTe DSL's TMA atoms cannot say everything; and such loads, as PTX.

`TensorMap` encodes them for each signature of tensors. A launch passes their words. The host part of the kernel puts the
tensor's address into the first one. They are parameters of the kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import cutlass.cute as cute
from cutlass import Int16, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu, vector

from tmapipe.gpu import control
from tmapipe.gpu.inline import emit_ptx
from tmapipe.plan.model import Buffer, Load
from tmapipe.tensor_map import Im2colBox, TensorMap
from tmapipe.tma_rules import type_of

if TYPE_CHECKING:
    from tmapipe.gpu.isa import GpuIsa

__all__ = ["Descriptor", "WORDS", "describe", "encoded_words", "load_boxes", "load_windows", "prefetch"]

WORDS = 16  # of 8 bytes, a descriptor
L2_PROMOTION = 128  # bytes, as CuTe DSL has it
UNROLLED = 16  # instructions of a load; more are a loop


class Descriptor:
    """A descriptor, as a value of the host's code and a parameter of the kernel."""

    def __init__(self, value: Any):
        self.value = value

    def __extract_mlir_values__(self) -> list[Any]:
        return [self.value]

    def __new_from_mlir_values__(self, values: list[Any]) -> Descriptor:
        return Descriptor(values[0])

    def __extract_mlir_attributes__(self) -> list[Any]:
        return [ir.DictAttr.get({"cute_nvgpu.grid_constant": ir.UnitAttr.get()})]

    @property
    def address(self) -> Any:
        """In the kernel: where it lies."""
        pointer = cute_nvgpu.GetGridConstantPointerOp(self.value).operation
        return cute_ir.ptrtoint(ir.IntegerType.get_signless(64), pointer)


class Described(NamedTuple):
    """What stands for a TMA atom: a descriptor, and a tensor of coordinates, core first, whose shape is the tensor's."""

    atom: Descriptor
    tma_tensor: Any


def encoded_words(load: Load, tensor: Any) -> list[int]:
    """The words of the load's descriptor, for tensors at any address, laid out as *tensor* is.

    Raises:
        InputError: The driver's rules are broken.
    """
    tensor = tensor[(None,) * (len(load.dims) - tensor.ndim)]
    box: Any = (*(1,) * (len(load.dims) - load.core), *(load.box if load.windows is None else ()))
    steps = load.steps
    if load.windows is None:
        box = tuple(n * step for n, step in zip(box, steps, strict=True))
    else:
        (lower, upper), (pixels, channels) = load.windows.corners, load.box
        box = Im2colBox(lower, upper, channels, pixels)  # type: ignore[arg-type]
        steps = (1, *load.windows.stride, 1)
    options: Any = {"steps": steps, "swizzle": load.buffer.swizzle, "fill": load.outside, "l2_promotion": L2_PROMOTION}
    found = TensorMap(tensor, box, dtype=type_of(load.buffer.dtype), **options).encode()
    return [int.from_bytes(found[i : i + 8], "little", signed=True) for i in range(0, len(found), 8)]


def describe(tensor: Any, words: Sequence[Any]) -> Described:
    """The descriptor of a load from *tensor*, which is core first, of what `encoded_words` gave."""
    values = [tensor.iterator.toint(), *words[1:]]
    made = vector.from_elements(
        ir.VectorType.get([WORDS], ir.IntegerType.get_signless(64)), [Int64(x).ir_value() for x in values]
    )
    return Described(Descriptor(made), cute.make_identity_tensor(tensor.shape))


def prefetch(descriptor: Descriptor) -> None:
    emit_ptx("prefetch.tensormap [$0];", "l", descriptor.address)


def load_boxes(isa: GpuIsa, load: Load, stage: Any, at: Sequence[Any], share: Any, how: Mapping[str, Any]) -> None:
    """The boxes of one tile, or of a share or a part of one.

    Args:
        stage: Index of the slot.
        at: Where the tile, or the part, starts (elements), one per dimension of the tensor.
        share: Which share, or part.
        how: As of `_load`.
    """
    buffer, size, core = load.buffer, load.buffer.dtype.bytes, load.core
    extents, steps, box = list(load.part[-core:]), load.steps[-core:], load.box
    start, batch = list(at[-core:]), list(at[: len(at) - core])
    extents[0] //= load.peers
    if load.peers > 1:
        start[0] = start[0] + share * (extents[0] * steps[0])
    pitch = _pitch(buffer) if core > 1 else size  # bytes from row to row, or of an element
    own = share * (math.prod(extents[:-1] if core > 1 else extents) * pitch)
    slot = isa.slot_address(buffer, stage) + own
    places = list(itertools.product(*(range(0, n, b) for n, b in zip(extents, box, strict=True))))

    def one(place: Sequence[Any]) -> None:
        *outer, column = place
        row: Any = 0
        for index, extent in zip(outer, extents[:-1], strict=True):
            row = row * extent + index
        coordinates = [first + step * i for first, step, i in zip(start, steps, place, strict=True)]
        target = slot + row * pitch + _column(buffer, column)
        _load(target, (*reversed(coordinates), *reversed(batch)), **how)

    if len(places) <= UNROLLED:
        for place in places:
            one(place)
        return
    rest = list(itertools.product(*(range(0, n, b) for n, b in zip(extents[1:], box[1:], strict=True))))

    def some(i: Any) -> None:
        for place in rest:
            one((i * box[0], *place))

    control.loop(extents[0] // box[0], some)


def load_windows(isa: GpuIsa, load: Load, stage: Any, at: Sequence[Any], share: Any, how: Mapping[str, Any]) -> None:
    """The windows of one tile, or of a share of one. Arguments as of `load_boxes`; at: where the first window begins."""
    buffer, (rows, columns) = load.buffer, load.box
    slot = isa.slot_address(buffer, stage) + share * (rows * _pitch(buffer))
    for left in range(0, buffer.tile[-1], columns):
        place = (at[-1] + left, *reversed(at[:-1]))
        _load(slot + _column(buffer, left), place, **how)


def _pitch(buffer: Buffer) -> int:
    """Bytes from row to row."""
    return buffer.swizzle or buffer.tile[-1] * buffer.dtype.bytes


def _column(buffer: Buffer, column: int) -> int:
    """Bytes from the first column of a slot to another one that a box begins with."""
    nbytes = column * buffer.dtype.bytes
    span = buffer.swizzle
    return nbytes // span * (buffer.tile[0] * span) + nbytes % span if span else nbytes


def _load(
    target: Any,
    at: Sequence[Any],
    *,
    descriptor: Any,
    barrier: Any,
    mask: Any = None,
    policy: int | None = None,
    offsets: Sequence[Any] = (),
) -> None:
    """One instruction, by one lane.

    Args:
        target: An address in shared memory.
        at: The contiguous dimension first.
        descriptor: Where it lies.
        barrier: The mbarrier's pointer.
        mask: CTAs that get the box; None: this one.
        policy: Of L2, as createpolicy encodes it; None: the usual one.
        offsets: In windows, in their order.
    """
    operands, kinds = [target, descriptor, barrier.toint()], "rlr"

    def added(kind: str, *values: Any) -> str:
        nonlocal kinds
        first, kinds = len(operands), kinds + kind * len(values)
        operands.extend(values)
        return ", ".join(f"${first + i}" for i in range(len(values)))

    where = added("r", *at)
    to, mode = "cta" if mask is None else "cluster", "im2col" if offsets else "tile"
    words = f"cp.async.bulk.tensor.{len(at)}d.shared::{to}.global.{mode}.mbarrier::complete_tx::bytes"
    last = f", {{{added('h', *map(Int16, reversed(offsets)))}}}" if offsets else ""
    if mask is not None:
        words, last = f"{words}.multicast::cluster", f"{last}, {added('h', mask)}"
    if policy is not None:
        words, last = f"{words}.L2::cache_hint", f"{last}, {added('l', policy)}"
    with cute.arch.elect_one():
        emit_ptx(f"{words} [$0], [$1, {{{where}}}], [$2]{last};", kinds, *operands)
