"""What bodies do at a tile, taken from the traced program: the moves of tiles, and the conditions of branches.

Coordinates of a tile are symbols (`coordinate`), and so is the index of a loop of open count (`turn_of`). A loop is gone
through once, and both arms of a branch, unless it stores: then once for each outcome. So what is said here holds for every
shape. `Visits` of one problem have numbers in the place of symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tmapipe.machine.layout import Layout
from tmapipe.plan.model import Load, Store
from tmapipe.program.expressions import Expr, resolve
from tmapipe.program.nodes import Call, For, If, While
from tmapipe.prove.body_walk import Walk
from tmapipe.prove.concrete import Concrete, Numbers
from tmapipe.prove.moves import Fork, Move, Visit, coordinate
from tmapipe.prove.problem import every_cluster
from tmapipe.prove.shared import Shared, bounds
from tmapipe.prove.slicing import named
from tmapipe.prove.solver import Solver
from tmapipe.prove.symbols import Sym, negated


class Bodies:
    """The bodies of one program.

    asked: on what they decide: conditions and counts; stored: names of the outputs that they store; lines: where a load or
    store stands first, by its name; by_rows: loads and stores of rows by number; fixed: dimensions whose coordinate the order
    of tiles fixes.
    """

    def __init__(self, program: Any):
        self.program, self.shared = program, Shared(program)
        self.layout: Layout = self.shared.layout
        self.solver = Solver(lambda x: (0, 2**31 - 1) if x.args[0] in ("tile", "index") else bounds(x))
        self.ends = {id(last): last for _, last, _ in program.calls.values()}
        tiles = [tile for *_, tile in program.calls.values() if tile is not None]
        self.fixed = {
            name for tile in tiles for name, x in tile._coordinates.items() if not isinstance(resolve(x), Expr)
        }
        self.asked: dict[Any, str | None] = {}
        self.stored: set[str] = set()
        self.by_rows: set[str] = set()
        self.lines: dict[str, str | None] = {}
        self._moves: dict[int, Any] = {}
        self._storing: dict[int, bool] = {}
        self.forks = False
        self.every = self._walked(None, frozenset())
        self.visits = self._by_outcomes() if self.forks else self.every

    def moves(self) -> Iterator[Move]:
        """The moves of all tiles, also moves that only some tiles make."""
        return (move for visit in self.every for own in visit.moves.values() for move in own)

    def _by_outcomes(self) -> list[Visit]:
        """A visit for each combination of decisions that stores depend on."""
        found: list[Visit] = []
        todo: list[frozenset[Sym]] = [frozenset()]
        while todo:
            facts = todo.pop()
            try:
                found += self._walked(True, facts)
            except Fork as fork:
                for outcome in (fork.condition, negated(fork.condition)):
                    if self.solver.possible((*facts, outcome)):
                        todo.append(facts | {outcome})
        return found

    def _walked(self, forks: bool | None, facts: frozenset[Sym]) -> list[Visit]:
        """The visits, before the first tile and at a tile of each team."""
        before: dict[int, list[Move]] = {}
        teams: list[dict[int, list[Move]]] = [{} for _ in range(max([role.teams for role in self.layout.plan.roles]))]
        for agent in range(self.layout.agents):
            walk = Walk(self, agent, facts, bool(forks))
            walk.nodes(self.program.nodes)
            role = next(
                (r for r in self.layout.plan.roles if 0 <= agent % self.layout.warps - r.first_warp < r.warps), None
            )
            before[agent] = walk.before
            if role is not None:
                team = role.team(agent % self.layout.warps) if role.teams > 1 else None
                for number, moves in enumerate(teams):
                    if team in (None, number):
                        moves[agent] = walk.found
        place = {dim: coordinate(dim) for dim in self.program.schedule.axes}
        found = [Visit(place, facts, moves) for moves in teams]
        return [*found, Visit(None, facts, before)] if any(before.values()) else found

    def of_problem(self, problem: Any) -> list[Visit]:
        """The visits of the clusters that take all tiles of a problem: of one, if the order of tiles does not say how many."""
        found = dict[Any, Visit]()
        for each in every_cluster(self.program, problem):
            numbers = Numbers(self, each)
            for agent in range(self.layout.agents):
                walk = Concrete(self, agent, numbers)
                walk.nodes(self.program.nodes)
                for place, moves in walk.visits:
                    key = None if place is None else tuple(sorted(place.items()))
                    visit = found.setdefault(key, Visit(place, frozenset(), {}))
                    visit.moves.setdefault(agent, []).extend(moves)
        return list(found.values())

    def asks(self, value: Any, where: str | None) -> None:
        """Notes a condition or a count."""
        if isinstance(value, Sym):
            self.asked.setdefault(value, where)

    def move_of(self, node: Call) -> Any:
        """(load or store, where it starts) of an instruction; None if it moves nothing."""
        if id(node) not in self._moves:
            part = next((x for x in node.args if isinstance(x, (Load, Store))), None)
            at = None
            if part is not None:
                at = next((x for name, x in named(node) if name == "at"), None)
            self._moves[id(node)] = None if at is None else (part, at)
        return self._moves[id(node)]

    def stores(self, node: Any) -> bool:
        """Whether something in a node stores an output."""
        if id(node) not in self._storing:
            if type(node) is Call:
                move = self.move_of(node)
                found = move is not None and isinstance(move[0], Store) and move[0].reduce is None
            else:
                found = any(map(self.stores, inside(node)))
            self._storing[id(node)] = found
        return self._storing[id(node)]


def inside(node: Any) -> Iterable[Any]:
    """The nodes in a node."""
    if type(node) is If:
        return (*node.then, *node.other)
    return node.body if type(node) in (For, While) else ()
