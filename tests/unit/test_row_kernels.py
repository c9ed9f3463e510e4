"""Kernels of rows beside softmax and RMSNorm: their numbers, gradients, and what they refuse. `tests/gpu` runs them too."""

import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tests.unit.test_row_schedules import BF16, FP32, close
from tmapipe import schedules as S
from tmapipe.schedules import rows as rows_module
from tmapipe.schedules.norms import ElementwiseKernel
from tmapipe.schedules.rowform import different, row_forms
from tmapipe.schedules.rows import Rows

functional = torch.nn.functional
SHAPES = [((20, 125), BF16), ((3, 7, 72), FP32), ((7, 1004), FP32), ((5, 1001), BF16), ((3, 20001), FP32)]
EXTREME = [72, 1001, 40000]  # columns, of which those of the last lie in several pieces
HERE, INF = "cpu", float("inf")


def rows_of(shape, dtype, count=1, device=HERE):
    source = torch.Generator().manual_seed(shape[-1])
    made = [torch.randn(shape, generator=source).to(device, dtype) for _ in range(count)]
    return made[0] if count == 1 else made


def near(found, wanted, dtype=BF16):
    """Of gradients, which may be small differences of large numbers."""
    off = (found.double() - wanted).norm() / wanted.norm()
    assert off < {BF16: 1e-2, FP32: 2e-6}[dtype], off


def check_forward(shape, dtype, device=HERE):
    x, n = rows_of(shape, dtype, device=device), shape[-1]
    wide = x.double()
    close(S.LogSoftmax()(x), torch.log_softmax(wide, -1), dtype)
    weight, bias = (rows_of((n,), FP32, device=device) + i for i in range(2))
    y, mean, rstd = S.LayerNorm(numbers=True)(x, weight, bias)
    close(y, functional.layer_norm(wide, (n,), weight.double(), bias.double()), dtype)
    close(mean, wide.mean(-1), FP32)
    close(rstd, (wide.var(-1, correction=0) + 1e-5).rsqrt(), FP32)
    plain = S.LayerNorm()(x, weight)
    close(plain, functional.layer_norm(wide, (n,), weight.double()), dtype)
    size = 1 + wide.norm(
        dim=-1
    )  # of a partial sum: a sum of terms of both signs is rounded relative to these, not to itself
    close(S.Reduce("sum")(x) / size.float(), wide.sum(-1) / size, FP32)
    others = {"mean": wide.mean(-1), "max": wide.amax(-1), "min": wide.amin(-1), "logsumexp": wide.logsumexp(-1)}
    for operation, wanted in others.items():
        close(S.Reduce(operation)(x), wanted, FP32)


def check_cross_entropy(shape, dtype, device=HERE):
    x, n = rows_of(shape, dtype, device=device), shape[-1]
    target = torch.randint(0, n, shape[:-1], generator=torch.Generator().manual_seed(0)).to(device)
    target.view(-1)[1] = -100
    target.view(-1)[2] = n - 1
    wide = x.double().requires_grad_()
    wanted = functional.cross_entropy(wide.reshape(-1, n), target.reshape(-1), reduction="none").reshape(target.shape)
    kernel = S.CrossEntropy()
    for given in (target, target.int()):
        loss, lse = kernel(x, given)
        close(loss, wanted.detach(), FP32)
        close(lse, x.double().logsumexp(-1), FP32)
    dloss = rows_of(shape[:-1], FP32, device=device)
    wanted.backward(dloss.double())
    near(S.CrossEntropyBackward()(x, target, lse, dloss), wide.grad, dtype)


