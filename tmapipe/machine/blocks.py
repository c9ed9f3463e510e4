"""Blocks of code in the model: the loops and branches of the source around the point that a body is at.

When traced, a body's loops and branches are blocks of the program (those of functions that it calls are not). Here they are
found in its source, so that what is refused when traced is refused on the model, too.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
from types import CodeType, FrameType

__all__ = ["block"]


def block(body: CodeType | None) -> tuple[tuple[int, str], ...]:
    """The loops and branches of *body* around the point that it is at, from the outermost on: (line of the statement, arm).

    There are none if the caller has not been called by it, perhaps indirectly.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not body:
        frame = frame.f_back
    return () if frame is None else _arms(frame.f_code).get(frame.f_lineno, ())


@functools.cache
def _arms(code: CodeType) -> dict[int, tuple[tuple[int, str], ...]]:
    """Line -> the arms of loops and branches that it lies in, from the outermost on. Without source: none."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return {}
    found: dict[int, tuple[tuple[int, str], ...]] = {}

    def visit(node: ast.AST, arms: tuple[tuple[int, str], ...]) -> None:
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST):
                    continue
                inside = arms
                if isinstance(node, (ast.For, ast.While, ast.If)) and name in ("body", "orelse"):
                    inside = (*arms, (first + node.lineno - 1, name))
                if isinstance(child, ast.stmt):
                    for line in range(child.lineno, (child.end_lineno or child.lineno) + 1):
                        found[first + line - 1] = inside
                visit(child, inside)

    visit(tree, ())
    return found
