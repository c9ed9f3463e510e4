"""Functions of rows as operators of torch: softmax, norms and cross-entropy with their gradients, and transposes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from tmapipe.errors import InputError, is_whole
from tmapipe.schedules.crossentropy import CrossEntropy, CrossEntropyBackward, LogSoftmax, Softmax
from tmapipe.schedules.normgradients import LayerNormBackward, RmsNormBackward
from tmapipe.schedules.norms import LayerNorm, LogSoftmaxBackward, RmsNorm, SoftmaxBackward
from tmapipe.schedules.transpose import Transpose
from tmapipe.torch.operators import PLAIN, by_kernel, differentiated, eager, otherwise, require_tensors, where

# ---- functions: over the last dimension ---------------------------------------------------------------------------------


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """``exp(x) / sum of exp(x)`` over a dimension, as `torch.softmax`.

    Args:
        x: Of any number of dimensions.
        dim: The last one has a kernel.
    """
    if not _last("softmax", x, dim):
        return otherwise("softmax", "a dimension that is not the last", lambda: torch.softmax(x, dim))
    found: torch.Tensor = _called("softmax", x)
    return found


def log_softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The logarithm of `softmax`, as `torch.log_softmax`.

    Args:
        x: Of any number of dimensions.
        dim: The last one has a kernel.
    """
    if not _last("log_softmax", x, dim):
        return otherwise("log_softmax", "a dimension that is not the last", lambda: torch.log_softmax(x, dim))
    found: torch.Tensor = _called("log_softmax", x)
    return found


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, as `torch.nn.functional.rms_norm`.

    Args:
        x: Of any number of dimensions.
        weight: One number a column.
        eps: Added to the mean square.
    """
    require_tensors("rms_norm", x=x, weight=weight)
    _check_eps("rms_norm", eps)
    found: torch.Tensor = _called("rms_norm", x, weight, eps)
    return found


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last dimension, as `torch.nn.functional.layer_norm`.

    Args:
        x: Of any number of dimensions.
        weight: One number a column.
        bias: One number a column, or None.
        eps: Added to the variance.
    """
    given = {"x": x, "weight": weight} if bias is None else {"x": x, "weight": weight, "bias": bias}
    require_tensors("layer_norm", **given)
    _check_eps("layer_norm", eps)
    found: torch.Tensor = _called("layer_norm", x, weight, bias, eps)
    return found


def cross_entropy(
    x: torch.Tensor, target: torch.Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> torch.Tensor:
    """``log(sum of exp(x)) - x[target]`` of each row, as `torch.nn.functional.cross_entropy`.

    Args:
        x: The logits, [rows, classes], or [rows, classes, ...] of several targets a row, or [classes].
        target: A class for each row; of x's shape without the classes.
        ignore_index: A target that does not count.
        reduction: "mean" over rows that count, "sum" or "none".

    Raises:
        InputError: *x* or *target* is no tensor, *ignore_index* no whole number, or *reduction* another word.
    """
    require_tensors("cross_entropy", x=x, target=target)
    if not is_whole(ignore_index):
        raise InputError("tmapipe.torch.cross_entropy(ignore_index)", ignore_index, "is a class's number", "e.g. -100")
    if not isinstance(reduction, str) or reduction not in ("mean", "sum", "none"):
        raise InputError("tmapipe.torch.cross_entropy(reduction)", reduction, "is mean, sum or none", 'e.g. "mean"')
    classes = 0 if x.ndim < 2 else 1  # the dimension of the classes
    others = (*x.shape[:classes], *x.shape[classes + 1 :])
    if not x.ndim or target.shape != others or target.dtype not in (torch.int64, torch.int32):
        how: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction}
        reason = "targets that are not a class a row"
        return otherwise("cross_entropy", reason, lambda: functional.cross_entropy(x, target, **how))
    if x.ndim != 2:
        rows = x.movedim(classes, -1).reshape(-1, x.shape[classes])
        loss = cross_entropy(rows, target.reshape(-1), ignore_index=ignore_index, reduction=reduction)
        return loss.reshape(others) if reduction == "none" else loss
    loss = _called("cross_entropy", x, target, ignore_index)[0].to(x.dtype if reduction == "none" else None)
    if reduction == "none":
        return loss
    total = loss.sum()
    return (total / (target != ignore_index).sum() if reduction == "mean" else total).to(x.dtype)


