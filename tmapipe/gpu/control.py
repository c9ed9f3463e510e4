"""Run-time control flow for the library's own code.

CuTe DSL's preprocessor rewrites only functions decorated with ``jit``. So each construct is a small traced function.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean
from cutlass._mlir import ir
from cutlass.base_dsl.ast_helpers import executor

from tmapipe.machine.locate import line_of_errors
from tmapipe.plan.boxes import UNROLLED

__all__ = ["block", "both", "call", "each", "known_branches", "loop", "loop_while", "when"]

TOGETHER = 8  # of a long row of copies, in a turn of the loop


@cute.jit
def when(condition: Any, body: Any) -> None:
    if condition:
        body()


@cute.jit
def loop(trips: Any, body: Any) -> None:
    for i in range(trips):
        body(i)


@cute.jit
def loop_while(state: Any, body: Any) -> None:
    while state[0] != 0:
        body()


@cute.jit
def rolled(trips: Any, body: Any) -> None:
    for i in cutlass.range(trips, unroll=1):
        body(i)


def each(count: int, body: Callable[[Any], None]) -> None:
    """Calls *body* with 0 to *count* - 1: one after another if they are few, else a few at a time in a loop at run time: one
    thread issues copies, and a loop for each takes it longer than the engine."""
    whole = count // TOGETHER if count > UNROLLED else 0

    def several(i: Any) -> None:
        for j in range(TOGETHER):
            body(i * TOGETHER + j)

    if whole:
        rolled(whole, several)
    for i in range(whole * TOGETHER, count):
        body(i)


@contextlib.contextmanager
def known_branches() -> Iterator[None]:
    """While bodies are traced: of an `if` whose condition Python knows, such as an option of the schedule, the branch that is
    not taken is not traced. CuTe DSL 4.8.1 traces both.
    """
    dynamic: Any = executor._if_dynamic

    def branch(condition: Any, then: Any, other: Any, names: list[Any], *more: Any) -> Any:
        if executor._is_dynamic_expression(condition):
            return dynamic(condition, then, other, names, *more)
        taken = then if condition else other
        if taken is None:
            return names[0] if len(names) == 1 else names
        found = taken(*names)
        return found[0] if len(names) == 1 and not _is_elif(taken) else found

    branch.__code__ = branch.__code__.replace(co_filename="<if>")  # such frames are not the line that an error names
    executor._if_dynamic = branch
    try:
        yield
    finally:
        executor._if_dynamic = dynamic


def _is_elif(branch: Any) -> bool:
    """Whether CuTe DSL has made it of an `elif`, whose value is that of a single name already."""
    return any(getattr(each, "co_name", "").startswith("elif_region") for each in branch.__code__.co_consts)


def block() -> tuple[Any, ...]:
    """The blocks of MLIR operations around the point that is traced, from the outermost on."""
    found: list[Any] = []
    here = ir.InsertionPoint.current.block
    while here is not None:
        found.append(here)
        owner = here.owner
        operation = getattr(owner, "operation", owner)
        here = None if operation.parent is None else operation.block
    return tuple(reversed(found))


_traced: dict[Callable[..., None], Callable[..., None]] = {}


def call(body: Callable[..., None], *arguments: Any) -> None:
    """Traces *body*.

    Tracing rewrites the code of a function in place. So CuTe DSL gets a copy, and *body* itself stays plain Python for the
    machine model.
    """
    if body not in _traced:
        copy = types.FunctionType(body.__code__, body.__globals__, body.__name__, body.__defaults__, body.__closure__)
        copy.__kwdefaults__ = body.__kwdefaults__
        copy.__qualname__, copy.__module__, copy.__doc__ = body.__qualname__, body.__module__, body.__doc__
        _traced[body] = cute.jit(copy)
    with line_of_errors():
        _traced[body](*arguments)


def constant(value: Any) -> bool:
    """Whether a condition is known while tracing."""
    return isinstance(value, bool)


def both(a: Any, b: Any) -> Any:
    """Whether two conditions hold."""
    if constant(b):
        return a if b else False
    return Boolean(a) & Boolean(b)
