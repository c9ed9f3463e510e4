"""First kind: right ready-made schedules, called with tensors of which one is damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch._subclasses import FakeTensorMode

from tests.fuzz.junk import junk, said
from tests.fuzz.outcomes import Call, Wrong
from tests.fuzz.schedules import SCHEDULES, Schedule
from tmapipe.base.arithmetic import dtype_of

__all__ = ["call"]

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int8": torch.int8, "int32": torch.int32}
TORCH |= {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
OTHERS = (torch.float64, torch.int64, torch.bool, torch.complex64, torch.uint8, torch.int16, *TORCH.values())


def call(seed: int) -> Call:
    """The call of this seed."""
    rng = random.Random(seed)
    which = rng.choice(SCHEDULES)
    sizes = {dim: rng.choice((1, 2, 3)) if dim in "ls" else 16 * rng.randint(1, 9) for dim in "lmnks"}
    dtype = rng.choice(which.dtypes)
    values = which.tensors(sizes, dtype, np.random.default_rng(seed))
    as_torch = rng.random() < 0.7
    given = {name: to_torch(value) if as_torch else value for name, value in values.items()}
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        options["out"] = _output(which, given, as_torch, rng)
    said = []
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2))):
        said.append(_damage(given, options, rng))
    positional = list(given.values())
    if rng.random() < 0.1 and given:
        name = rng.choice(list(given))
        options[name] = given[name]
        if rng.random() < 0.5:
            positional = [value for key, value in given.items() if key != name]
        said.append(f"{name} by name")
    shapes = ", ".join(f"{name}={_show(value)}" for name, value in {**given, **options}.items())
    text = f"tensors {seed}: {which.name}({shapes}) {'; '.join(said)}"
    return Call(text, lambda: run(which, positional, options))


def run(which: Schedule, positional: list[Any], options: dict[str, Any]) -> None:
    """Calls it, and compares with NumPy what comes out, what went in, and what lies around the output."""
    before = [as_array(x) for x in positional]
    out = options.get("out")
    room = out.base if isinstance(out, np.ndarray) and isinstance(out.base, np.ndarray) else None
    guard = None if room is None else room.tobytes()
    result = which.schedule(*positional, **options)
    named = {name: value for name, value in options.items() if name != "out"}
    given = which.named(positional, named)
    compare(which, given, result, out)
    for name, tensor, was in zip(which.inputs, positional, before, strict=False):
        now = as_array(tensor)
        if was is not None and now is not None and tensor is not out and was.tobytes() != now.tobytes():
            raise Wrong(f"{name} was written")
    if (
        guard is not None
        and isinstance(room, np.ndarray)
        and out.strides == room.strides
        and out.ndim == room.ndim == 2
    ):
        beside = np.frombuffer(guard, np.uint8).reshape(room.shape[0], -1)[:, out.shape[1] * out.itemsize :]
        if beside.tobytes() != room[:, out.shape[1] :].tobytes():
            raise Wrong("wrote beside the output")


def compare(which: Schedule, given: dict[str, Any], result: Any, out: Any = None) -> None:
    """Raises `Wrong` unless *result* is what NumPy computes of the tensors *given*."""
    if out is not None and result is not out:
        raise Wrong("the result is not the tensor that was passed")
    arrays = {}
    for name in which.inputs:
        arrays[name] = as_array(given.get(name))
        if arrays[name] is None:
            raise Wrong(f"took {name}, which is no tensor")
    right = which.expected(arrays)
    if right is None:
        raise Wrong("should have been refused: the shapes do not go together")
    found = as_array(result)
    if found is not None and not found.dtype.isnative:
        return  # bytes that a copy moves as they are
    if found is None or found.size != right[0].size:
        raise Wrong(f"result {_show(result)} instead of {right[0].shape}")
    value, slack = right[0].reshape(found.shape), right[1].reshape(found.shape)
    rounds = found.dtype.kind == "f" or found.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    step = 2.0 * float(ml_dtypes.finfo(found.dtype.type).eps) if rounds else 0.0
    wide = found.astype(np.float64)
    off = np.abs(wide - value) > step * np.abs(value) + (step + 1e-6) * slack + 1e-6
    if found.dtype.name.startswith("float8"):
        off &= np.abs(value) < 0.9 * float(ml_dtypes.finfo(found.dtype).max)  # saturates
    if off.any():
        where = tuple(int(i) for i in np.argwhere(off)[0])
        raise Wrong(f"{off.sum()} of {off.size} elements are wrong, {where}: {wide[where]} instead of {value[where]}")


def to_torch(value: np.ndarray) -> torch.Tensor:
    kind = TORCH[dtype_of(value, "value").name]
    plain = {1: np.int8, 2: np.int16, 4: np.int32}[value.itemsize]
    return torch.from_numpy(value.view(plain).copy()).view(kind)


def as_array(value: Any) -> np.ndarray | None:
    """A copy of a tensor's values; None for what has none."""
    if isinstance(value, np.ndarray):
        return np.array(value)
    if not isinstance(value, torch.Tensor):
        return None
    try:
        if _is_freed(value):
            return None
        value = value.detach().resolve_neg().resolve_conj().contiguous()
        if str(value.dtype).removeprefix("torch.") not in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            return value.numpy().copy()
        plain = {1: torch.int8, 2: torch.int16}[value.element_size()]
        return value.view(plain).numpy().copy().view(dtype_of(value, "value").numpy)
    except Exception:  # it may be anything
        return None


