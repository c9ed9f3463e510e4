"""Which loops warps go through together, and how many iterations of each make one."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from tmapipe.isa.effects import declared
from tmapipe.isa.operands import Kind
from tmapipe.plan.model import Barrier
from tmapipe.program.nodes import Call, For, If, While
from tmapipe.prove.points import Point
from tmapipe.prove.shared import Shared
from tmapipe.prove.solver import Solver
from tmapipe.prove.symbols import Sym, add, at_least_0, parts
from tmapipe.prove.walker import Walker

__all__ = ["Together"]


class Together:
    """Compares the loops before which warps stand."""

    def __init__(self, shared: Shared, solver: Solver):
        self.shared, self.solver = shared, solver
        self._names: dict[int, frozenset[str]] = {}

    def missing(self, now: Point, group: list[tuple[Walker, Any]], stops: list[Any]) -> set[str]:
        """The arrays of these loops for which somebody waits that is not in a loop of its own yet."""
        names: set[str] = set().union(*(self._arrays(node) for _, node in group))
        waits = [self._waited_for(w) for w, stop in zip(now.walkers, stops, strict=True) if stop is None]
        return names & set().union(*waits)

    def _waited_for(self, walker: Walker) -> set[str]:
        """The array of the barrier that a warp waits for."""
        op = walker.queue[0]
        return {self.shared.layout.bar_places[getattr(op, name)][0] for name in declared(type(op)).named(Kind.BAR)}

    def group(self, now: Point, heads: list[tuple[Walker, Any]]) -> list[tuple[Walker, Any]]:
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

    def paces(self, now: Point, nodes: list[Any], counts: list[Any]) -> list[int]:
        """How many iterations of each loop go with those of the others."""
        if all(self._as_often(now, counts[0], each) for each in counts[1:]):
            return [1] * len(nodes)
        slots = [max(self.waits(node).values(), default=0) for node in nodes]
        common = math.lcm(*(n for n in slots if n)) if any(slots) else 1
        found = [common // n if n else 1 for n in slots]
        if set(found) == {1}:  # a role of some teams, each of which takes its share of the iterations
            slopes = [_slope(count) for count in counts]
            if not any(
                role.teams > 1 for role in self.shared.program.plan.roles
            ):  # one with one, also of a loop of loops
                slopes = [slope and Fraction(1, _share(count)) for slope, count in zip(slopes, counts, strict=True)]
            if min(slopes) > 0:
                whole = [int(each * math.lcm(*(slope.denominator for slope in slopes))) for each in slopes]
                return [each // math.gcd(*whole) for each in whole]
        return found

    def waits(self, node: Any) -> dict[str, int]:
        """By array of barriers, how many waits of it an iteration has outside of its own loops and branches."""
        found: dict[str, int] = {}
        for each in node.body:
            if type(each) is Call and each.method == "mbarrier_wait":
                found[each.args[0].name] = found.get(each.args[0].name, 0) + 1
        return found

    def _as_often(self, now: Point, a: Any, b: Any) -> bool:
        """Whether loops of these counts run equally often: not at all, if both are 0 or less."""
        return self.equal(now, a, b) or not any(
            self.solver.possible((at_least_0(add(add(one, other, -1), -1)), at_least_0(add(one, -1)), *now.facts))
            for one, other in ((a, b), (b, a))
        )

    def equal(self, now: Point, a: Any, b: Any) -> bool:
        if a is b or (not isinstance(a, Sym) and not isinstance(b, Sym) and a == b):
            return True
        apart = add(a, b, -1)
        if not isinstance(apart, Sym):
            return apart == 0
        more, less = at_least_0(add(apart, -1)), at_least_0(add(-1, apart, -1))
        return not (self.solver.possible((more, *now.facts)) or self.solver.possible((less, *now.facts)))


def _slope(x: Any) -> Fraction:
    """How fast a count grows with what it is computed of."""
    if isinstance(x, Sym) and x.op == "sum":
        return sum((n * _slope(term) for term, n in parts(x)[1].items()), Fraction(0))
    if isinstance(x, Sym) and x.op == "div" and type(x.args[1]) is int:
        return _slope(x.args[0]) / x.args[1]
    return Fraction(isinstance(x, Sym))


def _share(count: Any) -> int:
    """By how much a count of iterations is divided."""
    if isinstance(count, Sym) and count.op == "sum":
        return math.lcm(*map(_share, parts(count)[1]))
    return count.args[1] if isinstance(count, Sym) and count.op == "div" and type(count.args[1]) is int else 1
