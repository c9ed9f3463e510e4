"""Accesses of shared memory as `explain()` counts them, beside those of the emitted PTX, lane by lane."""

import re
from collections import Counter

import pytest

from tests.emit.kernels import built
from tests.oracle.ptx_execution import BASE, Execution
from tests.oracle.ptx_launch import Launch
from tests.sweeps import ALL
from tmapipe.model.elements import indices_of
from tmapipe.plan.thread_layout import vectors_of
from tmapipe.program import trace
from tmapipe.program.explain import fragments_need, times, touched_by


class Touching(Execution):
    """Notes where each instruction on shared memory goes, when it is first executed."""

    def step(self, instruction, action):
        if instruction.is_a(
            "ld.shared", "st.shared", "stmatrix", "cp.async.ca", "cp.async.cg"
        ) and not instruction.is_a("st.shared.b64"):
            at = next(operand for operand in instruction.operands if operand.startswith("["))
            self.touched.setdefault(instruction.line, (width_of(instruction), self.address(at) - BASE))
        action(self)


def width_of(instruction):
    """Bytes of a lane."""
    if instruction.is_a("cp.async"):
        return int(instruction.operands[2])
    if instruction.is_a("stmatrix"):
        return 16
    count, bits = re.fullmatch(r".*?(?:\.v(\d))?\.[bsuf](\d+)", instruction.opcode).groups()
    return int(count or 1) * int(bits) // 8


def in_ptx(kernel, warp):
    """Accesses by stage, of the first tile: taken, and without conflicts."""
    launch = Launch(kernel.extents, 1000, 0, 0, kernel.tables)  # more clusters than tiles: each has one
    lanes = []
    for lane in range(32):
        thread = Touching(kernel.ptx, kernel.schedule, launch, warp, lane)
        thread.touched = {}
        thread.run()
        lanes.append(thread.touched)
    taken, least = Counter(), Counter()
    for line, (width, first) in lanes[0].items():
        buffers = (b for b in kernel.plan.buffers if b.offset <= first < b.offset + b.stages * b.pitch)
        name = next(buffers).name
        some, best = times([touched[line][1] for touched in lanes if line in touched], width)
        taken[name] += some
        least[name] += best
    return taken, least


@pytest.mark.parametrize("name", ["gemm m8, along n", "gemm 1x2, along n", *ALL * ["gemm m24 along n with operands"]])
def test_stmatrix_writes_its_slot_alone(name):
    kernel = built(name)
    role, d = kernel.plan.role("math"), kernel.plan.buffer("d")
    launch, rows = Launch(kernel.extents, 1000, 0, 0, kernel.tables), set()
    for lane in range(32):
        thread = Touching(kernel.ptx, kernel.schedule, launch, role.first_warp, lane)
        thread.touched, of = {}, {i.line: i for i in kernel.ptx.instructions if i.is_a("stmatrix")}
        thread.run()
        rows |= {first for line, (_, first) in thread.touched.items() if line in of and lane < matrices(of[line]) * 8}
    assert rows and all(d.offset <= first < d.offset + d.stages * d.pitch for first in rows)
    assert len(rows) * 16 % (d.slot_bytes // 4) == 0  # a warp's quarter of the slots that it fills


@pytest.mark.parametrize("name, even", [("copy of rows of several dimensions", False), ("copy of rows, evenly", True)])
def test_vectors_of_rows_that_threads_share(name, even):
    """12 vectors a row, and 128 or 96 threads: those of a thread lie in different columns, or in the same."""
    kernel = built(name)
    role, x = kernel.plan.role("work"), kernel.plan.buffer("x")
    warp, lane = role.first_warp + 1, 5
    thread = Touching(kernel.ptx, kernel.schedule, Launch(kernel.extents, 1000, 0, 0), warp, lane)
    thread.touched = {}
    thread.run()
    rows, columns = (places[lane::32, ::8].ravel() for places in indices_of(vectors_of("x", x.tile, role), warp))
    found = [first - x.offset for width, first in thread.touched.values() if width == 16]
    assert sorted(found) == sorted((rows * x.tile[1] + columns) * 2) and (len({*columns}) == 1) == even


@pytest.mark.parametrize("name", ["copy by threads"])
def test_reads_leave_gaps_out(name):
    """Of a run with 11 elements left out after each 30, and 41 more after each 600, from its third tile on."""
    kernel = built(name)
    role, x, tile = kernel.plan.role("work"), kernel.plan.buffer("x"), kernel.schedule.tile
    warp, lane = role.first_warp + 2, 3
    thread = Touching(kernel.ptx, kernel.schedule, Launch(kernel.extents, 1000, 1, 0), warp, lane)
    thread.touched = {}
    thread.run()

    def place(element):
        return 5 + element + element // 30 * 11 + element // 600 * 41

    first = 2 * tile - 1  # y begins at an odd element
    begin = place(first) // 8 * 8
    columns = indices_of(vectors_of("x", (tile,), role, 2), warp)[1][lane::32].ravel().tolist()
    found = [byte - x.offset for width, byte in thread.touched.values() if width == 2]
    assert sorted(found) == sorted((place(first + column) - begin) * 2 for column in columns)


def matrices(stmatrix):
    return int(re.search(r"\.x(\d)", stmatrix.opcode)[1])


@pytest.mark.parametrize("name, role", [
    ("stores by threads", "work"), ("stores by threads", "copy"), ("copies beside loads", "work"), ("add parts", "add"),
    ("copies of images", "load"), ("chain of three", "double"),
    ("gemm 2x2", "math"), ("gemm tf32", "math"), *ALL * [("gemm 2x1", "math"), ("gemm 2x1 to fp32", "math")],
])  # fmt: skip
def test_as_the_ptx_does(name, role):
    kernel = built(name)
    taken, least = in_ptx(kernel, kernel.plan.role(role).first_warp)
    expected = Counter(), Counter()
    program = trace(kernel.schedule, kernel.plan)
    for stage, _, some, best in touched_by(kernel.plan, fragments_need(program))[role]:
        expected[0][stage] += some
        expected[1][stage] += best
    assert taken.keys() == expected[0].keys() != set()
    for stage in taken:  # a line of a body may stand several times in the PTX, as for the pieces of accumulators
        often, rest = divmod(taken[stage], expected[0][stage])
        assert often >= 1 and rest == 0 and least[stage] == often * expected[1][stage], stage
