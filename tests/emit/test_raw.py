"""Raw CuTe DSL in a role compiles into the kernel, between the fences that the ring derives."""

import functools
import inspect

import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Float32

import tmapipe as tp
from tests.raw_rows import Doubled, double_on_cpu
from tmapipe.model import Machine
from tmapipe.program import replay, trace


def test_raw_code_is_in_the_kernel():
    compiled = Doubled().compile({"x": "bf16", "y": "bf16"})
    assert "ld.shared" in compiled.ptx and "st.shared" in compiled.ptx
    assert "fence.proxy.async.shared::cta" in compiled.ptx
    assert compiled.resources.spill_bytes == 0


def times(factor, rows, role):
    """Each lane adds a number of the warp and of the tile to its elements."""
    lane = cute.arch.lane_idx()
    for first in range(0, rows.shape[1], 32):
        for row in range(rows.shape[0]):
            value = rows[row, first + lane].to(Float32) + Float32(factor * role.extent("m") + role.warp)
            rows[row, first + lane] = value.to(rows.element_type)


class Told(Doubled):
    """Raw code that is told of its role, and has captured the tile and a number of the body."""

    work = Doubled.work

    @work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            add = functools.partial(times, tile.m + 1)
            k.raw(lambda rows, role: add(rows, role=role), functools.partial(told_on_cpu, tile), updates=(slot.x,))


def told_on_cpu(tile, rows, role):
    rows[...] += (tile.m + 1) * role.extent("m") + role.warp


def test_raw_code_has_numbers_of_the_kernel():
    compiled = Told().compile({"x": "fp32", "y": "fp32"})
    assert "st.shared" in compiled.ptx and compiled.resources.spill_bytes == 0
    x = np.zeros((32, 64), np.float32)
    want = np.repeat([(m + 1) * 32 + warp for m in range(2) for warp in range(4)], 4)[:, None] + x
    plan = Told().plan({"x": "fp32", "y": "fp32"})
    arrays = {"x": x, "y": np.full_like(x, np.nan)}
    program = trace(Told(), plan)
    Machine(plan).run(lambda isa: replay(program, isa), arrays, 1)
    assert (arrays["y"] == want).all()


def rejected(rows):
    cute.composition(cute.make_layout((4, 6), stride=(1, 8)), cute.make_layout(5, stride=3))


class Wrong(Doubled):
    """Calls CuTe DSL with what its compiler rejects."""

    work = Doubled.work

    @work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            k.raw(rejected, double_on_cpu, updates=(slot.x,))


def test_what_the_dsl_rejects_is_named_by_its_line():
    line = inspect.getsourcelines(rejected)[1] + 1
    with pytest.raises(
        tp.errors.ScopeError, match=rf"(?s)test_raw\.py:{line}: rejected\(\) of k\.raw raised MLIRError: .*composition"
    ):
        Wrong().compile({"x": "bf16", "y": "bf16"})
