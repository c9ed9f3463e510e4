"""mbarriers: arrival count, pending arrivals, pending bytes (tx) and phase, as PTX describes them.

A phase completes when no arrival and no byte is pending; the next one starts with `count` arrivals pending. Bytes may land
before they are armed (tx goes below zero) as long as an arrival is pending; if the last arrival finds tx below zero, the
phase could have completed before the bytes were armed, so that is an error.
"""

from __future__ import annotations

from typing import Any

from tmapipe.isa.ops import (
    Counted,
    Flight,
    LoadComplete,
    MbarArrive,
    MbarArriveCluster,
    MbarArriveTx,
    MbarExpectTx,
    MbarInit,
    MbarWait,
)
from tmapipe.machine.hazard import check_live, hazard
from tmapipe.machine.state import State, applies, waits

MAX_COUNT = (1 << 20) - 1  # arrivals and bytes of one phase (PTX ISA, mbarrier)


def _index(state: State, agent: int, op: Any) -> int:
    return state.layout.flat_bar(agent, op.bar)


def _says(state: State, agent: int, op: MbarWait) -> str:
    layout, bar = state.layout, _index(state, agent, op)
    phase, count, pending, tx = state.phase[bar], state.count[bar], state.pending[bar], state.tx[bar]
    text = f"{layout.bar_name(op.bar)} parity {op.parity}: it is in phase {phase} with {count - pending} of {count} arrivals"
    if tx > 0:
        text += f", {tx} bytes armed, not delivered and not on their way"
    if tx < 0:
        text += f", {-tx} bytes delivered and not armed"
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


@waits(MbarWait, key=_index, says=_says)
def _can_wait(state: State, agent: int, op: MbarWait) -> bool:
    bar = _index(state, agent, op)
    return (state.phase[bar] & 1) != op.parity or not state.count[bar] or op.parity not in (0, 1)


@applies(MbarWait)
def _wait(state: State, agent: int, op: MbarWait) -> int:
    bar = _index(state, agent, op)
    if not state.count[bar]:
        raise _uninitialized(state, agent, op, bar)
    if op.parity not in (0, 1):
        text = f"waits for parity {op.parity} of {state.layout.bar_name(bar)}; a parity is 0 or 1"
        raise hazard(state.layout, "wait-parity", agent, op, text)
    return state.phase[bar] - 1


@applies(MbarInit)
def _init(state: State, agent: int, op: MbarInit) -> None:
    layout, bar = state.layout, _index(state, agent, op)
    name = layout.bar_name(bar)
    if not 1 <= op.arrivals <= MAX_COUNT:
        text = f"initializes {name} with count {op.arrivals}, not 1 to {MAX_COUNT}"
        raise hazard(layout, "barrier-count", agent, op, text)
    if state.count[bar]:
        raise hazard(layout, "barrier-init-twice", agent, op, f"initializes {name}, which is in use")
    state.count[bar] = state.pending[bar] = op.arrivals
    state.woken.append(bar)


@applies(MbarArrive)
def _arrive(state: State, agent: int, op: MbarArrive) -> tuple[Counted, ...]:
    cta, bar = state.layout.cta_of(agent), _index(state, agent, op)
    left, counted = op.lanes.bit_count(), []
    while left:  # lanes may arrive in several phases
        now = min(left, max(1, state.pending[bar]))
        counted.append(_count(state, agent, op, cta, bar, now))
        left -= now
    return tuple(counted)


@applies(MbarArriveCluster)
def _arrive_cluster(state: State, agent: int, op: MbarArriveCluster) -> tuple[Counted, ...]:
    layout = state.layout
    if op.mask >> layout.ctas:
        text = f"arrives at {layout.bar_name(op.bar)} with mask {op.mask:#b}, but the cluster has {layout.ctas} CTAs"
        raise hazard(layout, "mask-outside-cluster", agent, op, text)
    counted = []
    for cta in range(layout.ctas):
        if op.mask >> cta & 1:
            check_live(state, agent, op, cta, f"arrives at {layout.bar_name(op.bar)} of")
            counted.append(_count(state, agent, op, cta, cta * layout.nbars + op.bar, 1))
    return tuple(counted)


@applies(MbarArriveTx, MbarExpectTx)
def _arm(state: State, agent: int, op: MbarArriveTx | MbarExpectTx) -> tuple[Counted, ...]:
    arrivals = 1 if isinstance(op, MbarArriveTx) else 0
    return (_count(state, agent, op, state.layout.cta_of(agent), _index(state, agent, op), arrivals, op.nbytes),)


@applies(LoadComplete)
def _load_complete(state: State, agent: Flight, op: LoadComplete) -> tuple[Counted, ...]:
    slot, _, _, bar, nbytes, lanes, source, _ = state.loads.pop(agent)
    state.writers[slot] -= 1
    if source >= 0:
        state.readers[source] -= 1
    check_live(state, agent, op, agent.cta, "completes on")
    return (_count(state, agent, op, agent.cta, bar, lanes, -nbytes),)


def _count(
    state: State, agent: int | Flight, op: object, cta: int, bar: int, arrivals: int = 0, nbytes: int = 0
) -> Counted:
    """Counts arrivals and bytes in the present phase of the mbarrier at flat index *bar* (of *cta*). nbytes: armed, or if
    negative landed."""
    layout, phase, count = state.layout, state.phase[bar], state.count[bar]
    if not count:
        raise _uninitialized(state, agent, op, bar)
    state.tx[bar] += nbytes
    tx, pending = state.tx[bar], state.pending[bar] - arrivals
    if tx > MAX_COUNT:
        text = f"arms {nbytes} bytes on {layout.bar_name(bar)}: {tx} pending, above {MAX_COUNT}"
        raise hazard(layout, "tx-overflow", agent, op, text)
    if pending < 0:
        held = f"has had all its {count} arrivals and still waits for {tx} bytes"
        raise hazard(
            layout,
            "surplus-arrival",
            agent,
            op,
            f"arrives at {layout.bar_name(bar)} of CTA {cta}, whose phase {phase} {held}",
        )
    if not pending and tx < 0:
        found = f"without pending arrivals and {-tx} bytes more landed than were armed"
        raise hazard(
            layout, "tx-below-zero", agent, op, f"finds {layout.bar_name(bar)} of CTA {cta} in phase {phase} {found}"
        )
    state.pending[bar] = pending
    completed = not pending and not tx
    if completed:
        state.phase[bar] += 1
        state.pending[bar] = count
        state.woken.append(bar)
    return Counted(cta, bar - cta * layout.nbars, phase, arrivals, nbytes, completed)


def _uninitialized(state: State, agent: int | Flight, op: object, bar: int) -> Exception:
    layout = state.layout
    text = f"uses {layout.bar_name(bar)} of CTA {bar // layout.nbars} before it is initialized"
    return hazard(layout, "barrier-before-init", agent, op, text)
