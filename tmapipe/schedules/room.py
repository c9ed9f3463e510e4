"""Whether an epilogue has enough registers beside the accumulators.

The numbers are from compiling random configurations: ``python -m tests.fuzz.compiling``.
"""

from __future__ import annotations

import warnings

from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.epilogue.operands import Matrix
from tmapipe.epilogue.outputs import Output
from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.plan.model import Plan
from tmapipe.protocol.values import check_rounded

__all__ = ["check_room"]


def check_room(plan: Plan, epilogue: Epilogue) -> None:
    """Checks a plan whose accumulators end with *epilogue*.

    Raises:
        InputError: The compiler would keep accumulators in local memory, or results would be rounded to integers.

    Warns:
        UserWarning: It may keep some there.
    """
    for name in epilogue.whole_outputs:
        if epilogue.function is not None:
            check_rounded(name, plan.store(name).buffer.dtype)
    if not plan.matmuls:
        return
    first = plan.matmuls[0]
    groups = first.warpgroups * first.teams
    kinds = (*epilogue.operands.values(), *epilogue.outputs.values())
    tiles = any(isinstance(kind, (Matrix, Output)) for kind in kinds)
    needed = sum(matmul.registers.sums + matmul.registers.a for matmul in plan.matmuls)
    if len(plan.matmuls) > 1:  # the planner has checked these
        room, sure = 184 if first.transposed[0] else 192, 168
        sure = 0 if groups > 2 and all(first.transposed) else sure
        spans = ceil_div(first.shape[2] * first.b.dtype.bytes, 128)
        if first.promote and spans > 1:  # each adds wgmmas between two promotions
            room, sure = (112, 104) if spans == 2 else (96, 88)
            room, sure = (room, sure) if groups < 3 else (sure - 32, sure - 32)
    elif epilogue.plain:
        room, sure = 200, 192
        if first.shape[0] // (64 * first.warpgroups) > 2:  # blocks of 64 rows
            sure = 184
    elif tiles:
        room, sure = (152, 144) if groups < 3 else (96, 80)
    elif kinds:
        room, sure = (160, 152) if groups < 3 else (104, 96)
    else:
        room, sure = 200, 160
    what = (
        "the stores"
        if epilogue.plain
        else "an epilogue" + " with further tiles" * tiles + " with operands or sums" * (bool(kinds) and not tiles)
    )
    rule = f"needs {needed} accumulator registers a thread; {room} leave room for {what} with {groups} warpgroups"
    if needed > room:
        raise InputError(f"Wgmma({first.name}) tile", first.shape[:2], rule, "use a smaller tile or more warpgroups")
    if needed > sure:
        text = f"{plan.name}: {needed} accumulator registers a thread beside {what} may spill to local memory. "
        warnings.warn(text + "Fix: use a smaller tile or more warpgroups.", stacklevel=4)
