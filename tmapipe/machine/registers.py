"""setmaxnreg: registers move between warpgroups through the CTA's pool.

The pool is what the CTA was launched with, all of it handed out at first. A decrease gives a warpgroup's registers back
once all four of its warps have executed it; an increase takes a warp's share and blocks until it is free.
"""

from __future__ import annotations

from tmapipe.isa.ops import SetMaxNreg
from tmapipe.machine.hazard import hazard
from tmapipe.machine.state import State, applies, waits
from tmapipe.plan.model import WARP


def _says(state: State, agent: int, op: SetMaxNreg) -> str:
    wanted = (op.registers - state.registers[agent]) * WARP
    return (
        f"{wanted} more registers a warp (setmaxnreg {op.registers}); the CTA's pool has "
        f"{state.free_registers[agent // state.layout.warps]} free "
        "(a warpgroup's come free when all 4 of its warps have decreased)"
    )


@waits(SetMaxNreg, key=lambda state, agent, op: ("registers", agent // state.layout.warps), says=_says)
def _can_set(state: State, agent: int, op: SetMaxNreg) -> bool:
    if not op.increase:
        return True
    return state.free_registers[agent // state.layout.warps] >= (op.registers - state.registers[agent]) * WARP


@applies(SetMaxNreg)
def _set(state: State, agent: int, op: SetMaxNreg) -> int:
    layout = state.layout
    cta, warp = divmod(agent, layout.warps)
    before = state.registers[agent]
    if not 24 <= op.registers <= 256 or op.registers % 8:
        text = f"sets {op.registers} registers a thread; setmaxnreg takes 24 to 256 in steps of 8"
        raise hazard(layout, "setmaxnreg-range", agent, op, text)
    if op.increase != (op.registers > before) and op.registers != before:
        verb = "increases" if op.increase else "decreases"
        text = f"{verb} its registers from {before} to {op.registers} a thread"
        raise hazard(layout, "setmaxnreg-direction", agent, op, text)
    if warp // 4 * 4 + 4 > layout.warps:
        raise hazard(layout, "setmaxnreg-warpgroup", agent, op, "sets the registers of an incomplete warpgroup")
    state.registers[agent] = op.registers
    four = range(agent - warp % 4, agent - warp % 4 + 4)
    state.sets_ahead[agent] += 1
    if all(state.sets_ahead[other] for other in four):
        for other in four:
            state.sets_ahead[other] -= 1
    if op.increase:
        state.free_registers[cta] -= (op.registers - before) * WARP
        return before
    if all(state.registers[other] == op.registers for other in four):
        state.free_registers[cta] += 4 * (before - op.registers) * WARP
        state.woken.append(("registers", cta))
    return before
