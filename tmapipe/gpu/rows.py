"""How loads and stores of four rows at once are emitted (sm_100 and later)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cutlass.cute as cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import cute_nvgpu

from tmapipe.gpu.descriptors import Descriptor
from tmapipe.gpu.inline import emit_ptx
from tmapipe.plan.model import Load, Store

if TYPE_CHECKING:
    from tmapipe.gpu.isa import GpuIsa

__all__ = ["move_rows"]

LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"


def move_rows(
    isa: GpuIsa, move: Load | Store, stage: Any, part: Any, rows: Sequence[Any], at: Sequence[Any], barrier: Any = None
) -> None:
    """The instruction for rows 4 *part* to 4 *part* + 3 of a slot.

    Args:
        stage: Index of the slot.
        rows: Of the matrix.
        at: Where they begin in the matrix (elements); the row is left out of account.
        barrier: The mbarrier's pointer, of a load.
    """
    buffer = move.buffer
    pitch = buffer.tile[1] * buffer.dtype.bytes
    place = isa.slot_address(buffer, stage) + part * (4 * pitch)
    operands, matrix = [place, _address(isa.atoms[move.name][0]), at[-1], *rows], "[$1, {$2, $3, $4, $5, $6}]"
    with cute.arch.elect_one():
        if barrier is None:
            emit_ptx(f"{STORE} {matrix}, [$0];", "rlrrrrr", *operands)
        else:
            emit_ptx(f"{LOAD} [$0], {matrix}, [$7];", "rlrrrrrr", *operands, barrier.toint())


def _address(atom: Any) -> Any:
    """Of the descriptor."""
    if isinstance(atom, Descriptor):
        return atom.address
    executable = cute_nvgpu.atom_make_exec_tma(atom._trait.value)
    kind = ir.Type.parse("!cute.ptr<!cute_nvgpu.tma_descriptor_tiled, generic, align<64>>")
    found = cute_nvgpu.get_tma_desc_addr(kind, executable)
    return found.toint()
