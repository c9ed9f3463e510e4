"""What the loops of bodies carry from turn to turn: fragments and numbers that keep their form.

CuTe DSL fixes the types of what a loop carries where it begins, and forgets what a loop assigns first. So that the model
refuses what cannot be traced, it compares a body's names before its loops and after each turn, and what is used later.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

from tmapipe.errors import ScopeError
from tmapipe.isa.fragment import Fragment
from tmapipe.machine.varying import Condition, Varying

__all__ = ["Changes", "Turns"]

FRAGMENT = "a fragment"


class Turns:
    """The numbers of a loop, for which they are taken in the body itself.

    body: whether it is one, whose names keep their forms; grows: is told the names of what the loop changes, and how many
    values these have had.
    """

    def __init__(self, numbers: Any, body: bool, grows: Callable[[str, int], None] | None):
        self.numbers, self.body, self.grows = numbers, body, grows

    def __iter__(self) -> Iterator[Any]:
        return _Turning(iter(self.numbers), sys._getframe(1), self.body, self.grows)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: Any) -> Any:
        return self.numbers[i]


class _Turning:
    def __init__(self, numbers: Iterator[Any], frame: FrameType, body: bool, grows: Callable[[str, int], None] | None):
        self.numbers, self.body = numbers, body
        self.before, self.names = _forms(frame) if body else {}, set(frame.f_locals)
        self.changes = Changes(grows) if grows else None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        frame = sys._getframe(1)
        for name, form in _forms(frame).items() if self.body else ():
            before = self.before.get(name, form)
            if before != form:
                raise ScopeError(
                    f"`{name}` is {before} where a loop begins and {form} after a turn of it. What a loop carries keeps its "
                    "form: let it begin as what it becomes, e.g. k.full(stage, 0.0)."
                )
        if self.changes:
            self.changes.look(frame.f_locals)
        try:
            return next(self.numbers)
        except StopIteration:
            if not self.body:
                raise
            for name in _used_after(frame.f_code, frame.f_lasti).intersection(frame.f_locals) - self.names:
                raise ScopeError(
                    f"`{name}` is used after a loop that assigns it first. What is known after a loop was known before it: "
                    "let it begin as what it becomes, e.g. k.full(stage, 0.0)."
                ) from None
            raise


class Changes:
    """What the turns of a loop change: plain numbers, and what containers have. tell: which name, how many values."""

    def __init__(self, tell: Callable[[str, int], None]):
        self.tell = tell
        self.seen: dict[str, set[Any]] = {}

    def look(self, names: Mapping[str, Any]) -> None:
        """Before a turn, or after the last."""
        for name, value in names.items():
            size = _size(value)
            if size is not None and size not in (seen := self.seen.setdefault(name, set())):
                seen.add(size)
                self.tell(name, len(seen))


def _size(value: Any) -> Any:
    """A plain number, or how many things and which numbers a container has; None for anything else."""
    if type(value) in (int, float):
        return value
    if not isinstance(value, (list, tuple, dict, set, str)):
        return None
    things = value.values() if isinstance(value, dict) else value
    return len(value), tuple(each for each in things if type(each) in (int, float))


@functools.cache
def _used_after(code: CodeType, loop: int) -> frozenset[str]:
    """Names that are loaded after a loop before they are stored again. loop: where the code takes its next turn."""
    instructions = list(dis.get_instructions(code))
    end = next(each.argval for each in instructions if each.offset == loop)
    found: dict[str, bool] = {}
    for each in instructions:
        if each.offset >= end and each.opname.startswith(("LOAD_FAST", "STORE_FAST", "LOAD_DEREF", "STORE_DEREF")):
            for name in each.argval if isinstance(each.argval, tuple) else (each.argval,):
                found.setdefault(name, each.opname.startswith("LOAD"))
    return frozenset(name for name, loaded in found.items() if loaded)


def _forms(frame: FrameType) -> dict[str, str]:
    """What a function's names are now, of those that are fragments, numbers or None."""
    found = {}
    for name, value in frame.f_locals.items():
        form = _form_of(type(value))  # type: ignore[arg-type]
        if form == FRAGMENT:
            form = f"a fragment of {value.kind} along {value.along} ({value.layout})"
        if form:
            found[name] = form
    return found


@functools.cache
def _form_of(kind: Any) -> str:
    """Of values of a type; nothing if it does not matter."""
    forms = (Fragment, FRAGMENT), (bool, "a bool"), (Condition, "a bool"), (int, "an integer"), (Varying, "an integer")
    others = (float, "a float"), (type(None), "None")
    return next((form for of, form in (*forms, *others) if issubclass(kind, of)), "")
