"""The text of a deadlock: one line per group of warps that wait for the same thing, and who could signal it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tmapipe.errors import DeadlockError
from tmapipe.machine.state import WAITS, State

__all__ = ["deadlock"]


def deadlock(state: State, blocked: dict[int, Any], where: Callable[[int], str | None] | None = None) -> DeadlockError:
    """The error for a state in which nothing can move. blocked: agent -> the operation it cannot execute; where: agent ->
    its source line. The error has the attributes `blocked` and `state`."""
    layout = state.layout
    waits: dict[tuple, list[int]] = {}  # (CTA, role, what for, where) -> warps
    for agent in sorted(blocked):
        cta, warp = divmod(agent, layout.warps)
        line = getattr(blocked[agent], "where", None) or (where(agent) if where else None)
        key = (cta, layout.role(agent), WAITS[type(blocked[agent])].says(state, agent, blocked[agent]), line)
        waits.setdefault(key, []).append(warp)
    alike: dict[tuple, list[int]] = {}  # (warps, role, what for, where) -> CTAs
    for (cta, *rest), warps in waits.items():
        alike.setdefault((tuple(warps), *rest), []).append(cta)
    lines = [
        f"  {role} ({_numbers('warp', warps)}) of {_numbers('CTA', ctas)} waits for {text}"
        + (f", at {line}" if line else "")
        for (warps, role, text, line), ctas in alike.items()
    ]
    error: Any = DeadlockError("deadlock: nothing can move.\n" + "\n".join(lines))
    error.blocked, error.state = blocked, state
    return error


def _numbers(word: str, numbers: Sequence[int]) -> str:
    """E.g. ``warp 3``, ``warps 4-11`` or ``CTAs 0, 2``."""
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{word}s {numbers[0]}-{numbers[-1]}"
    return f"{word}s {', '.join(map(str, numbers))}"
