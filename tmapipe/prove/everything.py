"""All operations of a program that may still come, which says what a state has to remember."""

from __future__ import annotations

import contextlib
from collections.abc import Container
from typing import Any

from tmapipe.errors import PipelineError
from tmapipe.isa.effects import Init, declared
from tmapipe.program.nodes import Call, For, If, While
from tmapipe.prove.isa import Open
from tmapipe.prove.places import is_role
from tmapipe.prove.positions import Key, Positions
from tmapipe.prove.shared import Shared
from tmapipe.prove.symbols import Sym, leaf, truth
from tmapipe.prove.walker import Walker

__all__ = ["everything", "foreseen"]


def everything(shared: Shared, pinned: Container[Any]) -> tuple[Positions, dict[Key, int]]:
    """All operations that may come, at all places of their arrays; and positions before them, but for *pinned* arrays."""
    found = Positions(shared.layout)
    origin: dict[Key, int] = {}
    for agent in range(shared.layout.agents):
        _Everything(pinned, Walker(shared, agent), found, origin).nodes(shared.program.nodes)
    return found, origin


def foreseen(come: Positions, every: Positions) -> bool:
    """Whether what has come in a run (copies of its positions note that together) is among *every* operation."""
    sorts = ((agent, sort, array) for agent, sort, array in come.touched if not (type(sort) is type and _is_init(sort)))
    return every.touched.keys() >= set(sorts) and come.arrivals <= every.arrivals


def _is_init(op: type) -> bool:
    return declared(op).effect(Init) is not None


class _Everything:
    """Walks a program once, both arms and one iteration of each loop, and notes the operations of one warp."""

    def __init__(self, pinned: Container[Any], walker: Walker, found: Positions, origin: dict[Key, int]):
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
        found = Call(node.method, node.args, {**node.named, "when": True}, node.results, node.ops, node.where or "")
        return self.walker.shared.alive(found)

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
        found.relative(agent, op)
        for key, position, around in found.moves(agent, op):
            found.touched[key] = set(range(around))
            if self.sure and key[2] not in self.pinned:
                self.origin.setdefault(key, (position - 1) % around)  # so that first iterations are like all others
