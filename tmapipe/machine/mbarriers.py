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
    left = op.lanes.bit_count()
    if left <= 1:
        return (arrive_once(state, agent, op, cta, bar),)
    counted = []
    while left:
        now = min(left, max(1, state.pending[bar]))
        phase = state.phase[bar]
        completed = False
        for _ in range(now):
            completed = arrive_once(state, agent, op, cta, bar).completed
        counted.append(Counted(cta, op.bar, phase, now, 0, completed))
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
            counted.append(arrive_once(state, agent, op, cta, cta * layout.nbars + op.bar))
    return tuple(counted)


@applies(MbarArriveTx)
def _arrive_tx(state: State, agent: int, op: MbarArriveTx) -> tuple[Counted, ...]:
    cta, bar = state.layout.cta_of(agent), _index(state, agent, op)
    _arm(state, agent, op, bar)
    phase, completed = arrive_once(state, agent, op, cta, bar)[2:6:3]
    return (Counted(cta, op.bar, phase, 1, op.nbytes, completed),)


@applies(MbarExpectTx)
def _expect_tx(state: State, agent: int, op: MbarExpectTx) -> tuple[Counted, ...]:
    cta, bar = state.layout.cta_of(agent), _index(state, agent, op)
    _arm(state, agent, op, bar)
    return (Counted(cta, op.bar, state.phase[bar], 0, op.nbytes, False),)


@applies(LoadComplete)
def _load_complete(state: State, agent: Flight, op: LoadComplete) -> tuple[Counted, ...]:
    slot, _, _, bar, nbytes, lanes, source, _ = state.loads.pop(agent)
    state.writers[slot] -= 1
    if source >= 0:
        state.readers[source] -= 1
    layout = state.layout
    cta, phase = agent.cta, state.phase[bar]
    check_live(state, agent, op, cta, "completes on")
    if not state.count[bar]:
        raise _uninitialized(state, agent, op, bar)
    if lanes:
        completed = False
        for _ in range(lanes):
            if completed:
                raise _surplus(state, agent, op, cta, bar)
            completed = arrive_once(state, agent, op, cta, bar).completed
        return (Counted(cta, bar % layout.nbars, phase, lanes, 0, completed),)
    tx = state.tx[bar] = state.tx[bar] - nbytes
    over = tx <= 0 and state.pending[bar] == 0
    if over and tx < 0:
        raise _negative(state, agent, op, bar)
    if over:
        _complete(state, bar)
    return (Counted(cta, bar % layout.nbars, phase, 0, -nbytes, over),)


def arrive_once(state: State, agent: int | Flight, op: object, cta: int, bar: int) -> Counted:
    """One arrival at the mbarrier at flat index *bar* (of *cta*)."""
    phase = state.phase[bar]
    pending = state.pending[bar] - 1
    if pending > 0:
        state.pending[bar] = pending
        return Counted(cta, bar - cta * state.layout.nbars, phase, 1, 0, False)
    if not state.count[bar]:
        raise _uninitialized(state, agent, op, bar)
    if pending < 0:
        raise _surplus(state, agent, op, cta, bar)
    state.pending[bar] = 0
    completed = state.tx[bar] == 0
    if completed:
        _complete(state, bar)
    elif state.tx[bar] < 0:
        raise _negative(state, agent, op, bar)
    return Counted(cta, bar - cta * state.layout.nbars, phase, 1, 0, completed)


def _complete(state: State, bar: int) -> None:
    state.phase[bar] += 1
    state.pending[bar] = state.count[bar]
    state.woken.append(bar)


def _arm(state: State, agent: int, op: MbarArriveTx | MbarExpectTx, bar: int) -> None:
    if not state.count[bar]:
        raise _uninitialized(state, agent, op, bar)
    state.tx[bar] += op.nbytes
    if state.tx[bar] > MAX_COUNT:
        text = f"arms {op.nbytes} bytes on {state.layout.bar_name(bar)}: {state.tx[bar]} pending, above {MAX_COUNT}"
        raise hazard(state.layout, "tx-overflow", agent, op, text)


def _surplus(state: State, agent: int | Flight, op: object, cta: int, bar: int) -> Exception:
    text = (
        f"arrives at {state.layout.bar_name(bar)} of CTA {cta}, whose phase {state.phase[bar]} has had all its "
        f"{state.count[bar]} arrivals and still waits for {state.tx[bar]} bytes"
    )
    return hazard(state.layout, "surplus-arrival", agent, op, text)


def _uninitialized(state: State, agent: int | Flight, op: object, bar: int) -> Exception:
    layout = state.layout
    text = f"uses {layout.bar_name(bar)} of CTA {bar // layout.nbars} before it is initialized"
    return hazard(layout, "barrier-before-init", agent, op, text)


def _negative(state: State, agent: int | Flight, op: object, bar: int) -> Exception:
    layout = state.layout
    text = (
        f"finds {layout.bar_name(bar)} of CTA {bar // layout.nbars} in phase {state.phase[bar]} without pending arrivals and "
        f"{-state.tx[bar]} bytes more landed than were armed"
    )
    return hazard(layout, "tx-below-zero", agent, op, text)
