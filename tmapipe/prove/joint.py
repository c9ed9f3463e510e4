"""The joint run of all warps of a cluster, which finds a set of states that is closed under everything that can come next.

All warps go on as far as they can. Then warps that stand before loops of open count over the same rings enter their loops
together, and take them turn by turn. A *boundary* is a point before a turn, or behind the last one. The operations from one
boundary to the next are run once for each combination of decisions that can occur. The state at the next boundary joins the
set, unless a state of the set covers it (`prove.recurrence`).
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import attrs

from tmapipe.check import FindingLog
from tmapipe.check.linear import OF_PROOF, LinearCheck, OutOfTime, doing
from tmapipe.errors import HazardError, PipelineError
from tmapipe.isa import ArriveAt, Kind, declared
from tmapipe.isa.fragment import ClusterExchange
from tmapipe.model.layout import Layout
from tmapipe.model.state import State
from tmapipe.program.expressions import Call, every
from tmapipe.prove.loops import Loops
from tmapipe.prove.places import Places
from tmapipe.prove.positions import Future, PositionKey, Positions, everything, foreseen, stages_of
from tmapipe.prove.recurrence import Driver, RunState
from tmapipe.prove.shared import Again, Impossible, Loop, Point, Shared, Stopped, arrays_of, bounds, is_behind_skips
from tmapipe.prove.solver import Solver, replaced
from tmapipe.prove.spread import Spread, Visits
from tmapipe.prove.symbols import Sym, negated, text
from tmapipe.prove.walker import Open, Walker

MOST_STATES = 400
SAID = 8  # facts that a message has
MOST_EVENTS = 200_000  # transitions of all runs together
MOST_DECISIONS = 100  # from one boundary to the next: warps that go on one by one may never come to one
MOST_IDLE = 8  # iterations taken one by one, one after another, in which no warp executes an operation


@attrs.frozen
class Proof:
    """The result of a search.

    closed: whether all runs are safe; states: how many the set has; events: transitions executed; why: if not closed, what was
    in the way; free: names of values that were taken to be anything; facts: what was decided where the search stopped;
    unfinished: whether the time was over.
    """

    closed: bool
    states: int
    events: int
    why: str = ""
    free: tuple[str, ...] = ()
    facts: frozenset[Sym] = frozenset()
    unfinished: bool = False


def prove(program: Any) -> Proof:
    """Whether every run of a traced program, as `trace` gives it, is safe: for every shape, every count, every cluster."""
    if not are_apart(program):
        return _prove(program)[0]
    states = events = 0
    for cta in range(program.plan.cluster_size):
        proof, by_rank = _prove(program, cta)
        states, events = states + proof.states, events + proof.events
        if not proof.closed or not by_rank:  # else all CTAs do the same
            break
    return attrs.evolve(proof, states=states, events=events)


def are_apart(program: Any) -> bool:
    """Whether the CTAs of a cluster do nothing to each other: no operation reaches a peer or its slots, they meet at most
    once, outside of loops, and load nothing that the kernel stores."""
    plan = program.plan
    if plan.cluster_size == 1 or {load.memory for load in plan.loads} & {store.memory for store in plan.stores}:
        return False
    meetings = 0
    for node in (node for node in every(program.nodes) if type(node) is Call):
        if any(isinstance(x, ClusterExchange) for x in (*node.args, *node.named.values())):
            return False
        for op in node.ops:
            of = declared(type(op))
            if any(getattr(op, name) is not None for name in of.named(Kind.MASK)):
                return False
            meets = of.effect(ArriveAt)
            if meets is not None and not meets.barrier:
                meetings += 1 if node in program.nodes else 2
    return meetings <= 1


def _prove(program: Any, cta: int | None = None) -> tuple[Proof, bool]:
    """The result, and whether it depends on the ranks of CTAs. cta: the only CTA that is looked at, where CTAs are apart."""
    teams = any(role.teams > 1 for role in program.plan.roles)
    search = Search(program, not teams, cta=cta)
    error = search.error()
    if error is not None and search.joined and not isinstance(error, OutOfTime):
        search.forget()
        search = Search(program, not teams, joining=False, cta=cta)
        error = search.error()
    why = "" if error is None else str(error).split("\n")[0]
    facts = frozenset() if error is None or search.now is None else search.now.facts
    free, late = tuple(sorted(search.loops.free)), isinstance(error, OutOfTime)
    found = Proof(error is None, search.count, search.log.order, why, free, facts, late), search.shared.by_rank
    search.forget()
    return found


class Search:
    """One search. mixed: as of `Loops`; joining: whether states of teams may be taken to know less than they do; cta: the only
    CTA that is looked at."""

    def __init__(self, program: Any, mixed: bool, joining: bool = True, cta: int | None = None):
        self.program, self.teams, self.joining = program, not mixed, joining and not mixed
        self.shared = Shared(program, cta)
        self.layout: Layout = self.shared.layout
        self.places = Places(self.layout, program.nodes)
        self.solver = Solver(bounds)
        self.loops = Loops(self.shared, self.places, self.solver, mixed)
        self.log = FindingLog(self.layout)
        self.count = 0
        self.joined = False  # whether a state was taken to know less than it does
        self.compared = False  # whether a state was left out because another one covers it
        self.future: Any = None
        self.known: dict[Any, list[RunState]] = {}
        self.visits = Visits(self.layout)
        self.parts: dict[int, tuple[int, Any]] = {}
        self.stages = stages_of(self.layout)
        self.spread = Spread(self.shared)
        self.shared.foresee = self.spread.foresee
        self.arrays = {ring.name: arrays_of(program.plan, ring) for ring in program.plan.rings}
        self.now: Point | None = None  # where it is
        self.idle: dict[Any, set[Any]] = {}  # location -> the next locations, where no operation lies between

    def forget(self) -> None:
        """Clears objects that refer to themselves or each other, and would wait for the garbage collector."""
        for each in filter(None, (self.loops, self.spread, self.future, self.shared, self)):
            vars(each).clear()

    # ---- the search -------------------------------------------------------------------------------------------------

    def error(self) -> Exception | None:
        """Why no closed set was found, or None."""
        try:
            with doing(lambda: f"{self.count} states between iterations so far, {self.log.order} operations", OF_PROOF):
                self.run()
        except (Stopped, Open, HazardError, OutOfTime) as error:
            return error
        return None

    def run(self) -> None:
        every, origin = everything(self.shared, self.places.pinned)
        self.future = Future(self.layout, every)
        self.future.visits = self.visits
        while True:
            try:
                return self._from_the_start(every, origin)
            except Again:
                self.count, self.known, self.idle = 0, {}, {}

    def _from_the_start(self, every: Positions, origin: dict[PositionKey, int]) -> None:
        layout, self.compared = self.layout, False
        start = Point([Walker(self.shared, agent) for agent in range(layout.agents)], frozenset(), (), None)
        positions = Positions(layout)
        positions.at.update(origin)
        first = RunState(State(layout), LinearCheck(layout, {}, self.log), positions, self.future)
        first.check.phases.watch = self.visits.complete
        self._describe_visits()
        todo: list[tuple[Point, RunState, tuple[Any, ...]]] = [(start, first, ())]
        while todo:
            point, state, choices = todo.pop()
            if point.key is None or any(each is state for each in self.known[point.key]):  # else a later one covers it
                self._segment(point, state, choices, todo)
        if not foreseen(positions, every):
            raise Stopped("an operation on an array of barriers or slots was not foreseen")
        if _goes_around(self.idle):
            raise Stopped("loops that hand on several slots at a time, of which none fit")

    def _segment(self, point: Point, before: RunState, choices: tuple[Any, ...], todo: list[Any]) -> None:
        """Runs from a boundary to the next one, by these decisions. Adds to *todo* the next boundary, and the same segment for
        each other outcome of a decision."""
        now = self.now = Point([walker.copy() for walker in point.walkers], point.facts, point.loops, None)
        if self.log.order > MOST_EVENTS:
            raise Stopped("still no state recurs")
        state, left, taken = before.copy(), list(choices), list[Any]()
        began = self.log.order, self.loops.iterations

        def choose(options: list[Any]) -> Any:
            if len(taken) >= MOST_DECISIONS:
                raise Stopped(f"decisions that come to no end between two iterations ({self._said(now)})")
            if left:
                found = left.pop(0)
            else:
                found, *others = options  # the next iteration first: what is left is then mostly covered
                todo.extend((point, before, (*taken, other)) for other in others)
            taken.append(found)
            return found

        if point.options is not None:
            if not point.options:
                return  # what has been decided cannot be so
            self.loops.leave_boundary(now, choose(point.options))
        try:
            boundary = self._drive(now, state, choose)
        except Impossible:
            return
        if self.visits.changed:
            if self.compared:
                raise Again
            self._describe_visits()
        if boundary is None:
            state.check.finish()
        self._look(now)
        if boundary is None:
            return
        if not state.settled:
            raise Stopped("something is still in flight between two iterations")
        for walker in now.walkers:
            self._skip(walker, state.positions)
        self._leave_out(now, state.positions)
        to = self.to_go_on(now, state)
        if began == (self.log.order, self.loops.iterations):
            self.idle.setdefault(point.key, set()).add(now.key)
        if to is not None:
            self.count += 1
            if self.count > MOST_STATES or self.log.order > MOST_EVENTS:
                raise Stopped("still no state recurs")
            todo.append((now, to, ()))

    def _describe_visits(self) -> None:
        """Describes visits as they have been seen so far. Segments that have run fit the new description, too."""
        self.visits.begin(self.future)
        self.driver = Driver(self.layout.agents)
        for state in chain.from_iterable(self.known.values()):
            for name in ("known", "form"):
                vars(state).pop(name, None)

    def _look(self, now: Point) -> None:
        for finding in self.log.found.values():
            if not finding.kind.note:
                raise Stopped(f"{finding.message} ({self._said(now)})")

    def _said(self, now: Point) -> str:
        facts = sorted(now.facts, key=lambda each: (each.size, text(each)))
        more = [f"and {len(facts) - SAID} more"] if len(facts) > SAID else []
        return "; ".join([*map(text, facts[:SAID]), *more]) or "nothing decided"

    # ---- from one boundary to the next ------------------------------------------------------------------------------

    def _drive(self, now: Point, state: RunState, choose: Any) -> Loop | None:
        """Goes on until the next boundary, and returns its loop; None at the end of all warps."""
        decided: dict[Sym, bool | None] = {}  # by *point*, which is that of the facts and loops
        point: Any = None

        def decide(condition: Sym) -> bool | None:
            nonlocal point
            if point is None or point[0] is not now.facts or point[1] is not now.loops:
                point = now.facts, now.loops
                decided.clear()
            if condition not in decided:
                turns = now.turns()
                facts = [replaced(each, turns) for each in now.facts]
                decided[condition] = self.solver.decided(replaced(condition, turns), facts)
            return decided[condition]

        def assume(condition: Any) -> None:
            if isinstance(condition, Sym) and condition not in now.facts:
                now.facts = now.facts | {condition}

        idle, before, began = 0, self.log.order, self.log.order

        def take_one(group: list[tuple[Walker, Any]]) -> None:
            nonlocal idle, before
            idle, before = idle + 1 if before == self.log.order else 0, self.log.order
            if idle > MOST_IDLE:
                raise Stopped(f"iterations in which nobody goes on ({self._said(now)})")
            self.loops.take_one(now, group, choose)

        self.shared.assume = assume
        entered: set[int] = set()  # loops that were entered without a boundary: each at most once, so that this ends
        while True:
            try:
                stops = self.driver.run(now.walkers, state, decide, self._skip)
            except PipelineError as error:  # also one of the machine
                raise Stopped(str(error).split("\n")[0]) from None
            open_ = next((stop[1] for stop in stops if stop is not None and stop[0] == "decide"), None)
            if open_ is not None:
                taken = choose([True, False])
                now.facts = now.facts | {open_ if taken else negated(open_)}
                continue
            iterated = {agent for agent, stop in enumerate(stops) if stop == ("iterated",)}
            over = next((l for l in reversed(now.loops) if iterated.issuperset(a for a, *_ in l.members)), None)
            if over is not None:
                self.loops.next_turn(now, state, over)
                if len(now.options) != 1 or (now.options[0] == "on" and now.loops[-1].turn == over.turn):
                    return over
                self.loops.leave_boundary(now, now.options[0])
                continue
            left = next((l for l in reversed(now.loops) if self.loops.is_left(now, l, stops)), None)
            if left is not None:
                self.loops.end(now, left)
                continue
            stopped = [(w, stop) for w, stop in zip(now.walkers, stops, strict=True) if stop is not None]
            heads = [(w, stop[1]) for w, stop in stopped if stop[0] == "loop"]
            if self.loops.go_through(now, heads):
                continue
            ended = [(w, node) for w, node in heads if self.loops.is_over(w, node, now)]
            if ended:
                take_one(ended)
                continue
            if heads:
                group = self.loops.together.group(now, heads)
                if wanted := self._wanted(now, group, stops):
                    take_one(wanted)
                    continue
                loop = self.loops.enter(now, group)
                here = began == self.log.order  # nothing has happened since the last boundary
                if loop.site in entered or (len(now.options) > 1 and not here):
                    return loop
                entered.add(loop.site)
                if not now.options:
                    raise Impossible
                self.loops.leave_boundary(now, choose(now.options) if len(now.options) > 1 else now.options[0])
                continue
            if all(stop == ("done",) for stop in stops):
                return None
            blocked = [w.agent for w, stop in zip(now.walkers, stops, strict=True) if stop is None]
            names = ", ".join(dict.fromkeys(self.layout.role(agent) for agent in blocked))
            raise Stopped(f"{names} cannot go on ({self._said(now)})")

    def _wanted(self, now: Point, group: list[tuple[Walker, Any]], stops: list[Any]) -> list[tuple[Walker, Any]]:
        """The warps of *group* for an iteration of whose loops a warp waits that comes to its own loop only then."""
        names = self.loops.together.missing(now, group, stops)
        bits = sum(self.spread.arrays[name] for name in names)
        telling = [(walker, node) for walker, node in group if self.spread.of_node(walker, node).tells & bits]
        return telling or (group if names else [])

    def _skip(self, walker: Walker, positions: Positions) -> None:
        """A warp has moved on in a ring without operations."""
        for ring, slots in walker.skips:
            for array in self.arrays[ring]:
                where = walker.agent, array
                positions.skipped[where] = positions.skipped.get(where, 0) + slots
            positions.moved()
        walker.skips.clear()

    def _leave_out(self, now: Point, positions: Positions) -> None:
        """Warps that have come to their end count as being where the others are."""
        live, at, skipped = self.future.live, positions.at, positions.skipped
        done = {walker.agent for walker in now.walkers if not walker.frames and not walker.queue}
        for key, first in zip(live.keys, live.first, strict=True) if done else ():
            if key[0] in done:
                other = live.keys[first]
                there = at.get(other, 0) + skipped.get((other[0], other[2]), 0)
                at[key] = there - skipped.get((key[0], key[2]), 0)
                positions.moved()

    # ---- what recurs ------------------------------------------------------------------------------------------------

    def to_go_on(self, now: Point, state: RunState) -> RunState | None:
        """None if a state of the set covers this state. Else the state to go on from, which joins the set: this state, or one
        that knows less, and so covers this state and others."""
        key = now.key = self._location(now, state)
        state.telling = self.spread.from_here(now.walkers)
        others = self.known.setdefault(key, [])
        if any(state.covered_by(each) for each in reversed(others)):
            self.compared = True
            return None
        for each in reversed(others) if self.joining else ():
            less = state.knowing_less(each)
            if less is not None:
                state, self.joined = less, True
        left = [each for each in others if not each.covered_by(state)]
        self.compared |= len(left) < len(others) or self.joined
        others[:] = [*left, state]
        return state

    def _location(self, now: Point, state: RunState) -> Any:
        here = state.here
        rename = here.rename
        walkers = []
        for walker in now.walkers:
            own = []
            for var, value in walker.env.items():
                if var in self.places.finite or var in self.places.offsets:
                    own.append((self._number(var), self._place(walker, var, value, rename)))
                elif value is not None:
                    own.append((self._number(var), value))
            queue = tuple(rename.op(walker.agent, op) for op in walker.queue)
            frames = tuple((f[0], self._number(f[1]), *f[2:]) if len(f) > 1 else f for f in walker.frames)
            walkers.append((frames, tuple(sorted(own, key=lambda x: x[0])), queue, walker.reads))
        loops = tuple((loop.site, loop.turn, tuple(x[3] for x in loop.members)) for loop in now.loops)
        where = state.positions.of(self.future.live)[0]
        pinned = tuple(
            int(where[first]) % (2**31 if array in self.places.pinned_parities else self.stages[array])
            for _, array, first in self.future.live.arrays
            if array in self.places.pinned or array in self.places.pinned_parities
        )
        return tuple(walkers), loops, now.facts, tuple(now.options), pinned

    def _number(self, part: Any) -> int:
        """The number of a node, block or variable of the program, which stays alive."""
        return self.parts.setdefault(id(part), (len(self.parts), part))[0]

    def _slot_base(self, array: str) -> int:
        """The first slot of an array of slots, of all its owners."""
        return self.layout.slot_base[array.removeprefix("slots of ").split(" of owner ")[0]]

    def _place(self, walker: Walker, var: Any, value: Any, rename: Any) -> Any:
        """A position in a ring, counted from where the warps are."""
        places, layout = self.places, self.layout
        cta = walker.rank
        if is_behind_skips(value):
            base, slots, stages, ring = value.args
            where: list[Any] = [slots]
            for array in self.arrays[ring]:
                if array in layout.bar_base:
                    there, flips = rename.bars[cta * layout.nbars + layout.bar_base[array] + base % stages]
                    where.append((there, value.op == "parity after" and base // stages ^ flips))
                else:
                    where.append(rename.slots[cta * layout.nslots + self._slot_base(array) + base % stages])
            return tuple(where)
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        slot = places.partner.get(var)
        if var in places.turns:
            array, stage = places.turns[var]
            return value ^ rename.bars[cta * layout.nbars + layout.bar_base[array] + walker.number(stage)][1]
        if slot is not None:
            stage = walker.env.get(slot)
            bars = [array for kind, array, _ in places.offsets.get(slot, ()) if kind == "bar"]
            if not isinstance(stage, int) or not bars or not 0 <= stage < len(rename.bars):
                return ("parity", value, stage)
            flips = rename.bars[cta * layout.nbars + layout.bar_base[bars[0]] + stage][1]
            return value ^ flips
        found = []
        for kind, array, offset in sorted(places.offsets.get(var, ()), key=lambda x: x[:2]):
            stage = value + walker.number(offset)
            if value < 0:
                return value
            if kind == "bar":
                base = cta * layout.nbars + layout.bar_base[array]
                found.append(rename.bars[base + value][0] - base)
            else:
                place = self._slot_base(array) + stage
                if place < layout.nslots and layout.slot_places[place][0] == array:  # else it is another owner's
                    base = cta * layout.nslots + place - stage
                    found.append(rename.slots[base + stage] - base)
        return tuple(found) or value


def _goes_around(following: dict[Any, set[Any]]) -> bool:
    """Whether a location leads to itself: then no run was followed to its end."""
    left = dict(following)
    while left:
        ends = [key for key, others in left.items() if others.isdisjoint(left)]
        if not ends:
            return True
        for key in ends:
            del left[key]
    return False
