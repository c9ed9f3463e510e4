"""Operators of torch: products of matrices; what no kernel takes falls back."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import attrs
import torch
from torch.nn import functional

from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import check_tangent, outputs_of
from tmapipe.bind.tensors import last_but_one, signature
from tmapipe.calling import called, watching
from tmapipe.epilogue import Epilogue, PerColumn
from tmapipe.errors import InputError, check_type
from tmapipe.schedules.gemm import Gemm
from tmapipe.tuning import Problem, choose

T = TypeVar("T")

# ---- fallback --------------------------------------------------------------------------------------------------------
#
# Where no kernel takes a call: torch does, which is counted, and said once with the reason.


class _Settings:
    """model: CPU tensors run on the model, which is slow, and not by torch. forbidden: how many `kernels_only` are open."""

    model = False
    forbidden = 0


settings = _Settings()
_counted: Counter[str] = Counter()


def fallbacks() -> dict[str, int]:
    """How often torch has computed what no kernel takes: ``operator: reason`` -> calls, since the process began."""
    return dict(_counted)


@contextlib.contextmanager
def kernels_only() -> Iterator[None]:
    """Within it, a call that no kernel takes raises `InputError`, in all threads: gradients are computed in others."""
    settings.forbidden += 1
    try:
        yield
    finally:
        settings.forbidden -= 1


def otherwise(operator: str, reason: str, run: Callable[[], T]) -> T:
    """What *run* computes with torch, in the place of an operator's kernel.

    Raises:
        InputError: Within `kernels_only`.
    """
    if settings.forbidden:
        fix = "pass other tensors, or leave kernels_only()"
        raise InputError(f"tmapipe.torch.{operator}", reason, "is computed by a kernel within kernels_only()", fix)
    said = f"{operator}: {reason}"
    _counted[said] += 1
    if _counted[said] == 1:
        warnings.warn(f"tmapipe.torch.{said}. torch computes it; fallbacks() counts.", RuntimeWarning, stacklevel=3)
    return run()


def by_kernel(operator: str, reason: str | None, kernel: Callable[[], Any], run: Callable[[], T]) -> T:
    """What *kernel* computes; or *run*, with torch, for a *reason*, or since the kernel refuses the tensors."""
    if reason is None:
        try:
            with torch.no_grad():
                found: T = kernel()
                return found
        except InputError as error:
            reason = f"{error.argument} {error.rule}"  # the same for all such tensors
    return otherwise(operator, reason, run)


def eager(*tensors: Any) -> bool:
    """Whether a kernel can be launched for these at once: nothing traces them, and nobody asks for their gradients."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    return signature(tensors, None) is not None


def differentiated(*tensors: torch.Tensor) -> bool:
    """Whether somebody asks for the gradients of these, which are launched at once otherwise. An autograd.Function costs a
    tenth of the host time of an operator of torch.library, which traces and transforms of functions need."""
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
        return False
    return not torch._C._len_torch_dispatch_stack() and torch._C._functorch.peek_interpreter_stack() is None


def where(tensor: Any) -> str | None:
    """Why no kernel runs where a tensor lies, or None."""
    if tensor.is_cuda or (settings.model and tensor.device.type == "cpu"):
        return None
    return f"tensors on {tensor.device.type}"


def unsuited(given: Sequence[torch.Tensor], types: Sequence[torch.dtype]) -> str | None:
    """Why no kernel takes tensors that lie there and are of those types, or None. types: those that kernels take."""
    reason = where(given[0])
    if reason is None and len({x.dtype for x in given}) > 1:
        reason = "tensors of several types"
    if reason is None and given[0].dtype not in types:
        reason = str(given[0].dtype).removeprefix("torch.")
    return reason


def require_tensors(operator: str, **given: Any) -> None:
    """Raises `InputError` for what is no tensor, and for a tensor with a tangent; None is left to the caller to leave out."""
    for name, value in given.items():
        check_type(f"tmapipe.torch.{operator}({name})", value, torch.Tensor, "convert it")
        check_tangent(f"tmapipe.torch.{operator}({name})", value)


# ---- products --------------------------------------------------------------------------------------------------------
#
# Products of matrices: `linear` and `gemm`.


