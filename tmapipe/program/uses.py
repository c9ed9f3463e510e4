"""What is used of a traced program: which values its instructions, loops and branches depend on, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tmapipe.isa.exchange import ClusterExchange
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.values import SlotRef
from tmapipe.program.captured import Captured, tile_with
from tmapipe.program.expressions import Expr, resolve
from tmapipe.program.nodes import Call, For, Function, If, Let, OfModel, While
from tmapipe.protocol.tile import Tile

__all__ = ["Given", "Uses"]


class Uses:
    """How often each value is used, of those on which something depends."""

    def __init__(self, nodes: Sequence[Any]):
        self.counts: Counter[Expr] = Counter()
        self.made: dict[Expr, tuple[Any, ...]] = {}  # variable of a loop or branch -> what it is made of
        self.pending: list[Any] = []
        self.look(nodes)
        while self.pending:
            self.use(self.pending.pop())

    def look(self, nodes: Sequence[Any]) -> None:
        for node in nodes:
            kind = type(node)
            if kind is Call:
                self.pending += [node.args, node.named]
            elif kind is If:
                self.made.update((phi, (then, other)) for phi, then, other in node.phis)
                self.pending.append(node.condition)
                self.look(node.then)
                self.look(node.other)
            elif kind is Let:
                if isinstance(node.value, Tile):
                    self.pending.append(node.value)
            else:
                for phi, before, last, after in node.carried:
                    self.made[phi], self.made[after] = (before, last), (phi,)
                self.pending.append(node.count if kind is For else node.condition)
                if kind is While:
                    self.pending.append(node.iterations)
                self.look(node.body)

    def use(self, x: Any) -> None:
        x = resolve(x)
        if isinstance(x, Expr):
            self.counts[x] += 1
            if self.counts[x] == 1:
                self.pending += self.made.get(x, x.args)
        elif isinstance(x, Function):
            self.look(x.body)
            self.pending.append(x.outputs)
        elif isinstance(x, OfModel):
            self.look(x.nodes)
            self.pending.append(x.values)
        else:
            self.pending += parts(x)


def mapped(x: Any, of: Callable[[Expr], Any]) -> Any:
    """An operand that is no number, with what *of* gives in the place of expressions."""
    if isinstance(x, Expr):
        return of(x)
    if isinstance(x, Tile):
        return tile_with(x, lambda part: mapped(part, of))
    if isinstance(x, Captured):
        return x.bound(lambda part: mapped(part, of))
    if isinstance(x, SlotRef):
        return SlotRef(x.buffer, mapped(x.stage, of))
    if type(x) in (tuple, list):
        return type(x)([mapped(each, of) for each in x])
    return {name: mapped(each, of) for name, each in x.items()} if type(x) is dict else x


class Given:
    """An operand with expressions inside, such as a function that has captured some: called with their values, it gives the
    operand with these. inside: the expressions."""

    def __init__(self, x: Any):
        self.x = x
        self.inside: list[Expr] = []
        mapped(x, self._note)
        self.places = {id(each): i for i, each in enumerate(self.inside)}

    def _note(self, each: Expr) -> Expr:
        self.inside.append(each)
        return each

    def __call__(self, *values: Any) -> Any:
        return mapped(self.x, lambda each: values[self.places[id(each)]])


def parts(x: Any) -> Iterator[Any]:
    """Parts of an operand that may hold expressions."""
    if isinstance(x, Fragment):
        yield x.data
    elif isinstance(x, ClusterExchange):
        yield from (x.rank, x.mask)
    elif isinstance(x, (Captured, Tile)):
        yield from Given(x).inside
    elif type(x) in (tuple, list) or isinstance(x, SlotRef):
        yield from x
    elif type(x) is dict:
        yield from x.values()
