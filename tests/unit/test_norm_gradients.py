"""The gradients of norms: every kind of form, sums of rows that go together, the model that chooses, and what is refused."""

import math

import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tests.unit.test_row_kernels import near, rows_of
from tests.unit.test_row_schedules import BF16, FP32
from tmapipe import schedules as S
from tmapipe.schedules.normgradients import GradientForm, gradient_forms, registers_of, resident

#: Kinds of forms, each with rows that fill no whole tile at the end.
FORMS = {
    "a row a tile": (GradientForm(256, 1, 256, 1), 7),
    "several rows, one a warp": (GradientForm(200, 4, 256, 2, width=8), 23),
    "several rows of each warp": (GradientForm(64, 8, 64, 1, width=8), 61),
    "several rows, each over all warps": (GradientForm(512, 3, 512, 2, width=8, slots=3), 23),
    "warps that share rows in pairs": (GradientForm(480, 2, 512, 4, width=8), 11),
    "fp32": (GradientForm(80, 4, 128, 2, size=4, width=4), 33),
    "side by side": (GradientForm(86, 8, 128, 4, vector=4, width=2, packed=True), 61),
    "side by side, of odd lengths": (GradientForm(93, 8, 96, 2, vector=2, width=1, packed=True), 50),
    "rows that begin anywhere": (GradientForm(185, 1, 256, 1, vector=2, width=8), 30),
    "several that begin alike": (GradientForm(86, 4, 128, 2, vector=4, width=8, slots=3), 61),
    "over CTAs": (GradientForm(512, 1, 256, 1, 2), 7),
    "over CTAs, beginning anywhere": (GradientForm(250, 1, 256, 1, 2, vector=4, width=8), 30),
    "weights that stay in shared memory": (GradientForm(700, 1, 704, 1, size=4, width=2), 5),
    "several in turn": (GradientForm(512, 3, 512, 2, width=8, in_turn=True), 23),
    "in turn, over CTAs": (GradientForm(512, 3, 256, 1, 2, in_turn=True), 17),
    "in turn, beginning anywhere": (GradientForm(500, 2, 512, 2, vector=8, width=8, in_turn=True, slots=3), 23),
    "in turn, over CTAs, beginning anywhere": (GradientForm(250, 2, 256, 1, 2, vector=4, width=8, in_turn=True), 30),
    "one slot": (GradientForm(256, 2, 256, 2, slots=1), 9),
}


@pytest.mark.parametrize("centered", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("name", FORMS)
def test_forms(name, centered, monkeypatch):
    monkeypatch.setattr(GradientForm, "clusters", property(lambda form: 3 * form.apart))
    form, height = FORMS[name]
    dtype, eps = (FP32 if form.size == 4 else BF16), 1e-5
    x, dy = rows_of((height, form.length), dtype, 2)
    x, weight, dx = x + 1, rows_of((form.length,), dtype), torch.full_like(x, torch.nan)
    schedule = S.NormBackwardRows(form, eps, centered, form.vector)
    _, *sums = S.RmsNormBackward.results(dx, *schedule.run({"x": x, "dy": dy, "dx": dx}, {"weight": weight}))
    wide, weights = (each.double().requires_grad_() for each in (x, weight))
    biases = torch.zeros_like(weights).requires_grad_()
    if centered:
        y = torch.nn.functional.layer_norm(wide, wide.shape[1:], weights, biases, eps)
    else:
        y = torch.nn.functional.rms_norm(wide, wide.shape[1:], weights, eps)
    y.backward(dy.double())
    for each, wanted in zip((dx, *sums), (wide, weights, biases), strict=False):
        near(each, wanted.grad, dtype if each is dx else FP32)
    types = dict.fromkeys(("x", "dy", "weight", "dx"), "fp32" if form.size == 4 else "bf16")
    report = schedule.check(types, seconds=2)
    assert report.ok and "every trip count" in str(report)


@pytest.mark.parametrize("kind", [S.RmsNormBackward, S.LayerNormBackward])
def test_sums_of_16_bits_of_rows_of_odd_length(kind):
    """Threads write whole units of 4 bytes: sums lie in lines that are longer than a row."""
    (x, dy), weight = rows_of((19, 93), BF16, 2), rows_of((93,), BF16)
    _, *sums = kind(totals="bf16")(x, weight, dy)
    _, *wanted = kind()(x, weight, dy)
    for each, wide in zip(sums, wanted, strict=True):
        assert each.shape == (93,) and each.dtype == torch.bfloat16
        near(each, wide, BF16)


def test_more_clusters_than_tiles():
    """Each has a tile then."""
    x, weight = rows_of((3, 72), FP32), rows_of((72,), FP32)
    dx, dweight = S.RmsNormBackward()(x, weight, x)
    rstd = torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6)
    torch.testing.assert_close(dweight, (x * x * rstd).sum(0))
    assert dx.shape == x.shape


