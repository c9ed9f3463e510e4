"""Plans and small kernel programs, written by hand over the instruction set, for the machine's tests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.oracle.plain import plainly, record
from tmapipe.base.arithmetic import DType, fp16, fp32
from tmapipe.model import Layout, Machine, Run, Scheduler, State
from tmapipe.plan.model import Load, Plan, RoleWarps, Store
from tmapipe.plan.rings import Barrier, Buffer, Matmul, NamedBarrier

TILE = (8, 16)


class Parts:
    """Collects a plan: offsets are handed out in order."""

    def __init__(self, cluster: int = 1, launch_registers: int = 64):
        self.cluster, self.launch_registers = {"m": cluster}, launch_registers
        self.offset = 0
        self.roles: list[RoleWarps] = []
        self.made: dict[str, list[Any]] = {
            k: [] for k in ("barriers", "named", "buffers", "loads", "stores", "matmuls")
        }

    def role(self, name: str, warps: int, first: int | None = None) -> RoleWarps:
        end = self.roles[-1].first_warp + self.roles[-1].warps if self.roles else 0
        self.roles.append(RoleWarps(name, end if first is None else first, warps))
        return self.roles[-1]

    def barrier(self, name: str, count: int = 1, stages: int = 1) -> Barrier:
        return self._keep("barriers", Barrier(name, self._take(8 * stages), stages, count))

    def named(self, name: str, id: int, threads: int, instances: int = 1) -> NamedBarrier:
        return self._keep("named", NamedBarrier(name, id, threads, instances))

    def buffer(
        self, name: str, tile: tuple[int, ...] = TILE, stages: int = 1, dtype: DType = fp32, at: int | None = None
    ) -> Buffer:
        offset = self._take(stages * math.prod(tile) * dtype.bytes) if at is None else at
        return self._keep("buffers", Buffer(name, offset, stages, tile, dtype))

    def load(
        self, buffer: Buffer, dims: tuple[str, ...] = ("m", "n"), tile: Any = None, peers: int = 1, vector: int = 0
    ) -> Load:
        made = Load(buffer.name, buffer.name, buffer, dims, tile or buffer.tile, peers, vector=vector)
        return self._keep("loads", made)

    def store(self, name: str, buffer: Buffer, dims: tuple[str, ...] = ("m", "n"), reduce: str | None = None) -> Store:
        return self._keep("stores", Store(name, name, buffer, dims, buffer.tile, reduce))

    def matmul(self, a: Buffer, b: Buffer, warpgroups: int, first_warp: int) -> Matmul:
        shape = (a.tile[0], b.tile[0], a.tile[1])
        return self._keep("matmuls", Matmul("mma", a, b, shape, warpgroups, first_warp))

    def plan(self, warps: int | None = None) -> Plan:
        return Plan(
            name="test",
            arch="sm_90a",
            cluster=self.cluster,
            roles=tuple(self.roles),
            barriers=tuple(self.made["barriers"]),
            named_barriers=tuple(self.made["named"]),
            buffers=tuple(self.made["buffers"]),
            rings=(),
            loads=tuple(self.made["loads"]),
            stores=tuple(self.made["stores"]),
            matmuls=tuple(self.made["matmuls"]),
            arguments=tuple(part.argument for kind in ("loads", "stores") for part in self.made[kind]),
            warps=warps or max(role.first_warp + role.warps for role in self.roles),
            smem_bytes=self.offset,
            launch_registers=self.launch_registers,
            registers={},
        )

    def _take(self, nbytes: int) -> int:
        start = self.offset
        self.offset += -(-nbytes // 128) * 128
        return start

    def _keep(self, kind: str, part: Any) -> Any:
        self.made[kind].append(part)
        return part


def init(isa: Any) -> None:
    """All mbarriers by warp 0, visible to the cluster."""

    def body() -> None:
        for barrier in isa.plan.barriers:
            isa.mbarrier_init(barrier, barrier.count)
        isa.fence_mbarrier_init()

    isa.when(isa.warp == 0, body)
    if isa.plan.cluster_size > 1:
        isa.cluster_arrive()
        isa.cluster_wait()
    else:
        isa.cta_sync()


def warps(plan: Plan, *programs: Any) -> Any:
    """An entry that runs ``programs[i](isa)`` in warp i (of every CTA) after `init`."""

    def entry(isa: Any) -> None:
        init(isa)
        if isa.warp < len(programs):
            programs[isa.warp](isa)

    return entry


def run(plan: Plan, entry: Any, tensors: dict[str, Any] | None = None, clusters: int = 1, **options: Any) -> Any:
    return Machine(plan, **options).run(plainly(entry), tensors or {}, clusters)


def run_recorded(plan: Plan, entry: Any, shapes: dict[str, Any], policy: str = "random", observer: Any = None) -> Any:
    """The protocol alone, without data, as the check runs it: recorded operations on the machine's state."""
    layout = Layout(plan)
    made = Run(layout)
    programs = record(plan, entry, shapes, layout=layout, locate=True)
    watchers = (made.watch,) if observer is None else (made.watch, observer)
    Scheduler(State(layout), [iter(program) for program in programs], policy, watchers=watchers).run()
    return made


