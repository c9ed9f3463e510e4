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
from tmapipe.gpu.layouts import (
    L2_POLICIES,
    moved_extents,
    pieces_of,
)
from tmapipe.gpu.peers import store_words
from tmapipe.isa.values import SlotRef
from tmapipe.plan.model import Barrier, Load, Matmul, NamedBarrier, Store

__all__ = ["GpuIsa"]

#: Whether `cute.copy` elects the issuing lane by itself, as its PTX shows (CuTe DSL 4.8.1; tests/emit checks it).
COPY_ELECTS = {"load": True, "store": False, "reduce": True}


class GpuIsa(CopyEmitters, EncodedEmitters):
    """The instructions, as documented in `tmapipe.isa`. Arguments as of `GpuWarp`."""

    # ---- what CuTe DSL has as it is -------------------------------------------------------------------------------

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

        if not load.edge_rows:
            return whole()
        row = len(load.dims) - 2
        end, extent = at[row] + load.tile[row], self.extent(load.argument, row)
        control.when(end <= extent, whole)
        control.when(end > extent, lambda: load_edge(self, load, stage, at, share, how))

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
