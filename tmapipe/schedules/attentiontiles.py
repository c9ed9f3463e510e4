"""Tiles of `Attention`: how many queries, in which order, and views of tensors whose heads share tiles."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tmapipe.base.arithmetic import ceil_div

ROOM = 226 << 10  # bytes of shared memory for slots and buffers of results, or a little more


def rows_of(d: int, width: int) -> int:
    """Queries of a tile of one head. width: elements of a head's values, as everywhere here."""
    return 192 if max(d, width) <= 64 else 128


def keys_of(d: int, width: int, rows: int) -> int:
    """Keys of a block: 128, or as many as two slots of keys and of values have room for."""
    return min(128, (ROOM - 2 * rows * (d + 64)) // (4 * (d + width)) // 16 * 16) if max(d, width) > 128 else 128


def slots_of(d: int, width: int, keys: int) -> tuple[int, int, int]:
    """Slots of queries, of keys and of values."""
    if max(d, width) <= 64:
        return (2, 4, 4) if keys <= 128 else (2, 3, 3)
    return 2 if keys <= 128 and max(d, width) <= 128 else 1, 2, 2


def band_of(d: int, width: int, m: int, s: int, together: int) -> int:
    """Heads that causal tiles go through at once, as measured on an H200: so many that the last tiles are short, and fewer
    where L2 would not hold the keys and values of so many heads of more than 64 elements."""
    if max(d, width) <= 64:
        return 32 if m <= 1024 else 16
    held = (24 << 20) * together // max(1, 2 * s * (d + width))
    most = min(max(held, 1), ceil_div(512, max(1, ceil_div(m, rows_of(d, width)))))
    return 1 << (most.bit_length() - 1)


def empty_like(x: Any, width: int) -> Any:
    """A new tensor like *x*, whose dimensions lie in the same order, with *width* elements along the last one."""
    if width == x.shape[3]:
        return np.empty_like(x) if isinstance(x, np.ndarray) else sys.modules["torch"].empty_like(x)
    strides = x.strides if isinstance(x, np.ndarray) else x.stride()
    order = sorted(range(3), key=lambda i: -strides[i])
    back, shape = (*(order.index(i) for i in range(3)), 3), (*(x.shape[i] for i in order), width)
    return np.empty(shape, x.dtype).transpose(back) if isinstance(x, np.ndarray) else x.new_empty(shape).permute(back)


def heads_last(x: Any, groups: int) -> Any:
    """A view of [batch, heads, queries, d] as [batch, groups, queries, heads, d]."""
    shape = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    found = x.reshape(shape) if not hasattr(x, "data_ptr") else x.unflatten(1, shape[1:3])
    return found.swapaxes(2, 3)
