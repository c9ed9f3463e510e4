"""The floating-point arithmetic of PTX on arrays: rounded sums and products, pairs of halves, and conversions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["EIGHT", "UNSIGNED", "conversion", "float_function", "kind_of", "to_float", "unsigned"]

UNSIGNED = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
_HALF = {"f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}


@functools.cache
def kind_of(word: str) -> np.dtype[Any]:
    """The NumPy type of a PTX type: of ``bf16`` and of pairs, that of their bits."""
    if word == "pred":
        return np.dtype(bool)
    if word in _HALF:
        return _HALF[word]
    if word in ("f16x2", "bf16x2"):
        return UNSIGNED[4]
    if word == "bf16":
        return UNSIGNED[2]
    return np.dtype(f"{'i' if word[0] == 's' else 'u'}{int(word[1:]) // 8}")


def unsigned(value: Any) -> np.ndarray:
    """The bits of an array."""
    kind = value.dtype
    return value if kind.kind in "bu" else np.asarray(value).view(UNSIGNED[kind.itemsize])


# ---- floats -----------------------------------------------------------------------------------------------------------


def to_float(bits: Any, word: str) -> np.ndarray:
    """bf16, f16 or f32 as float32."""
    if word == "bf16":
        return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.asarray(bits).view(kind_of(word)).astype(np.float32)


def from_float(value: np.ndarray, word: str) -> np.ndarray:
    """float32, rounded to nearest even, as bits of bf16, f16 or f32."""
    if word == "bf16":
        bits = np.asarray(value, np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(value), np.uint32(0x7FFF), rounded).astype(np.uint16)
    return unsigned(np.asarray(value, np.float32).astype(kind_of(word)))


def fused(a: Any, b: Any, c: Any) -> np.ndarray:
    """a * b + c of float32, rounded once: the float64 sum is rounded to odd before it is rounded to float32."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    more = np.asarray(c, np.float64)
    total = product + more
    back = total - product
    error = (product - (total - back)) + (more - back)
    bits = np.asarray(total).view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
    away = np.where((error > 0) == (total > 0), 1, -1)
    return (bits + np.where(inexact, away, 0)).view(np.float64).astype(np.float32)


def _flushed(value: Any) -> Any:
    """Subnormal numbers as zeros of their sign (``.ftz``)."""
    return np.where(np.abs(value) < np.float32(2.0**-126), np.copysign(np.float32(0), value), value)


def _chosen(compare: Callable[[Any, Any], Any], strict: bool) -> Callable[[Any, Any], Any]:
    """max or min: of NaN and a number the number, unless *strict* (``.NaN``); +0 above -0."""

    def choose(a: Any, b: Any) -> Any:
        above = compare(a, b) | ((a == b) & (np.signbit(b) if compare is np.greater else np.signbit(a)))
        found = np.where(above, a, b)
        one, other = np.isnan(a), np.isnan(b)
        if strict:
            return np.where(one | other, np.float32(np.nan), found)
        return np.where(one, b, np.where(other, a, found))

    return choose


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ex2": np.exp2, "lg2": np.log2, "rcp": lambda x: 1 / x, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
}  # fmt: skip
_OF_FLOATS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "fma": fused, "neg": lambda a: -a, "abs": np.abs, "mov": lambda a: a, "copysign": lambda a, b: np.copysign(b, a),
}  # fmt: skip


def _of_float32(kind: str, words: list[str]) -> Callable[..., Any]:
    """Of float32 arrays, rounded to float32."""
    if kind in _FUNCTIONS:
        function = _FUNCTIONS[kind]
        compute = lambda x: function(np.asarray(x, np.float64)).astype(np.float32)  # noqa: E731
    elif kind in ("max", "min"):
        compute = _chosen(np.greater if kind == "max" else np.less, "NaN" in words)
    else:
        compute = _OF_FLOATS[kind]
    if "relu" in words:
        before = compute
        compute = lambda *of: np.maximum(before(*of), np.float32(0))  # noqa: E731
    if "sat" in words:
        unbound = compute
        compute = lambda *of: np.nan_to_num(np.clip(unbound(*of), np.float32(0), np.float32(1)))  # noqa: E731
    if "ftz" in words:
        plain = compute
        return lambda *of: _flushed(plain(*map(_flushed, of)))
    return compute


