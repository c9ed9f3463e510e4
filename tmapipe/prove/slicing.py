"""Which numbers of a program decide what its warps do: conditions, counts, and operands that synchronize.

Where a tile lies is computed at length and decides nothing, unless a body looks at it. So a proof follows only numbers on
which something depends that it looks at.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from tmapipe.isa.exchange import ClusterExchange
from tmapipe.isa.fragments import Fragments
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import SlotRef
from tmapipe.program.expressions import Expr, Var, resolve
from tmapipe.program.nodes import Call, For, If, Let, While

__all__ = ["WITHOUT_OPERATIONS", "Slice", "named", "variables"]

#: Instructions on fragments that execute no operation.
WITHOUT_OPERATIONS = frozenset(
    f"fragments.{name}"
    for name in ("number", "convert", "expand", "indices", "elementwise", "columns_of", "row_sums", "column_sums",
                 "reduce_in_warp", "apply", "only_inside", "sum_parts", "join_parts", "packed", "scan_in_warp",
                 "chunk_totals", "chunks_before", "add_chunks", "swapped_pairs",
                 "picked_of_pairs", "joined_pairs")
)  # fmt: skip
#: Instructions that synchronize nothing: on counters, tables, and among lanes.
LOCAL = frozenset({"atomic_add", "store_counter", "ballot", "smid", "shuffle", "load_entry", "here"})
#: Parameters of instructions that only data depends on.
_DATA = {"at", "offsets", "words", "values", "data", "index", "inside", "sums", "before"}
#: More of these, by instruction: rows that are stored or gathered, what a descriptor shows.
_DATA_OF = {
    "tma_store": {"rows"},
    "tma_gather": {"rows"},
    "tma_scatter": {"rows"},
    "descriptor_write": {"first", "rows"},
    "fragments.read_columns_from": {"first"},
}
_PURE = ("here", "shuffle")


@functools.cache
def _parameters(method: str) -> tuple[str, ...]:
    of, name = (Fragments, method[10:]) if method.startswith("fragments.") else (Isa, method)
    return tuple(inspect.signature(getattr(of, name)).parameters)[1:]


def named(node: Call) -> list[tuple[str, Any]]:
    """(parameter, argument) of an instruction."""
    return [*zip(_parameters(node.method), node.args, strict=False), *node.named.items()]


def operands(node: Call) -> list[tuple[int | str, Any, bool]]:
    """(place, argument, whether only data depends on it) of an instruction."""
    names = _parameters(node.method)
    data = _DATA | _DATA_OF.get(node.method, set())
    if node.method == "fragments.write":
        data -= {"at"}  # plain numbers, which say what is written of a slot
    found: list[tuple[int | str, Any, bool]] = [(i, x, names[i] in data) for i, x in enumerate(node.args)]
    return found + [(name, x, name in data) for name, x in node.named.items()]


class Slice:
    """decides: the variables on which something depends."""

    def __init__(self, nodes: list[Any]):
        self.decides: set[Any] = set()
        self._from: dict[Any, list[Any]] = {}  # what a variable is computed of
        self._walk(nodes)
        todo = list(self.decides)
        while todo:
            for x in self._from.get(todo.pop(), ()):
                for var in variables(x):
                    if var not in self.decides:
                        self.decides.add(var)
                        todo.append(var)

    def _walk(self, nodes: list[Any]) -> None:
        for node in nodes:
            kind = type(node)
            if kind is Let:
                continue
            if kind is Call:
                self._call(node)
            elif kind is If:
                test = self._test(node, node.condition)
                for phi, *values in node.phis:
                    self._from.setdefault(phi, []).extend((*values, *test))
                self._walk(node.then)
                self._walk(node.other)
            elif kind in (For, While):
                test = self._test(node, node.count if kind is For else node.condition)
                for phi, initial, last, after in node.carried:
                    self._from.setdefault(phi, []).extend((initial, last, *test))
                    self._from.setdefault(after, []).append(phi)
                self._walk(node.body)

    def _test(self, node: Any, test: Any) -> tuple[Any, ...]:
        """The condition or count of *node*, if it decides only what the node gives; empty if it decides what is executed."""
        if is_silent(node):
            return (test,)
        self.decides |= variables(test)
        return ()

    def _call(self, node: Call) -> None:
        if node.method in WITHOUT_OPERATIONS:
            return
        if node.method == "skip":
            slot, parity, slots, _ = node.args
            self.decides |= variables(slots)
            for result in node.results:
                self._from.setdefault(result, []).extend((slot, parity))
        elif node.method in _PURE or node.method == "load_entry":
            for result in node.results:
                self._from.setdefault(result, []).extend(node.args)
        elif node.method == "read_words":
            self.decides |= variables(node.args[0])
        elif node.method in ("atomic_add", "store_counter", "ballot", "smid"):
            pass
        else:
            for _, x, data in operands(node):
                if not data:
                    self.decides |= variables(x)


def is_silent(node: Any) -> bool:
    """Whether nothing in a node synchronizes, or can be waited for."""
    kind = type(node)
    if kind is Call:
        return node.method in WITHOUT_OPERATIONS or node.method in LOCAL
    if kind is If:
        return all(map(is_silent, (*node.then, *node.other)))
    return kind is Let or all(map(is_silent, node.body))


def variables(x: Any) -> set[Any]:
    """The variables in an argument."""
    x = resolve(x)
    if isinstance(x, Var):
        return {x}
    if isinstance(x, Expr):
        return _of_expression(x)
    if isinstance(x, SlotRef):
        return variables(x.stage)
    if isinstance(x, ClusterExchange):
        return variables((x.rank, x.mask))
    if isinstance(x, (list, tuple)):
        return set().union(*map(variables, x)) if x else set()
    if isinstance(x, dict):
        return variables(list(x.values()))
    return set()


@functools.lru_cache(maxsize=100_000)
def _of_expression(x: Expr) -> Any:
    return frozenset().union(*(variables(a) for a in x.args)) if x.args else frozenset()
