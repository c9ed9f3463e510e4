"""States of a run: whether one state covers another, so that all runs from the second state go well if runs from the first do;
and the run from state to state."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from tmapipe.check import Step
from tmapipe.check.linear import LinearCheck, look_now
from tmapipe.check.phases import Known, knows
from tmapipe.isa.ops import Flight
from tmapipe.model.barriers import REGISTERS
from tmapipe.model.state import APPLY, WAITS, State
from tmapipe.prove.positions import CLUSTER, FactKey, Future, Here, Positions
from tmapipe.prove.shared import Stopped
from tmapipe.prove.spread import OVER
from tmapipe.prove.walker import Walker

# ---- recurrence ------------------------------------------------------------------------------------------------------
#
# State X is covered by state Y if the machine's abstract state is the same, X has no fact that Y lacks, and whoever knows a
# fact in Y knows it in X. For every rule asks that something is known (docs/internals/checker.md). Facts are what a later
# operation can be checked against: the last accesses to each slot, what has counted in the last phases of each mbarrier,
# waits, arrivals at peers. Stages are counted from where the warps are, and phases by their parity.


#: Facts of an mbarrier's contributions, and of those who wait for them.
OF_PHASES = "last", "now", "done", "wait", "before", "last but one"


class RunState:
    """The state of a run between two segments.

    state: the machine's; check: the checker's; positions: how far each warp is in its arrays; future: what may still come.
    """

    def __init__(self, state: State, check: LinearCheck, positions: Positions, future: Future):
        self.state, self.check, self.positions, self.future = state, check, positions, future
        self.telling: Any = None

    def copy(self) -> RunState:
        """The same state, to go on independently."""
        return RunState(self.state.copy(), self.check.copy(), self.positions.copy(), self.future)

    @property
    def settled(self) -> bool:
        """Whether nothing is in flight, uncommitted, or armed without an arrival."""
        state = self.state
        return not (state.loads or state.stores or state.open_group or any(p.loose for p in self.check.phases.now))

    def covered_by(self, other: RunState) -> bool:
        """Whether whatever goes well from *other* goes well from here."""
        if self.form != other.form:
            return False
        (mine, _, enough), (theirs, known, _) = self.known, other.known
        at = np.minimum(np.searchsorted(theirs, mine), len(theirs) - 1)
        if not (theirs[at] == mine).all():
            return False
        both = min(known.shape[1], enough.shape[1])
        return not ((known[at, :both] & ~enough[:, :both]).any() or known[at, both:].any())

    def knowing_less(self, other: RunState) -> RunState | None:
        """A state with less knowledge that covers this state and *other*: a complete phase of an mbarrier tells there only
        what the phase tells in both states. None if *other* knows less in another way too, or has facts of its own."""
        if self.form != other.form:
            return None
        (mine, known, _), (theirs, _, enough) = self.known, other.known
        at = np.minimum(np.searchsorted(mine, theirs), len(mine) - 1)
        if not (mine[at] == theirs).all():
            return None
        enough = np.pad(enough, ((0, 0), (0, max(0, known.shape[1] - enough.shape[1]))))
        more = np.unpackbits(known[at] & ~enough[:, : known.shape[1]], axis=1)
        names = {number: key for key, number in self.here.knowers.items() if key in self.knowers[0]}
        for column in np.flatnonzero(more.any(0)).tolist():
            if names[column][0] != "complete" or not self.check.phases.waits[names[column][1]]:
                return None
        own = {number: key for key, number in self.here.facts.items() if key in self.facts}
        found = self.copy()
        found.telling = self.telling
        done = found.check.phases.done
        for row, column in np.argwhere(more).tolist():
            bar = names[column][1]
            if done[bar] is self.check.phases.done[bar]:
                done[bar] = done[bar].apart()
            for entry, least in self.facts[own[int(theirs[row])]]:
                done[bar].clock[entry] = min(done[bar].clock[entry], least - 1)
        return found if other.covered_by(found) else None

    # ---- the machine's state --------------------------------------------------------------------------------------

    @cached_property
    def form(self) -> int:
        """A number for what must be equal: the machine's abstract state, and how far the warps are from each other."""
        state, layout, rename = self.state, self.check.layout, self.here.rename
        warps = []
        for agent in range(layout.agents):
            group, seen, issued = layout.group_of(agent), state.bar_seen[agent], state.issued[agent]
            warps.append(
                (
                    issued - state.done[group],
                    issued - state.awaited[agent],
                    tuple([issued - bound for bound in state.bounds[agent]]),
                    tuple([(name, issued - serial) for name, serial in state.latest[agent]]),
                    None if seen is None else (seen[0], state.bar_generation[seen[0]] - seen[1]),
                    None if state.cluster_seen[agent] < 0 else state.cluster[1] - state.cluster_seen[agent],
                )
            )
        bars: list[Any] = [None] * len(state.count)
        for bar, (there, flips) in enumerate(rename.bars):
            bars[there] = state.count[bar], state.pending[bar], state.tx[bar], state.phase[bar] & 1 ^ flips
        queues = [
            (group, matmul, a if a == REGISTERS else rename.slots[a], rename.slots[b], who)
            for group, queue in enumerate(state.queues)
            for matmul, a, b, who in queue
        ]
        started = {(rename.slots[slot], part) for slot, parts in self.check.slots.covering.items() for part in parts}
        written = {
            (rename.slots[slot], tuple(sorted((agent, tuple(sorted(cuts))) for agent, cuts in known.items())))
            for slot, known in self.check.contents.parts.items()
        }
        lists = state.bar_threads, state.bar_arrived, state.live, state.returned, state.cluster[:1], state.ended
        registers = state.free_registers, state.registers, state.sets_ahead
        every = (warps, bars, queues, sorted(started), sorted(written), *lists, *registers)
        visits = self.future.visits
        over = [self.positions.at.get((agent, OVER, array)) for array, own in visits.turns.items() for agent in own]
        form = self.positions.of(self.future.live)[1], *map(tuple, (*every, over))
        return self.future.forms.setdefault(form, len(self.future.forms))

    # ---- what is known --------------------------------------------------------------------------------------------

    @cached_property
    def here(self) -> Here:
        return self.future.here(self.positions)

    @cached_property
    def facts(self) -> dict[FactKey, Known]:
        """The facts that not all warps know, each with how it is known. What all know, all that comes later knows."""
        state, check = self.state, self.check
        facts: dict[FactKey, Known] = {("there is a fact",): ()}
        by_all = np.minimum.reduce(check.clocks.of).tolist()
        for rules in check.holding:
            facts.update([fact for fact in rules.facts(state, by_all) if not knows(by_all, fact[1])])
        for thread, groups in state.groups.items():
            for i, (flights, known_read) in enumerate(reversed(groups)):
                facts["group", thread, i, len(flights), known_read] = ()
        for agent, unfenced in enumerate(state.unfenced):
            if unfenced:
                facts["unfenced", agent] = ()
        return facts

    @cached_property
    def knowers(self) -> tuple[dict[FactKey, int], Any]:
        """Everything whose knowledge can still spread, each with the row of its clock; and the clocks, those of warps first. A
        complete phase tells nothing that all who wait for it know already."""
        state, check = self.state, self.check
        agents, phases = check.clocks.agents, check.phases
        own, lanes = np.array(check.clocks.of), check.clocks.of_all_lanes()
        found: dict[FactKey, int] = {("warp", agent): agent for agent in range(agents)}
        found.update({("all lanes of", agent): agents + agent for agent in range(agents)})
        clocks = [*own, *lanes]

        def add(key: FactKey, clock: Any) -> None:
            found[key] = len(clocks)
            clocks.append(clock)

        for waiters, bars in self.future.waiters.items():
            waited, tells = own[[*waiters]].min(0), np.array([phases.done[bar].clock for bar in bars])
            tells[range(len(bars)), [check.clocks.phases + bar for bar in bars]] = [state.phase[bar] for bar in bars]
            found.update(dict.fromkeys([("complete", bar) for bar in bars], len(clocks)))
            clocks.append(waited)
            for i in np.flatnonzero((tells > waited).any(1)).tolist():
                add(("complete", bars[i]), np.maximum(waited, tells[i]))
        for bar, now in enumerate(phases.now):
            if now.by or now.landed:
                add(("present", bar), now.clock)
        arrived = {seen[0] for seen in state.bar_seen if seen is not None}
        arrived |= {CLUSTER} if any(seen >= 0 for seen in state.cluster_seen) else set()
        for key, generation in check.barriers.recent():
            if key[0] in arrived or not generation.complete:
                add(("barrier", *key), generation.clock)
        for cta, clock in enumerate(check.lifetimes.exits):
            if clock.any():
                add(("exit", cta), clock)
        for (group, serial), clock in check.slots.mma_issued.items():
            add(("wgmma", group, state.issued[check.layout.group_warps(group)[0]] - serial), clock)
        return found, np.array(clocks)

    @cached_property
    def known(self) -> tuple[Any, Any, Any]:
        """The numbers of open facts; by fact, bits of the knowers that know it; and bits of these knowers and of those that do
        not matter. A fact is open if a warp that can be checked against it does not know it."""
        future, here, facts, agents = self.future, self.here, self.facts, self.check.layout.agents
        knowers, clocks = self.knowers
        every = known_by(clocks, facts.values())
        knowing = every[:, :agents]
        sets = np.fromiter(map(future.checked_of.__getitem__, facts), np.int64, len(facts))
        checked = future.checked[sets]
        lacking = checked & ~knowing
        lacking[future.as_one[sets] & (checked & knowing).any(1)] = False
        left = np.flatnonzero(lacking.any(1))
        keys = list(facts)
        keys = [keys[i] for i in left.tolist()]
        sets, lacking, every = sets[left], lacking[left], every[left]
        of_visits = np.array([key[0] == "slot" or (key[0] == "bar" and key[2] in OF_PHASES) for key in keys])
        self.future.visits.leave_out(self, np.where(of_visits, sets, -1), every, knowers, lacking)
        is_open = np.flatnonzero(lacking.any(1))
        numbers = np.array([here.facts[keys[i]] for i in is_open.tolist()], np.int64)
        order = np.argsort(numbers)
        is_open, numbers = is_open[order], numbers[order]
        rows = [here.knowers[key] for key in knowers]
        known = np.zeros((len(is_open), 1 + max(rows)), bool)
        known[:, rows] = every[is_open][:, [*knowers.values()]]
        enough = known
        if self.telling is not None:
            bars = [keys[i][1] if keys[i][0] == "bar" else -1 for i in is_open]
            enough = known.copy()
            enough[:, rows] |= ~self.telling.matter(bars, lacking[is_open], every[is_open, :agents], list(knowers))
        return numbers, np.packbits(known, axis=1), np.packbits(enough, axis=1)


