"""Operators of torch on the CPU: with the model in the place of kernels, and where torch computes instead."""

import contextlib
import warnings

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import tmapipe as tp
import tmapipe.torch as tt
from tests.unit.errors import refused
from tmapipe.gpu.kernels import same_as
from tmapipe.torch import operators
from tmapipe.torch.operators import settings

S = tp.schedules


@pytest.fixture
def model(monkeypatch):
    """CPU tensors run on the model, and nothing falls back."""
    monkeypatch.setattr(settings, "model", True)
    with tt.kernels_only():
        yield


def half(*shape):
    return torch.randint(-3, 4, shape).bfloat16()


def grads(function, *tensors):
    """Gradients of a sum with weights, in double precision if the tensors are."""
    given = [x.detach().clone().requires_grad_() for x in tensors]
    made = function(*given)
    factors = (torch.arange(made.numel()).reshape(made.shape) % 5 - 2).to(made.dtype)
    return torch.autograd.grad((made * factors).sum(), given)


@pytest.mark.parametrize("shape", [(64,), (24, 64), (2, 12, 64), (2, 2, 6, 64)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_linear_of_any_rank_and_layout(model, shape, bias):
    x, weight = half(*shape), half(16, 64)
    more = (half(16),) if bias else ()
    expected = functional.linear(x.float(), weight.float(), *(each.float() for each in more)).bfloat16()
    for layout in (weight, weight.t().contiguous().t()):
        for _ in range(2):  # the second is looked up
            found = tt.linear(x, layout, *more)
            assert found.is_contiguous() and torch.equal(found, expected)


def test_gemm(model):
    for batch in ((), (3,)):
        a, b = half(*batch, 24, 64), half(*batch, 16, 64)
        assert torch.equal(tt.gemm(a, b), (a.float() @ b.float().mT).bfloat16())
        if not batch:
            assert torch.equal(tt.gemm(a.mT.contiguous().mT, b), tt.gemm(a, b))
    refused(tt.gemm, half(8), half(8, 8), argument="tmapipe.torch.gemm", rule="two or three dimensions")


def test_gradients_of_products(model):
    x, weight, bias = half(3, 8, 64), half(16, 64), half(16)
    expected = grads(functional.linear, x.double(), weight.double(), bias.double())
    for mine, its in zip(grads(tt.linear, x, weight, bias), expected, strict=True):
        torch.testing.assert_close(mine.double(), its, atol=0, rtol=2**-7)
    a = half(24, 64)
    expected = grads(lambda a, b: a @ b.mT, a.double(), weight.double())
    for mine, its in zip(grads(tt.gemm, a, weight), expected, strict=True):
        torch.testing.assert_close(mine.double(), its, atol=0, rtol=2**-7)
    with torch.no_grad():
        assert not tt.linear(x.requires_grad_(), weight).requires_grad


@pytest.mark.parametrize("m, n, k", [(8, 13, 64), (8, 16, 6), (1, 24, 8), (5, 3, 7)])
def test_products_whose_rows_are_no_multiples_of_16_bytes(model, m, n, k):
    """Kernels take copies of such operands, also of their gradients."""
    for x, weight in (
        (half(m, k), half(n, k)),
        (half(m, k + 3)[:, 3:], half(n, k)),
        (half(k, m).mT, half(k, n).mT),
        (half(m, 2 * k)[:, ::2], half(n, 8 * k)[:, ::8]),
    ):
        bias = half(n)
        found = tt.linear(x, weight, bias)
        assert found.is_contiguous()
        assert torch.equal(found, functional.linear(x.float(), weight.float(), bias.float()).bfloat16())
        expected = grads(functional.linear, x.double(), weight.double(), bias.double())
        for mine, its in zip(grads(tt.linear, x, weight, bias), expected, strict=True):
            torch.testing.assert_close(mine.double(), its, atol=0, rtol=2**-7)
    a, b = half(3, m, k), half(3, k, n)
    assert torch.equal(tt.matmul(a, b), (a.float() @ b.float()).bfloat16())


@pytest.mark.parametrize("shape", [(40,), (7, 64), (2, 3, 5, 2, 40)], ids=str)
def test_rows(model, shape):
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    torch.testing.assert_close(tt.softmax(x), torch.softmax(x, -1))
    torch.testing.assert_close(tt.softmax(x.mT if x.ndim > 1 else x), torch.softmax(x.mT if x.ndim > 1 else x, -1))
    expected = functional.rms_norm(x, (shape[-1],), weight, 1e-5)
    torch.testing.assert_close(tt.rms_norm(x, weight, 1e-5), expected)


class Scaled(tp.Schedule):
    """y = 3 x, and z = x + y."""

    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(8, 64), role=work)
    z = tp.TmaStoreStage("m n", tile=(8, 64), role=work, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def scale(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values * 3)
        k.z.store(tile, values * 4)


def gradient(grads, inputs, outputs):
    (of_y, of_z), (x,), (y, z) = grads, inputs, outputs
    assert y.shape == z.shape == x.shape
    return 3 * of_y + 4 * of_z.to(x.dtype)


scaled = tt.register(Scaled(), "tmapipe_tests::scaled", backward=gradient)
product = tt.register(S.Gemm((64, 64, 64), (1, 1), b=tp.Operand("n")), "tmapipe_tests::product")


def test_a_schedule_of_ones_own():
    x = half(8, 64).requires_grad_()
    y, z = scaled(x)
    assert torch.equal(y, 3 * x) and torch.equal(z, 4 * x.float()) and y.requires_grad
    (found,) = torch.autograd.grad((y.float() + z).sum(), (x,))
    assert (found == 7).all()
    a, b = half(8, 64), half(64, 16).T
    assert torch.equal(product(a, b), (a.float() @ b.float().T).bfloat16())
    with pytest.raises(RuntimeError, match="autograd"):
        product(a.requires_grad_(), b).sum().backward()


def test_what_is_not_registered():
    refused(tt.register, S.Copy, "tmapipe_tests::copy", argument="register(schedule)", rule="")
    refused(tt.register, S.Copy(), "copy", argument="register(name)", rule="namespace")
    refused(tt.register, S.Copy(), "tmapipe_tests::scaled", argument="register(name)", rule="there is")
    refused(
        tt.register, S.Copy(), "tmapipe_tests::other", backward=3, argument="register(backward)", rule="is a function"
    )
    refused(tt.register, S.SplitK(2), "tmapipe_tests::split", argument="SplitK.register", rule="one kernel")


def heads(heads, tokens, d, batch=2):
    """[batch, heads, tokens, d] of which tokens come first in memory."""
    return torch.randn(batch, tokens, heads, d).bfloat16().transpose(1, 2)


@pytest.mark.parametrize("causal, shapes", [(False, (2, 2, 70, 40, 64, 32)), (True, (4, 2, 5, 9, 16, 16))])
def test_attention(model, causal, shapes):
    h, g, m, s, d, e = shapes
    q, k, v = heads(h, m, d), heads(g, s, d), heads(g, s, e)
    expected = functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=causal, scale=0.2, enable_gqa=True
    )
    found = tt.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.2, enable_gqa=True)
    torch.testing.assert_close(found.double(), expected, atol=2e-2, rtol=2e-2)
    alone = tt.scaled_dot_product_attention(q[0, :g], k[0], v[0], is_causal=causal, scale=0.2)
    assert alone.shape == (g, m, e)


