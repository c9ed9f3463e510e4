"""Callers: one function a signature, written for it, which looks at what the signature fixes and launches.

A caller is Python code of a few lines: one comparison of all tensors, by torch where it has one, then their addresses and the
size of their memory. What does not fit is None, and goes the long way, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tmapipe.bind.memory import span
from tmapipe.tma_rules import ALIGNMENT

if TYPE_CHECKING:
    from tmapipe.gpu.launch import Launcher

#: (tensors, out, named) -> the outputs, or None for a call of another kind.
Caller = Callable[[tuple[Any, ...], Any, dict[str, Any]], Any]
NEWEST = (2, 13)  # of torch, whose comparison of tensors was tried


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdecimal())


def _quick() -> tuple[Any, Any]:
    """(torch's comparison of tensors, what makes an output), as Inductor's code has them, or None."""
    if not (2, 6) <= _version() <= NEWEST:
        return None, None
    try:
        from torch._C._dynamo import guards

        return guards.TensorGuards, getattr(guards, "_empty_strided_cuda", None)
    except (ImportError, AttributeError):
        return None, None


GUARDS, EMPTY_ON_CUDA = _quick()
capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)
_stream_of: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream
)


def same_as(tensors: Sequence[Any]) -> Callable[..., bool]:
    """Tells whether as many tensors are like these: type, element type, device, extents, strides, lazy views, gradients."""
    if GUARDS is not None:
        sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
        check: Callable[..., bool] = GUARDS(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        return check
    known = [(type(x), x.dtype, x.device, tuple(x.shape), x.stride()) for x in tensors]

    def check_each(*given: Any) -> bool:
        if torch._C._len_torch_dispatch_stack():
            return False
        for x, (kind, dtype, device, shape, strides) in zip(given, known, strict=True):
            if type(x) is not kind or x.dtype != dtype or x.device != device or x.shape != shape:
                return False
            if torch._C._functorch.is_functorch_wrapped_tensor(x):
                return False
            if x.stride() != strides or x.is_neg() or x.is_conj() or (x.requires_grad and torch.is_grad_enabled()):
                return False
        return True

    return check_each


def caller_of(
    launcher: Launcher, tensors: Sequence[Any], names: Sequence[str], out: Any, like: Sequence[Any] = ()
) -> Caller:
    """What makes calls like this one, which the launcher takes.

    Args:
        tensors: By position, then those given by name. They may have other shapes than the launcher's, for the same places.
        names: Of the last tensors, which are given by name.
        out: The first output, or None.
        like: What the outputs that are made are like, if they are others than the launcher's.
    """
    packed, count, inputs = launcher.packed, len(tensors) - len(names), launcher.inputs
    given = [*tensors] if out is None else [*tensors, out]
    at = [f"x{i}" for i in range(len(given))]
    made = range(len(given) - inputs, len(launcher.outputs))
    results = [f"d{i}" if i in made else f"x{inputs + i}" for i in range(len(launcher.outputs))]
    fits: list[str] = []  # conditions, any of which sends a call the long way
    fits.append("out is not None" if out is not None else "out is None")
    fits.append(f"len(named) == {len(names)}" if names else "not named")
    lines = ["def call(tensors, out, named):", f"    if not ({' and '.join(fits)}):", "        return None", "    try:"]
    lines.append(f"        {''.join(f'{x}, ' for x in at[:count])} = tensors" if count else "        () = tensors")
    lines += [f"        {x} = named[{name!r}]" for x, name in zip(at[count:], names, strict=False)]
    lines += ["    except (ValueError, KeyError):", "        return None"]
    lines += [f"    {at[-1]} = out"] * (out is not None)
    refused = [f"not same({', '.join(at)})"]
    for i, x in enumerate(given):  # its address, and the end of its memory
        refused.append(f"(p{i} := x{i}.data_ptr()) % {ALIGNMENT} != {x.data_ptr() % ALIGNMENT}")
        refused.append(f"len(x{i}.untyped_storage()) < {span(x)} + x{i}.storage_offset() * {x.element_size()}")
    for i in range(inputs, len(given)):
        refused += [f"p{i} < p{j} + {span(given[j])} and p{j} < p{i} + {span(given[i])}" for j in range(i)]
    refused.append(f"(stream := stream_of({launcher.index})) and capturing()")  # never the default stream
    refused += ["(scratch := scratch_of.get(stream)) is None"] * bool(launcher.scratch)
    refused += [f"current_device() != {launcher.index}"] * (not launcher.one_device)
    lines += [f"    if {each}:\n        return None" for each in refused]
    for i in made:
        shape, strides, _, added_to = launcher.outputs[i]
        if like:
            shape, strides = tuple(like[i].shape), like[i].stride()
        lines.append(f"    d{i} = empty({shape!r}, {strides!r}, type_{i}){'.zero_()' * added_to}")
    addresses = [f"p{i}" for i in range(len(given))] + [f"d{i}.data_ptr()" for i in made]
    addresses += [f"scratch[{i}]" for i in range(len(launcher.scratch))]
    lines += ["    try:", "        memory = pop()", "    except IndexError:", "        memory = make()"]
    lines.append("    words, arguments, result = memory")
    lines += [f"    words[{place}] = {each}" for place, each in zip(packed.places, addresses, strict=True)]
    lines.append(f"    words[{packed.stream}] = stream")
    whole = ", ".join([*at, *(f"d{i}" for i in made)])
    lines += ["    if launch(handle, arguments, three, result):", f"        fail(({whole},))", "    push(memory)"]
    lines += [f"    written(({', '.join(at[inputs:])},))"] * (len(given) > inputs)
    lines.append(f"    return {results[0] if len(results) == 1 else '(' + ', '.join(results) + ')'}")
    names_of: dict[str, Any] = {
        "same": same_as(given),
        "capturing": capturing,
        "stream_of": _stream_of,
        "scratch_of": launcher.scratch_of,
        "current_device": torch.cuda.current_device,
        "empty": (launcher.device.type == "cuda" and EMPTY_ON_CUDA) or _empty_on(launcher.device),
        "pop": packed.free.pop,
        "push": packed.free.append,
        "make": packed.make,
        "launch": packed.call,
        "handle": packed.handle,
        "three": packed.count,
        "fail": launcher.fail,
        "written": increment_version,
        **{f"type_{i}": like[i].dtype if like else output[2] for i, output in enumerate(launcher.outputs)},
    }
    exec(compile("\n".join(lines), f"<a caller of {launcher.name}>", "exec"), names_of)
    made_here: Caller = names_of["call"]
    return made_here


def _empty_on(device: Any) -> Callable[..., Any]:
    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    return empty


def _increment() -> Callable[[Sequence[Any]], None]:
    """`torch.autograd.graph.increment_version`, without its layer of Python where that can be left out."""
    quick: Callable[[Sequence[Any]], None] | None = getattr(torch._C, "_increment_version", None)
    try:
        probe = torch.empty(0)
        if quick is not None:
            quick([probe, probe])
            if probe._version == 2:
                return quick
    except (TypeError, RuntimeError):
        pass
    return torch.autograd.graph.increment_version


increment_version = _increment()


def stream_of(device: int) -> int:
    """The handle of torch's current stream of a device."""
    return _stream_of(device)
