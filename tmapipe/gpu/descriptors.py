"""Descriptors that the library encodes, for loads of which CuTe DSL's TMA atoms cannot say everything.

`TensorMap` encodes them for each signature of tensors. A launch passes their words. The host part of the kernel puts the
tensor's address into the first one. They are parameters of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass.cute as cute
from cutlass import Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu, vector

from tmapipe.plan.model import Load
from tmapipe.tensor_map import Im2colBox, TensorMap
from tmapipe.tma_rules import type_of

__all__ = ["Descriptor", "WORDS", "address_of", "describe", "encoded_words"]

WORDS = 16  # of 8 bytes, a descriptor
L2_PROMOTION = 128  # bytes, as CuTe DSL has it


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
        box = Im2colBox(lower, upper, channels, pixels)
        steps = (1, *load.windows.stride, 1)
    options: Any = {"steps": steps, "swizzle": load.buffer.swizzle, "fill": load.outside, "l2_promotion": L2_PROMOTION}
    found = TensorMap(tensor, box, dtype=type_of(load.buffer.dtype), **options).encode()
    return [int.from_bytes(found[i : i + 8], "little", signed=True) for i in range(0, len(found), 8)]


def describe(tensor: Any, words: Sequence[Any]) -> tuple[Descriptor, Any]:
    """What stands for the TMA atom and coordinate tensor of a load from *tensor*, which is core first: its descriptor, of what
    `encoded_words` gave, and coordinates of the tensor's shape."""
    values = [tensor.iterator.toint(), *words[1:]]
    made = vector.from_elements(
        ir.VectorType.get([WORDS], ir.IntegerType.get_signless(64)), [Int64(x).ir_value() for x in values]
    )
    return Descriptor(made), cute.make_identity_tensor(tensor.shape)


def address_of(atom: Any) -> Any:
    """In the kernel: where the descriptor of a TMA atom, or of what stands for one, lies."""
    if isinstance(atom, Descriptor):
        return atom.address
    executable = cute_nvgpu.atom_make_exec_tma(atom._trait.value)
    kind = ir.Type.parse("!cute.ptr<!cute_nvgpu.tma_descriptor_tiled, generic, align<64>>")
    found = cute_nvgpu.get_tma_desc_addr(kind, executable)
    return found.toint()
