"""TracingFragments: what a traced body does with fragments, recorded. Their data are variables."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tmapipe.errors import ScopeError
from tmapipe.isa.fragment import Fragment, applied, where_is
from tmapipe.isa.fragments import Fragments
from tmapipe.machine.locate import locate
from tmapipe.plan.thread_layout import AccumulatorLayout
from tmapipe.program.captured import captured
from tmapipe.program.expressions import Expr, Var
from tmapipe.program.nodes import Function
from tmapipe.program.reductions import Reduction

if TYPE_CHECKING:
    from tmapipe.program.isa import TracingIsa


class TracingFragments(Fragments):
    numbers = (("bool", (bool,)), ("int32", (int, Expr)), ("fp32", (float,)))

    def __init__(self, isa: TracingIsa):
        self.isa, self.exchanges = isa, {}
        self.registers: dict[Var, int] = {}  # of a thread, by the data of fragments

    def _record(self, method: str, *arguments: Any, result: str | None = "v", **named: Any) -> Any:
        found = self.isa.record(f"fragments.{method}", arguments, named, [] if result is None else [result])
        return found[0] if found else None

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

    def accumulator_promote(self, matmul: Any, acc: Any) -> None:
        self._record("accumulator_promote", matmul, acc, result=None)

    def accumulator_scale(self, matmul: Any, acc: Any, by: Fragment) -> None:
        self._record("accumulator_scale", matmul, acc, by, result=None)

    def packed(self, matmul: Any, values: Fragment) -> Any:
        return self._record("packed", matmul, values, result="a")

    def operand(self, matmul: Any, values: Fragment) -> Any:
        return self._record("operand", matmul, values, result="a")

    def accumulator_columns(self, matmul: Any, acc: Any, block: int, first: int, columns: int) -> Fragment:
        data = self._record("accumulator_columns", matmul, acc, block, first, columns)
        return Fragment(self, None, "tile", matmul.b.dtype.kind, data)

    def accumulator_values(self, matmul: Any, acc: Any) -> Fragment:
        data = self._record("accumulator_values", matmul, acc)
        self.registers[data] = 0  # they stay where they are
        return Fragment(self, AccumulatorLayout.of(matmul), "tile", matmul.b.dtype.kind, data)

    def reduce(self, values: Fragment, op: str, along: str, inside: Any = None, surely: Any = None) -> Fragment:
        counted, layout = inside[1] if isinstance(inside, tuple) else inside, values.layout
        if layout is not None and (counted is None or isinstance(counted, Expr)):
            found = Reduction(layout.rows, layout.columns, along, counted)
            self.isa.reductions.setdefault(found, locate())
        return super().reduce(values, op, along, inside, surely)

    # pieces
    def columns_of(self, values: Fragment, block: int, first: int, columns: int) -> Fragment:
        return Fragment(self, None, "tile", values.kind, self._record("columns_of", values, block, first, columns))

    def read_columns(self, matmul: Any, slot: Any, along: Any, columns: int, first: int = 0) -> Fragment:
        return Fragment(self, None, "tile", "fp32", self._record("read_columns", matmul, slot, along, columns, first))

    def received(self, slot: Any, share: Any, shares: int) -> Fragment:
        return Fragment(self, None, "tile", "fp32", self._record("received", slot, share, shares))

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
        found = {
            name: None if value is None else Fragment(self, None, "tile", "fp32", result)
            for (name, value), result in zip(made.items(), results, strict=True)
        }
        return traced.of(found)

    # slots
    def read(self, slot: Any, layout: Any, along: str = "tile") -> Fragment:
        data = self._record("read", slot, layout, along, result=slot.buffer.name)
        return Fragment(self, layout, along, slot.buffer.dtype.kind, data)

    def read_transposed(self, slot: Any, layout: Any) -> Fragment:
        return Fragment(self, layout, "tile", slot.buffer.dtype.kind, self._record("read_transposed", slot, layout))

    def read_peer(self, slot: Any, cta: Any, layout: Any, at: Any) -> Fragment:
        return Fragment(self, layout, "tile", slot.buffer.dtype.kind, self._record("read_peer", slot, cta, layout, at))

    def read_part(self, slot: Any, layout: Any, at: Any, pitch: int = 0) -> Fragment:
        return Fragment(
            self, layout, "tile", slot.buffer.dtype.kind, self._record("read_part", slot, layout, at, pitch)
        )

    def read_columns_from(self, slot: Any, layout: Any, first: Any) -> Fragment:
        found = self._record("read_columns_from", slot, layout, first, result=slot.buffer.name)
        return Fragment(self, layout, "columns", slot.buffer.dtype.kind, found)

    def read_number(self, slot: Any, index: Any) -> Fragment:
        return Fragment(self, None, "one", slot.buffer.dtype.kind, self._record("read_number", slot, index))

    # raw code
    def raw(self, gpu: Any, cpu: Any, accesses: Any, role: Any, proxy: str = "generic") -> None:
        self._record("raw", captured(gpu), captured(cpu), accesses, role, proxy, result=None)

    # registers
    def only_inside(
        self, tile: Fragment, along: str, first: Any, end: Any, surely: tuple[int, int], other: Any
    ) -> Fragment:
        found = self._record("only_inside", tile, along, first, end, surely, other)
        made = Fragment(self, tile.layout, "tile", tile.kind, found)
        del self.registers[found]  # a step of a reduction, element by element
        return made

    # data
    def convert(self, data: Any, kind: str, to: str) -> Any:
        return data if kind == to else self._record("convert", data, kind, to)

    def expand(self, layout: Any, along: str, data: Any, to: str) -> Any:
        return data if along == to or layout is None else self._record("expand", layout, along, data, to)

    def elementwise(self, name: str, operands: Any) -> Any:
        return self._record("elementwise", name, list(operands))


def _fragment_method(name: str, result: str | None) -> Any:
    def method(self: TracingFragments, *arguments: Any, **named: Any) -> Any:
        return self._record(name, *arguments, result=result, **named)

    return method


for _name in (
    "number",
    "indices",
    "reduce_in_warp",
    "read_partials",
    "row_sums",
    "column_sums",
    "sum_parts",
    "join_parts",
    "scan_in_warp",
    "chunk_totals",
    "chunks_before",
    "add_chunks",
    "swapped_pairs",
    "picked_of_pairs",
    "joined_pairs",
):
    setattr(TracingFragments, _name, _fragment_method(_name, "v"))
_WRITES = ("write", "write_columns", "write_row_sums", "write_column_sums", "write_partial")
for _name in (*_WRITES, "send", "send_tile", "send_partial"):
    setattr(TracingFragments, _name, _fragment_method(_name, None))
