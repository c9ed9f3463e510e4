"""Rules of results that the kernel itself loads: tensors of which it loads tiles, and to which it stores some.

    a load after       is right if the past of the loading warp has ...
    a TMA store        the storing thread's full wait for its group (wait_group without .read: until it has written)
    stores by threads  these, published by all lanes of their warp
    and, for an engine's load, a proxy fence of global memory: of the storing warp after that, or of the loading warp after it
    came to know

    a store after a load: the phase that its bytes complete, waited for

In a run of one problem, a load is held against the last store of each warp to each place before it, if they overlap, and a
store likewise. In a segment of any run (`closure`), whose coordinates are those of a recording, a tensor is one place. But
each output tile has places of its own, since tiles are at its coordinates: so what is known of them ends with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tmapipe.check.accesses import Wait, Waits
from tmapipe.check.clocks import NEVER, Clock, Clocks
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.isa.ops import Flight
from tmapipe.machine.describe import who
from tmapipe.machine.state import State
from tmapipe.plan.model import Transfer

__all__ = ["Results"]

Place = tuple[tuple[int, int], ...]  # (first element, elements) along each dimension; none: anywhere
FENCE = "execute fence.proxy.async.global after the full wait, or before the load"


class Stored:
    """Stores of one warp to a tensor, up to the last. number: its bulk group, None if it is not known yet, or of threads."""

    def __init__(self, step: Step, time: int, by_threads: bool):
        self.step, self.time, self.by_threads = step, time, by_threads
        self.number: int | None = None


class Results:
    """What is stored to, and loaded from, tensors with which the kernel does both.

    places: whether coordinates tell places apart; loads, stores: of these tensors, by name; stored: by tensor, warp and
    place, the last store; flights: stores without a group; waits: by warp, its full waits; fences: by warp, when it last
    fenced global memory, and what it knew then; loaded: by tensor, mbarrier and place, a load, and its phase if known;
    loading: loads on their way.
    """

    def __init__(self, clocks: Clocks, log: FindingLog, places: bool):
        plan = log.layout.plan
        self.clocks, self.log, self.places = clocks, log, places
        both = {load.argument for load in plan.loads} & {store.argument for store in plan.stores}
        self.loads = {load.name: load for load in plan.loads if load.argument in both}
        self.stores = {store.name: store for store in plan.stores if store.argument in both}
        self.stored: dict[tuple[str, int, Place], Stored] = {}
        self.flights: dict[Flight, Stored] = {}
        self.waits: dict[int, Waits] = {}
        self.fences: dict[int, tuple[int, Clock]] = {}
        self.loaded: dict[tuple[str, int, Place], tuple[Step, int | None]] = {}
        self.loading: dict[Flight, tuple[tuple[str, int, Place], Step]] = {}

    def take(self, other: Results) -> None:
        """Copies *other*, in which nothing is in flight, to go on independently."""
        self.stored, self.loaded, self.fences = dict(other.stored), dict(other.loaded), dict(other.fences)
        self.waits = {agent: waits.copy() for agent, waits in other.waits.items()}

    def next_tile(self) -> None:
        """All warps come to their next output tile, whose places are others."""
        self.stored, self.loaded = {}, {}

    def facts(self, state: State) -> Iterator[tuple[tuple[Any, ...], tuple[int, int]]]:
        """What loads and stores to come are checked against, by name, with the entry of clocks that tells of it, and from
        which value on. Nothing is in flight."""
        clocks = self.clocks
        for (tensor, agent, _), stored in self.stored.items():
            key, past, when = ("result", tensor, agent), clocks.published + agent, stored.time
            if stored.number is not None:
                waits, past = self.waits.get(agent), agent
                written = None if waits is None else waits.first(stored.number)
                if written is None:
                    thread = 32 * agent + stored.step.op.lanes.bit_length() - 1
                    yield (*key, state.committed[thread] - stored.number), (0, NEVER)
                    continue
                when = written.time
            fence = self.fences[agent][0] if agent in self.fences else -1
            yield key, (past, when)
            yield (*key, "fenced"), (past, fence if fence >= when else NEVER)
            for other in range(clocks.agents):
                if other not in self.fences or self.fences[other][1][past] < when:
                    yield (*key, "not fenced by", other), (0, NEVER)
        for (tensor, bar, _), (_, phase) in self.loaded.items():
            assert phase is not None
            yield ("bar", bar, "loads of", tensor), (clocks.phases + bar, phase + 1)

    def _place(self, part: Transfer, op: Any) -> Place:
        return tuple(zip(op.at, part.part, strict=True)) if self.places and op.at else ()

    # ---- stores ---------------------------------------------------------------------------------------------------

    def store(self, agent: int, op: Any, flight: Flight | None) -> None:
        """A store to a tensor is issued, or threads store (no *flight*)."""
        part = self.stores.get(op.store)
        if part is None:
            return
        tensor, place = part.argument, self._place(part, op)
        step = Step(self.log.order, agent, op)
        known = self.clocks.of[agent]
        for (other, bar, where), (load, phase) in self.loaded.items():
            over = phase is not None and known[self.clocks.phases + bar] > phase
            if other == tensor and not over and _overlap(place, where):
                text = f"{who(self.log.layout, agent)} stores to {tensor} while a load of it may be on its way"
                fix = "wait for the load's mbarrier, and let the storing warp know, before the store"
                self.log.add(Kind.RACE, text, fix, step, load)
        stored = self.stored[tensor, agent, place] = Stored(step, self.clocks.time[agent], flight is None)
        if flight is not None:
            self.flights[flight] = stored

    def commit(self, facts: tuple[int, tuple[Flight, ...]]) -> None:
        """Stores get the number of their group."""
        number, flights = facts
        for flight in flights:
            if flight in self.flights:
                self.flights.pop(flight).number = number

    def wait(self, agent: int, op: Any, groups: int) -> None:
        """Groups 0 .. groups - 1 of the thread have written."""
        if self.stores and groups:
            wait = Wait(groups, self.clocks.time[agent], Step(self.log.order, agent, op))
            self.waits.setdefault(agent, Waits()).add(wait)

    def fence(self, agent: int) -> None:
        """The warp fences global memory."""
        if self.stores:
            self.fences[agent] = self.clocks.time[agent], self.clocks.of[agent].copy()

    # ---- loads ----------------------------------------------------------------------------------------------------

    def load(self, agent: int, op: Any, bar: str, by_engine: bool, flights: tuple[Flight, ...]) -> None:
        """A load is issued, by an engine or by threads. bar: the operand that it completes on."""
        part = self.loads.get(getattr(op, "load", ""))
        if part is None:
            return
        tensor, place = part.argument, self._place(part, op)
        step = Step(self.log.order, agent, op)
        for (other, storing, where), stored in self.stored.items():
            if other == tensor and _overlap(place, where):
                self._check(tensor, agent, step, storing, stored, by_engine)
        for flight in flights:
            key = tensor, flight.cta * self.log.layout.nbars + getattr(op, bar), place
            self.loaded[key] = step, None
            self.loading[flight] = key, step

    def landed(self, flight: Flight, phase: int) -> None:
        """A load has been counted in *phase*."""
        found = self.loading.pop(flight, None)
        if found is not None and self.loaded[found[0]][0] is found[1]:
            self.loaded[found[0]] = found[1], phase

    def _check(self, tensor: str, agent: int, step: Step, storing: int, stored: Stored, by_engine: bool) -> None:
        """The rule, for a load and the last store of one warp."""
        clocks, layout = self.clocks, self.log.layout
        known, past, when = clocks.of[agent], clocks.published + storing, stored.time
        fix = "synchronize the storing warp's lanes, and then let it signal the loading warp"
        if not stored.by_threads:
            fix = "let the storing thread wait for its groups in full (wait_group, not .read) and then signal the loading warp"
            waits, past = self.waits.get(storing), storing
            written = None if waits is None or stored.number is None else waits.first(stored.number)
            when = NEVER if written is None else written.time
        whose = f"{who(layout, agent)} loads {tensor}, which {who(layout, storing)} stores to"
        if known[past] < when:
            self.log.add(Kind.RESULT_TOO_EARLY, f"{whose}, before that is known to be written", fix, step, stored.step)
        elif by_engine:
            theirs, own = self.fences.get(storing), self.fences.get(agent)
            fenced = theirs is not None and when <= theirs[0] <= known[past]
            if not fenced and (own is None or own[1][past] < when):
                text = f"{whose}, without a proxy fence of global memory"
                self.log.add(Kind.PROXY, text, FENCE, step, stored.step)


def _overlap(one: Place, other: Place) -> bool:
    return all(a < b + n and b < a + m for (a, m), (b, n) in zip(one, other, strict=False))
