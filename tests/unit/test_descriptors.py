"""Loads whose descriptors the library has encoded: every so many-th element, NaN outside, windows."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.oracle.descriptor_forms import (
    AnyRows,
    Convolved,
    Every,
    EveryInParts,
    Lines,
    Padded,
    ScaledRows,
    SomeRows,
    padded_gemm,
)
from tests.sweeps import ALL, sample
from tests.unit.errors import refused
from tmapipe.check import Kind

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
    assert not hasattr(bulk, "nan_outside") and not hasattr(bulk, "strided")


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


# ---- windows ----------------------------------------------------------------------------------------------------------

WINDOWS = [
    tp.Windows((3, 3), padding=1),
    tp.Windows((3, 3), padding=1, stride=2),
    tp.Windows((2, 4), padding=(0, 3), stride=(1, 2), dilation=(3, 2)),
    tp.Windows((1, 1)),
]


def convolved(schedule, x, f, windows):
    """What the schedule makes of integers, and what PyTorch does."""
    conv = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d}[len(windows.size)]
    how = {"padding": windows.padding, "stride": windows.stride, "dilation": windows.dilation}
    expected = conv(x.movedim(-1, 1).float(), f.movedim(-1, 1).float(), **how).movedim(1, -1).bfloat16()
    d = torch.empty(expected.shape, dtype=torch.bfloat16, device=x.device)
    schedule(x, f, out=d.view(-1, d.shape[-1]))
    return d, expected


PAIRS = [*itertools.product(WINDOWS, [1, 2])] if ALL else [*zip(WINDOWS, itertools.cycle([1, 2]), strict=False)]


@pytest.mark.parametrize("windows, cluster", sample(PAIRS, 3), ids=repr)
def test_a_convolution(windows, cluster):
    x, f = torch.randint(-3, 4, (3, 9, 11, 40)), torch.randint(-3, 4, (24, *windows.size, 40))
    schedule = Convolved(windows, cluster)
    d, expected = convolved(schedule, x.bfloat16(), f.bfloat16(), windows)
    assert torch.equal(d, expected)
    report = schedule.check()
    assert report.ok and not report.findings and report.trips == "every trip count"


def lines(x, windows, element):
    """Element *element* of all windows of x, by NumPy: zeros outside."""
    wide = np.pad(x, ((0, 0), *((p, p) for p in windows.padding), (0, 0)))
    first = [i * d for i, d in zip(element, windows.dilation, strict=True)]
    sides = zip(first, windows.counts(x.shape[1:-1]), windows.stride, strict=True)
    found = wide[(slice(None), *(slice(start, start + n * step, step) for start, n, step in sides))]
    return found[(slice(None), *map(slice, windows.counts(x.shape[1:-1])))].reshape(-1, x.shape[-1])


LINES = [
    (tp.Windows((5,), stride=3), (4,), (3, 30, 20)),
    (tp.Windows((4,), padding=7, dilation=2), (0,), (2, 5, 16)),
    (tp.Windows((3, 2), padding=(2, 1), stride=(2, 3)), (1, 1), (2, 9, 8, 20)),
    (tp.Windows((3, 3, 3), padding=2, dilation=2, stride=(1, 2, 1)), (1, 2, 0), (2, 4, 6, 5, 12)),
]


@pytest.mark.parametrize("windows, element, shape", LINES, ids=repr)
def test_images_of_one_to_three_dimensions(windows, element, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = lines(x, windows, element)
    for seed in range(2):
        d = np.zeros_like(expected)
        Lines(windows, element).simulate(x, out=d, seed=seed)
        np.testing.assert_array_equal(d, expected)
    assert Lines(windows, element).check().ok


def test_windows_explained():
    assert "rows of Windows(size=(3, 3), padding=(1, 1)" in Convolved(WINDOWS[0]).explain()


def test_windows_refused():
    for size in ((), (3, 3, 3, 3), 3, (0, 3), (3.0,)):
        refused(lambda s=size: tp.Windows(s), argument="Windows(size)", rule="one to three extents")
    refused(lambda: tp.Windows((3, 3), padding=-1), argument="Windows(padding)", rule="from 0 to")
    refused(lambda: tp.Windows((3, 3), stride=9), argument="Windows(stride)", rule="from 1 to 8")
    refused(lambda: tp.Windows((3, 3), dilation=(1, 1, 1)), argument="Windows(dilation)", rule="or 2 of them")
    refused(lambda: tp.Windows((3, 3), dilation=128), argument="Windows", rule="reaches 256")
    refused(lambda: tp.Windows((3, 3, 3), padding=17), argument="Windows", rule="17 before the image")
    ring = tp.BarrierRing(2, producer=tp.Role(warps=1), consumer=tp.Role(warps=1))
    windows = tp.Windows((3, 3), padding=1)

    def stage(dims="n h w c", tile=(64, 32), windows=windows, **options):
        return tp.Im2colLoadStage(dims, tile=tile, windows=windows, ring=ring, **options)

    refused(lambda: stage("n w c"), argument="dims", rule="the 2 dimensions that windows have")
    refused(lambda: stage(tile=(64,)), argument="tile", rule="(windows, channels)")
    refused(lambda: stage(windows=(3, 3)), argument="windows", rule="is a Windows")
    refused(stage().anything_outside, argument="tile", rule="rows")
    refused(lambda: stage().in_parts(2), argument="in_parts", rule="of a TmaLoadStage")
    refused(lambda: stage().strided(h=2), argument="strided", rule="of a TmaLoadStage")
    refused(Lines(windows, (0, 0), (1040, 16)).plan, argument="x.tile", rule="at most 1024")
    refused(Lines(windows, (0, 0), (16, 512)).plan, argument="x.tile", rule="at most 256 channels")
    x = np.zeros((2, 2, 9, 16), np.float32)
    refused(
        lambda: Lines(tp.Windows((3, 3)), (0, 0))(x, out=x.reshape(-1, 16)), argument="x.shape", rule="holds a window"
    )


def test_wrong_loads_of_windows():
    class Wrong(Lines):
        load, store = Lines.load, Lines.store

        @Lines.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                self.how(k, slot, tile)

    for how, argument, rule in (
        (lambda k, slot, tile: slot.x.load(tile, n=0, h=0, w=0), "slot.x", "loaded by windows"),
        (lambda k, slot, tile: slot.x.load_windows(3, 0, 0, 0), "load_windows", "a result of k.windows"),
        (lambda k, slot, tile: slot.x.load_windows(k.windows("x", 0), 0, 0), "load_windows", "one index along each"),
        (
            lambda k, slot, tile: slot.x.load_windows(k.windows("y", 0), 0, 0, 0),
            "k.windows",
            "names an Im2colLoadStage",
        ),
    ):
        schedule = Wrong(tp.Windows((3, 3), padding=1), (0, 0))
        schedule.how = how
        refused(schedule.check, argument=argument, rule=rule)

    class Tiled(Padded):
        load, store = Padded.load, Padded.store

        @Padded.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load_windows((0, 0, 0), 0, 0, 0)

    refused(Tiled().check, argument="load_windows", rule="must be an Im2colLoadStage")


# ---- convolutions -----------------------------------------------------------------------------------------------------


def test_conv():
    windows = tp.Windows((3, 3), padding=1, stride=2)
    x, f = torch.randint(-3, 4, (2, 9, 11, 72)).bfloat16(), torch.randint(-3, 4, (136, 3, 3, 72)).bfloat16()
    c, bias = torch.randint(-3, 4, (2, 5, 6, 136)).bfloat16(), torch.randint(-3, 4, (136,)).bfloat16()
    expected = torch.nn.functional.conv2d(
        x.permute(0, 3, 1, 2).float(), f.permute(0, 3, 1, 2).float(), stride=2, padding=1
    ).permute(0, 2, 3, 1)
    for form in ({}, {"tile": (128, 64, 64), "cluster": (2, 1)}, {"mainloop": tp.mainloop.PingPong()}):
        schedule = tp.schedules.Conv(windows, **form)
        assert torch.equal(schedule(x, f), expected.bfloat16())
    numpy = [each.float().numpy().astype(ml_dtypes.bfloat16) for each in (x, f)]
    assert (schedule(*numpy) == expected.numpy().astype(ml_dtypes.bfloat16)).all()
    epilogue = tp.epilogue.Epilogue(
        lambda acc, c, bias: {"d": tp.math.relu(acc + bias) + c, "sums": acc, "rows": acc},
        operands={"c": tp.epilogue.Matrix(), "bias": tp.epilogue.PerColumn()},
        outputs={"sums": tp.epilogue.Output("fp32"), "rows": tp.epilogue.RowSum()},
    )
    d = torch.empty(c.shape, dtype=torch.bfloat16)
    found, sums, rows = tp.schedules.Conv(windows, epilogue=epilogue)(x, f, d, c=c, bias=bias)
    assert found is d and torch.equal(d, (torch.relu(expected + bias) + c).bfloat16())
    assert torch.equal(sums, expected) and torch.equal(rows, expected.sum(-1).view(-1))


def test_conv_of_lines():
    x, f = torch.randint(-3, 4, (2, 30, 40)).bfloat16(), torch.randint(-3, 4, (24, 5, 40)).bfloat16()
    expected = torch.nn.functional.conv1d(x.movedim(2, 1).float(), f.movedim(2, 1).float(), dilation=2).movedim(1, 2)
    assert torch.equal(tp.schedules.Conv(tp.Windows((5,), dilation=2))(x, f), expected.bfloat16())


def test_conv_refuses():
    conv, windows = tp.schedules.Conv, tp.Windows((3, 3), padding=1)
    refused(lambda: conv((3, 3)), argument="windows", rule="is a Windows")
    refused(lambda: conv(windows, tiles=tp.tiles.SplitKTiles(2)), argument="tiles", rule="whole tiles")
    refused(lambda: conv(windows, mainloop=tp.mainloop.Cooperative(along="n")), argument="mainloop", rule="along m")
    x, f = np.zeros((2, 9, 9, 16), np.float16), np.zeros((8, 3, 3, 16), np.float16)
    schedule = conv(windows)
    refused(lambda: schedule(x[0], f), argument="a.shape", rule="has 4 dimensions")
    refused(lambda: schedule(x), argument="b", rule="torch tensor")
    refused(lambda: schedule(x, f, b=f), argument="b", rule="given twice")
    refused(lambda: schedule(x, f, x, x), argument="tensors", rule="at most 3")
    refused(lambda: schedule(x, f, out=np.zeros((2, 9, 8, 8), np.float16)), argument="d.shape", rule="is .2, 9, 9, 8.")
    refused(lambda: schedule(x, f[:, :2]), argument="b.shape along r", rule="is 3 by its Dim")
    refused(lambda: schedule(x, f[..., :8]), argument="b.shape", rule="c = 8")
    wide = np.zeros((2, 9, 10, 8), np.float16)[:, :, :9]
    refused(
        lambda: schedule(x, f, out=np.zeros((2, 9, 9, 16), np.float16)[..., ::2]),
        argument="d.stride",
        rule="contiguous",
    )
    refused(lambda: schedule(x, f, out=wide), argument="d.stride", rule="rows at equal distances")


# ---- descriptors that the kernel changes ------------------------------------------------------------------------------


def rows_anywhere(starts, counts, scale=1.0):
    """(a, b, starts, counts, d) of random integers."""
    made = np.random.default_rng(0)
    a, b = (made.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((len(starts), 70, 72), (100, 72)))
    d = np.zeros((len(starts), 70, 40), np.float32)
    for i, (start, count) in enumerate(zip(starts, counts, strict=True)):
        d[i, :, :count] = scale * a[i].astype(np.float32) @ b[start : start + count].astype(np.float32).T
    return a, b, np.array(starts, np.int32), np.array(counts, np.int32), d.astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("form, scale, none", [(AnyRows, 1, 1), (ScaledRows, 2, 1), (SomeRows, 1, 0)])
def test_rows_from_anywhere(form, scale, none):
    *given, expected = rows_anywhere([50, 0, 90, 7, 99], [24, 40, 10, none, 1], scale)
    for seed in range(3):
        d = np.zeros_like(expected)
        form().simulate(*given, out=d, seed=seed)
        assert (d == expected).all()
    report = form().check()
    assert report.ok and not report.findings and report.trips == "every trip count"
    assert "through descriptors in rows" in form().explain()


@pytest.mark.parametrize("starts, counts", [([-1], [4]), ([98], [4]), ([5], [0])])
def test_rows_outside_of_the_tensor(starts, counts):
    *given, d = rows_anywhere([0], [1])
    given[2:] = np.array(starts, np.int32), np.array(counts, np.int32)
    with pytest.raises(tp.errors.HazardError, match="descriptor-outside"):
        AnyRows().simulate(*given, out=d)


def test_a_descriptor_that_is_rewritten_in_flight_is_found():
    class Forgets(AnyRows):
        """The role that has waited for the loads does not hold the descriptor."""

        point, load, math, ring, b = AnyRows.point, AnyRows.load, AnyRows.math, AnyRows.ring, AnyRows.b
        views = tp.BarrierRing(2, producer=point, consumer=load)
        rows = tp.DescriptorStage(b, ring=views)

        @math.jit
        def multiply(self, k, tile):
            with k.mma.accumulate() as acc:
                for _ in range(k.steps("a", "k")):
                    with k.ring.consume() as slot:
                        acc.add(slot.a, slot.b)
            k.d.store(tile, acc)

    report = Forgets().check()
    assert report.kinds() == {Kind.RACE}
    assert "writes rows[0] while a TMA load issued by load" in str(report)
    assert "a role that has waited for ring.full releases rows" in report.findings[0].fix


def test_descriptor_stages_refused():
    load, math = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=math)
    views = tp.BarrierRing(2, producer=math, consumer=load)
    stage = tp.TmaLoadStage("m n", tile=(16, 32), ring=ring)
    for wrong in (
        tp.TmaLoadStage("l m n", tile=(16, 32), ring=ring),
        stage.in_parts(2),
        stage.anything_outside(),
        load,
    ):
        refused(lambda w=wrong: tp.DescriptorStage(w, ring=views), argument="of", rule="all extents of its tensor")
    refused(lambda: tp.DescriptorStage(stage, ring=ring), argument="ring", rule="another ring")
    others = tp.BarrierRing(2, producer=math, consumer=tp.Role(warps=1))
    refused(lambda: tp.DescriptorStage(stage, ring=others), argument="ring", rule="the role that loads")


def test_wrong_uses_of_descriptors():
    def form(role, how):
        class Wrong(AnyRows):
            point, load, math = AnyRows.point, AnyRows.load, AnyRows.math

            @role.jit
            def does(self, k, tile):
                with k.views.produce() if role is AnyRows.point else k.views.consume() as views:
                    how(k, views, tile)

        return Wrong().check

    def loads(k, views, tile):
        with k.ring.produce() as slot:
            slot.b.load(tile, w=0, k=0)

    def loads_a(k, views, tile):
        with k.ring.produce() as slot:
            slot.a.load_through(views.rows.acquire(), tile, k=0)

    refused(form(AnyRows.load, loads), argument="slot.b", rule="through descriptors")
    refused(form(AnyRows.load, loads_a), argument="load_through", rule="from the DescriptorStage of a")
    refused(form(AnyRows.point, lambda k, v, t: v.rows.set(0.5, 3)), argument="set(first)", rule="whole number")
    for role, how in (
        (AnyRows.load, lambda k, v, t: v.rows.set(0, 3)),
        (AnyRows.math, lambda k, v, t: v.rows.acquire()),
    ):
        with pytest.raises(tp.errors.ScopeError, match="Only the r"):
            form(role, how)()
