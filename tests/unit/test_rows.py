"""Rows by their numbers in a table, and slots that are stored in parts."""

import ml_dtypes
import numpy as np
import pytest

import tmapipe as tp
from tests.oracle.row_forms import GatherFour, GatherRows, PagedScores, ScatterFour, ScatterRows
from tests.unit.errors import refused

BF16 = ml_dtypes.bfloat16
INDEX = np.array([3, -1, 40, 7, 7, 0, 29, 12, 900, 2, 5, 17, 39, 38, 37, 1, 11, 6, 4], np.int32)
INSIDE = (INDEX >= 0) & (INDEX < 40)


def numbers(rows, columns=104, dtype=BF16):
    return np.random.default_rng(rows).integers(-9, 9, (rows, columns)).astype(dtype)


@pytest.mark.parametrize("kind", [GatherRows, GatherFour])
@pytest.mark.parametrize("seed", range(3))
def test_gathered(kind, seed):
    x = numbers(40)
    run = kind().simulate(x, INDEX, out=(y := np.ones((19, 104), BF16)), seed=seed)
    assert (y == np.where(INSIDE[:, None], x[np.clip(INDEX, 0, 39)], BF16(0))).all()
    one_by_one = 3 * 2 * 8
    assert run.counts["TmaGather" if kind is GatherFour else "TmaLoad"] == one_by_one // (
        4 if kind is GatherFour else 1
    )


@pytest.mark.parametrize("kind", [ScatterRows, ScatterFour])
@pytest.mark.parametrize("seed", range(3))
def test_scattered(kind, seed):
    """Each row once; those without a place are left out, and no other row is written."""
    index = np.where(INDEX == 7, 28 + np.arange(19), INDEX).astype(np.int32)
    inside = (index >= 0) & (index < 40)
    x, y = numbers(19), np.full((40, 104), 77, BF16)
    expected = y.copy()
    expected[index[inside]] = x[inside]
    run = kind().simulate(x, index, out=y, seed=seed)
    assert (y == expected).all()
    assert run.counts["TmaScatter" if kind is ScatterFour else "TmaStore"] == 48 // (4 if kind is ScatterFour else 1)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_added(arch):
    """Rows that go to one place are all added, one by one: scatter4 does not reduce."""
    schedule = ScatterRows("add")
    schedule.arch = arch
    x, y = numbers(19, dtype=np.float32), np.ones((40, 104), np.float32)
    expected = y.copy()
    np.add.at(expected, INDEX[INSIDE], x[INSIDE])
    run = schedule.simulate(x, INDEX, out=y)
    assert (y == expected).all() and run.counts["TmaStore"] == 48


@pytest.mark.parametrize("form", [GatherRows, GatherFour, ScatterRows, ScatterFour, lambda: ScatterRows("add")])
def test_checked(form):
    report = form().check()
    assert report.ok and not report.findings and "every trip count" in str(report)


def test_four_at_once_only_where_a_box_takes_them():
    """Of matrices, of rows no longer than a box."""

    class Batches(GatherRows):
        load, store = GatherRows.load, GatherRows.store
        arch = "sm_100a"
        x = tp.TmaLoadStage("l r n", tile=(8, 64), ring=GatherRows.ring).in_parts(8)
        y = tp.TmaStoreStage("l m n", source=x)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.gather(k.index, tile.m * 8, tile)

    class Long(GatherRows):
        load, store = GatherRows.load, GatherRows.store
        arch = "sm_100a"
        x = tp.TmaLoadStage("r n", tile=(8, 512), ring=GatherRows.ring).in_parts(8)
        y = tp.TmaStoreStage("m n", source=x)

    x = numbers(80).reshape(2, 40, 104)
    run = Batches().simulate(x, INDEX[:4], out=(y := np.zeros((2, 4, 104), BF16)))
    assert (y == np.where(INSIDE[:4, None], x[:, np.clip(INDEX[:4], 0, 39)], BF16(0))).all()
    assert "TmaGather" not in run.counts
    run = Long().simulate(numbers(40, 1000), INDEX, out=np.zeros((19, 1000), BF16))
    assert "TmaGather" not in run.counts


def test_parts_to_where_they_belong():
    class Swapped(tp.Schedule):
        """Halves of tiles change places."""

        load, store = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(2, producer=load, consumer=store)
        x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
        y = tp.TmaStoreStage(source=x).in_parts(2)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                for i in range(2):
                    slot.y.store_part(i, m=2 * tile.m + 1 - i, n=tile.n)

    x = numbers(32)
    assert (Swapped()(x) == x.reshape(4, 2, 4, 104)[:, ::-1].reshape(32, 104)).all()
    assert Swapped().check().ok and repr(Swapped.y).endswith(".in_parts(2)")

    class Whole(Swapped):
        load, store = Swapped.load, Swapped.store

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store(tile)

    refused(Whole().check, argument="slot.y", rule="stored in 2 parts")

    class Third(Swapped):
        load, store = Swapped.load, Swapped.store

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store_part(2, tile)

    refused(Third().check, argument="store_part", rule="2 parts")

    class InOrder(Swapped):
        load, store = Swapped.load, Swapped.store

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                for i in range(2):
                    slot.y.store_part(i, tile)

    assert (InOrder()(x) == x).all()


