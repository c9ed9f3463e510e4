"""wgmma: a queue of asynchronous matmuls for each warpgroup.

The four warps issue each wgmma together; here each does so at its own time, and the wgmma can end once all four have. It
may read its slots from the first warp's issue until it ends. wgmmas of a warpgroup end in order; ``wait_group N`` of any of
its warps looks at all of that warp's groups but the N newest.
"""

from __future__ import annotations

from tmapipe.isa.ops import (
    AccumulatorRead,
    AccumulatorWrite,
    Flight,
    Wgmma,
    WgmmaCommit,
    WgmmaDone,
    WgmmaFence,
    WgmmaFromRegisters,
    WgmmaWait,
)
from tmapipe.machine.hazard import hazard
from tmapipe.machine.slots import check_slot
from tmapipe.machine.state import State, applies, waits

__all__ = ["REGISTERS"]

ALL_FOUR = 0b1111
REGISTERS = -1  # in the place of a slot: the operand comes from registers


@applies(Wgmma, WgmmaFromRegisters)
def _issue(state: State, agent: int, op: Wgmma | WgmmaFromRegisters) -> tuple[Flight]:
    layout, operands = state.layout, (op.a if isinstance(op, Wgmma) else REGISTERS, op.b)
    cta, warp = divmod(agent, layout.warps)
    if not layout.whole_warpgroup[warp]:
        text = f"issues wgmma {op.matmul}, but not all 4 warps of its warpgroup play the role {layout.roles[warp]}"
        raise hazard(layout, "wgmma-warpgroup", agent, op, text)
    if state.unfenced[agent]:
        text = f"issues wgmma {op.matmul} after writing its accumulators, without wgmma_fence between"
        raise hazard(layout, "wgmma-fence", agent, op, text)
    base = cta * layout.nslots
    in_slots = [operand for operand in operands if operand != REGISTERS]
    for operand in in_slots:
        check_slot(state, agent, op, operand, f"multiplies ({op.matmul})")
    a, b = (operand if operand == REGISTERS else base + operand for operand in operands)
    wanted = op.matmul, a, b
    group = layout.group_of(agent)
    queue, position = state.queues[group], state.issued[agent] - state.done[group]
    bit = 1 << warp % 4
    if position == len(queue):
        state.queues[group] = (*queue, (*wanted, bit))
        for operand in in_slots:
            state.readers[base + operand] += 1
        last = False
    else:
        *issued, issuers = queue[position]
        if tuple(issued) != wanted:
            mine, theirs = _names(state, (a, b)), _names(state, tuple(issued[1:]))
            text = (
                f"issues wgmma {op.matmul} of {mine} where other warps of its warpgroup issued {issued[0]} of {theirs}"
            )
            raise hazard(layout, "wgmma-diverged", agent, op, text)
        issuers |= bit
        state.queues[group] = (*queue[:position], (*wanted, issuers), *queue[position + 1 :])
        last = issuers == ALL_FOUR
    flight = Flight("wgmma", group, state.issued[agent], cta)
    state.issued[agent] += 1
    others = [(name, serial) for name, serial in state.latest[agent] if name != op.matmul]
    state.latest[agent] = tuple(sorted([*others, (op.matmul, state.issued[agent])]))
    if last and position == 0:
        state.started.append(flight)
    return (flight,)


def _names(state: State, slots: tuple[int, ...]) -> str:
    return " and ".join("registers" if slot == REGISTERS else state.layout.slot_name(slot) for slot in slots)


@applies(WgmmaDone)
def _done(state: State, agent: Flight, op: WgmmaDone) -> None:
    group = agent.issuer
    queue = state.queues[group]
    _, a, b, _ = queue[0]
    for slot in (a, b):
        if slot != REGISTERS:
            state.readers[slot] -= 1
    state.queues[group] = queue[1:]
    state.done[group] += 1
    if len(queue) > 1 and queue[1][3] == ALL_FOUR:
        state.started.append(Flight("wgmma", group, agent.serial + 1, agent.cta))
    state.woken.append(("wgmma", group))


@applies(WgmmaCommit)
def _commit(state: State, agent: int, op: WgmmaCommit) -> int:
    state.bounds[agent] = (*state.bounds[agent], state.issued[agent])
    return state.issued[agent]


def _says(state: State, agent: int, op: WgmmaWait) -> str:
    return f"wgmma groups (all but {op.pending}), which other warps of its warpgroup have not issued"


@waits(WgmmaWait, key=lambda state, agent, op: ("wgmma", state.layout.group_of(agent)), says=_says)
def _can_wait(state: State, agent: int, op: WgmmaWait) -> bool:
    bounds = state.bounds[agent]
    return len(bounds) <= op.pending or state.done[state.layout.group_of(agent)] >= bounds[-op.pending - 1]


@applies(WgmmaWait)
def _wait(state: State, agent: int, op: WgmmaWait) -> int:
    bounds = state.bounds[agent]
    if len(bounds) > op.pending:
        state.awaited[agent] = bounds[-op.pending - 1]
        state.bounds[agent] = bounds[len(bounds) - op.pending :]
        known = state.awaited[agent]
        state.latest[agent] = tuple([each for each in state.latest[agent] if each[1] > known])
    return state.awaited[agent]


@applies(WgmmaFence)
def _fence(state: State, agent: int, op: WgmmaFence) -> None:
    state.unfenced[agent] = False


@applies(AccumulatorWrite)
def _write(state: State, agent: int, op: AccumulatorWrite) -> None:
    _check_idle(state, agent, op, "writes")
    state.unfenced[agent] = True


@applies(AccumulatorRead)
def _read(state: State, agent: int, op: AccumulatorRead) -> None:
    _check_idle(state, agent, op, "reads")


def _check_idle(state: State, agent: int, op: AccumulatorRead | AccumulatorWrite, verb: str) -> None:
    """A matmul's registers belong to the tensor core from the issue until this warp has waited."""
    if any(name == op.matmul for name, _ in state.latest[agent]):
        in_flight = state.issued[agent] - state.awaited[agent]
        text = f"{verb} the accumulators of {op.matmul} with {in_flight} wgmma not waited for (wgmma_wait(0) after a commit)"
        raise hazard(state.layout, "accumulator-in-flight", agent, op, text)
