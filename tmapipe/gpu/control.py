"""Numbers and control flow in a kernel: MLIR's loops and branches, expressions, functions of fragments, PTX inline."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int16, Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, llvm, scf, vector
from cutlass.cutlass_dsl import T

from tmapipe.base.arithmetic import LOG2_E, OPERATORS
from tmapipe.isa import registering
from tmapipe.plan.rings import UNROLLED
from tmapipe.program.expressions import Expr, Var, resolve

# ---- control ---------------------------------------------------------------------------------------------------------
#
# Run-time control flow: MLIR's structured loops and branches, with the values that they carry.
#
# Carried values are numbers of CuTe DSL (`Int32`, `Boolean`, `Float32`). What a block returns has the types that the
# values before it have, or, of a branch, that the other block returns.


Carried = Sequence[Any]

TOGETHER = 8  # of a long row of copies, in a turn of the loop


def constant(value: Any) -> bool:
    """Whether a condition is known while emitting."""
    return isinstance(value, bool)


def both(a: Any, b: Any) -> Any:
    """Whether two conditions hold."""
    return (a if b else False) if constant(b) else Boolean(a) & Boolean(b)


def when(condition: Any, body: Callable[[], None]) -> None:
    """Runs *body* if *condition*, which may be known."""
    if constant(condition):
        if condition:
            body()
        return
    made = scf.IfOp(Boolean(condition).ir_value())
    with ir.InsertionPoint(made.then_block):
        body()
        scf.yield_([])


def choice(condition: Any, then: Callable[[], Carried | None], other: Callable[[], Carried | None]) -> list[Any]:
    """The result of *then* if *condition* holds, and of *other* if not. Its types are known once both are emitted."""
    made = scf.IfOp(Boolean(condition).ir_value(), has_else=True)
    branches = []
    for block, emit in ((made.then_block, then), (made.else_block, other)):
        with ir.InsertionPoint(block):
            values = list(emit() or ())
            scf.yield_(_registers(values))
        branches.append(values)
    types = [type(value) for value in branches[0]]
    if not types:
        return []
    given = [value.type for value in _registers(branches[0])]
    wider = ir.Operation.create("scf.if", given, [made.operands[0]], regions=2)
    for block, region in zip((made.then_block, made.else_block), wider.regions, strict=True):
        block.append_to(region)
    made.erase()
    return _numbers(types, wider.results)


def loop(
    trips: Any,
    body: Callable[..., Carried | None],
    carried: Carried = (),
    annotation: ir.Attribute | None = None,
    first: Any = 0,
) -> list[Any]:
    """Runs ``body(i, *values)`` for i from *first* to *trips* - 1, which returns the values of the next iteration.

    Returns:
        The values after the last one.
    """
    types = [type(value) for value in carried]
    bounds = (Int32(bound).ir_value() for bound in (first, trips, 1))
    made = scf.ForOp(*bounds, _registers(carried))
    if annotation is not None:
        made.attributes["loop_annotation"] = annotation
    with ir.InsertionPoint(made.body):
        values = body(Int32(made.induction_variable), *_numbers(types, made.inner_iter_args))
        scf.yield_(_registers(values or ()))
    return _numbers(types, made.results)


def loop_while(carried: Carried, condition: Callable[..., Any], body: Callable[..., Carried]) -> list[Any]:
    """Runs ``body(*values)``, which returns the next values, as long as ``condition(*values)``.

    Returns:
        The first values for which the condition does not hold.
    """
    types = [type(value) for value in carried]
    before = _registers(carried)
    made = scf.WhileOp([value.type for value in before], before)
    for region in (made.before, made.after):
        region.blocks.append(*(value.type for value in before))
    first, second = made.before.blocks[0], made.after.blocks[0]
    with ir.InsertionPoint(first):
        holds = condition(*_numbers(types, first.arguments))
        scf.ConditionOp(Boolean(holds).ir_value(), list(first.arguments))
    with ir.InsertionPoint(second):
        scf.yield_(_registers(body(*_numbers(types, second.arguments))))
    return _numbers(types, made.results)


def elected(call: Callable[..., object], *operands: Any, **named: Any) -> None:
    """Emits by *call* instructions that one lane of the warp executes."""
    with cute.arch.elect_one():
        call(*operands, **named)


def no_unrolling() -> ir.Attribute:
    """What keeps LLVM from unrolling a loop."""
    return ir.Attribute.parse("#llvm.loop_annotation<unroll = <disable = true, count = 1 : i32>>")


def each(count: int, body: Callable[[Any], None]) -> None:
    """Calls *body* with 0 to *count* - 1: one after another if they are few, else a few at a time in a loop at run time: one
    thread issues copies, and a loop for each takes it longer than the engine."""
    whole = count // TOGETHER if count > UNROLLED else 0

    def several(i: Any) -> None:
        for j in range(TOGETHER):
            body(i * TOGETHER + j)

    if whole:
        loop(whole, several, annotation=no_unrolling())
    for i in range(whole * TOGETHER, count):
        body(i)


def _registers(values: Carried) -> list[ir.Value]:
    return [value.ir_value() for value in values]


def _numbers(types: Sequence[type], values: Sequence[ir.Value]) -> list[Any]:
    return [of(value) for of, value in zip(types, values, strict=True)]


# ---- inline ----------------------------------------------------------------------------------------------------------
#
# PTX instructions that CuTe DSL has no operation for.


TYPES = {"r": Int32, "l": Int64, "h": Int16, "f": Float32}  # of registers, as LLVM calls them


def emit_ptx(
    text: str, kinds: str, *operands: Any, words: int = 0, pure: bool = False, ordered: bool = True
) -> list[Int32]:
    """Emits an instruction, and returns the words that it gives.

    Args:
        text: The instruction, with $0, $1, ... for the words that it gives and then for its operands.
        kinds: The kind of register of each operand, such as "rl": r and f have 32 bits, l has 64, h has 16.
        operands: Numbers, or values of the IR.
        words: How many words it gives, each of 32 bits.
        pure: Whether it reads and writes nothing else; otherwise it may read and write memory.
        ordered: If it is not pure: whether reads and writes around it keep their order with it.
    """
    values = [TYPES[kind](operand).ir_value() for kind, operand in zip(kinds, operands, strict=True)]
    several = f"!llvm.struct<({', '.join(['i32'] * words)})>"
    result = llvm.inline_asm(
        None if words == 0 else T.i32() if words == 1 else ir.Type.parse(several),
        values,
        text,
        ",".join([*["=r"] * words, *kinds, *(["~{memory}"] if ordered and not pure else [])]),
        has_side_effects=not pure,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    if words == 1:
        return [Int32(result)]
    return [Int32(llvm.extractvalue(T.i32(), result, [i])) for i in range(words)]


def exact_sum(x: Any, y: Any) -> Float32:
    """x + y in fp32. No compiler fuses this sum with a product before it, so all kernels make the same bits."""
    values = [Float32(each).ir_value() for each in (x, y)]
    text, kinds = "add.rn.f32 $0, $1, $2;", "=f,f,f"
    return Float32(
        llvm.inline_asm(T.f32(), values, text, kinds, has_side_effects=False, asm_dialect=llvm.AsmDialect.AD_ATT)
    )


# ---- emitters --------------------------------------------------------------------------------------------------------
#
# How each operation of the table is emitted: a function of the instruction set, the operation, and what data its
# instruction hands over. An mbarrier is (barrier, stage) in it, a slot a `SlotRef`.


EMITTERS: dict[type, Callable[..., Any]] = {}


emits = registering(EMITTERS)


# ---- functions -------------------------------------------------------------------------------------------------------
#
# The operations of fragments on one thread's numbers, as CuTe DSL scalars: Float32, Int32 and Boolean.


LN_2 = 0.6931471805599453
KINDS = {"fp32": Float32, "int32": Int32, "bool": Boolean}
CONDITION = bool, Boolean


def numbers_of(tensor: Any) -> list[Any]:
    """The numbers of a vector of CuTe DSL, one after another."""
    (count,), of = tensor.type.shape, tensor.dtype
    return [of(vector.extract(tensor, [], [i])) for i in range(count)]


def widened(values: Any, kind: str) -> list[Any]:
    """The numbers of a tensor in registers. Two of bf16 are the halves of a word: a shift or a mask makes fp32 of either."""
    if kind == "fp32" and values.element_type is cutlass.BFloat16 and cute.size(values) % 2 == 0:
        words = cute.recast_tensor(values, Int32)
        halves = [half for i in range(cute.size(words)) for half in (words[i] << 16, words[i] & -(1 << 16))]
        return [Float32(llvm.bitcast(T.f32(), half.ir_value())) for half in halves]
    return numbers_of(values.load().to(KINDS[kind]))


def of_numbers(name: str, *arguments: Any) -> Any:
    """The function on numbers, some of which are known only at run time."""
    if name == "where":
        condition, x, y = arguments
        return cutlass.select_(Boolean(condition), Float32(x), Float32(y))
    return FUNCTIONS[name](*(Float32(x) for x in arguments))


def choose(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y, of the same type; what CuTe DSL selects has lost it."""
    return type(x)(cutlass.select_(condition, x, y))


