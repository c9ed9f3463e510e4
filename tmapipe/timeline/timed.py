"""The model with times: the agent with the least time takes the next step, and a cost model says how long that
takes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import attrs
import numpy as np

from tmapipe.errors import PipelineError
from tmapipe.isa import ops
from tmapipe.isa.effects import Start, declared
from tmapipe.isa.ops import Agent, Flight
from tmapipe.model.layout import Layout
from tmapipe.model.machine import Machine, Scheduler
from tmapipe.model.state import APPLY, WAITS, State
from tmapipe.model.warp import MachineFragments, MachineIsa
from tmapipe.plan.rings import Matmul
from tmapipe.plan.thread_layout import ThreadLayout
from tmapipe.protocol.tile import Tile

# ---- costs -----------------------------------------------------------------------------------------------------------
#
# How long operations take: a cost model of one multiprocessor of an H200, in cycles.
#
# It predicts steady states: what waits for what, and which of the engines is the limit. It has no conflicts of banks,
# no instruction cache, no registers, and integer arithmetic of loops costs nothing. Sources of the constants:
#
# - [fit] `tmapipe/tuning/cost.py`, fitted to measured GEMMs on an H200 (docs/internals/performance.md); - [paper]
# NVIDIA's H100 white paper, and the CUDA programming guide's table of arithmetic throughput, compute capability 9.0;
# - [taken] an order of magnitude, neither fitted nor measured here. Steady states hardly depend on these.


WARP = 32


@attrs.frozen
class Costs:
    """Constants of one kind of GPU, in cycles of a multiprocessor and bytes per cycle unless they say otherwise.

    Args:
        clock: GHz while tensor cores work [fit]; kernels that do not use them run at `boosted` [fit].
        macs: Products of 16-bit numbers that the tensor cores of a multiprocessor add up per cycle [paper: 4 x 512].
        shared: Bytes per cycle of shared memory [paper].
        ingest: Bytes per cycle that a multiprocessor takes in [fit].
        memory: GB/s of the device's memory that kernels reach which read and write [performance.md: copies].
        multiprocessors: That share the memory.
        load: From the issue of a load to its first byte, from L2 or memory [taken].
        store: From the issue of a store until its slot has been read, besides the bytes [taken].
        written: From there until the bytes are in memory [taken].
        held: Bytes of a multiprocessor's stores that L2 takes before memory has [taken].
        seen: From a phase's completion until a waiting warp goes on: half of a handover [fit: 239 for both sides, less the
            issue of operations].
        drained: From the end of a wgmma until a warp that waits for it goes on [taken].
        synced: The same of a barrier of warps [taken].
        peer: From a signal to another CTA of the cluster until it counts [taken].
        atomic: An atomic addition to global memory, or a word loaded from there [taken].
        issue: Of one operation without another cost [taken].
        tma: Of an operation that an engine carries out [taken].
        fence: Of a proxy fence [taken].
        membar: Of a release at cluster scope ["some hundred", isa/barriers.py].
        start: Of a kernel's first operations, before a role's body [taken].
    """

    clock: float = 1.6
    boosted: float = 1.95
    macs: float = 2048.0
    shared: float = 128.0
    ingest: float = 79.6
    memory: float = 4300.0
    multiprocessors: int = 132
    load: float = 600.0
    store: float = 100.0
    written: float = 500.0
    held: float = 65536.0
    seen: float = 60.0
    drained: float = 30.0
    synced: float = 20.0
    peer: float = 200.0
    atomic: float = 700.0
    issue: float = 2.0
    tma: float = 20.0
    fence: float = 20.0
    membar: float = 200.0
    start: float = 400.0


H200 = Costs()


def clock_of(plan: Any, costs: Costs = H200) -> float:
    """GHz: lower if tensor cores work."""
    return costs.clock if plan.matmuls else costs.boosted


#: Operations of a warp that cost more than `Costs.issue`, and the constant.
_NAMED = {
    ops.MbarArriveTx: "tma", ops.MbarExpectTx: "tma", ops.FenceProxyAsync: "fence", ops.FenceProxyAsyncGlobal: "fence",
    ops.CounterAdd: "atomic", ops.TableLoad: "atomic", ops.WgmmaFence: "issue",
}  # fmt: skip

#: Instructions a warp needs for 32 results, as cycles of its quarter of a multiprocessor [paper]: 32 a cycle are fp32's
#: additions and products; 16 a cycle of a whole multiprocessor are special functions.
_SPECIAL = 8.0
_INSTRUCTIONS = {
    "exp": _SPECIAL + 1, "exp2": _SPECIAL, "log": _SPECIAL + 1, "log2": _SPECIAL, "tanh": _SPECIAL, "rsqrt": _SPECIAL,
    "sqrt": _SPECIAL + 2, "sigmoid": 2 * _SPECIAL + 2, "erf": _SPECIAL + 12, "truediv": _SPECIAL + 4, "floordiv": 20.0,
    "mod": 20.0, "widen": 0.5, "to_bf16": 1.0, "to_fp16": 1.0,
}  # fmt: skip
_SHUFFLE = 4.0  # 32 results a cycle of a whole multiprocessor [paper]


def elementwise(name: str, elements: int) -> float:
    """Cycles in which a warp applies the operation *name* to so many elements of a fragment."""
    return math.ceil(elements / WARP) * _INSTRUCTIONS.get(name, 1.0)


def reduction(elements: int, lines: int, steps: int) -> float:
    """Cycles in which a warp reduces so many elements to *lines* numbers, which *steps* shuffles each combine."""
    return math.ceil(elements / WARP) + math.ceil(lines / WARP) * steps * (_SHUFFLE + 1)


def cycles_of_wgmma(matmul: Matmul, costs: Costs = H200) -> float:
    """Cycles of the tensor cores for one slot's products of one warpgroup. Each instruction reads b, and a unless registers
    hold it, from shared memory meanwhile."""
    m, n, k = matmul.shape
    rows, size = m // matmul.warpgroups, matmul.b.dtype.bytes
    products = rows * n * k * size / 2 / costs.macs
    read = (rows * k * (matmul.a is not None) + math.ceil(rows / 64) * n * k) * size
    return max(products, read / costs.shared)


def cycles_of(costs: Costs, layout: Layout, agent: int, op: Any) -> float:
    """Cycles that a warp spends on one operation, without waits."""
    kind = type(op)
    if kind in (ops.GridWait, ops.GridLaunch):
        return 0.0  # no other kernel is looked at
    if kind in (ops.SlotRead, ops.SlotWrite):
        return costs.issue + layout.slots[op.slot][0].slot_bytes / op.parts / costs.shared
    if kind is ops.TileStore:
        store = layout.stores[op.store]
        moved = math.prod(store.tile) * store.buffer.dtype.bytes / layout.roles.count(layout.role(agent))
        return costs.tma + moved / costs.shared
    if kind is ops.MbarArriveCluster:
        return costs.membar if op.scope == "cluster" else costs.tma
    if kind is ops.ClusterArrive:
        return costs.membar if op.scope == "cluster" else costs.issue
    name = _NAMED.get(kind)
    if name is not None:
        return float(getattr(costs, name))
    return costs.tma if declared(kind).effect(Start) is not None else costs.issue


# ---- timed -----------------------------------------------------------------------------------------------------------
#
# The machine model with times: who is first takes the next step, and each step takes what `costs` says.
#
# Each warp has its own time. A step is taken by whoever's time is the least, so the order of steps is that of their
# times, and a correct kernel does what it does in every other interleaving. Engines serve one request after another.


class Step(NamedTuple):
    """One step of a warp or an engine.

    Args:
        cluster: In the grid.
        agent: A warp, or a flight.
        op: The operation; of a flight, the one that issued it; None: arithmetic of a warp.
        facts: What the machine answered.
        came: When the warp came to it, or the copy was issued (cycles).
        began: When it went on: later than *came* if the warp was blocked, or the engine busy.
        end: When it was over.
        ended_by: The number of the step that ended the wait, or -1.
        tile: Of the output, which the warp is at, in words.
        last: The step of the engine, of a flight.
    """

    cluster: int
    agent: Agent
    op: Any
    facts: Any
    came: float
    began: float
    end: float
    ended_by: int = -1
    tile: str = ""
    last: Any = None


@attrs.frozen
class Share:
    """What one CTA has of the GPU.

    Args:
        reuse: By load, how often its bytes are loaded by all CTAs together, of which memory serves one.
        read: Bytes per cycle from memory.
        write: The same to memory.
        resident: CTAs of a multiprocessor, which share it.
    """

    reuse: Mapping[str, float]
    read: float
    write: float
    resident: int = 1


class _Fragments(MachineFragments):
    """Counts the cycles of arithmetic."""

    isa: _Isa

    def elementwise(self, name: str, operands: list[Any]) -> Any:
        found = super().elementwise(name, operands)
        if found is not None:
            self.isa.work += elementwise(name, np.size(found))
        return found

    def reduce_in_warp(self, layout: ThreadLayout, op: str, kind: str, along: str, data: Any) -> Any:
        if data is not None:
            lanes = getattr(layout, "row_lanes", 4) if along == "rows" else 8
            lines = max(1, np.size(data) * lanes // max(1, layout.columns if along == "rows" else layout.rows))
            self.isa.work += reduction(np.size(data), lines, round(math.log2(max(2, lanes))))
        return super().reduce_in_warp(layout, op, kind, along, data)


class _Isa(MachineIsa):
    """work: cycles of arithmetic since the last operation; tile: that the warp is at."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.work, self.tile = 0.0, ""
        self.fragments = _Fragments(self)

    def enter(self, tile: Tile) -> None:
        super().enter(tile)
        self.tile = f"tile {tile}"


