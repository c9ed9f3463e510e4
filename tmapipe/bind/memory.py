"""Whether a kernel can read and write tensors: their elements lie in memory as they say, and an output, which may be written,
shares none with another tensor, which would be overwritten while it is read."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from tmapipe.errors import InputError

__all__ = [
    "check_apart",
    "check_held",
    "check_kind",
    "check_memory",
    "is_torch",
    "needs_gradient",
    "note_written",
    "span",
]

MAX_WORK: Any = 100_000  # steps of NumPy's exact search; tensors with strides that TMA takes need far fewer


def check_kind(name: str, tensor: Any) -> None:
    """Checks that *tensor* is a torch tensor or a NumPy array whose elements lie in memory as its strides say.

    Raises:
        InputError: It is something else.
    """
    if isinstance(tensor, np.ndarray):
        wrong = _wrong_array(tensor)
    elif is_torch(tensor):
        wrong = _wrong_torch(tensor)
    else:
        wrong = type(tensor).__name__, "is a torch tensor or a NumPy array", "convert it"
    if wrong:
        raise InputError(name, *wrong)


def is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _wrong_array(array: np.ndarray) -> tuple[object, str, str] | None:
    """(value, rule, fix) of what is wrong with a NumPy array, or None."""
    if type(array) not in (np.ndarray, np.memmap):
        return type(array).__name__, "is a plain NumPy array: what subclasses add would be lost", "numpy.asarray(x)"
    if array.dtype.hasobject:
        return str(array.dtype), "has elements in its own memory, not references", "convert it to numbers"
    steps = zip(array.shape, array.strides, strict=True)
    if array.size and any(extent > 1 and stride % array.itemsize for extent, stride in steps):
        rule = f"has strides of whole elements of {array.itemsize} bytes"
        return array.strides, rule, "numpy.ascontiguousarray(x)"
    return None


def _wrong_torch(tensor: Any) -> tuple[object, str, str] | None:
    """(value, rule, fix) of what is wrong with a torch tensor, or None."""
    torch = sys.modules["torch"]
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        rule = "is a plain torch tensor: a subclass may keep its elements elsewhere"
        return type(tensor).__name__, rule, "x.as_subclass(torch.Tensor), if its memory is what it seems"
    if tensor.layout != torch.strided or tensor.is_nested:
        return ("nested" if tensor.is_nested else str(tensor.layout)), "is dense, with strides", "x.to_dense()"
    if tensor.is_quantized:
        return str(tensor.dtype), "has elements that are no quantized numbers", "x.int_repr()"
    if tensor.is_conj() or tensor.is_neg():
        rule = "has its values in memory, neither conjugated nor negated later"
        return "a lazy view", rule, "x.resolve_conj().resolve_neg()"
    try:
        tensor.data_ptr()
    except RuntimeError:
        rule = "has memory, which tensors inside torch.func and vmap have not"
        return type(tensor).__name__, rule, "call it outside of them"
    return None


def check_memory(name: str, tensor: Any, output: bool) -> None:
    """Checks that *tensor* can be read, and as an output written, here and now.

    Raises:
        InputError: It cannot.
    """
    if isinstance(tensor, np.ndarray):
        if output and not tensor.flags.writeable:
            raise InputError(f"{name}.flags.writeable", False, "an output is written to", "pass a copy")
        return
    if tensor.device.type not in ("cpu", "cuda"):
        rule = "lies on a CUDA device, or on the CPU for the model"
        raise InputError(f"{name}.device", str(tensor.device), rule, f'{name}.to("cuda")')
    check_held(name, tensor)
    if needs_gradient(tensor):
        rule = "takes part in automatic differentiation, which kernels (like torch's out=) do not support"
        raise InputError(f"{name}.requires_grad", True, rule, f"pass {name}.detach(), or call it under torch.no_grad()")


def check_held(name: str, tensor: Any) -> None:
    """Raises `InputError` for a torch tensor whose memory has been freed, or made smaller."""
    if not is_torch(tensor):
        return
    held = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
    if held < span(tensor):
        rule = f"holds {span(tensor)} bytes"
        raise InputError(f"{name}.untyped_storage()", f"{held} bytes", rule, "pass a tensor not freed")


def needs_gradient(tensor: Any) -> bool:
    """Whether torch would record operations on a torch tensor."""
    return bool(tensor.requires_grad and sys.modules["torch"].is_grad_enabled())


def note_written(tensors: Iterable[Any]) -> None:
    """Raises the version of torch tensors that a kernel has written, so that a later `backward` notices."""
    written = [tensor for tensor in tensors if is_torch(tensor)]
    if written:
        sys.modules["torch"].autograd.graph.increment_version(written)


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
