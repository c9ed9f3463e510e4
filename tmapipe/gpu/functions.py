"""The functions of `tmapipe.math` as CuTe DSL operations."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32

LOG2_E = 1.4426950408889634


def widen(x: Any) -> Any:
    """The fragment or number in fp32."""
    if isinstance(x, cute.TensorSSA):
        return x if x.dtype is Float32 else x.to(Float32)
    return Float32(x)


def exp(x: Any) -> Any:
    return cute.math.exp2(widen(x) * LOG2_E, fastmath=True)


def tanh(x: Any) -> Any:
    return _each(lambda value: cute.math.tanh(value, approx=True), x)


def erf(x: Any) -> Any:
    return cute.math.erf(widen(x))


def sqrt(x: Any) -> Any:
    return cute.math.sqrt(widen(x), fastmath=True)


def rsqrt(x: Any) -> Any:
    return cute.math.rsqrt(widen(x), fastmath=True)


def sigmoid(x: Any) -> Any:
    return _each(cute.arch.rcp_approx, exp(-widen(x)) + 1.0)


def maximum(x: Any, y: Any) -> Any:
    return _each(lambda a, b: cute.arch.fmax(a, b, nan=True), x, y)


def minimum(x: Any, y: Any) -> Any:
    return _each(lambda a, b: cute.arch.fmin(a, b, nan=True), x, y)


def where(condition: Any, x: Any, y: Any) -> Any:
    fragment = next((v for v in (condition, x, y) if isinstance(v, cute.TensorSSA)), None)
    if fragment is None:
        return cutlass.select_(Boolean(condition), widen(x), widen(y))
    if isinstance(condition, cute.TensorSSA):
        return cute.where(condition, _broadcast(x, fragment.shape), _broadcast(y, fragment.shape))
    return _each(lambda a, b: cutlass.select_(Boolean(condition), a, b), x, y)


def _broadcast(x: Any, shape: Any) -> Any:
    return widen(x) if isinstance(x, cute.TensorSSA) else cute.full(shape, Float32(x), Float32)


def _each(function: Any, *arguments: Any) -> Any:
    """Applies *function*, which takes scalars, to each element. A number among the arguments counts as a fragment of it."""
    fragment = next((x for x in arguments if isinstance(x, cute.TensorSSA)), None)
    if fragment is None:
        return function(*(widen(x) for x in arguments))
    fragments = [_broadcast(x, fragment.shape) for x in arguments]
    result = cute.make_rmem_tensor(fragment.shape, Float32)
    for i in range(cute.size(fragment.shape)):
        result[i] = function(*(x[i] for x in fragments))
    return result.load()
