"""Operators of torch: products of matrices and functions of rows by kernels, and `register` for schedules of one's own.

They are `torch.library` operators: they have gradients (attention has none), and `torch.compile` takes them whole. Tensors
that no kernel takes are computed by torch itself; `fallbacks` counts such calls with their reasons, and within `kernels_only`
they are errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tmapipe.bind import outputs_of
from tmapipe.calling import check_one_kernel
from tmapipe.errors import InputError, check_type, is_whole, needed

with needed("torch", "torch", "for its operators"):
    import torch
    from torch.nn import functional

from tmapipe.schedule import Schedule
from tmapipe.schedules.crossentropy import CrossEntropy, LogSoftmax, Softmax
from tmapipe.schedules.norms import LayerNorm, RmsNorm
from tmapipe.schedules.transpose import Transpose
from tmapipe.torch.attention import scaled_dot_product_attention
from tmapipe.torch.operators import (
    by_kernel,
    eager,
    fallbacks,
    gemm,
    kernels_only,
    linear,
    matmul,
    otherwise,
    require_tensors,
    where,
)
from tmapipe.torch.products import Linear, SwiGLU, conv2d, grouped_gemm, scaled_mm

__all__ = [
    "Linear", "SwiGLU", "conv2d", "cross_entropy", "fallbacks", "gemm", "grouped_gemm", "kernels_only", "layer_norm",
    "linear", "log_softmax", "matmul", "register", "rms_norm", "scaled_dot_product_attention", "scaled_mm", "softmax",
    "transpose",
]  # fmt: skip

# ---- functions of rows: over the last dimension ------------------------------------------------------------------------


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """``exp(x) / sum of exp(x)`` over a dimension, as `torch.softmax`.

    Args:
        x: Of any number of dimensions.
        dim: The last one has a kernel.
    """
    if not _last("softmax", x, dim):
        return otherwise("softmax", "a dimension that is not the last", lambda: torch.softmax(x, dim))
    return _softmax(x) if eager(x) else torch.ops.tmapipe.softmax(x)


def log_softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The logarithm of `softmax`, as `torch.log_softmax`.

    Args:
        x: Of any number of dimensions.
        dim: The last one has a kernel.
    """
    if not _last("log_softmax", x, dim):
        return otherwise("log_softmax", "a dimension that is not the last", lambda: torch.log_softmax(x, dim))
    return _log_softmax(x) if eager(x) else torch.ops.tmapipe.log_softmax(x)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, as `torch.nn.functional.rms_norm`.

    Args:
        x: Of any number of dimensions.
        weight: One number a column.
        eps: Added to the mean square.
    """
    require_tensors("rms_norm", x=x, weight=weight)
    _check_eps("rms_norm", eps)
    return _rms_norm(x, weight, eps) if eager(x, weight) else torch.ops.tmapipe.rms_norm(x, weight, eps)


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
    run: Any = _layer_norm if eager(*given.values()) else torch.ops.tmapipe.layer_norm
    found: torch.Tensor = run(x, weight, bias, eps)
    return found


def cross_entropy(
    x: torch.Tensor, target: torch.Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> torch.Tensor:
    """``log(sum of exp(x)) - x[target]`` of each row, as `torch.nn.functional.cross_entropy`.

    Args:
        x: The logits, [rows, classes].
        target: A class for each row.
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
    if x.ndim != 2 or target.shape != x.shape[:1] or target.dtype not in (torch.int64, torch.int32):
        reason = "logits that are no matrix, or targets that are no classes"
        how: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction}
        return otherwise("cross_entropy", reason, lambda: functional.cross_entropy(x, target, **how))
    loss = torch.ops.tmapipe.cross_entropy(x, target, ignore_index)[0].to(x.dtype if reduction == "none" else None)
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
    return _transpose(x, order) if eager(x) else torch.ops.tmapipe.transpose(x, order)


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

_rows: dict[str, Callable[..., Any]] = {"softmax": Softmax(), "log_softmax": LogSoftmax()}
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