class CopyRing:
    """x -> y, tile by tile, through a ring: one warp loads, one stores. Faults leave one thing out or change it."""

    def __init__(self, stages: int = 2, fault: str = "", dtype: DType = fp16, cluster: int = 1):
        parts = Parts(cluster)
        self.producer, self.consumer = parts.role("load", 1), parts.role("store", 1)
        self.full = parts.barrier("full", 1, stages)
        self.free = parts.barrier("free", 2 if fault == "count" else 1, stages)
        self.slots = parts.buffer("x", TILE, stages, dtype)
        self.x = parts.load(self.slots)
        self.y = parts.store("y", self.slots)
        self.stages, self.fault = stages, fault
        self.made = parts.plan()

    def entry(self, isa: Any) -> None:
        init(isa)
        rows = -(-isa.extent("x", 0) // TILE[0])
        columns = -(-isa.extent("x", 1) // TILE[1])
        total = rows * columns
        grid = isa.clusters * isa.plan.cluster_size
        mine = range(isa.cluster_id * isa.plan.cluster_size + isa.cta_rank, total, grid)
        places = [(i // columns * TILE[0], i % columns * TILE[1]) for i in mine]
        if isa.warp == self.producer.first_warp:
            self.load(isa, places)
        elif isa.warp == self.consumer.first_warp:
            self.store(isa, places)

    def load(self, isa: Any, places: list[tuple[int, int]]) -> None:
        for i, at in enumerate(places):
            stage, lap = i % self.stages, i // self.stages
            if self.fault != "no wait for free":
                isa.mbarrier_wait(self.free, stage, (lap & 1) ^ 1)
            nbytes = self.slots.slot_bytes + {"bytes": 16, "few bytes": -16}.get(self.fault, 0)
            isa.mbarrier_arrive_expect_tx(self.full, stage, nbytes)
            if self.fault != "no load":
                isa.tma_load(self.x, stage, at, self.full)

    def store(self, isa: Any, places: list[tuple[int, int]]) -> None:
        for i, at in enumerate(places):
            stage, lap = i % self.stages, i // self.stages
            if self.fault != "no wait for full":
                isa.mbarrier_wait(self.full, stage, lap & 1)
            isa.tma_store(self.y, stage, at)
            isa.bulk_commit_group()
            if self.fault != "no read wait":
                isa.bulk_wait_group(0, read=True)
            if self.fault != "no arrive":
                isa.mbarrier_arrive(self.free, stage, lanes=32 if self.fault == "lanes" else 1)
        isa.bulk_wait_group(0, read=False)


def ramp(shape: tuple[int, ...], dtype: DType = fp16) -> np.ndarray:
    """Small whole numbers, all different up to 1021, exact in every type but fp8."""
    return (np.arange(math.prod(shape)) % 1021 - 510).reshape(shape).astype(np.float32).astype(dtype.numpy)