def known_by(clocks: Any, facts: Collection[Known]) -> Any:
    """By fact, which clocks know the fact: a clock that has one of the fact's ways to be known."""
    ways = np.fromiter(map(len, facts), np.int64, len(facts))
    flat = np.fromiter(chain.from_iterable(chain.from_iterable(facts)), np.int32, 2 * int(ways.sum()))
    pairs, which = np.unique(flat.view(np.int64), return_inverse=True)  # facts about many barriers are known in one way
    entries, least = pairs.view(np.int32).reshape(-1, 2).T
    has = clocks.T[entries] >= least[:, None]
    found = np.zeros((len(facts), len(clocks)), bool)
    first = np.cumsum(ways) - ways
    for i in range(int(ways.max(initial=0))):
        more = np.flatnonzero(ways > i)
        found[more] |= has[which[first[more] + i]]
    return found


# ---- driving ---------------------------------------------------------------------------------------------------------
#
# All warps execute operations until each comes to a decision, a loop, or its end. The check watches. The order is that of
# the machine's scheduler (policy "fair"); here, operations come again and again, and each is looked up once.


MOST_OPERATIONS = 1_000_000  # between two boundaries


class Doing:
    """An operation of one warp. wait: of the machine, if it can block; apply: its transition; rules: of the check; moves: its
    places, as (key, its warp and array, stage, stages); visits: as of `Visits.place`."""

    __slots__ = ("apply", "moves", "op", "rules", "visits", "wait")

    def __init__(self, agent: int, op: Any, state: RunState):
        kind = type(op)
        self.op, self.wait, self.apply, self.rules = op, WAITS.get(kind), APPLY[kind], state.check.rules[kind]
        positions = state.positions
        places = positions.places(op)
        self.moves = [((agent, sort, array), (agent, array), stage, around) for sort, array, stage, around in places]
        found = (state.future.visits.place(agent, *each[:3]) for each in places)
        self.visits = [each for each in found if each is not None]
        if not self.moves:
            positions.meet(agent, op)
        for key, _, stage, _ in self.moves:
            positions.touched.setdefault(key, set()).add(stage)
        for each in places if state.future.visits.turns else ():
            turn = state.future.visits.turn(agent, *each[:3])
            self.visits += turn
            self.moves += [(key, key[::2], int(len(turn) == 1), 2) for key, *_ in turn[:1]]


