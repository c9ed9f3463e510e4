"""Convolutions, grouped and scaled products as operators of torch, on the model."""

import pytest
import torch
from torch.nn import functional

import tmapipe.torch as tt
from tests.unit.errors import refused
from tests.unit.test_torch import grads, half, model  # noqa: F401 - a fixture
from tmapipe.torch import operators

OFFSETS = torch.tensor([5, 5, 24], dtype=torch.int32)


def groups_of(a, b):
    return torch.cat([a[:5] @ b[0].mT, a[5:] @ b[2].mT])


@pytest.mark.parametrize(
    ("image", "filters", "how"),
    [
        ((2, 16, 6, 6), (8, 16, 3, 3), {"padding": 1}),
        ((3, 8, 10), (8, 8, 3), {"stride": 2, "padding": 1}),
        ((1, 8, 4, 5, 6), (8, 8, 2, 2, 2), {}),
        ((2, 8, 7, 9), (16, 8, 3, 1), {"padding": (1, 0), "stride": (1, 2)}),
        ((1, 8, 7, 7), (8, 8, 2, 2), {"dilation": 3}),
        ((2, 3, 7, 7), (5, 3, 3, 5), {"padding": "same"}),
        ((2, 4, 6), (8, 4, 2), {"padding": "valid"}),
    ],
    ids=str,
)
def test_convolutions(model, image, filters, how):  # noqa: F811
    its = (functional.conv1d, functional.conv2d, functional.conv3d)[len(image) - 3]
    x, weight, bias = half(*image), half(*filters), half(filters[0])
    found = tt.conv2d(x, weight, bias, **how)
    assert torch.equal(found, its(x.float(), weight.float(), bias.float(), **how).bfloat16())
    assert found.permute(0, *range(2, x.ndim), 1).is_contiguous()
    assert torch.equal(tt.conv2d(x, weight, **how), its(x.float(), weight.float(), **how).bfloat16())


def test_convolutions_by_tf32(model, monkeypatch):  # noqa: F811
    x, weight, bias = half(2, 6, 5, 5).float(), half(6, 6, 3, 3).float(), half(6).float()
    found = tt.conv2d(x * (1 + 2**-12), weight, bias, padding=1)  # whose numbers are rounded to x
    assert found.dtype == torch.float32 and torch.equal(found, functional.conv2d(x, weight, bias, padding=1))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    refused(tt.conv2d, x, weight, argument="tmapipe.torch.conv2d", rule="kernel", value=operators.NO_TF32)


def test_gradients_of_a_convolution(model):  # noqa: F811
    given = half(2, 8, 5, 5), half(8, 8, 3, 3), half(8)
    found = grads(lambda *each: tt.conv2d(*each, padding=1), *given)
    wanted = grads(lambda *each: functional.conv2d(*each, padding=1), *(x.double() for x in given))
    for mine, its in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), its, atol=0.5, rtol=0.02)


@pytest.mark.parametrize("along", ["k", "n"])
def test_grouped(model, along):  # noqa: F811
    a, b = half(24, 64), half(3, 16, 64)
    laid = b if along == "k" else b.mT.contiguous().mT
    assert torch.equal(tt.grouped_gemm(a, laid, OFFSETS), groups_of(a.float(), b.float()).bfloat16())
    if along == "k":
        wanted = grads(groups_of, a.double(), b.double())
        for mine, its in zip(grads(lambda a, b: tt.grouped_gemm(a, b, OFFSETS), a, b), wanted, strict=True):
            torch.testing.assert_close(mine.double(), its, atol=0.5, rtol=0.02)


@pytest.mark.parametrize(("rows", "columns", "bias"), [(True, True, True), (False, False, False), (True, False, False)])
def test_scaled(model, rows, columns, bias):  # noqa: F811
    a, b = (torch.randint(-3, 4, shape).to(torch.float8_e4m3fn) for shape in ((24, 64), (16, 64)))
    scales = (
        torch.rand(24, 1) + 0.5 if rows else torch.tensor(0.5),
        torch.rand(1, 16) + 0.5 if columns else torch.tensor(2.0),
    )
    more = half(16) if bias else None
    wanted = (a.float() @ b.float().mT) * scales[0] * scales[1] + (more.float() if bias else 0)
    found = tt.scaled_mm(a, b, *scales, more)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, atol=0.01, rtol=0.01)


