"""The GPU backend's instruction set: each operation is emitted as CuTe DSL while the kernel is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int16, Int32, Int64
from cutlass._mlir.dialects.nvvm import MemScopeKind
from cutlass.cute.nvgpu import warpgroup

from tmapipe.errors import ScopeError
from tmapipe.gpu import control
from tmapipe.gpu.copies import CopyEmitters
from tmapipe.gpu.edges import load_edge
from tmapipe.gpu.encoded import EncodedEmitters
from tmapipe.gpu.fragments import GpuFragments
from tmapipe.gpu.layouts import (
    L2_POLICIES,
    clips,
    core_modes,
    cute_type,
    full_shape,
    moved_extents,
    moved_slots,
    partition,
    pieces_of,
    slot_layout,
)
from tmapipe.gpu.matmuls import MatmulHandles
from tmapipe.gpu.peers import store_words
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import SlotRef
from tmapipe.plan.model import Barrier, Buffer, Load, Matmul, NamedBarrier, Plan, Store
from tmapipe.plan.syncs import Syncs

__all__ = ["GpuIsa"]

#: Whether `cute.copy` elects the issuing lane by itself, as its PTX shows (CuTe DSL 4.8.1; tests/emit checks it).
COPY_ELECTS = {"load": True, "store": False, "reduce": True}


class GpuIsa(CopyEmitters, EncodedEmitters, Isa):
    """One warp's view of the hardware, for the kernel being traced. Its methods are documented in `tmapipe.isa`.

    Args:
        plan: The kernel's plan.
        given: What the kernel was launched with. atoms: (TMA atom, coordinate tensor) of each load and store, and of each
            load's tiles over the edge, by name; divisors: by name, as the host prepared them; clusters: how many were
            launched; addressed: tensors that are reached by their address, by name; scratch: counters, of a queued order, and
            memory for descriptors that the kernel makes; kept: the words that the order adds to a launch.
    """

    all_clusters = True

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

    # ---- what CuTe DSL, or `control`, has as it is ----------------------------------------------------------------

    loop = staticmethod(control.loop)
    block = staticmethod(control.block)
    call = staticmethod(control.call)
    griddepcontrol_wait = staticmethod(cute.arch.griddepcontrol_wait)
    griddepcontrol_launch_dependents = staticmethod(cute.arch.griddepcontrol_launch_dependents)
    fence_mbarrier_init = staticmethod(cute.arch.mbarrier_init_fence)
    cta_sync = staticmethod(cute.arch.sync_threads)
    warp_sync = staticmethod(cute.arch.sync_warp)
    cluster_wait = staticmethod(cute.arch.cluster_wait)
    wgmma_fence = staticmethod(warpgroup.fence)
    wgmma_commit = staticmethod(warpgroup.commit_group)
    wgmma_wait = staticmethod(warpgroup.wait_group)
    smid = staticmethod(cute.arch.smid)

    # ---- structure ------------------------------------------------------------------------------------------------

    def cells(self, *initial: Any) -> Any:
        made = cute.make_rmem_tensor((len(initial),), Int32)
        for i, value in enumerate(initial):
            made[i] = Int32(value)
        return made

    def select(self, condition: Any, then: Any, otherwise: Any) -> Any:
        if control.constant(condition):
            return then if condition else otherwise
        return cutlass.select_(condition, Int32(then), Int32(otherwise))

    def here(self, value: Any) -> Any:
        # A shuffle, which no compiler moves across a barrier.
        return value if control.constant(value) else cute.arch.make_warp_uniform(Int32(value))

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        if control.constant(condition):
            if condition:
                body()
        else:
            control.when(condition, body)

    def loop_while(self, state: Any, body: Callable[[], None], iterations: Callable[[], int] | None = None) -> None:
        control.loop_while(state, body)

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

    # ---- mbarrier -------------------------------------------------------------------------------------------------

    def mbarrier_init(self, barrier: Barrier, count: int) -> None:
        with cute.arch.elect_one():
            for stage in range(barrier.stages):
                cute.arch.mbarrier_init(self.mbarrier(barrier, stage), count)

    def mbarrier_wait(self, barrier: Barrier, stage: Any, parity: Any) -> None:
        cute.arch.mbarrier_wait(self.mbarrier(barrier, stage), parity)

    def mbarrier_arrive(self, barrier: Barrier, stage: Any, lanes: int = 1, when: Any = True) -> None:
        condition = when if lanes == 32 else control.both(self.lane == 0, when)
        self.when(condition, lambda: cute.arch.mbarrier_arrive(self.mbarrier(barrier, stage)))

    def mbarrier_arrive_cluster(
        self, barrier: Barrier, stage: Any, mask: Any, when: Any = True, scope: str = "cluster"
    ) -> None:
        if scope not in ("cluster", "relaxed"):
            raise ScopeError("an arrival at peers needs cluster scope; CTA scope exists on the model, to show the bug")
        # CuTe DSL's default has CTA scope: at a peer it only counts, and releases nothing.
        kind = {"scope": MemScopeKind.CLUSTER} if scope == "cluster" else {}
        mine = ((Int32(mask) >> self.lane) & 1) == 1
        self.when(
            control.both(mine, when),
            lambda: cute.arch.mbarrier_arrive(self.mbarrier(barrier, stage), self.lane, **kind),
        )

    def mbarrier_arrive_expect_tx(self, barrier: Barrier, stage: Any, nbytes: int) -> None:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.mbarrier(barrier, stage), nbytes)

    def mbarrier_expect_tx(self, barrier: Barrier, stage: Any, nbytes: int) -> None:
        with cute.arch.elect_one():
            cute.arch.mbarrier_expect_tx(self.mbarrier(barrier, stage), nbytes)

    # ---- other barriers and fences --------------------------------------------------------------------------------

    def named_barrier_sync(self, barrier: NamedBarrier, instance: Any = 0) -> None:
        cute.arch.barrier(barrier_id=barrier.id + instance, number_of_threads=barrier.threads)

    def named_barrier_arrive(self, barrier: NamedBarrier, instance: Any = 0) -> None:
        cute.arch.barrier_arrive(barrier_id=barrier.id + instance, number_of_threads=barrier.threads)

    def cluster_arrive(self, scope: str = "cluster") -> None:
        if scope == "relaxed":
            cute.arch.cluster_arrive_relaxed()
        else:
            cute.arch.cluster_arrive()

    def fence_proxy_async(self) -> None:
        cute.arch.fence_proxy("async.shared", space="cta")

    def fence_proxy_async_global(self) -> None:
        cute.arch.fence_proxy("async.global")

    # ---- queues ---------------------------------------------------------------------------------------------------

    def store_words(self, slot: SlotRef, words: Sequence[Any], barrier: Barrier) -> None:
        size = slot.buffer.tile[0]
        filled = [*words, *[0] * (size - len(words))]
        start = cute.recast_ptr(self.shared + slot.buffer.offset, dtype=Int32) + slot.stage * size

        def store() -> None:
            store_words(start, filled, self.mbarrier(barrier, slot.stage), self.lane)

        control.when(self.lane < self.plan.cluster_size, store)

    def read_words(self, slot: SlotRef, count: int, without_data: Callable[[], Sequence[int]]) -> Sequence[Any]:
        source = self.buffers[slot.buffer.name]
        return [cute.arch.make_warp_uniform(source[(i, slot.stage)]) for i in range(count)]

    # ---- counters and tables --------------------------------------------------------------------------------------

    def lane_0(self, body: Callable[[], None], when: Any = True) -> None:
        self.when(control.both(self.lane == 0, when), body)

    def shuffle(self, value: Any) -> Any:
        return cute.arch.shuffle_sync(value, 0)

    def launch_words(self, in_machine: Callable[[], Sequence[int]]) -> Sequence[Any]:
        return self.kept

    def atomic_add(self, counter: Any, in_turn: Callable[[], int]) -> Any:
        address = (self.scratch[0].iterator + counter).llvm_ptr
        return Int32(cute.arch.atomic_add(address, Int32(1), sem="relaxed", scope="gpu"))

    def store_counter(self, counter: Any, value: int) -> None:
        self.scratch[0][counter] = Int32(value)

    def load_entry(self, table: str, i: Any, without_data: int) -> Any:
        entries = cute.make_tensor(self.addressed[table].iterator, cute.make_layout((2**31 - 1,), stride=(1,)))
        return cute.arch.make_warp_uniform(entries[i])

    def ballot(self, table: str, first: Any, count: Any, holds: Callable[[Any, Any], Any], without_data: int) -> Any:
        entries, mine, vote = self.addressed[table], first + self.lane, self.cells(0)

        def look() -> None:
            vote[0] = cutlass.select_(holds(mine, entries[mine]), Int32(1), Int32(0))

        control.when(mine < count, look)
        return cute.arch.popc(cute.arch.vote_ballot_sync(vote[0] != 0))

    # ---- TMA ------------------------------------------------------------------------------------------------------

    def tma_load(
        self,
        load: Load,
        stage: Any,
        at: Sequence[Any],
        barrier: Barrier,
        mask: Any = None,
        share: Any = 0,
        *,
        part: Any = None,
        anywhere: bool = False,
        offsets: Sequence[Any] = (),
    ) -> None:
        mbarrier = self.mbarrier(barrier, stage)
        if load.encoded:
            return self.load_encoded(load, stage, at, share if part is None else part, mbarrier, mask, offsets)
        how: dict[str, Any] = {"tma_bar_ptr": mbarrier}
        if mask is not None:
            how["mcast_mask"] = Int16(mask)
        if load.l2_hint is not None:
            how["cache_policy"] = Int64(L2_POLICIES[load.l2_hint])

        first = None if part is None else part * moved_extents(load)[0]

        def one(piece: Any) -> None:
            slot, source = self.partition_of(load, at, share, load.peers, first, piece)
            cute.copy(self.atoms[load.name][0], source, slot[(None, stage)], **how)

        def whole() -> None:
            control.each(pieces_of(load), one)

        if load.edge_rows:
            row = len(load.dims) - 2
            end, extent = at[row] + load.tile[row], self.extent(load.argument, row)
            control.when(end <= extent, whole)
            control.when(end > extent, lambda: load_edge(self, load, stage, at, share, how))
        else:
            whole()

    def tma_store(self, store: Store, stage: Any, at: Sequence[Any], rows: Any = None, part: Any = None) -> None:
        if store.clipped:  # see `layouts.clipped`
            height = store.buffer.tile[0]
            at = (at[0] + rows, height - rows, *at[1:])
        atom = self.atoms[store.name][0]
        how = {} if store.l2_hint is None else {"cache_policy": Int64(L2_POLICIES[store.l2_hint])}
        elected = COPY_ELECTS["reduce" if store.reduce else "store"]

        first = None if part is None else part * moved_extents(store)[0]

        def one(piece: Any) -> None:
            slot, target = self.partition_of(store, at, 0, 1, first, piece)
            with contextlib.nullcontext() if elected else cute.arch.elect_one():
                cute.copy(atom, slot[(None, stage)], target, **how)

        control.each(pieces_of(store), one)

    def bulk_commit_group(self) -> None:
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_commit_group()

    def bulk_wait_group(self, pending: int, read: bool) -> None:
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_wait_group(pending, read=read)
        cute.arch.sync_warp()

    # ---- wgmma ----------------------------------------------------------------------------------------------------

    def wgmma(self, matmul: Matmul, acc: Any, a: Any, b: SlotRef) -> None:
        self.matmuls[matmul.name].issue(acc, a.stage if isinstance(a, SlotRef) else a, b.stage)

    # ---- registers ------------------------------------------------------------------------------------------------

    def setmaxnreg(self, registers: int, increase: bool) -> None:
        change = cute.arch.setmaxregister_increase if increase else cute.arch.setmaxregister_decrease
        change(registers)

    # ---- handles --------------------------------------------------------------------------------------------------

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
