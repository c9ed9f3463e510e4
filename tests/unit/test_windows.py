"""Parts of a slot's tile, read from any row and column on."""

import numpy as np
import pytest

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe.plan.thread_layout import vectors_of
from tmapipe.protocol import slots


class Window(tp.Schedule):
    """y = the part of the tile of x that begins at `at`."""

    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("i j", tile=(16, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(8, 32), role=work)
    at, tile, width = (0, 0), (8, 32), 8

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load_from(0, 0)

    @work.jit
    def cut(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read(tile=self.tile, at=self.at, width=self.width)
        k.y.store(tile, values)


class Swizzled(Window):
    x = tp.TmaLoadStage("i j", tile=(16, 64), ring=Window.ring, swizzle=128)


class Alike(Swizzled):
    """The same, distributed as the part at (0, 0) is."""

    @Window.work.jit
    def cut(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read(like=slot.x.read(tile=self.tile), at=self.at)
        k.y.store(tile, values)


WINDOWS = [(0, 0), (1, 4), (8, 32), (3, 5), (7, 1)]


@pytest.mark.parametrize("at", WINDOWS)
@pytest.mark.parametrize("form", [Window, Swizzled, Alike])
def test_parts_of_a_tile(form, at):
    schedule, x = form(), np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    schedule.at = at
    y = np.empty((8, 32), np.float32)
    schedule(x, out=y)
    np.testing.assert_array_equal(y, x[at[0] : at[0] + 8, at[1] : at[1] + 32])


def test_wrong_parts_are_refused():
    x, y = np.ones((16, 64), np.float32), np.ones((8, 32), np.float32)
    for at in ((9, 0), (0, 33), (-1, 0), 3, (1,), (1, 2, 3)):
        schedule = Window()
        schedule.at = at
        refused(schedule, x, out=y, argument="slot.x.read(at)", value=at, rule=r"begin|\(row, column\)")
    for tile in ((8,), 8, (0, 8), (8, 32, 1), "ab"):
        schedule = Window()
        schedule.tile = tile
        refused(schedule, x, out=y, argument="slot.x.read(tile)", value=tile, rule="two positive extents")


def test_compiles_and_is_proved():
    for at in ((1, 4), (3, 5)):
        schedule = Swizzled()
        schedule.at = at
        assert schedule.compile({"x": "fp32", "y": "fp32"}).resources.spill_bytes == 0
        assert schedule.check({"x": "fp32", "y": "fp32"}).ok


def test_a_start_of_more_than_32_bits_is_refused():
    class Far(Window):
        @Window.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load_from((tile.m + 1) * 2**31, 0)

    x, y = np.zeros((16, 64), np.float32), np.zeros((8, 32), np.float32)
    with pytest.raises(tp.errors.ScopeError, match=r"2147483648 meets .* which has 32 bits.* At .*test_windows.py:85"):
        Far()(x, out=y)
    with pytest.raises(tp.errors.ScopeError, match=r"2147483648 meets .* which has 32 bits"):
        Far().check()


def test_a_part_is_read_in_vectors_of_a_width(monkeypatch):
    made = []
    monkeypatch.setattr(slots, "vectors_of", lambda *of: made.append(vectors_of(*of)) or made[-1])
    x, y, schedule = np.ones((16, 64), np.float32), np.empty((8, 32), np.float32), Window()
    for width in (2, 1):
        schedule.width = width
        assert (schedule(x, out=y) == 1).all() and made[-1].width == width
    schedule.width = 3
    refused(schedule, x, out=y, argument="slot.x.read(width)", value=3, rule="8, 4, 2 or 1")
