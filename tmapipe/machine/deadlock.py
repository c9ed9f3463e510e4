"""What a deadlock report says: one line for each group of warps that wait for the same thing, and who could signal it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tmapipe.errors import DeadlockError
from tmapipe.isa.ops import BarWait, BulkWait, ClusterWait, MbarWait, SetMaxNreg, WgmmaWait
from tmapipe.machine.state import State

__all__ = ["deadlock", "describe_wait"]


def deadlock(state: State, blocked: dict[int, Any], where: Callable[[int], str | None] | None = None) -> DeadlockError:
    """The error for a state in which nothing can move. blocked: agent -> the operation it cannot execute; where: agent ->
    its source line. The error has the attributes `blocked` and `state`."""
    layout = state.layout
    waits: dict[tuple, list[int]] = {}  # (CTA, role, what for, where) -> warps
    for agent in sorted(blocked):
        cta, warp = divmod(agent, layout.warps)
        line = getattr(blocked[agent], "where", None) or (where(agent) if where else None)
        key = (cta, layout.role(agent), describe_wait(state, agent, blocked[agent]), line)
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


def describe_wait(state: State, agent: int, op: Any) -> str:
    """What a blocked operation waits for, with the numbers that show why it does not come."""
    layout = state.layout
    cta = agent // layout.warps
    if isinstance(op, MbarWait):
        return _mbarrier(state, cta, op)
    if isinstance(op, BarWait):
        arrived, threads = state.bar_arrived[16 * cta + op.id], state.bar_threads[16 * cta + op.id]
        return f"{layout.named_barrier_name(op.id)}: {arrived} of {threads} threads have arrived"
    if isinstance(op, ClusterWait):
        return f"the cluster barrier: {state.cluster[0]} of {sum(state.live)} warps have arrived"
    if isinstance(op, SetMaxNreg):
        wanted = (op.registers - state.registers[agent]) * 32
        return (
            f"{wanted} more registers a warp (setmaxnreg {op.registers}); the CTA's pool has {state.free_registers[cta]} free "
            "(a warpgroup's come free when all 4 of its warps have decreased)"
        )
    if isinstance(op, WgmmaWait):
        return f"wgmma groups (all but {op.pending}), which other warps of its warpgroup have not issued"
    assert isinstance(op, BulkWait)
    return f"bulk groups (all but {op.pending})"


def _mbarrier(state: State, cta: int, op: MbarWait) -> str:
    layout = state.layout
    bar = cta * layout.nbars + op.bar
    phase, count, pending, tx = state.phase[bar], state.count[bar], state.pending[bar], state.tx[bar]
    facts = [f"{count - pending} of {count} arrivals"]
    if tx:
        facts.append(
            f"{tx} bytes armed, not delivered and not on their way"
            if tx > 0
            else f"{-tx} bytes delivered and not armed"
        )
    text = f"{layout.bar_name(op.bar)} parity {op.parity}: it is in phase {phase} with {', '.join(facts)}"
    signallers = layout.signallers(op.bar)
    if signallers:
        text += f"; signalled by {', '.join(_status(state, role) for role in signallers)}"
    return text


def _status(state: State, role: str) -> str:
    """A role, with whether its warps have returned."""
    layout = state.layout
    agents = [agent for agent in range(layout.agents) if layout.role(agent) == role]
    returned = sum(state.returned[agent] for agent in agents)
    if not returned:
        return f"{role} (blocked)"
    return f"{role} ({'all' if returned == len(agents) else f'{returned} of {len(agents)}'} warps have returned)"


def _numbers(word: str, numbers: Sequence[int]) -> str:
    """E.g. ``warp 3``, ``warps 4-11`` or ``CTAs 0, 2``."""
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{word}s {numbers[0]}-{numbers[-1]}"
    return f"{word}s {', '.join(map(str, numbers))}"
