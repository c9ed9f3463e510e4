"""What a warp of a kernel that is being traced has: its ids, the launch's arguments, the CTA's slots and mbarriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from tmapipe.gpu import control
from tmapipe.gpu.fragments import GpuFragments
from tmapipe.gpu.layouts import (
    clips,
    core_modes,
    cute_type,
    full_shape,
    moved_extents,
    moved_slots,
    partition,
    slot_layout,
)
from tmapipe.gpu.matmuls import MatmulHandles
from tmapipe.isa.interface import Isa
from tmapipe.plan.model import Barrier, Buffer, Load, Plan, Store
from tmapipe.plan.syncs import Syncs

__all__ = ["GpuWarp"]


class GpuWarp(Isa):
    """What instructions are emitted with, as documented in `tmapipe.isa`. Loops and cells are the program's.

    Args:
        plan: The kernel's plan.
        given: What the kernel was launched with. atoms: (TMA atom, coordinate tensor) of each load and store, and of each
            load's tiles over the edge, by name; divisors: by name, as the host prepared them; clusters: how many were
            launched; addressed: tensors that are reached by their address, by name; scratch: counters, of a queued order, and
            memory for descriptors that the kernel makes; kept: the words that the order adds to a launch.
    """

    fragments: GpuFragments

    def __init__(self, plan: Plan, given: Any):
        self.plan, self.clusters, self.kept, self.scratch = plan, given.clusters, given.kept, given.scratch
        self.atoms, self.host_divisors, self.addressed = vars(given.atoms), vars(given.divisors), vars(given.addressed)
        self.syncs = Syncs(plan)
        self.thread, _, _ = cute.arch.thread_idx()
        self.lane = cute.arch.lane_idx()
        self.warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block, _, _ = cute.arch.block_idx()
        if plan.cluster_size > 1:
            self.cta_rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
            self.cluster_id = block // plan.cluster_size
        else:
            self.cta_rank, self.cluster_id = Int32(0), block
        self.shared = _opaque(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=1024))
        self.buffers = {buffer.name: self._buffer(buffer) for buffer in plan.buffers}
        self.fragments = GpuFragments(self)
        self.matmuls = {matmul.name: MatmulHandles(self, matmul) for matmul in plan.matmuls}

    # ---- control flow and registers -------------------------------------------------------------------------------

    when = staticmethod(control.when)

    def select(self, condition: Any, then: Any, otherwise: Any) -> Any:
        if control.constant(condition):
            return then if condition else otherwise
        return cutlass.select_(condition, Int32(then), Int32(otherwise))

    def here(self, value: Any) -> Any:
        # A shuffle, which no compiler moves across a barrier.
        return value if control.constant(value) else cute.arch.make_warp_uniform(Int32(value))

    def extent(self, argument: str, dim: int) -> Any:
        if argument in self.plan.tables:
            return self.addressed[argument].shape[dim]
        part = self._part(argument)
        if part.dims[dim] in self.plan.fixed:
            return self.plan.fixed[part.dims[dim]]
        if argument in self.addressed:
            return full_shape(self.addressed[argument], part)[dim]
        shape = self.atoms[part.name][1].shape
        if clips(part):
            return (shape[2] - 1, shape[1])[dim]  # see `layouts.clipped`
        return shape[core_modes(part).index(dim)]

    def divisors(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: self.host_divisors[name] for name in values}

    # ---- slots and mbarriers --------------------------------------------------------------------------------------

    def _part(self, argument: str) -> Load | Store:
        return next(part for part in self.plan.transfers if part.argument == argument)

    def mbarrier(self, barrier: Barrier, stage: Any) -> Any:
        return cute.recast_ptr(self.shared + barrier.offset, dtype=cutlass.Int64) + stage

    def slot_address(self, buffer: Buffer, stage: Any) -> Any:
        """Of slot *stage*, in shared memory."""
        return self.shared.toint() + buffer.offset + stage * buffer.pitch

    def _buffer(self, buffer: Buffer) -> Any:
        layout = slot_layout(buffer)
        start = self.shared + buffer.offset
        if buffer.swizzle:
            pointer = cute.recast_ptr(start.align(1024), layout.inner, dtype=cute_type(buffer.dtype))
            return cute.make_tensor(pointer, layout.outer)
        return cute.make_tensor(cute.recast_ptr(start.align(128), dtype=cute_type(buffer.dtype)), layout)

    def partition_of(
        self, part: Load | Store, at: Sequence[Any], share: Any, peers: int, first: Any = None, piece: Any = 0
    ) -> tuple[Any, Any]:
        """The slots, or what begins at *first* along their first extent, and the tile of global memory that starts at element
        *at*, as the TMA atom takes them; of its rows, one piece."""
        extents = moved_extents(part)
        place = at if isinstance(piece, int) and piece == 0 else (*at[:-1], at[-1] + piece * extents[-1])
        start = tuple(place[mode] for mode in core_modes(part))
        slots = moved_slots(self.buffers[part.buffer.name], part, first, piece)
        return partition(self.atoms[part.name], slots, extents, start, share, peers)


def _opaque(pointer: Any) -> Any:
    """The same pointer to shared memory, as a value that the compiler keeps in a uniform register.

    Otherwise it computes the address of the CTA's shared memory anew at every use (4 instructions per k-tile of a GEMM).
    """
    address = cute.arch.make_warp_uniform(pointer.toint())
    return cute.make_ptr(cutlass.Uint8, address, cute.AddressSpace.smem, assumed_align=1024)
