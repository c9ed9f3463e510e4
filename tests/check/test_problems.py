"""Problems that are looked at for errors are such as a call may have: extents that binding refuses are no counterexamples."""

from __future__ import annotations

import numpy as np
import pytest

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe.check import Kind


class OneMore(tp.Schedule):
    """y = x; for some lengths of x, the loader fills a slot more than are taken."""

    load, work = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.BulkLoadStage("s", tile=(64,), ring=ring, dtype="fp32")
    y = tp.TmaStoreStage("s", tile=(64,), role=work, dtype="fp32")

    def __init__(self, more):
        self.more = more

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
        if self.more(k.extent("s")):
            with k.ring.produce() as slot:
                slot.x.load(tile)

    @work.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values)


class Rows(OneMore):
    """The same of rows with a descriptor, which are stored in units of 16 bytes."""

    x = tp.TmaLoadStage("m s", tile=(4, 64), ring=OneMore.ring, dtype="fp32")
    y = tp.TmaStoreStage("m s", tile=(4, 64), role=OneMore.work, dtype="fp32")


NONE = {
    "pieces of 64": lambda: OneMore(lambda s: s == 65),
    "pieces of 64, of any remainder": lambda: OneMore(lambda s: s % 64 != 0),
    "units of 16 bytes": lambda: Rows(lambda s: s == 65),
    "units of 16 bytes, of one remainder": lambda: Rows(lambda s: s % 4 == 1),
}
SOME = {
    "a whole piece": (lambda: OneMore(lambda s: s == 192), 64),
    "long ones": (lambda: OneMore(lambda s: s > 640), 64),
    "a whole unit": (lambda: Rows(lambda s: s == 68), 4),
    "long rows": (lambda: Rows(lambda s: s >= 1001), 4),
}


@pytest.mark.parametrize("name", NONE)
def test_what_no_call_has_is_no_counterexample(name):
    report = NONE[name]().check()
    assert report.ok and report.problem is None, str(report)


@pytest.mark.parametrize("name", SOME)
def test_what_a_call_may_have_is_found(name):
    make, unit = SOME[name]
    report = make().check()
    assert Kind.TRIP_COUNTS in report.kinds(), str(report)
    assert report.problem.shapes["x"][-1] % unit == 0


class PartsOfSums(tp.Schedule):
    """y[2 l + s, m, n] = sums of x[l, m, k, n] over one half of k each. more: parts for which each role takes a slot more."""

    load, add = tp.Role(warps=1), tp.Role(warps=1)
    tiles = tp.tiles.SplitKTiles(2, stage="x", dim="k")
    ring = tp.BarrierRing(2, producer=load, consumer=add)
    x = tp.TmaLoadStage("l k m n", tile=(4, 64), ring=ring, dtype="fp32")
    y = tp.TmaStoreStage("s m n", tile=(4, 64), role=add, dtype="fp32")

    def __init__(self, more, taken=None):
        self.more, self.taken = more, taken or more

    @load.jit
    def fill(self, k, tile):
        for i in range(tile.steps):
            with k.ring.produce() as slot:
                slot.x.load(tile, k=tile.first + i)
        if self.more(tile):
            with k.ring.produce() as slot:
                slot.x.load(tile, k=0)

    @add.jit
    def total(self, k, tile):
        total = k.full("y", 0.0)
        for _ in range(tile.steps):
            with k.ring.consume() as slot:
                total = total + slot.x.read()
        if self.taken(tile):
            with k.ring.consume():
                pass
        k.y.store(tile, total)


class OfOneMatrix(PartsOfSums):
    load, add = PartsOfSums.load, PartsOfSums.add
    ring = tp.BarrierRing(2, producer=load, consumer=add)
    x = tp.TmaLoadStage("k m n", tile=(4, 64), ring=ring, dtype="fp32")
    y = tp.TmaStoreStage("s m n", tile=(4, 64), role=add, dtype="fp32")


PARTS = {
    "the first part": lambda tile: tile.s == 0,
    "the first half": lambda tile: tile.s % 2 == 0,
    "the fourth part": lambda tile: tile.s == 3,
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("kind", [PartsOfSums, OfOneMatrix])
def test_bodies_that_look_at_the_part(kind, name):
    report = kind(PARTS[name]).check()
    assert report.ok and report.trips == "every trip count", str(report)


def test_parts_that_there_are_not_are_no_counterexamples():
    both, third = lambda tile: tile.s < 2, lambda tile: tile.s <= 2
    assert OfOneMatrix(both, third).check().ok  # one matrix has two
    report = PartsOfSums(both, third).check()
    assert Kind.TRIP_COUNTS in report.kinds(), str(report)
    matrices, parts = report.problem.shapes["x"][0], report.problem.shapes["y"][0]
    assert parts == 2 * matrices >= 4


def test_an_output_has_as_many_parts_as_its_order_makes():
    x = np.random.default_rng(0).standard_normal((3, 7, 4, 64)).astype(np.float32)
    never = PartsOfSums(lambda tile: False)
    y = never(x)
    np.testing.assert_allclose(y[0::2], x[:, :4].sum(1), rtol=1e-5)
    np.testing.assert_allclose(y[1::2], x[:, 4:].sum(1), rtol=1e-5)
    assert "dimension s = l * 2" in never.explain()
    refused(never, x, y[:5].copy(), argument="y.shape", value=(5, 4, 64), rule="by its Dim it is 6")
    refused(OfOneMatrix(lambda tile: False), x[0], y, argument="y.shape", rule="by its Dim it is 2")
