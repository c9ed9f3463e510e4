"""Products of matrices: `linear` and `gemm`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch.nn import functional

from tmapipe.bind.made import outputs_of
from tmapipe.calling import called
from tmapipe.epilogue import Epilogue, PerColumn
from tmapipe.errors import InputError
from tmapipe.schedules.gemm import Gemm
from tmapipe.torch.fallback import otherwise, reason_of, where
from tmapipe.tuning import Problem, choose

__all__ = ["gemm", "linear"]

PLAIN = (torch.Tensor, torch.nn.Parameter)  # whose extents are numbers
TYPES = (torch.bfloat16, torch.float16)
MOST = 4096  # signatures of calls that are known
_callers: dict[Any, Any] = {}  # extents of a call -> its callers, as of `tmapipe.gpu.callers`


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x weight^T + bias``, as `torch.nn.functional.linear`.

    Args:
        x: Of any number of dimensions, the last one of k elements.
        weight: [n, k], contiguous along either.
        bias: [n], or None.
    """
    if torch.is_autocast_enabled(x.device.type):
        x, weight, bias = _cast(x, weight, bias)
    if type(x) in PLAIN and not torch.compiler.is_compiling():
        given = (x, weight) if bias is None else (x, weight, bias)
        for call in _callers.get((x.shape, weight.shape, len(given)), ()):
            found = call(given, None, {})
            if found is not None:
                return found
    return torch.ops.tmapipe.linear(x, weight, bias)


def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a b^T``.

    Args:
        a: [m, k], or of a batch [l, m, k], contiguous along m or k.
        b: [n, k], or [l, n, k], contiguous along n or k.
    """
    if torch.is_autocast_enabled(a.device.type):
        a, b = _cast(a, b)
    if type(a) in PLAIN and not torch.compiler.is_compiling():
        for call in _callers.get((a.shape, b.shape), ()):
            found = call((a, b), None, {})
            if found is not None:
                return found
    return torch.ops.tmapipe.gemm(a, b)


def _cast(*given: torch.Tensor | None) -> Any:
    """The tensors as autocast has them for products."""
    assert given[0] is not None
    dtype = torch.get_autocast_dtype(given[0].device.type)
    return [x if x is None or not x.is_floating_point() else x.to(dtype) for x in given]


# ---- kernels ----------------------------------------------------------------------------------------------------------


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    given = (x, weight) if bias is None else (x, weight, bias)

    def run() -> torch.Tensor:
        return functional.linear(x, weight, bias)

    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[-1] or not x.numel() or not weight.numel():
        return run()  # an error that torch words, or nothing to multiply
    shape = (*x.shape[:-1], weight.shape[0])
    return _product("linear", given, (x.reshape(-1, x.shape[-1]), *given[1:]), shape, run)


def _gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    def run() -> torch.Tensor:
        return torch.matmul(a, b.mT)

    if a.ndim != b.ndim or a.ndim not in (2, 3):
        raise InputError(
            "tmapipe.torch.gemm", (tuple(a.shape), tuple(b.shape)), "has two or three dimensions", "reshape"
        )
    if a.shape[-1] != b.shape[-1] or not a.numel() or not b.numel():
        return run()
    return _product("gemm", (a, b), (a, b), (*a.shape[:-1], b.shape[-2]), run)


def _product(
    operator: str,
    given: tuple[torch.Tensor, ...],
    tensors: tuple[torch.Tensor, ...],
    shape: tuple[int, ...],
    run: Callable[[], torch.Tensor],
) -> torch.Tensor:
    """What a kernel computes of *tensors*, which are those *given* with rows, in the output's *shape*, or what *run* does."""
    a, b = tensors[:2]
    tf32 = a.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    reason = where(a)
    if reason is None and len({x.dtype for x in given}) > 1:
        reason = "tensors of several types"
    if reason is None and a.dtype not in TYPES and not tf32:
        reason = f"{str(a.dtype).removeprefix('torch.')}" + (
            ", as torch allows no tf32" if a.dtype == torch.float32 else ""
        )
    if reason is not None:
        return otherwise(operator, reason, run)
    with torch.no_grad():
        try:
            problem = Problem.of(a, b, tf32=tf32)
            schedule = _chosen(attrs.evolve(problem, m=_rounded(problem.m)), len(tensors) > 2, a.device)
            with _watched(a) as launches:
                found = called(schedule, tensors, {}, None) if schedule.one_kernel else schedule(*tensors)
        except InputError as error:
            return otherwise(operator, reason_of(error), run)
    found = found.view(shape)
    if launches:
        _remember(operator, given, launches, found)
    return found


