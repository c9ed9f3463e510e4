"""The instruction set of a walker: operations of one warp, in which stages of barriers and slots are plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmapipe.machine.layout import Layout
from tmapipe.machine.warp import MachineIsa
from tmapipe.prove.symbols import Sym

__all__ = ["Open", "ProofIsa"]


class Open(Exception):
    """What the proof does not see through, in words."""


class ProofIsa(MachineIsa):
    """The instructions of one warp, whose operations go to *emit*. Coordinates are of no use here."""

    def __init__(self, layout: Layout, agent: int, emit: Callable[[Any], None]):
        super().__init__(layout, agent, 0, 1, {}, emit)

    def start(self, of: Any, at: Any) -> tuple[int, ...]:
        return (0,) * len(at)

    def bar(self, barrier: Any, stage: Any) -> int:
        return super().bar(barrier, _known(stage, f"the stage of {barrier.name}"))

    def slot(self, buffer: Any, stage: Any) -> int:
        return super().slot(buffer, _known(stage, f"the slot of {buffer.name}"))

    def barrier_id(self, barrier: Any, instance: Any) -> int:
        return super().barrier_id(barrier, _known(instance, f"the instance of {barrier.name}"))

    def plain(self, number: Any) -> Any:
        return 0 if isinstance(number, Sym) else number

    def part(self, of: Any, index: Any) -> Any:
        if isinstance(index, Sym):
            raise Open(f"part {index} of a slot of {of.name}")
        return super().part(of, index)


def _known(number: Any, what: str) -> int:
    if isinstance(number, Sym):
        raise Open(f"{what}, which is {number}")
    return number
