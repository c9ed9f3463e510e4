"""Running sums of rows and neighbours in pairs: on the model, as emitted for 32 lanes, and in `Cumsum`."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tests.unit.test_row_schedules import BF16, FP16, FP32
from tmapipe.plan.thread_layout import AccumulatorLayout, VectorLayout
from tmapipe.schedules import Cumsum, CumsumRows
from tmapipe.schedules.rowform import RowForm
from tmapipe.testing import assert_safe

LAYOUTS = {
    "a row a warp": VectorLayout((4, 512), 8, 4, 0),
    "rows of some lanes": VectorLayout((16, 64), 4, 2, 1),
    "rows of 8 lanes, in pieces": VectorLayout((24, 96), 4, 3, 1, 1, 8),
    "a row a lane": VectorLayout((64, 12), 4, 1, 0, 1, 1),
    "a row in three warps": VectorLayout((1, 1536), 8, 3, 0),
    "a row in sixteen warps, in pieces": VectorLayout((2, 12288), 8, 16, 0),
    "rows in pairs of warps": VectorLayout((4, 512), 8, 8, 0),
    "accumulators": AccumulatorLayout(64, 24, 1, 0),
}

# ---- what is emitted ----------------------------------------------------------------------------------------------------


class Lanes:
    """CuTe DSL's shuffles, of arrays of 32 lanes."""

    @staticmethod
    def shuffle_sync(value, lane):
        return value[np.broadcast_to(lane, 32)]


@pytest.fixture
def scans(monkeypatch):
    pytest.importorskip("cutlass")
    from tmapipe.gpu import sums as scans

    def joined(value, distance, lanes, other):
        far = np.concatenate([value[:distance], value[:-distance]])
        return other + np.where(np.arange(32) % lanes >= distance, far, 0.0)

    monkeypatch.setattr(scans, "cute", SimpleNamespace(arch=Lanes))
    monkeypatch.setattr(scans, "_joined", joined)
    monkeypatch.setattr(scans, "cutlass", SimpleNamespace(select_=np.where))
    monkeypatch.setattr(scans, "choose", np.where)
    monkeypatch.setattr(scans, "KINDS", {"fp32": float})
    return scans.Scans


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_lane_has_the_sums_of_its_elements(name, scans):
    """Each warp's registers as arrays of lanes, with sums that float64 has exactly."""
    layout = LAYOUTS[name]
    x = np.random.default_rng(0).integers(-9, 10, (layout.rows, layout.columns)).astype(float)
    isas = []
    for warp in range(layout.first_warp, layout.first_warp + layout.warps):
        lane = np.arange(32)
        isas.append(SimpleNamespace(lane=lane, warp=warp, thread=32 * warp + lane, buffers={}))
    warps = [scans(isa) for isa in isas]
    places = [[np.broadcast_arrays(*w.place(layout, "tile", i)) for i in range(layout.values)] for w in warps]
    data = [
        w.scan_in_warp(layout, "fp32", [x[at] for at in map(tuple, own)]) for w, own in zip(warps, places, strict=True)
    ]
    if len(layout.sharing_warps(0, "rows")) > 1:
        totals = [w.chunk_totals(layout, values) for w, values in zip(warps, data, strict=True)]
        left = np.array([[value[0] for value in own] for own in totals])[:, :, None]
        for isa in isas:
            isa.buffers["across"] = left
        slot = SimpleNamespace(buffer=SimpleNamespace(name="across"), stage=0)
        data = [w.add_chunks(layout, own, w.chunks_read(layout, slot)) for w, own in zip(warps, data, strict=True)]
    wanted = x.cumsum(1)
    for w, own, values in zip(warps, places, data, strict=True):
        for at, found in zip(own, values, strict=True):
            assert (found == wanted[tuple(at)]).all()
        for at, other in zip(own, w.swapped_pairs(layout, "tile", [x[tuple(at)] for at in own]), strict=True):
            assert (other == x[at[0], at[1] ^ 1]).all()
        parts = [w.picked_of_pairs(layout, "tile", own, i) for i in (0, 1)]
        assert w.joined_pairs(layout, "tile", *parts) == own
        for even, odd in zip(*parts, strict=True):
            assert (even[0] == odd[0]).all() and (even[1] + 1 == odd[1]).all()


# ---- in bodies ----------------------------------------------------------------------------------------------------------


