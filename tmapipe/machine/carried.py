"""What the loops of bodies carry from iteration to iteration: fragments and numbers that keep their form.

CuTe DSL fixes the types of what a loop carries where it begins, and forgets what a loop assigns first. So that the model
refuses what cannot be traced, it compares a body's names before its loops and after each iteration, and what is used later.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from tmapipe.errors import ScopeError
from tmapipe.isa.fragment import Fragment
from tmapipe.machine.alike import Own
from tmapipe.machine.varying import Condition, Varying

__all__ = ["Changes", "Iterations"]

FRAGMENT = "a fragment"


class Iterations:
    """The numbers of a loop, for which they are taken in the body itself.

    body: whether it is one, whose names keep their forms; carries: as `Changes` calls it.
    """

    def __init__(self, numbers: Any, body: bool, carries: Callable[[str, int, bool], None] | None):
        self.numbers, self.body, self.carries = numbers, body, carries

    def __iter__(self) -> Iterator[Any]:
        return _Watched(iter(self.numbers), sys._getframe(1), self.body, self.carries)

    def __len__(self) -> int:
        return len(self._known())

    def __getitem__(self, i: Any) -> Any:
        return self._known()[i]

    def _known(self) -> Any:
        if not hasattr(self.numbers, "__len__"):
            raise ScopeError(
                "a `range` of numbers that are known at run time stands after `in` of a `for` alone. Loop forwards, and "
                "compute other numbers from the loop's, e.g. count - 1 - i."
            )
        return self.numbers


class _Watched:
    """The numbers of a loop that runs. No generator: Python 3.12 runs those within the loop's own instruction, and then does
    not tell where the loop stands."""

    def __init__(self, numbers: Iterator[Any], frame: FrameType, body: bool, carries: Any):
        self.numbers, self.frame, self.body = numbers, frame, body
        self.before, self.known = _forms(frame.f_locals) if body else {}, set(frame.f_locals)
        self.changes = Changes(carries) if carries else None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        names, code, loop = self.frame.f_locals, self.frame.f_code, self.frame.f_lasti
        for name, form in _forms(names).items() if self.body else ():
            if self.before.get(name, form) != form:
                raise ScopeError(
                    f"`{name}` is {self.before[name]} where a loop begins and {form} after an iteration of it. What a loop "
                    "carries keeps its form: let it begin as what it becomes, e.g. k.full(stage, 0.0)."
                )
        if self.changes:
            self.changes.look(names, _used_outside(code, loop))
        try:
            return next(self.numbers)
        except StopIteration:
            for name in _used_after(code, loop).intersection(names) - self.known if self.body else ():
                raise ScopeError(
                    f"`{name}` is used after a loop that assigns it first. What is known after a loop was known before it: "
                    "let it begin as what it becomes, e.g. k.full(stage, 0.0)."
                ) from None
            raise


class Changes:
    """What the iterations of a loop change: plain numbers, and what containers have.

    tell: is told which names change, how many values they have had together, and whether they are used outside the loop.
    """

    def __init__(self, tell: Callable[[str, int, bool], None]):
        self.tell = tell
        self.before: dict[str, Any] = {}
        self.inside: set[tuple[Any, ...]] = set()  # the names that have changed so far, each with its value
        self.outside: set[tuple[Any, ...]] = set()  # the same of those that are used outside

    def look(self, names: Mapping[str, Any], outside: Container[str]) -> None:
        """Before an iteration, or after the last. outside: the names that are used outside the loop."""
        now = {name: _size(value) for name, value in names.items()}
        self.before = {**now, **self.before}
        changed = tuple([(name, size) for name, size in now.items() if self.before[name] != size])
        self._add(self.inside, changed)
        self._add(self.outside, tuple([each for each in changed if each[0] in outside]))

    def _add(self, seen: set[tuple[Any, ...]], changed: tuple[Any, ...]) -> None:
        if changed not in seen:
            seen.add(changed)
            self.tell(" and ".join(name for name, _ in changed), len(seen), seen is self.outside)


def _size(value: Any, depth: int = 3) -> Any:
    """A plain number or text; what a container, a function's closure, or an object of a class of the user has of these; of
    anything else, its type. Of an iterator, which may be anywhere, something else each time."""
    kind = type(value)
    if isinstance(value, (int, float, str, np.generic, Own)):
        return value
    if not depth or _of_library(kind):  # type: ignore[arg-type]
        return kind
    if isinstance(value, Iterator):
        return object()
    slots = (name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))
    things: Iterable[Any] = [getattr(value, name, None) for name in (*getattr(value, "__dict__", ()), *slots)]
    if isinstance(value, (list, tuple, set)):
        things = value
    elif isinstance(value, dict):
        things = value.values()
    elif kind is FunctionType:
        things = [cell.cell_contents for cell in value.__closure__ or () if cell != _NO_CELL]
    return kind, *(_size(each, depth - 1) for each in things)


_NO_CELL = CellType()  # of a name that has not been given a value yet


@functools.cache
def _of_library(kind: Any) -> bool:
    """Whether it is a class of this library, whose objects bodies do not change, or one that is derived from such."""
    return any(base.__module__.partition(".")[0] == "tmapipe" for base in kind.__mro__) or kind is ModuleType


@functools.cache
def _used_after(code: CodeType, loop: int) -> frozenset[str]:
    """Names that are loaded after a loop before they are stored again. loop: where the code takes its next iteration."""
    end = _end(code, loop)
    found: dict[str, bool] = {}
    for at, name, loads in _names(code):
        if at >= end:
            found.setdefault(name, loads)
    return frozenset(name for name, loaded in found.items() if loaded)


@functools.cache
def _used_outside(code: CodeType, loop: int) -> frozenset[str]:
    """Names that are loaded before a loop, which may be an iteration of one around it, or after it."""
    end = _end(code, loop)
    return frozenset(name for at, name, loads in _names(code) if loads and not loop <= at < end)


def _end(code: CodeType, loop: int) -> int:
    return next((each.argval for each in dis.get_instructions(code) if each.offset == loop), 0)


@functools.cache
def _names(code: CodeType) -> list[tuple[int, str, bool]]:
    """(where, name, whether it is loaded or stored) of all that a function does with its names."""
    return [
        (each.offset, name, each.opname.startswith("LOAD"))
        for each in dis.get_instructions(code)
        if each.opname.startswith(("LOAD_FAST", "STORE_FAST", "LOAD_DEREF", "STORE_DEREF"))
        for name in (each.argval if isinstance(each.argval, tuple) else (each.argval,))
    ]


def _forms(names: Mapping[str, Any]) -> dict[str, str]:
    """What a function's names are now, of those that are fragments, numbers or None."""
    found = {}
    for name, value in names.items():
        form = _form_of(type(value.here if type(value) is Own else value))  # type: ignore[arg-type]
        if form == FRAGMENT:
            form = f"a fragment of {value.kind} along {value.along} ({value.layout})"
        if form:
            found[name] = form
    return found


_FORMS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Fragment, FRAGMENT),
    ((bool, Condition), "a bool"),
    ((int, Varying), "an integer"),
    (float, "a float"),
    (type(None), "None"),
)


@functools.cache
def _form_of(kind: Any) -> str:
    """Of values of a type; nothing if it does not matter."""
    return next((form for types, form in _FORMS if issubclass(kind, types)), "")
