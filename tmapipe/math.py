"""Functions of fragments, for epilogues and role bodies. They mean the same in both backends.

An argument is a number or a fragment (what ``slot.x.read()`` gives, and what an epilogue is called with). Narrower types are
widened; results are fp32. The CPU backend computes with NumPy. The GPU backend uses the special-function unit: ``ex2.approx``,
``rsqrt.approx``, ``sqrt.approx`` and ``rcp.approx`` have relative errors of some 2^-22 (`exp` of large numbers more: |x| *
2^-24), and ``tanh.approx`` of 2^-11 (PTX ISA), which is below the rounding of bf16.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tmapipe.errors import InputError

__all__ = [
    "erf", "exp", "gelu", "maximum", "minimum", "relu", "rsqrt", "sigmoid", "silu", "sqrt", "tanh", "where",
]  # fmt: skip


def exp(x: Any) -> Any:
    """e^x."""
    return _apply("exp", x)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    return _apply("tanh", x)


def erf(x: Any) -> Any:
    """The error function: 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x. On the GPU in full fp32 precision."""
    return _apply("erf", x)


def sqrt(x: Any) -> Any:
    """Square root; NaN below 0."""
    return _apply("sqrt", x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x); infinite at 0, NaN below."""
    return _apply("rsqrt", x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    return _apply("sigmoid", x)


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return maximum(x, 0.0)


def silu(x: Any) -> Any:
    """x * sigmoid(x), also called swish."""
    x = _apply("widen", x)
    return x * sigmoid(x)


def gelu(x: Any, approximate: str = "tanh") -> Any:
    """x * Phi(x), where Phi is the cumulative normal distribution, as `torch.nn.functional.gelu` computes it.

    Args:
        approximate: "tanh" for ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`` (within |x| * 2^-12 on the GPU);
            "none" for ``x / 2 * (1 + erf(x / sqrt(2)))``, which takes several times as many instructions.

    Raises:
        InputError: *approximate* is something else.
    """
    if approximate not in ("tanh", "none"):
        raise InputError("gelu(approximate)", approximate, 'is "tanh" or "none"', 'use "tanh"')
    x = _apply("widen", x)
    half = x * 0.5
    if approximate == "none":
        return half + half * erf(x * math.sqrt(0.5))
    root = math.sqrt(2 / math.pi)
    return half + half * tanh(x * (x * x * (root * 0.044715) + root))


def maximum(x: Any, y: Any) -> Any:
    """The larger of the two, element by element; NaN if either is NaN."""
    return _apply("maximum", x, y)


def minimum(x: Any, y: Any) -> Any:
    """The smaller of the two, element by element; NaN if either is NaN."""
    return _apply("minimum", x, y)


def where(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, y elsewhere. The condition is a comparison of fragments, or a bool."""
    return _apply("where", condition, x, y)


# ---- on the model, and for numbers ------------------------------------------------------------------------------------


def _sigmoid(x: Any) -> Any:
    e = np.exp(-abs(x))  # at most 1: no overflow on either side
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


_NUMPY: dict[str, Any] = {
    "widen": lambda x: x,
    "exp": np.exp,
    "tanh": np.tanh,
    "erf": lambda x: np.vectorize(math.erf, otypes=[x.dtype])(x),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": _sigmoid,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


_KNOWN = (np.ndarray, np.generic, float, int)


def _is_known(x: Any) -> bool:
    """Whether *x* is a fragment or a number of the machine."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype.kind in "fiub" or x.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    from tmapipe.machine.nodata import NoData

    return isinstance(x, (float, int, NoData))


def _apply(name: str, *arguments: Any) -> Any:
    """Calls the function called *name*, in the backend that the arguments belong to."""
    if any(type(x).__module__.partition(".")[0] == "cutlass" for x in arguments):
        from tmapipe.gpu import functions

        return getattr(functions, name)(*arguments)
    for x in arguments:
        if not _is_known(x):
            raise InputError(
                f"tmapipe.math.{name}", type(x).__name__, "takes fragments and numbers", "convert it first"
            )
    placeholder = next((x for x in arguments if not isinstance(x, _KNOWN)), None)
    if placeholder is not None:  # the check runs without data
        return placeholder
    fragments = any(isinstance(x, np.ndarray) for x in arguments)
    with np.errstate(all="ignore"):  # infinities and NaN are values here, as on the GPU
        if name == "where":
            condition, x, y = arguments
            result = np.where(condition, *np.broadcast_arrays(_wide(x, fragments), _wide(y, fragments)))
        else:
            result = _NUMPY[name](*(_wide(x, fragments) for x in arguments))
    if not fragments:
        return float(result)
    kind = next((type(x) for x in arguments if isinstance(x, np.ndarray) and type(x) is not np.ndarray), np.ndarray)
    return np.asarray(result, np.float32).view(kind)


def _wide(x: Any, fragments: bool) -> Any:
    return np.asarray(x).astype(np.float32 if fragments else np.float64)