@pytest.mark.parametrize(
    "mask, dims",
    [
        (torch.rand(1, 1, 6, 16, generator=torch.Generator().manual_seed(0)) > 0.3, "m s"),
        (torch.arange(16.0).bfloat16().expand(2, 4, 6, 16), "s"),
        (torch.randn(4, 1, 16, generator=torch.Generator().manual_seed(0)).bfloat16(), "h s"),
    ],
)
def test_attention_with_masks(model, mask, dims, monkeypatch):
    make, used = tt.Score, []
    monkeypatch.setattr(tt, "Score", lambda mask: used.append(mask) or make(mask=mask))
    q, k, v = heads(4, 6, 32), heads(2, 16, 32), heads(2, 16, 32)
    found = tt.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    wide = mask if mask.dtype == torch.bool else mask.double()
    wanted = functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), wide, enable_gqa=True)
    torch.testing.assert_close(found.double(), wanted, atol=2e-2, rtol=2e-2)
    assert used == [dims]


def test_attention_by_torch():
    q, k, v = (torch.randn(1, 2, 6, 16) for _ in range(3))
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for options in ({"attn_mask": mask}, {"attn_mask": mask[:1].float()}, {"is_causal": True}, {"scale": 2.0}):
            found = tt.scaled_dot_product_attention(q, k, v, **options)
            assert torch.allclose(found, functional.scaled_dot_product_attention(q, k, v, **options))
        with pytest.raises(RuntimeError):
            tt.scaled_dot_product_attention(q, k[:, :1].expand(1, 3, 6, 16), v)
        with pytest.raises(RuntimeError):
            tt.scaled_dot_product_attention(q, k, v, mask[:, :5])
    assert any("attn_mask" in reason for reason in tt.fallbacks())
    refused(tt.scaled_dot_product_attention, q.requires_grad_(), k, v, argument="scaled_dot", rule="no gradients")
    with torch.no_grad():
        tt.scaled_dot_product_attention(q, k, v)


