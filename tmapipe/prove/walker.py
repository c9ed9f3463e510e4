"""One warp's way through a traced program, in which extents, tiles, entries of tables and counts are symbols."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tmapipe.errors import PipelineError
from tmapipe.isa.fragment import ClusterExchange, Fragment, SlotRef
from tmapipe.isa.ops import Exit
from tmapipe.model import MachineIsa
from tmapipe.model.layout import Layout
from tmapipe.program.expressions import Call, Expr, For, If, Let, Var, While, resolve
from tmapipe.prove.solver import arithmetic, skipped
from tmapipe.prove.symbols import Sym, at_least_0, leaf, parts, truth

# ---- isa -------------------------------------------------------------------------------------------------------------
#
# The instruction set by which a walker makes operations. Their stages of barriers and slots have to be plain numbers.


class Open(Exception):
    """Something that the proof does not see through, in words."""


class ProofIsa(MachineIsa):
    """The instructions of one warp, whose operations go to *emit*. Coordinates of tiles are left out."""

    def __init__(self, layout: Layout, agent: int, emit: Callable[[Any], None]):
        super().__init__(layout, agent, 0, 1, {}, emit)

    def start(self, of: Any, at: Any) -> tuple[int, ...]:
        return (0,) * len(at)

    def bar(self, barrier: Any, stage: Any) -> int:
        return super().bar(barrier, _known(stage, f"the stage of {barrier.name}"))

    def slot(self, buffer: Any, stage: Any) -> int:
        return super().slot(buffer, _known(stage, f"the slot of {buffer.name}"))

    def barrier_id(self, barrier: Any, instance: Any) -> int:
        return super().barrier_id(barrier, _known(instance, f"the instance of {barrier.name}"))

    def inside(self, fits: bool, buffer: Any, what: str) -> None:
        """Places in slots are left out, too: `tmapipe.prove.problem.outside`."""

    def plain(self, number: Any) -> Any:
        return 0 if isinstance(number, Sym) else number

    def part(self, of: Any, index: Any) -> Any:
        if isinstance(index, Sym):
            raise Open(f"part {index} of a slot of {of.name}")
        return super().part(of, index)


def _known(number: Any, what: str) -> int:
    if isinstance(number, Sym):
        raise Open(f"{what}, which is {number}")
    return number


# ---- walker ----------------------------------------------------------------------------------------------------------
#
# A walker goes on until it comes to a loop of open count, to a condition that nobody has decided, or to its end. It knows
# the numbers of its warp and of its CTA.


ANSWERS = {"atomic_add": "a counter", "ballot": "votes", "smid": "the multiprocessor"}
INLINE = 64  # iterations of a loop of known count that are taken one by one


class Walker:
    """One warp.

    queue: operations that the warp has come to and not executed. env: the values of variables. frames: where the warp is, the
    outermost block first:

        ("block", nodes, i)                     before node i of a block
        ("arm", branch, taken)                  in an arm of a branch
        ("for", loop, i, count)                 in iteration i of a loop of known count
        ("head", loop, i)                       before iteration i of a loop of open count
        ("one", loop, i)                        in iteration i of such a loop, which the warp takes by itself
        ("joint", loop, i, pace, done)          in iteration i + done of such a loop, of `pace` that are taken with other warps
        ("again", loop, i, pace, done)          before iteration i + done of these, of a `while` loop
        ("iterated",)                           behind the last of these
    """

    def __init__(self, shared: Any, agent: int):
        self.shared, self.agent = shared, agent
        self.program = shared.program
        self.rank, self.warp = shared.layout.cta_of(agent), agent % shared.layout.warps
        self.queue: deque[Any] = deque()
        self.isa = shared.isas[agent]
        self.env: dict[Any, Any] = {}
        self.reads: Any = 0  # how many words of the tile queue the warp has read
        self.frames: list[tuple[Any, ...]] = [("block", self.program.nodes, 0)]
        self.skips: list[
            tuple[str, int]
        ] = []  # (ring, slots) by which the warp's position has moved on without operations
        self.behind = False  # whether a variable has a position behind skipped slots whose number is a symbol

    def copy(self) -> Walker:
        other = copy.copy(self)
        other.queue, other.env, other.frames = deque(self.queue), dict(self.env), list(self.frames)
        other.skips = list(self.skips)
        return other

    # ---- values -----------------------------------------------------------------------------------------------------

    def number(self, x: Any, memo: dict[Any, Any] | None = None) -> Any:
        """The value of an expression."""
        if isinstance(x, Var):
            x = resolve(x)
            if isinstance(x, Var):
                return self.env.get(x)
        if not isinstance(x, Expr):
            return x
        if memo is None:
            return self._remembered(x)
        if x not in memo:
            memo[x] = self._computed(x, memo)
        return memo[x]

    def _remembered(self, x: Expr) -> Any:
        """The value of an expression, computed once for equal values of its variables."""
        on = self.shared.variables_in(x)
        key = x, self.agent, *[_exactly(self.env.get(var)) for var in on]
        values = self.shared.values
        if key not in values:
            values[key] = self._computed(x, {})
        return values[key]

    def _computed(self, x: Expr, memo: dict[Any, Any]) -> Any:
        if x.op == "symbol":
            name = x.args[0]
            if name == "rank":
                self.shared.by_rank = True
                return self.shared.layout.first_cta + self.rank
            if name == "warp":
                return self.warp
            return self.shared.symbol(x)
        if x.op == "divisor":
            return self.number(x.args[1], memo)
        if x.op == "select":
            condition = truth(self.number(x.args[0], memo))
            if not isinstance(condition, Sym):
                return self.number(x.args[1] if condition else x.args[2], memo)
        args = [self.number(a, memo) for a in x.args]
        if any(a is None for a in args):
            raise Open(f"`{x}`, of what has no number")
        return arithmetic(x.op, *args)

    def value(self, x: Any) -> Any:
        """An argument of an instruction."""
        if isinstance(x, Expr):
            return self.number(x)
        if isinstance(x, SlotRef):
            return SlotRef(x.buffer, self.number(x.stage))
        if type(x) in (tuple, list):
            return type(x)(self.value(each) for each in x)
        if type(x) is dict:
            return {n: self.value(v) for n, v in x.items()}
        if isinstance(x, Fragment):
            return Fragment(self.isa.fragments, x.layout, x.along, x.kind, None)
        if isinstance(x, ClusterExchange):
            return SimpleNamespace(rank=self.value(x.rank), mask=self.value(x.mask), peers=x.peers, full=x.full)
        return x

    # ---- going on ---------------------------------------------------------------------------------------------------

    def go_on(self, decide: Callable[[Any], bool | None]) -> tuple[Any, ...] | None:
        """Goes on to the next operations, which are then in the queue, and returns None; or returns what the warp has come to:
        ("decide", condition), ("loop", node), ("iterated",) or ("done",). decide: the outcome of a condition; None: open."""
        while not self.queue:
            if not self.frames:
                return ("done",)
            top = self.frames[-1]
            if top[0] == "head":
                return ("loop", top[1])
            if top[0] == "iterated":
                return ("iterated",)
            if top[0] == "again":
                condition = truth(self.number(top[1].condition))
                taken = decide(condition) if isinstance(condition, Sym) else condition
                if taken is None:
                    return ("decide", condition)
                self.frames.pop()
                if taken:
                    self._begin(*top[1:])
                else:
                    self.leave_loop(top[1])
                continue
            if top[0] == "block":
                nodes = top[1]
                at = self.shared.next_in(nodes)[top[2]]
                if at == len(nodes):
                    self.frames.pop()
                    self._left()
                    continue
                if at != top[2]:
                    self.frames[-1] = ("block", nodes, at)
                straight = self.shared.straight(nodes, at)
                if straight.calls:
                    self._go_straight(nodes, straight)
                    continue
                found = self._node(nodes[at], decide)
                if found is not None:
                    return found
            else:
                raise AssertionError(top[0])
        return None

    def _left(self) -> None:
        """A block is over."""
        if not self.frames:
            self.queue.append(Exit())
            return
        top = self.frames[-1]
        if top[0] == "arm":
            self.frames.pop()
            _, node, taken = top
            phis = [phi for phi in node.phis if phi[0] in self.shared.decides]
            values = [self.number(then if taken else other) for _, then, other in phis]
            self.env.update(zip((phi for phi, _, _ in phis), values, strict=True))
        elif top[0] == "for":
            _, node, i, count = self.frames.pop()
            self._next(node)
            self._iterate(node, i + 1, count)
        elif top[0] == "one":
            _, node, base = self.frames.pop()
            self._next(node)
            self.frames.append(("head", node, base + 1))
        elif top[0] == "joint":
            _, node, base, pace, done = self.frames.pop()
            self._next(node)
            if done + 1 < pace and type(node) is While:
                self.frames.append(("again", node, base, pace, done + 1))
            elif done + 1 < pace:
                self._begin(node, base, pace, done + 1)
            else:
                self.frames += [("joint", node, base, pace, done), ("iterated",)]

    def _start(self, node: Any) -> None:
        """What a loop carries takes its values before the loop."""
        self._carry(node, 1)

    def _next(self, node: Any) -> None:
        """What a loop carries takes its values after an iteration."""
        self._carry(node, 2)

    def _carry(self, node: Any, which: int) -> None:
        carried = self._followed(node)
        values = [self.number(each[which]) for each in carried]
        self.env.update(zip((phi for phi, *_ in carried), values, strict=True))

    def _followed(self, node: Any) -> list[Any]:
        """What a loop carries that decides something."""
        return self.shared.carried(node)

    def leave_loop(self, node: Any) -> None:
        """The loop is over: what it has carried has its last values."""
        for phi, _, _, after in self._followed(node):
            self.env[after] = self.env[phi]

    def _iterate(self, node: Any, i: int, count: int) -> None:
        """The i-th iteration of a loop of known count."""
        if i < count:
            self.env[node.index] = i
            self.frames += [("for", node, i, count), ("block", node.body, 0)]
        else:
            self.leave_loop(node)

    def _begin(self, node: Any, base: Any, pace: int, done: int) -> None:
        """Begins iteration number `done` of the `pace` iterations that other warps' loops are taken with."""
        if type(node) is For:
            self.env[node.index] = base + done
        self.frames += [("joint", node, base, pace, done), ("block", node.body, 0)]

    def _pass(self) -> None:
        kind, nodes, at = self.frames.pop()
        self.frames.append((kind, nodes, at + 1))

    def _node(self, node: Any, decide: Callable[[Any], bool | None]) -> tuple[Any, ...] | None:
        kind = type(node)
        if kind is Call:
            return self._call(node, decide)
        if kind is Let:  # the order of tiles gives those of the grid
            for x in self.shared.coordinates(node):
                self.shared.assume(at_least_0(self.number(x)))
            self._pass()
            return None
        elif kind is If:
            condition = truth(self.number(node.condition))
            taken = decide(condition) if isinstance(condition, Sym) else condition
            if taken is None:
                return ("decide", condition)
            self._pass()
            self.frames += [("arm", node, taken), ("block", node.then if taken else node.other, 0)]
        elif kind is For:
            count = self.number(node.count)
            self._pass()
            self._start(node)
            if isinstance(count, Sym) or count > INLINE:
                self.frames.append(("head", node, 0))
            else:
                self._iterate(node, 0, count)
        elif kind is While:
            self._pass()
            self._start(node)
            self.frames.append(("head", node, 0))
        else:
            raise Open(f"a {kind.__name__}")
        return None

    # ---- instructions -----------------------------------------------------------------------------------------------

    def _go_straight(self, nodes: list[Any], straight: Any) -> None:
        """Queues the operations of instructions one after another, up to one whose operations cannot be told."""
        key = id(straight), self.agent, *[_exactly(self.env.get(var)) for var in straight.variables]
        known = self.shared.emitted.get(key)
        if known is None:
            ops: list[Any] = []
            for at, node in straight.calls:
                on = self.shared.operands_of(node)
                one = id(node), self.agent, *[_exactly(self.env.get(var)) for var in on.variables]
                own = self.shared.emitted.get(one)
                try:
                    own = self.shared.emitted[one] = own or self._ops_of(node, *self._operands(on.found))
                except (Open, PipelineError, TypeError):
                    if not ops:
                        raise
                    break
                ops += own
                after = at + 1
            known = self.shared.emitted[key] = ops, after
        self.queue.extend(known[0])
        self.frames[-1] = ("block", nodes, known[1])

    def _call(self, node: Call, decide: Callable[[Any], bool | None]) -> tuple[Any, ...] | None:
        on = self.shared.operands_of(node)
        if on.special:
            getattr(self, on.special)(node)
            self._pass()
            return None
        key = id(node), self.agent, *[_exactly(self.env.get(var)) for var in on.variables]
        ops = self.shared.emitted.get(key)
        if ops is None:
            given, named = self._operands(on.found)
            if "when" in named:
                condition = truth(named["when"])
                named["when"] = decide(condition) if isinstance(condition, Sym) else condition
                if named["when"] is None:
                    return ("decide", condition)
            ops = self._ops_of(node, given, named)
            if "when" not in named or not isinstance(condition, Sym):
                self.shared.emitted[key] = ops
        self.queue.extend(ops)
        self._pass()
        return None

    def _ops_of(self, node: Call, given: list[Any], named: dict[str, Any]) -> list[Any]:
        """The operations of an instruction with these operands."""
        isa, name = self.isa, node.method
        if name.startswith("fragments."):
            isa, name = self.isa.fragments, name[10:]
        ops: list[Any] = []
        self.shared.emitting = ops, node
        try:
            getattr(isa, name)(*given, **named)
        except TypeError:
            if not any(isinstance(each, Sym) for each in (*given, *named.values())):
                raise
            raise Open(f"an operand of {node.method} at {node.where}") from None
        return ops

    def _operands(self, found: list[tuple[int | str, Any, bool]]) -> tuple[list[Any], dict[str, Any]]:
        given: list[Any] = []
        named: dict[str, Any] = {}
        for place, x, data in found:
            value = _nothing(x) if data else self.value(x)
            if isinstance(place, int):
                given.append(value)
            else:
                named[place] = value
        return given, named

    def instance(self, node: Call) -> tuple[Any, ...]:
        """Which execution of a node this is: the iterations of all loops around it."""
        found: list[Any] = [id(node)]
        for frame in self.frames:
            if frame[0] == "joint":
                found.append(frame[2] + frame[4])
            elif frame[0] in ("for", "one"):
                found.append(frame[2])
        return tuple(found)

    def _answer(self, node: Call) -> None:
        """An instruction gives any number: another one at each execution."""
        name = f"{ANSWERS[node.method]} of {self.shared.layout.agent_name(self.agent)}"
        self.env[node.results[0]] = leaf("answer", name, *self.instance(node))

    _atomic_add = _ballot = _smid = _answer

    def _here(self, node: Call) -> None:
        if node.results[0] in self.shared.decides:
            self.env[node.results[0]] = self.number(node.args[0])

    def _skip(self, node: Call) -> None:
        *state, ring = node.args
        slot, parity, slots = map(self.number, state)
        found = skipped(slot, parity, slots, ring.stages, ring.name)
        if found[0] is None:
            raise Open("slots of tiles that other teams take")
        self.env.update(zip(node.results, found, strict=True))
        self.skips.append((ring.name, parts(slots)[0]))
        self.behind |= isinstance(found[1], Sym)

    def _read_words(self, node: Call) -> None:
        slot, count, _ = node.args
        self.shared.emitting = self.queue, node
        self.isa.read_words(self.value(slot), count, lambda: [0] * count)
        for i, result in enumerate(node.results):
            self.env[result] = leaf("word", i, self.reads)
        self.reads += 1

    def _load_entry(self, node: Call) -> None:
        table, i, _ = node.args
        if node.results[0] not in self.shared.decides:
            return
        self.env[node.results[0]] = self.shared.entry(table, self.number(i), self, node)

    def _do_nothing(self, node: Call) -> None:
        pass

    _store_counter = _do_nothing

    def _shuffle(self, node: Call) -> None:
        self.env[node.results[0]] = self.number(node.args[0])


def _exactly(value: Any) -> Any:
    """A key that tells True from 1."""
    return (value,) if type(value) is bool else value


def _nothing(x: Any) -> Any:
    """What stands for an argument on which only data depends."""
    x = resolve(x)
    if isinstance(x, (list, tuple)) and type(x) in (list, tuple):
        return (0,) * len(x)
    return x if isinstance(x, Fragment) or x is None or not isinstance(x, Expr) else 0
