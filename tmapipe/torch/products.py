"""Convolutions, grouped and scaled products as operators of torch, and modules of products."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from tmapipe.base.tma_rules import ALIGNMENT, Windows
from tmapipe.epilogue import Epilogue, PerColumn, PerRow, Scalar
from tmapipe.errors import InputError, check_bool, is_count, require
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.gemms import GroupedGemm
from tmapipe.schedules.mainloop import Operand
from tmapipe.torch.operators import (
    BIASED,
    NO_TF32,
    TYPES,
    by_kernel,
    cast,
    chosen,
    keep_inputs,
    linear,
    operator_of,
    require_tensors,
    unsuited,
    where,
)
from tmapipe.tuning import Problem, choose, choose_conv

_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


# ---- convolutions ----------------------------------------------------------------------------------------------------

_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_Extent = int | Sequence[int]


def conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: _Extent = 1,
    padding: _Extent | str = 0,
    dilation: _Extent = 1,
    groups: int = 1,
) -> torch.Tensor:
    """As `torch.nn.functional.conv2d`; of images of one and three dimensions as its conv1d and conv3d.

    The result is dense with channels last, whatever the strides of x. Kernels load channels last, eight at a time: other
    images and filters are copied before.

    Args:
        x: [images, channels, h, w], or of one or three dimensions in the place of h and w.
        weight: [outputs, channels, r, s], likewise.
        bias: [outputs], or None.
        stride: Elements from one window to the next, of each dimension or of all.
        padding: Zeros before and behind, likewise; or "valid" (none) or "same" (as many as keep the extents).
        dilation: Elements from one of a window to the next, likewise.
        groups: 1; others are computed by torch.

    Raises:
        InputError: A tensor is none or has another shape, a number is none, or "same" has no such padding: with a stride,
            or with windows of an even extent, which need one zero more behind than before.
    """
    require_tensors("conv2d", x=x, weight=weight, **({} if bias is None else {"bias": bias}))
    rank = x.ndim - 2
    rule = "has three to five dimensions: images, channels, and one to three of pixels"
    require(rank in (1, 2, 3), "tmapipe.torch.conv2d(x)", tuple(x.shape), rule, "e.g. x[None]")
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1 or x.shape[1] % groups:
        rule = f"is a number of equal parts of {x.shape[1]} channels"
        raise InputError("tmapipe.torch.conv2d(groups)", groups, rule, "e.g. 1")
    if weight.ndim != x.ndim or weight.shape[1] != x.shape[1] // groups or weight.shape[0] % groups:
        rule = f"is [outputs, {x.shape[1] // groups} channels, and {rank} extents of windows]"
        raise InputError("tmapipe.torch.conv2d(weight)", tuple(weight.shape), rule, "reshape or permute it")
    if bias is not None and bias.shape != weight.shape[:1]:
        rule = f"has {weight.shape[0]} numbers, one an output"
        raise InputError("tmapipe.torch.conv2d(bias)", tuple(bias.shape), rule, "reshape it")
    steps, between = _extents("stride", stride, rank), _extents("dilation", dilation, rank)
    if isinstance(padding, str):
        around = _named_padding(padding, weight.shape[2:], steps, between)
    else:
        around = _extents("padding", padding, rank, least=0)
    if torch.is_autocast_enabled(x.device.type):
        x, weight, bias = cast(x, weight, bias)
    found: torch.Tensor = torch.ops.tmapipe.conv(x, weight, bias, steps, around, between, groups)
    return found


def _extents(name: str, value: _Extent, rank: int, least: int = 1) -> list[int]:
    """A number of each dimension."""
    found: list[Any] = [*value] if isinstance(value, (tuple, list)) else [value] * rank
    if len(found) != rank or any(isinstance(n, bool) or not isinstance(n, int) or n < least for n in found):
        rule = f"is a number of at least {least}, or {rank} of them"
        raise InputError(f"tmapipe.torch.conv2d({name})", value, rule, f"e.g. {least}")
    return found


def _named_padding(name: str, windows: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Zeros of each dimension, as torch names them."""
    where_ = "tmapipe.torch.conv2d(padding)"
    require(name in ("same", "valid"), where_, name, "is a number, one a dimension, same or valid", 'e.g. "same"')
    around = [step * (size - 1) for step, size in zip(dilation, windows, strict=True)]
    if name == "valid":
        return [0] * len(around)
    if any(step != 1 for step in stride) or any(each % 2 for each in around):
        fix = "pad x by torch.nn.functional.pad"
        raise InputError(where_, name, "is for a stride of 1 and as many zeros before as behind", fix)
    return [each // 2 for each in around]


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, dense with the second dimension last in memory."""
    order = (0, *range(2, x.ndim), 1)
    return x.permute(order).contiguous().permute(0, x.ndim - 1, *range(1, x.ndim - 1))


def _conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    def run() -> torch.Tensor:
        # a copy: torch may return what is no new tensor
        found = _CONVOLUTIONS[x.ndim - 3](x, weight, bias, tuple(stride), tuple(padding), tuple(dilation), groups)
        return _channels_last(found).clone(memory_format=torch.preserve_format)

    given = (x, weight) if bias is None else (x, weight, bias)
    if not x.numel() or not weight.numel():
        return run()
    reason = unsuited(given, (*TYPES, torch.float32) if _by_tf32() else TYPES)
    if reason == "float32":
        reason = NO_TF32
    if reason is None and groups != 1:
        reason = "groups"

    def kernel() -> torch.Tensor:
        images, filters = (_whole_units(each.detach()) for each in (x, weight))
        outputs = weight.shape[0]
        # Further filters of zeros make rows of the result whole units.
        units = -outputs % (ALIGNMENT // x.itemsize)
        if units:
            filters = functional.pad(filters, (0, 0) * (x.ndim - 1) + (0, units))
        windows = Windows(tuple(weight.shape[2:]), padding=[*padding], stride=[*stride], dilation=[*dilation])
        schedule = _conv_schedule(images.shape, filters.shape, x.dtype, windows, bias is not None)
        named = {} if bias is None else {"bias": functional.pad(bias.detach(), (0, units))}
        found: torch.Tensor = schedule(images, filters, **named)
        found = found[..., :outputs].contiguous() if units else found
        return found.permute(0, x.ndim - 1, *range(1, x.ndim - 1))

    return by_kernel("conv2d", reason, kernel, run)


def _whole_units(x: torch.Tensor) -> torch.Tensor:
    """Channels last, dense, with zeros up to whole 16 bytes of channels, as TMA loads them."""
    found, lacking = x.permute(0, *range(2, x.ndim), 1), -x.shape[1] % (ALIGNMENT // x.itemsize)
    return functional.pad(found, (0, lacking)) if lacking else found.contiguous()


def _by_tf32() -> bool:
    """Whether torch lets convolutions of fp32 be computed by tf32."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # torch's newer setting was used, which has a value for each operator
        return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")


@functools.lru_cache(maxsize=256)
def _conv_schedule(x: torch.Size, f: torch.Size, dtype: torch.dtype, windows: Windows, bias: bool) -> Any:
    images, filters = (torch.empty(shape, dtype=dtype, device="meta") for shape in (x, f))
    return choose_conv(images, filters, windows, epilogue=BIASED if bias else None, tf32=dtype == torch.float32)


# ---- grouped products ------------------------------------------------------------------------------------------------


def grouped_gemm(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """``a[rows of group g] b[g]^T`` for each group g, as of experts to which tokens are sorted.

    Args:
        a: [m, k], the rows of all groups, one group after another.
        b: [groups, n, k], contiguous along n or k.
        offsets: [groups], int32, ascending: where the rows of each group end. The last one is m: rows behind it are not
            written. Nothing waits for these numbers, so they are not looked at.

    Raises:
        InputError: A tensor is none, or the shapes do not fit.
    """
    require_tensors("grouped_gemm", a=a, b=b, offsets=offsets)
    if a.ndim != 2 or b.ndim != 3 or a.shape[1] != b.shape[2]:
        rule = "is a [m, k] and b [groups, n, k]"
        raise InputError("tmapipe.torch.grouped_gemm(a, b)", (tuple(a.shape), tuple(b.shape)), rule, "reshape")
    if offsets.shape != b.shape[:1] or offsets.dtype != torch.int32:
        rule = f"is int32, of {b.shape[0]} numbers"
        value = tuple(offsets.shape), str(offsets.dtype)
        raise InputError("tmapipe.torch.grouped_gemm(offsets)", value, rule, "e.g. offsets.int()")
    found: torch.Tensor = torch.ops.tmapipe.grouped_gemm(a, b, offsets)
    return found


def _grouped(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    def run() -> torch.Tensor:
        found, begin = a.new_zeros(a.shape[0], b.shape[1]), 0
        for group, end in enumerate(offsets.tolist()):
            found[begin:end] = a[begin:end] @ b[group].mT
            begin = end
        return found

    if not a.numel() or not b.numel():
        return run()

    def kernel() -> torch.Tensor:
        found: torch.Tensor = _grouped_schedule(b.stride(-1) != 1)(a.detach(), b.detach(), offsets)
        return found

    return by_kernel("grouped_gemm", unsuited((a, b), TYPES), kernel, run)


def _grouped_weights(grad: torch.Tensor, a: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """``grad[rows of g]^T a[rows of g]`` of each group g, by torch: no kernel of ours sums over the rows of a group."""
    if a.is_cuda and a.dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm"):
        found: torch.Tensor = torch._grouped_mm(grad.mT, a, offs=offsets)
        return found
    found, begin = a.new_zeros(offsets.shape[0], grad.shape[1], a.shape[1]), 0
    for group, end in enumerate(offsets.tolist()):
        found[group] = grad[begin:end].mT @ a[begin:end]
        begin = end
    return found


@functools.lru_cache(maxsize=2)
def _grouped_schedule(along_n: bool) -> GroupedGemm:
    return GroupedGemm(b=Operand("n" if along_n else "k"))


# ---- scaled products -------------------------------------------------------------------------------------------------


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """``(a b^T) * scale_a * scale_b + bias`` of numbers of 8 bits, added in fp32. It has no gradients.

    Args:
        a: [m, k], float8_e4m3fn or float8_e5m2, contiguous along k.
        b: [n, k], likewise; of `torch._scaled_mm`'s second argument, pass ``.t()``.
        scale_a: fp32, one number, or one a row: m numbers.
        scale_b: fp32, one number, or one a column of the result: n numbers.
        bias: [n] of *out_dtype*, or None.
        out_dtype: Of the result: bfloat16, float16 or float32.

    Raises:
        InputError: The shapes or types do not fit.
    """
    require_tensors("scaled_mm", a=a, b=b, scale_a=scale_a, scale_b=scale_b, **({} if bias is None else {"bias": bias}))
    where_ = "tmapipe.torch.scaled_mm"
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        rule = "is a [m, k] and b [n, k]"
        raise InputError(f"{where_}(a, b)", (tuple(a.shape), tuple(b.shape)), rule, "pass b as rows of k, e.g. b.t()")
    for name, scale, count in (("scale_a", scale_a, a.shape[0]), ("scale_b", scale_b, b.shape[0])):
        if scale.dtype != torch.float32 or scale.numel() not in (1, count):
            rule = f"is fp32, of 1 or {count} numbers"
            raise InputError(f"{where_}({name})", (tuple(scale.shape), str(scale.dtype)), rule, "reshape or convert it")
    if not isinstance(out_dtype, torch.dtype) or out_dtype not in _NAMES:
        raise InputError(f"{where_}(out_dtype)", out_dtype, "is bfloat16, float16 or float32", "e.g. torch.bfloat16")
    if bias is not None and (bias.shape != b.shape[:1] or bias.dtype != out_dtype):
        rule = f"is {str(out_dtype).removeprefix('torch.')}, of {b.shape[0]} numbers"
        raise InputError(f"{where_}(bias)", (tuple(bias.shape), str(bias.dtype)), rule, "reshape or convert it")
    found: torch.Tensor = torch.ops.tmapipe.scaled_mm(a, b, scale_a, scale_b, bias, out_dtype)
    return found


def _scaled(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    def run() -> torch.Tensor:
        found = (a.float() @ b.float().mT) * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
        return (found if bias is None else found + bias.float()).to(out_dtype)

    if not a.numel() or not b.numel():
        return run()
    reason = where(a)
    if reason is None and (a.dtype not in FLOAT8 or b.dtype not in FLOAT8):
        reason = "numbers of other than 8 bits"

    def kernel() -> torch.Tensor:
        scales = {name: x.reshape(-1) for name, x in (("scale_a", scale_a), ("scale_b", scale_b))}
        several = [x.numel() > 1 for x in scales.values()]
        problem = Problem.of(a, b, _NAMES[out_dtype])
        schedule = chosen(problem, a.device, _scaled_schedule, *several, bias is not None)
        found: torch.Tensor = schedule(a, b, **scales, **({} if bias is None else {"bias": bias}))
        return found

    return by_kernel("scaled_mm", reason, kernel, run)


@functools.lru_cache(maxsize=256)
def _scaled_schedule(problem: Problem, rows: bool, columns: bool, bias: bool) -> Gemm:
    operands: dict[str, Any] = {
        "scale_a": PerRow() if rows else Scalar(),
        "scale_b": PerColumn() if columns else Scalar(),
        **({"bias": PerColumn()} if bias else {}),
    }
    return choose(problem, epilogue=Epilogue(_scaled_and if bias else _scaled_by, operands=operands))


def _scaled_by(acc: Any, scale_a: Any, scale_b: Any) -> Any:
    return acc * scale_a * scale_b


def _scaled_and(acc: Any, scale_a: Any, scale_b: Any, bias: Any) -> Any:
    return acc * scale_a * scale_b + bias


# ---- modules -------------------------------------------------------------------------------------------------------


class Linear(torch.nn.Linear):
    """`torch.nn.Linear`, of which `linear` computes the product.

    Args:
        in_features, out_features, bias, device, dtype: As of `torch.nn.Linear`.

    Raises:
        InputError: An argument is of another type, or torch has no such device.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None):
        _check_layer("Linear", device, dtype, in_features=in_features, out_features=out_features)
        check_bool("Linear(bias)", bias)
        super().__init__(in_features, out_features, bias, device, dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input weight^T + bias``.

        Args:
            input: Of any number of dimensions.
        """
        return linear(input, self.weight, self.bias)


class SwiGLU(torch.nn.Module):
    """``(silu(x gate^T) * (x up^T)) down^T``, the feed-forward layer of many language models.

    Args:
        features: Of x and of the result.
        hidden: Of the layer between.
        device, dtype: As of `torch.nn.Linear`.

    Raises:
        InputError: As of `Linear`.
    """

    def __init__(self, features: int, hidden: int, *, device: Any = None, dtype: Any = None):
        super().__init__()
        _check_layer("SwiGLU", device, dtype, features=features, hidden=hidden)
        how: dict[str, Any] = {"bias": False, "device": device, "dtype": dtype}
        self.gate, self.up = Linear(features, hidden, **how), Linear(features, hidden, **how)
        self.down = Linear(hidden, features, **how)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's result.

        Args:
            x: Of any number of dimensions, the last one of the features.
        """
        found: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return found


def _check_layer(module: str, device: Any, dtype: Any, **features: Any) -> None:
    """Raises `InputError` unless torch has such a device, and *dtype* is a type of numbers that have gradients."""
    for name, value in features.items():
        if not is_count(value) or value >= 2**28:
            raise InputError(f"{module}({name})", value, "is a positive number of features below 2^28", "e.g. 1024")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(f"{module}(dtype)", dtype, "is a floating-point type of torch's", "e.g. torch.bfloat16")
    try:
        torch.empty(0, device=device)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        rule = f"is a device: {str(error).splitlines()[0]}"
        raise InputError(f"{module}(device)", device, rule, "use cuda") from None


# ---- operators -------------------------------------------------------------------------------------------------------


def _conv_like(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> torch.Tensor:
    return _channels_last(_CONVOLUTIONS[x.ndim - 3](x, weight, bias, stride, padding, dilation, groups))


def _scaled_like(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, out_dtype: Any) -> Any:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=out_dtype)


def _keep_conv(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, *ctx.how = inputs
    ctx.bias = bias is not None
    ctx.save_for_backward(x, weight)


def _conv_gradients(ctx: Any, grad: torch.Tensor) -> Any:
    x, weight = ctx.saved_tensors
    stride, padding, dilation, groups = ctx.how
    wanted = [*ctx.needs_input_grad[:2], ctx.bias and ctx.needs_input_grad[2]]
    sizes = [weight.shape[0]] if ctx.bias else None
    zeros = [0] * len(stride)
    found = torch.ops.aten.convolution_backward(
        grad, x, weight, sizes, stride, padding, dilation, False, zeros, groups, wanted
    )
    return *found, None, None, None, None


def _grouped_gradients(ctx: Any, grad: torch.Tensor) -> Any:
    a, b, offsets = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    of_a = grouped_gemm(grad.contiguous(), b.mT, offsets) if wanted[0] else None
    if not wanted[1]:
        return of_a, None, None
    of_b = torch.ops.tmapipe.grouped_weights(grad.contiguous(), a, offsets)
    return of_a, of_b, None


_schema = "(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups) -> Tensor"
operator_of("conv", _schema, _conv, _conv_like, _conv_gradients, _keep_conv)
_like: Any = lambda a, b, offsets: a.new_empty(a.shape[0], b.shape[1])  # noqa: E731
_schema = "(Tensor a, Tensor b, Tensor offsets) -> Tensor"
operator_of("grouped_gemm", _schema, _grouped, _like, _grouped_gradients, keep_inputs)
_like = lambda grad, a, offsets: a.new_empty(offsets.shape[0], grad.shape[1], a.shape[1])  # noqa: E731
operator_of("grouped_weights", "(Tensor grad, Tensor a, Tensor offsets) -> Tensor", _grouped_weights, _like)
_schema = "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, ScalarType out_dtype) -> Tensor"
operator_of("scaled_mm", _schema, _scaled, _scaled_like)
