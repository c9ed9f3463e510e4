"""PTX instructions that CuTe DSL has no operation for."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int16, Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

__all__ = ["emit_ptx"]

TYPES = {"r": Int32, "l": Int64, "h": Int16, "f": Float32}  # of registers, as LLVM calls them


def emit_ptx(text: str, kinds: str, *operands: Any, words: int = 0, pure: bool = False) -> list[Int32]:
    """Emits an instruction, and returns the words that it gives.

    Args:
        text: The instruction, with $0, $1, ... for the words that it gives and then its operands.
        kinds: Of the operands' registers, such as "rl": r and f of 32 bits, l of 64, h of 16.
        operands: Numbers, or values of the IR.
        words: How many it gives, each of 32 bits.
        pure: Whether it reads and writes nothing else; otherwise it may read and write memory.
    """
    values = [TYPES[kind](operand).ir_value() for kind, operand in zip(kinds, operands, strict=True)]
    several = f"!llvm.struct<({', '.join(['i32'] * words)})>"
    found = llvm.inline_asm(
        None if words == 0 else T.i32() if words == 1 else ir.Type.parse(several),
        values,
        text,
        ",".join([*["=r"] * words, *kinds, *([] if pure else ["~{memory}"])]),
        has_side_effects=not pure,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    if words == 1:
        return [Int32(found)]
    return [Int32(llvm.extractvalue(T.i32(), found, [i])) for i in range(words)]
