"""Tensors that share memory. An output that overlaps another tensor would be overwritten while it is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from tmapipe.errors import InputError

__all__ = ["check_apart", "span"]

MAX_WORK: Any = 100_000  # steps of NumPy's exact search; tensors with strides that TMA takes need far fewer


def check_apart(tensors: dict[str, Any], outputs: tuple[str, ...]) -> None:
    """Checks that no output shares memory with another of *tensors*.

    Raises:
        InputError: One does.
    """
    arrays = {name: _as_array(tensor) for name, tensor in tensors.items() if 0 not in tensor.shape}
    for name in outputs:
        for other, array in arrays.items():
            if name in arrays and other != name and _overlap(arrays[name], array):
                rule = f"must not overlap that of {other}, which is read or written at the same time"
                fix = "pass a tensor of its own, or leave it out to get a new one"
                raise InputError(name, f"memory at {hex(arrays[name].ctypes.data)}", rule, fix)


def span(tensor: Any) -> int:
    """Bytes from the first element of a torch tensor to the end of its last one."""
    if 0 in tensor.shape:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (sum((extent - 1) * stride for extent, stride in steps) + 1) * tensor.element_size()


class _Memory:
    """Where the elements of a torch tensor lie, on any device, in a form that NumPy can compare. Nothing is read."""

    def __init__(self, tensor: Any):
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
        }


def _as_array(tensor: Any) -> np.ndarray:
    return tensor if isinstance(tensor, np.ndarray) else np.asarray(_Memory(tensor))


def _overlap(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether they share a byte, or whether that is too hard to tell."""
    try:
        return bool(np.shares_memory(one, other, max_work=MAX_WORK))
    except RuntimeError:  # numpy's TooHardError
        return True
