"""Mistakes with values: refused alike by the check and on the model, with the line and what to do."""

import numpy as np
import pytest

import tmapipe as tp


def made(body, tile=(4, 128)):
    """A schedule whose working role calls ``body(k, tile, slot)``."""

    class Made(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warps=4)
        ring = tp.BarrierRing(2, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=tile, ring=ring, dtype="fp32")
        w = tp.TmaLoadStage("n", tile=tile[1:], ring=ring, dtype="fp32")
        y = tp.TmaStoreStage("m n", tile=tile, role=work, dtype="fp32")

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)
                slot.w.load(n=tile.n)

        @work.jit
        def compute(self, k, tile):
            with k.ring.consume() as slot:
                body(k, tile, slot)

    return Made()


MISTAKES = {
    "a row in several warps": (
        lambda k, tile, slot: k.y.store(tile, slot.x.read() - tp.math.row_max(slot.x.read())),
        r"tp\.ReductionScratch\(role, rows=1\)",
        (1, 512),
    ),
    "columns in several warps": (
        lambda k, tile, slot: k.y.store(tile, slot.x.read() - tp.math.column_max(slot.x.read())),
        r"tp\.ReductionScratch\(role, columns=128\)",
    ),
    "one number a row to a tile": (
        lambda k, tile, slot: k.y.store(tile, tp.math.row_sum(slot.x.read())),
        "one number for each of the rows",
    ),
    "another distribution": (lambda k, tile, slot: k.y.store(tile, slot.x.read() + slot.w.read()), "columns_of="),
    "a branch": (lambda k, tile, slot: k.y.store(tile, slot.x.read() if slot.x.read() > 0 else 0), "a branch on the values"),
    "Python's max": (lambda k, tile, slot: k.y.store(tile, max(slot.x.read(), 0)), "a branch on the values"),
    "NumPy": (lambda k, tile, slot: k.y.store(tile, np.exp(slot.x.read())), r"numpy\.exp"),
    "an index": (lambda k, tile, slot: k.y.store(tile, slot.x.read()[0]), "an index or slice"),
    "its maximum": (lambda k, tile, slot: k.y.store(tile, slot.x.read() - slot.x.read().max()), "max of a fragment"),
    "a loop": (lambda k, tile, slot: k.y.store(tile, sum(slot.x.read())), "a loop over the elements"),
    "a remainder in fp32": (lambda k, tile, slot: k.y.store(tile, slot.x.read() % 2), "mod of a fragment in fp32"),
    "a whole number of 33 bits": (
        lambda k, tile, slot: k.y.store(tile, slot.x.read() + (slot.x.read().rows + 2**31)),
        "more than 32 bits",
    ),
    "an array": (lambda k, tile, slot: k.y.store(tile, slot.x.read() + np.ones(3)), "add of a fragment and ndarray"),
    "a number": (lambda k, tile, slot: k.y.store(tile, 1.0), r"k\.full\(\)"),
    "a power": (lambda k, tile, slot: k.y.store(tile, slot.x.read() ** 0.5), "to the power of 0.5"),
    "a condition in fp32": (
        lambda k, tile, slot: k.y.store(tile, tp.math.where(slot.x.read(), 1.0, 2.0)),
        r"where\(\) with a condition in fp32",
    ),
    "a narrow integer": (
        lambda k, tile, slot: k.y.store(tile, tp.math.cast(slot.x.read(), "int8")),
        "a floating type or int32",
    ),
    "an unknown stage": (lambda k, tile, slot: k.y.store(tile, k.full("z", 0.0)), "x, w, y"),
    "two forms at once": (
        lambda k, tile, slot: k.y.store(tile, slot.x.read(like=slot.x.read(), transposed=True)),
        "exclude each other",
    ),
    "transposed by four warps that are no warpgroup": (
        lambda k, tile, slot: k.y.store(tile, slot.x.read(transposed=True)),
        "whole warpgroups",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_refused_alike(name):
    body, says, *tile = MISTAKES[name]
    schedule = made(body, *tile)
    x = np.ones((8, (tile[0] if tile else (4, 128))[1]), np.float32)
    for run in (schedule.check, lambda: schedule(x, x[0].copy())):
        with pytest.raises((tp.InputError, tp.errors.ScopeError), match=says):
            run()


def test_the_right_ones_pass():
    """Beside each mistake, what the error says to write."""

    def right(k, tile, slot):
        values = slot.x.read()
        values = tp.math.where(values > 0, values, 0.0) + slot.w.read(columns_of=values)
        k.y.store(tile, tp.math.maximum(values**2, 1) - tp.math.row_max(values) + k.full("x", 0.0))

    x = np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32)
    schedule, w = made(right), x[0].copy()
    assert schedule.check().ok
    values = np.where(x > 0, x, 0) + w
    np.testing.assert_allclose(
        schedule(x, w), np.maximum(values**2, 1) - values.max(1, keepdims=True), rtol=1e-5, atol=1e-5
    )