class Driver:
    """Executes the operations of warps in one proof. known: by warp and `id`, what is known of operations, which it keeps."""

    def __init__(self, agents: int):
        self.known: list[dict[int, Doing]] = [{} for _ in range(agents)]

    def run(self, walkers: list[Walker], state: RunState, decide: Callable[[Any], Any], skip: Any) -> list[Any]:
        """Goes on until nobody can. Returns, by warp, what it has come to, as of `Walker.go_on`; None if it is blocked.

        Args:
            walkers: The warps.
            state: Of the machine, the check and the positions, which goes on.
            decide: Says how a condition has been decided.
            skip: Called with a walker and positions when it may have moved on in a ring without operations.
        """
        self.walkers, self.state, self.decide, self.skip = walkers, state, decide, skip
        self.stops: list[Any] = [None] * len(walkers)
        self.blocked: dict[Any, list[int]] = {}
        self.ready, self.flights = list(range(len(walkers))), list[Flight]()
        self.limit = state.check.log.order + MOST_OPERATIONS
        state.positions.moved()
        while self.ready or self.flights:
            now, self.ready = self.ready, []
            for agent in now:
                self._advance(agent)
                if self.flights:
                    self._move_all()
            if self.flights and not self.ready:
                self._move_all()
        return self.stops

    def _advance(self, agent: int) -> None:
        """Executes operations of a warp until it blocks, or comes to something else."""
        walker, run = self.walkers[agent], self.state
        state, check, known = run.state, run.check, self.known[agent]
        queue, log, clocks, positions = walker.queue, check.log, check.clocks, run.positions
        woken, started, at, skipped = state.woken, state.started, positions.at, positions.skipped
        time, clock = clocks.time, clocks.of[agent]
        while True:
            if not queue:
                stop = walker.go_on(self.decide)
                if walker.skips:
                    self.skip(walker, positions)
                if stop is not None:
                    self.stops[agent] = stop
                    return
            op = queue[0]
            doing = known.get(id(op))
            if doing is None:
                doing = known[id(op)] = Doing(agent, op, run)
            wait = doing.wait
            if wait is not None and not wait.enabled(state, agent, op):
                self.blocked.setdefault(wait.key(state, agent, op), []).append(agent)
                return
            for key, there, places in doing.visits:
                if at.get(key) not in places:
                    run.future.visits.watch(key, there, at.get(key))
            facts = doing.apply(state, agent, op)
            queue.popleft()
            log.order += 1
            time[agent] = clock[agent] = now = time[agent] + 1
            if doing.rules:
                step = Step(log.order, agent, op, None, "", now)
                for rule, effect in doing.rules:
                    rule(check, effect, step, facts)
            for key, of, stage, around in doing.moves:
                at[key] = (stage - skipped.get(of, 0)) % around if skipped else stage
            if woken or started:
                self._go_on()
            if not log.order & 63:
                look_now()
                if log.order > self.limit:
                    raise Stopped("more operations than are looked at between two iterations")

    def _move_all(self) -> None:
        """Lets each copy or matmul in flight that can go on take one step."""
        flights, self.flights = self.flights, []
        state, watch = self.state.state, self.state.check.watch
        for flight in flights:
            step = state.step_of(flight)
            watch(flight, step, APPLY[type(step)](state, flight, step))
            self._go_on()

    def _go_on(self) -> None:
        """Takes up the warps whose operations may have become enabled, and flights with a step to take."""
        state = self.state.state
        for key in state.woken:
            agents = self.blocked.pop(key, None)
            if agents:
                self.ready += agents
        state.woken.clear()
        self.flights += state.started
        state.started.clear()