def check_extremes(length, device=HERE):
    """Rows that have -inf alone, and many of it before others; infinity; NaN; and numbers near the largest, of either sign."""
    x = rows_of((8, length), FP32, device=device)
    for row, (part, number) in enumerate(
        ((0.7, -INF), (1, -INF), (0.1, INF), (0.1, float("nan")), (0.6, 3e38), (1, -3e38), (0.5, -3e38), (1, 2.0**125))
    ):
        x[row, : round(part * length)] = number
    x[4, -1] = 3.2e38
    wanted = x.double().logsumexp(-1)
    for kernel in (S.Reduce("logsumexp"), lambda x: S.CrossEntropy()(x, torch.arange(8, device=device))[1]):
        torch.testing.assert_close(kernel(x), wanted.float(), equal_nan=True, atol=0, rtol=2e-6)


def check_gradients(shape, dtype, device=HERE):
    n = shape[-1]
    x, dy = rows_of(shape, dtype, 2, device)
    for forward, kernel in ((torch.softmax, S.SoftmaxBackward), (torch.log_softmax, S.LogSoftmaxBackward)):
        y = forward(x.double(), -1).to(dtype)
        inner = y.double() * dy.double() if forward is torch.softmax else dy.double()
        scale = y.double() if forward is torch.softmax else y.double().exp()
        near(kernel()(y, dy), inner - scale * inner.sum(-1, keepdim=True), dtype)
    weight, zeros = rows_of((n,), dtype, device=device), torch.zeros(n, dtype=torch.float64, device=device)
    wide, weights, biases = (each.double().requires_grad_() for each in (x, weight, zeros))
    functional.layer_norm(wide, (n,), weights, biases).backward(dy.double())
    for found, wanted in zip(S.LayerNormBackward()(x, weight, dy), (wide, weights, biases), strict=True):
        near(found, wanted.grad, dtype if found.dtype == dtype else FP32)
    wide, weights = (each.double().requires_grad_() for each in (x, weight))
    functional.rms_norm(wide, (n,), weights, 1e-6).backward(dy.double())
    for found, wanted in zip(S.RmsNormBackward()(x, weight, dy), (wide, weights), strict=True):
        near(found, wanted.grad, dtype if found.dtype == dtype else FP32)


@pytest.mark.parametrize("shape, dtype", SHAPES, ids=str)
def test_forward(shape, dtype):
    check_forward(shape, dtype)


@pytest.mark.parametrize("shape, dtype", SHAPES, ids=str)
def test_cross_entropy(shape, dtype):
    check_cross_entropy(shape, dtype)


@pytest.mark.parametrize("length", EXTREME)
def test_logarithms_of_sums_of_extreme_numbers(length):
    check_extremes(length)


@pytest.mark.parametrize("shape, dtype", SHAPES[:3], ids=str)
def test_gradients(shape, dtype, monkeypatch):
    monkeypatch.setattr(
        S.normgradients.GradientForm, "clusters", property(lambda form: 3)
    )  # which take several tiles each
    check_gradients(shape, dtype)


def test_rows_of_views():
    """Rows whose pitch and whose first element are no multiples of 16 bytes are loaded where they lie."""
    base = rows_of((37, 501), BF16)
    for x in (base[:, 5:301], base[:, :300], base[3:, 7:]):
        softmax = S.Softmax()
        close(softmax(x), torch.softmax(x.double(), 1), BF16)
        out = torch.empty(x.shape[0], 504).to(BF16)[:, : x.shape[1]]
        close(softmax(x, out=out), torch.softmax(x.double(), 1), BF16)
        assert {each.form.pitch for each in softmax.fitted.values()} == {501}


@pytest.mark.parametrize("n", [20, 70])
def test_short_rows_with_something_between(n):
    """A box has all weights of such a row."""
    x, weight = rows_of((7, n + 1), BF16)[:, :n], rows_of((n,), BF16)
    near(tp.schedules.LayerNorm()(x, weight), torch.nn.functional.layer_norm(x.float(), (n,), weight.float()))
    near(tp.schedules.RmsNorm()(x, weight), torch.nn.functional.rms_norm(x.float(), (n,), weight.float(), eps=1e-6))


