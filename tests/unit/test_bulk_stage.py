"""BulkLoadStage: a ring whose slots are filled without a descriptor."""

import numpy as np
import pytest

import tmapipe as tp
from examples.stream_copy import vector_copy
from tests.emit.forms import BulkBothWays, BulkReduced, BulkVectorCopy
from tests.oracle.copy_forms import BulkFromSlots
from tests.unit.errors import refused


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_a_copy_in_bulk(pieces):
    x = np.arange(1024 * pieces, dtype=np.float32)
    assert (BulkVectorCopy()(x) == x).all()


def test_a_piece_by_each_cta():
    copy, x = vector_copy(64, l2_hint="evict_last"), np.arange(64 * 5, dtype=np.int32)
    assert (copy(x) == x).all() and copy.check().trips == "every trip count"
    ptx = copy.compile().ptx
    assert ptx.count("cp.async.bulk") == 4  # a load, a store, a commit and a wait
    assert "cp.async.bulk.tensor" not in ptx and "mul.hi" not in ptx


def test_its_loads_are_bulk_copies():
    run = BulkVectorCopy().simulate(np.zeros(3072, np.float32))
    assert run.counts["BulkLoad"] == 3 and run.counts["TmaLoad"] == 0 and run.loaded_bytes == 4 * 3072


def test_it_is_proved():
    assert BulkVectorCopy().check().trips == "every trip count"


class Rows(BulkVectorCopy):
    """Pieces of rows of a matrix."""

    load, store = BulkVectorCopy.load, BulkVectorCopy.store
    x = tp.BulkLoadStage("m n", tile=(512,), ring=BulkVectorCopy.ring)
    y = tp.TmaStoreStage(source=x)


class Pairs(Rows):
    load, store = Rows.load, Rows.store
    cluster = {"m": 2, "n": 2}  # noqa: RUF012


def test_pieces_of_rows():
    x = np.random.default_rng(0).standard_normal((7, 1536)).astype(np.float32)
    assert (Rows()(x) == x).all() and (Pairs()(x[:6, :1024]) == x[:6, :1024]).all()
    assert Rows().check().trips == Pairs().check().trips == "every trip count"


def test_whole_pieces_for_each_cluster():
    x = np.zeros((6, 1536), np.float32)
    refused(Pairs(), x, argument="x.shape", rule="whole pieces of 2 x 1024 elements a cluster")
    refused(Pairs(), x[:5, :1024].copy(), argument="x.shape", rule="whole pieces of 2 x 1024 elements a cluster")


def test_only_whole_pieces():
    refused(BulkVectorCopy(), np.zeros(1500, np.float32), argument="x.shape", rule="whole pieces of 1024 elements")


@pytest.mark.parametrize("start", [lambda k, tile: (8, 0), lambda k, tile: (-1, 0), lambda k, tile: (tile.m, 1024 + 8)])
def test_nothing_is_loaded_from_outside(start):
    """A GPU would read what lies there."""

    class Far(Rows):
        load, store = Rows.load, Rows.store

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load_from(*start(k, tile))

    with pytest.raises(
        tp.errors.HazardError, match=r"loads x at \(.*\), of a tensor of \(7, 1536\).* use a TmaLoadStage"
    ):
        Far()(np.zeros((7, 1536), np.float32))


def test_what_needs_a_descriptor_is_refused():
    ring = BulkVectorCopy.ring
    refused(tp.BulkLoadStage, "m n", tile=(4, 64), ring=ring, argument="tile", rule="one extent")
    refused(tp.BulkLoadStage, "n", tile=(64,), ring=ring, swizzle=128, argument="swizzle", rule="needs a descriptor")
    refused(tp.BulkLoadStage, "n", tile=(64,), ring=ring, l2_hint="first", argument="l2_hint", rule="evict_first")


def test_explain_says_so():
    assert "load x [n]: tile 1024 bf16, swizzle 0 bytes, box 1024" in BulkVectorCopy().explain()


# ---- stores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1024, 3072, 7 * 1024])
def test_in_bulk_both_ways(n):
    x = np.arange(n, dtype=np.float32)
    run = BulkBothWays().simulate(x, out=(y := np.zeros_like(x)))
    assert (y == x).all() and run.counts["BulkStore"] == n // 1024 and run.counts["TmaStore"] == 0


@pytest.mark.parametrize("n", [4, 256, 260, 1000])
@pytest.mark.parametrize("reduce", ["min", "max", "add", "and", "or", "xor", "inc", "dec"])
def test_what_memory_becomes(reduce, n):
    rng = np.random.default_rng(n)
    x, y = (rng.integers(-(2**31), 2**31, n, dtype=np.int64).astype(np.int32) for _ in range(2))
    whole = {"min": np.minimum, "max": np.maximum, "add": np.add, "and": np.bitwise_and, "or": np.bitwise_or}
    wanted = whole | {
        "xor": np.bitwise_xor,
        "inc": lambda old, new: np.where(old.view(np.uint32) >= new.view(np.uint32), 0, old + 1),
        "dec": lambda old, new: np.where((old == 0) | (old.view(np.uint32) > new.view(np.uint32)), new, old - 1),
    }
    before = y.copy()
    BulkReduced(reduce)(x, out=y)
    assert (y == wanted[reduce](before, x)).all()


@pytest.mark.parametrize("reduce", ["min", "max", "add", "and", "or", "xor"])
def test_what_memory_of_64_bits_becomes(reduce):
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-(2**63), 2**63 - 1, 1024, dtype=np.int64) for _ in range(2))
    how = {"min": np.minimum, "max": np.maximum, "add": np.add, "and": np.bitwise_and, "or": np.bitwise_or}
    wanted = how.get(reduce, np.bitwise_xor)(y, x)
    BulkFromSlots(reduce)(x, out=y)
    assert (y == wanted).all()
    x, y = rng.standard_normal((2, 1024))
    wanted = x + y
    BulkFromSlots("add", "fp64")(x, out=y)
    assert (y == wanted).all()


def test_nothing_is_written_beyond_the_last_piece():
    memory = np.full(300, 7, np.int32)
    BulkReduced("max")(np.full(260, 9, np.int32), out=memory[:260])
    assert (memory[:260] == 9).all() and (memory[260:] == 7).all()


@pytest.mark.parametrize("make", [BulkBothWays, BulkReduced])
def test_stores_are_proved(make):
    assert make().check().trips == "every trip count"


def test_what_bulk_stores_do_not_take():
    work, x = BulkReduced.store, BulkVectorCopy.x
    refused(tp.BulkStoreStage, "m n", tile=(4, 64), role=work, argument="tile", rule="one extent")
    assert not hasattr(tp.BulkStoreStage(source=x), "in_parts")  # which is of the TMA engine
    refused(tp.BulkStoreStage, "n", source="x", argument="source", rule="stage of slots")
    refused(tp.BulkStoreStage, "n", source=x, columns=8, argument="columns", rule="stores of matrices")
    refused(BulkReduced("add"), np.zeros(257, np.int32), argument="y.shape", rule="no multiple of 16")
    refused(BulkReduced("min", "fp32").plan, argument="y", rule="no type in which")
