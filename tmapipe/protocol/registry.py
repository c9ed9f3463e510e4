"""What stands for a declared part in a role's body: found by the class of the part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["bound_by", "stands_for"]

_MAKERS: dict[type, Callable[..., Any]] = {}


def stands_for(part: type) -> Callable[[Any], Any]:
    """Registers a class, or a function that makes an object, for parts of this class and of those derived from it.

    It is called with a role's context (`k` in bodies), the part's name and the part, if that is no other role's. It may return
    None: then bodies have no name for it.

    What stands for a stage is what a slot has of it: for a stage with memory a class, called as `PartInSlot` is; for a
    `TokenStage`, the function gives what is called with an open slot.
    """

    def register(maker: Any) -> Any:
        _MAKERS[part] = maker
        return maker

    return register


def bound_by(part: object) -> Callable[..., Any]:
    """What makes the object that stands for *part*. Raises KeyError if nothing does."""
    return next(_MAKERS[kind] for kind in type(part).__mro__ if kind in _MAKERS)
