"""Operators of torch: products of matrices and functions of rows by kernels, and `register` for schedules of one's own.

They are `torch.library` operators: they have gradients (attention has none), and `torch.compile` takes them whole. Tensors
that no kernel takes are computed by torch itself; `fallbacks` counts such calls with their reasons, and within `kernels_only`
they are errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmapipe.bind import outputs_of
from tmapipe.calling import check_one_kernel
from tmapipe.errors import InputError, check_type, needed

with needed("torch", "torch", "for its operators"):
    import torch

from tmapipe.schedule import Schedule
from tmapipe.torch.attention import scaled_dot_product_attention
from tmapipe.torch.operators import eager, fallbacks, gemm, kernels_only, linear, matmul
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