def test_opcheck(model):
    given = heads(2, 5, 16), heads(1, 7, 16), heads(1, 7, 32)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.tmapipe.scaled_dot_product_attention, (*given, True, None), test_utils=checks)
    ops = torch.ops.tmapipe
    x, weight, bias = (half(*shape).requires_grad_() for shape in ((3, 8, 64), (16, 64), (16,)))
    torch.library.opcheck(ops.linear, (x, weight, bias))
    torch.library.opcheck(torch.ops.tmapipe_tests.scaled, (half(8, 64).requires_grad_(),))
    rows = torch.randn(4, 40, requires_grad=True)
    quick = ("test_schema", "test_autograd_registration", "test_faketensor")  # what the last one adds takes seconds
    torch.library.opcheck(ops.gemm, (half(8, 64).requires_grad_(), weight), test_utils=quick)
    torch.library.opcheck(ops.softmax, (rows,), test_utils=quick)
    torch.library.opcheck(ops.rms_norm, (rows, torch.randn(40, requires_grad=True), 1e-6), test_utils=quick)
    columns = torch.randn(40, requires_grad=True)
    torch.library.opcheck(ops.log_softmax, (rows,), test_utils=quick)
    torch.library.opcheck(ops.layer_norm, (rows, columns, columns, 1e-5), test_utils=quick)
    torch.library.opcheck(ops.cross_entropy, (rows, torch.arange(4), -100), test_utils=quick)
    torch.library.opcheck(ops.transpose, (rows, (1, 0)), test_utils=quick)
    x, columns, lse, checks = rows.detach(), columns.detach(), torch.randn(4), ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.softmax_gradient, (x, x, True), test_utils=checks)
    torch.library.opcheck(ops.rms_norm_gradients, (x, columns, x, 1e-5), test_utils=checks)
    torch.library.opcheck(ops.layer_norm_gradients, (x, columns, x, 1e-5), test_utils=checks)
    torch.library.opcheck(ops.cross_entropy_gradient, (x, torch.arange(4), lse, lse, -100), test_utils=checks)
    torch.library.opcheck(torch.ops.tmapipe_tests.product, (half(8, 64), half(64, 16).T), test_utils=quick)


def test_calls_are_remembered_outside_of_operators(model, monkeypatch):
    """Inside, torch's state is another one, and a comparison that is made there never holds outside."""
    checks = []
    launched = (object(), [])
    monkeypatch.setattr(operators, "watching", lambda tensor: contextlib.nullcontext([launched]))
    monkeypatch.setattr("tmapipe.gpu.launch.repeated", lambda launches, given, *_: checks.append(same_as(given)))
    x, weight, bias = half(2, 12, 64), half(16, 64), half(16)
    tt.linear(x, weight, bias)
    tt.gemm(x[0], weight)
    assert checks[0](x, weight, bias) and checks[1](x[0], weight) and len(checks) == 2


