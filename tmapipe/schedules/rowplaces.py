"""Where the rows of a matrix lie in memory."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from tmapipe.dtypes import DType, dtype_of
from tmapipe.tma_rules import ALIGNMENT

__all__ = [
    "address_of", "alignment_of", "converted", "copied", "expanded", "loadable", "padded", "place_of", "seen_as", "strides_of",
    "together", "widest",
]  # fmt: skip


def loadable(x: Any) -> bool:
    """Whether a form loads a matrix where it lies: TMA starts at the last multiple of 16 bytes before a row."""
    if x.shape[1] > 1 and strides_of(x)[1] != 1:
        return False
    start = place_of(x)[1]
    return start == 0 or (not isinstance(x, np.ndarray) and x.storage_offset() >= start)


def copied(x: Any) -> Any:
    """A dense copy of a matrix."""
    return x.copy() if isinstance(x, np.ndarray) else x.clone(memory_format=sys.modules["torch"].contiguous_format)


def place_of(x: Any) -> tuple[int, int]:
    """(elements from one row of a matrix to the next, elements after the last multiple of 16 bytes where the first begins)."""
    return strides_of(x)[0] if x.shape[0] > 1 else x.shape[1], address_of(x) % ALIGNMENT // x.dtype.itemsize


def together(x: Any, together: int, start: int) -> Any:
    """A matrix of which so many rows, and what lies between them, are seen as one that begins *start* elements earlier."""
    (height, length), (pitch, _) = x.shape, place_of(x)
    shape, strides = (height // together, (together - 1) * pitch + length + start), (together * pitch, 1)
    return seen_as(x, shape, strides, start)


def seen_as(x: Any, shape: tuple[int, ...], strides: tuple[int, ...], start: int = 0) -> Any:
    """A tensor's memory, from *start* elements before its first one on, with other extents and strides (elements)."""
    if isinstance(x, np.ndarray):
        words = x.view(f"u{x.itemsize}")  # NumPy makes no such view of every type
        return np.lib.stride_tricks.as_strided(words, shape, [step * x.itemsize for step in strides]).view(x.dtype)
    return x.as_strided(shape, strides, x.storage_offset() - start)


def alignment_of(x: Any, stored: bool = False) -> int:
    """The most bytes, up to 16, of which the address and the pitch of a matrix are whole multiples; *stored*: and its rows."""
    size = x.dtype.itemsize
    pitch = strides_of(x)[0] * size if x.shape[0] > 1 else 0
    return math.gcd(ALIGNMENT, pitch, address_of(x), x.shape[1] * size if stored else 0)


def strides_of(x: Any) -> tuple[int, ...]:
    """Of a tensor, in elements."""
    return tuple(step // x.itemsize for step in x.strides) if isinstance(x, np.ndarray) else tuple(x.stride())


def address_of(x: Any) -> int:
    """Where a tensor lies."""
    return int(x.ctypes.data) if isinstance(x, np.ndarray) else int(x.data_ptr())


def expanded(x: Any, shape: tuple[int, ...]) -> Any:
    """A tensor broadcast to *shape*, with strides of 0 along dimensions in which it is repeated, or of one element."""
    steps = (0,) * (len(shape) - x.ndim) + tuple(
        0 if n == 1 else s for n, s in zip(x.shape, strides_of(x), strict=True)
    )
    return seen_as(x, shape, steps)


def padded(x: Any, whole: bool = False) -> Any:
    """A copy of a tensor whose rows begin at multiples of 16 bytes, repeated as it was; or of the *whole* of it, dense."""
    steps, unit = strides_of(x), ALIGNMENT // x.dtype.itemsize
    kept = [n if step or whole else 1 for n, step in zip(x.shape, steps, strict=True)]
    held, last = list(kept), max((dim for dim, n in enumerate(kept) if n > 1), default=0)
    if not whole:
        held[last] = -(-kept[last] // unit) * unit
    some = seen_as(x, tuple(kept), tuple(step if n > 1 else 0 for n, step in zip(kept, steps, strict=True)))
    if isinstance(x, np.ndarray):
        made: Any = np.zeros(held, x.dtype)
    else:
        made = x.new_zeros(held)
    inside = made[tuple(slice(n) for n in kept)]
    if isinstance(x, np.ndarray):
        inside[...] = some
    else:
        inside.copy_(some)
    strides = tuple(step if n > 1 else 0 for n, step in zip(kept, strides_of(made), strict=True))
    return seen_as(made, tuple(x.shape), strides)


def converted(x: Any, dtype: DType) -> Any:
    """A tensor of another type; itself if it is of that one."""
    if isinstance(x, np.ndarray):
        return x.astype(dtype.numpy, copy=False)
    return x.to(getattr(sys.modules["torch"], dtype.torch))


def widest(tensors: list[Any]) -> Any:
    """The type of 32 bits of one of them if there is any, else that of the first."""
    return dtype_of(max(tensors, key=lambda x: x.dtype.itemsize), "x")
