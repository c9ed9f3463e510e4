"""Arguments of a program's instructions where a reader carries them out: with numbers in the place of expressions."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tmapipe.isa.exchange import ClusterExchange
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.values import SlotRef
from tmapipe.program.expressions import Expr
from tmapipe.protocol.raw import RawRole
from tmapipe.protocol.tile import Tile

__all__ = ["argument"]


def argument(x: Any, number: Callable[[Any], Any], isa: Any) -> Any:
    """What the argument *x* of an instruction is.

    Raw functions take numbers of the kernel from what they enclose: copies of them enclose the reader's numbers.

    Args:
        number: What an expression is.
        isa: The reader's instruction set.
    """
    again = functools.partial(argument, number=number, isa=isa)
    if isinstance(x, Expr):
        return number(x)
    if isinstance(x, SlotRef):
        return SlotRef(x.buffer, again(x.stage))
    if type(x) in (tuple, list):
        found = list(map(again, x))
        return x if all(map(operator.is_, x, found)) else type(x)(found)
    if type(x) is dict:
        values = list(map(again, x.values()))
        return x if all(map(operator.is_, x.values(), values)) else dict(zip(x, values, strict=True))
    if isinstance(x, Fragment):
        return Fragment(isa.fragments, x.layout, x.along, x.kind, again(x._data))
    if isinstance(x, ClusterExchange):
        return SimpleNamespace(rank=again(x.rank), mask=again(x.mask), peers=x.peers, full=x.full)
    if isinstance(x, RawRole):
        return RawRole(isa, x.role)
    if isinstance(x, Tile):
        return x.changed(lambda _, value: again(value))
    if isinstance(x, functools.partial):
        return functools.partial(again(x.func), *map(again, x.args), **again(x.keywords))
    if isinstance(x, types.FunctionType):
        return _function(x, again)
    return x


def _function(function: types.FunctionType, again: Callable[[Any], Any]) -> types.FunctionType:
    """*function*, or a copy in which what it encloses, and its defaults, are the reader's."""
    enclosed = [cell.cell_contents for cell in function.__closure__ or ()]
    before = [*enclosed, function.__defaults__, function.__kwdefaults__]
    after = list(map(again, before))
    if all(map(operator.is_, before, after)):
        return function
    cells = tuple(map(types.CellType, after[:-2]))
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, after[-2], cells)
    made.__kwdefaults__ = after[-1]
    made.__dict__.update({name: again(value) for name, value in vars(function).items()})
    return made