def with_body(form, role, use):
    """*form* whose body of *role* calls *use* with k, the slot and the tile."""

    class Other(form):
        load, store = form.load, form.store

        @getattr(form, role).jit
        def body(self, k, tile):
            with k.ring.produce() if role == "load" else k.ring.consume() as slot:
                use(k, slot, tile)

    return Other()


@pytest.mark.parametrize("form, role, name", [(GatherRows, "load", "gather"), (ScatterRows, "store", "scatter")])
def test_refused(form, role, name):
    def move(slot):
        return getattr(slot.x if role == "load" else slot.y, name)

    cases = [
        (lambda k, slot, tile: move(slot)(k.index.entry(0), 0, n=tile.n), f"{name}(table)", "table of row numbers"),
        (lambda k, slot, tile: move(slot)(k.index, 0.5, n=tile.n), f"{name}(first)", "number of an entry"),
        (lambda k, slot, tile: move(slot)(k.index, 0, r=1, n=tile.n), f"{name}(r)", "the table says"),
        (lambda k, slot, tile: move(slot)(k.index, 0), name, "coordinate"),
    ]
    for use, argument, rule in cases:
        refused(with_body(form, role, use).check, argument=argument, rule=rule)


def test_declarations_that_are_refused():
    refused(GatherRows.x.in_parts, 3, argument="in_parts", rule="divides")
    refused(tp.TmaStoreStage(tile=(8, 64), role=tp.Role(warps=1)).in_parts, 2, argument="in_parts", rule="from a slot")

    class Halves(GatherRows):
        load, store = GatherRows.load, GatherRows.store
        x = tp.TmaLoadStage("r n", tile=(8, 64), ring=GatherRows.ring).in_parts(2)
        y = tp.TmaStoreStage("m n", source=x)

    refused(Halves().check, argument="slot.x.gather", rule="as many parts as it has rows")

    class Short(ScatterRows):
        load, store = ScatterRows.load, ScatterRows.store
        x = tp.TmaLoadStage("m n", tile=(8, 32), ring=ScatterRows.ring)

        def __init__(self):
            self.y = tp.TmaStoreStage("r n", source=self.x).in_parts(8)

    refused(Short().plan, argument="y.in_parts", rule="parts of 1 rows, 64 bytes")


# ---- tables of two dimensions -----------------------------------------------------------------------------------------


def paged_problem(batch=3, m=70, count=6, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.integers(-3, 4, (batch, m, 64)).astype(np.float16)
    keys = rng.integers(-3, 4, (batch * count + 5, 16, 64)).astype(np.float16)
    pages = rng.permutation(len(keys))[: batch * count].reshape(batch, count).astype(np.int32)
    lengths = rng.integers(0, 16 * count + 1, batch).astype(np.int32)
    scores = q.astype(np.float32) @ keys[pages].reshape(batch, -1, 64).transpose(0, 2, 1).astype(np.float32)
    columns = np.arange(16 * count)
    return q, keys, pages, lengths, np.where(columns < lengths[:, None, None], scores, np.float32(-1e30))


@pytest.mark.parametrize("seed", range(3))
def test_pages_of_sequences(seed):
    *given, want = paged_problem(seed=seed)
    found = np.zeros_like(want)
    PagedScores().simulate(*given, out=found, clusters=2, seed=seed)
    assert (found == want).all()


def test_tables_of_two_dimensions_are_proved():
    report = PagedScores().check()
    assert report.ok and not report.findings and report.trips == "every trip count"


def test_entries_beyond_either_end_are_outside():
    class Entries(GatherRows):
        load, store = GatherRows.load, GatherRows.store
        index = tp.Table("a b")

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                for i in range(8):
                    slot.x.load_part(i, r=k.index.entry(tile.m, i - 1), n=tile.n)

    index = np.array([[5, 1, 2], [3, 4, 0]], np.int32)
    x = np.arange(1, 6 * 64 + 1, dtype=np.float32).reshape(6, 64)
    y = np.zeros((16, 64), np.float32)
    Entries()(x, index, out=y)
    for m in range(2):
        assert (
            not y[8 * m].any()
            and not y[8 * m + 4 : 8 * m + 8].any()
            and (y[8 * m + 1 : 8 * m + 4] == x[index[m]]).all()
        )


class Wrong(PagedScores):
    load, math = PagedScores.load, PagedScores.math

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.q.load(tile, d=0)
            for i in range(4):
                slot.keys.load_part(i, p=k.pages.entry(tile.n * 4 + i), t=0, d=0)


def test_tables_of_two_dimensions_refused():
    q, keys, pages, lengths, want = paged_problem()
    refused(Wrong().check, argument="k.pages.entry", rule="along each of b, i")
    refused(PagedScores(), q, keys, pages.T.copy().T, lengths, out=want, argument="pages.shape", rule="dense matrix")
    refused(PagedScores(), q, keys, pages[0], lengths, out=want, argument="pages.shape", rule="dense matrix")
    refused(PagedScores(), q, keys, pages[:2], lengths, out=want, argument="pages.shape", rule="has b = 2")