def test_graphs_take_what_is_remembered_and_tracing_does_not(model, monkeypatch):
    x, weight = half(8, 72), half(16, 72)
    monkeypatch.setattr(operators, "callers", {})
    monkeypatch.setattr(operators, "watching", lambda tensor: contextlib.nullcontext([(object(), [])]))
    taken = []

    def repeated(launches, given, out, results):
        same = same_as(given)
        return lambda tensors, out, named: taken.append(1) or results[0] if same(*tensors) else None

    monkeypatch.setattr("tmapipe.gpu.launch.repeated", repeated)
    op = torch.ops.tmapipe.linear.default  # what a compiled graph calls
    with torch.no_grad():
        first = op(x, weight, None)
        assert not taken and torch.equal(op(x, weight, None), first) and len(taken) == 1
        tt.linear(x, weight)
        assert len(taken) == 2
        for _ in range(2):
            graph = make_fx(lambda x: tt.linear(x, weight))(x)
            assert "tmapipe.linear" in graph.code
    taken.clear()
    with torch.inference_mode():
        for _ in range(2):
            op(x, weight, None)
        assert len(taken) == 1
    weight.requires_grad_()
    assert tt.linear(x, weight).requires_grad and tt.linear(x, weight).requires_grad and len(taken) == 2
    x, grad = half(2, 4, 72).requires_grad_(), half(2, 4, 16)
    for run in (tt.linear, lambda x, w: tt.gemm(x.view(8, 72), w).view(2, 4, 16)):
        given = x.double().detach().requires_grad_(), weight.double().detach().requires_grad_()
        right = torch.autograd.grad(functional.linear(*given), given, grad.double())
        for times in range(2):  # the second takes the product and both gradients
            taken.clear()
            found = torch.autograd.grad(run(x, weight), (x, weight), grad)
            assert all(torch.equal(mine, its.bfloat16()) for mine, its in zip(found, right, strict=True))
            assert len(taken) == 3 * times
    wide = x.detach().float(), weight.detach().float()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert tt.linear(*wide) is tt.linear(*wide)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    refused(tt.linear, *wide, argument="tmapipe.torch.linear", rule="kernel", value=operators.NO_TF32)
    product = tt.linear(x, weight)
    taken.clear()
    (of_x,) = torch.autograd.grad(product, (x,), grad.clone().requires_grad_(), create_graph=True)
    assert of_x.requires_grad  # which what is remembered has not


def test_parts_of_k_with_a_bias(model, monkeypatch):
    split = S.SplitK(2, (64, 64, 64), (1, 1), epilogue=operators.BIASED)
    monkeypatch.setattr(operators, "_schedule", lambda problem, bias: split)
    x, weight, bias = half(8, 128), half(16, 128), half(16)
    assert torch.equal(
        tt.linear(x, weight, bias), functional.linear(x.float(), weight.float(), bias.float()).bfloat16()
    )


ROWS = {
    "softmax": (tt.softmax, lambda x: torch.softmax(x, -1), 1),
    "log_softmax": (tt.log_softmax, lambda x: torch.log_softmax(x, -1), 1),
    "rms_norm": (tt.rms_norm, lambda x, w: functional.rms_norm(x, x.shape[-1:], w, 1e-6), 2),
    "layer_norm": (tt.layer_norm, lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b), 3),
    "layer_norm without a bias": (tt.layer_norm, lambda x, w: functional.layer_norm(x, x.shape[-1:], w), 2),
    "transpose": (lambda x: tt.transpose(x, (0, 2, 1)), lambda x: x.permute(0, 2, 1), 1),
}


@pytest.mark.parametrize("name", ROWS)
def test_functions_of_rows(model, name):
    mine, its, count = ROWS[name]
    for columns in (33, 40):
        given = [torch.randn(2, 3, columns), torch.randn(columns), torch.randn(columns)][:count]
        torch.testing.assert_close(mine(*given).double(), its(*(x.double() for x in given)), atol=1e-4, rtol=1e-4)
        expected = grads(its, *(x.double() for x in given))
        for found, wanted in zip(grads(mine, *given), expected, strict=True):
            torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-4)
    x = given[0].bfloat16().requires_grad_()  # beside numbers of columns of another type
    (found,) = torch.autograd.grad(mine(x, *given[1:]).sum(), (x,))
    assert found.dtype == torch.bfloat16 and found.shape == x.shape


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "rms_norm", "layer_norm"])
def test_gradients_are_differentiated_again(model, name):
    mine, its, count = ROWS[name]
    given = [torch.randn(3, 8), torch.randn(8), torch.randn(8)][:count]

    def twice(function, *tensors):
        (of_x,) = torch.autograd.grad(function(*tensors).square().sum(), tensors[:1], create_graph=True)
        return torch.autograd.grad(of_x.square().sum(), tensors[:1])[0]

    exact = twice(its, *(x.double().requires_grad_() for x in given))
    torch.testing.assert_close(twice(mine, *(x.requires_grad_() for x in given)).double(), exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(33,), (9, 33), (2, 33, 3, 2)], ids=str)
