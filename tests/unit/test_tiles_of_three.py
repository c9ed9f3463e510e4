"""Tiles of three and more extents: boxes of the engine, which bodies see as matrices."""

import re

import numpy as np
import pytest

import tmapipe as tp
from tests.sweeps import ALL, sample
from tests.unit.errors import refused


class Images(tp.Schedule):
    """y = 2 x, tile by tile of (h, w, c), in place."""

    load, work, store = tp.Role(warps=1), tp.Role(warps=4), tp.Role(warps=1)
    ring = tp.BarrierRing(3, chain=(load, work, store))
    x = tp.TmaLoadStage("b h w c", tile=(4, 8, 32), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            slot.x.write(slot.x.read() * 2)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class Buffered(tp.Schedule):
    """The same through buffers of the store."""

    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    x = tp.TmaLoadStage("b h w c", tile=(4, 8, 32), ring=ring)
    y = tp.TmaStoreStage("b h w c", tile=(4, 8, 32), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() * 2
        k.y.store(tile, values)


def of_tile(base, tile, swizzle=None):
    """*base* with tiles of these extents."""

    class Changed(base):
        x = tp.TmaLoadStage("b h w c", tile=tile, ring=base.ring, swizzle=swizzle)
        y = tp.TmaStoreStage("b h w c", tile=tile, role=base.work) if base is Buffered else tp.TmaStoreStage(source=x)

    return Changed


class Shared(Images):
    """Two CTAs want the same tiles of x, for images of their own."""

    cluster = {"b": 2}  # noqa: RUF012
    x = tp.TmaLoadStage("h w c", tile=(4, 8, 32), ring=Images.ring, multicast=tp.MulticastGroup("b"))
    y = tp.TmaStoreStage("b h w c", source=x)


class Vector(tp.Schedule):
    """y = x, in pieces of 400 bytes."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage("n", tile=(100,), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


FORMS = [
    Images,
    Buffered,
    of_tile(Images, (4, 8, 32), swizzle=128),
    of_tile(Images, (4, 6, 64), swizzle=64),
    of_tile(Images, (8, 7, 32), swizzle=128),
    of_tile(Images, (2, 3, 4, 32)),
    of_tile(Buffered, (16, 16, 8)),
]


@pytest.mark.parametrize("form", FORMS)
def test_right_for_random_shapes(form):
    made = np.random.default_rng(0)
    for _ in range(5 if ALL else 3):
        shape = *(int(e) for e in made.integers(1, 14, 3)), 4 * int(made.integers(1, 20))
        x = made.standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(form()(x), 2 * x)


@pytest.mark.parametrize("form", FORMS)
def test_proved(form):
    report = form().check({"x": "fp32", "y": "fp32"})
    assert report.ok and report.trips == "every trip count", str(report)


def swizzled_shared(tile):
    """`Shared` with swizzled tiles of these extents."""

    class Swizzled(Shared):
        x = tp.TmaLoadStage("h w c", tile=tile, ring=Images.ring, swizzle=128, multicast=tp.MulticastGroup("b"))
        y = tp.TmaStoreStage("b h w c", source=x)

    return Swizzled()


def test_multicast_shares_of_swizzled_tiles_have_whole_blocks_of_rows():
    shared, kinds = swizzled_shared, {"x": "fp32", "y": "fp32"}
    assert shared((4, 8, 32)).plan(kinds).load("x").box == (2, 8, 32) and shared((4, 8, 32)).check(kinds).ok
    refused(lambda: shared((2, 4, 32)).plan(kinds), argument="x.tile[0]", rule="in steps of 8 rows")
    refused(lambda: shared((3, 16, 32)).plan(kinds), argument="x.tile[0]", rule="an equal part")


def test_multicast_shares_are_cut_along_the_first_extent():
    x = np.random.default_rng(0).standard_normal((9, 20, 64)).astype(np.float32)
    y = np.empty((3, *x.shape), np.float32)
    Shared()(x, out=y)
    np.testing.assert_array_equal(y, np.stack([2 * x] * 3))
    assert Shared().plan().load("x").box == (2, 8, 32)
    assert Shared().check().ok


@pytest.mark.parametrize("form", sample(FORMS, 3))
def test_one_box_of_the_tile_per_instruction(form):
    plan = form().plan({"x": "fp32", "y": "fp32"})
    load = plan.load("x")
    ptx = form().compile({"x": "fp32", "y": "fp32"}, unroll=False).ptx
    boxes = load.buffer.tile[-1] // load.box[-1]
    assert ptx.count("cp.async.bulk.tensor.4d.shared") == boxes
    assert ptx.count("cp.async.bulk.tensor.4d.global") == boxes
    assert np.prod(load.box) * boxes * 4 == load.buffer.slot_bytes


def long_rows(tile, dims="m n"):
    """y = x, in tiles whose rows are longer than a box can be."""

    class Long(Vector):
        x = tp.TmaLoadStage(dims, tile=tile, ring=Vector.ring)
        y = tp.TmaStoreStage(source=x)

    return Long()


#: Tiles, and the longest box whose pieces start at multiples of 128 bytes of fp32.
LONG = [
    ((352,), 32),
    ((1056,), 96),
    ((768,), 256),
    ((4, 1440), 160),
    ((2, 3, 352), 32),
    ((4608,), 256),
    ((2, 3, 768), 256),
]


@pytest.mark.parametrize(("tile", "box"), sample(LONG, 2, first=1))
def test_rows_longer_than_a_box_are_cut(tile, box):
    schedule, kinds = long_rows(tile, "a b m n"[-2 * len(tile) + 1 :]), {"x": "fp32", "y": "fp32"}
    load = schedule.plan(kinds).load("x")
    assert load.box == (*(1 for _ in tile[1:]), box)
    ptx = schedule.compile(kinds, unroll=False).ptx
    boxes = tile[-1] // box
    for way in ("shared", "global"):  # more boxes of a row than 16 are a loop of eight, and the rest
        instructions = np.prod(tile) // box if boxes <= 16 else 8 + boxes % 8
        assert len(re.findall(rf"cp\.async\.bulk\.tensor\.\dd\.{way}", ptx)) == instructions
    shape = (*(5 for _ in tile[1:]), 2 * tile[-1] + 8)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(schedule(x), x)


def test_slots_of_any_length_have_room_between():
    x = np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(Vector()(x), x)
    plan = Vector().plan({"x": "fp32", "y": "fp32"})
    assert plan.buffer("x").gap == 112 and "3 x 400 and 112 between = 1536" in Vector().explain(
        {"x": "fp32", "y": "fp32"}
    )
    assert Vector().check({"x": "fp32", "y": "fp32"}).ok
    assert "mul" in Vector().compile({"x": "fp32", "y": "fp32"}).ptx


class Pixels(tp.Schedule):
    """d[b, h, w, o] = sum over c of x[b, h, w, c] f[o, c]: rows of accumulators are those of h and w."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=2)
    ring = tp.BarrierRing(3, producer=load, consumer=math)
    x = tp.TmaLoadStage("b h w c", tile=(4, 32, 64), ring=ring)
    f = tp.TmaLoadStage("o c", tile=(64, 64), ring=ring)
    mma = tp.Wgmma(x, f)
    d = tp.TmaStoreStage("b h w o", source=mma, tile=(4, 32, 64), columns=32)

    @load.jit
    def fill(self, k, tile):
        for c in range(k.steps("x", "c")):
            with k.ring.produce() as slot:
                slot.x.load(tile, c=c)
                slot.f.load(tile, c=c)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("x", "c")):
                with k.ring.consume() as slot:
                    acc.add(slot.x, slot.f)
        k.d.store(tile, acc)


def pixels(rows, groups=2, store=None):
    """`Pixels` with tiles whose rows are those of these extents."""

    class Changed(Pixels):
        math = tp.Role(warpgroups=groups)
        x = tp.TmaLoadStage("b h w c", tile=(*rows, 64), ring=Pixels.ring)
        mma = tp.Wgmma(x, Pixels.f)
        d = tp.TmaStoreStage("b h w o", source=mma, tile=(*(store or rows), 64), columns=32)

    return Changed()


@pytest.mark.parametrize(
    ("rows", "box"),
    sample([((4, 32), (2, 32)), ((1, 128), (1, 64)), ((64, 2), (32, 2)), ((2, 4, 16), (1, 4, 16))], 2),
)
def test_rows_of_accumulators_are_those_of_a_box(rows, box):
    schedule, made = pixels(rows), np.random.default_rng(0)
    assert schedule.plan().store("d").box == (*box, 32)
    for shape in ((1, 1, 1), (2, 5, 70), (1, 66, 3)):
        x, f = (made.integers(-2, 3, extents).astype(tp.dtypes.bf16.numpy) for extents in ((*shape, 72), (72, 72)))
        wanted = x.astype(np.float32) @ f.astype(np.float32).T
        np.testing.assert_array_equal(
            schedule(x, f).astype(np.float32), wanted.astype(tp.dtypes.bf16.numpy).astype(np.float32)
        )
    assert schedule.check().ok


def test_rows_that_make_no_box_are_refused():
    refused(pixels((8, 24), groups=3).plan, argument="d.tile", value=(8, 24, 64), rule="every 64 rows make a box")
    refused(
        pixels((4, 32), store=(2, 32)).plan, argument="d.tile", value=(2, 32, 64), rule=r"of \(128, 64\) accumulators"
    )
