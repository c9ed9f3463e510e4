"""PTX instructions that CuTe DSL has no operation for."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int16, Int32, Int64
from cutlass._mlir.dialects import llvm

__all__ = ["emit_ptx"]

TYPES = {"r": Int32, "l": Int64, "h": Int16, "f": Float32}  # of registers, as LLVM calls them


def emit_ptx(text: str, kinds: str, *operands: Any) -> None:
    """Emits an instruction without a result, which may read and write memory.

    Args:
        text: The instruction, with $0, $1, ... for its operands.
        kinds: Of their registers, such as "rl": r and f of 32 bits, l of 64, h of 16.
        operands: Numbers, or values of the IR.
    """
    values = [TYPES[kind](operand).ir_value() for kind, operand in zip(kinds, operands, strict=True)]
    llvm.inline_asm(
        None,
        values,
        text,
        f"{','.join(kinds)},~{{memory}}",
        has_side_effects=True,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
