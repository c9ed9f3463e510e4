"""Kernels of rows: `softmax` and `rms_norm` over the last dimension."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tmapipe.errors import InputError
from tmapipe.schedules.rmsnorm import RmsNorm
from tmapipe.schedules.softmax import Softmax
from tmapipe.torch.fallback import eager, otherwise, reason_of, where

__all__ = ["rms_norm", "softmax"]


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """``exp(x) / sum of exp(x)`` over a dimension, as `torch.softmax`.

    Args:
        x: Of any number of dimensions.
        dim: The last one has a kernel.
    """
    if dim not in (-1, x.ndim - 1):
        return otherwise("softmax", "a dimension that is not the last", lambda: torch.softmax(x, dim))
    return _softmax(x) if eager(x) else torch.ops.tmapipe.softmax(x)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, as `torch.nn.functional.rms_norm`.

    Args:
        x: Of any number of dimensions.
        weight: One number a column.
        eps: Added to the mean square.
    """
    return _rms_norm(x, weight, eps) if eager(x, weight) else torch.ops.tmapipe.rms_norm(x, weight, eps)


_softmax_rows = Softmax()
_rms_norm_rows = functools.lru_cache(maxsize=64)(RmsNorm)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return _by_rows("softmax", x, _softmax_rows, lambda: torch.softmax(x, -1))


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    def run() -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)

    return _by_rows("rms_norm", x, lambda rows: _rms_norm_rows(eps)(rows, weight), run)


def _by_rows(
    operator: str, x: torch.Tensor, kernel: Callable[[torch.Tensor], torch.Tensor], run: Callable[[], torch.Tensor]
) -> torch.Tensor:
    if not x.ndim or not x.numel():
        return run()
    reason = where(x)
    if reason is not None:
        return otherwise(operator, reason, run)
    with torch.no_grad():
        try:
            found: Any = kernel(x.detach().reshape(-1, x.shape[-1]))
        except InputError as error:
            return otherwise(operator, reason_of(error), run)
    return found.view(x.shape)


_softmax_op = torch.library.custom_op("tmapipe::softmax", _softmax, mutates_args=(), schema="(Tensor x) -> Tensor")
_rms_norm_op = torch.library.custom_op(
    "tmapipe::rms_norm", _rms_norm, mutates_args=(), schema="(Tensor x, Tensor weight, float eps) -> Tensor"
)


@_softmax_op.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_rms_norm_op.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_softmax(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output)


def _softmax_gradient(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    (y,) = (each.float() for each in ctx.saved_tensors)
    product = grad.float() * y
    return (product - y * product.sum(-1, keepdim=True)).to(grad.dtype)


def _keep_rms_norm(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _rms_norm_gradients(ctx: Any, grad: torch.Tensor) -> Any:
    x, weight = ctx.saved_tensors
    wide, of_y = x.float(), grad.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + ctx.eps)
    unit, weighted = wide * scale, of_y * weight.float()
    of_x = scale * (weighted - unit * (weighted * unit).mean(-1, keepdim=True))
    of_weight = (of_y * unit).reshape(-1, x.shape[-1]).sum(0)
    return of_x.to(x.dtype), of_weight.to(weight.dtype), None


_softmax_op.register_autograd(_softmax_gradient, setup_context=_keep_softmax)
_rms_norm_op.register_autograd(_rms_norm_gradients, setup_context=_keep_rms_norm)
