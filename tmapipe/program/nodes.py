"""The nodes of a traced program.

Call(method, arguments, results, ops)      one instruction of the table; `ops` are its operations, with symbolic operands
For(index, count, carried, results, body)  runs body for index = 0 .. count - 1
While(carried, results, condition, body, iterations)
If(condition, then, other, phis, lane_0)
Let(value)                                 here the trace computed a value, where the GPU and the model do, too; or a body
                                           begins, with the tile that is the value
"""

from __future__ import annotations

from typing import Any

from tmapipe.program.expressions import Var


class Node:
    """where: "file:line" of the body that it comes from."""

    __slots__ = ("where",)


class Call(Node):
    __slots__ = ("args", "method", "named", "ops", "results")

    def __init__(self, method: str, args: Any, named: Any, results: list[Var], ops: list[Any], where: str | None):
        self.method, self.args, self.named, self.results, self.ops, self.where = (
            method,
            args,
            named,
            results,
            ops,
            where,
        )


class Let(Node):
    """Here the trace computed a value, or a body begins with a `Tile`: of no matter to most readers."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


class OfModel:
    """What something is in the model, of no matter to others: values, and the nodes without operations that compute them.

    Clusters take turns there, and it may run without data.
    """

    __slots__ = ("nodes", "values")

    def __init__(self, nodes: list[Any], values: Any):
        self.nodes, self.values = nodes, values


class For(Node):
    """carried: (variable in the body, before, its next value, after)."""

    __slots__ = ("body", "carried", "count", "index")

    def __init__(self, index: Var, count: Any, carried: list[Any], body: list[Node], where: str | None):
        self.index, self.count, self.carried, self.body, self.where = index, count, carried, body, where


class While(Node):
    """iterations: how often it runs where there is no data (`OfModel`), or None."""

    __slots__ = ("body", "carried", "condition", "iterations")

    def __init__(self, condition: Any, carried: list[Any], body: list[Node], iterations: Any, where: str | None):
        self.condition, self.carried, self.body, self.iterations, self.where = (
            condition,
            carried,
            body,
            iterations,
            where,
        )


class If(Node):
    """phis: (variable, of `then`, of `other`). lanes: whether lane 0 alone runs it."""

    __slots__ = ("condition", "lane_0", "other", "phis", "then")

    def __init__(self, condition: Any, then: list[Node], other: list[Node], phis: Any, lane_0: bool, where: str | None):
        self.condition, self.then, self.other, self.phis, self.lane_0 = condition, then, other, phis, lane_0
        self.where = where


class Function:
    """What is computed of fragments element by element, such as an epilogue.

    inputs, named: variables for the data of what it is called with, by place and by name. outputs: what it gives, by name; ""
    if that is one value. A value is a fragment, a number, or None.
    """

    __slots__ = ("body", "inputs", "name", "named", "outputs")

    def __init__(self, name: str, inputs: list[Var], named: dict[str, Var], body: list[Any], outputs: dict[str, Any]):
        self.name, self.inputs, self.named, self.body, self.outputs = name, inputs, named, body, outputs

    def of(self, values: dict[str, Any]) -> Any:
        """What it returns, of the values of its outputs."""
        return values[""] if list(values) == [""] else values
