"""cp.async: copies by threads that go on meanwhile.

A warp's copies are one flight. It is on its way from the issue until its lanes arrive, all at once: as single lanes arrive, no
phase can complete before the last of them.
"""

from __future__ import annotations

import numpy as np

from tmapipe.isa.ops import CpAsync, Flight
from tmapipe.machine.bulk import start_loads
from tmapipe.machine.hazard import hazard
from tmapipe.machine.memory import Memory, gather, lands
from tmapipe.machine.state import State, applies
from tmapipe.plan.model import WARP

__all__: list[str] = []


@applies(CpAsync)
def _copy(state: State, agent: int, op: CpAsync) -> tuple[Flight, ...]:
    layout = state.layout
    vector = layout.loads[op.load].vector
    if op.at and op.at[-1] * layout.slots[op.slot][0].dtype.bytes % vector:
        text = f"copies {op.load} from {op.at} on, whose last index is not a multiple of {vector} bytes"
        raise hazard(layout, "copy-alignment", agent, op, text)
    return start_loads(state, agent, op, "cp.async", op.load, op.lanes.bit_count())


@lands(CpAsync)
def _land(memory: Memory, flight: Flight, op: CpAsync, target: np.ndarray) -> None:
    load = memory.layout.loads[op.load]
    width = load.vector // load.buffer.dtype.bytes
    vectors = target.reshape(-1, width)
    mine = np.arange(len(vectors)) // WARP % op.shares == op.share
    vectors[mine] = gather(memory.tensors[load.argument], load, op.at).reshape(-1, width)[mine]
