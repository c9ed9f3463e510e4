"""What all walkers of one proof share: the program, its layout, symbols, and where operations go."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from tmapipe.isa.effects import declared
from tmapipe.isa.operands import Kind
from tmapipe.machine import Layout
from tmapipe.program.nodes import Call, If, Let
from tmapipe.prove.isa import Open, ProofIsa
from tmapipe.prove.operations import arithmetic
from tmapipe.prove.slicing import LOCAL, WITHOUT_OPERATIONS, Slice, operands, variables
from tmapipe.prove.symbols import Sym, add, divide, leaf, multiply, text
from tmapipe.prove.walker import Walker
from tmapipe.stage import SharedStage

__all__ = ["Shared", "bounds"]


class Operands(NamedTuple):
    """found: (place, argument, whether only data depends on it); variables: in those on which more depends; special: the
    walker's method, if it has one for this instruction."""

    found: list[tuple[int | str, Any, bool]]
    variables: tuple[Any, ...]
    special: str


class Shared:
    """What all walkers of one proof share: the program, its layout, symbols, and where operations go."""

    def __init__(self, program: Any):
        self.program, self.layout = program, Layout(program.plan)
        self.layout.syncs, self.layout.written = program.isa.syncs, _written(program.schedule.declared)
        self.emitting: Any = None
        self.foresee: Callable[[Any, Any], None] = lambda node, op: (
            None
        )  # told of each operation, and of the node it is of
        self.isas = [ProofIsa(self.layout, agent, self.emit) for agent in range(self.layout.agents)]
        self.stored = {store.argument for store in program.plan.stores}
        self.decides = Slice(program.nodes).decides
        self._carried: dict[int, list[Any]] = {}
        self._inert: dict[int, bool] = {}
        self._next: dict[int, tuple[list[Any], list[int]]] = {}
        self._symbols: dict[Any, Any] = {}
        self._local: dict[type, bool] = {}
        self.values: dict[Any, Any] = {}  # of expressions, by warp and values of their variables
        self.emitted: dict[Any, list[Any]] = {}  # operations of instructions, likewise
        self._operands: dict[int, Operands] = {}
        self._alive: list[Call] = []

    def alive(self, node: Call) -> Call:
        """The node, which stays alive as long as what is remembered of it, by its id."""
        self._alive.append(node)
        return node

    def operands_of(self, node: Call) -> Operands:
        """The operands of an instruction, and the variables on which its operations depend."""
        found = self._operands.get(id(node))
        if found is None:
            special = "_do_nothing" if node.method in WITHOUT_OPERATIONS else f"_{node.method}"
            if hasattr(Walker, special):
                found = Operands([], (), special)
            else:
                given = operands(node)
                found = Operands(given, tuple(variables([x for _, x, data in given if not data])), "")
            self._operands[id(node)] = found
        return found

    @functools.cached_property
    def variables_in(self) -> Callable[[Any], tuple[Any, ...]]:
        """The variables in an expression, in some order."""
        return functools.cache(lambda x: tuple(variables(x)))

    def emit(self, op: Any) -> None:
        queue, node = self.emitting
        kind = type(op)
        if kind not in self._local:
            self._local[kind] = declared(kind).local
        if self._local[kind]:
            return
        self.foresee(node, op)
        for name, of in declared(kind).operands.items():
            if of is not Kind.AT and isinstance(getattr(op, name), Sym):
                raise Open(f"{text(getattr(op, name))}, an operand of {kind.__name__} at {node.where}")
        queue.append(op)

    def next_in(self, nodes: list[Any]) -> list[int]:
        """By number, the next of these nodes that executes something, or gives something on which something depends."""
        known = self._next.get(id(nodes))
        if known is None:
            found = [len(nodes)]
            for i in range(len(nodes) - 1, -1, -1):
                found.append(found[-1] if self._is_nothing(nodes[i]) else i)
            known = self._next[id(nodes)] = nodes, found[::-1]
        return known[1]

    def _is_nothing(self, node: Any) -> bool:
        return node.method in WITHOUT_OPERATIONS if type(node) is Call else self.inert(node)

    def inert(self, node: Any) -> bool:
        """Whether a loop or branch executes nothing that synchronizes, and gives nothing on which something depends."""
        if id(node) not in self._inert:
            self._inert[id(node)] = self._is_inert(node)
        return self._inert[id(node)]

    def _is_inert(self, node: Any) -> bool:
        kind = type(node)
        if kind is Let:
            return True
        if kind is Call:
            given = not self.decides.isdisjoint(node.results)
            return not given and (node.method in WITHOUT_OPERATIONS or node.method in LOCAL)
        if kind is If:
            given = any(phi in self.decides for phi, _, _ in node.phis)
            return not given and all(map(self.inert, (*node.then, *node.other)))
        given = any(each in self.decides for phi, _, _, after in node.carried for each in (phi, after))
        return not given and all(map(self.inert, node.body))

    def carried(self, node: Any) -> list[Any]:
        """What a loop carries that decides something."""
        if id(node) not in self._carried:
            self._carried[id(node)] = [each for each in node.carried if each[0] in self.decides]
        return self._carried[id(node)]

    def symbol(self, x: Any) -> Any:
        """What a symbol of the program is."""
        if x not in self._symbols:
            extents = self.program.isa.symbols["extents"]
            if x in extents:
                argument, dim = extents[x]
                self._symbols[x] = self._extent(self.program.plan.dims[argument][dim])
            else:
                self._symbols[x] = leaf("of the launch", x.args[0])
        return self._symbols[x]

    def _extent(self, name: str) -> Any:
        relation = next((each for each in self.program.plan.relations if each.name == name), None)
        if relation is None or (relation.size is None and relation.of is None):
            return leaf("extent", name)
        if relation.size is not None:
            return relation.size
        of = multiply(self._extent(str(relation.of)), relation.times)
        found = add(divide(add(of, relation.per - 1), relation.per), relation.plus)
        if relation.plus >= 0:
            return found
        return arithmetic("max", found, 0)

    def entry(self, table: str, i: Any, walker: Walker, node: Any) -> Any:
        """An entry of a table. One that the kernel stores to may be another one at each look."""
        if table in self.stored:
            return leaf(
                "answer", f"an entry of {table} in {self.layout.agent_name(walker.agent)}", *walker.instance(node)
            )
        return leaf("entry", table, i)


def _written(declared: Any) -> dict[str, tuple[str, str, str | None]]:
    """As `Layout.written`."""
    found: dict[str, tuple[str, str, str | None]] = {}
    for name, stage in declared.shared.items():
        if type(stage) is SharedStage:
            writer = declared.name_of(stage.writer)
            of = declared.befores if stage.ring.held else declared.bodies
            body = inspect.unwrap(of[writer]).__code__
            found[name] = writer, declared.name_of(stage.ring), f"{body.co_filename}:{body.co_firstlineno}"
    return found


def bounds(x: Sym) -> tuple[int | None, int | None]:
    """The least and the most that a leaf may be."""
    kind = x.args[0]
    if kind == "extent" or (kind == "of the launch" and x.args[1] == "clusters"):
        return 1, 2**31 - 1
    if kind in ("turn", "of the launch"):
        return 0, 2**31 - 1
    return None, None