def _output(which: Schedule, given: dict[str, Any], as_torch: bool, rng: random.Random) -> Any:
    """An output of the right shape and some type, or a view of a larger one."""
    right = which.expected({name: as_array(value) for name, value in given.items()})
    assert right is not None
    shape = right[0].shape
    like = next(iter(given.values()))
    kind = dtype_of(like, "a").name if rng.random() < 0.5 else rng.choice(list(TORCH))
    wide = list(shape)
    if rng.random() < 0.4 and wide:
        wide[-1] += 64
    array = np.zeros(wide, dtype_of(torch.zeros(1, dtype=TORCH[kind]), "d").numpy)
    view = (to_torch(array) if as_torch else array)[..., : shape[-1]]
    return view


def _damage(given: dict[str, Any], options: dict[str, Any], rng: random.Random) -> str:
    """Changes one argument; says how."""
    places = [(given, name) for name in given] + [(options, name) for name in options]
    where, name = rng.choice(places)
    if _is_freed(where[name]):
        return f"{name} stays freed"
    damages = [*_COMMON, *(_TORCH if isinstance(where[name], torch.Tensor) else _NUMPY)]
    damage = rng.choice(damages)
    if isinstance(where[name], (torch.Tensor, np.ndarray)):
        try:
            where[name] = damage(where[name], rng)
        except Exception:  # not of this tensor
            where[name] = junk(rng)
    others = [value for value in given.values() if value is not where[name]]
    if name == "out" and others and rng.random() < 0.3:
        where[name] = rng.choice(others)
        return "out is an input"
    return f"{name}: {damage.__name__.strip('_')}"


def _is_freed(value: Any) -> bool:
    """Whether it is a tensor without its memory: to read it ends the process."""
    if (
        type(value) is not torch.Tensor
        or value.layout != torch.strided
        or value.is_nested
        or value.device.type == "meta"
    ):
        return False
    return value.untyped_storage().nbytes() < value.numel() * value.element_size()


def _show(value: Any) -> str:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        try:
            return f"{type(value).__name__}{tuple(value.shape)} {value.dtype}"
        except Exception:  # it may be anything
            return type(value).__name__
    return said(value)[:60]


# ---- damages ----------------------------------------------------------------------------------------------------------


def transposed(x: Any, rng: random.Random) -> Any:
    return x.swapaxes(-1, -2)


def copied_transposed(x: Any, rng: random.Random) -> Any:
    return x.swapaxes(-1, -2) + 0


def cut(x: Any, rng: random.Random) -> Any:
    start = rng.randint(0, 9)
    return x[..., start : max(start, x.shape[-1] - rng.randint(0, 9))]


def cut_rows(x: Any, rng: random.Random) -> Any:
    return x[rng.randint(0, 3) : x.shape[0] - rng.randint(0, 3)]


def every_second(x: Any, rng: random.Random) -> Any:
    return x[..., ::2] if rng.random() < 0.5 else x[::2]


