"""A GEMM's epilogue as the tuner needs it: its tensors, its expected results, and its identity in the cache.

*fused* is what the constructors of `tmapipe.schedules` take for an epilogue: `epilogue`, `operands` and `outputs` by name, or
nothing.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from types import CodeType, MappingProxyType
from typing import Any

from tmapipe.bind.tensors import of_sums
from tmapipe.dtypes import DType, as_dtype
from tmapipe.epilogue.operands import Matrix, spread
from tmapipe.epilogue.reductions import Reduction, whole_sums
from tmapipe.tuning.problem import Problem

__all__ = ["NOTHING", "Fused", "dtypes", "expected", "fingerprint", "operands", "ranks"]

Fused = Mapping[str, Any]
NOTHING: Fused = MappingProxyType({})


def dtypes(problem: Problem, fused: Fused) -> dict[str, DType]:
    """Element types by stage name. Operands without a type get that of the result, outputs without one that of a call."""
    found = {name: as_dtype(kind.dtype or problem.out) for name, kind in _of(fused, "operands")}
    made = of_sums(problem.dtype.in_memory)
    outputs = {name: as_dtype(kind or made) for name, kind in _of(fused, "outputs") if not isinstance(kind, Reduction)}
    return found | outputs


def ranks(problem: Problem, fused: Fused) -> dict[str, int]:
    """Number of dimensions of each tensor by stage name; for a reduced output, that of its partial sums."""
    several = 3 if problem.batch > 1 else 2
    found = {name: several if isinstance(kind, Matrix) else 1 for name, kind in _of(fused, "operands")}
    return found | {name: several for name, _ in _of(fused, "outputs")}


def operands(problem: Problem, fused: Fused, device: str) -> dict[str, Any]:
    """A torch tensor on *device* for each operand: random normal, from a fixed seed."""
    import torch

    generator = torch.Generator(device).manual_seed(1)
    extents, types = {"m": problem.m, "n": problem.n}, dtypes(problem, fused)
    found = {}
    for name, kind in _of(fused, "operands"):
        batch = (problem.batch,) if isinstance(kind, Matrix) and problem.batch > 1 else ()
        shape = (*batch, *(extents[dim] for dim in kind.along)) if kind.along else (1,)
        values = torch.randn(shape, generator=generator, device=device)
        found[name] = values.to(getattr(torch, types[name].torch))
    return found


def expected(fused: Fused, product: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every output by name, computed with NumPy in fp32, as torch tensors.

    Args:
        product: a b^T, [m, n] or [l, m, n]
        given: the operands by name, torch tensors
    """
    if not fused.get("epilogue"):
        return {"d": product}
    import numpy as np
    import torch

    arrays = {name: spread(kind.along, given[name].float().cpu().numpy()) for name, kind in _of(fused, "operands")}
    made = fused["epilogue"](product.float().cpu().numpy(), **arrays)
    values = made if isinstance(made, dict) else {"d": made}
    found = {}
    for name, kind in (("d", None), *_of(fused, "outputs")):
        if isinstance(kind, Reduction):
            value = whole_sums(kind, values[name], product.shape)
        else:
            value = np.broadcast_to(np.asarray(values[name], np.float32), product.shape).copy()
        found[name] = torch.from_numpy(value).to(product.device)
    return found


def fingerprint(fused: Fused) -> str:
    """A short text that differs between epilogues with different operations, operands or outputs; "" for no epilogue.

    Numbers that the epilogue encloses do not count: with other numbers it takes the same time.
    """
    if not fused:
        return ""
    epilogue = fused.get("epilogue")
    while isinstance(epilogue, functools.partial):
        epilogue = epilogue.func
    code = getattr(epilogue, "__code__", None)
    parts = [repr(type(epilogue))] if code is None else [repr(part) for part in _operations(code)]
    parts += [f"{name}={kind!r}" for which in ("operands", "outputs") for name, kind in _of(fused, which)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _of(fused: Fused, which: str) -> Iterator[tuple[str, Any]]:
    yield from (fused.get(which) or {}).items()


def _operations(code: CodeType) -> Iterator[Any]:
    """What a function does, without where it is written."""
    yield code.co_code, code.co_names, code.co_varnames[: code.co_argcount]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _operations(constant)
        else:
            yield constant