def test_cross_entropy(model, shape, reduction):
    x = torch.randn(shape)
    target = torch.randint(0, 33, (*shape[:-1],) if len(shape) < 3 else (2, 3, 2))
    if target.ndim:
        target.view(-1)[1] = -100
    expected = functional.cross_entropy(x.double(), target, reduction=reduction)
    found = tt.cross_entropy(x, target, reduction=reduction)
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    (exact,) = grads(lambda x: functional.cross_entropy(x, target, reduction=reduction), x.double())
    (mine,) = grads(lambda x: tt.cross_entropy(x, target, reduction=reduction), x)
    torch.testing.assert_close(mine.double(), exact, atol=1e-5, rtol=1e-4)
    rule = "mean, sum or none"
    refused(tt.cross_entropy, x, target, argument="cross_entropy(reduction)", rule=rule, reduction="most")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_of_cross_entropy_are_differentiated_again(model, reduction):
    """lse was a constant then."""
    x, target = torch.randn(5, 7), torch.tensor([0, 1, 2, -100, 4])

    def twice(function, x):
        (of_x,) = torch.autograd.grad(function(x, target, reduction=reduction).sum(), x, create_graph=True)
        return torch.autograd.grad(of_x.square().sum(), x)[0]

    exact = twice(functional.cross_entropy, x.double().requires_grad_())
    torch.testing.assert_close(twice(tt.cross_entropy, x.requires_grad_()).double(), exact, atol=1e-5, rtol=1e-4)


SHAPES = [((8, 16), (16, 24)), ((16,), (16, 24)), ((8, 16), (16,)), ((16,), (16,)), ((2, 8, 16), (16, 24))]
SHAPES += [((2, 8, 16), (2, 16, 24)), ((3, 1, 8, 16), (2, 16, 24)), ((8, 16), (2, 16, 24)), ((2, 8, 16), (16,))]


@pytest.mark.parametrize("of", SHAPES, ids=str)
def test_matmul_of_any_ranks(of):
    a, b = (torch.randn(shape, dtype=torch.float64) for shape in of)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch computes them here
        torch.testing.assert_close(tt.matmul(a, b), torch.matmul(a, b))
        for mine, its in zip(grads(tt.matmul, a, b), grads(torch.matmul, a, b), strict=True):
            torch.testing.assert_close(mine, its)


def test_batches_that_broadcast(model):
    a, b = half(3, 1, 8, 64), half(2, 64, 16)
    assert torch.equal(tt.matmul(a, b), torch.matmul(a.float(), b.float()).bfloat16())


def test_modules(model):
    x = torch.randn(2, 8, 64).bfloat16()
    layer, swiglu = tt.Linear(64, 32).bfloat16(), tt.SwiGLU(64, 32, dtype=torch.bfloat16)
    torch.testing.assert_close(layer(x), functional.linear(x, layer.weight, layer.bias), atol=0.05, rtol=0.02)
    gate, up, down = (each.weight.float() for each in (swiglu.gate, swiglu.up, swiglu.down))
    wide = x.float()
    expected = functional.silu(wide @ gate.T) * (wide @ up.T) @ down.T
    torch.testing.assert_close(swiglu(x).float(), expected, atol=0.05, rtol=0.05)


def test_compiled_whole_with_extents_that_change(model):
    weight, bias = half(32, 64).requires_grad_(), half(32)

    def layer(x):
        y = tt.softmax(tt.linear(x, weight, bias))
        return scaled(tt.rms_norm(y, bias))[0]

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (8, 24):
        x = half(rows, 64)
        torch.testing.assert_close(compiled(x), layer(x))
        compiled(x).float().sum().backward()
        assert weight.grad.shape == weight.shape


def test_autocast(model):
    x, weight = torch.randn(8, 64), torch.randn(16, 64)
    with torch.autocast("cpu", torch.bfloat16):
        found, multiplied = tt.linear(x, weight), tt.gemm(x, weight)
    assert found.dtype == multiplied.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), x @ weight.T, atol=0.3, rtol=0.05)


# ---- fallbacks --------------------------------------------------------------------------------------------------------