def sums_inside(
    some: Any,
    values: list[Any],
    holds: Callable[[int], Any],
    added: Callable[[list[Any]], list[Any]],
    else_: list[Any] | None = None,
) -> list[Any]:
    """The sums that *added* makes of values. If *some* values do not count, which is so in few warps, a value whose number
    does not *hold* is taken as 0. else_: the sums of the other warps; None: those of all values."""
    whole, zero = [Float32(value) for value in values], Float32(0.0)
    return choice(
        some,
        lambda: added([choose(holds(i), value, zero) for i, value in enumerate(whole)]),
        lambda: added(whole) if else_ is None else else_,
    )


def chosen(place: Any, limits: Sequence[tuple[str, Any]]) -> Callable[[Any, Any], Any]:
    """A function of two numbers: the first number where *place* has the relation to each of *limits*, else the second."""
    return functools.partial(choose, functools.reduce(both, [OPERATORS[name](place, limit) for name, limit in limits]))


def masked(place: Any, limits: Sequence[tuple[str, Any]], zero: Any) -> Callable[[Any, Any], Any]:
    """As `chosen`, with masks for predicates. If too many predicates of a kernel wait for their use, ptxas makes bits of a
    word of them, one after another, in all its loops: predicates of stamped loops would slow the others.
    zero: as in `GpuWarp`."""

    def pick(x: Any, other: Any) -> Any:
        kind = type(x)
        made, otherwise = (Int32(llvm.bitcast(T.i32(), kind(each).ir_value())) for each in (x, other))
        for name, limit in limits:
            text = f"{{ .reg .b32 mask; set.{name}.u32.s32 mask, $1, $2; lop3.b32 $0, mask, $3, $4, 0xCA; }}"
            (made,) = emit_ptx(text, "rrrr", place, limit + zero, made, otherwise, words=1, pure=True)
        return kind(llvm.bitcast(kind.mlir_type, made.ir_value()))

    return pick


