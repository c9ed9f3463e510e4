"""What a number that varies is, in words."""

from __future__ import annotations

from typing import Any

__all__ = ["text_of"]

Key = tuple[Any, ...]


def text_of(terms: tuple[tuple[Key, int], ...], const: int = 0) -> str:
    """E.g. ``tile.m + 1``."""
    parts = [f"{_factor(factor)}{_text(key)}" for key, factor in sorted(terms, key=lambda term: term[1] < 0)]
    if const or not parts:
        parts.append(str(const))
    return " + ".join(parts).replace("+ -", "- ")


def _factor(factor: int) -> str:
    return "" if factor == 1 else "-" if factor == -1 else f"{factor} "


def _text(key: Key) -> str:
    name, *rest = key
    if name == "quotient" and isinstance(rest[1], int):
        (terms, const), by = rest
        if const == by - 1:
            return f"ceil({text_of(terms)} / {by})"
        return f"floor(({text_of(terms, const)}) / {by})" if const else f"floor({text_of(terms)} / {by})"
    if name == "remainder" and isinstance(rest[1], int):
        return f"({text_of(*rest[0])}) % {rest[1]}"
    if name == "sum":
        return text_of(rest[0]) + (f", {rest[1]} loops deep" if rest[1] else "")
    if name in ("min", "max"):
        return f"{name}({', '.join(text_of(*form) for form in rest[0])})"
    if name == "product":
        return " * ".join(f"({text_of(*form)})" for form in rest)
    if name == "entry":
        return f"{rest[0]}[{text_of(*rest[1]) if isinstance(rest[1], tuple) else rest[1]}]"
    if name == "choice":
        entry = _entry(*rest[1:])
        if entry:
            return entry
        return "a choice between " + " and ".join(text_of(*f) if isinstance(f, tuple) else str(f) for f in rest[1:])
    if name == "index":
        return "the index of a loop"
    if name == "extent":
        return f"the extent of {rest[0]}"
    return str(rest[0]) if name == "symbol" else f"a {name} of numbers that vary"


def _entry(inside: Any, outside: Any) -> str:
    """The call, if a choice is that between an entry of a table and -1, which `entry` makes beyond its ends."""
    match inside, outside:
        case (((("entry", table, ((((("choice", _, (terms, const), 0), 1),), 0))), 1),), 0), -1:
            return f"{table}.entry({text_of(terms, const)})"
    return ""
