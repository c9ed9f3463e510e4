"""Exit: what must not be in flight when a warp returns, or when the last warp of a CTA does.

A CTA's shared memory and mbarriers are gone once all its warps have returned; peers that touch them later are caught where
they do it.
"""

from __future__ import annotations

from tmapipe.isa.ops import Exit
from tmapipe.machine.hazard import hazard
from tmapipe.machine.state import State, applies
from tmapipe.machine.syncs import complete_bar, complete_cluster


@applies(Exit)
def _exit(state: State, agent: int, op: Exit) -> bool:
    layout = state.layout
    cta = agent // layout.warps
    _check_warp(state, agent, op)
    state.returned[agent] = True
    state.live[cta] -= 1
    if not state.live[cta]:
        _check_cta(state, agent, op, cta)
    elif state.bar_arrived[16 * cta] >= 32 * state.live[cta]:
        complete_bar(state, cta, 0)
    if state.cluster_seen[agent] == state.cluster[1]:
        state.cluster[0] -= 1  # it had arrived, and no longer takes part
    if state.cluster[0]:
        complete_cluster(state)
    return not state.live[cta]


def _check_warp(state: State, agent: int, op: Exit) -> None:
    layout = state.layout
    for lane in range(32) if state.groups or state.open_group else ():
        thread = agent * 32 + lane
        if state.open_group.get(thread):
            count = len(state.open_group[thread])
            text = f"returns with {count} TMA store(s) of lane {lane} in no bulk group (bulk_commit_group is missing)"
            raise hazard(layout, "exit-uncommitted-store", agent, op, text)
        unread = sum(1 for flights, known_read in state.groups.get(thread, ()) if flights and not known_read)
        if unread:
            text = f"returns with {unread} bulk group(s) of lane {lane} not waited for (bulk_wait_group is missing)"
            raise hazard(layout, "exit-unawaited-store", agent, op, text)
    if state.issued[agent] != state.awaited[agent]:
        count = state.issued[agent] - state.awaited[agent]
        raise hazard(layout, "exit-unawaited-wgmma", agent, op, f"returns with {count} wgmma not waited for")


def _check_cta(state: State, agent: int, op: Exit, cta: int) -> None:
    layout, last = state.layout, "returns as the last warp of its CTA while"
    for flight, load in state.loads.items():
        does = ""
        if flight.cta == cta:
            into = f"into {layout.slot_name(load[0])} (completes on {layout.bar_name(load[3])})"
            does = f"is on its way {into}"
        elif load[6] >= 0 and load[6] // layout.nslots == cta:
            does = f"has not finished reading {layout.slot_name(load[6])}"
        if does:
            raise hazard(layout, "exit-load-in-flight", agent, op, f"{last} {layout.agent_name(flight)} {does}")
    for bar in range(cta * layout.nbars, (cta + 1) * layout.nbars):
        if state.tx[bar]:
            phase = f"phase {state.phase[bar]} that nothing delivers"
            text = f"{last} {layout.bar_name(bar)} waits for {state.tx[bar]} bytes in {phase}"
            raise hazard(layout, "exit-bytes-pending", agent, op, text)
    for first in layout.cta_warps(cta)[:-3:4]:
        if len(set(state.registers[first : first + 4])) > 1 or any(state.sets_ahead[first : first + 4]):
            text = f"returns, and setmaxnreg was not executed by all warps of warpgroup {(first % layout.warps) // 4}"
            raise hazard(layout, "setmaxnreg-warpgroup", agent, op, text)
