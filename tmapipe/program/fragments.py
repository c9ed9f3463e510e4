"""TracingFragments: what a traced body does with fragments, recorded. Their data are variables."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tmapipe.isa.fragment import Fragment, applied
from tmapipe.isa.fragments import Fragments
from tmapipe.plan.thread_layout import AccumulatorLayout
from tmapipe.program.expressions import Expr

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
        rewritten = functools.update_wrapper(self.isa.tracer.user(function), function)
        found: list[Any] = []
        self.isa.tracer.block(lambda: found.append(applied(rewritten, [self._fp32(f) for f in fragments], named)))
        made = found[0]
        if isinstance(made, dict):
            names = list(made)
            results = self.isa.record("fragments.apply", (function, list(fragments), dict(named)), {}, names)
            return {n: None if made[n] is None else Fragment(self, None, "tile", "fp32", r) for n, r in zip(names, results, strict=True)}
        (result,) = self.isa.record("fragments.apply", (function, list(fragments), dict(named)), {}, ["v"])
        return Fragment(self, None, "tile", "fp32", result)

    def _fp32(self, values: Fragment) -> Fragment:
        return Fragment(self, None, "tile", "fp32", values.data)

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


