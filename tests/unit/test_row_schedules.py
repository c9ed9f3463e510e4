"""Softmax and RMSNorm of rows of any length: the model that chooses forms, their numbers, their proof, and what is refused."""

import attrs
import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.oracle.value_forms import Taps
from tests.unit.errors import refused
from tmapipe.schedules import Cumsum, LayerNorm, LayerNormRows, RmsNorm, RmsNormRows, Softmax, SoftmaxRows
from tmapipe.schedules.rowform import RowForm, different, resident, row_form, row_forms
from tmapipe.testing import assert_safe
from tmapipe.tiles.persistent import PersistentTiles

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NEAR = {BF16: 1e-2, FP16: 2e-3, FP32: 2e-6}


def norm(x, weight, residual=0.0, eps=1e-6):
    h = x.double() + residual
    return h * (h.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double(), h


def close(found, wanted, dtype):
    assert found.dtype == dtype
    assert float(((found.double() - wanted).abs() / (1 + wanted.abs())).max()) < NEAR[dtype]


# ---- forms --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("vector", [16, 4])
def test_every_length_has_a_form_that_holds_its_rows(size, vector):
    rng = np.random.default_rng(0)
    for length in {64, 65, 262144, 262143, *np.exp(rng.uniform(np.log(64), np.log(262144), 30)).astype(int).tolist()}:
        for loads, vectors in ((1, 0), (2, size)):
            form = row_form(length, size, vector, loads=loads, vectors=vectors)
            assert form.ctas * form.columns >= length + form.further
            threads = 32 * (form.warps + 1) * form.share
            assert threads <= 2048 and form.values * 32 * form.warps == form.rows * form.columns
            bytes_ = form.share * (form.rows * form.columns * size * loads * (2 if form.each > 1 else 1))
            assert bytes_ <= 227 << 10


def test_enough_is_on_its_way_where_registers_allow():
    """The bytes that a multiprocessor asks for at once are what bounds such kernels."""
    for length in (1024, 2560, 5120, 7168, 12288, 32064):
        form = row_form(length)
        slots = 2 if form.each > 1 else 1
        assert slots * form.share * form.rows * length * 2 / form.ctas > 48 << 10, form


def test_the_best_form_comes_first():
    forms = row_forms(5000)
    assert forms[0] == row_form(5000) and len(set(forms)) == len(forms) > 5


def test_other_numbers_of_ctas_are_tried_and_taken_where_they_gain_much():
    """Softmax of 150345 in bf16 reaches 1653 GB/s with 16 CTAs a row, and 2898 with 4 (H200)."""
    forms = row_forms(38434, 4, 8, vectors=4, hold=64)
    assert {form.ctas for form in forms} == {2, 4, 8}
    assert {form.ctas for form in row_forms(186376, 4)} == {8, 16} and row_form(186376, 4).ctas == 8
    assert {form.ctas for form in row_forms(150345, 2, 2)} == {4, 8} and row_form(150345, 2, 2).ctas < 16
    assert {form.ctas for form in row_forms(1024)} == {1}


def test_each_scheduler_has_a_quarter_of_the_registers():
    """Seven CTAs of 7 warps are 13 of one scheduler: with 40 registers a thread, they take more than its 16,384."""
    form = RowForm(504, 6, 512, 6, each=4)
    assert resident(form, 1, 0) == 6 and 7 * 7 * 32 * 40 < 65536 < 4 * 13 * 32 * 40


def test_packed_rows_that_are_read_again_take_a_register_a_number():
    """With 72 registers a thread, rmsnorm of 2264 kept 176 bytes in local memory: 2482 GB/s; 4087 with more (H200)."""
    assert resident(RowForm(2264, 8, 2304, 8, packed=True), 1, 2) == 2
    assert resident(RowForm(1568, 8, 1664, 8, width=4, packed=True), 1, 2) == 3, "52 numbers have room"


def test_short_weights_are_loaded_once_for_many_rows():
    """All CTAs read the same 35 lines: rmsnorm of 2264 bf16 takes 3689 GB/s with weights for 4 rows, 4087 for 16 (H200)."""
    few = different(RmsNorm().forms(2264, 2, 16, vectors=2), 4)
    assert max(form.rows * form.each for form in few) >= 16


@pytest.mark.parametrize("length, vector, width, ctas", [(5662, 4, 2, 1), (50257, 2, 1, 8), (5120, 16, 8, 1)])
def test_vectors_are_narrow_where_reads_beside_rows_would_conflict(length, vector, width, ctas):
    """Lanes that have 8 elements of bf16 side by side read fp32 weights of rows that begin anywhere 32 bytes apart."""
    form = LayerNorm().forms(length, 2, vector, vectors=8)[0]
    assert (form.width, form.ctas) == (width, ctas)
    assert RmsNorm().forms(3842, 2, 4, vectors=2)[0].width == 8, (
        "numbers of 2 bytes, in as many banks as DRAM keeps busy"
    )


@pytest.mark.parametrize("length, vector, slots", [(153992, 16, 4), (155222, 8, 4), (188269, 4, 3)])
def test_clusters_keep_weights_of_long_rows(length, vector, slots):
    """One CTA on each multiprocessor, with as many slots as there is room for; each form of two slots began every 4 rows."""
    form = row_forms(length, 4, vector, vectors=4, hold=64)[0]
    assert (form.ctas, form.share, form.slots, form.piece) == (16, 1, slots, 0)
    types = dict.fromkeys(("x", "weight", "y"), "fp32")
    schedule = RmsNormRows(form, stored=vector)
    schedule.plan(types)
    assert type(schedule.tiles) is PersistentTiles
    with pytest.raises(tp.errors.InputError, match="shared memory"):
        RmsNormRows(attrs.evolve(form, slots=5), stored=vector).plan(types)
    beside = row_forms(150000, 2, vectors=8)[0]
    assert beside.piece and not beside.slots, "two vectors of fp32 take more than rows of bf16"


@pytest.mark.parametrize("reads", [False, True])
def test_no_cta_has_nothing_of_a_row(reads):
    """Its load would lie outside of the tensor as a whole: cross-entropy of 117880 fp32 had 16 pieces of 8448, of which 14 are
    there."""
    for length in (12112, 117880, 99999):
        for form in row_forms(length, 4, 4, reads=reads):
            assert (form.ctas - 1) * form.columns < length + form.further


@pytest.mark.parametrize("vectors", [0, 8])
def test_clusters_have_few_warps_where_these_do(vectors):
    """A look at layernorm of 79032 took 6.3 s, since it took that long to prove one of its forms, of 16 CTAs of 13 warps."""
    for length, size in ((79032, 4), (79032, 2), (153992, 4), (262144, 4), (237456, 2)):
        forms = row_forms(length, size, vectors=vectors)
        assert 8 * 4 < max(form.ctas * form.warps for form in forms) <= 120
    assert min(form.ctas * form.warps for form in row_forms(425984, 4)) > 120, "fewer have no room"
    assert max(form.ctas * form.warps for form in row_forms(262144, 4, reads=True)) > 120, "a CTA takes pieces in turn"


def test_rows_that_do_not_fit_are_refused():
    refused(row_form, 1 << 21, argument="row length", rule="at most")
    refused(lambda: RowForm(300, 1, 256, 1), argument="RowForm", rule="room for rows of 300")
    refused(lambda: RowForm(300, 1, 512, 1, piece=384), argument="RowForm(piece)", rule="divides the columns")
    refused(lambda: RowForm(256, 1, 256, 1, slots=2), argument="RowForm(slots)", rule="takes several tiles")
    refused(
        lambda: RowForm(256, 1, 256, 1, 1, 2, each=4, slots=2), argument="RowForm(slots)", rule="shares no multiproc"
    )
    refused(lambda: RowForm(60, 4, 128, 1, vector=8), argument="RowForm(rows)", rule="of rows that begin anywhere")
    refused(
        lambda: RowForm(256, 1, 256, 1, vector=2), argument="RowForm", rule="room for rows"
    )  # and what is before them


# ---- numbers ------------------------------------------------------------------------------------------------------------

SHAPES = [
    ((20, 130), BF16),
    ((3, 7, 77), BF16),
    ((2, 1, 5, 256), FP16),
    ((9, 500), FP32),
    ((9, 501), FP32),
    ((701,), BF16),
    ((11, 1500), FP16),
]


@pytest.mark.parametrize("shape, dtype", SHAPES, ids=str)
def test_softmax(shape, dtype):
    x = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    close(Softmax()(x), torch.softmax(x.double(), -1), dtype)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape, dtype", SHAPES[::2], ids=str)
def test_rms_norm(shape, dtype, residual):
    source = torch.Generator().manual_seed(0)
    x, other = (torch.randn(shape, generator=source).to(dtype) for _ in range(2))
    weight = torch.randn(shape[-1], generator=source)  # fp32 beside any type of rows
    if not residual:
        return close(RmsNorm()(x, weight), norm(x, weight)[0], dtype)
    wanted, sums = norm(x, weight, other.double())
    y, h = RmsNorm()(x, weight, other)
    close(y, wanted, dtype)
    close(h, sums, dtype)


PIECES = [
    RowForm(500, 1, 384, 1, 2, size=4, piece=128),
    RowForm(1101, 1, 768, 1, 2, vector=2, piece=256, ahead=3),
]


@pytest.mark.parametrize("vector, ahead", [(16, 9), (8, 7)])
def test_as_many_pieces_of_weights_are_ahead_as_have_room(vector, ahead):
    forms = row_forms(153992 if vector == 16 else 155222, 4, vector, vectors=4, hold=64)
    form = next(form for form in forms if form.piece and form.ctas == 16)
    assert (form.piece, form.ahead, form.share) == (896, ahead, 3)
    schedule = RmsNormRows(form, stored=vector)
    schedule.plan(dict.fromkeys(("x", "weight", "y"), "fp32"))
    more = attrs.evolve(form, ahead=ahead + 2)
    with pytest.raises(tp.errors.InputError, match="bytes of shared memory"):
        RmsNormRows(more, stored=vector).plan(dict.fromkeys(("x", "weight", "y"), "fp32"))


@pytest.mark.parametrize("form", PIECES, ids=lambda form: f"{form.length} by {form.ctas}")
def test_weights_come_piece_by_piece(form):
    source = torch.Generator().manual_seed(form.length)
    dtype = BF16 if form.size == 2 else FP32
    x, other = (torch.randn(9, form.length, generator=source).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(form.length, generator=source) for _ in range(2))
    y, h, z = (torch.full_like(x, float("nan")) for _ in range(3))
    mean = torch.zeros(9)
    rms = RmsNormRows(form, residual=True, stored=form.vector)
    rms.run({"x": x, "residual": other, "y": y, "h": h}, {"weight": weight})
    wanted, sums = norm(x, weight, other.double())
    close(y, wanted, dtype)
    close(h, sums, dtype)
    layer = LayerNormRows(form, numbers=("mean",), stored=form.vector)
    layer.run({"x": x, "y": z, "mean": mean}, {"weight": weight, "bias": bias})
    close(z, torch.nn.functional.layer_norm(x.double(), x.shape[1:], weight.double(), bias.double()), dtype)
    torch.testing.assert_close(mean, x.float().mean(1), atol=1e-5, rtol=1e-4)


FORMS = [
    RowForm(512, 1, 256, 1, 2),
    RowForm(500, 1, 256, 1, 2, vector=8),
    RowForm(501, 1, 256, 1, 2, vector=2),
    RowForm(60, 8, 64, 2, vector=8, held=True, width=2, packed=True),
    RowForm(100, 4, 128, 2, size=4),
    RowForm(700, 1, 768, 3, vector=8),
    RowForm(500, 1, 256, 2, 2, 1, 8, 4, each=2, slots=3),
    RowForm(501, 1, 512, 2, vector=2, each=2, width=1),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.length} by {form.ctas} x {form.warps}")
def test_forms(form):
    """Rows over warps and CTAs, whole and not, held and read again; a weight that is loaded once for a few rows."""
    dtype = BF16 if form.size == 2 else FP32
    source = torch.Generator().manual_seed(form.length)
    x, weight = (torch.randn(*shape, form.length, generator=source).to(dtype) for shape in ((19,), ()))
    y = torch.full_like(x, float("nan"))
    softmax = SoftmaxRows(form, form.vector)
    softmax.run({"x": x, "y": y}, {})
    close(y, torch.softmax(x.double(), 1), dtype)
    kinds = {"x": dtype, "y": dtype}
    assert_safe(softmax, dict.fromkeys(kinds, "bf16" if form.size == 2 else "fp32"))
    for each in (1, 2) if form.ctas > 1 and not form.slots else (form.each,):
        rms = RmsNormRows(attrs.evolve(form, each=each), stored=form.vector)
        y.fill_(float("nan"))
        rms.run({"x": x, "y": y}, {"weight": weight})
        close(y, norm(x, weight)[0], dtype)


def test_views_and_other_types_of_results():
    x = torch.randn(12, 300).to(BF16)
    wanted = torch.softmax(x.double(), 1)
    wide = torch.randn(12, 304).to(BF16)
    wide[:, :300] = x
    close(Softmax()(wide[:, :300]), wanted, BF16)  # rows 608 bytes apart: loaded where they lie
    out = torch.empty(12, 300)
    assert Softmax()(x, out=out) is out
    close(out, wanted, FP32)
    close(Softmax()(x.T.contiguous().T), wanted, BF16)  # no rows: copied
    close(torch.from_numpy(Softmax()(x.float().numpy())), wanted, FP32)
    assert Softmax()(x[:0]).shape == (0, 300)


def test_a_kernel_is_made_once_for_a_length_and_type():
    softmax = Softmax()
    for rows in (3, 8, 11):
        softmax(torch.randn(rows, 96))
    softmax(torch.randn(3, 96).to(BF16))
    assert len(softmax.fitted) == 2


def test_bad_input():
    x = torch.randn(4, 64)
    refused(Softmax(), x.int(), argument="x.dtype", rule="bf16, fp16, fp32")
    refused(Softmax(), torch.randn(1, 1, 1, 1, 64), argument="x.shape", rule="one to four dimensions")
    refused(lambda: Softmax()(x, out=torch.empty(4, 65)), argument="y.shape", rule="is that of x")
    swapped = torch.empty(4, 2, 64).swapaxes(0, 1)
    refused(lambda: Softmax()(x[None].expand(2, 4, 64), out=swapped), argument="y.stride", rule="as a matrix")
    refused(lambda: RmsNorm()(x, torch.randn(63)), argument="weight.shape", rule="n = 63")
    refused(lambda: RmsNorm()(x, torch.randn(64), x[:3]), argument="residual.shape", rule="is that of x")


# ---- what they are made of ----------------------------------------------------------------------------------------------


class Inside(tp.Schedule):
    """y[m] = the sum of x[m, 3:40], of which 8:32 is said to count in any case."""

    load, work = tp.Role(warps=1), tp.Role(warps=1)
    over = "m"
    ring = tp.BarrierRing(1, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    y = tp.TmaStoreStage("m", tile=(4,), role=work)
    end, surely, lanes = 40, (8, 32), 0

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile, n=0)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read(width=4, lanes=self.lanes)
        k.y.store(tile, tp.math.row_sum(values, inside=(tile.m * 0 + 3, self.end), surely=self.surely))


def test_columns_from_one_on():
    x = torch.arange(8 * 64.0).reshape(8, 64)
    assert torch.equal(Inside()(x), x[:, 3:40].sum(1))

    class Wrong(Inside):
        load, work = Inside.load, Inside.work
        surely = (8, 48)

    refused(Wrong(), x, argument="surely", rule="only 3 to 40 count")

    class NoPair(Inside):
        load, work = Inside.load, Inside.work
        surely = 8

    refused(NoPair(), x, argument="surely", rule="(first, end)")


def inside_of(few):
    class Few(Inside):
        load, work = Inside.load, Inside.work
        lanes = few

    return Few()


def test_lanes_of_a_row():
    x = torch.arange(8 * 64.0).reshape(8, 64)
    for few in (16, 8):
        assert torch.equal(inside_of(few)(x), x[:, 3:40].sum(1))
    refused(inside_of(3), x, argument="lanes", rule="divides 32")
    refused(inside_of(4), x, argument="tile", rule="cannot share evenly")
    form = Cumsum().forms(164, 2, 8)[0]  # of 41 vectors, which 32 lanes would take in two turns
    assert form.layout.row_lanes == 16 and form.columns == 192


class Shifted(tp.Schedule):
    """y[m, n] = x[m, n] + w[n + 5]."""

    load, work = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(1, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    w = tp.TmaLoadStage("i", tile=(128,), ring=ring)
    y = tp.ThreadStoreStage("m n", tile=(4, 64), role=work)
    at = 5

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
            slot.w.load(i=0)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
            k.y.store(tile, values + slot.w.read(columns_of=values, at=self.at))


def test_numbers_a_column_from_one_on():
    x, w = torch.randn(4, 64), torch.randn(128)
    assert torch.equal(Shifted()(x, w), x + w[5:69])

    class Beyond(Shifted):
        load, work = Shifted.load, Shifted.work
        at = 65

    refused(Beyond(), x, w, argument="slot.w.read(at)", rule="begin")


def taps_of(device="cpu"):
    """The inputs of `Taps`, and what comes out."""
    whole = torch.Generator().manual_seed(0)
    x, w, b, s = (
        torch.randint(-9, 9, shape, generator=whole).float().to(device)
        for shape in ((40, 200), (3, 200), (100,), (3, 20))
    )
    padded = torch.nn.functional.pad(x, (0, 0, 1, 1))
    sums = sum(padded[i : i + 40] * w[i] for i in range(3))
    return (x, w, b, s), sums + b.repeat_interleave(2) * s[1].repeat_interleave(2)[:, None]


def test_numbers_out_of_lines_of_a_tile():
    inputs, expected = taps_of()
    assert torch.equal(Taps()(*inputs), expected) and Taps().check().trips == "every trip count"
    beyond = Taps()
    beyond.taps = 4
    with pytest.raises(tp.errors.HazardError, match=r"from \(3, 0\) on in a slot of x, .* \[read-outside\]"):
        beyond(*inputs)


def test_width_and_wide():
    refused(
        lambda: tp.ThreadStoreStage("m n", tile=(1, 64), role=tp.Role(warps=1), wide=1), argument="wide", rule="True"
    )
    assert "(16 where the address allows)" in SoftmaxRows(RowForm(60, 1, 64, 1, vector=8), 8).explain()


@pytest.mark.parametrize("columns", [256, 1001])
def test_results_may_be_inputs(columns):
    """Where a form loads more than its rows, these are copied first."""
    x, y = torch.randn(6, columns), torch.randn(6, columns)
    for kernel, others in ((tp.schedules.Softmax(), ()), (tp.schedules.Elementwise(lambda x, y: x + y), (y,))):
        expected, over = kernel(x, *others), x.clone()
        assert kernel(over, *others, out=over) is over and torch.equal(over, expected)
    over = y.clone()
    assert torch.equal(kernel(x, over, out=over), expected)


@pytest.mark.parametrize("length", [701, 165, 95, 350])
@pytest.mark.parametrize("size", [2, 4])
def test_tiles_of_rows_as_they_lie_begin_at_16_bytes(length, size):
    """Also where there is a single row, whose address says nothing of the next row's."""
    forms = [form for form in row_forms(length, size) if form.packed]
    assert forms and all(form.rows * length * size % 16 == 0 for form in forms)


@pytest.mark.parametrize("eps", [-1e-6, float("nan"), float("inf"), "1e-6", None, True])
def test_eps_of_norms(eps):
    for kind in (RmsNorm, LayerNorm, tp.schedules.RmsNormBackward, tp.schedules.LayerNormBackward):
        refused(kind, eps=eps, argument=f"{kind.__name__}(eps)", rule="finite number from 0 on")


@pytest.mark.parametrize("ignored", [2**31, -1.5, None, True])
def test_ignored_targets_are_targets(ignored):
    """A number that no target can equal would ignore none."""
    for kind in (tp.schedules.CrossEntropy, tp.schedules.CrossEntropyBackward):
        refused(kind, ignored=ignored, argument=f"{kind.__name__}(ignored)", rule="integer of 32 bits")
