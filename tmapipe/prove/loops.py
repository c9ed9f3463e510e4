"""Loops of open count: how warps enter them together, go on to the next turn, and leave them.

Facts and carried numbers are formulas of the number of the turn, so that one turn stands for all but the first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

from tmapipe.program.expressions import Call, Expr, For, If, While, resolve
from tmapipe.prove.places import Liveness, Places
from tmapipe.prove.recurrence import RunState
from tmapipe.prove.shared import Again, Loop, Point, Shared, Together, is_behind_skips
from tmapipe.prove.solver import Solver, after, replaced
from tmapipe.prove.symbols import Sym, at_least_0, both, is_0, is_word, leaf, leaves, negated, of_launch, parts, truth
from tmapipe.prove.walker import INLINE, Open, Walker

# ---- relevant --------------------------------------------------------------------------------------------------------
#
# The symbols on which conditions and counts that may still come depend: facts about other symbols are left out of a state.


class Relevant:
    """Finds these symbols, for the nodes of one program."""

    def __init__(self, shared: Shared):
        self.shared = shared
        self._of_node, self._in = functools.cache(self._of_a_node), functools.cache(self._in_an_expression)
        self._of_rest: dict[tuple[int, int], set[Sym]] = {}

    def of(self, now: Point) -> set[Sym]:
        """The symbols of conditions and counts that may still come."""
        found: set[Sym] = {loop.index for loop in now.loops}
        values: set[Sym] = set()
        rest: dict[tuple[int, int], Any] = {}
        for walker in now.walkers:
            values.update([value for value in walker.env.values() if isinstance(value, Sym)])
            for frame in walker.frames:
                if frame[0] == "block":
                    rest[id(frame[1]), frame[2]] = frame[1]
                elif frame[0] in ("joint", "for", "one", "head"):
                    rest[id(frame[1].body), 0] = frame[1].body
                    if type(frame[1]) is For:
                        values.add(walker.number(frame[1].count))
        for key, nodes in rest.items():
            if key not in self._of_rest:
                self._of_rest[key] = set().union(*map(self._of_node, nodes[key[1] :]))
            found |= self._of_rest[key]
        return found.union(*map(leaves, values))

    def _of_a_node(self, node: Any) -> set[Sym]:
        """Symbols of the launch in the conditions and counts of a node."""
        if type(node) is not Call:
            return self._of_value(node.test).union(*map(self._of_node, node.inside))
        here = self._of_value(node.args[0]) if node.method == "here" else set()
        return self._of_value(node.named.get("when", True)) | here

    def _of_value(self, x: Any) -> set[Sym]:
        x = resolve(x)
        return self._in(x) if isinstance(x, Expr) else set()

    def _in_an_expression(self, x: Expr) -> set[Sym]:
        if x.op == "symbol":
            return set() if x.args[0] in ("warp", "rank") else set(leaves(self.shared.symbol(x)))
        return set().union(*map(self._of_value, x.args))


# ---- loops -----------------------------------------------------------------------------------------------------------


class Loops:
    """The loops of one program.

    mixed: whether decisions on numbers of the launch, such as extents, are forgotten after each output tile; free: names of
    carried values that were taken to be anything.
    """

    def __init__(self, shared: Shared, places: Places, solver: Solver, mixed: bool):
        self.shared, self.places, self.solver, self.mixed = shared, places, solver, mixed
        slots = [ring.stages for ring in shared.program.plan.rings]
        self.apart = 1 if mixed else max(slots, default=1)
        self.together = Together(shared, solver)
        self.relevant = Relevant(shared)
        self.liveness = Liveness()
        self.sites: dict[Any, int] = {}
        self.has_no_number = functools.cache(self._has_no_number)
        self.free: set[str] = set()
        self.iterations = 0  # how many turns, and iterations of one warp, have been entered
        self.no_formula: set[Any] = set()

    def take_one(self, now: Point, group: list[tuple[Walker, Any]], choose: Any) -> None:
        """One iteration of each of these loops, by its warp alone, if one is left."""
        for walker, node in group:
            _, _, base = walker.frames[-1]
            if type(node) is For:
                condition = at_least_0(self._left(walker, node) - 1)
            else:
                condition = truth(walker.number(node.condition))
            taken = self.solver.decided(condition, now.facts)
            if taken is None:
                taken = choose([True, False])
                now.facts = with_facts(now.facts, [condition if taken else negated(condition)])
            walker.frames.pop()
            if not taken:
                walker.leave_loop(node)
                continue
            self.iterations += 1
            if type(node) is For:
                walker.env[node.index] = base
            walker.frames += [("one", node, base), ("block", node.body, 0)]

    def go_through(self, now: Point, heads: list[tuple[Walker, Any]]) -> bool:
        """Warps begin loops of which is decided how many iterations are left; whether there are any."""
        begun = False
        for walker, node in heads:
            base = walker.frames[-1][2]
            left = self._plain(now, self._left(walker, node)) if type(node) is For and type(base) is int else None
            if left is not None and left <= INLINE:
                walker.frames.pop()
                walker._iterate(node, base, base + left)
                begun = True
        if begun:
            restate(now.walkers, lambda slots, _: slots if (plain := self._plain(now, slots)) is None else plain)
        return begun

    def _plain(self, now: Point, number: Any) -> int | None:
        """A number, if what is decided says that it is a plain number."""
        turns = now.turns()
        here = replaced(number, turns)
        if not isinstance(here, Sym):
            return int(here)
        rests = (without(here, replaced(fact.args[0], turns)) for fact in now.facts if fact.op in ("ge", "eq"))
        plain = (rest for rest in rests if not isinstance(rest, Sym))
        return next((each for each in plain if self.together.equal(now, number, each)), None)

    def enter(self, now: Point, group: list[tuple[Walker, Any]]) -> Loop:
        """These warps enter their loops together."""
        kinds = {type(node) for _, node in group}
        if len(kinds) > 1:
            raise Open("loops over tiles of different orders")
        members = []
        if kinds == {While}:
            words = [self._words(node) for _, node in group]
            if not all(words) and len({self._test(walker, node) for walker, node in group}) > 1:
                raise Open("loops whose ends are not known to be one")
            common = math.lcm(*words) if all(words) else 1
            for (walker, node), each in zip(group, words, strict=True):
                members.append((walker.agent, node, walker.frames[-1][2], 0, common // each if each else 1))
        else:
            turns = now.turns()
            counts = [replaced(self._left(walker, node), turns) for walker, node in group]
            paces = self.together.paces(now, [node for _, node in group], counts)
            for (walker, node), left, pace in zip(group, counts, paces, strict=True):
                members.append((walker.agent, node, walker.frames[-1][2], left, pace))
        site_key = tuple((agent, id(node), pace, base) for agent, node, base, _, pace in members), len(now.loops)
        site = self.sites.setdefault(site_key, len(self.sites))
        apart = self.apart if now.loops and all(map(of_launch, (left for *_, left, _ in members))) else 1
        loop = Loop(site, leaf("turn", f"turn {site}"), 0, tuple(members), now.facts, {}, apart)
        now.loops = (*now.loops, loop)
        now.facts = now.facts | {is_0(loop.index)}
        for agent, node, *_, pace in members:
            walker = now.walkers[agent]
            walker.reads += loop.index * (self._words(node) * pace)
        self._finish_boundary(now, loop)
        return loop

    def _left(self, walker: Walker, node: Any) -> Any:
        base = walker.frames[-1][2]
        return walker.number(node.count) - base

    def _options(self, now: Point, loop: Loop) -> list[Any]:
        """What may come at the boundary: "on" for a turn, or ("out", i) where the loop of member i ends."""
        found: list[Any] = []
        if type(loop.members[0][1]) is While:
            ways: list[Any] = ["on", *(("out", i) for i in range(len(self._tests(now, loop))))]
            taken = ((each, self._conditions(now, loop, each)) for each in ways)
            return [each for each, conditions in taken if self.solver.possible((both(*conditions), *now.facts))]
        if self.solver.possible((*self._on(loop), *now.facts)):
            found.append("on")
        seen, ends = list[Any](), list[int]()
        lefts = [(left, pace) for *_, left, pace in loop.members]
        for i, (left, pace) in enumerate(lefts):
            same = (left, pace) in lefts[:i]
            if same or any(p == pace and self.together.equal(now, each, left) for each, p in seen):
                continue
            seen.append((left, pace))
            if self.solver.possible((*self._out(loop, i), *now.facts)):
                ends.append(i)
        for i in reversed(ends):  # where others end as well, one of them is enough
            others = [negated(self._out(loop, other)[0]) for other in ends if other != i]
            if others and not self.solver.possible((*self._out(loop, i), *others, *now.facts)):
                ends.remove(i)
        return [*found, *(("out", i) for i in ends)]

    def _test(self, walker: Walker, node: Any) -> Any:
        """Whether a loop goes on."""
        return truth(walker.number(node.condition))

    def _tests(self, now: Point, loop: Loop) -> list[Any]:
        """The conditions of its members: several, if some have read further words of a tile queue than others."""
        return list(dict.fromkeys(self._test(now.walkers[agent], node) for agent, node, *_ in loop.members))

    def _conditions(self, now: Point, loop: Loop, option: Any) -> list[Any]:
        """The conditions on which an option is taken. Of tests, all are true, or the ones before the first that is false."""
        if type(loop.members[0][1]) is For:
            return self._on(loop) if option == "on" else self._out(loop, option[1])
        tests = self._tests(now, loop)
        return tests if option == "on" else [*tests[: option[1]], negated(tests[option[1]])]

    def _on(self, loop: Loop) -> list[Any]:
        """The conditions that each member has iterations left for a turn."""
        turn = loop.index + 1
        return [at_least_0(left - turn * pace) for left, pace in loop.counts()]

    def _out(self, loop: Loop, which: int) -> list[Any]:
        """The conditions that member number *which* has too few iterations left for a turn, and all had enough so far."""
        _, _, _, left, pace = loop.members[which]
        short = at_least_0((loop.index + 1) * pace - left - 1)
        if loop.turn == 0:
            return [short]  # a loop may have a count below 0
        return [short, *(at_least_0(each - loop.index * p) for each, p in loop.counts())]

    def leave_boundary(self, now: Point, option: Any) -> None:
        """Goes on from a boundary of the innermost loop, by an option of `_options`."""
        loop = now.loops[-1]
        conditions = self._conditions(now, loop, option)
        if option == "on":
            self._begin_turn(now, loop, conditions)
        elif type(loop.members[0][1]) is While:
            now.facts = with_facts(now.facts, conditions)
            self.end(now, loop)
        else:
            self._leave(now, loop, option[1], conditions)

    def _begin_turn(self, now: Point, loop: Loop, conditions: list[Any]) -> None:
        self.iterations += 1
        if loop.turn == 0:  # so 0 is what is taken
            taken = self._taken(loop)
            restate(now.walkers, lambda slots, ring: slots - taken[ring] * loop.index)
        if self._is_plain(loop):
            now.facts -= {is_0(loop.index), at_least_0(loop.index - 1)}
            loop = loop._replace(turn=1)
        now.facts = with_facts(now.facts, conditions)
        old = {}
        for agent, node, base, _, pace in loop.members:
            walker = now.walkers[agent]
            walker.frames.pop()
            for phi, *_ in self.shared.carried(node):
                old[agent, phi] = walker.env.get(phi)
            old[agent, "reads"] = walker.reads
            walker._begin(node, base + loop.index * pace, pace, 0)
        now.loops = (*now.loops[:-1], loop._replace(old=old))

    def _leave(self, now: Point, loop: Loop, which: int, conditions: list[Any]) -> None:
        """Leaves a loop over a range, where member number *which* has too few iterations left."""
        now.loops = now.loops[:-1]
        _, _, _, left, pace = loop.members[which]
        last: Any = left // pace if loop.turn == loop.apart else loop.turn
        changes = {loop.index: last}
        now.facts = with_facts(frozenset(), [replaced(each, changes) for each in (*now.facts, *conditions)])
        rests = [left - n * (last * pace) for left, pace in loop.counts() for n in (0, 1)]
        members = {agent for agent, *_ in loop.members}
        restate(now.walkers, lambda slots, _: self._known(now, replaced(slots, changes), rests))
        for walker in now.walkers:
            if walker.agent in members or walker.behind:
                walker.env = {var: replaced(value, changes) for var, value in walker.env.items()}
        left_over: dict[Any, Any] = {}
        for agent, node, base, own, pace in loop.members:
            walker = now.walkers[agent]
            walker.frames.pop()
            walker.reads = replaced(walker.reads, changes)
            if (own, pace) not in left_over:
                left_over[own, pace] = self._left_over(now, loop, own - last * pace)
            rest = left_over[own, pace]
            if isinstance(rest, Sym) or rest > 0:
                walker.frames.append(("head", node, base + last * pace))
            else:
                walker.leave_loop(node)

    def end(self, now: Point, loop: Loop) -> None:
        """The end of a loop that ends by tests. A member that is not known to be at its end goes on by itself."""
        if now.loops[-1] is not loop:
            raise Open("a loop that ends within another one")
        now.loops = now.loops[:-1]
        last = leaf("turn", f"turns of {loop.site}", *(each.index for each in now.loops))
        changes = {loop.index: 0 if loop.turn == 0 else last}
        now.facts = with_facts(frozenset(), (replaced(each, changes) for each in now.facts))
        restate(now.walkers, lambda slots, _: replaced(slots, changes))
        for walker in now.walkers:
            walker.env = {var: replaced(value, changes) for var, value in walker.env.items()}
            walker.reads = replaced(walker.reads, changes)
        for agent, node, base, _, pace in loop.members:
            walker = now.walkers[agent]
            done = is_in(walker, node) and walker.frames[-1] == ("iterated",)
            if done:
                walker.frames.pop()
            if done or (walker.frames and walker.frames[-1][:2] == ("head", node)):
                base = base + (changes[loop.index] + int(done)) * pace
                walker.frames[-1] = ("head", node, base)

    def is_left(self, now: Point, loop: Loop, stops: list[Any]) -> bool:
        """Whether some members have left the loop within a turn, and all others wait for the next turn."""
        inside = [stops[agent] == ("iterated",) for agent, node, *_ in loop.members if is_in(now.walkers[agent], node)]
        return len(inside) < len(loop.members) and all(inside)

    def is_over(self, walker: Walker, node: Any, now: Point) -> bool:
        """Whether the test of a `while` loop is known to be false."""
        return type(node) is While and self.solver.decided(self._test(walker, node), now.facts) is False

    def _words(self, node: Any) -> int:
        """How many words of a tile queue an iteration reads at most."""
        if type(node) is Call:
            return int(node.method == "read_words")
        if type(node) is If:
            return max(sum(map(self._words, node.then)), sum(map(self._words, node.other)))
        return sum(map(self._words, node.inside))

    def _is_plain(self, loop: Loop) -> bool:
        """Whether the first turn is like all others: no decision looks at the turn's number, or at a formula of it."""
        return loop.apart == 1 and all(map(self.has_no_number, (node for _, node, *_ in loop.members)))

    def _has_no_number(self, node: Any) -> bool:
        followed = {phi for phi, *_ in self.shared.carried(node)}
        numbered = type(node) is not For or node.index in self.shared.decides or self._words(node) > 0
        return not numbered and followed <= self.places.finite

    def _left_over(self, now: Point, loop: Loop, rest: Any) -> Any:
        """How many iterations of a loop are left, after the loops that went along with it have ended."""
        none = loop.turn == 0 and not self.solver.possible((at_least_0(rest - 1), *now.facts))
        return 0 if none or (isinstance(rest, Sym) and self.together.equal(now, rest, 0)) else rest

    def next_turn(self, now: Point, state: RunState, loop: Loop) -> None:
        """A turn is over: facts and carried numbers become formulas of the next turn's number."""
        back = {loop.index: loop.index - 1}
        now.loops = now.loops[: now.loops.index(loop) + 1]
        instance = tuple(each.index for each in now.loops)
        widened: dict[Any, Any] = {}
        known = len(self.no_formula)
        for agent, node, base, _, _ in loop.members:
            walker = now.walkers[agent]
            walker.frames.pop()
            walker.frames[-1] = ("head", node, base)
            for phi, *_ in self.shared.carried(node):
                walker.env[phi] = self._carried(loop, agent, phi, walker.env.get(phi), instance, widened)
            walker.reads = self._carried(loop, agent, "reads", walker.reads, instance, widened)
        if len(self.no_formula) > known:
            raise Again
        restate(now.walkers, lambda slots, _: replaced(slots, back))
        facts = [replaced(each, back) for each in now.facts]
        outermost = now.loops[0] is loop
        if outermost:
            state.check.results.next_tile()
        turn = min(loop.turn + 1, loop.apart)
        after = loop._replace(turn=turn, old={})
        now.loops = (*now.loops[:-1], after)
        kept = loop.before if outermost and self.mixed else None
        index = at_least_0(loop.index - turn) if turn == loop.apart else is_0(loop.index - turn)
        given = frozenset(each for each in facts if isinstance(each, Sym)) | {index}
        now.facts = given
        options = self._options(now, after)
        if kept is None:
            kept = frozenset(each for each in given if loop.index not in each.leaves)
        self._leave_out(now)
        of_tiles = {each for each in given if outermost and _of_a_tile(each, loop.index)}
        now.facts = kept | self._of_words(now, given - of_tiles) | {index}
        self._finish_boundary(now, after, options)

    def _of_words(self, now: Point, facts: frozenset[Sym]) -> set[Sym]:
        """The facts about words of a tile queue that a variable still has, or that a warp has not read yet."""
        words = {fact: found for fact in facts if (found := list(filter(is_word, fact.leaves)))}
        if not words:
            return set()
        values = {value for walker in now.walkers for value in walker.env.values() if isinstance(value, Sym)}
        kept = {each for value in values for each in value.leaves if is_word(each)}
        reads, turns = dict.fromkeys(walker.reads for walker in now.walkers if walker.frames), now.turns()

        def is_kept(word: Sym) -> bool:
            ahead = [replaced(word.args[2] - each, turns) for each in reads]
            return word in kept or any(not isinstance(n, Sym) and n >= 0 for n in ahead)

        return {fact for fact, found in words.items() if all(map(is_kept, found))}

    def _taken(self, loop: Loop) -> dict[str, int]:
        """By ring, how many slots its members take in one turn."""
        found: dict[str, int] = {}
        for _, node, _, _, pace in loop.members:
            waits = self.together.waits(node)
            for ring in self.shared.program.plan.rings:
                slots = max(waits.get(barrier.name, 0) for barrier in ring.barriers)
                found[ring.name] = max(found.get(ring.name, 0), slots * pace)
        return found

    def _known(self, now: Point, slots: Any, rests: list[Any]) -> Any:
        """A number of skipped slots after a loop, as a plain number if it is known to be one. rests: what is left of the
        counts of its members, which may be 0."""
        turns = now.turns()
        here = replaced(slots, turns)
        less = (without(here, replaced(rest, turns)) for rest in rests)
        plain = {0, *(each for each in less if not isinstance(each, Sym))}
        return next((each for each in plain if self.together.equal(now, slots, each)), slots)

    def _carried(self, loop: Loop, agent: int, phi: Any, value: Any, instance: Any, widened: dict[Any, Any]) -> Any:
        """A carried value at the next turn, as a formula of the turn's number.

        instance: of this turn; widened: by formula, the symbol that stands for any value: values that are equal in several
        warps stay equal.
        """
        old = loop.old.get((agent, phi))
        if is_behind_skips(value):
            return value
        if value is None or (phi != "reads" and phi in self.places.finite and not isinstance(value, Sym)):
            return value
        new = replaced(value, {loop.index: loop.index - 1})
        if isinstance(value, bool) or isinstance(old, bool) or (isinstance(value, Sym) and value.condition):
            pass
        elif loop.turn == 0 and (agent, phi, loop.site) in self.no_formula:
            return self._any(loop, agent, phi, new, instance, widened)
        elif loop.turn == 0 and old is not None and loop.index not in leaves(old):
            step = value - old
            if loop.index not in leaves(step) and step != 0:
                return old + step * loop.index
        if loop.turn > 0 and new != old:
            self.no_formula.add((agent, phi, loop.site))
            return self._any(loop, agent, phi, new, instance, widened)
        return new

    def _any(self, loop: Loop, agent: int, phi: Any, new: Any, instance: Any, widened: dict[Any, Any]) -> Any:
        """A symbol that stands for any value, the same symbol for all carried values of this formula."""
        name = getattr(phi, "name", phi)
        self.free.add(f"{name} in {self.shared.layout.role(agent)}")
        free = leaf("free", f"{name} in {self.shared.layout.agent_name(agent)}", loop.site, *instance)
        return widened.setdefault(new, free)

    def _leave_out(self, now: Point) -> None:
        """Leaves out the variables that no warp reads any more."""
        for walker in now.walkers:
            kept = self.liveness.live(walker.frames)
            walker.env = {var: value for var, value in walker.env.items() if var in kept}

    def _finish_boundary(self, now: Point, loop: Loop, options: Any = None) -> None:
        """Leaves out variables and facts on which nothing depends that may still come, and finds what may come next."""
        self._leave_out(now)
        now.options = self._options(now, loop) if options is None else options
        relevant, words = self.relevant.of(now), self._of_words(now, now.facts)
        kept = [each for each in now.facts if each in words or not each.leaves.isdisjoint(relevant)]
        now.facts = frozenset(each for each in kept if self.solver.decided(each, now.facts - {each}) is not True)


