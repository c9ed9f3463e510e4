"""Relations of dimensions, and grids of output tiles over any of them."""

import numpy as np

import tmapipe as tp
from tests.unit.errors import refused


class Scaled(tp.Schedule):
    """y[b, m] = x[b, m] s[ceil], one row of s for each 8 rows of x, in every batch."""

    relations = (tp.Dim("mb", of="m", per=8), tp.Dim("n", size=64))
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    x = tp.TmaLoadStage("b m n", tile=(8, 64), ring=ring)
    s = tp.TmaLoadStage("mb n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage("b m n", tile=(8, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
            slot.s.load_from(tile.m, 0)

    @work.jit
    def scale(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() + slot.s.read()
        k.y.store(tile, values)


def test_related_extents_are_checked_by_name():
    x, s = np.ones((2, 20, 64), np.float32), np.ones((3, 64), np.float32)
    assert Scaled()(x, s).shape == x.shape
    rule = r"is ceil\(m / 8\) = 3, with m = 20 of x"
    refused(Scaled(), x, np.ones((2, 64), np.float32), argument="s.shape along mb", value=2, rule=rule)
    refused(Scaled(), x[..., :32], s[..., :32], argument="x.shape along n", value=32, rule="is 64 by its Dim")


def test_related_extents_are_explained_and_proved():
    text = Scaled().explain()
    assert "dimension mb = ceil(m / 8)" in text and "dimension n = 64" in text
    assert Scaled().check({"x": "fp32", "y": "fp32", "s": "fp32"}).ok


def test_an_extent_that_is_several_times_another():
    class Twice(Scaled):
        """y[b, q] = each row of x twice, in order of tiles."""

        relations = (tp.Dim("q", of="m", times=2), tp.Dim("mb", of="m", per=8), tp.Dim("n", size=64))
        over = "b m n"
        load, work = Scaled.load, Scaled.work
        y = tp.TmaStoreStage("b q n", tile=(8, 64), role=work)

        @work.jit
        def scale(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read() + slot.s.read()
            for i in range(2):
                k.y.store(tile.also(q=2 * tile.m + i), values)

    x, s = np.ones((2, 24, 64), np.float32), np.ones((3, 64), np.float32)
    assert "dimension q = m * 2" in Twice().explain() and Twice().plan().shapes({"q": 5})["x"][1] == 3
    assert Twice()(x, s).shape == (2, 48, 64)
    refused(Twice(), x, s, np.ones((2, 40, 64), np.float32), argument="y.shape", rule="by its Dim it is 48")
    report = Twice().check({"x": "fp32", "y": "fp32", "s": "fp32"})
    assert report.ok and not report.outputs, str(report)
    refused(tp.Dim, "q", of="m", times=0, argument="Dim(times)", rule="positive")


class Valid(tp.Schedule):
    """y[i, n] = x[i, n] + x[i + 2, n], which has two rows less than x; its rows come out column by column of tiles."""

    relations = (tp.Dim("i", of="m", plus=-2),)
    over = "n i"
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(4, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage("i n", tile=(8, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        for row in range(2):
            with k.ring.produce() as slot:
                slot.x.load_from(tile.i * 8 + 2 * row, tile.n * 64)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            total = slot.x.read()
        with k.ring.consume() as slot:
            total = total + slot.x.read()
        k.y.store(tile, total)


def test_an_output_has_the_extent_that_follows():
    x = np.random.default_rng(0).standard_normal((30, 200)).astype(np.float32)
    y = Valid()(x)
    np.testing.assert_array_equal(y, x[:-2] + x[2:])
    assert Valid()(x[:2]).shape == (0, 200)
    refused(Valid(), x, out=np.empty_like(x), argument="y.shape", rule="has i = 30, but by its Dim it is 28")
    assert list(Valid().axes) == ["n", "i"]
    text = Valid().explain()
    assert "output tiles: 64 along n x 8 along i" in text and "dimension i = m - 2" in text
    report = Valid().check({"x": "fp32", "y": "fp32"})
    assert report.ok and report.trips == "every trip count", str(report)
    assert Valid().compile({"x": "fp32", "y": "fp32"}).resources.spill_bytes == 0


class Summed(tp.Schedule):
    """y[n] = sum over m of x[m, n], tile by tile of x: the grid has a dimension that the output lacks."""

    over = "m n"
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(64,), ring=ring)
    y = tp.TmaStoreStage("n", source=x, reduce="add")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


def test_a_grid_over_dimensions_that_the_output_lacks():
    x = np.random.default_rng(0).integers(-9, 9, (30, 200)).astype(np.float32)
    np.testing.assert_array_equal(Summed()(x), x.sum(0))
    report = Summed().check({"x": "fp32", "y": "fp32"})
    assert report.ok and report.trips == "every trip count", str(report)
    for tiles in (tp.tiles.DynamicTiles(), tp.tiles.PersistentTiles(tp.tiles.Columns(8))):
        schedule = Summed()
        schedule.tiles = tiles
        np.testing.assert_array_equal(schedule(x), x.sum(0))


def test_a_fixed_extent_is_a_number_in_bodies():
    class Counted(Scaled):
        @Scaled.load.jit
        def fill(self, k, tile):
            assert type(k.extent("n")) is int and k.steps("x", "n") == 1
            with k.ring.produce() as slot:
                slot.x.load(tile)
                slot.s.load_from(tile.m, 64 * (k.steps("s", "n") - 1))

    kinds = {"x": "fp32", "y": "fp32", "s": "fp32"}
    assert Counted().check(kinds).ok and Counted().compile(kinds).ptx
    x, s = np.ones((2, 20, 64), np.float32), np.ones((3, 64), np.float32)
    assert Counted()(x, s).shape == x.shape


def test_wrong_grids_and_relations_are_refused():
    for wrong in ("", "m q", "m m", 3, ("m", "n")):
        schedule = Summed()
        refused(
            lambda schedule=schedule, wrong=wrong: setattr(schedule, "over", wrong) or schedule.plan(),
            argument="over",
            rule="m",
        )
    for wrong in ("Dim", [tp.Dim("m", size=3)], (3,)):
        schedule = Summed()
        schedule.relations = wrong
        refused(schedule.plan, argument="relations", value=wrong, rule="tuple of Dim")
    for wrong in (
        {},
        {"size": 3, "of": "k"},
        {"size": 0},
        {"of": "m"},
        {"of": 3},
        {"of": "k", "per": 0},
        {"of": "k", "plus": 1.5},
        {"at_most": 0},
        {"at_most": 2.0},
        {"at_most": 8, "size": 3},
        {"at_most": 8, "of": "m"},
    ):
        refused(tp.Dim, "m", **wrong, argument="Dim", rule="")
    refused(tp.Dim, "m n", size=3, argument="Dim(name)", rule="dimension")


class Rows(tp.Schedule):
    """y = x less the largest element of its row, for rows of up to 64 elements."""

    relations = (tp.Dim("n", at_most=64),)
    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(8, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def shift(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values - tp.math.row_max(values, inside=k.extent("n")))


def test_rows_longer_than_their_tile_are_refused():
    x = np.arange(20 * 60, dtype=np.float32).reshape(20, 60)
    np.testing.assert_array_equal(Rows()(x), x - x.max(1, keepdims=True))
    for wide in (np.ones((20, 68), np.float32), np.ones((20, 128), np.float32)):
        refused(Rows(), wide, argument="x.shape along n", value=wide.shape[1], rule="at most 64 by its Dim")
    assert "dimension n <= 64" in Rows().explain()
    report = Rows().check({"x": "fp32", "y": "fp32"})
    assert report.ok and report.trips == "every trip count"


def test_an_extent_that_follows_from_another_can_be_bounded():
    dim = tp.Dim("mb", of="m", per=8, at_most=2)
    assert dim.text == "mb = ceil(m / 8) <= 2"

    class Few(Scaled):
        relations = (dim, tp.Dim("n", size=64))

    x = np.ones((2, 16, 64), np.float32)
    assert Few()(x, x[0, :2]).shape == x.shape
    tall = np.ones((2, 20, 64), np.float32)
    refused(Few(), tall, x[0, :3], argument="s.shape along mb", value=3, rule="at most 2 by its Dim")
    assert Few().plan().shapes({"m": 100})["x"] == (1, 16, 64)


def test_the_extent_of_a_dimension_in_a_body():
    class Reversed(Summed):
        dim = "m"
        y = tp.TmaStoreStage("m n", source=Summed.x)

        @Summed.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile, m=k.extent(self.dim) - 1 - tile.m)

    x = np.arange(30 * 64, dtype=np.float32).reshape(30, 64)
    np.testing.assert_array_equal(Reversed()(x), x[::-1])
    schedule = Reversed()
    schedule.dim = "q"
    refused(schedule, x, argument="k.extent", value="q", rule="m, n")


def test_relations_are_about_dimensions_that_stages_have():
    for relation, argument, value in (
        (tp.Dim("q", size=8), "Dim(name)", "q"),
        (tp.Dim("n", of="q"), "Dim(of)", "q"),
        (tp.Dim("q", of="n"), "Dim(name)", "q"),
    ):
        schedule = Scaled()
        schedule.relations = (relation,)
        refused(schedule.plan, argument=argument, value=value, rule=r"dimension of a stage \(b, m, n, mb\)")
    schedule.relations = (tp.Dim("q", of="n", per=8), tp.Dim("mb", of="q"))  # through one that no stage has
    schedule.plan()
