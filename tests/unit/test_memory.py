"""Tensors whose memory is not what it seems, or must not be written: refused before anything runs."""

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe.bind.tensors import signature

S = tp.schedules


def half(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16)


def freed():
    tensor = half(16, 32)
    tensor.untyped_storage().resize_(0)
    return tensor


def fake():
    with FakeTensorMode():
        return half(16, 32)


class Mine(torch.Tensor):
    """A subclass as users write it."""


@pytest.mark.filterwarnings("ignore")  # of torch, of layouts in beta
@pytest.mark.parametrize(
    "make, argument, rule",
    [
        (lambda: half(16, 32).to("meta"), "device", "lies on a CUDA device"),
        (freed, "untyped_storage()", "holds 1024 bytes"),
        (fake, "", "plain torch tensor"),
        (lambda: half(16, 32).as_subclass(Mine), "", "plain torch tensor"),
        (lambda: half(16, 32).to_sparse(), "", "dense"),
        (lambda: half(16, 32).to_sparse_csr(), "", "dense"),
        (lambda: half(16, 32).float().to_mkldnn(), "", "dense"),
        (lambda: torch.nested.nested_tensor([half(2, 32), half(4, 32)]), "", "dense"),
        (lambda: torch.quantize_per_tensor(torch.zeros(16, 32), 0.1, 0, torch.qint8), "", "quantized"),
        (lambda: torch._neg_view(half(16, 32)), "", "negated"),
        (lambda: np.ma.masked_array(np.zeros((16, 32), np.float16)), "", "plain NumPy array"),
        (lambda: np.matrix(np.zeros((16, 32), np.float16)), "", "plain NumPy array"),
        (lambda: np.zeros((16, 32), object), "", "not references"),
        (lambda: np.zeros((16, 32), [("f", "f2"), ("g", "i1")])["f"], "", "whole elements of 2 bytes"),
        (lambda: half(16, 32).requires_grad_(), "requires_grad", "automatic differentiation"),
    ],
)
def test_inputs(make, argument, rule):
    x = make()
    b = np.zeros((24, 32), np.float16)
    if isinstance(x, torch.Tensor):
        b = (
            half(24, 32)
            .to(x.device if x.device.type == "meta" else "cpu")
            .to(x.dtype if x.is_floating_point() else None)
        )

    def name(tensor):
        return f"{tensor}.{argument}" if argument else tensor

    refused(S.Gemm(), x, b, argument=name("a"), rule=rule)
    refused(S.Copy(), x, argument=name("x"), rule=rule)
    refused(S.SplitK(2), x, b, argument=name("a"), rule=rule)


def test_copies_of_conjugated_views():
    """Whose memory holds other values."""
    refused(S.Copy(), torch.zeros(8, 64, dtype=torch.complex64).conj(), argument="x", rule="conjugated")


def test_tensors_inside_vmap_have_no_memory():
    x = half(3, 16, 32)
    refused(torch.func.vmap(lambda a: S.Gemm()(a, half(24, 32))), x, argument="a", rule="vmap")


def test_read_only_outputs():
    a, b, d = (np.zeros(shape, np.float16) for shape in ((16, 32), (24, 32), (16, 24)))
    d.flags.writeable = False
    refused(S.Gemm(), a, b, out=d, argument="d.flags.writeable", value=False, rule="is written")
    refused(S.Copy(), d.copy(), d, argument="y.flags.writeable", value=False, rule="is written")
    a.flags.writeable = b.flags.writeable = False
    assert (S.Gemm()(a, b) == 0).all()  # inputs may be


def test_a_file_that_is_mapped(tmp_path):
    x = np.memmap(tmp_path / "x", np.float16, "w+", shape=(16, 32))
    x[:] = 1
    assert (S.Gemm()(x, np.ones((24, 32), np.float16)) == 32).all()


def test_slices_that_start_between_words():
    x, y = half(8, 512)[:, 5:301], half(8, 512)[:, 5:301]
    refused(S.Gemm(), x, half(24, 296), argument="a.data_ptr()", rule="multiple of 16 bytes")
    S.Copy()(x, out=y)  # by threads
    assert (x == y).all()


