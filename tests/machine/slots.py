"""Slots read and written by the threads of a role, as bodies do it, in programs of single instructions."""

import math
from typing import Any

import numpy as np

from tmapipe.isa import ops
from tmapipe.isa.fragment import Fragment, SlotRef
from tmapipe.isa.ops import Isa
from tmapipe.model import elements
from tmapipe.plan.model import RoleWarps
from tmapipe.plan.thread_layout import vectors_of

__all__ = ["read_slot", "write_slot"]


def read_slot(isa: Isa, slot: SlotRef, role: RoleWarps) -> Any:
    """The calling warp's part of a slot, as an array; None where there is no data."""
    if math.prod(slot.buffer.tile) % role.threads:  # a part that nobody could share among lanes
        return isa.emit(ops.SlotRead(isa.slot(slot.buffer, slot.stage), isa.warp - role.first_warp, role.warps))
    return isa.fragments.read(slot, vectors_of("slot", slot.buffer.tile, role)).data


def write_slot(isa: Isa, slot: SlotRef, values: Any, role: RoleWarps) -> None:
    """Writes it. values: an array of as many elements, or one number for all."""
    layout = vectors_of("slot", slot.buffer.tile, role)
    shape = (layout.vectors * 32, layout.width)
    data = np.broadcast_to(values, shape) if np.ndim(values) == 0 else np.asarray(values).reshape(shape)
    kind = slot.buffer.dtype.kind
    isa.fragments.write(slot, Fragment(isa.fragments, layout, "tile", kind, data.astype(elements.KINDS[kind])))