def _of_softmax(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    (y,) = (each.float() for each in ctx.saved_tensors)
    product = grad.float() * y
    return (product - y * product.sum(-1, keepdim=True)).to(grad.dtype)


def _of_log_softmax(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    (y,) = (each.float() for each in ctx.saved_tensors)
    wide = grad.float()
    return (wide - y.exp() * wide.sum(-1, keepdim=True)).to(grad.dtype)


def _of_rms_norm(ctx: Any, grad: torch.Tensor) -> Any:
    x, weight = ctx.saved_tensors
    wide, of_y = x.float(), grad.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + ctx.eps)
    unit, weighted = wide * scale, of_y * weight.float()
    of_x = scale * (weighted - unit * (weighted * unit).mean(-1, keepdim=True))
    of_weight = (of_y * unit).reshape(-1, x.shape[-1]).sum(0)
    return of_x.to(x.dtype), of_weight.to(weight.dtype), None


def _of_layer_norm(ctx: Any, grad: torch.Tensor) -> Any:
    x, weight = ctx.saved_tensors
    wide, of_y = x.float(), grad.float()
    off = wide - wide.mean(-1, keepdim=True)
    scale = torch.rsqrt(off.square().mean(-1, keepdim=True) + ctx.eps)
    unit, weighted = off * scale, of_y * weight.float()
    means = weighted.mean(-1, keepdim=True) + unit * (weighted * unit).mean(-1, keepdim=True)
    columns = of_y.reshape(-1, x.shape[-1])
    of_weight = (columns * unit.reshape(-1, x.shape[-1])).sum(0).to(weight.dtype)
    of_bias = columns.sum(0).to(ctx.bias) if ctx.bias is not None else None
    return (scale * (weighted - means)).to(x.dtype), of_weight, of_bias, None


def _of_cross_entropy(ctx: Any, grad: torch.Tensor, of_lse: torch.Tensor) -> Any:
    x, target, lse = ctx.saved_tensors
    counts = target != ctx.ignored
    powers = torch.exp(x.float() - lse[:, None])
    dloss = torch.where(counts, grad.float(), 0.0)
    column = torch.where(counts, target, 0).long()[:, None]
    own = powers * (dloss + of_lse.float())[:, None]
    return own.scatter_add(1, column, -dloss[:, None]).to(x.dtype), None, None


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


def _keep_dims(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.dims = tuple(inputs[1])


def _of_transpose(ctx: Any, grad: torch.Tensor) -> Any:
    back = sorted(range(len(ctx.dims)), key=lambda i: ctx.dims[i])
    return torch.ops.tmapipe.transpose(grad.contiguous(), back), None


_OPERATORS: tuple[
    tuple[str, str, Callable[..., Any], Callable[..., Any], Callable[..., Any], Callable[..., Any]], ...
] = (
    ("softmax", "(Tensor x) -> Tensor", _softmax, _like, _of_softmax, _keep_output),
    ("log_softmax", "(Tensor x) -> Tensor", _log_softmax, _like, _of_log_softmax, _keep_output),
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
for _name, _schema, _run, _fake, _gradient, _kept in _OPERATORS:
    _made = torch.library.custom_op(f"tmapipe::{_name}", _run, mutates_args=(), schema=_schema)
    _made.register_fake(_fake)
    _made.register_autograd(_gradient, setup_context=_kept)


# ---- schedules of one's own -------------------------------------------------------------------------------------------

Gradients = Callable[..., Any]


def register(schedule: Schedule, name: str, *, backward: Gradients | None = None) -> Callable[..., Any]:
    """Makes an operator of torch of a schedule: `torch.compile` takes it whole, and it can have gradients.

    It takes the schedule's inputs and tables in the order of declaration, and returns new outputs. CUDA tensors run the
    kernel, CPU tensors the model. A schedule that is registered must not be changed.

    Args:
        schedule: Whose call is one kernel.
        name: "namespace::operator", as torch.ops has it.
        backward: Called with the gradients of the outputs, the inputs and the outputs, each a tuple; returns one gradient an
            input, or None for one that has none. None: the operator has no gradients.

    Raises:
        InputError: The schedule is none or is several kernels, or the name is none or taken.

    Returns:
        The operator as a function; eager calls go straight to the kernel.
    """
    check_type("register(schedule)", schedule, Schedule, "make one of the class, e.g. Copy()")
    check_one_kernel(schedule, "register")
    space, _, operator = name.partition("::") if isinstance(name, str) else ("", "", "")
    if not (space.isidentifier() and operator.isidentifier()):
        raise InputError("register(name)", name, "is a namespace and a name", 'e.g. "mine::copy"')
    if hasattr(getattr(torch.ops, space), operator):
        raise InputError("register(name)", name, "is the name of an operator that there is", "choose another one")
    declared = schedule.declared
    given = (*declared.inputs, *declared.tables)
    parameters = ", ".join(f"Tensor {each}" for each in given)
    returned = "Tensor" if len(declared.stores) == 1 else f"({', '.join(['Tensor'] * len(declared.stores))})"

    def run(*tensors: torch.Tensor) -> Any:
        return schedule(*(each.detach() for each in tensors))

    def fake(*tensors: torch.Tensor) -> Any:
        pairs = zip(given, tensors, strict=True)
        viewed = {each: x.mT if each in schedule.transposed and x.ndim > 1 else x for each, x in pairs}
        found = [
            tensors[0].new_empty(shape, dtype=dtype and getattr(torch, dtype.torch))
            for shape, dtype in outputs_of(declared, viewed)
        ]
        return found[0] if len(found) == 1 else tuple(found)

    made = torch.library.custom_op(name, run, mutates_args=(), schema=f"({parameters}) -> {returned}")
    made.register_fake(fake)
    if backward is not None:
        of_inputs = backward

        def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            ctx.inputs = len(inputs)
            ctx.save_for_backward(*inputs, *outputs)

        def gradients(ctx: Any, *grads: Any) -> Any:
            saved = ctx.saved_tensors
            return of_inputs(grads, saved[: ctx.inputs], saved[ctx.inputs :])

        made.register_autograd(gradients, setup_context=keep)

    def call(*tensors: torch.Tensor) -> Any:
        return schedule(*tensors) if eager(*tensors) else made(*tensors)

    call.__name__ = call.__qualname__ = operator
    call.__doc__ = f"{name}({parameters}) -> {returned}, by {declared.name}."
    return call
