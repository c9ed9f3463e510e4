"""Which tiles of an open slot the threads of a role have touched: whether fences and arrivals of threads follow."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterable

from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried, Value

__all__ = ["Touched", "known_zero"]


def known_zero(mark: Value) -> bool:
    """Whether Python knows that *mark* is 0."""
    return isinstance(mark, int) and mark == 0


class Touched(Carried):
    """A mark for each tile of a slot. After a branch in which a tile was touched, only the kernel knows whether it was."""

    def __init__(self, isa: Isa, names: Iterable[str]):
        self.isa = isa
        self.marks = {name: isa.marks(0) for name in names}

    def add(self, name: str) -> None:
        """Threads touch the tile called *name*."""
        self.marks.setdefault(name, [0])[0] = 1

    def any(self, of: Collection[str] | None = None) -> Value:
        """1 if threads have touched one of these tiles, by default of all; else 0."""
        marks = [mark[0] for name, mark in self.marks.items() if of is None or name in of]
        return functools.reduce(operator.or_, marks, 0)
