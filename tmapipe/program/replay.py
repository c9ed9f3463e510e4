"""What reads a traced program: `replay` carries it out on any instruction set whose values are numbers, such as the model's."""

from __future__ import annotations

from typing import Any


from tmapipe.isa.fragment import Fragment
from tmapipe.program.arguments import argument
from tmapipe.program.expressions import Expr, evaluate
from tmapipe.program.nodes import Call, For, Function, If, Let, OfModel, While


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
        given = [self._function(a) if isinstance(a, Function) else self.value(a) for a in node.args]
        found = getattr(on, name)(*given, **{n: self.value(v) for n, v in node.named.items()})
        if name == "apply":
            several = found.values() if isinstance(found, dict) else (found,)
            made = [each.data for each in several if each is not None]
            self.env.update(zip(node.results, made, strict=True))
        elif len(node.results) == 1:
            self.env[node.results[0]] = found.data if isinstance(found, Fragment) else found

    def _here(self, node: Call) -> None:
        self.env[node.results[0]] = self.value(node.args[0])

    def _skip(self, node: Call) -> None:
        slot, parity, slots, ring = node.args
        state = [self.value(slot), self.value(parity)]
        self.isa.skip(state, self.value(slots), ring)
        self.env.update(zip(node.results, state, strict=True))

    def _read_words(self, node: Call) -> None:
        slot, count, known = node.args
        found = self.isa.read_words(self.value(slot), count, lambda: [int(word) for word in self._of_model(known)])
        self.env.update(zip(node.results, found, strict=True))

    def _atomic_add(self, node: Call) -> None:
        counter, in_turn = node.args
        self.env[node.results[0]] = self.isa.atomic_add(self.value(counter), lambda: self._of_model(in_turn))

    def _function(self, of: Function) -> Any:
        """What the model calls: it carries out what the function's trace has."""

        def call(*fragments: Fragment, **named: Fragment) -> Any:
            self.env.update((var, values.data) for var, values in zip(of.parameters, fragments, strict=True))
            self.env.update((var, named[name].data) for name, var in of.named.items())
            self.nodes(of.nodes)
            return self.value(of.values)

        return call

    def _of_model(self, of: OfModel) -> Any:
        self.nodes(of.nodes)
        return self.value(of.values)

    def _ballot(self, node: Call) -> None:
        table, first, count, (i, entry, holds), without = node.args

        def test(at: Any, value: Any) -> Any:
            self.env[i], self.env[entry] = at, value
            return self.value(holds)

        self.env[node.results[0]] = self.isa.ballot(table, self.value(first), self.value(count), test, without)

    def value(self, x: Any) -> Any:
        return argument(x, self.number, self.isa)

    def number(self, x: Expr) -> Any:
        return evaluate(x, self.env)