def test_a_target_that_is_no_column():
    x = rows_of((3, 72), FP32)
    loss, _ = S.CrossEntropy(ignored=7)(x, torch.tensor([7, 72, -1]))
    assert loss[0] == 0 and loss[1:].isnan().all()


def test_bad_input():
    x = rows_of((4, 64), FP32)
    refused(S.Reduce, "product", argument="Reduce(operation)", rule="is one of sum")
    refused(S.CrossEntropy(), x, torch.zeros(3, dtype=torch.int64), argument="target", rule="int64 or int32")
    refused(S.CrossEntropy(), x, torch.zeros(4), argument="target", rule="int64 or int32")
    refused(
        S.CrossEntropyBackward(), x, torch.zeros(4, dtype=torch.int64), x[:, 0], x[:3, 0], argument="dloss", rule="fp32"
    )
    refused(lambda: S.Reduce()(x, out=torch.empty(5)), argument="y.shape", rule="is that of x")
    refused(lambda: S.Reduce()(x, out=torch.empty(4).to(BF16)), argument="y.dtype", rule="fp32")


# ---- what they are made of ----------------------------------------------------------------------------------------------


class SideBySide(tp.Schedule):
    """y[m] = the sum of 13 elements from 15 m on."""

    load, work = tp.Role(warps=1), tp.Role(warps=1)
    over = "m"
    ring = tp.BarrierRing(1, producer=load, consumer=work)
    x = tp.TmaLoadStage("w", tile=(256,), ring=ring)
    y = tp.TmaStoreStage("m", tile=(8,), role=work)
    pitch, more = 15, {}

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load_from(tile.m * (8 * self.pitch))

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read(tile=(8, 32), pitch=self.pitch, width=1, **self.more)
        k.y.store(tile, tp.math.row_sum(values, inside=13))


def test_rows_side_by_side_in_a_slot():
    x = torch.arange(24 * 15.0)
    assert torch.equal(SideBySide()(x, torch.empty(24)), x.reshape(24, 15)[:, :13].sum(1))
    assert SideBySide().check().ok

    class Repeated(SideBySide):
        load, work = SideBySide.load, SideBySide.work
        pitch = 0

    assert torch.equal(Repeated()(x, torch.empty(24)), x[:13].sum().expand(24))

    class Beyond(SideBySide):
        load, work = SideBySide.load, SideBySide.work
        pitch = 40

    refused(Beyond(), x, torch.empty(24), argument="slot.x.read(pitch)", rule="how far apart 8 rows of 32")


class Picked(SideBySide):
    """y[m] = the element of row m that its first one names, counted from *more* on."""

    load, work = SideBySide.load, SideBySide.work
    more = 0

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read(tile=(8, 32), pitch=self.pitch, width=1)
            named = tp.math.cast(tp.math.row_sum(values, inside=1), "int32")
            found = slot.x.read(at=named + (named.rows * self.pitch + self.more))
        k.y.store(tile, found)


def test_an_element_of_each_row():
    x = torch.randn(24, 15)
    x[:, 0] = torch.arange(24) % 12 + 1
    wanted = x.gather(1, x[:, :1].long()).flatten()
    assert torch.equal(Picked()(x.flatten(), torch.empty(24)), wanted)
    assert Picked().check().ok

    class Float(Picked):
        load, work = Picked.load, Picked.work
        more = 0.5

    refused(Float(), x.flatten(), torch.empty(24), argument="slot.x.read(at)", rule="a fragment of int32")

    class Beyond(Picked):
        load, work = Picked.load, Picked.work
        more = 150

    with pytest.raises(tp.errors.HazardError, match=r"reads elements \d+ to \d+ in a slot of x, .* \[read-outside\]"):
        Beyond()(x.flatten(), torch.empty(24))