class TimedMachine(Machine):
    """A `Machine` whose run has times.

    steps: of the first *most* clusters, each from time 0 on; blocked: the warps that could not go on when the run ended, each
    as (cluster, warp, operation, since when, tile).
    """

    def __init__(self, plan: Any, share: Share, most: int, *, costs: Costs = H200, **options: Any):
        super().__init__(plan, trace=True, **options)
        self.share, self.costs, self.most, self.gigahertz = share, costs, most, clock_of(plan, costs)
        self.steps: list[Step] = []
        self.blocked: list[tuple[int, int, Any, float, str]] = []
        self._cluster = -1
        self._isas: list[Any] = [None] * self.layout.agents

    def isa(self, *arguments: Any) -> MachineIsa:
        made = _Isa(*arguments)
        self._isas[made.agent], self._cluster = made, made.cluster_id
        return made

    def scheduler(self, state: State, programs: list[Iterator[Any]], where: Any) -> Scheduler:
        return _Scheduler(state, programs, self, list(self._isas), self._cluster, where)


class _Scheduler(Scheduler):
    """Takes steps in the order of their times."""

    def __init__(
        self,
        state: State,
        programs: list[Iterator[Any]],
        machine: TimedMachine,
        isas: list[Any],
        cluster: int,
        where: Any,
    ):
        super().__init__(state, programs, max_steps=machine.max_steps, where=where)
        self.machine, self.isas, self.cluster, self.costs = machine, isas, cluster, machine.costs
        layout = self.layout = state.layout
        self.queue: list[tuple[float, int, Any]] = []
        self.serial = 0
        self.came: dict[Agent, float] = {}
        self.worked: set[int] = set()  # warps whose arithmetic before their present operation has been counted
        self.engines = _Engines(layout, machine.costs, machine.share)
        self.issued: dict[Flight, tuple[Any, float]] = {}
        self.cause: dict[int, int] = {}  # by warp that was woken: the step which did so
        for agent in range(layout.agents):
            self._at(self.costs.start, agent)

    def _at(self, time: float, who: Any) -> None:
        heapq.heappush(self.queue, (time, self.serial, who))
        self.serial += 1

    def _run_fair(self) -> None:
        while self.queue:
            time, _, who = heapq.heappop(self.queue)
            if isinstance(who, Flight):
                self._fly(who, time)
            else:
                self._walk(who, time)
        for agents in self.blocked.values():
            for agent in agents:
                stuck = self.cluster, agent, self.current[agent], self.came[agent], self.isas[agent].tile
                self.machine.blocked.append(stuck)

    # ---- warps ----------------------------------------------------------------------------------------------------

    def _walk(self, agent: int, time: float) -> None:
        """One operation of a warp, or the arithmetic before it."""
        op, isa = self.current[agent], self.isas[agent]
        if op is None:
            op = self.current[agent] = next(self.programs[agent], None)
            if op is None:
                return
            self.came[agent] = time
        if isa.work:
            began, end = self.engines.compute(agent, time, isa.work)
            isa.work = 0.0
            self._note(Step(self.cluster, agent, None, None, time, began, end, -1, isa.tile))
            self.came[agent] = end
            return self._at(end, agent)
        kind = type(op)
        wait = WAITS.get(kind)
        if wait is not None and not wait.enabled(self.state, agent, op):
            self.blocked.setdefault(wait.key(self.state, agent, op), []).append(agent)
            return
        tile, facts = isa.tile, APPLY[kind](self.state, agent, op)
        end = time + cycles_of(self.costs, self.layout, agent, op)
        if kind is ops.Exit:
            isa.tile = ""
        number = self._note(
            Step(self.cluster, agent, op, facts, self.came[agent], time, end, self.cause.pop(agent, -1), tile)
        )
        self._tell(agent, op, facts)
        self.current[agent] = None
        for flight in facts if _starts(op) else ():
            self.issued.setdefault(flight, (op, time))
        self._wake(end, number)
        self._at(end, agent)

    def _tell(self, agent: Agent, op: Any, facts: Any) -> None:
        for watcher in self.watchers:
            watcher(agent, op, facts)
        self.step_count += 1
        if self.step_count > self.max_steps:
            raise PipelineError(
                f"stopped after {self.max_steps} operations of one cluster. Fix: see that every loop ends."
            )

    def _note(self, step: Step) -> int:
        if self.cluster >= self.machine.most:
            return -1
        self.machine.steps.append(step)
        return len(self.machine.steps) - 1

    def _wake(self, time: float, number: int) -> None:
        """Takes up the warps that step *number* has woken, and flights that it has started."""
        state = self.state
        for key in state.woken:
            for agent in self.blocked.pop(key, ()):
                self.cause[agent] = number
                self._at(time + self.engines.until_seen(self.current[agent]), agent)
        state.woken.clear()
        for flight in state.started:
            step = state.step_of(flight)
            op, _ = self.issued.get(flight, (None, time))
            self._at(self.engines.end_of(flight, step, op, time), flight)
        state.started.clear()

    # ---- engines --------------------------------------------------------------------------------------------------

    def _fly(self, flight: Flight, time: float) -> None:
        """A step of an engine."""
        step = self.state.step_of(flight)
        assert step is not None, flight
        facts = APPLY[type(step)](self.state, flight, step)
        number = -1
        if not isinstance(step, ops.LoadWrite):
            op, since = self.issued[flight]
            began = self.engines.began.get(flight, since)
            number = self._note(Step(self.cluster, flight, op, facts, since, began, time, last=type(step)))
        self._tell(flight, step, facts)
        self._wake(time, number)


