"""Names of raw functions, by which those that distribute elements over lanes in the same way are told from others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["raw_name"]


def raw_name(function: Callable[..., None]) -> str:
    """A raw function's name, first line and what it encloses, which tell it from others."""
    function = inspect.unwrap(function)
    code, name = getattr(function, "__code__", None), getattr(function, "__name__", type(function).__name__)
    if code is None:
        return name
    cells = zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=True)
    enclosed = [f"{name}={_enclosed(cell.cell_contents)}" for name, cell in cells]
    enclosed += map(_enclosed, (getattr(function, "__defaults__", None) or ()))
    return f"{name} (line {code.co_firstlineno}{', '.join(['', *enclosed])})"


def _enclosed(value: Any) -> str:
    """What tells one value that a function encloses from another. Objects of one class are not told apart."""
    if isinstance(value, (int, float, str, bytes, type(None))):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_enclosed, value))})"
    return raw_name(value) if inspect.isfunction(value) else type(value).__name__