def flat(x: Any, rng: random.Random) -> Any:
    return x.reshape(-1)


def deeper(x: Any, rng: random.Random) -> Any:
    return x[None] if rng.random() < 0.5 else x[None, None]


def one_row(x: Any, rng: random.Random) -> Any:
    return x[0] if rng.random() < 0.5 else x[:1]


def empty(x: Any, rng: random.Random) -> Any:
    return x[:0] if rng.random() < 0.5 else x[..., :0]


def scalar(x: Any, rng: random.Random) -> Any:
    return x.reshape(-1)[0]


def something_else(x: Any, rng: random.Random) -> Any:
    return junk(rng)


def as_list(x: Any, rng: random.Random) -> Any:
    return x.tolist()


def of_the_other_kind(x: Any, rng: random.Random) -> Any:
    return x.float().numpy() if isinstance(x, torch.Tensor) else torch.from_numpy(np.asarray(x, np.float32))


def other_type(x: Any, rng: random.Random) -> Any:
    return (
        x.to(rng.choice(OTHERS))
        if isinstance(x, torch.Tensor)
        else x.astype(rng.choice(["f2", "f4", "f8", "i1", "i4", "u1", "c8", "?"]))
    )


def expanded(x: Any, rng: random.Random) -> Any:
    return x[:1].expand(x.shape) if isinstance(x, torch.Tensor) else np.broadcast_to(x[:1], x.shape)


def backwards(x: Any, rng: random.Random) -> Any:
    return x[::-1]


def read_only(x: Any, rng: random.Random) -> Any:
    x = x.copy()
    x.flags.writeable = False
    return x


def masked(x: Any, rng: random.Random) -> Any:
    return np.ma.masked_array(x)


def a_matrix(x: Any, rng: random.Random) -> Any:
    return np.matrix(x)


def swapped_bytes(x: Any, rng: random.Random) -> Any:
    return x.astype(x.dtype.newbyteorder())


def a_field(x: Any, rng: random.Random) -> Any:
    made = np.zeros(x.shape, [("x", x.dtype), ("y", "i1")])["x"]
    made[...] = x
    return made


def meta(x: Any, rng: random.Random) -> Any:
    return x.to("meta")


def fake(x: Any, rng: random.Random) -> Any:
    with FakeTensorMode():
        return torch.empty(x.shape, dtype=x.dtype)


def freed(x: Any, rng: random.Random) -> Any:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


def sparse(x: Any, rng: random.Random) -> Any:
    return x.to_sparse() if rng.random() < 0.5 else x.to_sparse_csr()


def nested(x: Any, rng: random.Random) -> Any:
    return torch.nested.nested_tensor([x, x])


def mkldnn(x: Any, rng: random.Random) -> Any:
    return x.float().to_mkldnn()


def with_gradient(x: Any, rng: random.Random) -> Any:
    return x.requires_grad_()


def parameter(x: Any, rng: random.Random) -> Any:
    return torch.nn.Parameter(x)


class Mine(torch.Tensor):
    """A subclass."""


def subclass(x: Any, rng: random.Random) -> Any:
    return x.as_subclass(Mine)


def negated(x: Any, rng: random.Random) -> Any:
    return torch._neg_view(x)


def overlapping(x: Any, rng: random.Random) -> Any:
    return x.reshape(-1).as_strided(x.shape, (8, 1))


def shifted(x: Any, rng: random.Random) -> Any:
    room = torch.zeros(x.numel() + 16, dtype=x.dtype)
    return room[(start := rng.randint(1, 15)) : start + x.numel()].view(x.shape).copy_(x)


_COMMON: tuple[Callable[[Any, random.Random], Any], ...] = (
    transposed, copied_transposed, cut, cut_rows, every_second, flat, deeper, one_row, empty, scalar, something_else,
    as_list, of_the_other_kind, other_type, expanded,
)  # fmt: skip
_NUMPY = (backwards, read_only, masked, a_matrix, swapped_bytes, a_field)
_TORCH = (
    meta, fake, freed, sparse, nested, mkldnn, with_gradient, parameter, subclass, negated, overlapping, shifted,
)  # fmt: skip
