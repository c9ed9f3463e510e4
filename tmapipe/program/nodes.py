"""The nodes of a traced program.

Call(method, arguments, results, ops)      one instruction of the table; `ops` are its operations, with symbolic operands
For(index, count, carried, results, body)  runs body for index = 0 .. count - 1
While(carried, results, condition, body, iterations)
If(condition, then, other, phis, lane_0)
Let(value)                                 here the trace computed a value: where the GPU computes it, too
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
    """Here the trace computed a value: a place for emission to do the same, of no matter to others."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


class Function:
    """A function of fragments, such as an epilogue: traced once, and carried out on as many parts of them as a reader likes.

    parameters, named: variables for the data of its arguments; nodes: what it does; values: what it returns, a fragment or a
    number, or a dictionary of such.
    """

    __slots__ = ("named", "nodes", "parameters", "values")

    def __init__(self, parameters: list[Var], named: dict[str, Var], nodes: list[Any], values: Any):
        self.parameters, self.named, self.nodes, self.values = parameters, named, nodes, values


class OfModel:
    """What something is in the model, of no matter to others: values, and the nodes that compute them, which have no operations.

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
