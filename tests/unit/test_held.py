"""Rings that are filled once a CTA, and rings with one slot a tile beside an inner loop over another ring."""

import numpy as np
import pytest

import tmapipe as tp


class Scaled(tp.Schedule):
    """y[m, n] = x[m, n] w[n]: w is loaded once a CTA, and held."""

    relations = (tp.Dim("i", at_most=8), tp.Dim("n", at_most=128))
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    weights = tp.BarrierRing(producer=load, consumer=work, per="cta")
    w = tp.TmaLoadStage("i n", tile=(8, 128), ring=weights)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(8, 128), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(8, 128), role=work)

    @load.before.jit
    def fill_weights(self, k):
        with k.weights.produce() as slot:
            slot.w.load(i=0, n=0)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def scale(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() * k.weights.w.read()
        k.y.store(tile, values)


def tensors(rows=64, seed=0):
    made = np.random.default_rng(seed)
    return made.standard_normal((8, 128)).astype(np.float32), made.standard_normal((rows, 128)).astype(np.float32)


def scaled(w, x):
    return (x.reshape(-1, 8, 128) * w).reshape(x.shape)


@pytest.mark.parametrize("clusters", [1, 2, 5])
def test_held_over_all_tiles(clusters):
    w, x = tensors()
    y = np.empty_like(x)
    run = Scaled().simulate(w, x, out=y, clusters=clusters)
    np.testing.assert_array_equal(y, scaled(w, x))
    assert run.loaded_bytes == x.nbytes + clusters * w.nbytes


def test_proved_for_every_trip_count():
    report = Scaled().check()
    assert report.ok and report.trips == "every trip count", str(report)


def test_explained():
    text = Scaled().explain({"x": "fp32", "y": "fp32", "w": "fp32"})
    assert "ring weights: filled once a CTA, load -> work" in text
    assert "weights.full: 1 arrivals" in text and "weights.free" not in text


def test_compiles_to_one_wait_before_the_loop():
    ptx = Scaled().compile({"x": "fp32", "y": "fp32", "w": "fp32"}, unroll=False).ptx
    assert ptx.count("mbarrier.arrive.expect_tx") == 2
    assert ptx.count("mbarrier.init") == 1 + 2 * 3


class Multicast(Scaled):
    """Two CTAs share w, each of which loads half of it."""

    cluster = {"m": 2}  # noqa: RUF012
    w = tp.TmaLoadStage("i n", tile=(8, 128), ring=Scaled.weights, multicast=tp.MulticastGroup("m"))


def test_multicast():
    w, x = tensors(72)
    np.testing.assert_array_equal(Multicast()(w, x), scaled(w, x))
    report = Multicast().check()
    assert report.ok and report.trips == "every trip count", str(report)


class Teams(tp.Schedule):
    """d = a b^T, whose b is loaded once a CTA; two teams multiply tiles of a with it."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=2, teams=2)
    weights = tp.BarrierRing(producer=load, consumer=math, per="cta")
    b = tp.TmaLoadStage("n k", tile=(64, 128), ring=weights)
    ring = tp.BarrierRing(4, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(64, 128), ring=ring)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)

    @load.before.jit
    def fill_weights(self, k):
        with k.weights.produce() as slot:
            slot.b.load(n=0, k=0)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.a.load(tile, k=0)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            with k.ring.consume() as slot:
                acc.add(slot.a, k.weights.b)
        k.d.store(tile, acc)


class OneTeam(Teams):
    math = tp.Role(warpgroups=1)


@pytest.mark.parametrize("form", [OneTeam, Teams])
def test_an_operand_that_is_held(form):
    made = np.random.default_rng(0)
    b, a = (made.integers(-3, 4, shape).astype(tp.dtypes.bf16.numpy) for shape in ((64, 128), (500, 128)))
    wanted = (a.astype(np.float32) @ b.astype(np.float32).T).astype(tp.dtypes.bf16.numpy)
    np.testing.assert_array_equal(form()(b, a).astype(np.float32), wanted.astype(np.float32))
    report = form().check()
    assert report.ok and report.trips == "every trip count", str(report)
    assert form().compile().resources.spill_bytes == 0


@pytest.mark.parametrize("order", [tp.tiles.DynamicTiles(), tp.tiles.GpcTiles()])
def test_held_in_other_orders(order):
    schedule, (w, x) = Scaled(), tensors()
    schedule.tiles = order
    np.testing.assert_array_equal(schedule(w, x), scaled(w, x))
    assert schedule.check().ok


class Transformed(tp.Schedule):
    """y = x (2 w): a role doubles w once a CTA, in place, and others read it."""

    load, change, work = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=4)
    weights = tp.BarrierRing(chain=(load, change, work), per="cta")
    w = tp.TmaLoadStage("i n", tile=(8, 128), ring=weights)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(8, 128), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(8, 128), role=work)

    @load.before.jit
    def fill_weights(self, k):
        with k.weights.produce() as slot:
            slot.w.load(i=0, n=0)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @change.before.jit
    def double(self, k):
        with k.weights.consume() as slot:
            slot.w.write(slot.w.read() * 2)

    @change.jit
    def rest(self, k, tile):
        pass

    @work.jit
    def scale(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() * k.weights.w.read()
        k.y.store(tile, values)


def test_a_chain_once_a_cta():
    w, x = tensors()
    np.testing.assert_array_equal(Transformed()(w, x), scaled(2 * w, x))
    report = Transformed().check()
    assert report.ok and report.trips == "every trip count", str(report)


def no_fill(self, k):
    pass


def twice(self, k):
    for _ in range(2):
        with k.weights.produce() as slot:
            slot.w.load(i=0, n=0)


def in_the_body(self, k, tile):
    with k.weights.produce() as slot:
        slot.w.load(i=0, n=0)


def consumed(self, k, tile):
    with k.weights.consume():
        pass


def test_only_the_last_phase_reads_it_at_every_tile():
    class Early(Scaled):
        @Scaled.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)
            k.weights.w.load(i=0, n=0)

    with pytest.raises(tp.PipelineError, match=r"k\.weights\.w in role 'load'"):
        Early()(*tensors())

    class Misspelt(Scaled):
        @Scaled.work.jit
        def scale(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read() * k.weights.v.read()
            k.y.store(tile, values)

    with pytest.raises(tp.PipelineError, match="'weights' has no stage 'v'"):
        Misspelt()(*tensors())


def test_a_method_that_hides_what_comes_before_the_first_tile_is_refused():
    class Hidden(Scaled):
        def fill_weights(self, k):
            pass

    with pytest.raises(tp.InputError, match=r"decorate it with @load\.before\.jit"):
        Hidden().plan()
    with pytest.raises(tp.InputError, match=r"second body of role load"):

        class Second(Scaled):
            @Scaled.load.before.jit
            def one(self, k):
                pass

            @Scaled.load.before.jit
            def two(self, k):
                pass

        Second().plan()
    for hook, body in ((Scaled.load, Scaled.scale), (Scaled.work.before, Scaled.fill_weights)):
        with pytest.raises(tp.InputError, match="is the body of a role already"):
            hook.jit(body)


@pytest.mark.parametrize(
    ("hook", "body", "message"),
    [
        (Scaled.load.before, no_fill, "load.before.jit"),
        (Scaled.load.before, twice, "once"),
        (Scaled.load, in_the_body, "load.before.jit"),
        (Scaled.work, consumed, "k.weights.<stage>"),
    ],
)
def test_wrong_use_names_the_right_one(hook, body, message):
    body.__qualname__ = "Changed." + body.__name__
    name = {"no_fill": "fill_weights", "twice": "fill_weights", "in_the_body": "fill", "consumed": "scale"}[
        body.__name__
    ]
    schedule = type("Changed", (Scaled,), {name: hook.jit(body)})()
    with pytest.raises(tp.errors.ScopeError, match=message.replace(".", r"\.")):
        schedule(*tensors())


def test_writing_what_others_read_is_a_race():
    class Writes(Scaled):
        @Scaled.work.jit
        def scale(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
            k.weights.w.write(values)
            k.raw(lambda w: None, lambda w: None, reads=(k.weights.w,))
            k.y.store(tile, values)

    report = Writes().check()
    assert not report.ok and "w[0]" in str(report)


def test_wrong_declarations_are_refused():
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    for wrong in ({"per": "kernel"}, {"per": 1}, {"per": "cta", "stages": 2}):
        with pytest.raises(tp.InputError, match=r"BarrierRing\((per|stages)\)"):
            tp.BarrierRing(producer=load, consumer=work, **wrong)

    class Stored(Scaled):
        y = tp.TmaStoreStage(source=Scaled.w, dims="m n")

    with pytest.raises(tp.InputError, match=r"y\.source"):
        Stored().plan()


# ---- one slot a tile --------------------------------------------------------------------------------------------------


class Dots(tp.Schedule):
    """d[m, n] = q[m, n] * sum over s of x[s, m, n]: q is loaded once a tile, and its slot is open while x goes by."""

    load, work = tp.Role(warps=1), tp.Role(warps=4)
    queries = tp.BarrierRing(2, producer=load, consumer=work)
    q = tp.TmaLoadStage("m n", tile=(8, 128), ring=queries)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    x = tp.TmaLoadStage("s m n", tile=(8, 128), ring=ring)
    d = tp.TmaStoreStage("m n", tile=(8, 128), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.queries.produce() as slot:
            slot.q.load(tile)
        for s in range(k.steps("x", "s")):
            with k.ring.produce() as slot:
                slot.x.load(tile, s=s)

    @work.jit
    def total(self, k, tile):
        with k.queries.consume() as held:
            q = held.q.read()
            total = q * 0.0
            for _ in range(k.steps("x", "s")):
                with k.ring.consume() as slot:
                    total = total + q * slot.x.read()
        k.d.store(tile, total)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_one_slot_a_tile_beside_an_inner_loop(steps):
    made = np.random.default_rng(steps)
    q, x = made.integers(-4, 5, (24, 256)).astype(np.float32), made.integers(-4, 5, (steps, 24, 256)).astype(np.float32)
    np.testing.assert_array_equal(Dots()(q, x), q * x.sum(0))


def test_one_slot_a_tile_is_proved():
    report = Dots().check()
    assert report.ok and report.trips == "every trip count", str(report)
    assert Dots().compile({"q": "fp32", "x": "fp32", "d": "fp32"}).resources.spill_bytes == 0