def is_in(walker: Walker, node: Any) -> bool:
    """Whether a warp is in a turn of this loop, which it goes through with other warps."""
    return any(frame[0] == "joint" and frame[1] is node for frame in walker.frames)


def _of_a_tile(fact: Sym, turn: Sym) -> bool:
    """Whether a fact is about a word of the queue that was read a fixed number of tiles ago: such facts would pile up."""
    return turn in fact.leaves and not any(is_word(each) and isinstance(each.args[2], Sym) for each in fact.leaves)


def with_facts(facts: frozenset[Sym], more: Iterable[Any]) -> frozenset[Sym]:
    return facts | {each for each in more if isinstance(each, Sym)}


def restate(walkers: list[Walker], say: Callable[[Any, str], Any]) -> None:
    """Replaces the number of slots between, in warps' positions behind skips, by the equal number `say(slots, ring)`."""
    said: dict[Any, Any] = {}
    for walker in walkers:
        if not walker.behind:
            continue
        moved: dict[str, int] = {}
        for var, value in walker.env.items():
            if is_behind_skips(value):
                if value not in said:
                    base, slots, stages, ring = value.args
                    slots = say(slots, ring)
                    said[value] = after(value.op, base, slots, stages, ring), ring, parts(slots)[0]
                walker.env[var], ring, moved[ring] = said[value]
        walker.behind = any(map(is_behind_skips, walker.env.values()))
        walker.skips += [(ring, slots) for ring, slots in moved.items() if slots]


def without(number: Any, other: Any) -> Any:
    """number - n * other, with the n that cancels a term of both; n = 1 if they have none in common."""
    terms, others = parts(number)[1], parts(other)[1]
    times = next((n // others[term] for term, n in terms.items() if term in others), 1)
    return number - times * other
