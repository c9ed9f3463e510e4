"""Whether `while` loops of bodies end: the proof goes through any number of iterations, and this file looks for a last one.

A loop ends if its condition says that a number is at least 0, alone or with others, and each iteration makes it less. Where
entries of tables or answers decide, that they let the loop end is taken for granted.
"""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.check.findings import Finding
from tmapipe.model.layout import Kind
from tmapipe.model.run import lines
from tmapipe.program.expressions import Call, If, While
from tmapipe.prove.bodies import Bodies, Walk
from tmapipe.prove.problem import DATA
from tmapipe.prove.solver import arithmetic, replaced
from tmapipe.prove.symbols import Sym, add, at_least_0, leaf, leaves, negated, text, truth


@attrs.frozen
class Endings:
    """never: loops that do not end; open: of which one is it not shown, in words, or empty."""

    never: tuple[Finding, ...] = ()
    open: str = ""


def look_at_loops(bodies: Bodies) -> Endings:
    """The rule, for all loops of the bodies."""
    if not _own(bodies.program.nodes):
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


def _own(nodes: list[Any]) -> bool:
    """Whether there is a loop that a body asks for, and not an order of tiles."""
    return any(_own(node.inside) or (type(node) is While and node.iterations is None) for node in nodes)


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
            change = add(replaced(number, following), number, -1)
            return not self._possible([*known, at_least_0(change)])
        if term.op == "not" and term.args[0].op == "eq":
            number = term.args[0].args[0]
            change, start = add(replaced(number, following), number, -1), replaced(number, first)
            if change not in (-1, 1):
                return False
            away = add(-1, start, -1) if change == -1 else add(start, -1)  # at least 0 if it begins on the other side
            return not self._possible([*self.given, at_least_0(away)])
        return False

    def _possible(self, conditions: list[Any]) -> bool:
        return self.bodies.solver.possible(conditions)