@pytest.mark.parametrize("sums", [1, 2])
@pytest.mark.parametrize(
    "length, size", [(1, 2), (17, 2), (64, 2), (200, 2), (1883, 2), (24091, 4), (65536, 4), (131072, 2), (262144, 2)]
)
def test_forms_fit(length, size, sums):
    vector = math.gcd(16, length * size)
    forms = gradient_forms(length, size, vector, sums)
    for form in forms[:: max(1, len(forms) // 8)]:
        schedule = S.NormBackwardRows(form, centered=sums > 1, stored=vector)
        plan = schedule.plan(dict.fromkeys(("x", "dy", "weight", "dx"), "fp32" if size == 4 else "bf16"))
        threads = 32 * (form.warps + 1)
        fits = (
            form.share <= resident(form, sums, size)
            and registers_of(form, sums) * math.ceil(threads * form.share / 128) <= 512
        )
        assert fits or (form.ctas, form.share) == (16, 1)  # of the longest rows some registers are spilled
        assert plan.threads == threads


def test_rows_that_fit_no_cluster_are_refused():
    refused(gradient_forms, 1 << 20, 4, 16, 1, argument="row length", rule="registers of a cluster")


@pytest.mark.parametrize("ctas, share, wanted", [(1, 3, 396), (2, 1, 64), (16, 2, 16), (16, 1, 8)])
def test_clusters_that_run_at_once(ctas, share, wanted):
    assert GradientForm(4096 * ctas, 1, 4096, 8, ctas, share).clusters == wanted


class Pair(tp.Schedule):
    """y = x + sum of a row of x + sum of a row of x squared, which go together or not."""

    together = True
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    across = tp.ReductionScratch(work, rows=4)
    x = tp.TmaLoadStage("m n", tile=(2, 256), ring=ring)
    y = tp.ThreadStoreStage("m n", tile=(2, 256), role=work)
    inside = 200

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            x = slot.x.read()
        if self.together:
            one, other = tp.math.row_sums(x, x * x, inside=self.inside)
        else:
            one, other = (tp.math.row_sum(each, inside=self.inside) for each in (x, x * x))
        k.y.store(tile, x + one + other)


class PairApart(Pair):
    together = False


def test_sums_that_go_together_have_the_same_bits():
    x = rows_of((9, 256), FP32)
    assert torch.equal(Pair()(x), PairApart()(x))
    torch.testing.assert_close(Pair()(x), x + (x + x * x)[:, :200].sum(1, keepdim=True))


class TooMany(Pair):
    @Pair.work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            x = slot.x.read()
        sums = tp.math.row_sums(x, x, x, x, x)
        k.y.store(tile, x + sums[0])


class Unlike(Pair):
    @Pair.work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            x = slot.x.read()
        one, other = tp.math.row_sums(x, x.columns)
        k.y.store(tile, x + one + other)


def test_sums_that_cannot_go_together_are_refused():
    x = rows_of((9, 256), FP32)
    refused(lambda: TooMany()(x), argument="reduction of a tile", rule="rows that lie in several warps")
    with pytest.raises(tp.errors.ScopeError, match="distributed alike"):
        Unlike()(x)
    refused(lambda: tp.math.row_sums(1.0), argument="row_sums", rule="takes a fragment")


class InParts(Pair):
    """Counts whole rows, which may be longer than a tile."""

    @Pair.work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            x = slot.x.read()
        one, other = tp.math.row_sums(x, x * x, inside=k.extent("n"))
        k.y.store(tile, x + one + other)


def test_sums_of_rows_in_parts_are_found():
    assert [finding.kind.name for finding in InParts().check().findings] == ["ROW_IN_PARTS"]
