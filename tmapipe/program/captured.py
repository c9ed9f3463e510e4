"""Python functions that readers of a program call, such as raw code, and the numbers of the kernel that they have captured."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from tmapipe.program.expressions import symbolic
from tmapipe.protocol.tile import Tile

__all__ = ["Captured", "captured"]


def captured(function: Any) -> Any:
    """*function*, or a `Captured` if it has captured what only the kernel knows."""
    return Captured(function) if _open(function, ()) else function


class Captured:
    """A function whose closure, defaults, or arguments of a `functools.partial` have expressions."""

    __slots__ = ("function",)

    def __init__(self, function: Any):
        self.function = function

    def bound(self, value: Callable[[Any], Any]) -> Any:
        """The function with the values that *value* gives for what it has captured."""

        def given(x: Any) -> Any:
            if isinstance(x, Tile):
                return tile_with(x, value)
            if type(x) in (tuple, list):
                return type(x)(map(given, x))
            return _bound(x, given) if callable(x) and _open(x, ()) else value(x)

        return _bound(self.function, given)


def tile_with(tile: Tile, value: Callable[[Any], Any]) -> Tile:
    """The tile with numbers in the place of expressions."""
    return Tile(value(tile._coordinates), value(tile._bounds), tile._moved)


def _bound(function: Any, value: Callable[[Any], Any]) -> Any:
    if isinstance(function, functools.partial):
        named = {name: value(x) for name, x in function.keywords.items()}
        return functools.partial(_bound(function.func, value), *map(value, function.args), **named)
    if not isinstance(function, types.FunctionType):
        return function
    cells = tuple(types.CellType(value(cell.cell_contents)) for cell in function.__closure__ or ())
    defaults = tuple(map(value, function.__defaults__ or ()))
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells)
    made.__kwdefaults__ = {name: value(x) for name, x in (function.__kwdefaults__ or {}).items()}
    return made


def _values(function: Any) -> list[Any]:
    if isinstance(function, functools.partial):
        return [*function.args, *function.keywords.values(), *_values(function.func)]
    if not isinstance(function, types.FunctionType):
        return []
    cells, named = function.__closure__ or (), function.__kwdefaults__ or {}
    return [*(cell.cell_contents for cell in cells), *(function.__defaults__ or ()), *named.values()]


def _open(value: Any, around: tuple[Any, ...]) -> bool:
    """Whether there is in it what only the kernel knows. around: functions that it has been found in."""
    if isinstance(value, Tile):
        return any(map(symbolic, value._coordinates.values()))
    if isinstance(value, (functools.partial, types.FunctionType)):
        inside = () if any(value is each for each in around) else _values(value)
        return any(_open(each, (*around, value)) for each in inside)
    return any(_open(each, around) for each in value) if isinstance(value, (tuple, list)) else symbolic(value)