class Swapped(tp.Schedule):
    """y = x with neighbours swapped, and of a vector too."""

    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    w = tp.TmaLoadStage("n", tile=(64,), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
            slot.w.load(tile)

    @work.jit
    def swap(self, k, tile):
        with k.ring.consume() as slot:
            x = slot.x.read()
            w = slot.w.read(columns_of=x)
        k.y.store(tile, tp.math.swap_pairs(x) + tp.math.swap_pairs(w))


def test_neighbours_in_pairs():
    x, w = torch.randn(9, 128), torch.randn(128)
    assert torch.equal(Swapped()(x, w), x.view(9, 64, 2).flip(2).view(9, 128) + w.view(64, 2).flip(1).view(128))
    assert_safe(Swapped())


class Counted(tp.Schedule):
    """y = how many elements of a row up to each are positive, as accumulators lie."""

    load, work = tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("n m", tile=(64, 64), ring=ring)
    y = tp.ThreadStoreStage("m n", tile=(64, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def count(self, k, tile):
        with k.ring.consume() as slot:
            k.y.store(tile, tp.math.row_cumsum(slot.x.read(transposed=True) > 0))


def test_integers_and_accumulators():
    x = torch.randn(64, 128).to(BF16)
    assert torch.equal(Counted()(x), (x.T > 0).cumsum(1).to(BF16))
    assert_safe(Counted())


class WithoutRoom(Swapped):
    """A row in two warps, whose scratch has room for one number a row where a thread has two vectors of it."""

    load, work = Swapped.load, Swapped.work
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    across = tp.ReductionScratch(work)
    x = tp.TmaLoadStage("m n", tile=(1, 4096), ring=ring)
    w = tp.TmaLoadStage("n", tile=(4096,), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(1, 4096), role=work)

    @work.jit
    def swap(self, k, tile):
        with k.ring.consume() as slot:
            k.y.store(tile, tp.math.row_cumsum(slot.x.read()))


def test_bad_input():
    refused(WithoutRoom(), torch.ones(2, 4096), torch.ones(4096), argument="reduction of a tile", rule="8 in a warp")
    refused(tp.math.row_cumsum, 3.0, argument="tmapipe.math.row_cumsum", rule="takes a fragment")
    refused(tp.math.swap_pairs, 3.0, argument="tmapipe.math.swap_pairs", rule="takes a fragment")
    refused(tp.math.split_pairs, 3.0, argument="tmapipe.math.split_pairs", rule="takes a fragment")
    refused(tp.math.join_pairs, 3.0, 3.0, argument="tmapipe.math.join_pairs(even)", rule="takes a fragment")
    refused(Cumsum(), torch.ones(3, 4).long(), argument="x.dtype", rule="is one of bf16")


# ---- Cumsum -------------------------------------------------------------------------------------------------------------

CASES = [
    ((20, 130), BF16),
    ((2, 3, 7, 77), BF16),
    ((9, 500), FP32),
    ((701,), FP16),
    ((3, 1001), FP32),
    ((3, 9001), BF16),
]


def check(x, out=None):
    """Running sums in fp32, rounded once; their order is another one than that of torch."""
    found, wanted = Cumsum()(x, out=out), x.double().cumsum(-1)
    near = {BF16: 1e-2, FP16: 2e-3, FP32: 2e-5}[found.dtype]
    assert float(((found.double() - wanted).abs() / (1 + x.double().abs().cumsum(-1))).max()) < near
    return found


def rows_of(shape, dtype, device="cpu"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[-1])).to(device, dtype)


@pytest.mark.parametrize("shape, dtype", CASES, ids=str)
def test_cumsum(shape, dtype):
    check(rows_of(shape, dtype))


def check_views(device="cpu"):
    base = rows_of((12, 5001), BF16, device)
    for x in (base[:, 5:301], base[:, :300], base[3:, 7:], base[:, :70].T):
        check(x)
    out = torch.empty(12, 5008, device=device)[:, :5001]
    assert check(base, out) is out
    bad = base[:, :3000].clone()
    bad[5, 2999] = float("nan")  # which another row lies beside
    found = Cumsum()(bad[:, :2999].T.contiguous().T)
    assert not found.isnan().any()
    assert Cumsum()(bad).isnan().sum() == 1


def test_views():
    check_views()


FORMS = [
    RowForm(1000, 1, 512, 2, 2, size=4),
    RowForm(501, 1, 256, 1, 2, vector=2),
    RowForm(700, 1, 768, 3, vector=8),
    RowForm(60, 8, 64, 2, vector=8, width=2, packed=True),
    RowForm(60, 16, 64, 2, vector=8, width=4, packed=True, each=2, lanes=8),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.length} by {form.ctas} x {form.warps}")
def test_forms(form):
    kind = FP32 if form.size == 4 else BF16
    x = rows_of((17, form.length), kind)
    y = torch.full_like(x, float("nan"))
    rows = CumsumRows(form, form.vector)
    rows.run({"x": x, "y": y}, {})
    wanted = x.double().cumsum(1)
    assert float(((y.double() - wanted).abs() / (1 + wanted.abs())).max()) < 1e-2
    assert_safe(rows, dict.fromkeys(("x", "y"), "fp32" if form.size == 4 else "bf16"))
