"""What searches of all interleavings ask of the machine's state: a value to compare it by, and what engines can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tmapipe.isa.ops import Flight
from tmapipe.model import State

__all__ = ["snapshot", "steps"]

_LEFT_OUT = ("layout", "split_loads", "started", "woken")


def snapshot(state: State) -> tuple[Any, ...]:
    """A hashable value, equal for equal states."""
    parts = [part for name, part in vars(state).items() if name not in _LEFT_OUT]
    return tuple([frozenset(part.items()) if type(part) is dict else tuple(part) for part in parts])


def steps(state: State) -> Iterator[tuple[Flight, Any]]:
    """Every step that an engine can take now, in a fixed order."""
    groups = range(len(state.queues))
    wgmmas = [Flight("wgmma", group, state.done[group], group // state.layout.warpgroups) for group in groups]
    for flight in (*state.loads, *state.stores, *wgmmas):
        step = state.step_of(flight)
        if step is not None:
            yield flight, step
