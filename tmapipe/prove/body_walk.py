"""One warp's way through the traced program, each loop once, with the moves of tiles that it comes to."""

from __future__ import annotations

from typing import Any

from tmapipe.errors import InputError
from tmapipe.multicast import rank_stride
from tmapipe.plan.model import Load, Plan, Store
from tmapipe.program.expressions import Expr, Var, resolve
from tmapipe.program.nodes import Call, For, If, Let, While
from tmapipe.protocol.tile import Tile
from tmapipe.prove.moves import DATA, OF_CLUSTER, Fork, Move, coordinate, is_turn
from tmapipe.prove.symbols import Sym, add, leaf, leaves, parts, truth
from tmapipe.prove.walker import INLINE, Walker


class Walk(Walker):
    """One warp's way through the program, each loop once.

    found: its moves at a tile; before: those before the first tile; where: the line at which it is.
    """

    def __init__(self, bodies: Any, agent: int, facts: frozenset[Sym], forks: bool):
        super().__init__(bodies.shared, agent)
        self.bodies, self.facts, self.forks = bodies, facts, forks
        self.found: list[Move] = []
        self.before: list[Move] = []
        self.into: list[Move] | None = None  # where moves go; None outside of bodies
        self.loops: list[tuple[Sym, Any]] = []
        self.turns = 0  # conditions around that only some iterations of a loop fulfil
        self.known: dict[Any, Any] = {}
        self.where: str | None = None

    # ---- values -----------------------------------------------------------------------------------------------------

    def number(self, x: Any, memo: dict[Any, Any] | None = None) -> Any:
        x = resolve(x)
        if isinstance(x, Var):
            found = self.env.get(x)
            return leaf("unknown", x.name, id(x)) if found is None else found
        if not isinstance(x, Expr):
            return x
        return super().number(x, dict(self.known) if memo is None else memo)

    def _computed(self, x: Expr, memo: dict[Any, Any]) -> Any:
        if x.op == "flipped" and any(isinstance(self.number(a, memo), Sym) for a in x.args):
            return leaf("unknown", "a parity", id(x))
        found = super()._computed(x, memo)
        if x.op in ("add", "sub", "mul") and isinstance(found, Sym):
            constant, factors = parts(found)
            for number in (constant, *factors.values()):
                if not -(2**31) <= number < 2**31:
                    rule = "has more than the 32 bits of a number of the kernel, as a factor or summand"
                    raise InputError("number in a body", number, rule, f"use smaller numbers. At {self.where}")
        return found

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def nodes(self, nodes: list[Any]) -> None:
        for node in nodes:
            self.where = getattr(node, "where", None)
            called = self.program.calls.get(id(node))
            if called is not None:
                around, self.loops = self.loops, []
                self._enter(called[2])
            if type(node) is not Let:
                getattr(self, f"_{type(node).__name__}")(node)
            if id(node) in self.bodies.ends:
                self.loops, self.into, self.known = around, None, {}

    def _enter(self, tile: Tile | None) -> None:
        self.into = self.before if tile is None else self.found
        if tile is not None:
            for name, value in tile._coordinates.items():
                value = resolve(value)
                if isinstance(value, Expr):
                    self._is(value, self._coordinate(name))

    def _is(self, x: Expr, value: Any) -> None:
        (self.env if isinstance(x, Var) else self.known)[x] = value

    def _coordinate(self, name: str) -> Any:
        plan = self.bodies.layout.plan
        dims = {dim for part in plan.transfers for dim in part.dims}
        if name in OF_CLUSTER or not (name in plan.cluster or name in dims):
            return coordinate(name)
        return add(coordinate_in_cluster(plan, self.rank, name), coordinate(name), plan.cluster.get(name, 1))

    def _If(self, node: If) -> None:
        condition = truth(self.number(node.condition))
        if isinstance(condition, Sym):
            self._ask(condition, node)
            outcome = self._decided(condition, node)
        else:
            outcome = bool(condition)
        if outcome is None:
            by_turn = any(map(is_turn, leaves(condition)))
            self.turns += by_turn
            self.nodes(node.then)
            self.nodes(node.other)
            self.turns -= by_turn
        else:
            self.nodes(node.then if outcome else node.other)
        for phi, then, other in node.phis:
            values = [] if outcome is False else [self.number(then)]
            values += [] if outcome is True else [self.number(other)]
            if all(each is values[0] or (not isinstance(each, Sym) and each == values[0]) for each in values):
                self.env[phi] = values[0]

    def _ask(self, value: Any, node: Any) -> None:
        if self.into is not None and not self.shared.inert(node):
            self.bodies.asks(value, node.where)

    def _decided(self, condition: Sym, node: If) -> bool | None:
        if self.into is None or not self.bodies.stores(node) or any(map(is_turn, leaves(condition))):
            return None
        if not self.forks:
            self.bodies.forks = True
            return None
        outcome = self.bodies.solver.decided(condition, self.facts)
        if outcome is None:
            raise Fork(condition)
        return outcome

    def _For(self, node: For) -> None:
        count = self.number(node.count)
        self._ask(count, node)
        if not isinstance(count, Sym) and count <= INLINE:
            for phi, initial, _, _ in node.carried:
                self.env[phi] = self.number(initial)
            for i in range(count):
                self.env[node.index] = i
                self.nodes(node.body)
                values = [self.number(last) for _, _, last, _ in node.carried]
                self.env.update(zip((phi for phi, *_ in node.carried), values, strict=True))
            for phi, _, _, after in node.carried:
                self.env[after] = self.env[phi]
            return
        index = leaf("index" if self.into is not None else "turn", id(node))
        self.env[node.index] = index
        self.loops.append((index, count))
        self.nodes(node.body)
        self.loops.pop()

    def _While(self, node: While) -> None:
        condition = truth(self.number(node.condition))
        self._ask(condition, node)
        self.loops.append((leaf("index" if self.into is not None else "turn", id(node)), None))
        self.nodes(node.body)
        self.loops.pop()

    def _Call(self, node: Call) -> None:
        move = self.bodies.move_of(node)
        if move is not None:
            self._move(node, *move)
        if "when" in node.named:
            self._ask(truth(self.number(node.named["when"])), node)
        special = getattr(self, f"_of_{node.method}", None)
        if special is not None:
            special(node)

    def _move(self, node: Call, part: Load | Store, at: Any) -> None:
        bodies = self.bodies
        if self.into is None:
            return
        bodies.lines.setdefault(part.name, node.where)
        if isinstance(part, Store):
            bodies.stored.add(part.name)
        if node.method in ("tma_gather", "tma_scatter"):
            bodies.by_rows.add(part.name)
        start = tuple([self.number(x) for x in at])
        if any(each.args[0] in DATA for x in start for each in leaves(x)):
            _lies_anywhere(node)
        self.into.append(Move(part, start, tuple(self.loops), self.turns > 0, self.agent, node.where))

    def _of_here(self, node: Call) -> None:
        self.env[node.results[0]] = self.number(node.args[0])

    _of_shuffle = _of_here

    def _of_load_entry(self, node: Call) -> None:
        table, i, _ = node.args
        self.env[node.results[0]] = self.shared.entry(table, self.number(i), self, node)


def _lies_anywhere(node: Call) -> None:
    """A load that data places may lie outside of its tensor: which entries a table has is no matter of the program."""
    if node.method == "tma_load":
        node.named["anywhere"] = True
    elif node.method == "cp_async":
        node.args = (*node.args[:-1], True)


def coordinate_in_cluster(plan: Plan, rank: int, axis: str) -> int:
    """That of a CTA along an axis of its cluster."""
    return rank // rank_stride(plan.cluster, axis) % plan.cluster[axis] if plan.cluster.get(axis, 1) > 1 else 0
