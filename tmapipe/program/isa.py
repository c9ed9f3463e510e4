"""TracingIsa: the instruction set with which a kernel is traced, once, into a program.

What only a launch knows is a symbol: the warp, the CTA's rank, the cluster, extents.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tmapipe.errors import PipelineError, ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import SlotRef
from tmapipe.machine.locate import line_of_errors, locate
from tmapipe.plan.syncs import Syncs
from tmapipe.program.control import Cells, Tracing
from tmapipe.program.expressions import Expr, resolve, select, symbolic
from tmapipe.program.fragments import TracingFragments
from tmapipe.program.nodes import Call, Let, OfModel
from tmapipe.protocol.tile import Tile

MOST = 30_000  # instructions of a program: a loop of Python's may never end


class BarRef(tuple):
    """(barrier, stage) in the place of a flat number."""


class TracingIsa(Isa):
    def __init__(self, plan: Any, tracer: Tracing):
        self.plan, self.tracer, self.syncs = plan, tracer, Syncs(plan)
        self.warp = Expr.of("symbol", "warp")
        self.cta_rank = Expr.of("symbol", "rank") if plan.cluster_size > 1 else 0
        self.cluster_id, self.clusters = Expr.of("symbol", "cluster"), Expr.of("symbol", "clusters")
        self.fragments = TracingFragments(self)
        self.symbols: dict[str, Any] = {"extents": {}}
        self.calls: dict[int, Any] = {}
        self.reductions: dict[Any, str | None] = {}
        self.recorded = 0
        self._ops: list[Any] | None = None
        self.thread = threading.get_ident()
        self.elsewhere: list[str] = []  # lines of instructions in other threads

    # ---- control flow ---------------------------------------------------------------------------------------------

    def cells(self, *initial: Any) -> Cells:
        names = _cell_names(sys._getframe(1), len(initial))
        made = Cells(self.tracer, names, [resolve(v) for v in initial])
        self.tracer.cells.append(weakref.ref(made))
        return made

    def follow(self, part: Any) -> None:
        self.tracer.follow(part)

    def select(self, condition: Any, then: Any, otherwise: Any) -> Any:
        return select(condition, then, otherwise)

    def advance(self, state: Any, stages: int, parity: bool = True) -> None:
        if parity:
            state[1] = Expr.of("flipped", state[1], state[0], stages)
        state[0] = Expr.of("next", state[0], stages)

    def skip(self, state: Any, slots: Any, ring: Any) -> None:
        state[0], state[1] = self.record("skip", (state[0], state[1], slots, ring), {}, state.names)

    def here(self, value: Any) -> Any:
        if not symbolic(value):
            return value
        name = _here_name(sys._getframe(1))
        found = self.tracer.var(name)
        self.tracer.nodes.append(Call("here", (value,), {}, [found], [], locate()))
        return found

    def when(self, condition: Any, body: Any) -> None:
        body = self.tracer.user(body)
        if symbolic(condition):
            self.tracer.when(condition, body)
        elif condition:
            body()

    def lane_0(self, body: Any, when: Any = True) -> None:
        self.tracer.when(when, self.tracer.user(body), lane_0=True)

    def loop(self, trips: Any, body: Any) -> None:
        self.tracer.loop(trips, self.tracer.user(body))

    def loop_while(self, state: Any, body: Any, iterations: Any = None) -> None:
        often = None if iterations is None else self._of_model(iterations)
        self.tracer.loop_while(state, self.tracer.user(body), often)

    def _of_model(self, values: Callable[[], Any]) -> OfModel:
        found: list[Any] = []
        nodes = self.tracer.block(lambda: found.append(values()))
        return OfModel(nodes, found[0])

    def block(self) -> Any:
        return tuple(self.tracer.path)

    def call(self, body: Any, *arguments: Any) -> None:
        nodes, first = self.tracer.nodes, len(self.tracer.nodes)
        tile = next((each for each in arguments if isinstance(each, Tile)), None)
        if tile is not None:
            nodes.append(Let(tile))
        with line_of_errors():
            self.tracer.user(body, top=True)(*arguments)
            self._check_thread()
        if len(nodes) > first:
            self.calls[id(nodes[first])] = nodes[first], nodes[-1], tile

    def evaluate(self, function: Any, *arguments: Any) -> Any:
        with line_of_errors():
            return self.tracer.user(function)(*arguments)

    def extent(self, argument: str, dim: int) -> Any:
        name = self.plan.dims[argument][dim]
        relation = next((each for each in self.plan.relations if each.name == name), None)
        if relation is not None and relation.size is not None:
            return relation.size
        found = Expr.of("symbol", f"{argument}.{name}")
        self.symbols["extents"][found] = (argument, dim)
        return found

    def divisors(self, values: Any) -> Any:
        return {n: Expr.of("divisor", n, v) if symbolic(v) else v for n, v in values.items()}

    # ---- operations -----------------------------------------------------------------------------------------------

    def emit(self, op: Any) -> None:
        assert self._ops is not None, op
        self._ops.append(op)

    def bar(self, barrier: Any, stage: Any) -> Any:
        return BarRef((barrier, stage))

    def slot(self, buffer: Any, stage: Any) -> Any:
        return SlotRef(buffer, stage)

    def start(self, of: Any, at: Any) -> Any:
        return tuple(at)

    def part(self, of: Any, index: Any) -> Any:
        return index

    def plain(self, number: Any) -> Any:
        return number

    def barrier_id(self, barrier: Any, instance: Any) -> Any:
        return barrier.id + instance

    def _check_thread(self) -> None:
        """Raises `ScopeError` if another thread has used an instruction, in that thread too."""
        if threading.get_ident() != self.thread:
            self.elsewhere.append(locate() or "")
        if self.elsewhere:
            text = f"a thread that a body has started uses k or what it gives, at {self.elsewhere[0]}"
            raise ScopeError(f"{text}. A body is what each warp does: leave threads out of it.")

    def record(self, method: str, arguments: Any, named: Any, results: Any = (), lower: Any = None) -> Any:
        self._check_thread()
        ops: list[Any] = []
        self._ops = ops
        if lower is not None:
            lower(self, *arguments, **named)
        self._ops = None
        self.recorded += 1
        if self.recorded > MOST:
            error = PipelineError(f"stopped after tracing {MOST} instructions (max_steps), at {locate()}")
            error.where = locate()
            raise error
        made = [self.tracer.var(r) for r in results]
        self.tracer.nodes.append(Call(method, arguments, named, made, ops, locate()))
        return made

    # what answers

    def read_words(self, slot: Any, count: int, without_data: Any) -> Any:
        return self.record("read_words", (slot, count, self._of_model(without_data)), {}, ["word"] * count)

    def load_entry(self, table: str, i: Any, without_data: int) -> Any:
        return self.record("load_entry", (table, i, without_data), {}, [table])[0]

    def shuffle(self, value: Any) -> Any:
        return self.record("shuffle", (value,), {}, ["shared"])[0]

    def launch_words(self, in_machine: Callable[[int], Sequence[int]]) -> Sequence[Any]:
        """A symbol for each word, which the reader asks its own instruction set for."""
        if "launch" not in self.symbols:
            words = [Expr.of("symbol", f"launch.{i}") for i in range(len(in_machine(1)))]
            self.symbols["launch"] = in_machine, words
        return self.symbols["launch"][1]

    def smid(self) -> Any:
        return self.record("smid", (), {}, ["smid"])[0]

    def atomic_add(self, counter: Any, in_turn: Any) -> Any:
        return self.record("atomic_add", (counter, self._of_model(in_turn)), {}, ["taken"])[0]

    def ballot(self, table: str, first: Any, count: Any, holds: Any, without_data: int) -> Any:
        i, entry = self.tracer.var("j"), self.tracer.var("entry")
        return self.record("ballot", (table, first, count, (i, entry, holds(i, entry)), without_data), {}, ["votes"])[0]


ANSWERS = {"read_words", "load_entry", "shuffle", "smid", "atomic_add", "ballot", "lane_0", "launch_words"}


def _instruction(name: str, method: Any, lowered: bool) -> Any:
    signature = inspect.signature(method)

    def lower(isa: TracingIsa, *arguments: Any, **named: Any) -> None:
        bound = signature.bind(isa, *arguments, **named)
        if symbolic(bound.arguments.get("when")):
            bound.arguments["when"] = True  # stays an operand of the call: one predicate with that of the lane
        method(*bound.args, **bound.kwargs)

    def instruct(self: TracingIsa, *arguments: Any, **named: Any) -> None:
        bound = signature.bind(self, *arguments, **named)
        when = bound.arguments.get("when", True)
        if not symbolic(when) and not when:
            return
        if "when" in bound.arguments:  # by name
            bound.apply_defaults()
            before = list(signature.parameters)[: list(signature.parameters).index("when")]
            named = {n: v for n, v in bound.arguments.items() if n not in ("self", *before)}
            arguments = tuple(bound.arguments[n] for n in before if n != "self")
        self.record(name, arguments, named, lower=lower if lowered else None)

    return instruct


for _mixin in Isa.__bases__:
    for _name, _method in vars(_mixin).items():
        if not _name.startswith("_") and _name not in ANSWERS:
            setattr(TracingIsa, _name, _instruction(_name, _method, _name != "cp_async"))


def _cell_names(frame: Any, count: int) -> list[str]:
    """What cells are called in the listing: by who makes them."""
    own, local = frame.f_locals.get("self"), frame.f_code.co_name
    ring, plan = getattr(own, "__dict__", {}).get("ring"), getattr(own, "__dict__", {}).get("plan")
    if ring is not None:
        of_slots = "held" not in vars(own) and not hasattr_(own, "state")
        return [f"{ring.name}.slot", f"{ring.name}.parity"] if of_slots else [f"{ring.name}.held"] * count
    if local == "each" and count == len(getattr(own, "dims", ())):
        return [f"tile.{d}" for d in own.dims]
    base = getattr(plan, "name", None) or type(own).__name__.lower() if own is not None else local
    if (
        hasattr_(own, "barrier")
        and hasattr(own.barrier, "name")
        and local == "__init__"
        and "Turnstile" in type(own).__name__
    ):
        return [own.barrier.name + ".parity"]
    if type(own).__name__ == "QueueEnd":
        return ["queue.slot", "queue.parity"]
    if type(own).__name__ == "BoundStore":
        return [f"{getattr(plan, 'name', local)}.buffer"]
    return [f"{base}.{i}" for i in range(count)] if count > 1 else [base]


def hasattr_(own: Any, name: str) -> bool:
    return name in getattr(own, "__dict__", {})


def _here_name(frame: Any) -> str:
    own, value = frame.f_locals.get("self"), frame.f_locals.get("value")
    if value is not None and hasattr(own, "first") is False and hasattr(own, "count"):
        return "first"
    return "tiles" if type(own).__name__ in ("NumberedTiles",) else "here"
