"""Descriptors that a kernel changes: words in slots, which loads through them read until they are over.

Of a descriptor the model has what a kernel can change: its first row, and how many rows it has.
"""

from __future__ import annotations

import numpy as np

from tmapipe.isa.ops import DescriptorWrite, Flight, TmaLoadThrough
from tmapipe.machine.bulk import check_start, masked_ctas, start_load
from tmapipe.machine.hazard import hazard
from tmapipe.machine.memory import Memory, gather, lands, performs
from tmapipe.machine.slots import conflict
from tmapipe.machine.state import State, applies

__all__: list[str] = []


@performs(DescriptorWrite)
def _write(memory: Memory, agent: int, op: DescriptorWrite, facts: None) -> None:
    layout = memory.layout
    extent = memory.tensors[layout.loads[op.load].argument].shape[0]
    first, rows = op.at
    if first < 0 or rows < 1 or first + rows > extent:
        text = f"makes a descriptor of {rows} rows of {op.load} from row {first} on; it takes 1 or more of {extent}"
        raise hazard(layout, "descriptor-outside", agent, op, text)
    memory.slot(agent // layout.warps, op.slot)[:2] = first, rows


@applies(TmaLoadThrough)
def _load_through(state: State, agent: int, op: TmaLoadThrough) -> tuple[Flight, ...]:
    layout, own = state.layout, agent // state.layout.warps
    check_start(state, agent, op, "loads", op.load)
    for slot in layout.aliases[op.source]:
        if state.writers[own * layout.nslots + slot]:
            raise conflict(state, agent, op, own, op.source, f"loads {op.load} through", writes=False)
    how, source = (state, agent, op), own * layout.nslots + op.source
    ctas = masked_ctas(*how, op.load)
    flights = tuple([start_load(*how, cta, "load", op.load, op.share, op.shares, source=source) for cta in ctas])
    state.serials[agent] += 1
    return flights


@lands(TmaLoadThrough)
def _land(memory: Memory, flight: Flight, op: TmaLoadThrough, target: np.ndarray) -> None:
    load = memory.layout.loads[op.load]
    first, many = memory.slot(flight.issuer // memory.layout.warps, op.source)[:2]
    rows = target.shape[0] // op.shares
    mine = slice(op.share * rows, (op.share + 1) * rows)
    target[mine] = gather(memory.tensors[load.argument][first : first + many], load, op.at)[mine]