def _chosen(problem: Problem, bias: bool, device: torch.device) -> Gemm:
    """As `_schedule`, which may measure on a GPU: not in what a graph captures."""
    if device.type != "cuda":
        return _schedule(problem, bias)
    from tmapipe.gpu.launch import uncaptured

    with uncaptured(device):
        return _schedule(problem, bias)


def _watched(tensor: torch.Tensor) -> Any:
    """Notes the launches, where there are some."""
    if not tensor.is_cuda:
        return contextlib.nullcontext()
    from tmapipe.gpu.launch import watched

    return watched()


def _remember(operator: str, given: tuple[torch.Tensor, ...], launches: Any, found: torch.Tensor) -> None:
    """Keeps what makes this call again, if it was one launch."""
    from tmapipe.gpu.launch import repeated

    call = repeated(launches, given, None, (found,))
    if call is not None:
        if len(_callers) >= MOST:
            _callers.clear()
        shapes = [x.shape for x in given[:2]]
        key = (*shapes, len(given)) if operator == "linear" else (*shapes,)
        _callers[key] = (call, *_callers.get(key, ()))[:4]


def _rounded(m: int) -> int:
    """Rows for which a schedule is chosen: batches of many sizes share some twenty kernels."""
    step = max(16, 1 << max(0, m.bit_length() - 2))
    return -(-m // step) * step


@functools.lru_cache(maxsize=1024)
def _schedule(problem: Problem, bias: bool) -> Gemm:
    operands = {"bias": PerColumn()} if bias else {}
    return choose(problem, epilogue=Epilogue(_plus, operands=operands) if bias else None)


def _plus(acc: Any, bias: Any) -> Any:
    return acc + bias


# ---- operators --------------------------------------------------------------------------------------------------------

_linear_op = torch.library.custom_op(
    "tmapipe::linear", _linear, mutates_args=(), schema="(Tensor x, Tensor weight, Tensor? bias) -> Tensor"
)
_gemm_op = torch.library.custom_op("tmapipe::gemm", _gemm, mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor")
_PLAIN = Gemm()


@_linear_op.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@_gemm_op.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (shape, _dtype) = outputs_of(_PLAIN.declared, {"a": a, "b": b})[0]
    return a.new_empty(shape)


def _keep_linear(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.bias = bias is not None


def _linear_gradients(ctx: Any, grad: torch.Tensor) -> Any:
    x, weight = ctx.saved_tensors
    rows = _dense(grad).reshape(-1, weight.shape[0])
    wanted = ctx.needs_input_grad
    of_x = gemm(rows, weight.mT).reshape(x.shape) if wanted[0] else None
    of_weight = gemm(rows.mT, x.reshape(-1, x.shape[-1]).mT) if wanted[1] else None
    return of_x, of_weight, rows.sum(0) if ctx.bias and wanted[2] else None


def _keep_gemm(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _gemm_gradients(ctx: Any, grad: torch.Tensor) -> Any:
    a, b = ctx.saved_tensors
    grad = _dense(grad)
    wanted = ctx.needs_input_grad
    return gemm(grad, b.mT) if wanted[0] else None, gemm(grad.mT, a.mT) if wanted[1] else None


def _dense(grad: torch.Tensor) -> torch.Tensor:
    """A gradient as kernels load it: that of a sum has no strides."""
    return grad.contiguous()


_linear_op.register_autograd(_linear_gradients, setup_context=_keep_linear)
_gemm_op.register_autograd(_gemm_gradients, setup_context=_keep_gemm)
