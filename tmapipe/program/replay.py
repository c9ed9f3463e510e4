"""`replay` carries a traced program out on any instruction set whose values are numbers, such as the model's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from tmapipe.isa.exchange import ClusterExchange
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.ops import Exit
from tmapipe.isa.values import SlotRef
from tmapipe.machine.layout import Layout, Shapes
from tmapipe.machine.warp import MachineIsa
from tmapipe.program.captured import Captured
from tmapipe.program.expressions import Expr, evaluate
from tmapipe.program.nodes import Call, For, Function, If, Let, OfModel, While


def operations(
    program: Any,
    layout: Layout,
    agent: int,
    shapes: Shapes,
    cluster: int = 0,
    clusters: int = 1,
    tables: Mapping[str, Sequence[int]] | None = None,
    emit: Callable[[Any], None] | None = None,
) -> list[Any]:
    """The operations of one warp, `Exit` last, in a run without data.

    Args:
        program: As `trace` makes it.
        layout: Of its plan.
        agent: The warp, of all of the cluster.
        shapes: Of tensors by argument.
        cluster: In the grid.
        clusters: In the grid.
        tables: Entries of tables, 1 behind the last one; without those of a table, it has what `Isa.load_entry` says.
        emit: Takes each operation, while its source line can still be asked for; then the list has `Exit` alone.
    """
    found: list[Any] = []
    replay(program, MachineIsa(layout, agent, cluster, clusters, shapes, emit or found.append, tables=tables))
    found.append(Exit())
    return found


Operation = Call  # as a type, where a method is called as the class


def replay(program: Any, isa: Any) -> None:
    env: dict[Any, Any] = {}
    env[Expr.of("symbol", "warp")] = isa.warp
    env[Expr.of("symbol", "rank")] = isa.cta_rank
    env[Expr.of("symbol", "cluster")], env[Expr.of("symbol", "clusters")] = isa.cluster_id, isa.clusters
    for symbol, (argument, dim) in program.isa.symbols["extents"].items():
        env[symbol] = isa.extent(argument, dim)
    if "launch" in program.isa.symbols:
        in_machine, words = program.isa.symbols["launch"]
        env.update(zip(words, isa.launch_words(in_machine), strict=True))
    _Replay(isa, env).nodes(program.nodes)


class _Replay:
    def __init__(self, isa: Any, env: dict[Any, Any]):
        self.isa, self.env = isa, env

    def nodes(self, nodes: list[Any]) -> None:
        for node in nodes:
            if type(node) is not Let:
                getattr(self, type(node).__name__)(node)

    def For(self, node: For) -> None:
        count = self.value(node.count)
        self._start(node.carried)
        for i in range(count):
            self.env[node.index] = i
            self.nodes(node.body)
            self._next(node.carried)
        self._end(node.carried)

    def While(self, node: While) -> None:
        self._start(node.carried)
        if self.isa.memory is None and node.iterations is not None:
            for _ in range(self._of_model(node.iterations)):
                self.nodes(node.body)
                self._next(node.carried)
        while self.value(node.condition):
            self.nodes(node.body)
            self._next(node.carried)
        self._end(node.carried)

    def _start(self, carried: Any) -> None:
        values = [self.value(initial) for _, initial, _, _ in carried]
        for (phi, *_), value in zip(carried, values, strict=True):
            self.env[phi] = value

    def _next(self, carried: Any) -> None:
        values = [self.value(last) for _, _, last, _ in carried]
        for (phi, *_), value in zip(carried, values, strict=True):
            self.env[phi] = value

    def _end(self, carried: Any) -> None:
        for phi, _, _, after in carried:
            self.env[after] = self.env[phi]

    def If(self, node: If) -> None:
        taken = bool(self.value(node.condition))
        self.nodes(node.then if taken else node.other)
        for found, then, other in node.phis:
            self.env[found] = self.value(then if taken else other)

    def Call(self, node: Call) -> None:
        special = getattr(self, f"_{node.method}", None)
        if special is not None:
            return special(node)
        on, _, name = self.isa, None, node.method
        if name.startswith("fragments."):
            on, name = self.isa.fragments, name[10:]
        given = [self.value(a) for a in node.args]
        found = getattr(on, name)(*given, **{n: self.value(v) for n, v in node.named.items()})
        if name == "apply" and isinstance(found, dict):
            for each, value in zip(node.results, found.values(), strict=True):
                self.env[each] = None if value is None else value.data
        elif len(node.results) == 1:
            self.env[node.results[0]] = found.data if isinstance(found, Fragment) else found

    def _here(self, node: Operation) -> None:
        self.env[node.results[0]] = self.value(node.args[0])

    def _skip(self, node: Operation) -> None:
        slot, parity, slots, ring = node.args
        state = [self.value(slot), self.value(parity)]
        self.isa.skip(state, self.value(slots), ring)
        self.env.update(zip(node.results, state, strict=True))

    def _read_words(self, node: Operation) -> None:
        slot, count, known = node.args
        found = self.isa.read_words(self.value(slot), count, lambda: [int(word) for word in self._of_model(known)])
        self.env.update(zip(node.results, found, strict=True))

    def _atomic_add(self, node: Operation) -> None:
        counter, in_turn = node.args
        self.env[node.results[0]] = self.isa.atomic_add(self.value(counter), lambda: self._of_model(in_turn))

    def _of_model(self, of: OfModel) -> Any:
        self.nodes(of.nodes)
        return self.value(of.values)

    def _ballot(self, node: Operation) -> None:
        table, first, count, (i, entry, holds), without = node.args

        def test(at: Any, value: Any) -> Any:
            self.env[i], self.env[entry] = at, value
            return self.value(holds)

        self.env[node.results[0]] = self.isa.ballot(table, self.value(first), self.value(count), test, without)

    def carried_out(self, function: Function, *fragments: Fragment, **named: Fragment) -> Any:
        """What a function of fragments gives."""
        self.env.update((x, each.data) for x, each in zip(function.inputs, fragments, strict=True))
        self.env.update((x, named[name].data) for name, x in function.named.items())
        self.nodes(function.body)
        return function.of({name: self.value(x) for name, x in function.outputs.items()})

    def value(self, x: Any) -> Any:
        if isinstance(x, Expr):
            return evaluate(x, self.env)
        if isinstance(x, Function):
            return functools.partial(self.carried_out, x)
        if isinstance(x, Captured):
            return x.bound(self.value)
        if isinstance(x, SlotRef):
            return SlotRef(x.buffer, self.value(x.stage))
        if type(x) in (tuple, list):
            return type(x)(self.value(each) for each in x)
        if type(x) is dict:
            return {n: self.value(v) for n, v in x.items()}
        if isinstance(x, Fragment):
            return Fragment(self.isa.fragments, x.layout, x.along, x.kind, self.value(x._data))
        if isinstance(x, ClusterExchange):
            return SimpleNamespace(rank=self.value(x.rank), mask=self.value(x.mask), peers=x.peers, full=x.full)
        return x