def _abs(x: Any) -> Any:
    return choose(x < 0, -x, x) if isinstance(x, Int32) else cute.math.abs(x)


def _floordiv(x: Any, y: Any) -> Any:
    """Rounded down; the hardware's division rounds towards 0."""
    quotient, rest = _divided(x, y)
    return quotient - choose((rest != 0) & ((rest < 0) != (y < 0)), Int32(1), Int32(0))


def _mod(x: Any, y: Any) -> Any:
    """The remainder, with the sign of the divisor. The hardware's remainder has the sign of the dividend."""
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
    **OPERATORS,
    "floordiv": _floordiv,
    "mod": _mod,
    "abs": _abs,
    "invert": lambda x: x ^ True if isinstance(x, Boolean) else x ^ -1,
    "maximum": lambda x, y: choose(x > y, x, y) if isinstance(x, Int32) else cute.arch.fmax(x, y, nan=True),
    "minimum": lambda x, y: choose(x < y, x, y) if isinstance(x, Int32) else cute.arch.fmin(x, y, nan=True),
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
    "from_bits": lambda x: Float32(llvm.bitcast(T.f32(), Int32(x).ir_value())),
}


# ---- values ----------------------------------------------------------------------------------------------------------
#
# Expressions of a program become numbers of CuTe DSL in a kernel, each computed once in a block of code.


