"""What ptxas notes while it assembles a kernel: wgmmas that it serializes, registers that it uses and spills."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from tmapipe.errors import InputError
from tmapipe.plan.model import Plan

__all__ = ["Resources", "check_notes", "options_for"]

#: Notes C7510 to C7519: wgmmas are serialized, or fences and waits for them are put in.
_WGMMA = re.compile(r"\(C751\d\)[^\n]*")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers")
REST = 32  #: registers a thread that a role needs beside sums and fragments, about
MANY = 32  #: copies of boxes a slot whose addresses may take more


@attrs.frozen
class Resources:
    """Args:
    registers: per thread, at launch
    spill_bytes: local memory per thread: spilled registers and arrays
    shared_bytes: shared memory per CTA
    """

    registers: int
    spill_bytes: int
    shared_bytes: int


def options_for(file: Path) -> str:
    """Options of CuTe DSL's compiler that write the notes to *file*."""
    return f"--remark-output={file} --remark-filter=ptxas"


def check_notes(plan: Plan, file: Path, held: Callable[[], Mapping[str, tuple[int, str]]] = dict) -> Resources | None:
    """What the kernel uses; None if the file is not there. Warns of spilled registers.

    Args:
        held: Returns, by role, how many registers a thread its fragments need at once, and the line.

    Raises:
        InputError: If ptxas serializes wgmmas, or waits for them where the kernel does not.
    """
    text = file.read_text() if file.exists() else ""
    found = _WGMMA.search(text)
    if found:
        note = re.split(r" in function |in the function", found[0])[0].strip()
        rule = "is what ptxas does where registers of a matmul in flight are used: its matmuls run one after another"
        fix = "use an accumulator, or what was given to start() from registers, after .wait(), and start in one block of code"
        raise InputError(f"compile of {plan.name}", note, rule, fix)
    if not _USED.search(text):
        return None
    used = int(_USED.findall(text)[-1])
    memory = _MEMORY.findall(text)  # of the kernel, and of functions that it calls
    frame, spilled = (max(int(each[i]) for each in memory) for i in range(2))
    if spilled:
        warnings.warn(
            f"{plan.name}: ptxas spills {spilled} bytes of registers a thread to local memory.{_reason(plan, held(), used)}",
            RuntimeWarning,
            stacklevel=2,
        )
    return Resources(used, frame, plan.smem_bytes)


def _reason(plan: Plan, held: Mapping[str, tuple[int, str]], used: int) -> str:
    """What the role holds whose registers are short by most, or nearest to it, or how many boxes one loads; and what to do.

    Args:
        used: Registers a thread at launch.
    """
    found = (0, "")
    for role in plan.roles:
        has = plan.registers.get(role.first_warp // 4, used)
        needs = {f"for {m.name}": sum(m.registers) for m in plan.matmuls if m.first_warp == role.first_warp}
        if role.name in held:
            count, line = held[role.name]
            needs[f"for fragments at {line}"] = count
        text = ", ".join(f"{count} {what}" for what, count in needs.items())
        if needs:
            text = f" Role {role.name}, with {has} registers a thread, holds {text} (see explain())."
            found = max(found, (sum(needs.values()) - has + 256, text))
    copies = max((_copies(plan, role.name), role.name) for role in plan.roles)
    if copies[0] >= MANY and found[0] <= 256 - REST:
        return (
            f" Role {copies[1]} loads {copies[0]} boxes a slot, and each one's coordinates take registers. Use "
            "smaller tiles, or a BulkLoadStage, which loads a tile at once."
        )
    return found[1] + " Use smaller tiles, more warps, or Role(registers=)."


def _copies(plan: Plan, role: str) -> int:
    """Boxes that the role loads into a slot, at most."""
    boxes = {x.name: math.prod(x.buffer.tile) // (x.peers * math.prod(x.box)) for x in plan.loads if x.tensor_map}
    return max(sum(boxes.get(name, 0) for name in ring.loads.get(role, ())) for ring in plan.rings)
