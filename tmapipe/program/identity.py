"""The identity of a kernel: a hash of its traced program and its plan, the same in any process.

Kernels of one identity are the same: they compile to the same code, and a proof of one is a proof of the other. Lines, paths,
names of variables, and how functions are split up do not count. Variables are numbered by first appearance, and so are
expressions, of which equal ones are one object. Functions of `k.raw` count by their bytecode (`tmapipe.program.canonical`).
"""

from __future__ import annotations

import hashlib
from typing import Any

import attrs

from tmapipe.isa.effects import TABLE
from tmapipe.isa.exchange import ClusterExchange
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.operands import Kind
from tmapipe.isa.values import SlotRef
from tmapipe.program.canonical import Canonical, NotCanonical
from tmapipe.program.captured import Captured
from tmapipe.program.expressions import Expr, Var, resolve
from tmapipe.program.nodes import Call, For, Function, If, Let, OfModel, While
from tmapipe.program.trace import Traced
from tmapipe.protocol.tile import Tile

__all__ = ["identity"]


def identity(program: Traced) -> str | None:
    """64 hexadecimal digits. None if something in the program has no canonical bytes, such as a function of `k.raw` that has
    captured an open file."""
    writer = _Program()
    plan, schedule, isa = program.plan, program.schedule, program.isa
    try:
        writer.write(plan)
        writer.write([*isa.symbols["extents"].items()])
        writer.write(isa.symbols.get("launch"))
        writer.nodes(program.nodes)
        order, grid = schedule.tiles, schedule.grid(isa.extent)  # what a launch computes
        writer.write((order, grid, order.divisors(grid, plan.cluster, isa.clusters)))
        writer.write((order.launch_words, order.smem_bytes(plan), order.least_ctas(plan)))
    except (NotCanonical, RecursionError):
        return None
    return hashlib.sha256(writer.bytes).hexdigest()


class _Program(Canonical):
    """A method a node, beside what Python has."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: dict[int, tuple[Any, bytes]] = {}  # of parts of the plan, which have no expressions

    def nodes(self, nodes: list[Any]) -> None:
        self.begin(b"\x01", len(nodes))
        for node in nodes:
            NODES[type(node)](self, node)

    def repeat(self, node: For) -> None:
        self._parts(b"\x02", node.index, node.count, [tuple(each) for each in node.carried])
        self.nodes(node.body)

    def repeat_while(self, node: While) -> None:
        self._parts(b"\x03", [tuple(each) for each in node.carried], node.condition, node.iterations)
        self.nodes(node.body)

    def branch(self, node: If) -> None:
        self._parts(b"\x04", node.condition, node.lane_0, [tuple(each) for each in node.phis])
        self.nodes(node.then)
        self.nodes(node.other)

    def instruct(self, node: Call) -> None:
        self._parts(b"\x05", node.method, list(node.args), dict(node.named), node.results)
        self.begin(b"\x06", len(node.ops))
        for op in node.ops:
            self.write(type(op).__name__)
            for name, kind in TABLE[type(op)].operands.items():
                if kind is not Kind.WHERE:
                    self.write(getattr(op, name))

    def compute(self, node: Let) -> None:
        self._parts(b"\x07", node.value)

    def write(self, x: Any) -> None:
        if isinstance(x, Expr):
            self._expression(resolve(x))
        else:
            super().write(x)

    def _expression(self, x: Any) -> None:
        if not isinstance(x, Expr):
            self.write(x)
        elif not self.again(x):
            if isinstance(x, Var):
                self.begin(b"v", x.is_bool)
            else:
                self.text(b"e", x.op)
                self._parts(b"\x08", *x.args)

    def _other(self, x: Any, kind: type) -> None:
        if kind is Fragment:
            self._parts(b"\x09", x.layout, x.along, x.kind, x.data)
        elif kind is SlotRef:
            self._parts(b"\x0a", x.buffer, x.stage)
        elif kind is OfModel:
            self.nodes(x.nodes)
            self.write(x.values)
        elif kind is Function:
            self._parts(b"\x0b", x.inputs, x.named, x.outputs)
            self.nodes(x.body)
        elif kind is Captured:
            self._parts(b"\x0c", x.function)
        elif kind is Tile:
            self._parts(b"\x0d", x._coordinates, x._bounds, x._moved)
        elif kind is ClusterExchange:
            self._parts(b"\x0e", x.rank, x.mask, x.peers, x.full)
        elif kind.__module__.startswith("tmapipe.plan.") and attrs.has(kind):
            self._planned(x)
        else:
            super()._other(x, kind)

    def _planned(self, x: Any) -> None:
        found = self.plain.get(id(x))
        if found is None:
            alone = Canonical()
            alone.write(x)
            found = self.plain[id(x)] = x, hashlib.sha256(alone.bytes).digest()
        self.text(b"\x0f", found[1])


#: How each kind of node is written.
NODES: dict[type, Any] = {
    For: _Program.repeat,
    While: _Program.repeat_while,
    If: _Program.branch,
    Call: _Program.instruct,
    Let: _Program.compute,
}
