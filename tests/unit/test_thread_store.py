"""ThreadStoreStage: results that threads store from registers, to rows that begin anywhere."""

import ml_dtypes
import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.matmul_schedules import OneRing
from tests.oracle.copy_forms import Mapped
from tests.unit.errors import refused

BF16 = ml_dtypes.bfloat16


def mapped(x):
    return (x.astype(np.float32) ** 2 + 1).astype(x.dtype)


def test_rows_anywhere():
    """Of an output within a larger tensor, nothing else is written."""
    x = np.random.default_rng(0).integers(-9, 9, (70, 100)).astype(BF16)
    whole = np.full((72, 110), 77, BF16)
    for first in (0, 2, 8):
        view = whole[1:71, first : first + 100]
        for seed in range(3):
            view[...] = 0
            Mapped().simulate(x, out=view, seed=seed)
            assert (view == mapped(x)).all()
        view[...] = 77
        assert (whole == 77).all()


def through(tile, role, vector, dtype, numbers=None):
    """A schedule that stores what *numbers* makes of a tile (one number a row or column), or the tile as it is."""

    class Through(tp.Schedule):
        relations = (tp.Dim("n", at_most=tile[-1]),)
        load, work = tp.Role(warps=1), role
        ring = tp.BarrierRing(2, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=tile, ring=ring)
        y = tp.ThreadStoreStage("m n", tile=tile, role=work, vector=vector, dtype=dtype)
        z = tp.ThreadStoreStage("m", tile=tile[:1], role=work, vector=4, dtype="fp32")

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
            k.y.store(tile, values, lambda v: v + 1)
            k.z.store(tile, tp.math.row_sum(values))

    return Through()


@pytest.mark.parametrize(
    "vector, dtype", [(1, "int8"), (2, "bf16"), (4, "fp16"), (8, "fp32"), (16, "fp32"), (16, "int32")]
)
def test_types_and_vectors(vector, dtype):
    schedule = through((16, 128), tp.Role(warps=4), vector, dtype)
    integer = dtype.startswith("int")
    x = np.random.default_rng(1).integers(-9, 9, (40, 96)).astype(np.int32 if integer else BF16)
    y, z = np.zeros((40, 96), tp.base.arithmetic.as_dtype(dtype).numpy), np.zeros(40, np.float32)
    assert schedule.check({"x": "int32" if integer else "bf16"}).ok
    schedule(x, out=y, z=z)
    assert (y == x.astype(np.float32) + 1).all() and (z == x.astype(np.float32).sum(1)).all()
    assert "by threads from registers" in schedule.explain()
    assert not any(buffer.name in ("y", "z") for buffer in schedule.plan().buffers)


def test_accumulators_and_starts_anywhere():
    class Sums(OneRing):
        load, math = OneRing.load, OneRing.math
        d = tp.ThreadStoreStage("m n", tile=(64, 64), role=math, vector=4)

        def store(self, k, tile, acc):
            k.d.store_from(64 * tile.m - self.up, 64 * tile.n - self.left, values=acc.values())

    a, b = (np.random.default_rng(i).integers(-2, 3, (90, 72)).astype(np.float16) for i in range(2))
    product = a @ b.T
    schedule = Sums()
    for up, left in ((0, 0), (3, 2), (70, 66)):
        schedule.up, schedule.left = up, left
        d = np.full((90, 90), 9, np.float16)
        schedule(a, b, out=d)
        assert (d[: 90 - up, : 90 - left] == product[up:, left:]).all()
    assert schedule.check().ok
    schedule.left = 1
    with pytest.raises(tp.errors.HazardError, match="of fp16: not a multiple of 4"):
        schedule(a, b)


def test_refused():
    role = tp.Role(warps=2)
    for vector in (0, 3, 32, True, "4", None):
        refused(
            tp.ThreadStoreStage, "m n", tile=(4, 64), role=role, vector=vector, argument="vector", rule="is one of 1"
        )
    refused(
        tp.ThreadStoreStage, "m n", tile=(4, 64), role=None, argument="ThreadStoreStage(tile, role)", rule="are needed"
    )
    assert "vector=4" in repr(tp.ThreadStoreStage("m n", tile=(4, 64), role=role, vector=4))
    refused(through((4, 64), role, 2, "fp32").plan, argument="y.vector", rule="at least an element of 4 bytes")
    x = np.zeros((8, 99), BF16)[:, :97]
    refused(Mapped(), np.zeros((8, 98), BF16), out=x, argument="y.shape", rule="has n = 97")
    odd = torch.zeros(8, 98, dtype=torch.bfloat16)
    refused(
        Mapped(),
        odd,
        out=torch.zeros(8, 99, dtype=torch.bfloat16)[:, :98],
        argument="y.stride",
        rule="copies of 4 bytes",
    )

    class Bounded(Mapped):
        copy, work = Mapped.copy, Mapped.work
        tiles = tp.tiles.GroupedTiles(rows=4, table="offsets", output="y")
        offsets = tp.Table("l")

    refused(Bounded().plan, argument="y.dims", rule="bounds of their own")


def test_a_store_that_is_left_out_is_refused():
    class Forgets(Mapped):
        copy, work = Mapped.copy, Mapped.work

        @work.jit
        def apply(self, k, tile):
            with k.ring.consume() as slot:
                slot.x.read()

    refused(Forgets().check, argument="y", rule="no body stores")


class Filled(tp.Schedule):
    """Tiles of x in slots. Subclasses say what is stored."""

    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(8, 128), ring=ring)
    y = tp.ThreadStoreStage("m n", tile=(8, 128), role=work, vector=4)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)


def masked(columns=64):
    """Stores elements greater than a bound, and those of even columns, of pieces of a tile."""

    class Masked(Filled):
        work = Filled.work
        z = tp.ThreadStoreStage("m n", tile=(8, 128), role=work, vector=4)

        @work.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
                k.y.store(tile, values, when=(values > 1.0) & (tp.math.row_max(values) > 2.0))
                for i in range(128 // columns):
                    piece = slot.x.read(tile=(8, columns), at=(0, i * columns))
                    place = tile.m * 8, tile.n * 128 + i * columns
                    k.z.store_from(*place, values=piece, when=piece.columns & 1 == 0)

    return Masked()


def test_what_a_mask_leaves_out_stays():
    x = np.random.default_rng(0).standard_normal((21, 200)).astype(np.float32)
    y, z = np.full_like(x, 7), np.full_like(x, 7)
    schedule = masked()
    assert schedule.check().ok
    schedule(x, y, z)
    high = np.concatenate(
        [np.maximum.reduceat(x, [0, 128], 1)[:, [0] * 128], np.maximum.reduceat(x, [0, 128], 1)[:, [1] * 72]], 1
    )
    assert (y == np.where((x > 1) & (high > 2), x, 7)).all()
    assert (z == np.where(np.arange(200) % 2 == 0, x, 7)).all()


@pytest.mark.parametrize("mask", [lambda v: v, lambda v: True])
def test_masks_are_comparisons_of_the_tile(mask):
    class Wrong(Filled):
        work = Filled.work

        @work.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
            k.y.store(tile, values, when=mask(values))

    refused(Wrong().check, argument="y.store(when)", rule="must be a comparison of fragments")