PLAIN = (torch.Tensor, torch.nn.Parameter)  # whose extents are numbers
TYPES = (torch.bfloat16, torch.float16)
NO_TF32 = "float32, as torch allows no tf32"
FEW = "few products of rows that TMA does not load"
MANY = 25e9  # products: below this number, copies of operands cost more than torch's slow kernels
MOST = 4096  # signatures of calls that are known
callers: dict[Any, Any] = {}  # extents of a call -> its callers, as of `tmapipe.gpu.kernels`


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x weight^T + bias``, as `torch.nn.functional.linear`.

    Args:
        x: Of any number of dimensions, the last one of k elements.
        weight: [n, k], contiguous along either.
        bias: [n], or None.
    """
    require_tensors("linear", x=x, weight=weight, **({} if bias is None else {"bias": bias}))
    if torch.is_autocast_enabled(x.device.type):
        x, weight, bias = cast(x, weight, bias)
    if type(x) in PLAIN and not torch.compiler.is_compiling():
        given = (x, weight) if bias is None else (x, weight, bias)
        if differentiated(*given):
            return _Linear.apply(x, weight, bias)
        return _recall("linear", given, torch.ops.tmapipe.linear, x, weight, bias)
    return torch.ops.tmapipe.linear(x, weight, bias)


def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a b^T``.

    Args:
        a: [m, k], or of a batch [l, m, k], contiguous along m or k.
        b: [n, k], or [l, n, k], contiguous along n or k.
    """
    require_tensors("gemm", a=a, b=b)
    if torch.is_autocast_enabled(a.device.type):
        a, b = cast(a, b)
    if type(a) in PLAIN and not torch.compiler.is_compiling():
        if differentiated(a, b):
            return _Gemm.apply(a, b)
        return _recall("gemm", (a, b), torch.ops.tmapipe.gemm, a, b)
    return torch.ops.tmapipe.gemm(a, b)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a b``, as `torch.matmul`: of vectors, matrices, and batches of these, which broadcast.

    Args:
        a: [..., m, k] or [k].
        b: [..., k, n] or [k].
    """
    require_tensors("matmul", a=a, b=b)
    if not a.ndim or not b.ndim:
        return torch.matmul(a, b)  # an error that torch words
    if a.ndim == 1 or b.ndim == 1:
        found = matmul(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b)
        found = found.squeeze(-1) if b.ndim == 1 else found
        return found.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else found
    if b.ndim == 2:
        return linear(a, b.mT)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    flat = [_laid_out(x.expand(*batch, *x.shape[-2:]).flatten(0, -3)) for x in (a, b)]
    return gemm(flat[0], flat[1].mT).view(*batch, a.shape[-2], b.shape[-1])


def cast(*given: torch.Tensor | None) -> Any:
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
    return _product("linear", given, (_by_rows(x), *given[1:]), shape, run)


def _gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    def run() -> torch.Tensor:
        return torch.matmul(a, b.mT)

    if a.ndim != b.ndim or a.ndim not in (2, 3):
        shapes = tuple(a.shape), tuple(b.shape)
        raise InputError("tmapipe.torch.gemm", shapes, "has two or three dimensions", "reshape")
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
    tf32 = tensors[0].dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    reason = unsuited(given, (*TYPES, torch.float32) if tf32 else TYPES)
    if reason == "float32":
        reason = NO_TF32

    def kernel() -> torch.Tensor:
        a, b, *more = tensors
        if tf32:  # of which wgmma loads both along k
            a, b = a.contiguous(), b.contiguous()
        problem = Problem.of(a, b, tf32=tf32)
        at_a, at_b, _ = problem.rows_at
        columns, whole = b.shape[-2], (_loaded(a, at_a), _loaded(b, at_b))
        units = -columns % (ALIGNMENT // b.itemsize)  # columns of d that its rows lack to be whole 16 bytes
        copied = units > 0 or not all(whole)
        if copied and a.numel() * columns < MANY and not settings.forbidden:
            return otherwise(operator, FEW, run)
        loaded = a if whole[0] else _spaced(a, 0), b if whole[1] and not units else _spaced(b, units)
        if units:
            more = [functional.pad(each, (0, units)) for each in more]
        problem = Problem.of(*loaded, tf32=tf32) if copied else problem
        schedule = chosen(problem, a.device, _schedule, bool(more))
        with watching(a) as launches:
            if schedule.one_kernel:
                found = called(schedule, (*loaded, *more), {}, keep=False)
            else:  # whose third tensor is the result
                found = schedule(*loaded, **dict(zip(BIASED.operands, more, strict=False)))
        _last.launches = () if copied else launches
        result: torch.Tensor = (found[..., :columns].contiguous() if units else found).view(shape)
        return result

    return by_kernel(operator, reason, kernel, run)


def _loaded(x: torch.Tensor, at: int) -> bool:
    """Whether TMA loads the matrices *x*, whose rows begin at multiples of *at* bytes."""
    dense = last_but_one(x) or x.stride(-1) == 1 or x.shape[-1] == 1
    return dense and at % ALIGNMENT == 0 and x.data_ptr() % ALIGNMENT == 0


def _spaced(x: torch.Tensor, rows: int) -> torch.Tensor:
    """A copy of the matrices *x* [..., m, k], with *rows* of zeros below, that TMA loads; contiguous along m if x is so."""
    along_m = last_but_one(x)
    source = x.mT if along_m else x
    height, width = source.shape[-2] + (0 if along_m else rows), source.shape[-1] + (rows if along_m else 0)
    pitch = width + -width % (ALIGNMENT // x.itemsize)
    made = (x.new_zeros if rows else x.new_empty)(*x.shape[:-2], height, pitch)[..., :width]
    made[..., : source.shape[-2], : source.shape[-1]].copy_(source)
    return made.mT if along_m else made


def chosen(problem: Problem, device: torch.device, choice: Callable[..., Gemm], *how: Any) -> Gemm:
    """What *choice* takes for the problem, with its rows rounded up: batches of many sizes share some twenty kernels.

    It may measure on a GPU: not while a graph is captured.
    """
    step = max(16, 1 << max(0, problem.m.bit_length() - 2))
    rounded = attrs.evolve(problem, m=-(-problem.m // step) * step)
    if rounded.rows_at != problem.rows_at:
        rounded = attrs.evolve(rounded, aligned=problem.rows_at)
    if device.type != "cuda":
        return choice(rounded, *how)
    from tmapipe.gpu.launch import uncaptured

    with uncaptured(device):
        return choice(rounded, *how)


class _Last(threading.local):
    launches: Any = ()  # of the operator that ran last in this thread, until they are looked at


_last = _Last()


def _recall(
    operator: str, given: tuple[torch.Tensor, ...], run: Callable[..., torch.Tensor], *arguments: Any
) -> torch.Tensor:
    """What an operator computes of plain tensors: by a call that is remembered, or by *run* with these arguments, of which is
    kept what makes its launches again. Nothing that traces is passed by. Below autograd torch's state is another one, and
    tensors compare otherwise: so this is called above, or where there is none."""
    traced = torch._C._len_torch_dispatch_stack()
    if not traced:
        for call in callers.get(_known_as(operator, given), ()):
            found: torch.Tensor | None = call(given, None, {})
            if found is not None:
                return found
    _last.launches = ()
    made = run(*arguments)
    launches, _last.launches = _last.launches, ()
    if launches and not traced:
        keep(_known_as(operator, given), launches, given, (made,))
    return made


def keep(key: Any, launches: Any, given: Any, made: Any, finish: Callable[..., Any] | None = None, **how: Any) -> None:
    """Keeps under *key* what makes the *launches* of a call again, and what *finish* makes of the results, where
    `tmapipe.gpu.launch.repeated` can make it."""
    from tmapipe.gpu.launch import repeated

    again: Any = repeated(launches, given, None, made, **how)
    if again is not None:
        if len(callers) >= MOST:
            callers.clear()
        whole = again if finish is None else lambda *of: None if (found := again(*of)) is None else finish(*found)
        callers[key] = (whole, *callers.get(key, ()))[:4]


def _known_as(operator: str, given: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    """What calls are remembered by: extents, and for fp32 what torch allows now."""
    precision = given[0].dtype is torch.float32 and torch.get_float32_matmul_precision()
    return operator, len(given), given[0].shape, given[1].shape, precision


@functools.lru_cache(maxsize=1024)
def _schedule(problem: Problem, bias: bool) -> Gemm:
    return choose(problem, epilogue=BIASED if bias else None)


def _plus(acc: Any, bias: Any) -> Any:
    return acc + bias


BIASED = Epilogue(_plus, operands={"bias": PerColumn()})


# ---- operators --------------------------------------------------------------------------------------------------------


def operator_of(name: str, schema: str, *of: Callable[..., Any]) -> Any:
    """Registers an operator. of: the computation, the results' shapes, perhaps the gradients, and tensors kept for them."""
    run, fake, *gradients = of
    made = torch.library.custom_op(f"tmapipe::{name}", run, mutates_args=(), schema=schema)
    made.register_fake(fake)
    if gradients:
        made.register_autograd(gradients[0], setup_context=gradients[1])
    return made