def _starts(op: Any) -> bool:
    return declared(type(op)).effect(Start) is not None


class _Engines:
    """What is busy until when, by CTA. began: when an engine began with a flight."""

    def __init__(self, layout: Layout, costs: Costs, share: Share):
        self.layout, self.costs, self.share = layout, costs, share
        self.began: dict[Flight, float] = {}
        self.tensor, self.asked, self.landing, self.reading, self.writing = ([0.0] * layout.ctas for _ in range(5))
        self.quarters = [0.0] * (4 * layout.ctas)
        self.wgmma = {name: cycles_of_wgmma(matmul, costs) for name, matmul in layout.matmuls.items()}

    def compute(self, agent: int, time: float, cycles: float) -> tuple[float, float]:
        """When a warp's arithmetic begins and ends: each quarter of the multiprocessor has every fourth warp."""
        cta, warp = divmod(agent, self.layout.warps)
        place = 4 * cta + warp % 4
        began = max(time, self.quarters[place])
        self.quarters[place] = began + cycles * self.share.resident
        return began, self.quarters[place]

    def until_seen(self, op: Any) -> float:
        """From what ends a wait until the warp goes on."""
        if isinstance(op, ops.WgmmaWait):
            return self.costs.drained
        return self.costs.seen if isinstance(op, (ops.MbarWait, ops.ClusterWait)) else self.costs.synced

    def end_of(self, flight: Flight, step: Any, op: Any, time: float) -> float:
        """When the next step of a flight will be over, if the one before is at *time*."""
        costs, cta = self.costs, flight.cta
        if isinstance(step, ops.WgmmaDone):
            self.began[flight] = max(time, self.tensor[cta])
            self.tensor[cta] = self.began[flight] + self.wgmma[op.matmul] * self.share.resident
            return self.tensor[cta]
        if isinstance(step, ops.LoadComplete):
            return time
        if isinstance(step, ops.StoreRead):
            nbytes = self.layout.slots[op.slot][0].slot_bytes
            self.began[flight] = max(time, self.reading[cta], self.writing[cta] - costs.held / self.share.write)
            self.reading[cta] = self.began[flight] + nbytes / costs.ingest * self.share.resident
            self.writing[cta] = max(self.writing[cta], self.reading[cta]) + nbytes / self.share.write
            return self.reading[cta] + costs.store
        if isinstance(step, ops.StoreWrite):
            return max(time, self.writing[cta]) + costs.written
        return self._landed(flight, op, time)

    def _landed(self, flight: Flight, op: Any, time: float) -> float:
        costs, cta, nbytes = self.costs, flight.cta, op.nbytes
        rate = costs.ingest / self.share.resident
        if flight.kind not in ("load", "cp.async"):  # from another CTA
            self.began[flight] = time
            self.landing[cta] = max(time + costs.peer, self.landing[cta]) + nbytes / rate
            return self.landing[cta]
        source = flight.issuer // self.layout.warps
        began = self.asked[source]
        if flight.cta == _first(flight, op, source):  # the bytes of a multicast leave L2 once
            began = max(time, self.asked[source])
            self.asked[source] = began + nbytes / min(rate, self.share.read * self.share.reuse.get(op.load, 1.0))
        self.began[flight] = max(time, began)
        arrives = max(time, self.asked[source]) + costs.load
        self.landing[cta] = max(arrives, self.landing[cta] + nbytes / rate)
        return self.landing[cta]


def _first(flight: Flight, op: Any, source: int) -> int:
    """The CTA whose flight of a load stands for all of them."""
    mask = getattr(op, "mask", None)
    return source if mask is None else (mask & -mask).bit_length() - 1
