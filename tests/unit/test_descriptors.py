"""Loads whose descriptors the library has encoded: every so many-th element, NaN outside."""

import ml_dtypes
import numpy as np
import pytest

import tmapipe as tp
from tests.oracle.descriptor_forms import Every, EveryInParts, Padded, padded_gemm
from tests.unit.errors import refused

FORMS = [Every, lambda: Every((4, 6, 64), 64), EveryInParts]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(2, 19, 31, 72), (1, 1, 1, 8), (3, 8, 18, 32), (19, 31, 72)])
def test_every_so_many(form, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.bfloat16)
    assert (form()(x) == x[..., ::2, ::3, :]).all()


def test_starts_outside():
    class Shifted(Every):
        load, store = Every.load, Every.store

        @Every.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load_from(tile.b, tile.p * 8 - 5, tile.q * 18 - 7, tile.c * 32)

    x = np.random.default_rng(0).standard_normal((2, 19, 31, 72)).astype(ml_dtypes.bfloat16)
    wide = np.pad(x, ((0, 0), (5, 0), (7, 0), (0, 0)))[:, :19, :31]
    assert (Shifted()(x) == wide[:, ::2, ::3]).all()


def test_steps_and_tiles_count_what_a_tile_spans():
    class Over(Every):
        """The grid is that of the input's tiles."""

        over = "b h w c"
        load, store = Every.load, Every.store

        @Every.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @Every.store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store(tile, p=tile.h, q=tile.w)

    x = np.random.default_rng(0).standard_normal((2, 19, 31, 72)).astype(ml_dtypes.bfloat16)
    assert {dim: axis.elements for dim, axis in Over().axes.items()} == {"b": 1, "h": 8, "w": 18, "c": 32}
    assert (Over()(x) == x[:, ::2, ::3]).all() and Over().check().ok


def test_nan_outside():
    x = np.random.default_rng(0).standard_normal((50, 136)).astype(np.float32)
    expected = np.full_like(x, np.nan)
    expected[3:, :-8] = x[:-3, 8:]
    np.testing.assert_array_equal(Padded()(x), expected)


def test_nan_beyond_an_operand():
    a, b = (
        np.random.default_rng(i).integers(-3, 4, (m, 64)).astype(ml_dtypes.bfloat16) for i, m in enumerate((140, 72))
    )
    np.testing.assert_array_equal(padded_gemm()(a, b), (a.astype(np.float32) @ b.astype(np.float32).T).astype(a.dtype))


@pytest.mark.parametrize("form", [*FORMS, Padded, padded_gemm])
def test_checked(form):
    report = form().check()
    assert report.ok and not report.findings and report.trips == "every trip count"


def test_a_loop_that_goes_too_far_is_found():
    class TooFar(Every):
        load, store = Every.load, Every.store

        @Every.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile, h=tile.p + 1, w=tile.q)

    assert "the tensor ends at" in str(TooFar().check())


def test_explained():
    assert "every 2 x 3 x 1 element" in Every().explain()
    assert "NaN outside" in Padded().explain()
    assert repr(Every().x).endswith(".strided(h=2, w=3)") and repr(Padded().x).endswith(".nan_outside()")


def test_refused():
    ring = tp.BarrierRing(2, producer=tp.Role(warps=1), consumer=tp.Role(warps=1))
    stage = tp.TmaLoadStage("b h w c", tile=(4, 8, 32), ring=ring)
    for wrong in ({}, {"c": 2}, {"b": 2}, {"n": 2}):
        refused(lambda w=wrong: stage.strided(**w), argument="strided", rule="names dimensions")
    for wrong in (0, 9, 1.5, True, "2"):
        refused(lambda w=wrong: stage.strided(h=w), argument="strided", rule="from 1 to 8")
    refused(lambda: tp.TmaStoreStage(source=stage.strided(h=2)), argument="dims", rule="other dimensions than h")
    bulk = tp.BulkLoadStage("n", tile=(64,), ring=ring)
    refused(bulk.nan_outside, argument="nan_outside", rule="through a descriptor")
    refused(lambda: bulk.strided(n=2), argument="strided", rule="of a TmaLoadStage")


def test_refused_in_a_plan():
    refused(lambda: Every((4, 100, 32)).plan(), argument="x.tile", rule="a box at most 256")
    for dtype in ("int32", "fp8_e4m3"):
        refused(lambda d=dtype: Padded(dtype=d).plan(), argument="nan_outside", value=dtype, rule="floating point")

    class Ahead(Every):
        load, store = Every.load, Every.store

        @Every.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile, h=tile.p, w=tile.q)
                slot.x.prefetch(tile, h=tile.p + 1, w=tile.q)

    refused(Ahead().check, argument="prefetch", rule="without strides")
