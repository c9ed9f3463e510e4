"""Operators of torch: products of matrices and functions of rows by kernels, and `register` for schedules of one's own.

They are `torch.library` operators: they have gradients (attention has none), and `torch.compile` takes them whole. Tensors
that no kernel takes are computed by torch itself; `fallbacks` counts such calls with their reasons, and within `kernels_only`
they are errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tmapipe.bind import outputs_of
from tmapipe.bind.tensors import new_in_order
from tmapipe.calling import check_one_kernel
from tmapipe.errors import InputError, check_bool, check_type, is_number, needed, require

with needed("torch", "torch", "for its operators"):
    import torch
    from torch import Tensor
    from torch.nn import functional

from tmapipe.schedule import Schedule
from tmapipe.schedules.attention import Attention, Score
from tmapipe.schedules.splitattention import Choice
from tmapipe.torch.operators import (
    TYPES,
    by_kernel,
    cast,
    eager,
    fallbacks,
    gemm,
    kernels_only,
    linear,
    matmul,
    operator_of,
    otherwise,
    require_tensors,
    unsuited,
)
from tmapipe.torch.products import Linear, SwiGLU, conv2d, grouped_gemm, scaled_mm
from tmapipe.torch.rows import cross_entropy, layer_norm, log_softmax, rms_norm, softmax, transpose

__all__ = [
    "Linear", "SwiGLU", "conv2d", "cross_entropy", "fallbacks", "gemm", "grouped_gemm", "kernels_only", "layer_norm",
    "linear", "log_softmax", "matmul", "register", "rms_norm", "scaled_dot_product_attention", "scaled_mm", "softmax",
    "transpose",
]  # fmt: skip

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
        InputError: The schedule is none or is several kernels, the name is none or taken, or `backward` is no function.

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
    called = backward is None or callable(backward)
    require(called, "register(backward)", backward, "is a function of gradients, inputs and outputs", "leave it out")
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
        require_tensors(operator, **dict(zip(given, tensors, strict=False)))
        return schedule(*tensors) if eager(*tensors) else made(*tensors)

    call.__name__ = call.__qualname__ = operator
    call.__doc__ = f"{name}({parameters}) -> {returned}, by {declared.name}."
    return call


# ---- attention, forward -----------------------------------------------------------------------------------------------

NAME = "scaled_dot_product_attention"


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``softmax(scale * query key^T) value``, as `torch.nn.functional.scaled_dot_product_attention`, without gradients.

    Args:
        query: [batch, heads, queries, d] or [heads, queries, d], in any order in memory, d contiguous.
        key, value: Likewise, of keys in the place of queries; value perhaps of another d.
        attn_mask: None, or what broadcasts to [batch, heads, queries, keys]: of bool, whether a key is seen; of query's type,
            added to the products. Others, and beside is_causal, are computed by torch.
        dropout_p: 0.0; others are computed by torch.
        is_causal: Whether query i sees the keys up to number i alone.
        scale: Of the products; None: 1 / sqrt(d).
        enable_gqa: Whether query may have a multiple of the heads of key and value.

    Raises:
        InputError: A tensor requires gradients, and they are recorded, or an argument is of another type.
    """
    mask = {} if attn_mask is None else {"attn_mask": attn_mask}
    require_tensors(NAME, query=query, key=key, value=value, **mask)
    given: tuple[Any, ...] = (query, key, value, *mask.values())
    _check(dropout_p, is_causal, scale, enable_gqa)
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        rule = "has no gradients: there is a kernel for the forward pass alone"
        fix = "call it within torch.no_grad(), or torch.nn.functional's"
        raise InputError(f"tmapipe.torch.{NAME}", "tensors that require gradients", rule, fix)
    reason = "dropout_p" if dropout_p else _other_shapes(query, key, value, enable_gqa)
    if reason is None and attn_mask is not None:
        reason = "is_causal beside attn_mask" if is_causal else _other_mask(query, key, attn_mask)
    if reason is not None:

        def run() -> torch.Tensor:
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )

        return otherwise(NAME, reason, run)
    if torch.is_autocast_enabled(query.device.type):
        given = tuple(cast(*given))
    if query.ndim == 3:
        given = tuple(x.unsqueeze(0) for x in given)
    whole = (*given[:3], is_causal, scale, *given[3:])
    found = _attention(*whole) if eager(*given) else _attention_op(*whole)
    return found.squeeze(0) if query.ndim == 3 else found


