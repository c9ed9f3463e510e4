"""The linear check: one run of the machine, watched with vector clocks, decides every interleaving.

The rules are in `phases` (mbarriers), `barriers` (of warps), `slots` (races and proxies), `lifetimes` (initialization, exit,
scope, ownership) and `fences` (redundant ones); this file hands each transition of the machine to those that it concerns.
`docs/internals/checker.md` has the argument why one run is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmapipe.check.barriers import Barriers
from tmapipe.check.clocks import Clocks
from tmapipe.check.fences import Fences
from tmapipe.check.findings import Finding, Kind
from tmapipe.check.lifetimes import Lifetimes
from tmapipe.check.log import FindingLog, Step
from tmapipe.check.phases import Phases
from tmapipe.check.slots import Slots
from tmapipe.isa import ops
from tmapipe.isa.ops import ALL_LANES, Flight
from tmapipe.machine.describe import bar_name, who
from tmapipe.machine.layout import Layout

__all__ = ["LinearCheck"]


class LinearCheck:
    """Watches one run: pass `watch` as the scheduler's watcher, then call `finish`. `findings` then has what is wrong."""

    def __init__(self, layout: Layout, shapes: dict[str, tuple[int, ...]], log: FindingLog | None = None):
        self.layout = layout
        self.clocks = Clocks(layout)
        self.log = log or FindingLog(layout)
        self.phases = Phases(self.clocks, self.log)
        self.barriers = Barriers(self.clocks, self.log)
        self.slots = Slots(self.clocks, self.log)
        self.lifetimes = Lifetimes(self.clocks, self.log, shapes)
        self.fences = Fences(self.clocks, self.log, self.slots)
        self.loads: dict[Flight, tuple[Any, Step]] = {}  # in flight: (what the issuer knew, its step)
        self.last: dict[int, Step] = {}  # by warp: its last asynchronous issue, for reports
        self.handlers: dict[type, Callable[[Any, Any, Any], None]] = {
            ops.MbarInit: self._init,
            ops.FenceMbarInit: lambda agent, op, facts: self.lifetimes.fence_init(agent),
            ops.MbarWait: self._wait,
            ops.MbarArrive: self._arrive,
            ops.MbarArriveTx: self._arrive,
            ops.MbarExpectTx: self._arrive,
            ops.MbarArriveCluster: self._arrive_cluster,
            ops.BarArrive: self.barriers.arrive,
            ops.BarWait: self.barriers.wait,
            ops.ClusterArrive: self.barriers.arrive_cluster,
            ops.ClusterWait: self.barriers.wait_cluster,
            ops.WarpSync: lambda agent, op, facts: self.clocks.synchronize_lanes(agent),
            ops.FenceProxyAsync: lambda agent, op, facts: self.fences.fence(agent, op),
            ops.TmaLoad: self._load,
            ops.TmaStore: self._store,
            ops.BulkCommit: lambda agent, op, facts: self.slots.commit(facts),
            ops.BulkWait: self.slots.bulk_wait,
            ops.Wgmma: self._mma,
            ops.WgmmaWait: self.slots.mma_wait,
            ops.SlotRead: self._generic,
            ops.SlotWrite: self._generic,
            ops.Exit: self._exit,
        }

    def copy(self) -> LinearCheck:
        """One that goes on by itself from here, where nothing is in flight, and reports to the same log. What it says about
        redundant fences is of no use."""
        other = LinearCheck(self.layout, self.lifetimes.shapes, self.log)
        other.clocks.take(self.clocks)
        other.phases.take(self.phases)
        other.barriers.take(self.barriers)
        other.slots.take(self.slots)
        other.lifetimes.take(self.lifetimes)
        other.last = dict(self.last)
        return other

    @property
    def findings(self) -> list[Finding]:
        return list(self.log.found.values())

    @property
    def order(self) -> int:
        """Transitions so far."""
        return self.log.order

    def watch(self, agent: Any, op: Any, facts: Any) -> None:
        """One transition of the machine, in the order of execution."""
        self.log.order += 1
        if type(agent) is int:
            self.clocks.tick(agent)
            handler = self.handlers.get(type(op))
            if handler is not None:
                handler(agent, op, facts)
        elif type(op) is ops.LoadComplete:
            self._landed(agent, facts[0])

    def refused(self, agent: int, op: Any) -> None:
        """An operation that the machine refused because something in flight touches its slot: the same, found by clocks."""
        self.log.order += 1
        self.clocks.tick(agent)
        if type(op) in (ops.SlotRead, ops.SlotWrite):
            self.slots.generic(agent, op)
        elif type(op) is ops.TmaStore:
            self.slots.store(agent, op, Flight("store", agent, -1, agent // self.layout.warps))
        elif type(op) is ops.Wgmma:
            self.slots.mma(agent, op, Flight("wgmma", agent, -1, agent // self.layout.warps))
        elif type(op) is ops.TmaLoad:
            own = 1 << agent // self.layout.warps
            mask = own if op.mask is None else op.mask
            ctas = [cta for cta in range(self.layout.ctas) if mask >> cta & 1]
            self.slots.load(agent, op, tuple(Flight("load", agent, -1, cta) for cta in ctas))

    def finish(self) -> None:
        """After a run that came to its end."""
        self.lifetimes.finish()
        self.fences.finish()

    # ---- what concerns several rules ------------------------------------------------------------------------------

    def _init(self, agent: int, op: Any, facts: Any) -> None:
        self.lifetimes.init(agent, op)

    def _wait(self, agent: int, op: Any, phase: int) -> None:
        bar = agent // self.layout.warps * self.layout.nbars + op.bar
        self.lifetimes.use(agent, op, bar, far=False)
        self.lifetimes.wait(agent, op)
        self.phases.wait(agent, op, bar, phase)

    def _arrive(self, agent: int, op: Any, facts: Any) -> None:
        bar = agent // self.layout.warps * self.layout.nbars + op.bar
        self.lifetimes.use(agent, op, bar, far=False)
        all_lanes = op.lanes == ALL_LANES
        order_only = type(op) is ops.MbarExpectTx
        if len(facts) > 1:
            self._laps_itself(agent, op, bar, facts[0].phase)
        for counted in facts:
            self.phases.arrive(agent, op, bar, counted, all_lanes, order_only)

    def _arrive_cluster(self, agent: int, op: Any, facts: Any) -> None:
        own = agent // self.layout.warps
        order_only = op.scope == "relaxed"
        for counted in facts:
            bar = counted.cta * self.layout.nbars + counted.bar
            far = counted.cta != own
            self.lifetimes.use(agent, op, bar, far)
            if far:
                self.lifetimes.arrive_far(agent, op, bar)
            self.phases.arrive(agent, op, bar, counted, all_lanes=False, order_only=order_only)

    def _laps_itself(self, agent: int, op: Any, bar: int, phase: int) -> None:
        step = Step(self.log.order, agent, op, phase)
        if not self.log.is_new(Kind.SURPLUS_ARRIVAL, step, bar=bar):
            return
        count, lanes = self.layout.bars[op.bar][0].count, op.lanes.bit_count()
        self.log.add(
            Kind.SURPLUS_ARRIVAL,
            f"{lanes} lanes of {who(self.layout, agent)} arrive at {bar_name(self.layout, bar)}, whose count is {count}: they "
            f"complete phase {phase} and go on to count in the next",
            "let one lane arrive (lanes=1), or count every lane that arrives",
            step,
            bar=bar,
            phase=phase,
        )

    def _load(self, agent: int, op: Any, facts: tuple[Flight, ...]) -> None:
        self.lifetimes.start_load(agent, op)
        self.slots.load(agent, op, facts)
        clock = self.clocks.of[agent].copy()
        step = self.last[agent] = Step(self.log.order, agent, op)
        for flight in facts:
            self.lifetimes.use(agent, op, flight.cta * self.layout.nbars + op.bar, far=True)
            self.loads[flight] = clock, step

    def _landed(self, flight: Flight, counted: Any) -> None:
        clock, step = self.loads.pop(flight)
        bar = counted.cta * self.layout.nbars + counted.bar
        step = step._replace(phase=counted.phase)
        self.slots.landed(flight, counted.phase)
        self.lifetimes.landed(bar, counted.phase, step)
        self.phases.land(clock, step, bar, counted)

    def _store(self, agent: int, op: Any, flight: Flight) -> None:
        self.last[agent] = Step(self.log.order, agent, op)
        self.slots.store(agent, op, flight)

    def _mma(self, agent: int, op: Any, facts: Any) -> None:
        self.last[agent] = Step(self.log.order, agent, op)
        self.slots.mma(agent, op, facts[0])

    def _generic(self, agent: int, op: Any, facts: Any) -> None:
        self.slots.generic(agent, op)
        if op.proxy == "generic":
            self.fences.access(agent, op.slot)

    def _exit(self, agent: int, op: Any, facts: Any) -> None:
        self.lifetimes.exit(agent)
        self.barriers.exit(agent)
