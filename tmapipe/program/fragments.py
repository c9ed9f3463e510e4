"""TracingFragments: what a traced body does with fragments, recorded. Their data are variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tmapipe.isa.fragment import Fragment, applied, check_applied
from tmapipe.isa.fragments import Fragments
from tmapipe.plan.thread_layout import AccumulatorLayout
from tmapipe.program.expressions import Expr
from tmapipe.program.nodes import Function

if TYPE_CHECKING:
    from tmapipe.program.isa import TracingIsa


class TracingFragments(Fragments):
    numbers = (("bool", (bool,)), ("int32", (int, Expr)), ("fp32", (float,)))

    def __init__(self, isa: TracingIsa):
        self.isa, self.exchanges = isa, {}

    def _record(self, method: str, *arguments: Any, result: str | None = "v", **named: Any) -> Any:
        found = self.isa.record(f"fragments.{method}", arguments, named, [] if result is None else [result])
        return found[0] if found else None

    def kind_of(self, name: str, value: Any) -> str:
        return "bool" if isinstance(value, Expr) and value.boolean else super().kind_of(name, value)

    # accumulators
    def accumulator(self, matmul: Any, empty: bool = True) -> Any:
        return self._record("accumulator", matmul, empty, result=matmul.name)

    def accumulator_promote(self, matmul: Any, acc: Any) -> None:
        self._record("accumulator_promote", matmul, acc, result=None)

    def accumulator_scale(self, matmul: Any, acc: Any, by: Fragment) -> None:
        self._record("accumulator_scale", matmul, acc, by, result=None)

    def operand(self, matmul: Any, values: Fragment) -> Any:
        return self._record("operand", matmul, values, result="a")

    def accumulator_columns(self, matmul: Any, acc: Any, block: int, first: int, columns: int) -> Fragment:
        return Fragment(self, None, "tile", matmul.b.dtype.kind, self._record("accumulator_columns", matmul, acc, block, first, columns))

    def accumulator_values(self, matmul: Any, acc: Any) -> Fragment:
        return Fragment(self, AccumulatorLayout.of(matmul), "tile", matmul.b.dtype.kind, self._record("accumulator_values", matmul, acc))

    # pieces
    def columns_of(self, values: Fragment, block: int, first: int, columns: int) -> Fragment:
        return Fragment(self, None, "tile", values.kind, self._record("columns_of", values, block, first, columns))

    def read_columns(self, matmul: Any, slot: Any, along: Any, columns: int, first: int = 0) -> Fragment:
        return Fragment(self, None, "tile", "fp32", self._record("read_columns", matmul, slot, along, columns, first))

    def received(self, slot: Any, share: Any, shares: int) -> Fragment:
        return Fragment(self, None, "tile", "fp32", self._record("received", slot, share, shares))

    def apply(self, function: Any, fragments: Any, named: Any) -> Any:
        """The function is traced on variables in the place of its fragments. A reader may call it on a part of them at a time:
        it works element by element, so the parts' results are parts of the results."""
        given = [self._variable("acc", values, "fp32") for values in fragments]
        with_names = {name: self._variable(name, values, values.kind) for name, values in named.items()}
        found: list[Any] = []
        tracer = self.isa.tracer
        nodes = tracer.block(lambda: found.append(applied(tracer.user(function), given, with_names)))
        several = found[0] if isinstance(found[0], dict) else {"v": found[0]}
        for value in several.values():
            check_applied(value, function)
        names = {name: values._data for name, values in with_names.items()}
        made = Function([values._data for values in given], names, nodes, found[0])
        kept = [name for name, value in several.items() if value is not None]
        results = self.isa.record("fragments.apply", (made, list(fragments), dict(named)), {}, kept)
        pieces = {name: Fragment(self, None, "tile", "fp32", r) for name, r in zip(kept, results, strict=True)}
        if not isinstance(found[0], dict):
            return pieces.get("v")
        return {name: pieces.get(name) for name in several}

    def _variable(self, name: str, values: Fragment, kind: str) -> Fragment:
        return Fragment(self, None, values.along, kind, self.isa.tracer.var(name))

    # slots
    def read(self, slot: Any, layout: Any, along: str = "tile") -> Fragment:
        return Fragment(self, layout, along, slot.buffer.dtype.kind, self._record("read", slot, layout, along, result=slot.buffer.name))

    def read_transposed(self, slot: Any, layout: Any) -> Fragment:
        return Fragment(self, layout, "tile", slot.buffer.dtype.kind, self._record("read_transposed", slot, layout))

    def read_peer(self, slot: Any, cta: Any, layout: Any, at: Any) -> Fragment:
        return Fragment(self, layout, "tile", slot.buffer.dtype.kind, self._record("read_peer", slot, cta, layout, at))

    def read_part(self, slot: Any, layout: Any, at: Any) -> Fragment:
        return Fragment(self, layout, "tile", slot.buffer.dtype.kind, self._record("read_part", slot, layout, at))

    def read_number(self, slot: Any, index: Any) -> Fragment:
        return Fragment(self, None, "one", slot.buffer.dtype.kind, self._record("read_number", slot, index))

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


for _name in ("number", "indices", "reduce_in_warp", "read_partials", "row_sums", "column_sums"):
    setattr(TracingFragments, _name, _fragment_method(_name, "v"))
for _name in ("write", "write_columns", "write_row_sums", "write_column_sums", "send", "send_tile", "write_partial", "send_partial", "raw"):
    setattr(TracingFragments, _name, _fragment_method(_name, None))