def test_rows_side_by_side_that_begin_later_and_count_often():
    x = torch.arange(24 * 15.0)
    rows = x.reshape(3, 8, 15)[:, :4].repeat_interleave(2, 1)

    class Later(SideBySide):
        load, work = SideBySide.load, SideBySide.work

    Later.more = {"at": 2, "each": 2}
    assert torch.equal(Later()(x, torch.empty(24)), (rows.sum(2) - rows[..., :2].sum(2)).flatten())
    assert Later().check().ok
    for more, argument, rule in (
        ({"at": 120}, "slot.x.read(at)", "where 8 rows begin, 15 elements apart"),
        ({"at": -1}, "slot.x.read(at)", "where 8 rows begin"),
        ({"each": 0}, "slot.x.read(each)", "how many rows or columns share"),
    ):

        class Wrong(SideBySide):
            load, work = SideBySide.load, SideBySide.work

        Wrong.more = more
        refused(Wrong(), x, torch.empty(24), argument=argument, rule=rule)


def test_wide_stores_of_tiles_that_begin_elsewhere():
    """16 bytes at once, said to be inside, but at no multiple of 16: an H200 traps."""
    form = S.rowform.RowForm(500, 1, 512, 2, vector=2, pitch=501)
    x, y = rows_of((16, 501), BF16)[:, :500], torch.empty(16, 500).to(BF16)
    refused(S.SoftmaxRows(form, 2).run, {"x": x, "y": y}, {}, argument="y.store(surely)", rule="16 bytes at once")


def test_kernels_with_tables_from_other_processes():
    """They are launched without being compiled again."""
    pytest.importorskip("cutlass")
    from tmapipe.gpu.build import Compiled
    from tmapipe.gpu.launch import adopt, compiled_for

    rows = S.CrossEntropyRows(S.rowform.RowForm(60, 4, 64, 1, packed=True))
    x, numbers, target = rows_of((4, 60), BF16), torch.empty(4), torch.zeros(4, dtype=torch.int64)
    bound = rows.bind(x=x.reshape(-1), target=target, loss=numbers, lse=numbers.clone())
    ranks = {name: each.ndim for name, each in bound.tensors.items()}
    compiled = Compiled(rows.plan(bound.dtypes), None)
    adopt(rows, compiled, ranks)
    assert compiled_for(rows, bound, lambda *_: None) is compiled


def test_rows_that_are_only_read_are_read_once_and_by_small_ctas():
    """A CTA takes one tile, or a row by pieces in two slots; so many share a multiprocessor that a row that ends late matters
    little. Short rows have few lanes, and loads leave in L2 what was written before (H200: 78 bf16 40.6 us, 84.7 by 32
    lanes)."""
    for length, size, vector in (
        (78, 2, 4),
        (212, 4, 16),
        (6540, 2, 8),
        (14280, 2, 16),
        (128256, 2, 16),
        (51287, 4, 4),
    ):
        forms = different(row_forms(length, size, vector, reads=True), 4)
        assert all(form.each == 1 and form.held for form in forms) and len({*forms}) == 4
        assert all(form.depth == (2 if form.ctas > 1 else 1) for form in forms)
        assert length > 1000 or forms[0].lanes in (2, 4)
        assert forms[0].share * form_bytes(forms[0]) > 64 << 10, forms[0]
        assert S.CrossEntropyRows(forms[0]).x.l2_hint == "evict_first"
    assert S.SoftmaxRows(row_forms(78, 2, 4)[0], 4).x.l2_hint == "evict_last"
    kernel, x = tp.schedules.Reduce(), torch.randn(3, 40000)
    torch.testing.assert_close(kernel(x), x.sum(1), atol=1e-2, rtol=1e-4)
    (schedule,) = kernel.fitted.values()
    assert schedule.ring.stages == 2 and schedule.check({"x": "fp32"}).trips == "every trip count"


def form_bytes(form):
    """Of a CTA's slots."""
    return form.depth * form.slot * form.size


