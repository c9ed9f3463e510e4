"""Which bytes of an operand's slots each thread reads, by the emitted PTX executed, against wgmma's accumulator layout."""

import re

import pytest

from tests.emit.kernels import EPILOGUES, built, swept
from tests.oracle.ptx_execution import BASE, Execution
from tests.oracle.ptx_launch import Launch
from tmapipe.plan.thread_layout import AccumulatorLayout

NAMES = [name for name in swept(EPILOGUES) if "with operands" in name]


class Reads(Execution):
    """Notes the bytes of every ``ld.shared``, and the row of 8 numbers of 16 bits that a lane names to ``ldmatrix``."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.read = set()

    def step(self, i, action):
        if i.is_a("ldmatrix"):
            start = self.address(i.operands[1]) - BASE
            self.read |= set(range(start, start + 16))
        elif i.opcode.startswith("ld.shared"):
            match = re.fullmatch(r"ld\.shared(?:\.v(\d))?\.\w(\d+)", i.opcode)
            assert match, i.opcode
            start = self.address(i.operands[1]) - BASE
            self.read |= set(range(start, start + int(match[1] or 1) * int(match[2]) // 8))
        super().step(i, action)


def expected(schedule, plan, warp, lane):
    """Bytes of all slots (PTX ISA, wgmma accumulator: lane i has columns 2 (i % 4) + {0, 1} of each 8, of rows i / 4 and
    i / 4 + 8 of each warp's 16)."""
    matmul, width = plan.matmuls[0], schedule.operands.width
    rows = [64 * AccumulatorLayout.of(matmul).group(warp) + 16 * (warp % 4) + lane // 4 + half for half in (0, 8)]
    columns = [8 * eight + 2 * (lane % 4) + i for eight in range(width // 8) for i in (0, 1)]
    of = {"m": rows, "n": columns} if schedule.mainloop.along == "m" else {"m": columns, "n": rows}
    found = set()
    for name, places in {
        "c": [(row, column) for row in of["m"] for column in of["n"]],
        "bias": [(0, column) for column in of["n"]],
        "scale": [(0, row) for row in of["m"]],
        "alpha": [(0, 0)],
    }.items():
        buffer = plan.buffer(name)
        for stage in range(buffer.stages):
            for row, column in places:
                at, size = column * buffer.dtype.bytes, buffer.dtype.bytes
                if name == "c":  # column blocks of one swizzle span; 16-byte units are exchanged by the row within 8
                    span = buffer.swizzle
                    block, inside = divmod(at, span)
                    at = (block * buffer.tile[0] + row) * span + inside
                    at ^= (at >> 7 & (span // 16 - 1)) << 4
                start = buffer.offset + stage * buffer.pitch + at
                found |= set(range(start, start + size))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_bytes_read(name):
    kernel = built(name)
    role = kernel.plan.role("math")
    for warp in (role.first_warp, role.first_warp + role.warps - 1):
        together = "ldmatrix" in kernel.compiled.ptx  # lanes name rows for each other
        read, wanted = set(), set()
        for lane in range(32) if together else (0, 5, 31):
            thread = Reads(kernel.ptx, kernel.schedule, Launch(kernel.extents, 4), warp, lane)
            thread.run()
            read |= thread.read
            wanted |= expected(kernel.schedule, kernel.plan, warp, lane)
            assert together or thread.read == wanted, lane
            if not together:
                read, wanted = set(), set()
        assert read == wanted


@pytest.mark.parametrize("name", NAMES)
def test_no_spills(name):
    assert built(name).compiled.resources.spill_bytes == 0
