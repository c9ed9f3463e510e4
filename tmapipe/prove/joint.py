"""The joint run of all warps of a cluster, loop by loop: a set of states that is closed under everything that can come next.

All warps go on as far as they can. Then those that stand before loops of open count, over the same rings, enter them together, and
go through them iteration by iteration. A *boundary* is a point before an iteration of such a loop, or behind its last one. What
comes between two boundaries is run once for each combination of decisions that can occur. At a boundary, the machine's state,
what the check knows, and where the warps are must be covered by what was looked at before (`check.recurrence`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import attrs

from tmapipe.check.future import Future
from tmapipe.check.linear import LinearCheck
from tmapipe.check.log import FindingLog
from tmapipe.check.positions import Positions, stages_of
from tmapipe.check.recurrence import RunState
from tmapipe.errors import HazardError, PipelineError
from tmapipe.isa.effects import Init, declared
from tmapipe.isa.operands import Kind
from tmapipe.machine import Layout, State
from tmapipe.machine.scheduler import Scheduler
from tmapipe.plan.model import Barrier
from tmapipe.program.expressions import Expr
from tmapipe.program.nodes import Call, For, If, Let, While
from tmapipe.prove.places import Places
from tmapipe.prove.slicing import LOCAL, WITHOUT_OPERATIONS, Slice
from tmapipe.prove.solver import Solver
from tmapipe.prove.symbols import (
    Sym,
    add,
    at_least_0,
    divide,
    is_0,
    leaf,
    leaves,
    multiply,
    negated,
    replaced,
    text,
    truth,
)
from tmapipe.prove.walker import Open, ProofIsa, Walker, live

__all__ = ["Proof", "prove"]

MOST_STATES = 1500
MOST_EVENTS = 40_000  # transitions of all runs together


@attrs.frozen
class Proof:
    """What was found. closed: whether all runs are safe; states: how many are in the set; events: transitions executed; why: if
    not closed, what is in the way; free: values that were taken to be anything."""

    closed: bool
    states: int
    events: int
    why: str = ""
    free: tuple[str, ...] = ()


class Loop(NamedTuple):
    """An open loop that warps go through together.

    site: which; index: the symbol of its iteration; turn: which iteration comes next, or the last number that is told apart;
    members: (warp, node, first index, iterations left at entry, pace); before: facts at its entry; old: what its members had
    carried at the beginning of the iteration.
    """

    site: int
    index: Sym
    turn: int
    members: tuple[tuple[int, Any, Any, Any, int], ...]
    before: frozenset[Sym]
    old: dict[Any, Any]


class Point:
    """Where all warps are. facts: what is decided; loops: those entered, the innermost last; options: of the boundary."""

    __slots__ = ("facts", "key", "loops", "options", "walkers")

    def __init__(self, walkers: list[Walker], facts: frozenset[Sym], loops: tuple[Loop, ...], options: Any):
        self.walkers, self.facts, self.loops, self.options = walkers, facts, loops, options
        self.key: Any = None  # of the boundary, where states are compared


class Stopped(Exception):
    """Something goes wrong, or cannot be taken by itself."""


class Impossible(Exception):
    """What has been decided cannot be so."""


class Shared:
    """What all walkers of one proof share: the program, its layout, symbols, and where operations go."""

    def __init__(self, program: Any):
        self.program, self.layout = program, Layout(program.plan)
        self.emitting: Any = None
        self.isas = [ProofIsa(self.layout, agent, self.emit) for agent in range(self.layout.agents)]
        self.stored = {store.argument for store in program.plan.stores}
        self.decides = Slice(program.nodes).decides
        self._carried: dict[int, list[Any]] = {}
        self._inert: dict[int, bool] = {}
        self._symbols: dict[Any, Any] = {}
        self._local: dict[type, bool] = {}

    def emit(self, op: Any) -> None:
        queue, node = self.emitting
        kind = type(op)
        if kind not in self._local:
            self._local[kind] = declared(kind).local
        if self._local[kind]:
            return
        for name, of in declared(kind).operands.items():
            if of is not Kind.AT and isinstance(getattr(op, name), Sym):
                raise Open(f"{text(getattr(op, name))}, an operand of {kind.__name__} at {node.where}")
        queue.append(op)

    def inert(self, node: Any) -> bool:
        """Whether a loop or branch executes nothing that synchronizes, and gives nothing on which something depends."""
        if id(node) not in self._inert:
            self._inert[id(node)] = self._is_inert(node)
        return self._inert[id(node)]

    def _is_inert(self, node: Any) -> bool:
        kind = type(node)
        if kind is Let:
            return True
        if kind is Call:
            given = not self.decides.isdisjoint(node.results)
            return not given and (node.method in WITHOUT_OPERATIONS or node.method in LOCAL)
        if kind is If:
            given = any(phi in self.decides for phi, _, _ in node.phis)
            return not given and all(map(self.inert, (*node.then, *node.other)))
        given = any(each in self.decides for phi, _, _, after in node.carried for each in (phi, after))
        return not given and all(map(self.inert, node.body))

    def carried(self, node: Any) -> list[Any]:
        """What a loop carries that decides something."""
        if id(node) not in self._carried:
            self._carried[id(node)] = [each for each in node.carried if each[0] in self.decides]
        return self._carried[id(node)]

    def symbol(self, x: Any) -> Any:
        """What a symbol of the program is."""
        if x not in self._symbols:
            extents = self.program.isa.symbols["extents"]
            if x in extents:
                argument, dim = extents[x]
                self._symbols[x] = self._extent(self.program.plan.dims[argument][dim])
            else:
                self._symbols[x] = leaf("of the launch", x.args[0])
        return self._symbols[x]

    def _extent(self, name: str) -> Any:
        relation = next((each for each in self.program.plan.relations if each.name == name), None)
        if relation is None or (relation.size is None and relation.of is None):
            return leaf("extent", name)
        if relation.size is not None:
            return relation.size
        found = add(divide(add(self._extent(str(relation.of)), relation.per - 1), relation.per), relation.plus)
        if relation.plus >= 0:
            return found
        from tmapipe.prove.symbols import arithmetic

        return arithmetic("max", found, 0)

    def entry(self, table: str, i: Any, walker: Walker, node: Any) -> Any:
        """An entry of a table. One that the kernel stores to may be another one at each look."""
        if table in self.stored:
            return leaf("answer", f"an entry of {table} in {self.layout.agent_name(walker.agent)}", id(node))
        return leaf("entry", table, i)


def bounds(x: Sym) -> tuple[int | None, int | None]:
    """The least and the most that a leaf may be."""
    kind = x.args[0]
    if kind == "extent" or (kind == "of the launch" and x.args[1] == "clusters"):
        return 1, 2**31 - 1
    if kind in ("turn", "of the launch"):
        return 0, 2**31 - 1
    return None, None


def prove(program: Any, mixed: bool = True) -> Proof:
    """Whether every run of a traced program is safe: for every shape, every count, every cluster.

    Args:
        program: As `trace` gives it.
        mixed: Whether each tile may take other decisions on what is the same in a whole run, which is more than can occur.
    """
    search = _Search(program, mixed)
    try:
        search.run()
    except (Stopped, Open) as error:
        return Proof(False, search.count, search.log.order, str(error), tuple(sorted(search.free)))
    return Proof(True, search.count, search.log.order, "", tuple(sorted(search.free)))


class _Search:
    def __init__(self, program: Any, mixed: bool):
        self.program, self.mixed = program, mixed
        self.shared = Shared(program)
        self.layout: Layout = self.shared.layout
        self.places = Places(self.layout, program.nodes)
        self.solver = Solver(bounds)
        self.log = FindingLog(self.layout)
        self.sites: dict[Any, int] = {}
        self.count = 0
        self.free: set[str] = set()
        self.future: Any = None
        self.known: dict[Any, list[RunState]] = {}
        self._names: dict[int, frozenset[str]] = {}
        self.stages = stages_of(self.layout)

    # ---- the search -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        layout = self.layout
        start = Point([Walker(self.shared, agent) for agent in range(layout.agents)], frozenset(), (), None)
        positions = Positions(layout)
        self.touched, self.arrivals = positions.touched, positions.arrivals
        everything = self._everything()
        positions.at.update(everything.origin)
        self.future = Future(layout, [everything], set(range(layout.agents)))
        first = RunState(State(layout), LinearCheck(layout, {}, self.log), positions, self.future)
        todo: list[tuple[Point, RunState, tuple[Any, ...]]] = [(start, first, ())]
        while todo:
            point, state, choices = todo.pop()
            if point.key is None or any(each is state for each in self.known[point.key]):  # else a later one covers it
                self._segment(point, state, choices, todo)

    def _segment(self, point: Point, before: RunState, choices: tuple[Any, ...], todo: list[Any]) -> None:
        """Runs from a boundary to the next one, by these decisions; adds to *todo* what is still to be taken, and that one."""
        now = Point([walker.copy() for walker in point.walkers], point.facts, point.loops, None)
        state, left, taken = before.copy(), list(choices), list[Any]()

        def choose(options: list[Any]) -> Any:
            if left:
                found = left.pop(0)
            else:
                found = options[-1]  # tiles of few steps first: what is left to look at later is then mostly covered
                todo.extend((point, before, (*taken, other)) for other in options[:-1])
            taken.append(found)
            return found

        if point.options is not None:
            self._leave_boundary(now, choose(point.options))
        try:
            boundary = self._drive(now, state, choose)
        except Impossible:
            return
        if boundary is None:
            state.check.finish()
        self._look(now)
        if boundary is None:
            return
        if not state.settled:
            raise Stopped("something is still in flight between two iterations")
        if not self._is_known(now, state):
            self.count += 1
            if self.count > MOST_STATES or self.log.order > MOST_EVENTS:
                raise Stopped("still no state recurs")
            todo.append((now, state, ()))

    def _look(self, now: Point) -> None:
        for finding in self.log.found.values():
            if not finding.kind.note:
                raise Stopped(f"{finding.message} ({self._said(now)})")

    def _said(self, now: Point) -> str:
        return "; ".join(sorted(map(text, now.facts))) or "nothing decided"

    # ---- from one boundary to the next ------------------------------------------------------------------------------

    def _drive(self, now: Point, state: RunState, choose: Any) -> Loop | None:
        """Goes on until the next boundary, at which `now` then is; None at the end."""
        decided: dict[Sym, bool | None] = {}

        def decide(condition: Sym) -> bool | None:
            if condition not in decided:
                decided[condition] = self.solver.decided(condition, now.facts)
            return decided[condition]

        positions = state.positions
        relative = positions._relative

        def watch(agent: Any, op: Any, facts: Any) -> None:
            if type(agent) is int:
                relative(agent, op)

        positions._positions = None
        while True:
            stops: list[Any] = [None] * len(now.walkers)

            def feed(walker: Walker, stops: list[Any] = stops) -> Any:
                while True:
                    stop = walker.go_on(decide)
                    if stop is not None:
                        stops[walker.agent] = stop
                        return
                    yield walker.queue.popleft()

            programs = [feed(walker) for walker in now.walkers]
            scheduler = Scheduler(state.state, programs, "fair", watchers=(state.check.watch, watch), max_steps=1_000_000)
            try:
                scheduler._run_fair()
            except HazardError as error:
                raise Stopped(str(error).split("\n")[0]) from None
            except PipelineError as error:
                raise Stopped(str(error).split("\n")[0]) from None
            for walker in now.walkers:
                if scheduler.current[walker.agent] is not None:
                    walker.queue.appendleft(scheduler.current[walker.agent])
            open_ = next((stop[1] for stop in stops if stop is not None and stop[0] == "decide"), None)
            if open_ is not None:
                taken = choose([True, False])
                now.facts = now.facts | {open_ if taken else negated(open_)}
                decided.clear()
                continue
            for loop in reversed(now.loops):
                if all(stops[agent] == ("iterated",) for agent, *_ in loop.members):
                    self._next_turn(now, state, loop)
                    return loop
            heads = [(w, stop[1]) for w, stop in zip(now.walkers, stops, strict=True) if stop is not None and stop[0] == "loop"]
            if heads:
                group = self._together(now, heads)
                if self._is_behind(now, group, stops):
                    self._take_one(now, group, choose)
                    decided.clear()
                    continue
                loop = self._enter(now, group)
                if len(now.options) > 1:
                    return loop
                if not now.options:
                    raise Impossible
                self._leave_boundary(now, now.options[0])
                decided.clear()
                continue
            if all(stop == ("done",) for stop in stops):
                return None
            blocked = [w.agent for w, stop in zip(now.walkers, stops, strict=True) if stop is None]
            names = ", ".join(dict.fromkeys(self.layout.role(agent) for agent in blocked))
            raise Stopped(f"{names} cannot go on ({self._said(now)})")

    # ---- loops ------------------------------------------------------------------------------------------------------

    def _is_behind(self, now: Point, group: list[tuple[Walker, Any]], stops: list[Any]) -> bool:
        """Whether somebody waits for what an iteration of these loops does, and comes to its own loop only then."""
        names = set().union(*(self._arrays(node) for _, node in group))
        return any(
            stop is None and bool(self._waited_for(walker) & names)
            for walker, stop in zip(now.walkers, stops, strict=True)
        )

    def _waited_for(self, walker: Walker) -> set[str]:
        """The array of the barrier that a warp waits for."""
        op = walker.queue[0]
        return {self.layout.bar_places[getattr(op, name)][0] for name in declared(type(op)).named(Kind.BAR)}

    def _take_one(self, now: Point, group: list[tuple[Walker, Any]], choose: Any) -> None:
        """One iteration of each of these loops by itself, if there is one left."""
        for walker, node in group:
            _, _, base = walker.frames[-1]
            if type(node) is For:
                condition = at_least_0(add(self._left(walker, node), -1))
            else:
                condition = truth(walker.number(node.condition))
            taken = self.solver.decided(condition, now.facts)
            if taken is None:
                taken = choose([True, False])
                now.facts = _with(now.facts, [condition if taken else negated(condition)])
            walker.frames.pop()
            if not taken:
                walker.leave_loop(node)
                continue
            if type(node) is For:
                walker.env[node.index] = base
            walker.frames += [("one", node, base), ("block", node.body, 0)]

    def _enter(self, now: Point, group: list[tuple[Walker, Any]]) -> Loop:
        """Enters the loops of those that go together."""
        kinds = {type(node) for _, node in group}
        if len(kinds) > 1:
            raise Open("loops over tiles of different orders")
        members = []
        if kinds == {While}:
            tests = {truth(walker.number(node.condition)) for walker, node in group}
            if len(tests) > 1:
                raise Open("loops whose ends are not known to be one")
            members = [(walker.agent, node, 0, 0, 1) for walker, node in group]
        else:
            counts = [self._left(walker, node) for walker, node in group]
            paces = self._paces(now, [node for _, node in group], counts)
            for (walker, node), left, pace in zip(group, counts, paces, strict=True):
                members.append((walker.agent, node, walker.frames[-1][2], left, pace))
        site_key = tuple((agent, id(node), pace, base) for agent, node, base, _, pace in members), len(now.loops)
        site = self.sites.setdefault(site_key, len(self.sites))
        loop = Loop(site, leaf("turn", f"turn {site}"), 0, tuple(members), now.facts, {})
        now.loops = (*now.loops, loop)
        now.facts = now.facts | {is_0(loop.index)}
        for walker, node in group:
            reads = sum(type(each) is Call and each.method == "read_words" for each in node.body)
            walker.reads = add(walker.reads, multiply(loop.index, reads))
        self._finish_boundary(now, loop)
        return loop

    def _left(self, walker: Walker, node: Any) -> Any:
        base = walker.frames[-1][2]
        return add(walker.number(node.count), base, -1)

    def _together(self, now: Point, heads: list[tuple[Walker, Any]]) -> list[tuple[Walker, Any]]:
        """Those that go over the same rings; of several such groups, the one of which nobody is missing."""
        groups: list[tuple[set[str], list[tuple[Walker, Any]]]] = []
        for walker, node in heads:
            names = set(self._arrays(node)) or {f"{id(node)}"}
            mine = [group for group in groups if group[0] & names]
            groups = [group for group in groups if group not in mine]
            groups.append((names.union(*(g[0] for g in mine)), [(walker, node), *(x for g in mine for x in g[1])]))

        def missing(group: tuple[set[str], Any]) -> int:
            inside = {walker.agent for walker, _ in group[1]}
            return sum(
                walker.agent not in inside and bool(group[0] & self._remaining(walker)) for walker in now.walkers
            )

        found = min(groups, key=missing)[1]
        return sorted(found, key=lambda each: each[0].agent)

    def _remaining(self, walker: Walker) -> set[str]:
        """Arrays of barriers that a warp still comes to, in the iteration that it is in."""
        found: set[str] = set()
        for frame in reversed(walker.frames):
            if frame[0] == "block":
                for node in frame[1][frame[2] :]:
                    found |= self._arrays(node)
            elif frame[0] == "joint":
                break
        return found

    def _arrays(self, node: Any) -> frozenset[str]:
        """Arrays of barriers that a node uses."""
        if id(node) not in self._names:
            found: set[str] = set()
            if type(node) is Call:
                found = {x.name for x in node.args if isinstance(x, Barrier)}
            elif type(node) is If:
                found = set().union(*(self._arrays(each) for each in (*node.then, *node.other)))
            elif type(node) in (For, While):
                found = set().union(*(self._arrays(each) for each in node.body))
            self._names[id(node)] = frozenset(found)
        return self._names[id(node)]

    def _paces(self, now: Point, nodes: list[Any], counts: list[Any]) -> list[int]:
        """How many iterations of each loop go with those of the others."""
        if all(self._equal(now, counts[0], each) for each in counts[1:]):
            return [1] * len(nodes)
        slots = [self._waits(node) for node in nodes]
        common = math.lcm(*(n for n in slots if n)) if any(slots) else 1
        return [common // n if n else 1 for n in slots]

    def _waits(self, node: Any) -> int:
        """How many slots an iteration takes; 0 if that is not a number."""
        found: dict[str, int] = {}
        for each in node.body:
            if type(each) is Call and each.method == "mbarrier_wait":
                found[each.args[0].name] = found.get(each.args[0].name, 0) + 1
        return max(found.values(), default=0)

    def _equal(self, now: Point, a: Any, b: Any) -> bool:
        if a is b or (not isinstance(a, Sym) and not isinstance(b, Sym) and a == b):
            return True
        apart = add(a, b, -1)
        if not isinstance(apart, Sym):
            return apart == 0
        more, less = at_least_0(add(apart, -1)), at_least_0(add(-1, apart, -1))
        return not (self.solver.possible((more, *now.facts)) or self.solver.possible((less, *now.facts)))

    def _options(self, now: Point, loop: Loop) -> list[Any]:
        """What may come at the boundary: "on", or ("out", the member whose loop ends)."""
        found: list[Any] = []
        if type(loop.members[0][1]) is While:
            walker = now.walkers[loop.members[0][0]]
            condition = truth(walker.number(loop.members[0][1].condition))
            decided = self.solver.decided(condition, now.facts)
            return [] + (["on"] if decided is not False else []) + ([("out", 0)] if decided is not True else [])
        if self.solver.possible((*self._on(loop), *now.facts)):
            found.append("on")
        seen: list[Any] = []
        for i, (_, _, _, left, pace) in enumerate(loop.members):
            if any(each is left or each == left for each in seen if not isinstance(left, Sym) or each is left):
                continue
            seen.append(left)
            if self.solver.possible((*self._out(loop, i), *now.facts)):
                found.append(("out", i))
        return found

    def _on(self, loop: Loop) -> list[Any]:
        """That each member has iterations left."""
        turn = add(loop.index, 1)
        return [at_least_0(add(left, multiply(turn, pace), -1)) for _, _, _, left, pace in loop.members]

    def _out(self, loop: Loop, which: int) -> list[Any]:
        """That this member has too few left, after as many turns as there have been."""
        _, _, _, left, pace = loop.members[which]
        short = at_least_0(add(add(multiply(add(loop.index, 1), pace), left, -1), -1))
        enough = [at_least_0(add(each, multiply(loop.index, p), -1)) for _, _, _, each, p in loop.members]
        if loop.turn == 0:
            return [short]  # a loop may have a count below 0
        return [short, *enough]

    def _leave_boundary(self, now: Point, option: Any) -> None:
        loop = now.loops[-1]
        loop = next(each for each in now.loops if each.site == now.loops[-1].site)
        if option == "on":
            if type(loop.members[0][1]) is While:
                condition = truth(now.walkers[loop.members[0][0]].number(loop.members[0][1].condition))
                now.facts = _with(now.facts, [condition])
            else:
                now.facts = _with(now.facts, self._on(loop))
            old = {}
            for agent, node, base, _, pace in loop.members:
                walker = now.walkers[agent]
                walker.frames.pop()
                for phi, *_ in self.shared.carried(node):
                    old[agent, phi] = walker.env.get(phi)
                old[agent, "reads"] = walker.reads
                walker._begin(node, add(base, multiply(loop.index, pace)), pace, 0)
            now.loops = tuple(each._replace(old=old) if each is loop else each for each in now.loops)
            return
        now.loops = tuple(each for each in now.loops if each is not loop)
        if type(loop.members[0][1]) is While:
            condition = truth(now.walkers[loop.members[0][0]].number(loop.members[0][1].condition))
            now.facts = _with(now.facts, [negated(condition)])
            last: Any = leaf("turn", f"turns of {loop.site}")
            lasting: list[Any] = []
        else:
            _, _, _, left, pace = loop.members[option[1]]
            if loop.turn == 0:
                last, lasting = 0, self._out(loop, option[1])
            else:
                last, lasting = divide(left, pace), self._out(loop, option[1])
        changes = {loop.index: last}
        facts = [replaced(each, changes) for each in (*now.facts, *lasting)]
        now.facts = _with(frozenset(), facts)
        for agent, node, base, own, pace in loop.members:
            walker = now.walkers[agent]
            walker.frames.pop()
            walker.env = {var: replaced(value, changes) for var, value in walker.env.items()}
            walker.reads = replaced(walker.reads, changes)
            rest = 0
            if type(node) is For:
                rest = add(own, multiply(last, pace), -1)
                if loop.turn == 0 and not self.solver.possible((at_least_0(add(rest, -1)), *now.facts)):
                    rest = 0
                elif isinstance(rest, Sym) and self._equal(now, rest, 0):
                    rest = 0
            if isinstance(rest, Sym) or rest > 0:
                walker.frames.append(("head", node, add(base, multiply(last, pace))))
            else:
                walker.leave_loop(node)

    def _next_turn(self, now: Point, state: RunState, loop: Loop) -> None:
        """An iteration is over: everything is said from the next one."""
        back = {loop.index: add(loop.index, -1)}
        now.loops = now.loops[: now.loops.index(loop) + 1]
        for agent, node, base, _, _ in loop.members:
            walker = now.walkers[agent]
            walker.frames.pop()
            walker.frames[-1] = ("head", node, base)
            for phi, *_ in self.shared.carried(node):
                walker.env[phi] = self._carried(loop, agent, phi, walker.env.get(phi), back)
            walker.reads = self._carried(loop, agent, "reads", walker.reads, back)
        facts = [replaced(each, back) for each in now.facts]
        outermost = now.loops[0] is loop
        if outermost:
            state.check.results.next_tile()
        turn = 1  # the first iteration is told apart from all others
        after = loop._replace(turn=turn, old={})
        now.loops = (*now.loops[:-1], after)
        kept = loop.before if outermost and self.mixed else None
        index = at_least_0(add(loop.index, -1))
        given = frozenset(each for each in facts if isinstance(each, Sym)) | {index}
        now.facts = given
        options = self._options(now, after)
        if kept is None:
            kept = frozenset(each for each in given if loop.index not in each.leaves)
        else:
            kept = frozenset(each for each in kept)
        now.facts = kept | {index}
        self._finish_boundary(now, after, options)

    def _carried(self, loop: Loop, agent: int, phi: Any, value: Any, back: Any) -> Any:
        """What a carried value is at the next iteration, as a formula of its number."""
        old = loop.old.get((agent, phi))
        if value is None or (phi != "reads" and phi in self.places.finite and not isinstance(value, Sym)):
            return value
        new = replaced(value, back)
        if isinstance(value, bool) or isinstance(old, bool) or (isinstance(value, Sym) and value.condition):
            pass
        elif loop.turn == 0 and old is not None and loop.index not in leaves(old):
            step = add(value, old, -1)
            if loop.index not in leaves(step) and not (not isinstance(step, Sym) and step == 0):
                return add(old, multiply(step, loop.index))
        if loop.turn > 0 and not (new is old or (not isinstance(new, Sym) and new == old)):
            name = getattr(phi, "name", phi)
            self.free.add(f"{name} in {self.layout.role(agent)}")
            return leaf("free", f"{name} in {self.layout.agent_name(agent)}", loop.site)
        return new

    def _finish_boundary(self, now: Point, loop: Loop, options: Any = None) -> None:
        """Leaves out what no longer matters."""
        for walker in now.walkers:
            kept = live(walker.frames)
            walker.env = {var: value for var, value in walker.env.items() if var in kept}
        now.options = self._options(now, loop) if options is None else options
        relevant = self._relevant(now)
        now.facts = frozenset(
            each
            for each in now.facts
            if not each.leaves.isdisjoint(relevant) and self.solver.decided(each, now.facts - {each}) is not True
        )

    def _relevant(self, now: Point) -> set[Sym]:
        """Symbols of which conditions that may still come are computed."""
        found: set[Sym] = {loop.index for loop in now.loops}
        for walker in now.walkers:
            for value in walker.env.values():
                found |= leaves(value)
            for frame in walker.frames:
                if frame[0] == "block":
                    found |= self._symbols(frame[1], frame[2])
                elif frame[0] in ("joint", "for", "one", "head"):
                    found |= self._symbols(frame[1].body, 0)
                    if type(frame[1]) is For:
                        found |= leaves(walker.number(frame[1].count))
        return found

    def _symbols(self, nodes: Any, at: int) -> set[Sym]:
        """Symbols of the launch in conditions and counts."""
        key = "symbols", id(nodes), at
        if key not in self._names:
            found: set[Sym] = set()
            for node in nodes[at:]:
                if type(node) is If:
                    found |= self._in(node.condition) | self._symbols(node.then, 0) | self._symbols(node.other, 0)
                elif type(node) is For:
                    found |= self._in(node.count) | self._symbols(node.body, 0)
                elif type(node) is While:
                    found |= self._in(node.condition) | self._symbols(node.body, 0)
                elif type(node) is Call:
                    found |= self._in(node.named.get("when", True))
                    if node.method == "here":
                        found |= self._in(node.args[0])
            self._names[key] = found  # type: ignore[index, assignment]
        return self._names[key]  # type: ignore[index, return-value]

    def _in(self, x: Any) -> set[Sym]:
        from tmapipe.program.expressions import resolve

        x = resolve(x)
        if not isinstance(x, Expr):
            return set()
        if x.op == "symbol":
            return set() if x.args[0] in ("warp", "rank") else set(leaves(self.shared.symbol(x)))
        return set().union(*map(self._in, x.args)) if x.args else set()

    # ---- what recurs ------------------------------------------------------------------------------------------------

    def _is_known(self, now: Point, state: RunState) -> bool:
        """Whether a state covers this one that was looked at; else this one is added."""
        key = now.key = self._location(now, state)
        others = self.known.setdefault(key, [])
        if any(state.covered_by(each) for each in reversed(others)):
            return True
        others[:] = [*(each for each in others if not each.covered_by(state)), state]
        return False

    def _location(self, now: Point, state: RunState) -> Any:
        here = state._here
        rename = here.rename
        walkers = []
        for walker in now.walkers:
            own = []
            for var, value in walker.env.items():
                if var in self.places.finite or var in self.places.offsets:
                    own.append((id(var), self._place(walker, var, value, rename)))
                elif value is not None:
                    own.append((id(var), value))
            queue = tuple(rename.op(walker.agent, op) for op in walker.queue)
            frames = tuple((f[0], id(f[1]), *f[2:]) if len(f) > 1 else f for f in walker.frames)
            walkers.append((frames, tuple(sorted(own, key=lambda x: x[0])), queue, walker.reads))
        loops = tuple((loop.site, loop.turn, tuple(x[3] for x in loop.members)) for loop in now.loops)
        where = state.positions.of(self.future.live)[0]
        pinned = tuple(
            int(where[first]) % (2**31 if array in self.places.pinned_parities else self.stages[array])
            for _, array, first in self.future.live.arrays
            if array in self.places.pinned or array in self.places.pinned_parities
        )
        return tuple(walkers), loops, now.facts, tuple(now.options), pinned

    def _place(self, walker: Walker, var: Any, value: Any, rename: Any) -> Any:
        """A position in a ring, counted from where the warps are."""
        places, layout = self.places, self.layout
        cta = walker.rank
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
                base = cta * layout.nslots + _slot_base(layout, array)
                if _owner(layout, array, stage):
                    found.append(rename.slots[base + stage] - base)
        return tuple(found) or value

    # ---- what may come ----------------------------------------------------------------------------------------------

    def _everything(self) -> Positions:
        """All operations that may come, at all places of their arrays."""
        found = Positions(self.layout)
        found.origin = {}
        for agent in range(self.layout.agents):
            walker = Walker(self.shared, agent)
            _Everything(self, walker, found).nodes(self.program.nodes)
        return found


def _with(facts: frozenset[Sym], more: Iterable[Any]) -> frozenset[Sym]:
    return facts | {each for each in more if isinstance(each, Sym)}


def _slot_base(layout: Layout, array: str) -> int:
    name = array.removeprefix("slots of ").split(" of owner ")[0]
    return layout.slot_base[name]


def _owner(layout: Layout, array: str, stage: int) -> bool:
    """Whether a slot of a buffer belongs to this array."""
    place = _slot_base(layout, array) + stage
    return place < layout.nslots and layout.slot_places[place][0] == array


class _Everything:
    """Walks a program once, both arms and one iteration of each loop, and notes the operations of one warp."""

    def __init__(self, search: _Search, walker: Walker, found: Positions):
        self.search, self.walker, self.found = search, walker, found

    def nodes(self, nodes: list[Any]) -> None:
        for node in nodes:
            self._node(node)

    def _node(self, node: Any) -> None:
        walker, kind = self.walker, type(node)
        if kind is If:
            condition = truth(walker.number(node.condition))
            for arm, body, which in ((True, node.then, 1), (False, node.other, 2)):
                if isinstance(condition, Sym) or bool(condition) == arm:
                    self.nodes(body)
                    for phi in node.phis:
                        if phi[0] in walker.shared.decides:
                            walker.env[phi[0]] = walker.number(phi[which])
        elif kind in (For, While):
            count = walker.number(node.count) if kind is For else None
            walker._start(node)
            if kind is For:
                walker.env[node.index] = 0 if not isinstance(count, Sym) else leaf("turn", "some")
            if kind is While or isinstance(count, Sym) or count > 0:
                times = count if isinstance(count, int) and count <= 16 else 1
                for i in range(times):
                    if kind is For and isinstance(count, int):
                        walker.env[node.index] = i
                    self.nodes(node.body)
                    walker._next(node)
            walker.leave_loop(node)
        elif kind is Call:
            walker.queue.clear()
            walker.frames = [("block", [node], 0)]
            walker._call(node, lambda condition: True)
            for op in walker.queue:
                self._note(op)

    def _note(self, op: Any) -> None:
        agent, found, search = self.walker.agent, self.found, self.search
        if declared(type(op)).effect(Init) is not None:
            return  # never again
        found._relative(agent, op)
        for key, position, around in found.moves(agent, op):
            if key[2] not in search.places.pinned:
                found.touched[key] = set(range(around))
                found.origin.setdefault(key, (position - 1) % around)  # so that first iterations are like all others