def function_of(run: Callable[..., Any], gradients: Callable[..., Any], keep_for: Callable[..., None]) -> Any:
    """What computes an operator's result, and its gradients, without torch.library (`differentiated`)."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            output = run(*given)
            if isinstance(output, torch.Tensor) and output._is_view():
                output = output.data  # a view that the caller has not made could not be changed in place
            keep_for(ctx, given, output)
            return output

        backward = staticmethod(gradients)

    return Function


_PLAIN = Gemm()


def _linear_like(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _gemm_like(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (shape, _dtype) = outputs_of(_PLAIN.declared, {"a": a, "b": b})[0]
    return a.new_empty(shape)


def _keep_linear(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.bias = bias is not None


def _linear_gradients(ctx: Any, grad: torch.Tensor) -> Any:
    x, weight = ctx.saved_tensors
    of_x, of_weight, of_bias = None, None, None
    wanted = ctx.needs_input_grad
    if wanted[0]:
        of_x = _gradient("linear's x", (grad, weight), lambda: (_rows_of(grad), weight.mT), x.shape)
    if wanted[1]:
        of_weight = _gradient("linear's weight", (grad, x), lambda: (_rows_of(grad).mT, _by_rows(x).mT), weight.shape)
    if ctx.bias and wanted[2]:
        of_bias = _rows_of(grad).sum(0)
    return of_x, of_weight, of_bias


def keep_inputs(ctx: Any, inputs: Any, output: Any) -> None:
    """What an operator keeps for its gradients: all that it is given."""
    ctx.save_for_backward(*inputs)


def _gemm_gradients(ctx: Any, grad: torch.Tensor) -> Any:
    a, b = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    of_a = _gradient("gemm's a", (grad, b), lambda: (grad.contiguous(), b.mT), a.shape) if wanted[0] else None
    of_b = _gradient("gemm's b", (grad, a), lambda: (grad.contiguous().mT, a.mT), b.shape) if wanted[1] else None
    return of_a, of_b


def _gradient(
    of: str, given: tuple[torch.Tensor, torch.Tensor], views: Callable[[], tuple[torch.Tensor, ...]], shape: torch.Size
) -> torch.Tensor:
    """A product of *given*, a gradient and another tensor, in this shape. *views* shows both tensors as `gemm` takes them; a
    remembered call needs no views."""
    traced = type(given[0]) not in PLAIN or torch.is_grad_enabled() or torch.compiler.is_compiling()
    if traced or torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
        return gemm(*views()).reshape(shape)
    return _recall(of, given, lambda: _gemm(*views()).reshape(shape))


def _laid_out(x: torch.Tensor) -> torch.Tensor:
    """A tensor of which several indices name one element, copied; another one as it is."""
    return x.contiguous() if any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride(), strict=True)) else x


def _by_rows(x: torch.Tensor) -> torch.Tensor:
    """A matrix of the rows of a tensor, of which there may be none."""
    return x.flatten(0, -2) if x.ndim > 1 else x[None]


def _rows_of(grad: torch.Tensor) -> torch.Tensor:
    """A matrix of the rows of a gradient as kernels load it: that of a sum has no strides."""
    return _by_rows(grad.contiguous())


_library = torch.library.Library("tmapipe", "FRAGMENT")


def _product_of(operator: str, schema: str, run: Callable[..., torch.Tensor], *of: Callable[..., Any]) -> Any:
    """Registers an operator, and returns its autograd.Function. Remembered calls go straight to the kernel, also from compiled
    graphs: in the place of autograd's part, or, in inference mode, which leaves that out, of the operator itself, since
    torch.library's own parts take longer than a call. of: as of `operator_of`."""
    op = operator_of(operator, schema, run, *of)

    def first(whole: Callable[..., torch.Tensor], *given: Any) -> torch.Tensor:
        return recalled(whole, *given) if type(given[0]) in PLAIN else whole(*given)

    def recalled(whole: Callable[..., torch.Tensor], *given: Any) -> torch.Tensor:
        return _recall(operator, given if given[-1] is not None else given[:-1], whole, *given)

    def inferred(*given: Any) -> torch.Tensor:
        return first(run, *given) if torch.is_inference_mode_enabled() else run(*given)

    try:
        from torch._library.autograd import make_autograd_impl

        with_gradients: Any = make_autograd_impl(op._opoverload, op)
    except (ImportError, AttributeError, TypeError):  # a version of torch that has it otherwise: calls take longer
        pass
    else:
        for device in ("CPU", "CUDA"):
            _library.impl(operator, inferred, device)
            with_keys = lambda keys, *given: first(functools.partial(with_gradients, keys), *given)  # noqa: E731
            _library.impl(operator, with_keys, f"Autograd{device}", with_keyset=True)
    return function_of(functools.partial(recalled, getattr(torch.ops.tmapipe, operator)), *of[1:])


_schema = "(Tensor x, Tensor weight, Tensor? bias) -> Tensor"
_Linear = _product_of("linear", _schema, _linear, _linear_like, _linear_gradients, _keep_linear)
_Gemm = _product_of("gemm", "(Tensor a, Tensor b) -> Tensor", _gemm, _gemm_like, _gemm_gradients, keep_inputs)