def test_what_no_kernel_takes_is_counted_and_said_once(monkeypatch):
    x, weight = half(8, 72), half(24, 72)
    before = tt.fallbacks().get("linear: tensors on cpu", 0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(tt.linear(x, weight), functional.linear(x, weight))
    assert sum("tensors on cpu" in str(each.message) for each in said) == (before == 0)
    assert tt.fallbacks()["linear: tensors on cpu"] == before + 3
    with tt.kernels_only():
        refused(tt.linear, x, weight, argument="tmapipe.torch.linear", rule="kernels_only", value="tensors on cpu")
    assert torch.equal(tt.linear(x, weight), functional.linear(x, weight))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: tt.linear(torch.randn(8, 64), torch.randn(16, 64)), "linear: float32, as torch allows no tf32"),
        (lambda: tt.linear(half(8, 64), half(13, 64)), "linear: few products of rows that TMA does not load"),
        (lambda: tt.gemm(half(8, 64).t().contiguous().t(), half(16, 64)), ""),
        (lambda: tt.linear(half(8, 64).int(), half(16, 64).int()), "linear: int32"),
        (lambda: tt.softmax(torch.randn(8, 64), 0), "softmax: a dimension that is not the last"),
        (lambda: tt.softmax(torch.randn(8, 64, dtype=torch.double)), "softmax: x.dtype"),
        (
            lambda: tt.cross_entropy(torch.randn(8, 64), torch.rand(8, 64)),
            "cross_entropy: targets that are not a class",
        ),
    ],
)
def test_reasons(monkeypatch, call, reason):
    monkeypatch.setattr(settings, "model", True)
    before = tt.fallbacks()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()
    found = [name for name, count in tt.fallbacks().items() if count > before.get(name, 0)]
    assert [name for name in found if name.startswith(reason)] if reason else not found


def test_wrong_shapes_are_torchs_errors(model):
    with pytest.raises(RuntimeError, match="shape"):
        tt.linear(half(8, 64), half(16, 32))
    assert tt.linear(half(0, 64), half(16, 64)).shape == (0, 16)
    assert tt.softmax(torch.zeros(3, 0)).shape == (3, 0)


OPERATORS = {
    "softmax": lambda x: tt.softmax(x.float(), -1),
    "rms_norm": lambda x: tt.rms_norm(x, x[0]),
    "transpose": tt.transpose,
    "cross_entropy": lambda x: tt.cross_entropy(x.float(), torch.zeros(len(x), dtype=torch.int64)),
    "linear": lambda x: tt.linear(x, x),
    "gemm": lambda x: tt.gemm(x, x),
    "matmul": lambda x: tt.matmul(x, x.mT),
    "scaled_dot_product_attention": lambda x: tt.scaled_dot_product_attention(*[x[None, None]] * 3),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_tangents_are_refused(model, name):
    """A kernel would lose them, and torch take them as 0."""
    x = half(16, 64)
    with torch.autograd.forward_ad.dual_level():
        OPERATORS[name](x)  # has none
        dual = torch.autograd.forward_ad.make_dual(x, x)
        refused(OPERATORS[name], dual, argument=f"tmapipe.torch.{name}(", rule="has no tangent")
    refused(torch.func.jvp, OPERATORS[name], (x,), (x,), argument=f"tmapipe.torch.{name}(", rule="has no tangent")


def test_tangents_of_a_schedule_are_refused():
    x = torch.randn(8, 64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        for schedule in (S.Elementwise(tp.math.relu), S.Softmax()):
            refused(schedule, dual, argument="x", rule="has no tangent")


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_results_with_gradients_are_changed_in_place(model, batch):
    x, weight = half(*batch, 16, 64).requires_grad_(), half(16, 64)
    for run in (lambda x: tt.linear(x, weight), lambda x: tt.rms_norm(x, weight[0])):
        run(x).relu_().sum().backward()
        found, x.grad = x.grad, None
        run(x).relu().sum().backward()
        assert torch.equal(found, x.grad)
        x.grad = None


def test_out_dtype_that_is_no_type(model):
    a, scale = torch.zeros(16, 32).to(torch.float8_e4m3fn), torch.ones(1)
    given = {
        "out_dtype": torch.zeros(2).numpy(),
        "argument": "tmapipe.torch.scaled_mm(out_dtype)",
        "rule": "is bfloat16",
    }
    refused(tt.scaled_mm, a, a, scale, scale, **given)
