"""Element by element: the operations of fragments on the CPU model.

A fragment's data is the calling warp's part: an array with a number for each of its elements, or one number for each row or
column of the tile, those of other warps too. Where there is no data, it is None.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tmapipe import arithmetic
from tmapipe.dtypes import DType, bf16, fp8_e4m3, fp8_e5m2, fp16
from tmapipe.machine.memory import convert
from tmapipe.plan.model import WARP
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout, VectorLayout

__all__ = ["KINDS", "apply", "indices_of"]

KINDS = {"fp32": np.float32, "int32": np.int32, "bool": np.bool_}


@functools.lru_cache(maxsize=256)
def indices_of(layout: ThreadLayout, warp: int) -> tuple[np.ndarray, np.ndarray]:
    """The (rows, columns) of a warp's elements, in arrays of the shape of its part.

    Args:
        warp: Its index in the CTA.
    """
    if isinstance(layout, VectorLayout):
        first = layout.warp(warp) * (layout.vectors * WARP if layout.by_rows else WARP)
        vectors = (first + np.arange(layout.vectors)[:, None] * layout.sharing + np.arange(WARP)).ravel()
        rows, first = np.divmod(vectors, layout.row_vectors)
        columns = first[:, None] * layout.width + np.arange(layout.width)
        return np.broadcast_to(rows[:, None], columns.shape), columns
    assert isinstance(layout, AccumulatorLayout)
    strips = np.arange(layout.blocks) * layout.warpgroups + layout.group(warp)
    rows = (strips * 64)[:, None, None] + 16 * (warp % 4) + np.arange(16)[:, None]
    shape = (layout.blocks, 16, layout.columns)
    return np.broadcast_to(rows, shape), np.broadcast_to(np.arange(layout.columns), shape)


def apply(name: str, operands: list[Any]) -> Any:
    """The operation *name* on arrays and NumPy numbers."""
    with np.errstate(all="ignore"):  # infinities and NaN are values here, as on the GPU
        return FUNCTIONS[name](*operands)


def _rounded(values: Any, dtype: DType) -> Any:
    """fp32 *values* as they are once written in *dtype*."""
    return convert(values, dtype).astype(np.float32)


def _to_int32(x: Any) -> Any:
    """Rounded to nearest even; saturating; NaN is 0 (PTX ISA, cvt.rni.s32.f32)."""
    clipped = np.clip(np.nan_to_num(np.rint(np.asarray(x, np.float64)), nan=0.0), -(2.0**31), 2.0**31 - 1)
    return clipped.astype(np.int32)


_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "abs", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor",
    "invert", "lshift", "rshift",
)  # fmt: skip
_OF_NUMPY = ("where", "floor", "sqrt")
OF_ARITHMETIC = ("exp", "exp2", "log", "log2", "tanh", "erf", "sigmoid")

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, f"__{name}__") for name in _OPERATORS},
    **{name: getattr(np, name) for name in _OF_NUMPY},
    **{name: getattr(arithmetic, name) for name in OF_ARITHMETIC},
    **{f"to_{kind.name}": functools.partial(_rounded, dtype=kind) for kind in (bf16, fp16, fp8_e4m3, fp8_e5m2)},
    "widen": np.asarray,
    "maximum": arithmetic.larger,
    "minimum": arithmetic.smaller,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "to_int32": _to_int32,
}
