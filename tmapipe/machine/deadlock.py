"""What a deadlock report says: one line for each group of warps that wait for the same thing, and who could signal it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmapipe.errors import DeadlockError
from tmapipe.machine.ops import BarWait, BulkWait, ClusterWait, MbarWait, SetMaxNreg, WgmmaWait
from tmapipe.machine.state import State

__all__ = ["deadlock", "describe_wait"]


def deadlock(state: State, blocked: dict[int, Any], where: Callable[[int], str | None] | None = None) -> DeadlockError:
    """The error for a state in which nothing can move. blocked: agent -> the operation it cannot execute; where: agent ->
    its source line. The error has the attributes `blocked` and `state`."""
    layout = state.layout
    groups: dict[tuple, list[int]] = {}
    for agent in sorted(blocked):
        cta = agent // layout.warps
        groups.setdefault((cta, layout.role(agent), describe_wait(state, agent, blocked[agent])), []).append(agent)
    lines = []
    for (cta, role, text), agents in groups.items():
        warps = _numbers([agent % layout.warps for agent in agents])
        line = getattr(blocked[agents[0]], "where", None) or (where(agents[0]) if where else None)
        lines.append(f"  {role} ({warps}) of CTA {cta} waits for {text}" + (f", at {line}" if line else ""))
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
        index = 16 * cta + op.id
        return f"{layout.named_barrier_name(op.id)}: {state.bar_arrived[index]} of {state.bar_threads[index]} threads have arrived"
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
        facts.append(f"{tx} bytes armed and not delivered" if tx > 0 else f"{-tx} bytes delivered and not armed")
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


def _numbers(warps: list[int]) -> str:
    """E.g. ``warp 3`` or ``warps 4-11``."""
    if len(warps) == 1:
        return f"warp {warps[0]}"
    if warps == list(range(warps[0], warps[-1] + 1)):
        return f"warps {warps[0]}-{warps[-1]}"
    return "warps " + ", ".join(map(str, warps))
