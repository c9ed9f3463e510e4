"""Emission: a traced program, carried out on `GpuIsa` while CuTe DSL traces the kernel.

Loops and branches of the program are those of MLIR, whose results are what they carry: a number, or the numbers of a
fragment that a thread has. Instructions are methods of `GpuIsa`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from cutlass._mlir import ir

from tmapipe.errors import InputError, ScopeError
from tmapipe.gpu import control
from tmapipe.gpu.isa import GpuIsa
from tmapipe.gpu.values import Values
from tmapipe.isa.exchange import ClusterExchange
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.values import SlotRef
from tmapipe.program.captured import Captured
from tmapipe.program.expressions import Expr
from tmapipe.program.nodes import Call, For, Function, If, Let, While
from tmapipe.program.trace import Traced

__all__ = ["emit"]


def emit(program: Traced, isa: GpuIsa) -> None:
    """Emits the program of the calling warp."""
    known = {"warp": isa.warp, "rank": isa.cta_rank, "cluster": isa.cluster_id, "clusters": isa.clusters}
    symbols = {Expr.of("symbol", name): value for name, value in known.items()}
    for symbol, (argument, dim) in program.isa.symbols["extents"].items():
        symbols[symbol] = isa.extent(argument, dim)
    if "launch" in program.isa.symbols:
        in_machine, words = program.isa.symbols["launch"]
        symbols.update(zip(words, isa.launch_words(in_machine), strict=True))
    _Emission(isa, symbols).block(program.nodes)


class _Emission:
    """A method a node."""

    def __init__(self, isa: GpuIsa, symbols: dict[Expr, Any]):
        self.isa, self.values = isa, Values(isa, symbols)

    def block(self, nodes: Sequence[Any]) -> None:
        for node in nodes:
            if isinstance(node, Let):
                self.compute(node)
            else:
                with _line(node.where):
                    NODES[type(node)](self, node)

    # ---- structure ------------------------------------------------------------------------------------------------

    def compute(self, node: Let) -> None:
        if isinstance(node.value, Expr) and node.value.op != "divisor" and self.values.known(node.value):
            self.values.of(node.value)

    def repeat(self, node: For) -> None:
        names, registers = self._entering(node.carried)

        def turn(i: Any, *now: Any) -> Any:
            self.values.bind(node.index, i, counts=True)
            names.bind(0, now)
            self.block(node.body)
            return self._next(node.carried)

        found = control.loop(self.values.of(node.count), lambda *now: self.values.inside(turn, *now), registers)
        names.bind(3, found)

    def repeat_while(self, node: While) -> None:
        names, registers = self._entering(node.carried)

        def holds(*now: Any) -> Any:
            names.bind(0, now)
            return self.values.number(node.condition)

        def turn(*now: Any) -> Any:
            names.bind(0, now)
            self.block(node.body)
            return self._next(node.carried)

        inside = self.values.inside
        found = control.loop_while(registers, lambda *now: inside(holds, *now), lambda *now: inside(turn, *now))
        names.bind(3, found)

    def branch(self, node: If) -> None:
        condition = self.values.of(node.condition)
        if node.lane_0:
            condition = control.both(self.isa.lane == 0, condition)
        if not node.phis and not node.other:
            return control.when(condition, lambda: self.values.inside(self.block, node.then))
        shapes = []

        def side(nodes: Sequence[Any], which: int) -> list[Any]:
            self.block(nodes)
            given = [self.values.number(phi[which]) for phi in node.phis]
            shapes.append([_count(each) for each in given])
            return _flat(given)

        found = control.choice(
            condition,
            lambda: self.values.inside(side, node.then, 1),
            lambda: self.values.inside(side, node.other, 2),
        )
        _Names(self.values, [(phi[0],) for phi in node.phis], shapes[0]).bind(0, found)

    def _entering(self, carried: Sequence[Any]) -> tuple[_Names, list[Any]]:
        """The variables of a loop, and the numbers with which they begin."""
        initial = [self.values.number(each[1]) for each in carried]
        return _Names(self.values, carried, [_count(each) for each in initial]), _flat(initial)

    def _next(self, carried: Sequence[Any]) -> list[Any]:
        return _flat(self.values.number(each[2]) for each in carried)

    # ---- instructions ---------------------------------------------------------------------------------------------

    def instruct(self, node: Call) -> None:
        emit = SPECIAL.get(node.method)
        if emit is not None:
            return emit(self, node)
        *of_fragments, name = node.method.split(".")
        emitter = getattr(self.isa.fragments if of_fragments else self.isa, name)
        found = emitter(*map(self.operand, node.args), **{n: self.operand(x) for n, x in node.named.items()})
        if node.method == "fragments.apply" and isinstance(found, dict):
            self._answer(node, [each.data for each in found.values()])
        elif len(node.results) == 1:
            self._answer(node, [found.data if isinstance(found, Fragment) else found])

    def _answer(self, node: Call, values: Sequence[Any]) -> None:
        for variable, value in zip(node.results, values, strict=True):
            self.values.bind(variable, value)

    def here(self, node: Call) -> None:
        (value,) = node.args
        self.values.bind(node.results[0], self.isa.here(self.values.of(value)), self.values.is_count(value))

    def skip(self, node: Call) -> None:
        slot, parity, slots, ring = node.args
        state = [self.values.of(slot), self.values.of(parity)]
        self.isa.skip(state, self.values.of(slots), ring)
        self._answer(node, state)

    def read_words(self, node: Call) -> None:
        slot, count, _ = node.args
        self._answer(node, self.isa.read_words(self.operand(slot), count, tuple))

    def atomic_add(self, node: Call) -> None:
        self._answer(node, [self.isa.atomic_add(self.values.of(node.args[0]), int)])

    def ballot(self, node: Call) -> None:
        table, first, count, (index, entry, holds), without = node.args

        def test(at: Any, value: Any) -> Any:
            self.values.bind(index, at)
            self.values.bind(entry, value)
            return self.values.of(holds)

        look = functools.partial(self.values.inside, test)
        self._answer(node, [self.isa.ballot(table, self.values.of(first), self.values.of(count), look, without)])

    def function(self, function: Function, *fragments: Fragment, **named: Fragment) -> Any:
        """What a function of fragments gives of these."""
        for variable, each in zip(function.inputs, fragments, strict=True):
            self.values.bind(variable, each.data)
        for name, variable in function.named.items():
            self.values.bind(variable, named[name].data)
        self.block(function.body)
        return function.of({name: self.operand(x) for name, x in function.outputs.items()})

    def operand(self, x: Any) -> Any:
        """An argument of an instruction, with numbers in the place of expressions."""
        if isinstance(x, Expr):
            return self.values.of(x)
        if isinstance(x, Function):
            return functools.partial(self.values.inside, self.function, x)
        if isinstance(x, Captured):
            return x.bound(self.operand)
        if isinstance(x, SlotRef):
            return SlotRef(x.buffer, self.values.of(x.stage))
        if type(x) in (tuple, list):
            return type(x)(map(self.operand, x))
        if type(x) is dict:
            return {name: self.operand(each) for name, each in x.items()}
        if isinstance(x, Fragment):
            return Fragment(self.isa.fragments, x.layout, x.along, x.kind, self.values.of(x.data))
        if isinstance(x, ClusterExchange):
            return SimpleNamespace(rank=self.values.of(x.rank), mask=self.values.of(x.mask), peers=x.peers, full=x.full)
        return x


#: How each kind of node is emitted.
NODES: dict[type, Callable[[_Emission, Any], None]] = {
    For: _Emission.repeat,
    While: _Emission.repeat_while,
    If: _Emission.branch,
    Call: _Emission.instruct,
}
#: Instructions that take a part of the program as an operand, or give what the model needs only.
SPECIAL: dict[str, Callable[[_Emission, Call], None]] = {
    name: getattr(_Emission, name) for name in ("here", "skip", "read_words", "atomic_add", "ballot")
}


class _Names:
    """Variables of a loop or branch: each a number, or a fragment of so many."""

    def __init__(self, values: Values, carried: Sequence[Any], counts: Sequence[int | None]):
        self.values, self.carried, self.counts = values, carried, counts

    def bind(self, which: int, registers: Sequence[Any]) -> None:
        rest = iter(registers)
        for each, count in zip(self.carried, self.counts, strict=True):
            self.values.bind(each[which], next(rest) if count is None else [next(rest) for _ in range(count)])


def _count(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _flat(values: Any) -> list[Any]:
    return [x for value in values for x in (value if isinstance(value, list) else (value,))]


@contextlib.contextmanager
def _line(where: str | None) -> Iterator[None]:
    """Operations and errors have the line of the body that they come from."""
    if where is None:
        yield
        return
    file, _, line = where.rpartition(":")
    with ir.Location.file(file, int(line), 0):
        try:
            yield
        except (InputError, ScopeError) as error:
            if " At " not in str(error):
                error.args = (f"{error} At {where}.",)
            raise
