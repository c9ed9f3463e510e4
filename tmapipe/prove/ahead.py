"""What a program says before it is gone through: which operations may come, whether its CTAs act on each other, and whether
its `while` loops end."""

from __future__ import annotations

import contextlib
from collections.abc import Container
from typing import Any

import attrs

from tmapipe.check import Finding
from tmapipe.errors import PipelineError
from tmapipe.isa import ArriveAt, Init, declared
from tmapipe.isa import Kind as OperandKind
from tmapipe.isa.fragment import ClusterExchange
from tmapipe.model.layout import Kind
from tmapipe.model.run import lines
from tmapipe.program.expressions import Call, For, If, While, every
from tmapipe.prove.bodies import Bodies, Walk
from tmapipe.prove.places import is_role
from tmapipe.prove.positions import PositionKey, Positions
from tmapipe.prove.problem import DATA
from tmapipe.prove.shared import Shared
from tmapipe.prove.solver import arithmetic, replaced
from tmapipe.prove.symbols import Sym, at_least_0, leaf, leaves, negated, text, truth
from tmapipe.prove.walker import Open, Walker

# ---- everything ------------------------------------------------------------------------------------------------------
#
# All operations of a program that may still come, which says what a state has to remember.


def everything(shared: Shared, pinned: Container[Any]) -> tuple[Positions, dict[PositionKey, int]]:
    """All operations that may come, at all places of their arrays; and positions before them, but for *pinned* arrays."""
    found = Positions(shared.layout)
    origin: dict[PositionKey, int] = {}
    for agent in range(shared.layout.agents):
        _Everything(pinned, Walker(shared, agent), found, origin).nodes(shared.program.nodes)
    return found, origin


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
            if any(getattr(op, name) is not None for name in of.named(OperandKind.MASK)):
                return False
            meets = of.effect(ArriveAt)
            if meets is not None and not meets.barrier:
                meetings += 1 if node in program.nodes else 2
    return meetings <= 1


def foreseen(come: Positions, every: Positions) -> bool:
    """Whether what has come in a run (copies of its positions note that together) is among *every* operation."""
    sorts = ((agent, sort, array) for agent, sort, array in come.touched if not (type(sort) is type and _is_init(sort)))
    return every.touched.keys() >= set(sorts) and come.arrivals <= every.arrivals


def _is_init(op: type) -> bool:
    return declared(op).effect(Init) is not None


class _Everything:
    """Walks a program once, both arms and one iteration of each loop, and notes the operations of one warp."""

    def __init__(self, pinned: Container[Any], walker: Walker, found: Positions, origin: dict[PositionKey, int]):
        self.pinned, self.walker, self.found, self.origin = pinned, walker, found, origin
        self.sure = True  # whether what is walked through comes in a first iteration

    def nodes(self, nodes: list[Any]) -> None:
        for node in nodes:
            self._node(node)

    def _node(self, node: Any) -> None:
        walker, kind = self.walker, type(node)
        if kind is not Call and walker.shared.inert(node):
            return
        if kind is If:
            condition = truth(walker.number(node.condition))
            arms = [(node.then, 1), (node.other, 2)]
            if not isinstance(condition, Sym):
                (other, _), arms = arms[condition], [arms[not condition]]
                if not is_role(node):
                    self._maybe(other)
            for body, which in arms:
                self.nodes(body)
                for phi in node.phis:
                    if phi[0] in walker.shared.decides:
                        walker.env[phi[0]] = walker.number(phi[which])
        elif kind in (For, While):
            count: Any = walker.number(node.count) if kind is For else None
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
        elif kind is Call and node.method == "skip":
            walker.env.update(zip(node.results, map(walker.number, node.args[:2]), strict=True))
        elif kind is Call:
            self._call(node)
            if "when" in node.named and not walker.queue:
                self._maybe([self._always(node)])

    def _call(self, node: Call) -> None:
        walker = self.walker
        walker.queue.clear()
        walker.frames = [("block", [node], 0)]
        walker._call(node, lambda condition: True)
        for op in walker.queue:
            self._note(op)

    def _always(self, node: Call) -> Call:
        """An instruction without its condition."""
        return attrs.evolve(node, named={**node.named, "when": True})

    def _maybe(self, nodes: list[Any]) -> None:
        """What the first iteration leaves out may come in a later one, from other places."""
        env, sure = dict(self.walker.env), self.sure
        self.sure = False
        with contextlib.suppress(PipelineError, Open):
            self.nodes(nodes)
        self.walker.env, self.sure = env, sure

    def _note(self, op: Any) -> None:
        agent, found = self.walker.agent, self.found
        if _is_init(type(op)):
            return  # never again
        if not found.places(op):
            found.meet(agent, op)
        for sort, array, position, around in found.places(op):
            key = agent, sort, array
            found.touched[key] = set(range(around))
            if self.sure and key[2] not in self.pinned:
                self.origin.setdefault(key, (position - 1) % around)  # so that first iterations are like all others


# ---- endings ---------------------------------------------------------------------------------------------------------
#
# Whether `while` loops of bodies end: the proof goes through any number of iterations; here a last one is looked for.
#
# A loop ends if its condition says that a number is at least 0, alone or with others, and each iteration makes it less.
# Where entries of tables or answers decide, that they let the loop end is taken for granted.


