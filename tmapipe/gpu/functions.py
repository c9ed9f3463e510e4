"""The operations of fragments on one thread's numbers, as CuTe DSL scalars: Float32, Int32 and Boolean."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass._mlir.dialects import arith, llvm
from cutlass.cutlass_dsl import T

from tmapipe.gpu.inline import emit_ptx

__all__ = ["FUNCTIONS", "KINDS", "choose", "of_numbers", "widened"]

LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
KINDS = {"fp32": Float32, "int32": Int32, "bool": Boolean}


def widened(values: Any, kind: str) -> list[Any]:
    """The numbers of a tensor in registers. Two of bf16 are the halves of a word: a shift or a mask makes fp32 of either."""
    if kind == "fp32" and values.element_type is cutlass.BFloat16 and cute.size(values) % 2 == 0:
        words = cute.recast_tensor(values, Int32)
        halves = [half for i in range(cute.size(words)) for half in (words[i] << 16, words[i] & -(1 << 16))]
        return [Float32(llvm.bitcast(T.f32(), half.ir_value())) for half in halves]
    wide = values.load().to(KINDS[kind])
    return [wide[i] for i in range(cute.size(values))]


def of_numbers(name: str, *arguments: Any) -> Any:
    """The function on numbers, of which some are known at run time only."""
    if name == "where":
        condition, x, y = arguments
        return cutlass.select_(Boolean(condition), Float32(x), Float32(y))
    return FUNCTIONS[name](*(Float32(x) for x in arguments))


def choose(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y, of the same type; what CuTe DSL selects has lost it."""
    return type(x)(cutlass.select_(condition, x, y))


def _maximum(x: Any, y: Any) -> Any:
    if isinstance(x, Int32):
        return choose(x > y, x, y)
    return cute.arch.fmax(x, y, nan=True)


def _minimum(x: Any, y: Any) -> Any:
    if isinstance(x, Int32):
        return choose(x < y, x, y)
    return cute.arch.fmin(x, y, nan=True)


def _abs(x: Any) -> Any:
    return choose(x < 0, -x, x) if isinstance(x, Int32) else cute.math.abs(x)


def _floordiv(x: Any, y: Any) -> Any:
    """Rounded down; the hardware's division rounds towards 0."""
    quotient, rest = _divided(x, y)
    return quotient - choose((rest != 0) & ((rest < 0) != (y < 0)), Int32(1), Int32(0))


def _mod(x: Any, y: Any) -> Any:
    """With the sign of the divisor; the hardware's has that of the dividend."""
    _, rest = _divided(x, y)
    return rest + choose((rest != 0) & ((rest < 0) != (y < 0)), y, Int32(0))


def _divided(x: Any, y: Any) -> tuple[Any, Any]:
    """The quotient, rounded towards 0, and the remainder."""
    quotient = Int32(arith.divsi(x.ir_value(), y.ir_value()))
    return quotient, x - quotient * y


def _rounded(dtype: Any) -> Callable[[Any], Any]:
    def rounded(x: Any) -> Any:
        return x.to(dtype).to(Float32)

    return rounded


def _rounded_8(dtype: Any) -> Callable[[Any], Any]:
    def rounded(x: Any) -> Any:  # conversions of 8-bit floats take vectors of 4
        four = cute.TensorSSA(cute.full((4,), x, Float32).ir_value(), (4,), Float32).to(dtype).to(Float32)
        return four[0]

    return rounded


def _to_int32(x: Any) -> Any:
    return emit_ptx("cvt.rni.s32.f32 $0, $1;", "f", x, words=1, pure=True)[0]


#: One number from numbers of the kinds that `tmapipe.isa.fragment.combine` gives.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": _floordiv,
    "mod": _mod,
    "neg": operator.neg,
    "abs": _abs,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "invert": lambda x: x ^ True if isinstance(x, Boolean) else x ^ -1,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "maximum": _maximum,
    "minimum": _minimum,
    "where": choose,
    "widen": lambda x: x,
    "exp": lambda x: cute.math.exp2(x * LOG2_E, fastmath=True),
    "exp2": lambda x: cute.math.exp2(x, fastmath=True),
    "log": lambda x: cute.math.log2(x, fastmath=True) * LN_2,
    "log2": lambda x: cute.math.log2(x, fastmath=True),
    "floor": cute.math.floor,
    "tanh": lambda x: cute.math.tanh(x, approx=True),
    "erf": cute.math.erf,
    "sqrt": lambda x: cute.math.sqrt(x, fastmath=True),
    "rsqrt": lambda x: cute.math.rsqrt(x, fastmath=True),
    "sigmoid": lambda x: cute.arch.rcp_approx(cute.math.exp2(-x * LOG2_E, fastmath=True) + 1.0),
    "to_bf16": _rounded(cutlass.BFloat16),
    "to_fp16": _rounded(cutlass.Float16),
    "to_fp8_e4m3": _rounded_8(cutlass.Float8E4M3FN),
    "to_fp8_e5m2": _rounded_8(cutlass.Float8E5M2),
    "to_int32": _to_int32,
}
