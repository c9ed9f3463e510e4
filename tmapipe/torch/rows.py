"""Functions of rows as operators of torch: softmax, norms and cross-entropy with their gradients, and transposes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from tmapipe.base.arithmetic import DType, dtype_of, fp32
from tmapipe.calling import watching
from tmapipe.errors import InputError, is_whole
from tmapipe.schedules.crossentropy import CrossEntropy, CrossEntropyBackward, LogSoftmax, Softmax
from tmapipe.schedules.normgradients import LayerNormBackward, RmsNormBackward
from tmapipe.schedules.norms import LayerNorm, LogSoftmaxBackward, RmsNorm, SoftmaxBackward
from tmapipe.schedules.transpose import Transpose
from tmapipe.torch.operators import (
    PLAIN,
    TYPES,
    T,
    by_kernel,
    callers,
    differentiated,
    eager,
    function_of,
    keep,
    operator_of,
    otherwise,
    require_tensors,
    where,
)

# ---- functions: over the last dimension ---------------------------------------------------------------------------------


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """``exp(x) / sum of exp(x)`` over a dimension, as `torch.softmax`.

    Args:
        x: Of any number of dimensions.
        dim: The last one has a kernel.
    """
    if not _last("softmax", x, dim):
        return otherwise("softmax", "a dimension that is not the last", lambda: torch.softmax(x, dim))
    return _called("softmax", (x,))


def log_softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The logarithm of `softmax`, as `torch.log_softmax`.

    Args:
        x: Of any number of dimensions.
        dim: The last one has a kernel.
    """
    if not _last("log_softmax", x, dim):
        return otherwise("log_softmax", "a dimension that is not the last", lambda: torch.log_softmax(x, dim))
    return _called("log_softmax", (x,))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, as `torch.nn.functional.rms_norm`.

    Args:
        x: Of any number of dimensions.
        weight: One number a column.
        eps: Added to the mean square.
    """
    require_tensors("rms_norm", x=x, weight=weight)
    _check_eps("rms_norm", eps)
    return _called("rms_norm", (x, weight), eps)


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
    require_tensors("layer_norm", x=x, weight=weight, bias=x if bias is None else bias)
    _check_eps("layer_norm", eps)
    if bias is None:
        return _called("layer_norm", (x, weight), None, eps)
    return _called("layer_norm", (x, weight, bias), eps)


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
    if reduction == "none":
        return _called("cross_entropy", (x, target), ignore_index)[0].to(x.dtype)
    if _recorded((x, target)):
        total: torch.Tensor = _MeanEntropy.apply(x, target, ignore_index, reduction == "mean")
        return total
    loss = _called("cross_entropy", (x, target), ignore_index)[0]
    return _reduced(loss, target, ignore_index, reduction == "mean")[0].to(x.dtype)


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
    return _called("transpose", (x,), order)


def _called(operator: str, tensors: tuple[torch.Tensor, ...], *how: Any) -> torch.Tensor:
    """What an operator of these rows computes of *tensors*, and then *how*."""
    of = _FUNCTIONS[operator]
    found: torch.Tensor = of.apply(*tensors, *how) if _recorded(tensors) else _at_once(operator, of.run, tensors, how)
    return found


def _recorded(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Whether an autograd.Function takes a call with these tensors."""
    return not torch.compiler.is_compiling() and differentiated(*tensors) and all(type(x) in PLAIN for x in tensors)


def _at_once(
    operator: str, run: Callable[..., Any], tensors: tuple[torch.Tensor, ...], how: tuple[Any, ...], totals: Any = None
) -> Any:
    """What *run* computes of *tensors*, and then *how*: by a call that is remembered, or by *run*, of which is kept what makes
    its launches again, or, where something traces the tensors, by torch.library. totals: as of `_norm_gradients`."""
    if not torch.compiler.is_compiling() and not torch._C._len_torch_dispatch_stack():
        key = operator, how, totals, tensors[0].shape
        for call in callers.get(key, ()):
            found = call(tensors, None, {})
            if found is not None:
                return found
        if eager(*tensors):
            if totals is not None:
                return run(*tensors, *how, totals, key)
            with watching(tensors[0]) as launches:
                found = run(*tensors, *how)
            if launches:
                keep(key, launches, tensors, found if isinstance(found, tuple) else (found,), parts=True)
            return found
    return getattr(torch.ops.tmapipe, operator)(*tensors, *how)


