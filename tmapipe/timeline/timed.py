"""The model with times: the agent with the least time takes the next step, and a cost model says how long that
takes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from tmapipe.errors import PipelineError, require
from tmapipe.isa import Start, declared, ops
from tmapipe.isa.fragment import Fragment, SlotRef
from tmapipe.isa.ops import Agent, Flight
from tmapipe.model import Machine, MachineFragments, MachineIsa, Scheduler
from tmapipe.model.layout import Layout
from tmapipe.model.state import APPLY, WAITS, State
from tmapipe.plan.rings import Matmul
from tmapipe.plan.thread_layout import ThreadLayout
from tmapipe.protocol.tile import Tile
from tmapipe.timeline import (
    H200,
    SHUFFLE,
    WARP,
    Costs,
    clock_of,
    cycles_of,
    cycles_of_wgmma,
    elementwise,
    special,
    wgmmas_of,
)

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
        l2: By load, bytes per cycle that L2 serves.
        read: Bytes per cycle from memory.
        write: The same to memory.
        resident: CTAs of a multiprocessor, which share it.
    """

    reuse: Mapping[str, float]
    l2: Mapping[str, float]
    read: float
    write: float
    resident: int = 1


class _Fragments(MachineFragments):
    """Counts the cycles of arithmetic."""

    isa: _Isa

    def elementwise(self, name: str, operands: list[Any]) -> Any:
        data = super().elementwise(name, operands)
        if data is not None:
            self._takes(elementwise(name, np.size(data)), others=special(name, np.size(data)))
        return data

    def read(self, slot: SlotRef, layout: ThreadLayout, along: str = "tile") -> Fragment:
        values = super().read(slot, layout, along)
        self._takes(math.ceil(np.size(values.data) / WARP), self.isa.costs.words)
        return values

    def write(self, slot: SlotRef, values: Fragment, at: tuple[int, int] | None = None) -> None:
        super().write(slot, values, at)
        self._takes(math.ceil(np.size(values.data) / WARP), self.isa.costs.words)

    def only_inside(self, *arguments: Any, **named: Any) -> Any:
        values = super().only_inside(*arguments, **named)
        self._takes(2.0 * math.ceil(np.size(getattr(values, "data", values)) / WARP))
        return values

    def read_partials(self, *arguments: Any, **named: Any) -> Any:
        self._takes(0.0, self.isa.costs.words)
        return super().read_partials(*arguments, **named)

    def write_partial(self, *arguments: Any, **named: Any) -> None:
        self._takes(0.0, self.isa.costs.words)
        super().write_partial(*arguments, **named)

    def accumulator_scale(self, matmul: Matmul, acc: Any, by: Fragment) -> None:
        super().accumulator_scale(matmul, acc, by)
        self._takes(matmul.shape[0] // matmul.warpgroups * matmul.shape[1] / (4 * WARP))

    def packed(self, matmul: Matmul, values: Fragment) -> Any:
        self._takes(math.ceil(np.size(values.data) / WARP) / 2)
        return super().packed(matmul, values)

    def reduce_in_warp(self, layout: ThreadLayout, op: str, kind: str, along: str, data: Any) -> Any:
        if data is not None:
            lanes = getattr(layout, "row_lanes", 4) if along == "rows" else 8
            lines = max(1, np.size(data) * lanes // max(1, layout.columns if along == "rows" else layout.rows))
            steps = round(math.log2(max(2, lanes)))
            each = math.ceil(np.size(data) / WARP)  # of a lane, which has some of the lines
            chain = each / max(1, lines * lanes // WARP // lanes) if along == "rows" else each
            shuffles = math.ceil(lines / WARP) * steps
            self.isa.takes(
                each + shuffles * (SHUFFLE + 1),
                max(each, chain * self.isa.costs.depends) + steps * self.isa.costs.shuffle,
            )
        return super().reduce_in_warp(layout, op, kind, along, data)

    def _takes(self, work: float, more: float = 0.0, others: float = 0.0) -> None:
        """others: cycles of the work in which other warps have a part of the quarter."""
        self.isa.takes(work - others * self.isa.costs.beside, work * self.isa.costs.stretch + more)


class _Isa(MachineIsa):
    """work, alone: cycles of arithmetic since the last operation, of the quarter and of the warp by itself; tile: that the
    warp is at."""

    costs: Costs

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.work, self.alone, self.tile = 0.0, 0.0, ""
        self.fragments = _Fragments(self)

    def enter(self, tile: Tile) -> None:
        super().enter(tile)
        self.tile = f"tile {tile}"
        self.alone += self.costs.turn

    def takes(self, work: float, alone: float) -> None:
        """Adds cycles."""
        self.work += work
        self.alone += alone


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
        made.costs = self.costs
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
        if isa.work or isa.alone:
            began, end = self.engines.compute(agent, time, isa.work, isa.alone)
            isa.work = isa.alone = 0.0
            self._note(Step(self.cluster, agent, None, None, time, began, end, -1, isa.tile))
            self.came[agent] = end
            return self._at(end, agent)
        kind = type(op)
        wait = WAITS.get(kind)
        if wait is not None and not wait.enabled(self.state, agent, op):
            self.blocked.setdefault(wait.key(self.state, agent, op), []).append(agent)
            return
        tile, facts = isa.tile, APPLY[kind](self.state, agent, op)
        waited = wait is not None and self.came[agent] < time
        begun = time + (self.costs.issue if waited else cycles_of(self.costs, self.layout, agent, op))
        multiplies = kind in (ops.Wgmma, ops.WgmmaFromRegisters)
        held = self.engines.until_queued(agent, op, begun) - begun if multiplies else 0.0
        end = begun + held
        if kind is ops.Exit:
            isa.tile = ""
        number = self._note(
            Step(self.cluster, agent, op, facts, self.came[agent], time + held, end, self.cause.pop(agent, -1), tile)
        )
        self._tell(agent, op, facts)
        self.current[agent] = None
        for flight in facts if _starts(op) else ():
            self.issued.setdefault(flight, (op, time))
        self._wake(begun, number)
        self._at(end, agent)

    def _tell(self, agent: Agent, op: Any, facts: Any) -> None:
        for watcher in self.watchers:
            watcher(agent, op, facts)
        self.step_count += 1
        if self.step_count > self.max_steps:
            text = f"stopped after {self.max_steps} operations of one cluster. Fix: see that every loop ends."
            raise PipelineError(text)

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


AVERAGED = 0.2  #: weight of the last load in how busy memory is


class _Engines:
    """What is busy until when, by CTA. began: when an engine began with a flight."""

    def __init__(self, layout: Layout, costs: Costs, share: Share):
        self.layout, self.costs, self.share = layout, costs, share
        self.began: dict[Flight, float] = {}
        self.tensor, self.asked, self.landing, self.reading, self.writing = ([0.0] * layout.ctas for _ in range(5))
        # When the last load was served, and how busy that is.
        self.last, self.busy = ([0.0] * layout.ctas for _ in range(2))
        self.quarters = [0.0] * (4 * layout.ctas)
        self.wgmma = {name: cycles_of_wgmma(matmul, costs) for name, matmul in layout.matmuls.items()}

    def compute(self, agent: int, time: float, cycles: float, alone: float) -> tuple[float, float]:
        """When a warp's arithmetic begins and ends: each quarter of the multiprocessor has every fourth warp. cycles: of the
        quarter; alone: that the warp takes by itself."""
        cta, warp = divmod(agent, self.layout.warps)
        place = 4 * cta + warp % 4
        began = max(time, self.quarters[place])
        self.quarters[place] = began + cycles * self.share.resident
        return min(began, time + alone), max(time + alone, self.quarters[place])

    def until_queued(self, agent: int, op: Any, time: float) -> float:
        """When the wgmmas of a slot are all in the tensor cores' queue, which has room for some of a warpgroup's; the other
        warpgroups of its team have as many there."""
        matmul, cta = self.layout.matmuls[op.matmul], agent // self.layout.warps
        cycles, count = self.wgmma[op.matmul] * self.share.resident, wgmmas_of(matmul)
        done = max(time, self.tensor[cta]) + cycles
        return max(time, done - self.costs.queue / count * cycles * matmul.warpgroups)

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
            share = self.share
            served = min(share.read * share.reuse.get(op.load, 1.0), share.l2.get(op.load, math.inf))
            serving = nbytes / served * share.resident
            since = max(serving, began - self.last[source])
            if share.reuse.get(op.load, 1.0) <= 1:
                self.busy[source] += (serving / since - self.busy[source]) * AVERAGED
            self.asked[source], self.last[source] = began + serving, began
        self.began[flight] = max(time, began)
        latency = costs.load * (1 + costs.queued * self.busy[source] ** 4)
        arrives = max(time, self.asked[source]) + latency
        self.landing[cta] = max(arrives, self.landing[cta] + nbytes / rate)
        return self.landing[cta] + costs.multicast * (getattr(op, "mask", None) is not None)


def _first(flight: Flight, op: Any, source: int) -> int:
    """The CTA whose flight of a load stands for all of them."""
    mask = getattr(op, "mask", None)
    return source if mask is None else (mask & -mask).bit_length() - 1


# ---- pace ------------------------------------------------------------------------------------------------------------
#
# How many cycles a kernel takes from one slot of a ring to the next in the steady state.


LEAST = 8  #: waits of a tile of which the middle counts
Waits = dict[str, dict[Any, dict[Any, list[float]]]]  #: by ring, warp and tile, when waits for a filled slot have ended


def pace_of(layout: Layout, steps: Sequence[Step], ring: str | None = None) -> float:
    """As `Trace.pace` of `tmapipe.timeline.trace`."""
    fulls = {r.barriers[0]: r.name for r in layout.plan.rings}
    waits: Waits = {}
    for step in steps:
        if isinstance(step.op, ops.MbarWait):
            name = fulls.get(layout.barrier(step.op.bar))
            if name is not None and ring in (None, name):
                of_warp = waits.setdefault(name, {}).setdefault((step.cluster, step.agent), {})
                of_warp.setdefault(step.tile, []).append(step.began)
    return pace_among(waits, ring)


def pace_among(waits: Waits, ring: str | None = None) -> float:
    """The pace of the ring that is waited for most. Others as of `Trace.pace`."""
    most: dict[Any, dict[Any, list[float]]] = max(waits.values(), key=_count_of, default={})
    spans = []
    for by_tile in most.values():
        series = [times for times in by_tile.values() if len(times) >= LEAST] or [
            [time for times in by_tile.values() for time in times]
        ]
        for times in series:
            first, last = len(times) // 4, 3 * len(times) // 4
            if last > first:
                spans.append((times[last] - times[first], last - first))
    require(spans, "ring", ring, "is one whose slots were waited for, four times or more", "pass larger tensors")
    return sum(span for span, _ in spans) / sum(count for _, count in spans)


def _count_of(waits: dict[Any, dict[Any, list[float]]]) -> int:
    return sum(len(times) for by_tile in waits.values() for times in by_tile.values())
