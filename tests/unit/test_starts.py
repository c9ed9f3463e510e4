"""Where loads and stores start: in elements, outside of the tensor, and parts of a tile from wherever they lie."""

import numpy as np
import pytest

import tmapipe as tp
from tests.matmul_schedules import OneRing
from tests.unit.errors import refused


class Shifted(tp.Schedule):
    """y[m, n] = x[m - 3, n + 4], zero where x has no such element; stored from the slot."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)
    by = (-3, 4)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load_from(tile.m * 16 + self.by[0], tile.n * 64 + self.by[1])

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store_from(tile.m * 16, tile.n * 64)


class Pushed(tp.Schedule):
    """y[m + 3, n + 4] = x[m, n], where y has such an element; stored through buffers, and others of y stay as they are."""

    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(16, 64), role=work)
    by = (3, 4)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def move(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store_from(tile.m * 16 + self.by[0], tile.n * 64 + self.by[1], values=values)


def shifted(x, rows, columns):
    """x[m + rows, n + columns], zero outside."""
    found = np.zeros_like(x)
    (m, n), (a, b) = x.shape, (rows, columns)
    found[max(0, -a) : m - max(a, 0), max(0, -b) : n - max(b, 0)] = x[
        max(0, a) : m + min(a, 0), max(0, b) : n + min(b, 0)
    ]
    return found


SHIFTS = [(-3, 4), (3, -4), (-16, -64), (40, 8), (0, 0)]


@pytest.mark.parametrize("by", SHIFTS)
@pytest.mark.parametrize("form", [Shifted, Pushed])
def test_starts_outside(form, by):
    if form is Pushed:
        by = tuple(map(abs, by))
    schedule, x = form(), np.random.default_rng(0).standard_normal((50, 136)).astype(np.float32)
    schedule.by = by
    y = np.zeros_like(x)
    schedule(x, out=y)
    np.testing.assert_array_equal(y, shifted(x, *by) if form is Shifted else shifted(x, -by[0], -by[1]))
    report = schedule.check({"x": "fp32", "y": "fp32"})
    assert report.ok and report.trips == "every trip count", str(report)


def test_a_store_before_the_tensor_is_found():
    schedule = Pushed()
    schedule.by = (0, -8)
    assert "before the tensor begins" in str(schedule.check({"x": "fp32", "y": "fp32"}))


def test_a_loop_that_goes_too_far_is_still_found():
    class TooFar(Shifted):
        @Shifted.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(m=tile.m + 1, n=tile.n)

    assert "the tensor ends at" in str(TooFar().check())


def test_wrong_starts_are_refused():
    class Wrong(Shifted):
        start = (0,)

        @Shifted.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load_from(*self.start)

    class WrongStore(Shifted):
        start = (0,)

        @Shifted.store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store_from(*self.start)

    class WrongBuffered(Pushed):
        start = (0,)

        @Pushed.work.jit
        def move(self, k, tile):
            with k.ring.consume() as slot:
                k.y.store_from(*self.start, values=slot.x.read())

    x = np.ones((16, 64), np.float32)
    for form in (Wrong, WrongStore, WrongBuffered):
        for start in ((0,), (0, 0, 0), (0, 0.5), (0, "n"), ()):
            schedule = form()
            schedule.start = start
            refused(schedule, x, argument="_from", value=start, rule="one index along each of m, n")


# ---- parts of a tile --------------------------------------------------------------------------------------------------


class Gathered(tp.Schedule):
    """y[m, n] = x[rows[m], n], row by row. Rows beyond the last are zero, since the table has as many as y."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage("i n", tile=(8, 64), ring=ring).in_parts(8)
    rows = tp.Table("m")
    y = tp.TmaStoreStage("m n", source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            for r in range(8):
                slot.x.load_part(r, i=k.rows.entry(tile.m * 8 + r), n=tile.n)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


@pytest.mark.parametrize("count", [1, 8, 21])
def test_rows_by_index(count):
    made = np.random.default_rng(count)
    x, rows = made.standard_normal((30, 128)).astype(np.float32), made.integers(0, 30, count).astype(np.int32)
    y = np.empty((count, 128), np.float32)
    np.testing.assert_array_equal(Gathered()(x, rows, out=y), x[rows])


def test_rows_by_index_are_proved_and_compile():
    kinds = {"x": "fp32", "y": "fp32"}
    report = Gathered().check(kinds)
    assert report.ok and report.trips == "every trip count", str(report)
    ptx = Gathered().compile(kinds, unroll=False).ptx
    assert ptx.count("cp.async.bulk.tensor.2d.shared") == 1 and "ld.global" in ptx
    assert Gathered().plan(kinds).load("x").box == (1, 64)


class Halves(tp.Schedule):
    """y has the halves of each 16 rows of x in the other order."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring, swizzle=128).in_parts(2)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            for i in range(2):
                slot.x.load_part_from(i, tile.m * 16 + 8 * (1 - i), tile.n * 64)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


def test_parts_of_swizzled_tiles():
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    np.testing.assert_array_equal(Halves()(x), x.reshape(4, 2, 8, 64)[:, ::-1].reshape(64, 64))
    assert Halves().check({"x": "fp32", "y": "fp32"}).ok
    ptx = Halves().compile({"x": "fp32", "y": "fp32"}, unroll=False).ptx
    assert (
        ptx.count("cp.async.bulk.tensor.2d.shared") == 2
    )  # 64 columns are two spans; the loop over parts is one of run time


class InOrder(Halves):
    """y = x, with the parts of each tile from the tile itself."""

    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=Halves.ring).in_parts(4)
    y = tp.TmaStoreStage(source=x)

    @Halves.load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            for i in range(4):
                slot.x.load_part(i, tile)


def test_parts_of_a_tile():
    x = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    np.testing.assert_array_equal(InOrder()(x), x)


def test_a_part_that_nobody_loads_is_a_deadlock():
    class Half(InOrder):
        @Halves.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                for i in range(3):
                    slot.x.load_part(i, tile)

    assert not Half().check({"x": "fp32", "y": "fp32"}).ok
    with pytest.raises(tp.errors.DeadlockError):
        Half()(np.ones((16, 64), np.float32))


def test_a_part_that_is_loaded_twice_is_found():
    class Twice(InOrder):
        @Halves.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                for i in range(4):
                    slot.x.load_part(i // 2 * 2, tile)

    assert not Twice().check({"x": "fp32", "y": "fp32"}).ok


def test_wrong_parts_are_refused():
    ring = Halves.ring
    for wrong in (0, 3, "2", 1.5, True):
        refused(
            tp.TmaLoadStage(tile=(16, 64), ring=ring).in_parts, wrong, argument="in_parts", value=wrong, rule="divides"
        )
    assert not hasattr(tp.BulkLoadStage("n", tile=(64,), ring=ring), "in_parts")

    def planned(**options):
        class Changed(Halves):
            cluster = {"n": 2}  # noqa: RUF012
            x = tp.TmaLoadStage("m n", **{"tile": (16, 64), "ring": ring, **options}).in_parts(8)
            y = tp.TmaStoreStage(source=x)

        return Changed().plan

    refused(planned(swizzle=128), argument="x.in_parts", value=8, rule="of 8 rows where they are swizzled")
    refused(planned(tile=(16, 8)), argument="x.in_parts", value=8, rule="multiples of 128 bytes")

    class Shared(Halves):
        cluster = {"b": 2}  # noqa: RUF012
        x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring, multicast=tp.MulticastGroup("b")).in_parts(2)
        y = tp.TmaStoreStage("b m n", source=x)

    refused(Shared().plan, argument="x.in_parts", value=2, rule="peers load shares")

    class Whole(InOrder):
        @Halves.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

    refused(Whole(), np.ones((16, 64), np.float32), argument="slot.x", rule="in 4 parts")

    class Beyond(InOrder):
        @Halves.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load_part(4, tile)

    refused(Beyond(), np.ones((16, 64), np.float32), argument="load_part", value=4, rule="in 4 parts")


# ---- slots that threads fill ------------------------------------------------------------------------------------------


class Converted(tp.Schedule):
    """y = bf16(2 x): what threads write into a slot of another type is stored from there."""

    load, work, store = tp.Role(warps=1), tp.Role(warps=4), tp.Role(warps=1)
    ring = tp.BarrierRing(3, chain=(load, work, store))
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring, dtype="fp32")
    half = tp.SharedStage(tile=(16, 64), ring=ring, writer=work, dtype="bf16")
    y = tp.TmaStoreStage("m n", source=half)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def convert(self, k, tile):
        with k.ring.consume() as slot:
            slot.half.write(slot.x.read() * 2)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


def test_a_shared_stage_is_stored():
    x = np.random.default_rng(0).standard_normal((50, 136)).astype(np.float32)
    y = np.empty(x.shape, tp.dtypes.bf16.numpy)
    Converted()(x, out=y)
    np.testing.assert_array_equal(y, (2 * x).astype(tp.dtypes.bf16.numpy))
    report = Converted().check()
    assert report.ok and report.trips == "every trip count", str(report)
    assert Converted().compile().ptx.count("fence.proxy.async") >= 1
    refused(tp.TmaStoreStage, source=Converted.half, dtype="fp32", argument="dtype", rule="follow from the slot")
    refused(Converted(), x, out=np.empty_like(x), argument="y", value="fp32", rule="bf16")


def test_a_shared_stage_is_stored_by_its_reader_alone():
    class Early(Converted):
        @Converted.work.jit
        def convert(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store(tile)

    with pytest.raises(tp.errors.ScopeError, match="last role stores"):
        Early()(np.ones((16, 64), np.float32), out=np.empty((16, 64), tp.dtypes.bf16.numpy))


@pytest.mark.parametrize("source", ["x", "half"])
def test_several_warps_do_not_store_a_slot_several_times(source):
    class Several(Converted):
        store = tp.Role(warps=2)
        y = tp.TmaStoreStage("m n", source=getattr(Converted, source), role=Converted.store)

    refused(Several().plan, argument="TmaStoreStage(y).role", value=["store"], rule="one role of one warp")


class Indented(OneRing):
    """d[m + 5, n + 8] = sum over k of a[m, k] b[n, k]: accumulators that are stored from another element on."""

    load, math = OneRing.load, OneRing.math
    d = tp.TmaStoreStage("p q", source=OneRing.mma)
    over = "m n"

    def store(self, k, tile, acc):
        k.d.store_from(tile.m * 64 + 5, tile.n * 64 + 8, values=acc, epilogue=lambda sums: sums + 1)


def test_accumulators_are_stored_from_any_element():
    made = np.random.default_rng(0)
    a, b = (made.integers(-3, 4, shape).astype(tp.dtypes.bf16.numpy) for shape in ((100, 72), (72, 72)))
    d = np.zeros((110, 90 // 8 * 8), tp.dtypes.bf16.numpy)
    Indented()(a, b, out=d)
    wanted = np.zeros((64 * 2 + 5, 64 * 2 + 8), np.float32)
    wanted[5:, 8:] = 1
    wanted[5:105, 8:80] += a.astype(np.float32) @ b.astype(np.float32).T
    wanted = wanted[: d.shape[0], : d.shape[1]].astype(tp.dtypes.bf16.numpy)
    np.testing.assert_array_equal(d.astype(np.float32), wanted.astype(np.float32))
    assert Indented().check().ok and Indented().compile().resources.spill_bytes == 0