def test_they_are_operators(model):  # noqa: F811
    ops, quick = torch.ops.tmapipe, ("test_schema", "test_autograd_registration", "test_faketensor")
    x, weight = half(1, 8, 4, 4).requires_grad_(), half(8, 8, 3, 3).requires_grad_()
    torch.library.opcheck(ops.conv, (x, weight, None, [1, 1], [1, 1], [1, 1], 1), test_utils=quick)
    torch.library.opcheck(ops.grouped_gemm, (half(24, 64).requires_grad_(), half(3, 16, 64), OFFSETS), test_utils=quick)
    a, b = (torch.ones(8, 64).to(torch.float8_e4m3fn) for _ in "ab")
    scaled = (a, b, torch.ones(1), torch.ones(1), None, torch.float16)  # torch cannot compare numbers of 8 bits
    torch.library.opcheck(ops.scaled_mm, scaled, test_utils=("test_faketensor",))


def test_what_torch_computes():
    x, weight = torch.randn(1, 8, 6, 6), torch.randn(8, 4, 3, 3)
    with pytest.warns(RuntimeWarning, match="tmapipe.torch"):
        torch.testing.assert_close(tt.conv2d(x, weight, groups=2), functional.conv2d(x, weight, groups=2))
        a, b = torch.randn(24, 8), torch.randn(3, 4, 8)
        torch.testing.assert_close(tt.grouped_gemm(a, b, OFFSETS), groups_of(a, b))
        eights = (torch.ones(n, 8).to(torch.float8_e5m2) for n in (4, 6))
        assert torch.equal(tt.scaled_mm(*eights, torch.ones(1), torch.ones(6)).float(), torch.full((4, 6), 8.0))


def test_what_is_refused():
    ones = torch.ones(4, 8)
    refused(tt.conv2d, ones, ones, argument="conv2d(x)", rule="three to five dimensions")
    x = torch.ones(1, 8, 4, 4)
    refused(tt.conv2d, x, torch.ones(8, 8, 2, 3), padding="same", argument="conv2d(padding)", rule="before as behind")
    refused(tt.conv2d, x, torch.ones(8, 8, 3, 3), padding="none", argument="conv2d(padding)", rule="same or valid")
    w = torch.ones(8, 8, 3, 3)
    refused(tt.conv2d, x, w, stride=0, argument="conv2d(stride)", rule="at least 1, or 2 of them")
    refused(tt.conv2d, x, w, padding=(1, 1, 1), argument="conv2d(padding)", rule="at least 0, or 2 of them")
    refused(tt.conv2d, x, w, dilation=1.5, argument="conv2d(dilation)", rule="at least 1")
    refused(tt.conv2d, x, w, groups=3, argument="conv2d(groups)", rule="equal parts of 8 channels")
    refused(tt.conv2d, x, w[:, :4], argument="conv2d(weight)", rule="8 channels")
    refused(tt.conv2d, x, w, torch.ones(4), argument="conv2d(bias)", rule="8 numbers")
    refused(tt.conv2d, [1], ones, argument="conv2d(x)", rule="Tensor")
    refused(tt.grouped_gemm, ones, ones, OFFSETS, argument="grouped_gemm(a, b)", rule="groups, n, k")
    refused(tt.grouped_gemm, ones, torch.ones(3, 4, 8), OFFSETS.long(), argument="grouped_gemm(offsets)", rule="int32")
    one = torch.ones(1)
    refused(tt.scaled_mm, ones, torch.ones(4, 9), one, one, argument="scaled_mm(a, b)", rule="n, k")
    refused(tt.scaled_mm, ones, ones, torch.ones(3), one, argument="scaled_mm(scale_a)", rule="1 or 4 numbers")
    refused(tt.scaled_mm, ones, ones, one, one, ones, argument="scaled_mm(bias)", rule="of 4 numbers")
    refused(tt.scaled_mm, ones, ones, one, one, None, torch.int8, argument="scaled_mm(out_dtype)", rule="bfloat16")
