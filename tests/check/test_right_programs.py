"""Right programs that were once refused, or shown up to a count: each is proved for every count, its twin is rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import pytest

import tmapipe as tp
from tests.check.deciding import ByTurn, Tiles, entry, one_if, put, steps, take
from tests.sweeps import ALL, sample
from tmapipe.check import Kind

S = tp.schedules


def nested(slots: int, more: int = 0, taken: int = 0, in_flight: int = 1) -> tp.Schedule:
    """Two slots a step, of which the second is open within the first. more: slots that are loaded in each step beyond these
    two; taken: how many of them are taken, one after the other."""

    class Nested(tp.Schedule):
        load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
        ring = tp.BarrierRing(slots, producer=load, consumer=math)
        a = tp.TmaLoadStage("m k", tile=(64, 64), ring=ring)
        b = tp.TmaLoadStage("n k", tile=(64, 64), ring=ring)
        mma = tp.Wgmma(a, b, in_flight=in_flight)
        d = tp.TmaStoreStage("m n", source=mma)

        @load.jit
        def fill(self, k, tile):
            for step in range(k.steps("a", "k")):
                for _ in range(2 + more):
                    with k.ring.produce() as slot:
                        slot.a.load(tile, k=step)
                        slot.b.load(tile, k=step)

        @math.jit
        def multiply(self, k, tile):
            with k.mma.accumulate() as acc:
                for _ in range(k.steps("a", "k")):
                    with k.ring.consume() as left, k.ring.consume() as right:
                        acc.add(left.a, right.b)
                    for _ in range(taken):
                        with k.ring.consume() as slot:
                            acc.add(slot.a, slot.b)
            k.d.store(tile, acc)

    return Nested()


class InTheFirstColumn(Tiles):
    """Stores the tiles of the first column alone. slip: gives a slot back only where it stores."""

    load, add = Tiles.load, Tiles.add

    def __init__(self, slip: bool = False):
        super().__init__(lambda s, k, tile: 0)
        self.slip = slip

    @add.jit
    def first(self, k, tile):
        slot = k.ring.wait()
        values = slot.x.read()
        if tile.n == 0:
            k.y.store(tile, values)
        if not self.slip or tile.n == 0:
            k.ring.release(slot)


class Blocks(ByTurn):
    """Skips the steps whose entry in a table is 0. slip: the one that adds up looks at the entry of the next step."""

    load, add = ByTurn.load, ByTurn.add

    def __init__(self, slip: int = 0):
        super().__init__(lambda s, k, tile, i: 0)
        self.slip = slip

    @load.jit
    def some(self, k, tile):
        put(k, tile)
        for i in range(steps(k)):
            if entry(k, i) != 0:
                put(k, tile)

    @add.jit
    def sums(self, k, tile):
        values = take(k)
        for i in range(steps(k)):
            if entry(k, i + self.slip) != 0:
                values = values + take(k)
        k.y.store(tile, values)


class LoopsOfLoops(Tiles):
    """Three passes over the steps, which the other role counts in one. slip: that it takes more."""

    load, add = Tiles.load, Tiles.add

    def __init__(self, slip: int = 0):
        super().__init__(lambda s, k, tile: 0)
        self.slip = slip

    @load.jit
    def passes(self, k, tile):
        put(k, tile)
        for _ in range(3):
            for _ in range(steps(k)):
                put(k, tile)

    @add.jit
    def in_one(self, k, tile):
        values = take(k)
        for _ in range(3 * steps(k) + self.slip):
            values = values + take(k)
        k.y.store(tile, values)


class TwoRowsAStep(tp.Schedule):
    """Loads the scales' rows 2 step and 2 step + 1. last: the second of them; other: whether the other
    role counts the steps by itself."""

    load, add = tp.Role(warps=1), tp.Role(warps=1)
    relations = (tp.Dim("rows", of="k", per=32, plus=1),)
    ring = tp.BarrierRing(2, producer=load, consumer=add)
    x = tp.TmaLoadStage("m k", tile=(8, 64), ring=ring)
    scale = tp.TmaLoadStage("rows m", tile=(8,), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(8, 64), role=add, stages=1)

    def __init__(self, last: int = 1, other: bool = False):
        self.last, self.other = last, other

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("x", "k")):
            with k.ring.produce() as slot:
                slot.x.load(tile, k=step)
                slot.scale.load(tile, rows=2 * step + self.last)

    @add.jit
    def total(self, k, tile):
        values = k.full("y", 0.0)
        count = (k.isa.extent("x", 1) + 63) // 64 if self.other else k.steps("x", "k")
        for _ in range(count):
            with k.ring.consume() as slot:
                values = values + slot.x.read()
        k.y.store(tile, values)


class InSomeCTAs(tp.Schedule):
    """y = x, plus w in the CTAs that *some* names; these alone load it, into a ring of its own, and store its maximum. slip:
    what the role that adds it takes for their condition."""

    cluster: ClassVar = {"n": 2}
    load, add = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=add)
    other = tp.BarrierRing(1, producer=load, consumer=add)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
    w = tp.TmaLoadStage("m n", tile=(8, 64), ring=other)
    y = tp.TmaStoreStage("m n", tile=(8, 64), role=add, stages=1)
    z = tp.ThreadStoreStage("m", tile=(8,), role=add, vector=4, dtype="fp32")

    def __init__(self, some: Any, slip: Any = None):
        self.some, self.slip = some, slip or some

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
        if self.some(k, tile):
            with k.other.produce() as slot:
                slot.w.load(tile)

    @add.jit
    def sums(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        if self.slip(k, tile):
            with k.other.consume() as slot:
                more = slot.w.read()
            values = values + more
            if tile.n == 0:
                k.z.store(tile, tp.math.row_max(more))
        k.y.store(tile, values)


@attrs.frozen
class Twin:
    right: Callable[[], tp.Schedule]
    wrong: Callable[[], tp.Schedule]


def by_steps(right: Any, wrong: Any) -> Twin:
    return Twin(lambda: Tiles(right), lambda: Tiles(right, wrong))


TWINS = {
    **{
        f"nested, {n} slots": Twin(lambda n=n: nested(n), lambda n=n: nested(n, 1, 0))
        for n in sample([4, 5, 6, 7, 8], 3)
    },
    "nested, 3 slots": Twin(lambda: nested(3, in_flight=0), lambda: nested(3)),
    "nested, then one more": Twin(lambda: nested(5, 1, 1), lambda: nested(5, 1, 2)),
    "stored in the first column": Twin(InTheFirstColumn, lambda: InTheFirstColumn(True)),
    "blocks by a table": Twin(Blocks, lambda: Blocks(1)),
    "in the first CTA of a cluster": Twin(
        lambda: InSomeCTAs(lambda k, tile: k.rank("n") == 0),
        lambda: InSomeCTAs(lambda k, tile: k.rank("n") == 0, lambda k, tile: k.rank("n") == 1),
    ),
    "in every third column": Twin(
        lambda: InSomeCTAs(lambda k, tile: tile.n % 3 == 0),
        lambda: InSomeCTAs(lambda k, tile: tile.n % 3 == 0, lambda k, tile: tile.n % 3 == 1),
    ),
    "three passes in one loop": Twin(LoopsOfLoops, lambda: LoopsOfLoops(1)),
    "37 steps": by_steps(lambda s, k, tile: one_if(steps(k) == 37), lambda s, k, tile: one_if(steps(k) == 38)),
    "up to 2,000,000": by_steps(
        lambda s, k, tile: one_if(steps(k) * 64 > 2_000_000), lambda s, k, tile: one_if(steps(k) * 64 >= 2_000_000)
    ),
    "an extent of 2,000,000": by_steps(
        lambda s, k, tile: one_if(k.isa.extent("x", 2) == 2_000_000),
        lambda s, k, tile: one_if(k.isa.extent("x", 2) >= 2_000_000),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_the_right_one_is_proved(name):
    report = TWINS[name].right().check()
    assert report.ok and report.trips == "every trip count", str(report)


@pytest.mark.parametrize("name", TWINS)
def test_the_wrong_one_is_not(name):
    report = TWINS[name].wrong().check()
    assert not report.ok or report.trips != "every trip count"


@pytest.mark.parametrize("other", [False, True])
def test_rows_of_scales(other):
    right, beyond = TwoRowsAStep(1, other).check(), TwoRowsAStep(2, other).check()
    assert right.ok and right.trips == "every trip count", str(right)
    assert Kind.OUT_OF_RANGE in beyond.kinds(), str(beyond)


@pytest.mark.parametrize("stages", [3, *ALL * [8]])
def test_parts_of_k_of_fetched_tiles(stages):
    report = S.SplitK(2, (64, 64, 64), (2, 1), stages=stages, tiles=tp.tiles.DynamicTiles()).check()
    assert report.ok and report.trips == "every trip count", str(report)
