"""The abstract state: a `State` without the numbers that only count laps.

If two states have equal abstract states, and their warps are at the same points of their programs (which the caller compares),
they have the same futures. Kept are phase parities, pending counts, and what is in flight where, in the order of issue.
"""

from __future__ import annotations

from tmapipe.isa.ops import Flight
from tmapipe.machine.state import State

__all__ = ["abstract"]


def abstract(state: State) -> tuple:
    """A hashable value; see the module."""
    layout = state.layout
    serial = state.serials
    loads = sorted((*_relative(flight, serial), *record) for flight, record in state.loads.items())
    stores = sorted((*_relative(flight, serial), *record) for flight, record in state.stores.items())
    threads = sorted((thread, _groups(state, groups)) for thread, groups in state.groups.items())
    still_open = sorted((t, tuple([_relative(f, serial) for f in flights])) for t, flights in state.open_group.items())
    group_of = [agent // layout.warps * layout.warpgroups + agent % layout.warps // 4 for agent in range(layout.agents)]
    warps = tuple(
        (
            state.issued[agent] - state.done[group],
            state.awaited[agent] - state.issued[agent],
            tuple([bound - state.issued[agent] for bound in state.bounds[agent]]),
            tuple([(name, serial - state.issued[agent]) for name, serial in state.latest[agent]]),
            _awaited_generation(state, agent),
            None if state.cluster_seen[agent] < 0 else state.cluster[1] - state.cluster_seen[agent],
        )
        for agent, group in enumerate(group_of)
    )
    return (
        tuple(state.count),
        tuple(state.pending),
        tuple(state.tx),
        tuple([phase & 1 for phase in state.phase]),
        tuple(state.bar_threads),
        tuple(state.bar_arrived),
        state.cluster[0],
        tuple(state.live),
        tuple(state.returned),
        tuple(state.queues),
        tuple(state.unfenced),
        tuple(state.free_registers),
        tuple(state.registers),
        warps,
        tuple(loads),
        tuple(stores),
        tuple(threads),
        tuple(still_open),
    )


def _relative(flight: Flight, serials: list[int]) -> tuple:
    """A flight named by how many later ones its issuer has issued."""
    return flight.kind, flight.issuer, serials[flight.issuer] - flight.serial, flight.cta


def _awaited_generation(state: State, agent: int) -> tuple[int, int] | None:
    """The named barrier in which the agent has arrived and not yet waited, and generations since then."""
    seen = state.bar_seen[agent]
    return None if seen is None else (seen[0], state.bar_generation[seen[0]] - seen[1])


def _groups(state: State, groups: tuple) -> tuple:
    """A thread's bulk groups: their flights, which of them have not ended, and whether the group is known to be read."""
    return tuple(
        [
            (tuple([(*_relative(flight, state.serials), flight in state.stores) for flight in flights]), known)
            for flights, known in groups
        ]
    )
