"""MachineIsa: one warp's view of the machine, the CPU reading of `tmapipe.isa.Isa`.

Each method makes one operation (`bar.sync`: two) and hands it to `emit`, which returns when the machine has executed it, or
at once if the operations are only recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tmapipe.errors import InputError, PipelineError, ScopeError
from tmapipe.isa import ops
from tmapipe.isa.interface import SlotRef
from tmapipe.machine.hazard import hazard
from tmapipe.machine.layout import Layout
from tmapipe.machine.locate import locate
from tmapipe.machine.memory import Accumulator, Memory
from tmapipe.machine.nodata import NO_DATA
from tmapipe.plan.model import Barrier, Load, Matmul, NamedBarrier, RoleWarps, Store

__all__ = ["MachineIsa"]

LARGEST = 2**31 - 1


class MachineIsa:
    """Methods as documented in `tmapipe.isa.Isa`. memory: None when the protocol runs without data."""

    def __init__(
        self,
        layout: Layout,
        agent: int,
        cluster_id: int,
        clusters: int,
        shapes: dict[str, tuple[int, ...]],
        emit: Callable[[Any], None],
        memory: Memory | None = None,
    ):
        self.layout, self.plan, self.agent, self.emit, self.memory = layout, layout.plan, agent, emit, memory
        self.cta_rank, self.warp = divmod(agent, layout.warps)
        self.cluster_id, self.clusters, self.shapes = cluster_id, clusters, shapes
        self.numbers = 0

    # ---- structure ------------------------------------------------------------------------------------------------

    def cells(self, *initial: int) -> list[int]:
        return list(initial)

    def select(self, condition: bool, then: Any, otherwise: Any) -> Any:
        return then if condition else otherwise

    def here(self, value: Any) -> Any:
        return value

    def when(self, condition: bool, body: Callable[[], None]) -> None:
        if condition:
            body()

    def loop(self, trips: int, body: Callable[[int], None]) -> None:
        for i in range(trips):
            body(i)

    def loop_while(self, state: Any, body: Callable[[], None], turns: Callable[[], int]) -> None:
        if self.memory is None:
            self.loop(turns(), lambda i: body())
        while state[0]:
            body()

    def call(self, body: Callable[..., None], *arguments: Any) -> None:
        try:
            body(*arguments)
        except (InputError, ScopeError) as error:
            _add_line(error)
            raise

    def extent(self, argument: str, dim: int) -> int:
        return self.shapes[argument][dim]

    def divisors(self, values: dict[str, int]) -> dict[str, int]:
        return values

    # ---- other kernels of the stream ------------------------------------------------------------------------------

    def griddepcontrol_wait(self) -> None:
        pass  # the model runs one kernel

    def griddepcontrol_launch_dependents(self) -> None:
        pass

    # ---- mbarrier -------------------------------------------------------------------------------------------------

    def mbarrier_init(self, barrier: Barrier, stage: int, count: int) -> None:
        self.emit(ops.MbarInit(self._bar(barrier, stage), count))

    def fence_mbarrier_init(self) -> None:
        self.emit(ops.FenceMbarInit())

    def mbarrier_wait(self, barrier: Barrier, stage: int, parity: int) -> None:
        self.emit(ops.MbarWait(self._bar(barrier, stage), parity & 1))

    def mbarrier_arrive(self, barrier: Barrier, stage: int, lanes: int = 1, when: bool = True) -> None:
        if when:
            self.emit(ops.MbarArrive(self._bar(barrier, stage), (1 << lanes) - 1))

    def mbarrier_arrive_cluster(
        self, barrier: Barrier, stage: int, mask: int, when: bool = True, scope: str = "cluster"
    ) -> None:
        if when:
            self.emit(ops.MbarArriveCluster(self._bar(barrier, stage), mask, scope))

    def mbarrier_arrive_expect_tx(self, barrier: Barrier, stage: int, nbytes: int) -> None:
        self.emit(ops.MbarArriveTx(self._bar(barrier, stage), nbytes))

    def mbarrier_expect_tx(self, barrier: Barrier, stage: int, nbytes: int) -> None:
        self.emit(ops.MbarExpectTx(self._bar(barrier, stage), nbytes))

    # ---- other barriers and fences --------------------------------------------------------------------------------

    def cta_sync(self) -> None:
        self.emit(ops.BarArrive(0, 0, True))
        self.emit(ops.BarWait(0))

    def warp_sync(self) -> None:
        self.emit(ops.WarpSync())

    def named_barrier_sync(self, barrier: NamedBarrier, instance: int = 0) -> None:
        self.emit(ops.BarArrive(self._named(barrier, instance), barrier.threads, True))
        self.emit(ops.BarWait(barrier.id + instance))

    def named_barrier_arrive(self, barrier: NamedBarrier, instance: int = 0) -> None:
        self.emit(ops.BarArrive(self._named(barrier, instance), barrier.threads, False))

    def cluster_arrive(self, scope: str = "cluster") -> None:
        self.emit(ops.ClusterArrive(scope))

    def cluster_wait(self) -> None:
        self.emit(ops.ClusterWait())

    def fence_proxy_async(self) -> None:
        self.emit(ops.FenceProxyAsync())

    # ---- tiles in dynamic order -----------------------------------------------------------------------------------

    def next_number(self, last: int) -> int:
        self.numbers += 1
        return self.cluster_id + (self.numbers - 1) * self.clusters

    def claim_place(self) -> int:
        return self.cluster_id

    def places_claimed(self) -> None:
        pass

    def store_words(self, slot: SlotRef, words: Sequence[int], barrier: Barrier) -> None:
        everyone = (1 << self.plan.cluster_size) - 1
        place, bar = self._slot(slot.buffer, slot.stage), self._bar(barrier, slot.stage)
        self.emit(ops.TmaLoad("", place, bar, slot.buffer.slot_bytes, everyone, at=tuple(words)))

    def read_words(self, slot: SlotRef, count: int, without_data: Callable[[], Sequence[int]]) -> Sequence[int]:
        self.emit(ops.SlotRead(self._slot(slot.buffer, slot.stage)))
        if self.memory is None:
            return without_data()
        return [int(word) for word in self.memory.results[self.agent][:count]]

    # ---- tables ---------------------------------------------------------------------------------------------------

    def table_value(self, table: str, i: int) -> int:
        return LARGEST if self.memory is None else int(self.memory.tensors[table][i])

    def table_count(self, table: str, count: int, holds: Callable[[int, int], bool]) -> int:
        return sum(bool(holds(i, self.table_value(table, i))) for i in range(count))

    # ---- TMA ------------------------------------------------------------------------------------------------------

    def prefetch_descriptor(self, part: Load | Store) -> None:
        self.emit(ops.PrefetchDescriptor(part.name))

    def tma_load(
        self, load: Load, stage: int, at: Sequence[int], barrier: Barrier, mask: int | None = None, share: int = 0
    ) -> None:
        shares = 1 if mask is None else load.peers
        slot, bar = self._slot(load.buffer, stage), self._bar(barrier, stage)
        self.emit(ops.TmaLoad(load.name, slot, bar, load.buffer.slot_bytes // shares, mask, share, shares, tuple(at)))

    def tma_store(self, store: Store, stage: int, at: Sequence[int], rows: int | None = None) -> None:
        self.emit(ops.TmaStore(store.name, self._slot(store.buffer, stage), tuple(at), rows))

    def bulk_commit_group(self) -> None:
        self.emit(ops.BulkCommit())

    def bulk_wait_group(self, pending: int, read: bool) -> None:
        self.emit(ops.BulkWait(pending, read))

    # ---- wgmma ----------------------------------------------------------------------------------------------------

    def accumulator(self, matmul: Matmul, empty: bool = True) -> Any:
        self.emit(ops.AccumulatorWrite(matmul.name))
        return NO_DATA if self.memory is None else Accumulator(matmul, self.warp, empty)

    def accumulator_promote(self, matmul: Matmul, acc: Any) -> None:
        self.emit(ops.AccumulatorWrite(matmul.name))  # the sums are in fp32 here anyway

    def wgmma_fence(self) -> None:
        self.emit(ops.WgmmaFence())

    def wgmma(self, matmul: Matmul, acc: Any, a: SlotRef, b: SlotRef) -> None:
        self._give(acc)
        self.emit(ops.Wgmma(matmul.name, self._slot(a.buffer, a.stage), self._slot(b.buffer, b.stage)))

    def wgmma_commit(self) -> None:
        self.emit(ops.WgmmaCommit())

    def wgmma_wait(self, pending: int) -> None:
        self.emit(ops.WgmmaWait(pending))

    def accumulator_columns(self, matmul: Matmul, acc: Any, block: int, first: int, columns: int) -> Any:
        self.emit(ops.AccumulatorRead(matmul.name))
        if self.memory is None:
            return NO_DATA
        if not acc.defined:
            raise ScopeError(f"accumulate(empty=False) of {matmul.name} ended without acc.add(). Leave out empty=.")
        return acc.values[block, :, first : first + columns].copy()

    def write_columns(self, matmul: Matmul, values: Any, slot: SlotRef) -> None:
        self._write_rows(slot, values)

    def row_sums(self, matmul: Matmul, values: Any, columns: int, first: int, inside: int, before: Any) -> Any:
        if self.memory is None:
            return NO_DATA
        counted = _dealt(values, columns)[:, first : max(first, inside)]
        with np.errstate(all="ignore"):  # infinities and NaN are values here, as on the GPU
            sums = counted.sum(1, dtype=np.float32)
            return sums if before is None else before + sums

    def write_row_sums(self, matmul: Matmul, sums: Any, slot: SlotRef) -> None:
        self._write_rows(slot, sums)

    def column_sums(self, matmul: Matmul, values: Any, columns: int, inside: int) -> Any:
        if self.memory is None:
            return NO_DATA
        counted = _dealt(values, columns)[: max(0, inside - 16 * (self.warp % 4))]
        with np.errstate(all="ignore"):
            return counted.sum(0, dtype=np.float32)

    def write_column_sums(self, matmul: Matmul, sums: Any, slot: SlotRef) -> None:
        self._write_rows(slot, sums)

    def read_columns(self, matmul: Matmul, slot: SlotRef, along: tuple[str, ...], columns: int, start: int = 0) -> Any:
        place, warp, warps = self._slot(slot.buffer, slot.stage), self.warp % 4, 4 * matmul.warpgroups
        first = matmul.group(self.warp) * 4 + warp
        whole = along != ("m", "n")
        self.emit(ops.SlotRead(place, 0, 1, "rows") if whole else ops.SlotRead(place, first, warps, "rows"))
        if self.memory is None:
            return NO_DATA
        values = self.memory.results[self.agent].astype(np.float32)
        if along == ("m",):
            return values[start + 16 * first : start + 16 * first + 16, None]
        return values[None, start : start + (columns if along else 1)] if whole else values

    def apply(self, function: Callable[..., Any], fragments: Sequence[Any], named: dict[str, Any]) -> Any:
        widened = (
            f.astype(np.float32) if isinstance(f, np.ndarray) else f for f in fragments
        )  # from int32, of integers
        return function(*widened, **named)

    # ---- generic accesses -----------------------------------------------------------------------------------------

    def read(self, slot: SlotRef, role: RoleWarps) -> Any:
        self.emit(ops.SlotRead(self._slot(slot.buffer, slot.stage), self.warp - role.first_warp, role.warps))
        return NO_DATA if self.memory is None else self.memory.results[self.agent]

    def write(self, slot: SlotRef, values: Any, role: RoleWarps) -> None:
        self._give(values)
        self.emit(ops.SlotWrite(self._slot(slot.buffer, slot.stage), self.warp - role.first_warp, role.warps))

    def raw(
        self,
        gpu: Callable[..., None],
        cpu: Callable[..., None] | None,
        accesses: Sequence[tuple[SlotRef, str]],
        role: RoleWarps,
        proxy: str = "generic",
    ) -> None:
        if self.memory is not None and cpu is None:
            raise InputError(
                "k.raw(cpu)", cpu, "is what the model runs in place of CuTe DSL", "pass a function of arrays"
            )
        mine, shares = (self.warp - role.first_warp) % role.team_warps, role.team_warps
        name = _name(gpu)
        arrays: list[Any] = []
        for slot, kind in accesses:
            place = self._slot(slot.buffer, slot.stage)
            if kind != "write":
                part = (0, 1, f"whole/{name}") if kind == "read" else (mine, shares, f"rows/{name}")
                self.emit(ops.SlotRead(place, *part, proxy))
            if self.memory is not None:
                rows = slot.buffer.tile[0] // shares
                fresh = np.zeros((rows, *slot.buffer.tile[1:]), slot.buffer.dtype.numpy)
                arrays.append(fresh if kind == "write" else self.memory.results[self.agent])
        if self.memory is not None and cpu is not None:
            cpu(*arrays)
        for i, (slot, kind) in enumerate(accesses):
            if kind != "read":
                self._give(arrays[i] if arrays else None)
                self.emit(ops.SlotWrite(self._slot(slot.buffer, slot.stage), mine, shares, f"rows/{name}", proxy))

    # ---- registers ------------------------------------------------------------------------------------------------

    def setmaxnreg(self, registers: int, increase: bool) -> None:
        self.emit(ops.SetMaxNreg(registers, increase))

    # ---- operands -------------------------------------------------------------------------------------------------

    def _give(self, values: Any) -> None:
        if self.memory is not None:
            self.memory.operands[self.agent] = values

    def _write_rows(self, slot: SlotRef, values: Any) -> None:
        """The warp's quarter of a slot's rows."""
        self._give(values)
        self.emit(ops.SlotWrite(self._slot(slot.buffer, slot.stage), self.warp % 4, 4, "rows"))

    def _bar(self, barrier: Barrier, stage: int) -> int:
        if 0 <= stage < barrier.stages:
            return self.layout.bar_base[barrier.name] + stage
        raise self._outside(f"uses {barrier.name}[{stage}], but it has {barrier.stages} stages")

    def _slot(self, buffer: Any, stage: int) -> int:
        if 0 <= stage < buffer.stages:
            return self.layout.slot_base[buffer.name] + stage
        raise self._outside(f"uses slot {buffer.name}[{stage}], but there are {buffer.stages}")

    def _named(self, barrier: NamedBarrier, instance: int) -> int:
        if 0 <= instance < barrier.instances:
            return barrier.id + instance
        raise self._outside(f"uses {barrier.name}[{instance}], but it has {barrier.instances} instances")

    def _outside(self, text: str) -> Exception:
        return hazard(self.layout, "no-such-stage", self.agent, None, text)


def _dealt(values: Any, columns: int) -> np.ndarray:
    """A warp's 16 x *columns* values: an epilogue may have given fewer, or one, for all."""
    return np.broadcast_to(np.asarray(values, np.float32), (16, columns))


def _name(function: Callable[..., None]) -> str:
    """A raw function's name and first line, which tell it from others."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return name if code is None else f"{name} (line {code.co_firstlineno})"


def _add_line(error: PipelineError) -> None:
    """Says in the message of an error at which line of the body it was raised."""
    trace: Any = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    error.args = (f"{error} At {locate(trace.tb_frame)}.",)
