"""One warp's way through the traced program in one problem: numbers are in the place of symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tmapipe.program.expressions import Expr
from tmapipe.program.nodes import Call, For, While
from tmapipe.protocol.tile import Tile
from tmapipe.prove.body_walk import Walk, coordinate_in_cluster
from tmapipe.prove.moves import Move


class Numbers:
    """The numbers of one problem, in the place of symbols."""

    def __init__(self, bodies: Any, problem: Any):
        self.problem, self.isa = problem, bodies.program.isa
        self.shared = bodies.shared

    def symbol(self, x: Any) -> int:
        symbols, (name,) = self.isa.symbols, x.args
        if x in symbols["extents"]:
            argument, dim = symbols["extents"][x]
            return self.problem.shapes[argument][dim]
        if name in ("cluster", "clusters"):
            return self.problem.cluster if name == "cluster" else self.problem.clusters
        in_machine, words = symbols["launch"]
        return in_machine(self.problem.clusters)[[word is x for word in words].index(True)]


class Concrete(Walk):
    """One warp's way through the program in one problem. visits: (place of the tile, its moves)."""

    def __init__(self, bodies: Any, agent: int, numbers: Numbers):
        super().__init__(bodies, agent, frozenset(), False)
        self.numbers = numbers
        self.visits: list[tuple[Mapping[str, int] | None, list[Move]]] = []

    def _computed(self, x: Expr, memo: dict[Any, Any]) -> Any:
        if x.op == "symbol" and x.args[0] not in ("warp", "rank"):
            return self.numbers.symbol(x)
        return super()._computed(x, memo)

    def _enter(self, tile: Tile | None) -> None:
        place = None if tile is None else self._place(tile)
        self.into = []
        self.visits.append((place, self.into))

    def _place(self, tile: Tile) -> dict[str, int]:
        plan = self.bodies.layout.plan
        dims = {dim for part in plan.transfers for dim in part.dims}
        return {
            dim: (self.number(value) - coordinate_in_cluster(plan, self.rank, dim)) // plan.cluster.get(dim, 1)
            for dim, value in tile._coordinates.items()
            if dim in dims
        }

    def _For(self, node: For) -> None:
        self._start(node)
        for i in range(self.number(node.count)):
            self.env[node.index] = i
            self.nodes(node.body)
            self._next(node)
        self.leave_loop(node)

    def _While(self, node: While) -> None:
        self._start(node)
        if node.iterations is not None:
            for _ in range(self._of_model(node.iterations)):
                self.nodes(node.body)
                self._next(node)
        while self.number(node.condition):
            self.nodes(node.body)
            self._next(node)
        self.leave_loop(node)

    def _followed(self, node: Any) -> list[Any]:
        return node.carried

    def _ask(self, value: Any, node: Any) -> None:
        pass

    def _of_model(self, of: Any) -> Any:
        into, self.into = self.into, None
        self.nodes(of.nodes)
        self.into = into
        return tuple(map(self.number, of.values)) if isinstance(of.values, (tuple, list)) else self.number(of.values)

    def _of_read_words(self, node: Call) -> None:
        self.env.update(zip(node.results, map(int, self._of_model(node.args[2])), strict=True))

    def _of_atomic_add(self, node: Call) -> None:
        self.env[node.results[0]] = self._of_model(node.args[1])

    def _of_load_entry(self, node: Call) -> None:
        table, i, without_data = node.args
        entries, i = self.numbers.problem.tables.get(table, ()), self.number(i)
        given = 1 if self.into is not None else without_data
        self.env[node.results[0]] = entries[i] if self.into is not None and 0 <= i < len(entries) else given

    def _of_ballot(self, node: Call) -> None:
        _, first, count, (i, entry, holds), without_data = node.args
        first, votes = self.number(first), 0
        for at in range(first, min(first + 32, self.number(count))):
            self.env[i], self.env[entry] = at, without_data
            votes += bool(self.number(holds))
        self.env[node.results[0]] = votes

    def _of_smid(self, node: Call) -> None:
        self.env[node.results[0]] = 0