class Values:
    """Numbers of a kernel, by expression of the program. A block of code sees the numbers of the blocks around it, since its
    operations come after theirs.

    isa: gives divisors. symbols: the numbers of expressions that a launch knows.
    """

    def __init__(self, isa: Any, symbols: dict[Expr, Any]):
        self.isa, self.blocks, self.counts = isa, [dict(symbols)], set[Var]()

    def inside(self, emit: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The result of *emit*, which runs in a block of its own."""
        self.blocks.append({})
        try:
            return emit(*arguments, **named)
        finally:
            self.blocks.pop()

    def bind(self, variable: Var, value: Any, counts: bool = False) -> None:
        """Gives a variable its number from here on, in this block. counts: whether the number is never negative."""
        self.blocks[-1][variable] = value
        if counts:
            self.counts.add(variable)

    def is_count(self, value: Any) -> bool:
        """Whether an expression is seen never to be negative: then remainders need no sign."""
        value = resolve(value)
        if isinstance(value, Var):
            return value in self.counts
        if not isinstance(value, Expr):
            return value >= 0
        if value.op in ("mod", "and"):
            return any(map(self.is_count, value.args if value.op == "and" else value.args[1:]))
        first = 1 if value.op in ("select", "divisor") else 0
        return value.op == "symbol" or (value.op in _OF_COUNTS and all(map(self.is_count, value.args[first:])))

    def known(self, value: Any) -> bool:
        """Whether all variables of an expression have values here."""
        value = resolve(value)
        if not isinstance(value, Expr) or any(value in block for block in self.blocks):
            return True
        return bool(value.args) and value.op != "symbol" and all(map(self.known, value.args))

    def of(self, value: Any) -> Any:
        """The number of expression *value* here; *value* itself if it is no expression. Computed here unless a block around
        has computed it."""
        value = resolve(value)
        if not isinstance(value, Expr):
            return value
        for block in reversed(self.blocks):
            if value in block:
                return block[value]
        number = self.blocks[-1][value] = self._computed(value)
        return number

    def number(self, value: Any, to: Var | None = None) -> Any:
        """The number of *value* as a number of CuTe DSL, of the type of the variable *to*, which stays the same in a loop."""
        known = self.of(value)
        if isinstance(known, (bool, int, float)):
            known = (Boolean if isinstance(known, bool) else Int32 if isinstance(known, int) else cutlass.Float32)(
                known
            )
        return known if to is None or to.boolean else whole(known)

    def _computed(self, value: Expr) -> Any:
        if value.op == "divisor":
            return self.isa.divisors({value.args[0]: None})[value.args[0]]
        if value.op == "floordiv" and _divides(value.args[1]):
            return self.of(value.args[0]) // self.of(value.args[1])
        operands = [*map(self._operand, value.args)]
        logic = value.op in ("and", "or", "xor") and all(isinstance(each, CONDITION) for each in operands)
        if not logic and value.op not in ("not", "select"):
            operands = [*map(whole, operands)]
        if value.op == "mod" and all(map(self.is_count, value.args)):
            return operator.mod(*operands)
        return OPERATIONS[value.op](*operands)

    def _operand(self, value: Any) -> Any:
        """The number of *value* as an operand. A divisor counts as a number, except for the division by it."""
        value = resolve(value)
        return self.of(value.args[1] if _divides(value) else value)


#: Operations whose result is not negative if their operands are not.
_OF_COUNTS = {
    "add", "mul", "floordiv", "rshift", "lshift", "min", "max", "select", "next", "flipped", "divisor", "or", "xor",
}  # fmt: skip


def whole(number: Any) -> Any:
    """A condition as the number 0 or 1, as Python has it in arithmetic; CuTe DSL computes with one bit. A number as it is."""
    return Int32(number) if isinstance(number, CONDITION) else number


def _divides(value: Any) -> bool:
    value = resolve(value)
    return isinstance(value, Expr) and value.op == "divisor"


def select(condition: Any, then: Any, otherwise: Any) -> Any:
    """One of two numbers, of which both are computed."""
    if constant(condition):
        return then if condition else otherwise
    of = Boolean if isinstance(then, CONDITION) and isinstance(otherwise, CONDITION) else Int32
    return of(cutlass.select_(condition, of(then), of(otherwise)))


def _mod_of_ints(a: Any, b: Any) -> Any:
    """The remainder, with the sign of *b*, as in Python. The hardware's remainder has the sign of *a*."""
    if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
        return a & (b - 1)
    rest = a % b
    if isinstance(b, int):
        other = rest < 0 if b > 0 else rest > 0
    else:
        other = (rest != 0) & ((rest < 0) != (b < 0))
    return choose(other, rest + b, rest)


def _next(slot: Any, stages: int) -> Any:
    following = slot + 1
    return select(following == stages, 0, following)


#: One number of others, of which at least one is not known.
OPERATIONS: dict[str, Callable[..., Any]] = {
    **OPERATORS,
    "mod": _mod_of_ints,
    "abs": FUNCTIONS["abs"],
    "invert": lambda a: a ^ -1,
    "not": lambda a: a ^ True,
    "min": lambda a, b: select(a < b, a, b),
    "max": lambda a, b: select(a > b, a, b),
    "select": select,
    "next": _next,
    "flipped": lambda parity, slot, stages: select(slot + 1 == stages, parity ^ 1, parity),
}
