"""Emission: a traced program, carried out on `GpuIsa` while CuTe DSL traces the kernel."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from tmapipe.program.expressions import _FOLD, Expr, Var, resolve
from tmapipe.program.nodes import Let
from tmapipe.program.replay import _Replay


class Emission(_Replay):
    """Loops and branches are those of GpuIsa; what they carry lies in its cells, fragments in names."""

    def __init__(self, isa, env):
        super().__init__(isa, env)
        self.known = [{}]  # values that were computed, by block

    def nodes(self, nodes):
        self.known.append({})
        for node in nodes:
            if isinstance(node, Let):
                if node.value.op != "divisor" and all(self.has(a) for a in node.value.args):
                    self.number(node.value)
            else:
                getattr(self, type(node).__name__)(node)
        self.known.pop()

    def apart(self, body):
        def run(*index):
            self.known.append({})
            body(*index)
            self.known.pop()

        return run

    def has(self, x):
        x = resolve(x)
        if isinstance(x, Var):
            return x in self.env
        return not isinstance(x, Expr) or all(map(self.has, x.args)) or x.op == "symbol"

    def value(self, x):
        x = resolve(x)
        if isinstance(x, Expr):
            return self.number(x)
        return super().value(x)

    def number(self, x):
        x = resolve(x)
        if not isinstance(x, Expr) or isinstance(x, Var) or x.op in ("symbol", "divisor"):
            return self.computed(x)
        for block in self.known:
            if x in block:
                return block[x]
        found = self.known[-1][x] = self.computed(x)
        return found

    def computed(self, x):
        if not isinstance(x, Expr):
            return x
        if isinstance(x, Var) or x.op == "symbol":
            found = self.env[x]
            return found() if isinstance(found, Held) else found
        if x.op == "divisor":
            return self.isa.divisors({x.args[0]: None})[x.args[0]]
        if x.op == "floordiv" and isinstance(resolve(x.args[1]), Expr) and x.args[1].op == "divisor":
            return self.number(x.args[0]) // self.number(x.args[1])
        if x.op == "select":
            return self.isa.select(*map(self.number, x.args))
        if x.op in ("next", "turned"):
            *parity, slot, stages = map(self.number, x.args)
            following = slot + 1
            then = (parity[0] ^ 1, parity[0]) if parity else (0, following)
            return self.isa.select(following == stages, *then)
        if x.op == "mul":
            a, b = (self.plain(y) for y in x.args)
            return a * b
        if x.op in ("min", "max"):
            a, b = map(self.number, x.args)
            return self.isa.select(a < b if x.op == "min" else a > b, a, b)
        if x.op == "not":
            return self.number(x.args[0]) ^ True
        return _FOLD[x.op](*(self.plain(a) for a in x.args))

    def plain(self, x):
        x = resolve(x)
        if isinstance(x, Expr) and x.op == "divisor":
            return self.number(x.args[1])
        return self.number(x)

    def For(self, node):
        held = self.hold(node.carried)

        def body(i):
            self.env[node.index] = i
            for (phi, *_), cell in zip(node.carried, held, strict=True):
                self.env[phi] = cell()
            self.nodes(node.body)
            for cell, value in zip(held, [self.value(last) for _, _, last, _ in node.carried], strict=True):
                cell.put(value)

        self.isa.loop(self.value(node.count), self.apart(body))
        self.release(node.carried, held)

    def While(self, node):
        held = self.hold(node.carried)
        for (phi, *_), cell in zip(node.carried, held, strict=True):
            self.env[phi] = cell()
        state = self.isa.cells(self.flag(node.condition))

        def body():
            for (phi, *_), cell in zip(node.carried, held, strict=True):
                self.env[phi] = cell()
            self.nodes(node.body)
            values = [self.value(last) for _, _, last, _ in node.carried]
            for (phi, *_), cell, value in zip(node.carried, held, values, strict=True):
                cell.put(value)
                self.env[phi] = value
            state[0] = self.flag(node.condition)

        self.isa.loop_while(state, self.apart(body))
        self.release(node.carried, held)

    def flag(self, condition):
        known, self.known = self.known, [{}]  # of other values of what is carried
        found = cutlass.select_(self.value(condition), cutlass.Int32(1), cutlass.Int32(0))
        self.known = known
        return found

    def hold(self, carried):
        return [Held(self.isa, self.value(initial)) for _, initial, _, _ in carried]

    def release(self, carried, held):
        for (_, _, _, after), cell in zip(carried, held, strict=True):
            self.env[after] = cell()

    def If(self, node):
        condition = self.value(node.condition)
        if node.lane_0:
            assert not node.other
        held = []
        for _, then, other in node.phis:
            known = resolve(other)
            held.append(Held(self.isa, 0 if isinstance(known, Var) and known not in self.env else self.value(known)))

        def then():
            self.nodes(node.then)
            for (_, value, _), cell in zip(node.phis, held, strict=True):
                cell.put(self.value(value))

        def other():
            self.nodes(node.other)
            for (_, _, value), cell in zip(node.phis, held, strict=True):
                cell.put(self.value(value))

        if node.lane_0:
            self.isa.lane_0(self.apart(then), condition)
        else:
            self.isa.when(condition, self.apart(then))
            if node.other:
                self.isa.when(condition ^ True, self.apart(other))
        for (found, _, _), cell in zip(node.phis, held, strict=True):
            self.env[found] = cell()

    def _here(self, node):
        self.env[node.results[0]] = self.isa.here(self.value(node.args[0]))

    def _read_words(self, node):
        slot, count, _ = node.args
        self.env.update(zip(node.results, self.isa.read_words(self.value(slot), count, lambda: ()), strict=True))

    def _atomic_add(self, node):
        self.env[node.results[0]] = self.isa.atomic_add(self.value(node.args[0]), lambda: 0)


class Held:
    """A carried value: a number in a cell, or the data of a fragment in as many registers."""

    def __init__(self, isa, value):
        self.many = isinstance(value, list)
        if self.many:
            self.kind = type(value[0])
            self.cells = cute.make_rmem_tensor((len(value),), self.kind)
            self.put(value)
        else:
            self.cells = isa.cells(value)

    def __call__(self):
        return [self.cells[i] for i in range(self.cells.shape[0])] if self.many else self.cells[0]

    def put(self, value):
        if self.many:
            for i, each in enumerate(value):
                self.cells[i] = each
        else:
                self.cells[0] = cutlass.Int32(value)


def emit(program, isa):
    env = {}
    env[Expr.of("symbol", "warp")], env[Expr.of("symbol", "rank")] = isa.warp, isa.cta_rank
    env[Expr.of("symbol", "cluster")], env[Expr.of("symbol", "clusters")] = isa.cluster_id, isa.clusters
    for symbol, (argument, dim) in program.isa.symbols["extents"].items():
        env[symbol] = isa.extent(argument, dim)
    Emission(isa, env).nodes(program.nodes)


