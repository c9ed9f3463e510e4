"""A source line as a report shows it, with carets below what is wrong: what the line calls on the part in question."""

from __future__ import annotations

import ast
import functools
import linecache
import os
from collections.abc import Sequence

__all__ = ["excerpt", "marked_in"]

_ABOVE_LIBRARY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def excerpt(where: str, words: Sequence[str]) -> list[str]:
    """The line at *where* ("file:line") and the carets below it; nothing if its file cannot be read."""
    marked = marked_in(where, words)
    if marked is None:
        return []
    line, first, last = marked
    number = f"{where.rpartition(':')[2]:>6}"
    before = "".join(character if character == "\t" else " " for character in line[:first])
    return [f"{number} | {line}", f"{' ' * len(number)} | {before}{'^' * (last - first)}"]


def marked_in(where: str, words: Sequence[str]) -> tuple[str, int, int] | None:
    """(the line, the first column to mark, the one after the last), counted from 0; None if its file cannot be read.

    Marked is the outermost call that names one of *words*, or else the first call; without calls, the name of the function
    that the line defines, or the whole statement.
    """
    path, _, number = where.rpartition(":")
    lines = linecache.getlines(path) or linecache.getlines(os.path.join(_ABOVE_LIBRARY, path))
    if not 0 < int(number) <= len(lines):
        return None
    line = lines[int(number) - 1].rstrip()
    calls = [(first, last, name) for at, first, last, name in _parts("".join(lines)) if at == int(number)]
    named = [each for each in calls if set(each[2].split(".")) & set(words)]
    for first, last, _ in (*named, *calls):
        return line, len(line.encode()[:first].decode()), len(line.encode()[: last or None].decode())
    first = len(line) - len(line.lstrip())
    return line, first, max(len(line), first + 1)


@functools.lru_cache(maxsize=8)
def _parts(text: str) -> list[tuple[int, int, int, str]]:
    """(line, first byte, byte after the last or 0 if that is on another line, names) of calls and definitions, outer ones
    first."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            last = node.end_col_offset if node.end_lineno == node.lineno else 0
            found.append((node.lineno, node.col_offset, last or 0, ast.unparse(node.func)))
        elif isinstance(node, ast.FunctionDef):
            first = node.col_offset + len("def ")
            found.append((node.lineno, first, first + len(node.name.encode()), ""))
    return found
