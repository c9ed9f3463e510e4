"""What the rules of the linear check have in common: clocks, a log, and that what they hold of a run can be copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from tmapipe.check.clocks import Clocks, Known
from tmapipe.check.log import FindingLog
from tmapipe.machine.state import State

__all__ = ["Key", "Rules", "copied"]

Key = tuple[Any, ...]  # the name of a fact


class Rules:
    """Some rules, and what they hold of a run so far. kept: the names of what changes along a run."""

    kept: ClassVar[tuple[str, ...]]

    def __init__(self, clocks: Clocks, log: FindingLog):
        self.clocks, self.log, self.layout = clocks, log, log.layout

    def take(self, other: Rules) -> None:
        """Copies what *other* holds, where nothing is in flight, to go on independently."""
        for name in self.kept:
            setattr(self, name, copied(getattr(other, name)))

    def facts(self, state: State) -> Iterator[tuple[Key, Known]]:
        """What later operations are checked against, each fact with what tells it. Nothing is in flight."""
        raise NotImplementedError


def copied(value: Any) -> Any:
    """A copy of containers, clocks and what else can be copied, in each other."""
    if isinstance(value, (int, tuple)):
        return value
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, list):
        return [copied(each) for each in value]
    return value.copy() if hasattr(value, "copy") else value
