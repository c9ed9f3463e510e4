"""Resources that are shared out by hand: registers and named barriers."""

from __future__ import annotations

from typing import Any

from tests.check.corpus.parts import Case, Parts, Program, program
from tests.machine.slots import read_slot, write_slot
from tmapipe.isa.fragment import SlotRef
from tmapipe.model.layout import Kind


def registers(load: int, math: int) -> Program:
    """Three warpgroups launched with 168 registers a thread: the loader's gives some back, the two others take *math*."""
    parts = Parts(launch_registers=168)
    parts.role("load", 4)
    parts.role("math", 8)
    bodies = {
        "load": lambda isa: isa.setmaxnreg(load, increase=False),
        "math": lambda isa: isa.setmaxnreg(math, increase=True),
    }
    return program(parts.plan(), bodies, 1)


# What the warpgroups ask for is more than the CTA was launched with: 40 + 2 * 240 > 3 * 168.
CUTLASS_2007 = Case(
    "cutlass#2007",
    bad=(registers(40, 240),),
    wanted=frozenset({Kind.REGISTERS}),
    says=(r"520|504|240",),
    fixed=(registers(24, 240), registers(40, 232)),
)


def named_barriers(first: int, second: int) -> Program:
    """Two pairs of warps that exchange data, each pair through a buffer and a named barrier of its own."""
    parts = Parts()
    left, right = parts.role("left", 2), parts.role("right", 2)
    barriers = {"left": parts.named("left.sync", first, 64), "right": parts.named("right.sync", second, 64)}
    buffers = {"left": parts.buffer("left.data"), "right": parts.buffer("right.data")}

    def exchange(role: Any) -> Any:
        def body(isa: Any) -> None:
            for _ in range(3):
                write_slot(isa, SlotRef(buffers[role.name], 0), 0.0, role)
                isa.named_barrier_sync(barriers[role.name])
                read_slot(isa, SlotRef(buffers[role.name], 0), role)
                isa.named_barrier_sync(barriers[role.name])

        return body

    return program(parts.plan(), {"left": exchange(left), "right": exchange(right)}, 1)


# A kernel's barrier ids ran past 15, or met those of another group of warps.
FLASHINFER_4533 = Case(
    "flashinfer#4533",
    bad=(named_barriers(1, 16), named_barriers(3, 3)),
    wanted=frozenset({Kind.NAMED_BARRIER}),
    says=(r"(left|right)\.sync",),
    fixed=(named_barriers(1, 15),),
)

CASES = (CUTLASS_2007, FLASHINFER_4533)
