"""PTX instructions that CuTe DSL has no operation for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass._mlir.dialects import llvm

__all__ = ["emit_ptx"]


def emit_ptx(text: str, kinds: str, operands: Sequence[Any]) -> None:
    """Emits an instruction without a result, which may read and write memory.

    Args:
        text: The instruction, with $0, $1, ... for its operands.
        kinds: Of their registers, as LLVM has it, such as "r,l": r and f of 32 bits, l of 64, h of 16.
        operands: Values of the IR.
    """
    llvm.inline_asm(
        None,
        operands,
        text,
        f"{kinds},~{{memory}}",
        has_side_effects=True,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