def _check(dropout_p: Any, is_causal: Any, scale: Any, enable_gqa: Any) -> None:
    """Raises `InputError` for an argument of another type, or a probability that is none."""
    operator = f"tmapipe.torch.{NAME}"
    check_bool(f"{operator}(is_causal)", is_causal)
    check_bool(f"{operator}(enable_gqa)", enable_gqa)
    fits = is_number(dropout_p) and 0 <= dropout_p <= 1
    require(fits, f"{operator}(dropout_p)", dropout_p, "is a probability, from 0 to 1", "e.g. 0.0")
    fits = scale is None or (is_number(scale) and abs(scale) < 1e30)
    require(fits, f"{operator}(scale)", scale, "is a number below 1e30, or None", "e.g. 0.125")


def _other_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grouped: bool) -> str | None:
    """Why no kernel takes tensors of these shapes, which torch may word as errors."""
    if not 3 <= q.ndim <= 4 or not q.ndim == k.ndim == v.ndim:
        return "tensors of other than three or four dimensions"
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or q.shape[:-3] != k.shape[:-3]:
        return "shapes that differ"
    if not (q.shape[-3] == k.shape[-3] or (grouped and k.shape[-3] and q.shape[-3] % k.shape[-3] == 0)):
        return "other numbers of heads"
    return None if q.numel() and k.numel() and v.numel() else "tensors without elements"


def _other_mask(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> str | None:
    """Why no kernel takes this mask, which torch may word as an error."""
    try:
        mask.expand(*q.shape[:-1], k.shape[-2])
    except RuntimeError:
        return "an attn_mask of another shape"
    return None if mask.dtype in (torch.bool, q.dtype) else "an attn_mask of another type"


def _without_broadcast(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> tuple[str, torch.Tensor]:
    """The names of the dimensions along which *mask* varies, as `Attention` takes them, and the mask with these alone."""
    whole = mask.expand(*q.shape[:3], k.shape[2])
    extents = zip("bhms", whole.stride(), whole.shape, strict=True)
    varies = [dim == "s" or (stride != 0 and n > 1) for dim, stride, n in extents]
    names = " ".join(dim for dim, there in zip("bhms", varies, strict=True) if there)
    return names, whole[tuple(slice(None) if there else 0 for there in varies)]


def _attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, mask: Tensor | None = None
) -> Tensor:
    def run() -> torch.Tensor:
        found = functional.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=True)
        return new_in_order(q, v.shape[3]).copy_(found)

    def kernel() -> torch.Tensor:
        options: dict[str, Any] = {"causal": "start" if causal else None, "scale": scale}
        more = {}
        if mask is not None:
            dims, more["mask"] = _without_broadcast(q, k, mask)
            options["score"] = Score(mask=dims)
        schedule = _chosen(q.shape, k.shape, v.shape, tuple(options.items()))
        return schedule(q, k, v, out=new_in_order(q, v.shape[3]), **more)

    return by_kernel(NAME, unsuited((q, k, v), TYPES), kernel, run)


@functools.lru_cache(maxsize=1024)
def _chosen(q: torch.Size, k: torch.Size, v: torch.Size, options: tuple[tuple[str, Any], ...]) -> Attention:
    like = functools.partial(torch.empty, device="meta")
    kind, found = Choice(like(q), like(k), like(v), dict(options)).form()
    return _schedule((("kind", kind), *found.items()))


@functools.lru_cache(maxsize=256)
def _schedule(options: tuple[tuple[str, Any], ...]) -> Attention:
    kind, *given = options
    made: Attention = kind[1](**dict(given))
    return made


_schema = "(Tensor q, Tensor k, Tensor v, bool causal, float? scale, Tensor? mask=None) -> Tensor"
_attention_op = operator_of(NAME, _schema, _attention, lambda q, k, v, *_: new_in_order(q, v.shape[3]))
