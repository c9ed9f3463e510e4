"""What functions of k.raw are told, and how their errors read."""

import numpy as np
import pytest

import tmapipe as tp
from tests.raw_rows import Doubled


def zero_on_gpu(rows, role):
    """Zeroes the warp's rows beyond half of the columns, in a loop of run time."""
    import cutlass.cute as cute

    @cute.jit
    def zero(rows, lane, half):
        for column in range(half + lane, 64, 32):
            for row in range(rows.shape[0]):
                rows[row, column] = rows.element_type(0)

    zero(rows, cute.arch.lane_idx(), role.extent("n") // 2)


def zero_on_cpu(rows, *, role):
    rows[:, role.extent("n") // 2 :] = 0


def by_warp_on_gpu(rows, role):
    """Sets the warp's rows to its number."""
    import cutlass.cute as cute
    from cutlass import Float32

    lane = cute.arch.lane_idx()
    for row in range(rows.shape[0]):
        for first in range(0, 64, 32):
            rows[row, first + lane] = Float32(role.warp).to(rows.element_type)


def by_warp_on_cpu(rows, role):
    assert role.name == "work" and role.warps == 4
    rows[...] = role.warp


def wrong(rows, role):
    return rows.no_such_thing


def of(gpu, cpu):
    """`Doubled` with these functions."""

    class Changed(Doubled):
        @Doubled.work.jit
        def double(self, k, tile):
            with k.ring.consume() as slot:
                k.raw(gpu, cpu, updates=(slot.x,))

    return Changed()


HALF, BY_WARP = of(zero_on_gpu, zero_on_cpu), of(by_warp_on_gpu, by_warp_on_cpu)


def test_functions_are_told_their_role():
    x = np.ones((32, 40), np.float32)
    y = HALF(x)
    assert (y[:, :20] == 1).all() and (y[:, 20:] == 0).all()
    np.testing.assert_array_equal(BY_WARP(x)[:, 0], np.repeat(np.tile(np.arange(4), 2), 4))


@pytest.mark.parametrize("schedule", [HALF, BY_WARP])
def test_functions_that_take_the_role_compile(schedule):
    assert schedule.check({"x": "fp32", "y": "fp32"}).ok
    assert schedule.compile({"x": "fp32", "y": "fp32"}).resources.spill_bytes == 0


def test_errors_name_the_line():
    line = wrong.__code__.co_firstlineno + 1
    said = rf"test_raw_functions\.py:{line}: wrong\(\) of k\.raw raised AttributeError"
    with pytest.raises(tp.errors.ScopeError, match=said):
        of(zero_on_gpu, wrong)(np.ones((32, 40), np.float32))
    with pytest.raises(tp.errors.ScopeError, match=said):
        of(wrong, zero_on_cpu).compile({"x": "fp32", "y": "fp32"})
