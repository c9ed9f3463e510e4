"""Rules of results that the kernel itself loads: tensors of which it loads tiles, and to which it stores some.

    a load after       is right if the past of the loading warp has ...
    a TMA store        the storing thread's full wait for its group (wait_group without .read: until it has written)
    stores by threads  these, published by all lanes of their warp
    and, for an engine's load, a proxy fence of global memory: of the storing warp after that, or of the loading warp after it
    came to know

    a store after a load: the phase that its bytes complete, waited for

Which tiles overlap is left open: each load is held against all stores to its tensor before it in the run.
"""

from __future__ import annotations

from typing import Any

from tmapipe.check.clocks import Clock, Clocks
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.check.slots import Waits
from tmapipe.isa.ops import Flight
from tmapipe.machine.describe import who

__all__ = ["Results"]

FENCE = "execute fence.proxy.async.global after the full wait, or before the load"


class Stored:
    """Stores of one warp to a tensor, up to the last. number: its bulk group, None if it is not known yet, or of threads."""

    def __init__(self, step: Step, time: int, by_threads: bool):
        self.step, self.time, self.by_threads = step, time, by_threads
        self.number: int | None = None


class Results:
    """What is stored to, and loaded from, tensors with which the kernel does both."""

    def __init__(self, clocks: Clocks, log: FindingLog):
        plan = log.layout.plan
        self.clocks, self.log = clocks, log
        both = {load.argument for load in plan.loads} & {store.argument for store in plan.stores}
        self.loads = {load.name: load.argument for load in plan.loads if load.argument in both}
        self.stores = {store.name: store.argument for store in plan.stores if store.argument in both}
        self.stored: dict[tuple[str, int], Stored] = {}  # by tensor and warp
        self.flights: dict[Flight, Stored] = {}
        self.waits: dict[int, Waits] = {}  # by warp: its full waits
        self.fences: dict[int, int] = {}  # by warp: when it last fenced global memory
        self.fenced: dict[int, Clock] = {}  # by warp: what it knew then
        self.loaded: dict[
            tuple[str, int], tuple[Step, int | None]
        ] = {}  # by tensor and mbarrier: a load, its phase if known
        self.loading: dict[Flight, tuple[str, int, Step]] = {}

    # ---- stores ---------------------------------------------------------------------------------------------------

    def store(self, agent: int, op: Any, flight: Flight | None) -> None:
        """A store to a tensor is issued, or threads store (no *flight*)."""
        tensor = self.stores.get(op.store)
        if tensor is None:
            return
        step = Step(self.log.order, agent, op)
        known = self.clocks.of[agent]
        for (other, bar), (load, phase) in self.loaded.items():
            if other == tensor and (phase is None or known[self.clocks.phases + bar] <= phase):
                text = f"{who(self.log.layout, agent)} stores to {tensor} while a load of it may be on its way"
                fix = "wait for the load's mbarrier, and let the storing warp know, before the store"
                self.log.add(Kind.RACE, (text, fix), step, load)
        stored = Stored(step, self.clocks.time[agent], flight is None)
        self.stored[tensor, agent] = stored
        if flight is not None:
            self.flights[flight] = stored

    def commit(self, facts: tuple[int, tuple[Flight, ...]]) -> None:
        """Stores get the number of their group."""
        number, flights = facts
        for flight in flights:
            stored = self.flights.pop(flight, None)
            if stored is not None:
                stored.number = number

    def wait(self, agent: int, op: Any, groups: int) -> None:
        """Groups 0 .. groups - 1 of the thread have written."""
        if self.stores and groups:
            waits = self.waits.setdefault(agent, Waits())
            waits.add(groups, self.clocks.time[agent], Step(self.log.order, agent, op))

    def fence(self, agent: int) -> None:
        """The warp fences global memory."""
        if self.stores:
            self.fences[agent] = self.clocks.time[agent]
            self.fenced[agent] = self.clocks.of[agent].copy()

    # ---- loads ----------------------------------------------------------------------------------------------------

    def load(self, agent: int, op: Any, bar: str, by_engine: bool, flights: tuple[Flight, ...]) -> None:
        """A load is issued, by an engine or by threads. bar: the operand that it completes on."""
        tensor = self.loads.get(getattr(op, "load", ""))
        if tensor is None:
            return
        step = Step(self.log.order, agent, op)
        for (other, storing), stored in self.stored.items():
            if other == tensor:
                self._check(tensor, agent, step, storing, stored, by_engine)
        for flight in flights:
            number = flight.cta * self.log.layout.nbars + getattr(op, bar)
            self.loaded[tensor, number] = step, None
            self.loading[flight] = tensor, number, step

    def landed(self, flight: Flight, phase: int) -> None:
        """A load has been counted in *phase*."""
        found = self.loading.pop(flight, None)
        if found is not None and self.loaded[found[:2]][0] is found[2]:
            self.loaded[found[:2]] = found[2], phase

    def _check(self, tensor: str, agent: int, step: Step, storing: int, stored: Stored, by_engine: bool) -> None:
        """The rule, for a load and the last store of one warp."""
        clocks, layout = self.clocks, self.log.layout
        known, when = clocks.of[agent], stored.time
        seen = bool(known[clocks.published + storing] >= when)
        if not stored.by_threads:
            waits = self.waits.get(storing)
            written = None if waits is None or stored.number is None else waits.time(stored.number)
            seen, when = written is not None and bool(known[storing] >= written), written or 0
        whose = f"{who(layout, agent)} loads {tensor}, which {who(layout, storing)} stores to"
        if not seen:
            fix = "let the storing thread wait for its groups in full (wait_group, not .read) and then signal the loading warp"
            if stored.by_threads:
                fix = "synchronize the storing warp's lanes, and then let it signal the loading warp"
            self.log.add(
                Kind.RESULT_TOO_EARLY, (f"{whose}, before that is known to be written", fix), step, stored.step
            )
            return
        if not by_engine:
            return
        fence, own = self.fences.get(storing, -1), self.fenced.get(agent)
        past = clocks.published + storing if stored.by_threads else storing
        theirs = fence >= when and bool(known[past] >= fence)
        if not theirs and (own is None or own[past] < when):
            self.log.add(Kind.PROXY, (f"{whose}, without a proxy fence of global memory", FENCE), step, stored.step)