def transpose(x: torch.Tensor, dims: Sequence[int] | None = None) -> torch.Tensor:
    """``x.permute(dims)``, dense.

    Args:
        x: Of one to five dimensions.
        dims: The order of its dimensions; None: backwards.

    Raises:
        InputError: *dims* does not name each dimension once.
    """
    require_tensors("transpose", x=x)
    order = tuple(reversed(range(x.ndim))) if dims is None else tuple(dims) if isinstance(dims, (tuple, list)) else ()
    if len(order) != x.ndim or not all(map(is_whole, order)) or sorted(order) != [*range(x.ndim)]:
        raise InputError("tmapipe.torch.transpose(dims)", dims, f"has each of {x.ndim} dimensions once", "e.g. (1, 0)")
    found: torch.Tensor = _called("transpose", x, order)
    return found


def _called(operator: str, *given: Any) -> Any:
    """What an operator of these rows computes: at once, or, where something traces the tensors, by torch.library."""
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    if eager(*tensors):
        return _FUNCTIONS[operator].run(*given)
    plain = all(type(x) in PLAIN for x in tensors) and not torch.compiler.is_compiling()
    if plain and differentiated(*tensors):
        return _FUNCTIONS[operator].apply(*given)
    return getattr(torch.ops.tmapipe, operator)(*given)


def _last(operator: str, x: Any, dim: Any) -> bool:
    """Whether *dim* is the last dimension. Raises `InputError` for what is none."""
    require_tensors(operator, x=x)
    if isinstance(dim, bool) or not isinstance(dim, int) or not -max(1, x.ndim) <= dim < max(1, x.ndim):
        raise InputError(
            f"tmapipe.torch.{operator}(dim)", dim, f"is the number of one of {x.ndim} dimensions", "e.g. -1"
        )
    return dim in (-1, x.ndim - 1)


def _check_eps(operator: str, eps: Any) -> None:
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < 1e30:
        raise InputError(f"tmapipe.torch.{operator}(eps)", eps, "is a number, at least 0", "e.g. 1e-6")


# ---- kernels ----------------------------------------------------------------------------------------------------------

_rows: dict[str, Callable[..., Any]] = {
    "softmax": Softmax(),
    "log_softmax": LogSoftmax(),
    "softmax's gradient": SoftmaxBackward(),
    "log_softmax's gradient": LogSoftmaxBackward(),
}
_of_eps = functools.lru_cache(maxsize=64)(lambda kind, *given: kind(*given))


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return _by_rows("softmax", x, _rows["softmax"], lambda: torch.softmax(x, -1))


def _log_softmax(x: torch.Tensor) -> torch.Tensor:
    return _by_rows("log_softmax", x, _rows["log_softmax"], lambda: torch.log_softmax(x, -1))


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    def run() -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)

    return _by_rows("rms_norm", x, lambda rows: _of_eps(RmsNorm, eps)(rows, weight), run)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    def run() -> torch.Tensor:
        own = None if bias is None else bias.to(x.dtype)
        return functional.layer_norm(x, (x.shape[-1],), weight.to(x.dtype), own, eps)

    return _by_rows("layer_norm", x, lambda rows: _of_eps(LayerNorm, eps)(rows, weight, bias), run)


def _cross_entropy(x: torch.Tensor, target: torch.Tensor, ignored: int) -> tuple[torch.Tensor, torch.Tensor]:
    def run() -> tuple[torch.Tensor, torch.Tensor]:
        wide = x.float()
        loss = functional.cross_entropy(wide, target.long(), ignore_index=ignored, reduction="none")
        return loss, wide.logsumexp(-1)

    reason = where(x) if x.numel() else "no logits"
    found: Any = by_kernel("cross_entropy", reason, lambda: _of_eps(CrossEntropy, ignored)(x.detach(), target), run)
    return found