def float_function(kind: str, words: list[str]) -> Callable[..., Any]:
    """Of bits, to bits: of f32, f16, bf16 and pairs of these."""
    word = words[-1]
    compute = _of_float32(kind, words) if word != "f64" else _OF_FLOATS[kind]
    if word in ("f32", "f64"):
        return compute
    half = word.removesuffix("x2")
    if half == "f16" and kind == "fma":  # products are exact in float64, and so are most sums: rounded from there
        rounded: Callable[..., Any] = lambda *of: np.asarray(of[0], np.float64) * of[1] + of[2]  # noqa: E731
        of_half = lambda *of: unsigned(rounded(*(to_float(x, half) for x in of)).astype(np.float16))  # noqa: E731
    else:
        of_half = lambda *of: from_float(compute(*(to_float(x, half) for x in of)), half)  # noqa: E731
    if not word.endswith("x2"):
        return lambda *of: of_half(*(unsigned(x) for x in of))

    def of_pairs(*of: Any) -> np.ndarray:
        low, high = (of_half(*((x >> np.uint32(16 * i)).astype(np.uint16) for x in of)) for i in (0, 1))
        return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)

    return of_pairs


# ---- conversions ------------------------------------------------------------------------------------------------------

_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
EIGHT = {"e4m3x2": "float8_e4m3fn", "e5m2x2": "float8_e5m2"}


def _eight(value: np.ndarray, word: str) -> np.ndarray:
    """float32 as bits of 8-bit floats, saturated."""
    import torch

    kind = getattr(torch, EIGHT[word])
    most = torch.finfo(kind).max
    clipped = torch.from_numpy(np.atleast_1d(np.clip(value, -most, most)))
    return clipped.to(kind).view(torch.uint8).numpy().reshape(np.shape(value))


def _of_eight(bits: np.ndarray, word: str) -> np.ndarray:
    import torch

    return torch.from_numpy(np.atleast_1d(bits)).view(getattr(torch, EIGHT[word])).float().numpy().reshape(bits.shape)


def conversion(words: list[str]) -> Callable[..., Any]:
    to, source = words[-2:]
    if to in ("bf16x2", "f16x2") and source == "f32":  # the first operand above

        def both(high: Any, low: Any) -> Any:
            if "relu" in words:
                high, low = np.maximum(high, np.float32(0)), np.maximum(low, np.float32(0))
            parts = (from_float(x, to.removesuffix("x2")).astype(np.uint32) for x in (low, high))
            return next(parts) | next(parts) << np.uint32(16)

        return both
    if to in EIGHT and source == "f32":
        return lambda high, low: _eight(low, to).astype(np.uint16) | _eight(high, to).astype(np.uint16) << np.uint16(8)
    if to in EIGHT:  # from a pair of halves
        half = source.removesuffix("x2")

        def narrowed(pair: Any) -> Any:
            low, high = (to_float((pair >> np.uint32(16 * i)).astype(np.uint16), half) for i in (0, 1))
            return _eight(low, to).astype(np.uint16) | _eight(high, to).astype(np.uint16) << np.uint16(8)

        return narrowed
    if source in EIGHT:

        def widened(pair: Any) -> Any:
            parts = (_of_eight((pair >> np.uint16(8 * i)).astype(np.uint8), source) for i in (0, 1))
            low, high = (from_float(x, to.removesuffix("x2")).astype(np.uint32) for x in parts)
            return low | high << np.uint32(16)

        return widened
    return _of_one(words, to, source)


def _of_one(words: list[str], to: str, source: str) -> Callable[[Any], Any]:
    of_float, to_a_float = "f" in source, "f" in to
    if of_float and to_a_float:

        def between(a: Any) -> Any:
            value = a if source in ("f32", "f64") else to_float(unsigned(a), source)
            how = next((word for word in words if word in _ROUND), None)
            value = _ROUND[how](value) if how else value
            value = np.maximum(value, 0).astype(value.dtype) if "relu" in words else value
            if "sat" in words:
                value = np.nan_to_num(np.clip(value, 0, 1)).astype(value.dtype)
            return value.astype(np.float64) if to == "f64" else from_float(value, to)

        assert not {"rz", "rm", "rp", "rna"} & set(words), words
        return between
    if of_float:
        how = _ROUND[next(word for word in words if word in _ROUND)]
        kind = kind_of(to)
        least, most = np.iinfo(kind).min, np.iinfo(kind).max

        def whole(a: Any) -> Any:
            value = np.asarray(a if source == "f64" else to_float(unsigned(a), source), np.float64)
            value = np.where(np.isnan(value), 0, how(value))
            inside = (value > least) & (value < most)
            safe = np.where(inside, value, 0).astype(kind)
            return np.where(value >= most, kind.type(most), np.where(value <= least, kind.type(least), safe))

        return whole
    if to_a_float:  # through float64, which holds all but some numbers of 64 bits
        if source[1:] == "64":
            return lambda a: unsigned(np.asarray(a).astype(kind_of(to)))
        return lambda a: (
            np.asarray(a).astype(np.float64) if to == "f64" else from_float(np.asarray(a).astype(np.float32), to)
        )
    kind = kind_of(to)
    if "sat" in words:
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
        return lambda a: np.where(a > most, most, np.where(a < least, least, a)).astype(kind)
    return lambda a: a.astype(kind)
