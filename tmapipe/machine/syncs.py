"""Barriers of warps: ``bar.sync`` and ``bar.arrive`` of a CTA, and the cluster barrier.

Warps that have returned count as arrived at the CTA's barrier 0 and at the cluster barrier (PTX: "non-exited threads").
"""

from __future__ import annotations

from tmapipe.isa.ops import (
    BarArrive,
    BarWait,
    ClusterArrive,
    ClusterWait,
)
from tmapipe.machine.hazard import hazard
from tmapipe.machine.state import State, applies, waits

LAST_ID = 15  # named barriers of a CTA are 1 .. 15 (PTX ISA, barrier)


@applies(BarArrive)
def _arrive(state: State, agent: int, op: BarArrive) -> tuple[int, bool]:
    layout = state.layout
    cta = agent // layout.warps
    index = 16 * cta + op.id
    if op.id:
        _check_named(state, agent, op, index)
    generation = state.bar_generation[index]
    if op.sync:
        state.bar_seen[agent] = (index, generation)
    state.bar_arrived[index] += 32
    threads = op.threads or 32 * state.live[cta]
    state.bar_threads[index] = threads
    completed = state.bar_arrived[index] >= threads
    if completed:
        complete_bar(state, cta, op.id)
    return generation, completed


def complete_bar(state: State, cta: int, id: int) -> None:
    """Starts the barrier's next generation and lets those that wait go."""
    index = 16 * cta + id
    state.bar_arrived[index] = state.bar_threads[index] = 0
    state.bar_generation[index] += 1
    state.woken.append(("barrier", index))


def _check_named(state: State, agent: int, op: BarArrive, index: int) -> None:
    layout = state.layout
    name = layout.named_barrier_name(op.id)
    if not 1 <= op.id <= LAST_ID:
        raise hazard(layout, "named-barrier-id", agent, op, f"uses {name}, but ids run from 1 to {LAST_ID}")
    if op.threads % 32 or not 32 <= op.threads <= 32 * layout.warps:
        text = f"uses {name} for {op.threads} threads, not a multiple of 32 up to the CTA's {32 * layout.warps}"
        raise hazard(layout, "named-barrier-threads", agent, op, text)
    expected = state.bar_threads[index]
    if expected and expected != op.threads:
        text = f"arrives at {name} for {op.threads} threads, others for {expected}"
        raise hazard(layout, "named-barrier-threads", agent, op, text)


def _bar_key(state: State, agent: int, op: BarWait) -> tuple[str, int]:
    return "barrier", 16 * (agent // state.layout.warps) + op.id


def _bar_says(state: State, agent: int, op: BarWait) -> str:
    index = 16 * (agent // state.layout.warps) + op.id
    arrived, threads = state.bar_arrived[index], state.bar_threads[index]
    return f"{state.layout.named_barrier_name(op.id)}: {arrived} of {threads} threads have arrived"


@waits(BarWait, key=_bar_key, says=_bar_says)
def _can_pass(state: State, agent: int, op: BarWait) -> bool:
    seen = state.bar_seen[agent]
    return seen is None or state.bar_generation[seen[0]] != seen[1]


@applies(BarWait)
def _pass(state: State, agent: int, op: BarWait) -> int:
    seen, state.bar_seen[agent] = state.bar_seen[agent], None
    return -1 if seen is None else seen[1]


@applies(ClusterArrive)
def _cluster_arrive(state: State, agent: int, op: ClusterArrive) -> tuple[int, bool]:
    if state.cluster_seen[agent] >= 0:
        text = "arrives at the cluster barrier twice without waiting for it"
        raise hazard(state.layout, "cluster-barrier", agent, op, text)
    generation = state.cluster_seen[agent] = state.cluster[1]
    state.cluster[0] += 1
    return generation, complete_cluster(state)


def complete_cluster(state: State) -> bool:
    """Completes the cluster barrier if every warp that has not returned has arrived."""
    if state.cluster[0] < sum(state.live):
        return False
    state.cluster[0] = 0
    state.cluster[1] += 1
    state.woken.append("cluster")
    return True


def _cluster_says(state: State, agent: int, op: ClusterWait) -> str:
    return f"the cluster barrier: {state.cluster[0]} of {sum(state.live)} warps have arrived"


@waits(ClusterWait, key=lambda state, agent, op: "cluster", says=_cluster_says)
def _can_leave(state: State, agent: int, op: ClusterWait) -> bool:
    return state.cluster_seen[agent] != state.cluster[1]


@applies(ClusterWait)
def _cluster_wait(state: State, agent: int, op: ClusterWait) -> int:
    seen = state.cluster_seen[agent]
    if seen < 0:
        text = "waits for the cluster barrier without having arrived"
        raise hazard(state.layout, "cluster-barrier", agent, op, text)
    state.cluster_seen[agent] = -1
    return seen