@pytest.mark.parametrize("kernel", [S.Softmax(), S.Cumsum(), S.Reduce(), S.Reduce("max")])
@pytest.mark.parametrize("rows, pitch", [(7, 3001), (9, 3010), (1, 3001)])
def test_all_rows_that_begin_anywhere_are_one_launch(kernel, rows, pitch, monkeypatch):
    calls, called = [], Rows.__call__
    monkeypatch.setattr(Rows, "__call__", lambda self, **named: calls.append(called(self, **named)))
    kernel(rows_of((rows, pitch), BF16)[:, :3001])
    assert len(calls) == 1


def test_more_rows_that_begin_anywhere_than_places_are_several_launches(monkeypatch):
    """Each begins with a row that begins like the first one."""
    monkeypatch.setattr(rows_module, "MOST_ELEMENTS", 12_500)
    x = rows_of((21, 1001), FP32)
    close(S.Reduce("max")(x), x.double().amax(-1), FP32)
    close(S.LogSoftmax()(x[:, 1:]), torch.log_softmax(x[:, 1:].double(), -1), FP32)


def test_calls_that_are_remembered_are_of_the_same_tensors():
    """What a call of one kernel has left makes no call again that has other tensors."""
    norm, x, weight = tp.schedules.LayerNorm(), torch.randn(4, 64), torch.randn(64)
    norm.__dict__["_again"] = tuple((["x", "weight", name], lambda *_, name=name: name, None) for name in ("bias", "y"))
    torch.testing.assert_close(norm(x, weight), torch.nn.functional.layer_norm(x, (64,), weight))
    assert norm(x, weight, weight) == "bias"
    assert norm(x, weight, out=torch.empty(4, 64)) == "y"


@pytest.mark.parametrize("kernel, name, value", [(S.LayerNorm, "eps", 10.0), (S.CrossEntropy, "ignored", 2)])
def test_an_attribute_that_is_assigned_makes_another_kernel(kernel, name, value):
    """Kernels that were made before have its old value."""
    x, second = torch.randn(4, 64), torch.tensor([1, 2, 3, 0]) if kernel is S.CrossEntropy else torch.randn(64)
    made, other = kernel(), kernel(**{name: value})
    before = made(x, second)
    setattr(made, name, value)
    found, wanted = ([each] if torch.is_tensor(each) else each for each in (made(x, second), other(x, second)))
    torch.testing.assert_close([*found], [*wanted], rtol=0, atol=0)
    assert not torch.equal(found[0], before if torch.is_tensor(before) else before[0])


def test_gradients_of_another_eps_and_sums_of_another_type():
    """A kernel that is remembered by its signature alone has the old ones."""
    x, weight, dy = torch.randn(4, 64), torch.randn(64), torch.randn(4, 64)
    made = S.RmsNormBackward()
    made(x, weight, dy)
    made.known = {"a signature": None}
    made.eps, made.totals = 10.0, tp.dtypes.bf16
    assert not made.known
    torch.testing.assert_close(made(x, weight, dy), S.RmsNormBackward(10.0, "bf16")(x, weight, dy), rtol=0, atol=0)


def test_calls_of_elementwise_keep_the_kernels_of_rows():
    """Each call assigns what its look is named by, on which no kernel depends."""
    kernel, made = ElementwiseKernel(lambda x: x + 1, ("x",)), []
    for rows in (3, 5):
        out = torch.empty(rows, 50)
        kernel([torch.zeros(rows, 50)], out, lambda: None)
        made += kernel.fitted.values()
        assert (out == 1).all()
    assert len(made) == 2 and made[0] is made[1]


def test_a_gradient_of_rows_of_16_bytes():
    """What threads of many short rows reduce takes more shared memory than barriers do."""
    y, dy = rows_of((300, 4), FP32, 2)
    wanted = y.double() * (dy.double() - (y.double() * dy.double()).sum(1, keepdim=True))
    near(S.SoftmaxBackward()(y, dy), wanted, FP32)
