"""An epilogue as the tuner needs it: the tensors that it takes, what should come out, and how to tell it from others."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from tmapipe.bind.tensors import of_sums
from tmapipe.dtypes import DType
from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.tuning.problem import Problem

__all__ = ["PLAIN", "dtypes", "expected", "fingerprint", "operands", "ranks"]

PLAIN = Epilogue()  #: none: the sums are stored


def dtypes(problem: Problem, epilogue: Epilogue) -> dict[str, DType]:
    """Element types by stage name: of operands that do not say theirs, the result's; of such outputs, what a call makes."""
    made = of_sums(problem.dtype.in_memory)
    found = {name: kind.type_of(problem.out) for name, kind in epilogue.operands.items()}
    return found | {name: kind.type_of(made) for name, kind in epilogue.outputs.items() if not kind.reduced}


def ranks(problem: Problem, epilogue: Epilogue) -> dict[str, int]:
    """Dimensions of each tensor by stage name; of what is reduced, those of its parts."""
    batch = (problem.batch,) if problem.batch > 1 else ()
    found = {name: len(kind.shape(problem.m, problem.n, batch)) for name, kind in epilogue.operands.items()}
    return found | {name: 2 + len(batch) for name in epilogue.outputs}


def operands(problem: Problem, epilogue: Epilogue, device: str) -> dict[str, Any]:
    """A torch tensor on *device* for each operand, random normal from a fixed seed."""
    import torch

    generator = torch.Generator(device).manual_seed(1)
    batch = (problem.batch,) if problem.batch > 1 else ()
    found = {}
    for name, kind in epilogue.operands.items():
        values = torch.randn(kind.shape(problem.m, problem.n, batch), generator=generator, device=device)
        found[name] = values.to(getattr(torch, kind.type_of(problem.out).torch))
    return found


def expected(epilogue: Epilogue, product: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every output, by name, that the epilogue makes of *product* [m, n] or [l, m, n] and the operands *given*: torch tensors,
    computed with NumPy in fp32."""
    if epilogue.function is None:
        return {"d": product}
    import torch

    arrays = {name: kind.whole(given[name].float().cpu().numpy()) for name, kind in epilogue.operands.items()}
    made = epilogue.values((product.float().cpu().numpy(),), arrays)
    values = made if isinstance(made, dict) else {"d": made}
    found = {name: kind.whole(values[name], product.shape) for name, kind in epilogue.whole_outputs.items()}
    return {name: torch.from_numpy(value).to(product.device) for name, value in found.items()}


def fingerprint(epilogue: Epilogue) -> str:
    """A short text that is another one for other operands, outputs or operations of the epilogue; "" for none. Numbers that
    the function encloses do not count: with others it takes as long."""
    if epilogue.plain:
        return ""
    function = epilogue.function
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    parts = [repr(type(function))] if code is None else [repr(part) for part in _operations(code)]
    parts += [f"{name}={kind!r}" for name, kind in (*epilogue.operands.items(), *epilogue.outputs.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _operations(code: CodeType) -> Iterator[Any]:
    """What a function does, but not where it is written."""
    yield code.co_code, code.co_names, code.co_varnames[: code.co_argcount]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _operations(constant)
        else:
            yield constant
