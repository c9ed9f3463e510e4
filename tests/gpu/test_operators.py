"""Every operator of `tmapipe.torch` on the device: opcheck, gradients against double precision, one graph with extents that
change, and CUDA graphs of torch.compile. Nothing falls back."""

import attrs
import pytest
import torch
from torch.nn import functional

import tmapipe.torch as tt

OPS = torch.ops.tmapipe
QUICK = ("test_schema", "test_autograd_registration", "test_faketensor")


def half(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def few(*shape):
    """Numbers of 8 bits."""
    return half(*shape).to(torch.float8_e4m3fn)


def classes(count, most):
    return torch.randint(0, most, (count,), device="cuda")


def ends(m):
    return torch.tensor([m // 4, m // 4, m], device="cuda", dtype=torch.int32)


def grouped(a, b, offsets):
    first = int(offsets[0])
    return torch.cat([a[:first] @ b[0].mT, a[first:] @ b[2].mT])


def attended(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@attrs.frozen
class Operator:
    """mine, its: ours and torch's function; given: inputs, from a number of rows; op: with what opcheck calls behind the
    inputs; grads: how many inputs, the first ones, have gradients."""

    mine: object
    its: object
    given: object
    op: object
    more: tuple = ()
    grads: int = 2


OPERATORS = {
    "linear": Operator(
        tt.linear, functional.linear, lambda m: (half(2, m, 256), half(128, 256), half(128)), OPS.linear, (), 3
    ),
    "odd linear": Operator(
        tt.linear, functional.linear, lambda m: (half(m, 51), half(33, 51), half(33)), OPS.linear, (), 3
    ),
    "gemm": Operator(tt.gemm, lambda a, b: a @ b.mT, lambda m: (half(3, m, 128), half(3, 64, 128)), OPS.gemm),
    "matmul": Operator(tt.matmul, torch.matmul, lambda m: (half(2, 1, m, 64), half(3, 64, 128)), None),
    "grouped_gemm": Operator(
        tt.grouped_gemm, grouped, lambda m: (half(m, 128), half(3, 64, 128), ends(m)), OPS.grouped_gemm
    ),
    "scaled_mm": Operator(
        lambda a, b, s, t: tt.scaled_mm(a, b, s, t),
        lambda a, b, s, t: (a.float() @ b.float().mT) * s * t,
        lambda m: (few(m, 128), few(64, 128), torch.rand(m, 1, device="cuda"), torch.rand(1, 64, device="cuda")),
        OPS.scaled_mm,
        (None, torch.bfloat16),
        0,
    ),
    "conv2d": Operator(
        lambda x, w, b: tt.conv2d(x, w, b, padding=1),
        lambda x, w, b: functional.conv2d(x, w, b, padding=1),
        lambda m: (half(m // 16, 16, 12, 14), half(32, 16, 3, 3), half(32)),
        OPS.conv,
        ([1, 1], [1, 1], [1, 1], 1),
        3,
    ),
    "softmax": Operator(tt.softmax, lambda x: torch.softmax(x, -1), lambda m: (half(m, 1001),), OPS.softmax, (), 1),
    "log_softmax": Operator(
        tt.log_softmax, lambda x: torch.log_softmax(x, -1), lambda m: (half(2, m, 768),), OPS.log_softmax, (), 1
    ),
    "rms_norm": Operator(
        tt.rms_norm,
        lambda x, w: functional.rms_norm(x, x.shape[-1:], w, 1e-6),
        lambda m: (half(m, 1024), half(1024)),
        OPS.rms_norm,
        (1e-6,),
    ),
    "layer_norm": Operator(
        tt.layer_norm,
        lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b),
        lambda m: (half(m, 770), half(770), half(770)),
        OPS.layer_norm,
        (1e-5,),
        3,
    ),
    "cross_entropy": Operator(
        tt.cross_entropy,
        functional.cross_entropy,
        lambda m: (half(m, 5000), classes(m, 5000)),
        OPS.cross_entropy,
        (-100,),
        1,
    ),
    "transpose": Operator(
        lambda x: tt.transpose(x, (1, 0)), lambda x: x.mT, lambda m: (half(m, 300),), OPS.transpose, ((1, 0),), 1
    ),
    "attention": Operator(
        lambda q, k, v: tt.scaled_dot_product_attention(q, k, v, is_causal=True),
        attended,
        lambda m: (half(2, 4, m, 64), half(2, 4, m, 64), half(2, 4, m, 64)),
        OPS.scaled_dot_product_attention,
        (True, None),
        0,
    ),
}


def tracked(given, count):
    return [x.detach().requires_grad_() if i < count else x for i, x in enumerate(given)]


def exact_of(case, given):
    """The result and the gradients in double precision, and what the result is multiplied by before it is summed."""
    wide = tracked([x.double() if x.is_floating_point() else x for x in given], case.grads)
    result = case.its(*wide)
    factor = torch.randn(result.shape, device="cuda", dtype=torch.float64)
    grads = torch.autograd.grad((result * factor).sum(), wide[: case.grads]) if case.grads else ()
    return [result.detach(), *grads], factor


def agrees(case, run, given, exact, factor):
    own = tracked(given, case.grads)
    result = run(*own)
    grads = torch.autograd.grad((result.double() * factor).sum(), own[: case.grads]) if case.grads else ()
    for found, right in zip([result.detach(), *grads], exact, strict=True):
        assert found.shape == right.shape and (found.double() - right).norm() <= 2e-2 * right.norm()


@pytest.fixture(autouse=True)
def kernels_only():
    torch.compiler.reset()
    with tt.kernels_only():
        yield


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients(name):
    case = OPERATORS[name]
    for m in (64, 160):
        given = case.given(m)
        agrees(case, case.mine, given, *exact_of(case, given))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "rms_norm", "layer_norm", "cross_entropy", "transpose"])
def test_steps_are_remembered(name, monkeypatch):
    """Forward and backward: kernels are launched again, on other tensors, without what chooses them."""
    case = OPERATORS[name]
    for number in range(3):
        given = case.given(160)
        agrees(case, case.mine, given, *exact_of(case, given))
        if not number:
            fail = lambda operator, *_: pytest.fail(f"{operator} is not remembered")  # noqa: E731
            monkeypatch.setattr("tmapipe.torch.rows.by_kernel", fail)


@pytest.mark.parametrize("name", [name for name, case in OPERATORS.items() if case.op is not None])
def test_opcheck(name):
    case = OPERATORS[name]
    given = tracked(case.given(64), case.grads)
    checks = QUICK if case.grads else ("test_schema", "test_faketensor")
    if name == "scaled_mm":
        checks = ("test_faketensor",)  # the other multiplies numbers of 8 bits, which torch does not
    torch.library.opcheck(case.op, (*given, *case.more), test_utils=checks)


@pytest.mark.parametrize("name", OPERATORS)
def test_one_graph_for_extents_that_change(name):
    case = OPERATORS[name]
    run = torch.compile(case.mine, fullgraph=True, dynamic=True)
    for m in (64, 160, 96):
        given = case.given(m)
        agrees(case, run, given, *exact_of(case, given))


@pytest.mark.parametrize("name", OPERATORS)
def test_reduce_overhead(name):
    """torch captures a graph by the second or third call, and replays it with other numbers."""
    case = OPERATORS[name]
    run = torch.compile(case.mine, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        given = case.given(64)
        torch.compiler.cudagraph_mark_step_begin()
        agrees(case, run, given, *exact_of(case, given))
