"""What calls of the instruction set take besides parts of the plan: slots, registers, values that backends define."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from tmapipe.errors import MissingPartError
from tmapipe.plan.model import Buffer

__all__ = ["Block", "Carried", "Cells", "Condition", "SlotRef", "Value", "is_index"]

Block = tuple[Any, ...]  #: a block of code: the loops and branches around a point of a body, from the outermost on
Value = Any  #: an index, a parity, a coordinate, a rank: ``int`` in the machine, ``Int32`` when traced
Condition = Any  #: ``bool`` in the machine, ``Boolean`` when traced


class SlotRef(NamedTuple):
    """One slot: `stage` counts from 0 to ``buffer.stages - 1``."""

    buffer: Buffer
    stage: Value


class Carried:
    """Base of objects that a traced body may use inside run-time loops and branches.

    A trace joins them where paths meet: `_carries` names the attributes that may be other values on other paths, such as the
    index of a slot; `_apart` those that `_joined` sees to. `_facts` says of attributes that change while a body is traced
    how they go on where paths meet, of objects that `Isa.follow` was told of:

        flag    whether something has happened: on some paths, maybe, and then a condition that only the kernel knows
        flags   likewise, of several things, by name
        union   a set; what a loop adds is in it from its beginning on
        noted   a fact that holds after a path on which it came to hold
        both    a fact that holds if it does on both paths
        same    equal on both paths; else it can't be asked for
        none    likewise, but None if it differs
        always  equal on both paths, else an error
    """

    __slots__ = ()
    _carries: ClassVar[tuple[str, ...]] = ()
    _apart: ClassVar[tuple[str, ...]] = ()
    _facts: ClassVar[dict[str, str]] = {}

    def _joined(self, versions: tuple[Any, ...]) -> None:
        """Called of a copy of the first of *versions*, objects of one form that are one from now on."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise MissingPartError(f"`.{name}` of what has only {_parts_of(self)}. Use one of those.")


def _parts_of(part: Carried) -> str:
    return ", ".join(name for name in dir(type(part)) if not name.startswith("_"))


class Cells(Protocol):
    """Mutable integers in registers. Indices are Python ints. Aliases, attributes and closures all see one state."""

    def __getitem__(self, i: int) -> Value: ...
    def __setitem__(self, i: int, value: Value) -> None: ...


_NO_INDEX = (bool, float, complex, str, bytes, list, tuple, type, np.ndarray, np.generic, Carried)


def is_index(value: Any, count: int | None = None) -> bool:
    """Whether *value* is an integer of 32 bits, with *count* from 0 to that less one, or one that only the kernel knows."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return bool(-(2**31) <= value < 2**31) if count is None else bool(0 <= value < count)
    return hasattr(value, "__mul__") and not isinstance(value, _NO_INDEX)