def _transpose(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    def run() -> torch.Tensor:
        return x.permute(*dims).clone(memory_format=torch.contiguous_format)

    reason = where(x) if x.numel() and x.ndim else "no elements" if x.ndim else "no dimensions"
    found: torch.Tensor = by_kernel("transpose", reason, lambda: _of_eps(Transpose, tuple(dims))(x.detach()), run)
    return found


def _by_rows(
    operator: str, x: torch.Tensor, kernel: Callable[[torch.Tensor], torch.Tensor], run: Callable[[], torch.Tensor]
) -> torch.Tensor:
    if not x.ndim or not x.numel():
        return run()

    def by_rows() -> torch.Tensor:
        return kernel(x.detach().reshape(-1, x.shape[-1])).view(x.shape)

    found: torch.Tensor = by_kernel(operator, where(x), by_rows, run)
    return found


# ---- operators --------------------------------------------------------------------------------------------------------


def _like(x: torch.Tensor, *others: Any) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# ---- gradients: by kernels, or by torch where they are to be differentiated again ---------------------------------------


def _softmax_gradient(y: torch.Tensor, dy: torch.Tensor, log: bool) -> torch.Tensor:
    operator = "log_softmax" if log else "softmax"

    def run() -> torch.Tensor:
        aten = torch.ops.aten
        computed = aten._log_softmax_backward_data if log else aten._softmax_backward_data
        found: torch.Tensor = computed(dy, y, -1, y.dtype)
        return found

    def kernel() -> torch.Tensor:
        found: torch.Tensor = _rows[f"{operator}'s gradient"](*_as_rows(y, dy))
        return found.view(y.shape)

    found: torch.Tensor = _by_kernel(operator, (y, dy), kernel, run)
    return found


def _rms_norm_gradients(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    def run() -> tuple[torch.Tensor, torch.Tensor]:
        wide, of_y = x.float(), dy.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        unit, weighted = wide * scale, of_y * weight.float()
        of_x = scale * (weighted - unit * (weighted * unit).mean(-1, keepdim=True))
        return of_x.to(x.dtype), (of_y * unit).reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)

    def kernel() -> tuple[torch.Tensor, torch.Tensor]:
        rows, of_y = _as_rows(x, dy)
        of_x, of_weight = _of_eps(RmsNormBackward, eps)(rows, weight.detach(), of_y)
        return of_x.view(x.shape), of_weight.to(weight.dtype)

    found: tuple[torch.Tensor, torch.Tensor] = _by_kernel("rms_norm", (x, dy), kernel, run)
    return found


def _layer_norm_gradients(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    def run() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        wide, of_y = x.float(), dy.float()
        off = wide - wide.mean(-1, keepdim=True)
        scale = torch.rsqrt(off.square().mean(-1, keepdim=True) + eps)
        unit, weighted = off * scale, of_y * weight.float()
        means = weighted.mean(-1, keepdim=True) + unit * (weighted * unit).mean(-1, keepdim=True)
        columns = of_y.reshape(-1, x.shape[-1])
        of_weight = (columns * unit.reshape(-1, x.shape[-1])).sum(0)
        return (scale * (weighted - means)).to(x.dtype), of_weight.to(weight.dtype), columns.sum(0)

    def kernel() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows, of_y = _as_rows(x, dy)
        of_x, of_weight, of_bias = _of_eps(LayerNormBackward, eps)(rows, weight.detach(), of_y)
        return of_x.view(x.shape), of_weight.to(weight.dtype), of_bias

    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _by_kernel("layer_norm", (x, dy), kernel, run)
    return found


def _cross_entropy_gradient(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor, ignored: int
) -> torch.Tensor:
    def run() -> torch.Tensor:
        counts = target != ignored
        of_loss = torch.where(counts, dloss.float(), 0.0)[:, None]
        column = torch.where(counts, target, 0).long()[:, None]
        powers = torch.exp(x.float() - lse[:, None])
        return (powers * of_loss).scatter_add(1, column, -of_loss).to(x.dtype)

    def kernel() -> torch.Tensor:
        given = (x.detach(), target, lse.detach(), dloss.detach().float().contiguous())
        found: torch.Tensor = _of_eps(CrossEntropyBackward, ignored)(*given)
        return found

    found: torch.Tensor = _by_kernel("cross_entropy", (x, dloss), kernel, run)
    return found


def _by_kernel(of: str, given: tuple[torch.Tensor, ...], kernel: Callable[[], Any], run: Callable[[], Any]) -> Any:
    """What *kernel* computes of the rows *given*; or *run*, with torch, where the gradient is to be differentiated again."""
    if not given[0].numel() or torch.is_grad_enabled():
        return run()
    return by_kernel(f"{of}'s gradient", where(given[0]), kernel, run)


def _as_rows(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of one shape as matrices of their rows; the gradient of a sum has no strides, so it is copied."""
    return tuple(x.detach().contiguous().view(-1, x.shape[-1]) for x in given)


def _of_softmax(ctx: Any, grad: torch.Tensor, log: bool = False) -> torch.Tensor:
    (y,) = ctx.saved_tensors
    return _apply(_softmax_gradient, torch.ops.tmapipe.softmax_gradient, y, grad, log)


def _of_rms_norm(ctx: Any, grad: torch.Tensor) -> Any:
    x, weight = ctx.saved_tensors
    found = _apply(_rms_norm_gradients, torch.ops.tmapipe.rms_norm_gradients, x, weight, grad, ctx.eps)
    return *found, None


def _of_layer_norm(ctx: Any, grad: torch.Tensor) -> Any:
    x, weight = ctx.saved_tensors
    op = torch.ops.tmapipe.layer_norm_gradients
    of_x, of_weight, of_bias = _apply(_layer_norm_gradients, op, x, weight, grad, ctx.eps)
    return of_x, of_weight, None if ctx.bias is None else of_bias.to(ctx.bias), None


def _of_cross_entropy(ctx: Any, grad: torch.Tensor, of_lse: Any) -> Any:
    given = (*ctx.saved_tensors, grad, ctx.ignored)
    return _apply(_cross_entropy_gradient, torch.ops.tmapipe.cross_entropy_gradient, *given), None, None


def _apply(run: Callable[..., Any], op: Any, *given: Any) -> Any:
    """A gradient: at once, or where something traces it, by an operator."""
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    return run(*given) if torch.is_grad_enabled() or eager(*tensors) else op(*given)


def _keep_output(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output)


def _keep_rms(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _keep_layer(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, ctx.eps = inputs
    ctx.bias = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight)


def _keep_cross_entropy(ctx: Any, inputs: Any, output: Any) -> None:
    x, target, ctx.ignored = inputs
    ctx.save_for_backward(x, target, output[1])
    ctx.mark_non_differentiable(output[1])


def _keep_dims(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.dims = tuple(inputs[1])


def _of_transpose(ctx: Any, grad: torch.Tensor) -> Any:
    back = sorted(range(len(ctx.dims)), key=lambda i: ctx.dims[i])
    return torch.ops.tmapipe.transpose(grad.contiguous(), back), None


_OPERATORS: tuple[
    tuple[str, str, Callable[..., Any], Callable[..., Any], Callable[..., Any], Callable[..., Any]], ...
] = (
    ("softmax", "(Tensor x) -> Tensor", _softmax, _like, _of_softmax, _keep_output),
    (
        "log_softmax",
        "(Tensor x) -> Tensor",
        _log_softmax,
        _like,
        lambda ctx, grad: _of_softmax(ctx, grad, log=True),
        _keep_output,
    ),
    ("rms_norm", "(Tensor x, Tensor weight, float eps) -> Tensor", _rms_norm, _like, _of_rms_norm, _keep_rms),
    (
        "layer_norm",
        "(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor",
        _layer_norm,
        _like,
        _of_layer_norm,
        _keep_layer,
    ),
    (
        "cross_entropy",
        "(Tensor x, Tensor target, int ignored) -> (Tensor, Tensor)",
        _cross_entropy,
        lambda x, target, ignored: tuple(x.new_empty(x.shape[:1], dtype=torch.float32) for _ in range(2)),
        _of_cross_entropy,
        _keep_cross_entropy,
    ),
    (
        "transpose",
        "(Tensor x, int[] dims) -> Tensor",
        _transpose,
        lambda x, dims: x.new_empty([x.shape[dim] for dim in dims]),
        _of_transpose,
        _keep_dims,
    ),
)
_FUNCTIONS: dict[str, Any] = {}  # what computes an operator's result, and its gradients, without torch.library


def _function_of(run: Callable[..., Any], gradient: Callable[..., Any], keep: Callable[..., None]) -> Any:
    """The autograd.Function of an operator. An operator of torch.library takes ten times the host time (`differentiated`)."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            output = run(*given)
            keep(ctx, given, output)
            return output

        backward = staticmethod(gradient)

    Function.run = staticmethod(run)
    return Function


for _name, _schema, _run, _fake, _gradient, _kept in _OPERATORS:
    _FUNCTIONS[_name] = _function_of(_run, _gradient, _kept)
    _made = torch.library.custom_op(f"tmapipe::{_name}", _run, mutates_args=(), schema=_schema)
    _made.register_fake(_fake)
    _made.register_autograd(_gradient, setup_context=_kept)

_GRADIENTS: tuple[tuple[str, str, Callable[..., Any], Callable[..., Any]], ...] = (
    ("softmax_gradient", "(Tensor y, Tensor dy, bool log) -> Tensor", _softmax_gradient, _like),
    (
        "rms_norm_gradients",
        "(Tensor x, Tensor weight, Tensor dy, float eps) -> (Tensor, Tensor)",
        _rms_norm_gradients,
        lambda x, weight, *_: (_like(x), _like(weight)),
    ),
    (
        "layer_norm_gradients",
        "(Tensor x, Tensor weight, Tensor dy, float eps) -> (Tensor, Tensor, Tensor)",
        _layer_norm_gradients,
        lambda x, weight, *_: (_like(x), _like(weight), torch.empty_like(weight, dtype=torch.float32)),
    ),
    (
        "cross_entropy_gradient",
        "(Tensor x, Tensor target, Tensor lse, Tensor dloss, int ignored) -> Tensor",
        _cross_entropy_gradient,
        _like,
    ),
)
for _name, _schema, _run, _fake in _GRADIENTS:
    torch.library.custom_op(f"tmapipe::{_name}", _run, mutates_args=(), schema=_schema).register_fake(_fake)
