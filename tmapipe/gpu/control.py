"""Run-time control flow: MLIR's structured loops and branches, with the values that they carry.

Carried values are numbers of CuTe DSL (`Int32`, `Boolean`, `Float32`). What a block returns has the types that the values
before it have, or, of a branch, that the other block returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cutlass import Boolean, Int32
from cutlass._mlir import ir
from cutlass._mlir.dialects import scf

from tmapipe.plan.boxes import UNROLLED

__all__ = ["both", "choice", "constant", "each", "loop", "loop_while", "rolled", "when"]

Values = Sequence[Any]

TOGETHER = 8  # of a long row of copies, in a turn of the loop


def constant(value: Any) -> bool:
    """Whether a condition is known while emitting."""
    return isinstance(value, bool)


def both(a: Any, b: Any) -> Any:
    """Whether two conditions hold."""
    if constant(b):
        return a if b else False
    return Boolean(a) & Boolean(b)


def when(condition: Any, body: Callable[[], None]) -> None:
    """Runs *body* if *condition*, which may be known."""
    if constant(condition):
        if condition:
            body()
        return
    made = scf.IfOp(Boolean(condition).ir_value())
    with ir.InsertionPoint(made.then_block):
        body()
        scf.yield_([])


def choice(condition: Any, then: Callable[[], Values], other: Callable[[], Values]) -> list[Any]:
    """What *then* returns if *condition*, else what *other* does. Types are known once both are emitted."""
    made = scf.IfOp(Boolean(condition).ir_value(), has_else=True)
    found = []
    for block, emit in ((made.then_block, then), (made.else_block, other)):
        with ir.InsertionPoint(block):
            values = list(emit())
            scf.yield_(_registers(values))
        found.append(values)
    types = [type(value) for value in found[0]]
    if not types:
        return []
    whole = ir.Operation.create("scf.if", [value.type for value in _registers(found[0])], [made.operands[0]], regions=2)
    for block, region in zip((made.then_block, made.else_block), whole.regions, strict=True):
        block.append_to(region)
    made.erase()
    return _numbers(types, whole.results)


def loop(
    trips: Any, body: Callable[..., Values | None], carried: Values = (), annotation: ir.Attribute | None = None
) -> list[Any]:
    """Runs ``body(i, *values)`` for i from 0 to *trips* - 1, which returns the values of the next iteration.

    Returns:
        The values after the last one.
    """
    types = [type(value) for value in carried]
    bounds = (Int32(bound).ir_value() for bound in (0, trips, 1))
    made = scf.ForOp(*bounds, _registers(carried))
    if annotation is not None:
        made.attributes["loop_annotation"] = annotation
    with ir.InsertionPoint(made.body):
        values = body(Int32(made.induction_variable), *_numbers(types, made.inner_iter_args))
        scf.yield_(_registers(values or ()))
    return _numbers(types, made.results)


def loop_while(carried: Values, condition: Callable[..., Any], body: Callable[..., Values]) -> list[Any]:
    """Runs ``body(*values)``, which returns the next values, as long as ``condition(*values)``.

    Returns:
        The values of which the condition does not hold.
    """
    types = [type(value) for value in carried]
    before = _registers(carried)
    made = scf.WhileOp([value.type for value in before], before)
    for region in (made.before, made.after):
        region.blocks.append(*(value.type for value in before))
    first, second = made.before.blocks[0], made.after.blocks[0]
    with ir.InsertionPoint(first):
        holds = condition(*_numbers(types, first.arguments))
        scf.ConditionOp(Boolean(holds).ir_value(), list(first.arguments))
    with ir.InsertionPoint(second):
        scf.yield_(_registers(body(*_numbers(types, second.arguments))))
    return _numbers(types, made.results)


def rolled(trips: Any, body: Callable[[Any], None]) -> None:
    """As `loop`, which LLVM does not unroll."""
    loop(trips, body, annotation=no_unrolling())


def no_unrolling() -> ir.Attribute:
    """What keeps LLVM from unrolling a loop."""
    return ir.Attribute.parse("#llvm.loop_annotation<unroll = <disable = true, count = 1 : i32>>")


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


def _registers(values: Values) -> list[ir.Value]:
    return [value.ir_value() for value in values]


def _numbers(types: Sequence[type], values: Sequence[ir.Value]) -> list[Any]:
    return [of(value) for of, value in zip(types, values, strict=True)]
