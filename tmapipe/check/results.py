"""Rules of results that the kernel itself loads: tensors of which it loads tiles, and to which it stores some.

    a load after       is right if the past of the loading warp has ...
    a TMA store        the storing thread's full wait for its group (wait_group without .read: until it has written)
    stores by threads  these, published by all lanes of their warp
    and, for an engine's load, a proxy fence of global memory: of the storing warp after that, or of the loading warp after it
    came to know

    a store after a load: the phase that its bytes complete, waited for

In a run of one problem, a load is held against the last store of each warp to each place before it, if they overlap, and a
store likewise. In a proof (`prove.joint`), where coordinates are of no account, a tensor is one place. But each output tile
has places of its own, since tiles are at its coordinates: so what is known of them ends with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tmapipe.check.accesses import Waits
from tmapipe.check.clocks import Clock, Clocks, Known, knows
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.check.rules import Key, Rules
from tmapipe.isa.ops import Flight
from tmapipe.machine.describe import who
from tmapipe.machine.state import State
from tmapipe.plan.model import Transfer

__all__ = ["Results"]

Place = tuple[tuple[int, int], ...]  # (first element, elements) along each dimension; none: anywhere
FENCE = "execute fence.proxy.async.global after the full wait, or before the load"


class Stored:
    """Stores of one warp to a tensor, up to the last. number: its bulk group, None if it is not known yet, or of threads."""

    def __init__(self, step: Step, by_threads: bool):
        self.step, self.by_threads = step, by_threads
        self.number: int | None = None


class Results(Rules):
    """What is stored to, and loaded from, tensors with which the kernel does both.

    places: whether coordinates tell places apart; loads, stores: of these tensors, by name; stored: by tensor, warp and
    place, the last store; flights: stores without a group; waits: by warp, its full waits; fences: by warp, when it last
    fenced global memory, and what it knew then; loaded: by tensor, mbarrier and place, a load, and its phase if known;
    loading: loads on their way.
    """

    kept = ("stored", "loaded", "fences", "waits")

    def __init__(self, clocks: Clocks, log: FindingLog, places: bool):
        super().__init__(clocks, log)
        plan, self.places = log.layout.plan, places
        both = {load.argument for load in plan.loads} & {store.argument for store in plan.stores}
        self.loads = {load.name: load for load in plan.loads if load.argument in both}
        self.stores = {store.name: store for store in plan.stores if store.argument in both}
        self.stored: dict[tuple[str, int, Place], Stored] = {}
        self.flights: dict[Flight, Stored] = {}
        self.waits = [Waits() for _ in range(self.layout.agents)]
        self.fences: dict[int, tuple[int, Clock]] = {}
        self.loaded: dict[tuple[str, int, Place], tuple[Step, int | None]] = {}
        self.loading: dict[Flight, tuple[tuple[str, int, Place], Step]] = {}

    def next_tile(self) -> None:
        """All warps come to their next output tile, whose places are others."""
        self.stored, self.loaded = {}, {}

    def facts(self, state: State) -> Iterator[tuple[Key, Known]]:
        for (tensor, agent, _), stored in self.stored.items():
            key, written = ("result", tensor, agent), self._written(agent, stored)
            if not written:
                thread = 32 * agent + stored.step.op.lanes.bit_length() - 1
                yield (*key, state.committed[thread] - (stored.number or 0)), ()
                continue
            yield key, written
            yield (*key, "fenced"), self._fenced(agent, written)
            for other in range(self.clocks.agents):
                if not self._fenced_by(other, written):
                    yield (*key, "not fenced by", other), ()
        for (tensor, bar, _), (_, phase) in self.loaded.items():
            assert phase is not None
            yield ("bar", bar, "loads of", tensor), ((self.clocks.phases + bar, phase + 1),)

    def _written(self, agent: int, stored: Stored) -> Known:
        """What tells that a warp's store has been written."""
        if stored.by_threads:
            return ((self.clocks.published + agent, stored.step.time),)
        wait = self.waits[agent].first(stored.number)
        return () if wait is None else ((agent, wait.time),)

    def _fenced(self, agent: int, written: Known) -> Known:
        """What tells that the warp whose stores are *written* fenced global memory then."""
        fence = self.fences[agent][0] if agent in self.fences else -1
        return tuple((entry, fence) for entry, time in written if fence >= time)

    def _fenced_by(self, agent: int, written: Known) -> bool:
        """Whether a warp fenced global memory after it came to know that something is *written*."""
        return agent in self.fences and knows(self.fences[agent][1], written)

    def _place(self, part: Transfer, op: Any) -> Place:
        return tuple(zip(op.at, part.part, strict=True)) if self.places and op.at else ()

    # ---- stores ---------------------------------------------------------------------------------------------------

    def store(self, step: Step, flight: Flight | None) -> None:
        """A store to a tensor is issued, or threads store (no *flight*)."""
        part, agent = self.stores.get(step.op.store), step.agent
        if part is None:
            return
        tensor, place = part.argument, self._place(part, step.op)
        known = self.clocks.of[agent]
        for (other, bar, where), (load, phase) in self.loaded.items():
            over = phase is not None and known[self.clocks.phases + bar] > phase
            if other == tensor and not over and _overlap(place, where):
                text = f"{who(self.log.layout, agent)} stores to {tensor} while a load of it may be on its way"
                fix = "wait for the load's mbarrier, and let the storing warp know, before the store"
                self.log.add(Kind.RACE, text, fix, step, load)
        stored = self.stored[tensor, agent, place] = Stored(step, flight is None)
        if flight is not None:
            self.flights[flight] = stored

    def commit(self, facts: tuple[int, tuple[Flight, ...]]) -> None:
        """Stores get the number of their group."""
        number, flights = facts
        for flight in flights:
            if flight in self.flights:
                self.flights.pop(flight).number = number

    def wait(self, step: Step, groups: int) -> None:
        """Groups 0 .. groups - 1 of the thread have written."""
        if self.stores:
            self.waits[step.agent].add(groups, step)

    def fence(self, step: Step) -> None:
        """The warp fences global memory."""
        if self.stores:
            self.fences[step.agent] = step.time, self.clocks.of[step.agent].copy()

    # ---- loads ----------------------------------------------------------------------------------------------------

    def load(self, step: Step, bar: str, by_engine: bool, flights: tuple[Flight, ...]) -> None:
        """A load is issued, by an engine or by threads. bar: the operand that it completes on."""
        part = self.loads.get(getattr(step.op, "load", ""))
        if part is None:
            return
        tensor, place = part.argument, self._place(part, step.op)
        for (other, storing, where), stored in self.stored.items():
            if other == tensor and _overlap(place, where):
                self._check(tensor, step, storing, stored, by_engine)
        for flight in flights:
            key = tensor, flight.cta * self.log.layout.nbars + getattr(step.op, bar), place
            self.loaded[key] = step, None
            self.loading[flight] = key, step

    def landed(self, flight: Flight, phase: int) -> None:
        """A load has been counted in *phase*."""
        found = self.loading.pop(flight, None)
        if found is not None and self.loaded[found[0]][0] is found[1]:
            self.loaded[found[0]] = found[1], phase

    def _check(self, tensor: str, step: Step, storing: int, stored: Stored, by_engine: bool) -> None:
        """The rule, for a load and the last store of one warp."""
        layout, agent = self.layout, step.agent
        known, written = self.clocks.of[agent], self._written(storing, stored)
        whose = f"{who(layout, agent)} loads {tensor}, which {who(layout, storing)} stores to"
        if not knows(known, written):
            fix = "let the storing thread wait for its groups in full (wait_group, not .read) and then signal the loading warp"
            if stored.by_threads:
                fix = "synchronize the storing warp's lanes, and then let it signal the loading warp"
            self.log.add(Kind.RESULT_TOO_EARLY, f"{whose}, before that is known to be written", fix, step, stored.step)
        elif by_engine and not knows(known, self._fenced(storing, written)) and not self._fenced_by(agent, written):
            text = f"{whose}, without a proxy fence of global memory"
            self.log.add(Kind.PROXY, text, FENCE, step, stored.step)


def _overlap(one: Place, other: Place) -> bool:
    return all(a < b + n and b < a + m for (a, m), (b, n) in zip(one, other, strict=False))