def _reduced(loss: torch.Tensor, target: torch.Tensor, ignored: int, mean: bool) -> tuple[torch.Tensor, Any]:
    """(the sum of the losses of rows, or the mean of those that count; how many count, of a mean)."""
    if not mean:
        return loss.sum(), None
    count = (target != ignored).sum()
    return loss.sum() / count, count


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


def _softmax(x: torch.Tensor, log: bool = False) -> torch.Tensor:
    operator, run = ("log_softmax", torch.log_softmax) if log else ("softmax", torch.softmax)
    return _by_rows(operator, x, _rows[operator], lambda: run(x, -1))


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
    return by_kernel("cross_entropy", reason, lambda: _of_eps(CrossEntropy, ignored)(x.detach(), target), run)


def _transpose(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    def run() -> torch.Tensor:
        return x.permute(*dims).clone(memory_format=torch.contiguous_format)

    reason = where(x) if x.numel() and x.ndim else "no elements" if x.ndim else "no dimensions"
    return by_kernel("transpose", reason, lambda: _of_eps(Transpose, tuple(dims))(x.detach()), run)


def _by_rows(
    operator: str, x: torch.Tensor, kernel: Callable[[torch.Tensor], torch.Tensor], run: Callable[[], torch.Tensor]
) -> torch.Tensor:
    if not x.ndim or not x.numel():
        return run()

    def by_rows() -> torch.Tensor:
        return kernel(x.detach().reshape(-1, x.shape[-1])).view(x.shape)

    return by_kernel(operator, where(x), by_rows, run)


# ---- gradients: by kernels, or by torch where they are to be differentiated again ---------------------------------------


def _softmax_gradient(y: torch.Tensor, dy: torch.Tensor, log: bool) -> torch.Tensor:
    operator = "log_softmax" if log else "softmax"

    def run() -> torch.Tensor:
        aten = torch.ops.aten
        computed = aten._log_softmax_backward_data if log else aten._softmax_backward_data
        found: torch.Tensor = computed(dy, y, -1, y.dtype)
        return found

    def kernel() -> Any:
        return _rows[f"{operator}'s gradient"](*_as_rows(y, dy)).view(y.shape)

    return _by_kernel(operator, (y, dy), kernel, run)


def _norm_gradients(
    centered: bool, x: Any, weight: Any, dy: Any, eps: float, totals: DType = fp32, key: Any = None
) -> tuple[torch.Tensor, ...]:
    """(dx, dweight), or (dx, dweight, dbias) if *centered*.

    Args:
        totals: The type of the sums over rows.
        key: Under which is kept what makes the launches again; None: nothing is.
    """

    def run() -> tuple[torch.Tensor, ...]:
        wide, of_y = x.float(), dy.float()
        off = wide - wide.mean(-1, keepdim=True) if centered else wide
        scale = torch.rsqrt(off.square().mean(-1, keepdim=True) + eps)
        unit, weighted = off * scale, of_y * weight.float()
        means = unit * (weighted * unit).mean(-1, keepdim=True)
        means = means + weighted.mean(-1, keepdim=True) if centered else means
        of_weight = (of_y * unit).reshape(-1, x.shape[-1]).sum(0)
        more = (of_y.reshape(-1, x.shape[-1]).sum(0),) if centered else ()
        return (scale * (weighted - means)).to(x.dtype), of_weight, *more

    def kernel() -> Any:
        of = _of_eps(LayerNormBackward if centered else RmsNormBackward, eps, totals)
        with watching(x) as launches:
            (rows, of_y), columns = _as_rows(x, dy), weight.detach()
            of_x, *sums = of.made(rows, columns, of_y)
        made = of_x.view(x.shape), *sums
        if key is not None and launches:
            keep(key, launches, (x, weight, dy), made, of.results, parts=True)
        return of.results(*made)

    return _by_kernel("layer_norm" if centered else "rms_norm", (x, dy), kernel, run)


def _norm_gradients_typed(
    centered: bool, x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, eps: float
) -> tuple[torch.Tensor, ...]:
    """As an operator gives them: the weights' gradient in the weights' type."""
    of_x, of_weight, *of_bias = _norm_gradients(centered, x, weight, dy, eps)
    return of_x, of_weight.to(weight.dtype), *of_bias


_of_rms, _of_layer = (functools.partial(_norm_gradients, centered) for centered in (False, True))


def _totals(weight: torch.Tensor, bias: torch.dtype | None = None) -> DType:
    """The type in which a kernel stores the gradients of weights, and of biases of this type, if there are some."""
    return dtype_of(weight, "weight") if weight.dtype in TYPES and bias in (None, weight.dtype) else fp32


def _cross_entropy_gradient(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor, ignored: int
) -> torch.Tensor:
    def run() -> torch.Tensor:
        counts = target != ignored
        of_loss = torch.where(counts, dloss.float(), 0.0)[:, None]
        column = torch.where(counts, target, 0).long()[:, None]
        again = torch.is_grad_enabled()  # then lse, which has no gradient, would be taken for a constant
        powers = torch.softmax(x.float(), -1) if again else torch.exp(x.float() - lse[:, None])
        return (powers * of_loss).scatter_add(1, column, -of_loss).to(x.dtype)

    def kernel() -> Any:
        given = (x.detach(), target, lse.detach(), dloss.detach().float().contiguous())
        return _of_eps(CrossEntropyBackward, ignored)(*given)

    return _by_kernel("cross_entropy", (x, dloss), kernel, run)


def _by_kernel(of: str, given: tuple[torch.Tensor, ...], kernel: Callable[[], Any], run: Callable[[], T]) -> T:
    """What *kernel* computes of the rows *given*; or *run*, with torch, where the gradient is to be differentiated again."""
    if not given[0].numel() or torch.is_grad_enabled():
        return run()
    return by_kernel(f"{of}'s gradient", where(given[0]), kernel, run)


def _as_rows(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of one shape as matrices of their rows; the gradient of a sum has no strides, so it is copied."""
    return tuple(x.detach().contiguous().view(-1, x.shape[-1]) for x in given)


def _of_softmax(ctx: Any, grad: torch.Tensor, log: bool = False) -> torch.Tensor:
    found: torch.Tensor = _apply("softmax_gradient", _softmax_gradient, (*ctx.saved_tensors, grad), log)
    return found


def _of_rms_norm(ctx: Any, grad: torch.Tensor) -> Any:
    x, weight = ctx.saved_tensors
    of_x, of_weight = _apply("rms_norm_gradients", _of_rms, (x, weight, grad), ctx.eps, _totals(weight))
    return of_x, of_weight.to(weight.dtype), None


def _of_layer_norm(ctx: Any, grad: torch.Tensor) -> Any:
    x, weight = ctx.saved_tensors
    given, totals = (x, weight, grad), _totals(weight, ctx.bias)
    of_x, of_weight, of_bias = _apply("layer_norm_gradients", _of_layer, given, ctx.eps, totals)
    return of_x, of_weight.to(weight.dtype), None if ctx.bias is None else of_bias.to(ctx.bias), None


def _of_cross_entropy(ctx: Any, grad: torch.Tensor, of_lse: Any) -> Any:
    given = (*ctx.saved_tensors, grad)
    return _apply("cross_entropy_gradient", _cross_entropy_gradient, given, ctx.ignored), None, None


def _apply(
    operator: str, run: Callable[..., Any], tensors: tuple[torch.Tensor, ...], how: Any, totals: Any = None
) -> Any:
    """A gradient, which may itself be differentiated."""
    if torch.is_grad_enabled():
        return run(*tensors, how)
    given = tuple([x if x.is_contiguous() else x.contiguous() for x in tensors])
    return _at_once(operator, run, given, (how,), totals)


def _keep_output(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output)


def _keep_norm(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, *bias, ctx.eps = inputs
    ctx.bias = bias[0].dtype if bias and bias[0] is not None else None
    ctx.save_for_backward(x, weight)


def _keep_cross_entropy(ctx: Any, inputs: Any, output: Any) -> None:
    x, target, ctx.ignored = inputs
    ctx.save_for_backward(x, target, output[1])
    ctx.mark_non_differentiable(output[1])


def _keep_dims(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.dims = tuple(inputs[1])


def _of_transpose(ctx: Any, grad: torch.Tensor) -> Any:
    back = sorted(range(len(ctx.dims)), key=lambda i: ctx.dims[i])
    return _called("transpose", (grad.contiguous(),), tuple(back)), None


class _MeanEntropy(torch.autograd.Function):
    """The mean, or the sum, of `cross_entropy`: torch's operators are not recorded one by one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, target: torch.Tensor, ignored: int, mean: bool) -> torch.Tensor:
        loss, lse = _at_once("cross_entropy", _cross_entropy, (x, target), (ignored,))
        found, count = _reduced(loss, target, ignored, mean)
        ctx.ignored = ignored
        ctx.save_for_backward(x, target, lse, count)
        return found.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, target, lse, count = ctx.saved_tensors
        of_loss = grad.float().expand(lse.shape)
        given = x, target, lse, of_loss if count is None else of_loss / count
        return _apply("cross_entropy_gradient", _cross_entropy_gradient, given, ctx.ignored), None, None, None


_FUNCTIONS: dict[str, Any] = {}  # what computes an operator's result, and its gradients, without torch.library


def _register(name: str, schema: str, *of: Callable[..., Any]) -> None:
    """Registers an operator, and its autograd.Function. An operator of torch.library takes ten times the host time
    (`differentiated`). of: what it computes, of what shape, its gradient, and what it keeps for that."""
    run, _, gradient, keep_for = of

    def at_once(*given: Any) -> Any:
        tensors = tuple([x for x in given if isinstance(x, torch.Tensor)])
        return _at_once(name, run, tensors, given[len(tensors) :])

    _FUNCTIONS[name] = function = function_of(at_once, gradient, keep_for)
    function.run = staticmethod(run)
    operator_of(name, schema, *of)


def _like(x: torch.Tensor, *others: Any) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_log_softmax, _of_log_softmax = (functools.partial(each, log=True) for each in (_softmax, _of_softmax))
_register("softmax", "(Tensor x) -> Tensor", _softmax, _like, _of_softmax, _keep_output)
_register("log_softmax", "(Tensor x) -> Tensor", _log_softmax, _like, _of_log_softmax, _keep_output)
_schema = "(Tensor x, Tensor weight, float eps) -> Tensor"
_register("rms_norm", _schema, _rms_norm, _like, _of_rms_norm, _keep_norm)
_schema = "(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor"
_register("layer_norm", _schema, _layer_norm, _like, _of_layer_norm, _keep_norm)
_schema = "(Tensor x, Tensor target, int ignored) -> (Tensor, Tensor)"
_fake: Callable[..., Any] = lambda x, *_: tuple(x.new_empty(x.shape[:1], dtype=torch.float32) for _ in range(2))  # noqa: E731
_register("cross_entropy", _schema, _cross_entropy, _fake, _of_cross_entropy, _keep_cross_entropy)
_fake = lambda x, dims: x.new_empty([x.shape[dim] for dim in dims])  # noqa: E731
_register("transpose", "(Tensor x, int[] dims) -> Tensor", _transpose, _fake, _of_transpose, _keep_dims)
operator_of("softmax_gradient", "(Tensor y, Tensor dy, bool log) -> Tensor", _softmax_gradient, _like)
_rms_typed, _layer_typed = (functools.partial(_norm_gradients_typed, centered) for centered in (False, True))
_schema = "(Tensor x, Tensor weight, Tensor dy, float eps) -> "
operator_of("rms_norm_gradients", _schema + "(Tensor, Tensor)", _rms_typed, lambda x, w, *_: (_like(x), _like(w)))
_schema, _fake = _schema + "(Tensor, Tensor, Tensor)", lambda x, w, *_: (_like(x), _like(w), _like(w.float()))
operator_of("layer_norm_gradients", _schema, _layer_typed, _fake)
_schema = "(Tensor x, Tensor target, Tensor lse, Tensor dloss, int ignored) -> Tensor"
operator_of("cross_entropy_gradient", _schema, _cross_entropy_gradient, _like)
