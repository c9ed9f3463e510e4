"""A table as bodies see it: integers in global memory, one at a time."""

from __future__ import annotations

import functools
import operator
from typing import Any, NoReturn

from tmapipe.errors import InputError, ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried, is_index
from tmapipe.protocol.registry import stands_for
from tmapipe.table import Table

__all__ = ["BoundTable"]


@stands_for(Table)
class BoundTable(Carried):
    """A `Table` in a body: ``k.rows.entry(i)``."""

    def __init__(self, k: Any, name: str, table: Table):
        self.isa: Isa = k.isa
        self.name = name

    def __getitem__(self, i: Any) -> NoReturn:
        fix = f"Use k.{self.name}.entry(i)."
        raise ScopeError(f"k.{self.name}[...] of a table, whose entries come one at a time. {fix}")

    def __len__(self) -> int:
        raise ScopeError(f"len() of table k.{self.name}, whose length is that of a dimension. Use k.extent(dim).")

    def __bool__(self) -> bool:
        return True

    def entry(self, *at: Any) -> Any:
        """The entry at these indices, one a dimension, the same for all threads; -1 beyond the table's ends. As a row to load,
        that is outside, so zero.

        Raises:
            InputError: They are not as many whole numbers as the table has dimensions.
        """
        dims = self.isa.plan.tables[self.name]
        if len(at) != len(dims) or not all(map(is_index, at)):
            rule, given = f"is the number of an entry along each of {', '.join(dims)}", at[0] if len(at) == 1 else at
            raise InputError(f"k.{self.name}.entry", given, rule, "pass whole numbers of 32 bits")
        counts = [self.isa.extent(self.name, dim) for dim in range(len(dims))]
        inside = functools.reduce(operator.and_, [(i >= 0) & (i < count) for i, count in zip(at, counts, strict=True)])
        place = at[0] if len(at) == 1 else at[0] * counts[1] + at[1]
        found = self.isa.load_entry(self.name, self.isa.select(inside, place, 0), 0)
        return self.isa.select(inside, found, -1)
