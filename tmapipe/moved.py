"""Old keywords: an error names the new spelling. docs/migration.md lists them all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from tmapipe.errors import InputError

__all__ = ["moved", "old_spelling"]

P = ParamSpec("P")
R = TypeVar("R")


def moved(spellings: Mapping[str, Callable[[Any], str]]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function so that old keywords raise `InputError`.

    Args:
        spellings: Keyword -> how its value is spelled now.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def checked(*arguments: P.args, **options: P.kwargs) -> R:
            for keyword, value in options.items():
                if keyword in spellings:
                    raise InputError(keyword, value, "has another spelling now", spellings[keyword](value))
            return function(*arguments, **options)

        return checked

    return decorate


def old_spelling(kind: Any, spellings: Mapping[str, Callable[[Any], str]]) -> None:
    """As `moved`, for the constructor of a class."""
    kind.__init__ = moved(spellings)(kind.__init__)
