"""The symbols on which what may still come depends: facts about others are left out of a state."""

from __future__ import annotations

from typing import Any

from tmapipe.program.expressions import Expr, resolve
from tmapipe.program.nodes import Call, For, If, While
from tmapipe.prove.points import Point
from tmapipe.prove.shared import Shared
from tmapipe.prove.symbols import Sym, leaves

__all__ = ["Relevant"]


class Relevant:
    """Finds them, for the nodes of one program."""

    def __init__(self, shared: Shared):
        self.shared = shared
        self._found: dict[tuple[int, int], set[Sym]] = {}

    def of(self, now: Point) -> set[Sym]:
        """Symbols of which conditions that may still come are computed."""
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
                        found |= leaves(walker.number(frame[1].count))
        for value in values:
            found |= value.leaves
        for (_, at), nodes in rest.items():
            found |= self._symbols(nodes, at)
        return found

    def _symbols(self, nodes: Any, at: int) -> set[Sym]:
        """Symbols of the launch in conditions and counts."""
        key = id(nodes), at
        if key not in self._found:
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
            self._found[key] = found
        return self._found[key]

    def _in(self, x: Any) -> set[Sym]:
        x = resolve(x)
        if not isinstance(x, Expr):
            return set()
        if x.op == "symbol":
            return set() if x.args[0] in ("warp", "rank") else set(leaves(self.shared.symbol(x)))
        return set().union(*map(self._in, x.args)) if x.args else set()
