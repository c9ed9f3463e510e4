"""Descriptors that a kernel changes: words in slots, which loads through them read until they are over.

Of a descriptor the model has what a kernel can change: its first row, and how many rows it has.
"""

from __future__ import annotations

import numpy as np

from tmapipe.isa.ops import DescriptorWrite, Flight, TmaLoadThrough
from tmapipe.machine.hazard import hazard
from tmapipe.machine.memory import Memory, gather, lands, performs

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


@lands(TmaLoadThrough)
def _land(memory: Memory, flight: Flight, op: TmaLoadThrough, target: np.ndarray) -> None:
    load = memory.layout.loads[op.load]
    first, many = memory.slot(flight.issuer // memory.layout.warps, op.source)[:2]
    rows = target.shape[0] // op.shares
    mine = slice(op.share * rows, (op.share + 1) * rows)
    target[mine] = gather(memory.tensors[load.argument][first : first + many], load, op.at)[mine]
