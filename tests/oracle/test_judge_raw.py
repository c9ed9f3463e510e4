"""Raw functions in traced bodies: what they enclose and what they are told are the reader's numbers."""

import numpy as np
import pytest

from tests.oracle.judge import entry_of, ran
from tests.oracle.judged_bodies import program_of
from tests.raw_rows import Doubled, double_on_gpu


def plus(amount, also=0):
    """A raw function for the model that encloses a number."""

    def add(rows, role):
        rows[...] = rows + amount + also + 2 * role.warp + role.extent("n") // 8

    return add


class Enclosing(Doubled):
    """Raw functions that enclose coordinates, and a loop's index in a default."""

    @Doubled.work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            for i in range(k.steps("x", "n")):
                k.raw(double_on_gpu, plus(tile.m + 3 * tile.n), updates=(slot.x,))

                def also(rows, i=i, of=(tile, tile.n)):
                    rows[...] = rows + i + of[0].m + of[1]

                k.raw(double_on_gpu, also, updates=(slot.x,))


@pytest.mark.parametrize("shape", [(40, 200), (1, 64)])
def test_raw_functions_take_the_readers_numbers(shape):
    x = np.random.default_rng(0).integers(-8, 8, shape).astype(np.float32)
    schedule = Enclosing()
    tensors = {"x": x}
    schedule.plan({"x": "fp32", "y": "fp32"})
    judged = ran(schedule, entry_of(schedule), tensors, clusters=2)
    traced = ran(schedule, program_of(schedule, schedule.plan({"x": "fp32", "y": "fp32"})), tensors, clusters=2)
    assert judged.operations == traced.operations
    assert (judged.outputs["y"] == traced.outputs["y"]).all() and (judged.outputs["y"] != x).any()
