"""What calls of the instruction set take besides parts of the plan: slots, registers, values that backends define."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from tmapipe.plan.model import Buffer

__all__ = ["Block", "Carried", "Cells", "Condition", "SlotRef", "Value"]

Block = tuple[Any, ...]  #: a block of code: the loops and branches around a point of a body, from the outermost on
Value = Any  #: an index, a parity, a coordinate, a rank: ``int`` in the machine, ``Int32`` when traced
Condition = Any  #: ``bool`` in the machine, ``Boolean`` when traced


class SlotRef(NamedTuple):
    """One slot: `stage` counts from 0 to ``buffer.stages - 1``."""

    buffer: Buffer
    stage: Value


class Carried:
    """Base of objects that a traced body may use inside run-time loops and branches.

    CuTe DSL carries every local name on which a method is called through the loop, and asks the object for its values. The
    library's objects have none (mutable state lives in `Cells`), so they pass through.
    """

    __slots__ = ()

    def __extract_mlir_values__(self) -> list[Any]:
        return []

    def __new_from_mlir_values__(self, values: list[Any]) -> Carried:
        return self


class Cells(Protocol):
    """Mutable integers in registers. Indices are Python ints. Aliases, attributes and closures all see one state."""

    def __getitem__(self, i: int) -> Value: ...
    def __setitem__(self, i: int, value: Value) -> None: ...