@attrs.frozen
class Endings:
    """never: loops that do not end; open: of which one is it not shown, in words, or empty."""

    never: tuple[Finding, ...] = ()
    open: str = ""


def look_at_loops(bodies: Bodies) -> Endings:
    """The rule, for all loops of the bodies."""
    whiles = (node for node in every(bodies.program.nodes) if type(node) is While)
    if all(node.iterations is not None for node in whiles):  # of orders of tiles
        return Endings()
    found: dict[str | None, str] = {}
    never: dict[str | None, Finding] = {}
    for role in bodies.layout.plan.roles:
        walk = _Ends(bodies, role.first_warp)
        walk.nodes(bodies.program.nodes)
        found |= walk.open
        never |= walk.never
    open_ = next((f"{said} at {where}" for where, said in found.items() if where not in never), "")
    return Endings(tuple(never.values()), open_)


class _Ends(Walk):
    """One warp's way through the program. given: conditions of what is around; open, never: as of `Endings`, by line."""

    def __init__(self, bodies: Bodies, agent: int):
        super().__init__(bodies, agent, frozenset(), False)
        self.given: list[Any] = []
        self.open: dict[str | None, str] = {}
        self.never: dict[str | None, Finding] = {}

    def _move(self, node: Any, part: Any, at: Any) -> None:
        pass

    def _ask(self, value: Any, node: Any) -> None:
        pass

    def _Call(self, node: Call) -> None:
        super()._Call(node)
        for result in node.results:  # of instructions that answer, such as counters
            self.env.setdefault(result, leaf("answer", result.name, id(result)))

    def _If(self, node: If) -> None:
        condition = truth(self.number(node.condition))
        if not isinstance(condition, Sym):
            self.nodes(node.then if condition else node.other)
        else:
            self._within(condition, node.then)
            self._within(negated(condition), node.other)
        for phi, then, other in node.phis:
            self.env[phi] = arithmetic("select", condition, self.number(then), self.number(other))

    def _within(self, condition: Any, nodes: list[Any]) -> None:
        self.given.append(condition)
        self.nodes(nodes)
        self.given.pop()

    def _While(self, node: While) -> None:
        if node.iterations is not None:
            super()._While(node)
            return
        first = {leaf("carried", phi.name, id(phi)): self.number(initial) for phi, initial, _, _ in node.carried}
        self.env.update(zip((phi for phi, *_ in node.carried), first, strict=True))
        condition = truth(self.number(node.condition))
        self._within(condition, node.body)
        following = {x: self.number(last) for x, (_, _, last, _) in zip(first, node.carried, strict=True)}
        if isinstance(condition, Sym):
            self._look(node, condition, first, following)

    def _look(self, node: While, condition: Sym, first: dict[Sym, Any], following: dict[Sym, Any]) -> None:
        decides = leaves(condition) | {x for each in leaves(condition) for x in leaves(following.get(each, 0))}
        if any(x.args[0] in DATA for x in decides):
            return
        known = [*self.given, condition, *self._never_negative(condition, first, following)]
        terms = condition.args if condition.op == "all" else (condition,)
        if any(self._comes_closer(term, known, first, following) for term in terms):
            return
        if replaced(condition, following) is not condition:
            self.open[node.where] = "a loop is not known to end"
        elif self._possible([*self.given, replaced(condition, first)]):
            said = f"no iteration of a loop changes its condition, {text(condition)}: once it is entered, it goes on for ever"
            fix = "let each iteration change what the condition compares"
            self.never[node.where] = Finding(Kind.ENDLESS, said, fix, where=lines([node.where]))

    def _never_negative(self, condition: Sym, first: dict[Sym, Any], following: dict[Sym, Any]) -> list[Any]:
        """Facts that carried numbers are at least 0: of the numbers whose first value is, and whose next value is while these
        facts hold."""
        left = [x for x, number in first.items() if not self._possible([*self.given, negated(at_least_0(number))])]
        while True:
            known = [at_least_0(x) for x in left]
            given = [*self.given, condition, *known]
            stay = [x for x in left if not self._possible([*given, negated(at_least_0(following[x]))])]
            if stay == left:
                return known
            left = stay

    def _comes_closer(self, term: Any, known: list[Any], first: dict[Sym, Any], following: dict[Sym, Any]) -> bool:
        """Whether a condition says that a number is at least 0, and each iteration makes it less; or that it is not 0, and
        each iteration brings it closer by 1."""
        if term.op == "ge":
            number = term.args[0]
            change = replaced(number, following) - number
            return not self._possible([*known, at_least_0(change)])
        if term.op == "not" and term.args[0].op == "eq":
            number = term.args[0].args[0]
            change, start = replaced(number, following) - number, replaced(number, first)
            if change not in (-1, 1):
                return False
            away = -1 - start if change == -1 else start - 1  # at least 0 if it begins on the other side
            return not self._possible([*self.given, at_least_0(away)])
        return False

    def _possible(self, conditions: list[Any]) -> bool:
        return self.bodies.solver.possible(conditions)
