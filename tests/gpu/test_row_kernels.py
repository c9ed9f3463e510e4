"""Kernels of rows, copies of any tensor, and tuning a schedule of one's own, on the GPU."""

import pytest
import torch

import tmapipe as tp
from tests.unit import test_autotune, test_copies, test_dtypes, test_row_kernels

SHAPES = [*test_row_kernels.SHAPES, ((70, 4096), torch.bfloat16), ((37, 50257), torch.bfloat16)]


@pytest.mark.parametrize("shape, dtype", SHAPES, ids=str)
def test_forward(shape, dtype):
    test_row_kernels.check_forward(shape, dtype, "cuda")


@pytest.mark.parametrize("shape, dtype", SHAPES, ids=str)
def test_cross_entropy(shape, dtype):
    test_row_kernels.check_cross_entropy(shape, dtype, "cuda")


@pytest.mark.parametrize("length", test_row_kernels.EXTREME)
def test_logarithms_of_sums_of_extreme_numbers(length):
    test_row_kernels.check_extremes(length, "cuda")


@pytest.mark.parametrize("shape, dtype", SHAPES[1:3] + SHAPES[4:5], ids=str)
def test_gradients(shape, dtype):
    test_row_kernels.check_gradients(shape, dtype, "cuda")


@pytest.mark.parametrize("name", test_copies.VIEWS)
def test_copies_of_views(name):
    x = test_copies.VIEWS[name][0]()
    whole = torch.empty(x.untyped_storage().nbytes() // x.element_size(), dtype=x.dtype, device="cuda")
    test_copies.check(whole.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x))


def test_types_are_converted():
    test_copies.check_types("cuda")


def test_int64():
    test_dtypes.check_int64("cuda")


def test_the_fastest_parameters_are_found_and_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path))
    space, key = {"rows": (8, 4, 16), "stages": (4, 2, 4000)}, lambda x: {"columns": x.shape[1]}
    tuned = tp.autotune(space, key=key, progress=False)(test_autotune.scaled_of)
    x = torch.randn(4096, 128, device="cuda")
    found = tuned.choice(x)
    assert torch.equal(tuned(x), 2 * x) and found.us == found.timings[0][1].us > 0 and len(found.timings) > 1
    tuned.choices.clear()
    again = tuned.choice(x)
    assert again.parameters == found.parameters and not again.timings and torch.equal(tuned(x), 2 * x)


def test_a_norm_with_a_bias_and_then_without():
    norm = tp.schedules.LayerNorm()
    x, weight, bias = (torch.randn(*shape, device="cuda") for shape in ((64, 256), (256,), (256,)))
    for given in ((bias,), (), (bias,), ()):
        want = torch.nn.functional.layer_norm(x, (256,), weight, *given)
        torch.testing.assert_close(norm(x, weight, *given), want, atol=1e-4, rtol=1e-4)
