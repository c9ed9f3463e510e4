"""Bound: the tensors of one call by stage, with what the CPU model and the launch need to know about them."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

import attrs
import numpy as np

from tmapipe.dtypes import DType
from tmapipe.errors import InputError

__all__ = ["Bound"]


@attrs.define
class Bound:
    """The tensors of one call.

    Args:
        tensors: By stage name.
        shapes: By stage name (elements), with leading 1s for batch dimensions that a tensor lacks.
        strides: By stage name (elements).
        dtypes: Element types by stage name.
        stores: Names of the outputs.
        on_gpu: Whether they lie on a CUDA device.
        added_to: The outputs that are added to, not overwritten.
        made: The outputs that the call has left out: their elements hold nothing yet, unless they are added to.
    """

    tensors: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    strides: dict[str, tuple[int, ...]]
    dtypes: dict[str, DType]
    stores: tuple[str, ...]
    on_gpu: bool
    added_to: tuple[str, ...] = ()
    made: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: no output element, or nothing that goes into one."""
        return any(0 in shape for shape in self.shapes.values())

    def check_whole(self, partly: Collection[str]) -> None:
        """Raises `InputError` if an output that the call has left out would keep elements that nobody stores. partly: outputs
        of which the kernel stores some elements alone."""
        for name in self.made:
            if name in partly:
                rule = "is stored in part by some shapes (see check()), and the rest of a new tensor holds anything"
                raise InputError(name, None, rule, f"store all of it, or pass {name}= with what the rest is to be")

    def fill_outputs(self, value: Any) -> None:
        """Writes *value* to the outputs: what a call computes from nothing (no k). An empty output is left as it is.

        Args:
            value: A number, an array that broadcasts to the output, or a dictionary of these by output.
        """
        for name in self.stores:
            tensor = self.tensors[name]
            if 0 not in self.shapes[name] and name not in self.added_to:
                mine = value[name] if isinstance(value, dict) else value
                if isinstance(mine, np.ndarray):
                    mine = np.broadcast_to(mine, self.shapes[name]).reshape(tensor.shape).copy()
                    mine = mine if isinstance(tensor, np.ndarray) else sys.modules["torch"].from_numpy(mine)
                tensor[...] = mine

    def begin_sums(self) -> None:
        """Sets those of the outputs that the call has made to 0 that are added to."""
        for name in self.made:
            if name in self.added_to:
                self.tensors[name][...] = 0

    def array(self, name: str) -> np.ndarray:
        """The tensor of stage *name* as a NumPy array with the stage's dimensions; a copy if it lies on the GPU."""
        tensor = self.tensors[name]
        array = tensor if isinstance(tensor, np.ndarray) else _torch_to_numpy(tensor.cpu(), self.dtypes[name])
        folded = any(step == 0 and size > 1 for step, size in zip(self.strides[name], self.shapes[name], strict=True))
        if folded:  # several indices name one element
            steps = tuple(stride * array.itemsize for stride in self.strides[name])
            integers = array.view(f"i{array.itemsize}")  # NumPy makes no such view of every type
            return np.lib.stride_tricks.as_strided(integers, self.shapes[name], steps).view(array.dtype)
        return array.reshape(self.shapes[name]) if array.ndim != len(self.shapes[name]) else array

    def arrays(self) -> dict[str, np.ndarray]:
        """NumPy arrays for the CPU model: they share memory with the tensors and have the stages' dimensions."""
        return {name: self.array(name) for name in self.tensors}

    def result(self) -> Any:
        """The output, or a tuple of the outputs."""
        results = self.outputs
        return results[0] if len(results) == 1 else results

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The stores' tensors, in the order of declaration."""
        return tuple(self.tensors[name] for name in self.stores)


def _torch_to_numpy(tensor: Any, dtype: DType) -> np.ndarray:
    """A NumPy view of a CPU torch tensor. Types that torch cannot pass to NumPy go through integers of the same size."""
    torch = sys.modules["torch"]
    plain = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.bytes]
    integers = tensor.detach().view(plain).numpy()
    return integers.view(dtype.numpy)
