"""The rules that barriers, CTAs, contents of slots, and results that the kernel loads itself, exist when they are used."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tmapipe.check import FindingLog, Step
from tmapipe.check.phases import Clock, Clocks, FactName, Known, Rules, knows
from tmapipe.check.slots import WHOLE, Waits
from tmapipe.isa import Kind as OperandKind
from tmapipe.isa import Scope, Start, declared
from tmapipe.isa.ops import Flight
from tmapipe.model.layout import Kind, Layout, Shapes
from tmapipe.model.run import bar_name, who
from tmapipe.model.state import State
from tmapipe.plan.model import Transfer
from tmapipe.plan.rings import Ring

# ---- lifetimes -------------------------------------------------------------------------------------------------------
#
# - A barrier's initialization has been released to its users; to peers and the async proxy, after a fence.mbarrier_init.
# - The last warp of a CTA returns only after all arrivals of peers at it and all their reads of its slots, and after each load
#   to it and each copy from it has been counted.
# - An arrival at a peer has cluster scope. Only the roles of a ring wait for its barriers.


WAIT = "let a warp of each CTA wait for its peers' last {} before it returns"
RELEASES = WAIT.format("releases (the ring's tail)")


class Lifetimes(Rules):
    """Initializations, exits, and what reaches other CTAs.

    inits: by mbarrier; fences: by warp, the times of its fence.mbarrier_init; visible: (warp, mbarrier, far) of uses that were
    right, and so are later ones; exits: by CTA, the clocks of its warps that have returned, joined; reached: by ("arrival" or
    "far read", CTA, warp of a peer), the last such operation, with its mbarrier; counted: by (mbarrier, "landing" or "sent",
    CTA into which bytes go or from which they come), the load or copy of the last bytes that were counted, with their phase.
    """

    kept = ("inits", "fences", "visible", "exits", "reached", "counted")

    def __init__(self, clocks: Clocks, log: FindingLog, shapes: Shapes):
        super().__init__(clocks, log)
        self.shapes = shapes
        self.inits: dict[int, Step] = {}
        self.fences: dict[int, list[int]] = {}
        self.visible: set[tuple[int, int, bool]] = set()
        self.exits: list[Clock] = [clocks.zero() for _ in range(self.layout.ctas)]
        self.reached: dict[tuple[str, int, int], tuple[Step, int | None]] = {}
        self.counted: dict[tuple[int, str, int], Step] = {}
        self.waiters = _waiters(self.layout)
        self.initialized: dict[tuple[int, bool], Known] = {}  # as of `_initialized`, until something changes that

    def facts(self, state: State, by_all: list[int]) -> Iterator[tuple[FactName, Known]]:
        for key, (step, _) in self.reached.items():
            yield key, ((step.agent, step.time),)
        for (bar, *what), step in self.counted.items():
            yield ("bar", bar, *what), ((self.clocks.phases + bar, (step.phase or 0) + 1),)
        for bar in self.inits:
            yield ("bar", bar, "init"), self._initialized(bar, far=False)
            yield ("bar", bar, "init, fenced"), self._initialized(bar, far=True)

    # ---- initialization -------------------------------------------------------------------------------------------

    def init(self, step: Step, bar: int) -> None:
        """The warp initializes an mbarrier."""
        self.inits[bar], self.initialized = step, {}

    def fence_init(self, step: Step) -> None:
        self.fences.setdefault(step.agent, []).append(step.time)
        self.initialized = {}

    def _initialized(self, bar: int, far: bool) -> Known:
        """How the initialization of an mbarrier is known; far: known to another CTA, or to the async proxy."""
        if (bar, far) not in self.initialized:
            init = self.inits[bar]
            fences = [(init.agent, fence) for fence in self.fences.get(init.agent, ()) if fence >= init.time][:1]
            self.initialized[bar, far] = tuple(fences) if far else ((self.clocks.told + init.agent, init.time), *fences)
        return self.initialized[bar, far]

    def use(self, step: Step, bar: int, far: bool) -> None:
        """A warp uses an mbarrier; far: from another CTA, or through the async proxy."""
        agent, key = step.agent, (step.agent, bar, far)
        if key in self.visible or bar not in self.inits:  # the machine refuses what is not initialized
            return
        init, known = self.inits[bar], self._initialized(bar, far)
        if (init.agent == agent and not far) or knows(self.clocks.of[agent], known):
            self.visible.add(key)
            return
        group = "cluster" if self.layout.ctas > 1 else "CTA"
        why = f"fence_mbarrier_init, and then a {group} barrier," if far and not known else f"a {group} barrier"
        first = who(self.layout, init.agent)
        use = "the TMA engine" if declared(type(step.op)).effect(Start) and far else who(self.layout, agent)
        text = f"{use} uses {self._bar(bar)}; nothing makes its initialization by {first} visible there"
        fix = f"put {why} between the initialization and the first use"
        self.log.add(Kind.INIT_NOT_VISIBLE, text, fix, step, init, bar=bar)

    # ---- who may do what ------------------------------------------------------------------------------------------

    def wait(self, step: Step, own: int) -> None:
        """Only a ring's own roles wait for its barriers. own: the mbarrier's number in the CTA."""
        layout, agent = self.layout, step.agent
        ring, roles = self.waiters.get(own, ("", ()))
        if not ring or layout.role(agent) in roles:
            return
        name = f"{layout.bar_name(own)} of ring {ring}"
        text = f"{who(layout, agent)} waits for {name}, which belongs to {' and '.join(roles)}"
        fix = f"leave the tail of {ring}, and every other wait for {layout.barrier(own).name}, to {' or '.join(roles)}"
        self.log.add(Kind.TAIL_OWNER, text, fix, step, bar=layout.flat_bar(agent, own))

    def arrive_far(self, step: Step, bar: int, scope: Scope | None) -> None:
        """A remote arrival."""
        self.reached["arrival", bar // self.layout.nbars, step.agent] = step, bar
        if scope is Scope.CTA:
            arrives = f"{self._who(step)} arrives at {self._bar(bar)}, a peer's barrier, with {scope.value} scope"
            text = f"{arrives}: what it did before need not be visible to the peer"
            fix = "arrive with cluster scope (mbarrier.arrive.release.cluster)"
            self.log.add(Kind.SCOPE, text, fix, step, bar=bar)

    def read_far(self, step: Step, cta: int) -> None:
        """A read of a slot of another CTA."""
        self.reached["far read", cta, step.agent] = step, None

    def start_tile(self, step: Step, part: str, at: tuple[int, ...], anywhere: bool) -> None:
        """A tile has a coordinate for each dimension, and a load starts inside its tensor, unless it may start *anywhere*;
        stores may, since nothing is written there.

        Along an axis of the cluster, this is asked of the CTA at the cluster's origin.
        """
        load, agent = self.layout.loads.get(part), step.agent
        dims = (load or self.layout.stores[part]).dims
        if len(at) != len(dims):
            text = f"{who(self.layout, agent)} gives {len(at)} coordinates for a tile of {part}, which has {', '.join(dims)}"
            self.log.add(Kind.OUT_OF_RANGE, text, "give one coordinate a dimension", step)
        if load is None or anywhere:
            return
        shape = self.shapes.get(load.argument, ())
        for dim, start, extent, span in zip(load.dims, at, shape, load.span, strict=False):
            reach = span * (self.layout.plan.cluster.get(dim, 1) - 1)
            if not 0 <= start < max(extent, 1) + reach:
                where = f"from {dim} = {start} on, but the tensor ends at {extent}"
                text = f"{who(self.layout, agent)} loads {part} {where}"
                fix = f"let the loop of {self.layout.role(agent)} end with the tensor, or guard the load"
                self.log.add(Kind.OUT_OF_RANGE, text, fix, step)

    def landed(self, step: Step, bar: int) -> None:
        """Bytes of a load were counted, in the phase of *step*."""
        self.counted[bar, "landing", bar // self.layout.nbars] = step
        if any(not start.write for start in declared(type(step.op)).all(Start)):
            self.counted[bar, "sent", self.layout.cta_of(step.agent)] = step

    # ---- exit -----------------------------------------------------------------------------------------------------

    def exit(self, agent: int) -> None:
        self.clocks.release(agent, self.exits[self.layout.cta_of(agent)], all_lanes=True)

    def finish(self) -> None:
        """After the run: all that peers did to a CTA was done before its last warp returned."""
        layout = self.layout
        for (_, cta, agent), (step, at) in self.reached.items():
            if self.exits[cta][agent] < step.time:
                if at is None:
                    slot = getattr(step.op, declared(type(step.op)).named(OperandKind.SLOT)[0])
                    what, fix = f"reads its {layout.slot_name(slot)}", RELEASES
                else:
                    what = f"arrives at its {layout.bar_name(at)}"
                    arrivals = f"arrivals at {layout.barrier(at).name} (the ring's tail), or for a cluster barrier,"
                    fix = WAIT.format(arrivals)
                text = f"CTA {cta} can leave before {who(layout, agent)} {what}"
                self.log.add(Kind.EXITED_PEER, text, fix, step, bar=at)
        for (bar, what, cta), step in self.counted.items():
            if self.exits[cta][self.clocks.phases + bar] <= (step.phase or 0):
                self._left(step, bar, what == "sent", cta)

    def _left(self, step: Step, bar: int, sent: bool, cta: int) -> None:
        """The last warp of a CTA returned without knowing that this load or copy is over."""
        layout, issuer, phase = self.layout, self._who(step), step.phase
        slot = layout.slot_name(getattr(step.op, declared(type(step.op)).named(OperandKind.SLOT)[sent]))
        leaves = f"{f'CTA {cta}' if layout.ctas > 1 else 'the CTA'} can leave while a"
        bar_text, kind = f"phase {phase} of {bar_name(layout, bar)}", Kind.EXITED_PEER
        if sent:
            text = f"{leaves} copy issued by {issuer} reads its {slot}: no warp of it knows that {bar_text} is complete"
            fix = RELEASES
        else:
            text = f"{leaves} TMA load issued by {issuer} is on its way into its {slot}: no warp of it waits for {bar_text}"
            fix = f"wait for every phase of {layout.barrier(bar).name} that is loaded, or do not load what nobody uses"
            kind = Kind.IN_FLIGHT_AT_EXIT if layout.cta_of(step.agent) == cta else kind
        self.log.add(kind, text, fix, step, bar=bar, phase=phase)


def _waiters(layout: Layout) -> dict[int, tuple[str, tuple[str, ...]]]:
    """mbarrier (of a CTA) -> (ring, the roles of the phase that waits for it)."""
    found = {}
    for ring in layout.plan.rings:
        for phase, barrier in enumerate(ring.barriers):
            roles = ring.phases[(phase + 1) % len(ring.phases)]
            for stage in range(barrier.stages):
                found[layout.bar_base[barrier.name] + stage] = (ring.name, roles)
    return found


# ---- contents --------------------------------------------------------------------------------------------------------
#
# Of a tile that threads write (`SharedStage`): what is read of a slot has been written since its writer entered the slot. What
# is read of a `Scratch` has been written at some time.
#
# A warp of the writer enters a slot by waiting for it. What was written there before does not count any more. Until all parts
# are written again, no role that comes after the writer in the ring may read the slot. Of scratch, a part alone may be read.


Cut = tuple[str, int, int]
ANYWHERE: Cut = ("rows", 0, 1)  # of a read of which nothing says where it is in the slot


class Contents(Rules):
    """parts: by slot, the cuts that each warp has written since it entered the slot; short: the same, of slots that are not
    whole; of: the buffers that threads write; entered: which waits enter their slots."""

    kept = ("short", "parts")

    def __init__(self, clocks: Clocks, log: FindingLog):
        super().__init__(clocks, log)
        layout, self.short = self.layout, dict[int, dict[int, frozenset[Cut]]]()
        self.parts: dict[int, dict[int, frozenset[Cut]]] = {}
        rings = {ring.name: ring for ring in layout.plan.rings}
        #: buffer -> ring (of scratch none), writer and line of the writer's body
        self.of: dict[str, tuple[Ring | None, str, str | None]] = {}
        self.entered: dict[
            tuple[str, str], list[str]
        ] = {}  # (role, barrier that it waits for) -> buffers that it writes
        for name, (writer, its_ring, where) in layout.written.items():
            ring = rings.get(its_ring)
            self.of[name] = ring, writer, where
            if ring is None or (ring.held and not ring.phase_of(writer)):  # no wait enters its slots, or its only slot
                first, stages = layout.slot_base[name], layout.plan.buffer(name).stages
                slots = itertools.product(range(layout.ctas), range(stages))
                self.short |= {cta * layout.nslots + first + stage: {} for cta, stage in slots}
                continue
            awaited = ring.barriers[(ring.phase_of(writer) or 0) - 1].name
            self.entered.setdefault((writer, awaited), []).append(name)

    def wait(self, agent: int, bar: int) -> None:
        """A warp waits for an mbarrier of its CTA."""
        barrier, stage = self.layout.bars[bar]
        for name in self.entered.get((self.layout.role(agent), barrier.name), ()):
            slot = self._flat(agent, self.layout.slot_base[name] + stage)
            team = self._team(agent)  # of what another team has written there, nothing counts any more
            known = {other: cuts for other, cuts in self.parts.get(slot, {}).items() if self._team(other) == team}
            self.note(slot, {**known, agent: frozenset()})

    def read(self, step: Step, own: int, cut: Cut = WHOLE) -> None:
        """Threads, TMA or wgmma read a slot of their CTA, or threads a part of it."""
        name, slot = self.layout.slots[own][0].name, self._flat(step.agent, own)
        if name in self.of and slot in self.short:
            self._look(step, slot, name, cut)

    def write(self, step: Step, own: int, cut: Cut) -> None:
        """Threads write a part of a slot of their CTA."""
        if self.layout.slots[own][0].name in self.of:
            slot = self._flat(step.agent, own)
            known = self.parts.get(slot, {})
            self.note(slot, {**known, step.agent: known.get(step.agent, frozenset()) | {cut}})

    def note(self, slot: int, known: dict[int, frozenset[Cut]]) -> None:
        self.parts[slot] = known
        if sum(1 / parts for _, _, parts in frozenset().union(*known.values())) > 0.999:
            self.short.pop(slot, None)
        else:
            self.short[slot] = known

    def _team(self, agent: int) -> int:
        warp = agent % self.layout.warps
        return int(self.layout.plan.role(self.layout.role(agent)).team(warp))

    def _flat(self, agent: int, own: int) -> int:
        return self.layout.cta_of(agent) * self.layout.nslots + own

    def _look(self, step: Step, slot: int, name: str, cut: Cut) -> None:
        ring, writer, where = self.of[name]
        cuts = frozenset[Cut]().union(*self.short[slot].values())
        written = f"{len(cuts)} of {max(parts for _, _, parts in cuts)} parts" if cuts else "nothing"
        if ring is None:
            if cuts and cut in (ANYWHERE, *cuts):
                return
            text = f"{self._who(step)} reads {self.layout.slot_name(slot)}, of which {writer} has written {written}"
            fix = f"let {writer} write all of it, k.{name}.write(...), and call k.sync(), before it is read"
        else:
            phases = [ring.phase_of(role) for role in (writer, self.layout.role(step.agent))]
            if None in phases or phases[0] >= phases[1]:  # type: ignore[operator]
                return
            text = f"{self._who(step)} reads {name} in a slot in which {writer} has written {written} of it"
            fix = f"let {writer} write all of it, slot.{name}.write(...), each time that it enters a slot"
        self.log.add(Kind.UNFILLED, text, fix, step, slot=slot, line=where)


# ---- results ---------------------------------------------------------------------------------------------------------
#
# Of a tensor from which a kernel loads tiles, and to which the same kernel stores tiles: the past of the loading warp has
#
# after a TMA store         the storing thread's full wait for its group (wait_group without .read, until it has written)
# after stores by threads   the stores, published by all lanes of their warp
#
# and, for an engine's load, a proxy fence of global memory: of the storing warp after that, or of the loading warp after it
# came to know. The past of a storing warp has a wait for the phase that the bytes of an earlier load complete.
#
# In a run of one problem, a load is held against the last earlier store of each warp to each place, if they overlap, and a
# store likewise. In a proof, which has no coordinates, a tensor is one place; but each output tile has places of its own, so
# what is known of stores and loads ends with the tile.


Place = tuple[tuple[int, int], ...]  # (first element, elements) along each dimension; none: anywhere
FENCE = "execute fence.proxy.async.global after the full wait, or before the load"


class Stored:
    """Stores of one warp to a tensor, up to the last. number: its bulk group, None if it is not known yet, or of threads."""

    def __init__(self, step: Step, by_threads: bool):
        self.step, self.by_threads = step, by_threads
        self.number: int | None = None


class Results(Rules):
    """Stores to, and loads from, tensors with which the kernel does both.

    places: whether coordinates tell places apart; loads, stores: of these tensors, by name; stored: by tensor, warp and
    place, the last store; flights: stores without a group; waits: by warp, its full waits; fences: by warp, when it last
    fenced global memory, and what it knew then; loaded: by tensor, mbarrier and place, a load, and its phase if known;
    loading: loads on their way.
    """

    kept = ("stored", "loaded", "fences", "waits")
    in_flight = ("flights", "loading")

    def __init__(self, clocks: Clocks, log: FindingLog, places: bool):
        super().__init__(clocks, log)
        plan, self.places = log.layout.plan, places
        both = {load.memory for load in plan.loads} & {store.memory for store in plan.stores}
        self.loads = {load.name: load for load in plan.loads if load.memory in both}
        self.stores = {store.name: store for store in plan.stores if store.memory in both}
        self.stored: dict[tuple[str, int, Place], Stored] = {}
        self.flights: dict[Flight, Stored] = {}
        self.waits = [Waits() for _ in range(self.layout.agents)]
        self.fences: dict[int, tuple[int, Clock]] = {}
        self.loaded: dict[tuple[str, int, Place], tuple[Step, int | None]] = {}
        self.loading: dict[Flight, tuple[tuple[str, int, Place], Step]] = {}

    def next_tile(self) -> None:
        """All warps come to their next output tile, whose places are others."""
        self.stored, self.loaded = {}, {}

    def facts(self, state: State, by_all: list[int]) -> Iterator[tuple[FactName, Known]]:
        for (tensor, agent, _), stored in self.stored.items():
            key, written = ("result", tensor, agent), self._written(agent, stored)
            if not written:
                yield (*key, state.committed[stored.step.thread] - (stored.number or 0)), ()
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
        """How it is known that a warp's store has been written."""
        if stored.by_threads:
            return ((self.clocks.published + agent, stored.step.time),)
        wait = self.waits[agent].first(stored.number)
        return () if wait is None else ((agent, wait.time),)

    def _fenced(self, agent: int, written: Known) -> Known:
        """How it is known that the storing warp fenced global memory after its store was *written*."""
        fence = self.fences[agent][0] if agent in self.fences else -1
        return tuple((entry, fence) for entry, time in written if fence >= time)

    def _fenced_by(self, agent: int, written: Known) -> bool:
        """Whether a warp fenced global memory after it came to know that a store was *written*."""
        return agent in self.fences and knows(self.fences[agent][1], written)

    def _place(self, part: Transfer, at: tuple[int, ...]) -> Place:
        return tuple(zip(at, part.part, strict=True)) if self.places and at else ()

    # ---- stores ---------------------------------------------------------------------------------------------------

    def store(self, step: Step, flight: Flight | None) -> None:
        """A store to a tensor is issued, or threads store (no *flight*)."""
        name, at = declared(type(step.op)).moved(step.op)
        part, agent = self.stores.get(name), step.agent
        if part is None:
            return
        tensor, place = part.memory, self._place(part, at)
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
        name, at = declared(type(step.op)).moved(step.op)
        part = self.loads.get(name)
        if part is None:
            return
        tensor, place = part.memory, self._place(part, at)
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