def test_gradients():
    """As torch's functions with out=: refused, unless nothing is recorded."""
    a, b = half(16, 32), half(24, 32)
    d = torch.nn.Parameter(half(16, 24))
    rule = "automatic differentiation"
    refused(S.Gemm(), a, b, out=d, argument="d.requires_grad", value=True, rule=rule)
    refused(S.Copy(), half(16, 24), d, argument="y.requires_grad", value=True, rule=rule)
    refused(S.Gemm(), a, torch.nn.Parameter(b), argument="b.requires_grad", value=True, rule=rule)
    with torch.no_grad():
        assert S.Gemm()(a, torch.nn.Parameter(b), out=d) is d
    assert signature((d,), None) != signature((d.detach(),), None)  # a launch is looked up by it
    with torch.no_grad():
        assert signature((d,), None) == signature((d.detach(),), None)


@pytest.mark.parametrize(
    "write",
    [
        lambda d: S.Gemm()(half(16, 32), half(24, 32), out=d),
        lambda d: S.Gemm()(half(16, 0), half(24, 0), out=d),
        lambda d: S.Gemm().simulate(half(16, 32), half(24, 32), out=d),
        lambda d: S.SplitK(2)(half(16, 32), half(24, 32), out=d),
        lambda d: S.Copy()(half(16, 24), d),
    ],
)
def test_backward_notices_that_an_output_was_written(write):
    d = half(16, 24) + 2
    x = torch.ones(16, 24, dtype=torch.bfloat16, requires_grad=True)
    product = x * d  # whose gradient needs d as it is now
    write(d)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_freed_memory_has_another_signature():
    assert signature((freed(),), None) != signature((half(16, 32),), None)


# ---- nothing to compute -------------------------------------------------------------------------------------------------


def test_empty_tensors_are_checked_too():
    a, b = np.zeros((16, 0), np.float16), np.zeros((24, 0), np.float16)
    refused(S.Gemm(), a.astype(np.int8), b, argument="Wgmma(mma)", rule="two operands of one type")
    refused(S.Gemm((100, 128, 64)), a, b, argument="a.tile[0]", rule="64 rows")
    refused(
        S.Gemm(epilogue=tp.epilogue.Epilogue(dtype="fp32")),
        a,
        b,
        np.zeros((16, 24), np.float16),
        argument="d",
        rule="element type fp32",
    )


def test_simulating_nothing():
    d = np.ones((16, 24), np.float16)
    assert S.Gemm().simulate(np.zeros((16, 0), np.float16), np.zeros((24, 0), np.float16), d).steps == 0
    assert (d == 0).all()
    d[:] = 1
    assert S.AddParts().simulate(np.zeros((0, 16, 24), np.float16), d).steps == 0
    assert (d == 0).all()


@pytest.mark.parametrize("clusters", [0, -1, 1.0, "2", True])
def test_clusters(clusters):
    x = np.zeros((16, 24), np.float32)
    rule = "number of clusters from 1 to 1024"
    refused(S.Gemm().simulate, x, x, clusters=clusters, argument="clusters", value=clusters, rule=rule)


@pytest.mark.parametrize("seed", [None, 1.0, "2", True, np.int64(3)])
def test_seeds(seed):
    x = np.zeros((16, 24), np.float32)
    refused(S.Gemm().simulate, x, x, seed=seed, argument="seed", value=seed, rule="whole number")


def test_an_output_is_given_once():
    x = half(8, 64)
    refused(S.Copy(), x, half(8, 64), out=half(8, 64), argument="out", value="Tensor", rule="given already")


def test_names_of_types():
    refused(S.Gemm().plan, {"c": "bf16"}, argument="dtypes['c']", value="bf16", rule="the stages are a, b, d")
    refused(S.Gemm().explain, "bf16", argument="dtypes", value="bf16", rule="a dictionary")
