"""A table as bodies see it: integers in global memory, one at a time."""

from __future__ import annotations

from typing import Any, NoReturn

from tmapipe.errors import InputError, ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried, is_index
from tmapipe.protocol.registry import stands_for
from tmapipe.table import Table

__all__ = ["BoundTable"]


class BoundTable(Carried):
    """A `Table` in a body: ``k.rows.entry(i)``."""

    def __init__(self, isa: Isa, name: str):
        self.isa, self.name = isa, name

    def __getitem__(self, i: Any) -> NoReturn:
        raise ScopeError(
            f"k.{self.name}[...] of a table, whose entries come one at a time. Use k.{self.name}.entry(i)."
        )

    def __len__(self) -> int:
        raise ScopeError(f"len() of table k.{self.name}, whose length is that of a dimension. Use k.extent(dim).")

    def __bool__(self) -> bool:
        return True

    def entry(self, i: Any) -> Any:
        """Entry *i*, the same for all threads; -1 beyond the table's ends. As a row to load, that is outside, so zero.

        Raises:
            InputError: *i* is no whole number.
        """
        if not is_index(i):
            raise InputError(f"k.{self.name}.entry", i, "is the number of an entry", "pass a whole number of 32 bits")
        count = self.isa.extent(self.name, 0)
        inside = (i >= 0) & (i < count)
        found = self.isa.load_entry(self.name, self.isa.select(inside, i, 0), 0)
        return self.isa.select(inside, found, -1)


@stands_for(Table)
def _of_table(k: Any, name: str, table: Table) -> BoundTable:
    return BoundTable(k.isa, name)
