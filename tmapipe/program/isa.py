"""TracingIsa: the instruction set, with its fragments, on which a kernel is traced into a program."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tmapipe.errors import PipelineError, ScopeError
from tmapipe.isa import applied, where_is
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.fragments import Fragments
from tmapipe.isa.ops import Isa
from tmapipe.model.layout import line_of_errors, locate
from tmapipe.plan.model import Syncs
from tmapipe.plan.thread_layout import AccumulatorLayout
from tmapipe.program.calls import captured
from tmapipe.program.control import Cells, Tracing
from tmapipe.program.expressions import Call, Expr, Function, Let, OfModel, Var, resolve, select, symbolic
from tmapipe.protocol.tile import Tile

# ---- reductions ------------------------------------------------------------------------------------------------------
#
# Reductions of a traced program, of which a check looks whether they find all elements of a dimension.


class Reduction(NamedTuple):
    """A reduction of a fragment of *rows* times *columns* numbers.

    along: "rows" or "columns", of which one number each is left; inside: how many elements count, a number that only the
    kernel knows; None: all.
    """

    rows: int
    columns: int
    along: str
    inside: Any


# ---- fragments -------------------------------------------------------------------------------------------------------
#
# What a traced body does with fragments is recorded. Their data are variables.


class TracingFragments(Fragments):
    """Records operations on fragments. registers: by data of a fragment, the registers a thread."""

    numbers = (("bool", (bool,)), ("int32", (int, Expr)), ("fp32", (float,)))

    def __init__(self, isa: TracingIsa):
        self.isa, self.exchanges = isa, {}
        self.registers: dict[Var, int] = {}

    def _record(self, method: str, *arguments: Any, result: str | None = "v", **named: Any) -> Any:
        results = self.isa.record(f"fragments.{method}", arguments, named, [] if result is None else [result])
        return results[0] if results else None

    def made(self, values: Fragment) -> None:
        layout = values.layout
        if isinstance(values.data, Var):
            count = 0 if layout is None or values.kind == "bool" else layout.slots(values.along)
            self.registers.setdefault(values.data, count)

    def kind_of(self, name: str, value: Any) -> str:
        return "bool" if isinstance(value, Expr) and value.boolean else super().kind_of(name, value)

    # accumulators
    def accumulator(self, matmul: Any, empty: bool = True) -> Any:
        return self._record("accumulator", matmul, empty, result=matmul.name)

    def accumulator_after(self, matmul: Any, acc: Any, values: Fragment) -> Fragment:
        data = self._record("accumulator_after", matmul, acc, values)
        return Fragment(self, values.layout, values.along, values.kind, data)

    def accumulator_columns(self, matmul: Any, acc: Any, block: int, first: int, columns: int) -> Fragment:
        data = self._record("accumulator_columns", matmul, acc, block, first, columns)
        self.registers[data] = 0  # they stay where they are
        return Fragment(self, AccumulatorLayout.of(matmul).piece(columns), "tile", matmul.b.dtype.kind, data)

    def accumulator_values(self, matmul: Any, acc: Any) -> Fragment:
        data = self._record("accumulator_values", matmul, acc)
        self.registers[data] = 0
        return Fragment(self, AccumulatorLayout.of(matmul), "tile", matmul.b.dtype.kind, data)

    def reduced_in_warp(self, values: Fragment, op: str, along: str, inside: Any = None, surely: Any = None) -> Any:
        counted, layout = inside[1] if isinstance(inside, tuple) else inside, values.layout
        if layout is not None and (counted is None or isinstance(counted, Expr)):
            reduction = Reduction(layout.rows, layout.columns, along, counted)
            self.isa.reductions.setdefault(reduction, locate())
        return super().reduced_in_warp(values, op, along, inside, surely)

    # pieces
    def columns_of(self, values: Fragment, block: int, first: int, columns: int) -> Fragment:
        assert isinstance(values.layout, AccumulatorLayout)
        data = self._record("columns_of", values, block, first, columns)
        self.registers[data] = 0
        return Fragment(self, values.layout.piece(columns), "tile", values.kind, data)

    def received(self, slot: Any, layout: Any, share: Any, shares: int) -> Fragment:
        return Fragment(self, layout, "tile", "fp32", self._record("received", slot, layout, share, shares))

    def load_joined(self, table: str, layout: Any, at: Any, gaps: Any) -> Fragment:
        data = self._record("load_joined", table, layout, at, gaps, result=table)
        return Fragment(self, layout, "tile", self.isa.plan.vectors[table].kind, data)

    def apply(self, function: Any, fragments: Any, named: Any) -> Any:
        tracer = self.isa.tracer
        rewritten = functools.update_wrapper(tracer.user(function), function)
        given = [tracer.var("x") for _ in fragments]
        by_name = {name: tracer.var(name) for name in named}
        returned: list[Any] = []

        def call() -> None:
            values = [Fragment(self, None, "tile", "fp32", x) for x in given]
            more = {name: Fragment(self, None, "tile", "fp32", x) for name, x in by_name.items()}
            returned.append(applied(rewritten, values, more))

        body = tracer.block(call)
        made = returned[0] if isinstance(returned[0], dict) else {"": returned[0]}
        for value in made.values():
            if value is not None and not isinstance(value, (Fragment, int, float, Expr)):
                text = f"{where_is(function)} returned a {type(value).__name__} in the place of what it computes"
                raise ScopeError(f"{text}. Return the value, or with further outputs a dictionary of all.")
            if isinstance(value, int) and value.bit_length() > 127:
                text = f"{where_is(function)} returned an int of more than 128 bits"
                raise ScopeError(f"{text}. Return a smaller number or a float.")
        traced = Function(getattr(function, "__name__", "epilogue"), given, by_name, body, made)
        names = [name or "v" for name in made]
        results = self.isa.record("fragments.apply", (traced, list(fragments), dict(named)), {}, names)
        outputs = {
            name: None if value is None else Fragment(self, fragments[0].layout, "tile", "fp32", result)
            for (name, value), result in zip(made.items(), results, strict=True)
        }
        return traced.of(outputs)

    # raw code
    def raw(self, gpu: Any, cpu: Any, accesses: Any, role: Any, proxy: str = "generic") -> None:
        self._record("raw", captured(gpu), captured(cpu), accesses, role, proxy, result=None)

    # registers
    def only_inside(
        self, tile: Fragment, along: str, first: Any, end: Any, surely: tuple[int, int], other: Any
    ) -> Fragment:
        register = self._record("only_inside", tile, along, first, end, surely, other)
        made = Fragment(self, tile.layout, "tile", tile.kind, register)
        del self.registers[register]  # a step of a reduction, element by element
        return made

    # data
    def convert(self, data: Any, kind: str, to: str) -> Any:
        return data if kind == to else self._record("convert", data, kind, to)

    def expand(self, layout: Any, along: str, data: Any, to: str) -> Any:
        return data if along == to or layout is None else self._record("expand", layout, along, data, to)

    def elementwise(self, name: str, operands: Any) -> Any:
        return self._record("elementwise", name, list(operands))

    def join_row_sums(self, layout: Any, sums: Any) -> Fragment:
        return Fragment(self, layout, "rows", "fp32", self._record("join_row_sums", layout, sums))


def _fragment_method(name: str, result: str | None) -> Any:
    def method(self: TracingFragments, *arguments: Any, **named: Any) -> Any:
        return self._record(name, *arguments, result=result, **named)

    return method


def _read_method(name: str) -> Any:
    """A method that reads a slot. Its arguments are recorded by position, with their defaults."""
    signature = inspect.signature(getattr(Fragments, name))

    def method(self: TracingFragments, *arguments: Any, **named: Any) -> Fragment:
        bound = signature.bind(self, *arguments, **named)
        bound.apply_defaults()
        _, slot, *rest = bound.args
        data = self._record(name, slot, *rest, result=slot.buffer.name)
        like = bound.arguments.get("index")
        if isinstance(like, Fragment):
            return Fragment(self, like.layout, like.along, slot.buffer.dtype.kind, data)
        along = "one" if name == "read_number" else bound.arguments.get("along", "tile")
        return Fragment(self, bound.arguments.get("layout"), along, slot.buffer.dtype.kind, data)

    return method


for _name in (
    "read", "read_transposed", "read_peer", "read_part", "read_joined", "read_rows_as_columns", "read_line", "read_number",
):  # fmt: skip
    setattr(TracingFragments, _name, _read_method(_name))
#: Methods that are recorded as they are called: the name of the result, or None if there is none.
_PLAIN = {
    **dict.fromkeys(("packed", "raw_weights", "widened", "operand"), "a"),
    **dict.fromkeys(
        (
            "number", "indices", "reduce_in_warp", "read_partials", "row_sums", "column_sums", "sum_parts", "join_parts",
            "scan_in_warp", "chunk_totals", "add_chunks", "swapped_pairs", "picked_of_pairs",
            "joined_pairs", "beside", "products",
        ),
        "v",
    ),
    **dict.fromkeys(
        (
            "accumulator_promote", "accumulator_scale", "write", "write_columns", "write_column_sums",
            "write_partial", "send", "send_tile", "send_partial",
        ),
        None,
    ),
}  # fmt: skip
for _name, _result in _PLAIN.items():
    setattr(TracingFragments, _name, _fragment_method(_name, _result))


# ---- isa -------------------------------------------------------------------------------------------------------------
#
# Numbers that only a launch knows are symbols: the warp, the CTA's rank, the cluster, extents.


MOST = 30_000  # instructions of a program: a loop of Python's may never end


class TracingIsa(Isa):
    """Records instructions as nodes of the tracer.

    symbols: "extents" -> (argument, dimension) by symbol; "launch" -> (function, symbols) of `launch_words`; calls: as of
    `Traced`; reductions: with the line of each; elsewhere: lines of instructions in other threads.
    """

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
        self.elsewhere: list[str] = []

    # ---- control flow ---------------------------------------------------------------------------------------------

    def cells(self, *initial: Any, names: str = "cell") -> Cells:
        several = names.split()
        several *= len(initial) if len(several) == 1 else 1
        made = Cells(self.tracer, several, [resolve(v) for v in initial])
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

    def here(self, value: Any, name: str = "here") -> Any:
        if not symbolic(value):
            return value
        variable = self.tracer.var(name)
        self.tracer.nodes.append(Call("here", (value,), {}, [variable], [], locate()))
        return variable

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
        given: list[Any] = []
        nodes = self.tracer.block(lambda: given.append(values()))
        return OfModel(nodes, given[0])

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
        symbol = Expr.of("symbol", f"{argument}.{name}")
        self.symbols["extents"][symbol] = (argument, dim)
        return symbol

    def divisors(self, values: Any) -> Any:
        return {n: Expr.of("divisor", n, v) if symbolic(v) else v for n, v in values.items()}

    # ---- operations -----------------------------------------------------------------------------------------------

    def emit(self, op: Any, *data: Any, when: Any = True) -> None:  # which stays an operand of the call
        assert self._ops is not None, op
        self._ops.append(op)

    def may_hold(self, when: Any) -> bool:
        return True  # else it is not recorded

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
        method(isa, *arguments, **named)

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
    for _name_of_part, _method in vars(_mixin).items():
        if not _name_of_part.startswith("_") and _name_of_part not in ANSWERS:
            setattr(TracingIsa, _name_of_part, _instruction(_name_of_part, _method, _name_of_part != "cp_async"))
