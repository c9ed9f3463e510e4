"""Element types: one table that torch, NumPy and CuTe DSL agree with."""

import ml_dtypes
import numpy as np
import pytest
import torch

import tmapipe as tp
from examples.softmax import softmax_of
from tests.unit.errors import refused
from tests.unit.test_added import Stacked
from tmapipe.base import arithmetic as dtypes
from tmapipe.base.arithmetic import as_dtype, dtype_of

OF_TENSORS = (
    tp.dtypes.bf16,
    tp.dtypes.fp16,
    tp.dtypes.fp32,
    tp.dtypes.fp8_e4m3,
    tp.dtypes.fp8_e5m2,
    tp.dtypes.int8,
    tp.dtypes.int16,
    tp.dtypes.int32,
    tp.dtypes.int64,
    tp.dtypes.fp64,
)
ALL = (*OF_TENSORS, tp.dtypes.tf32)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_the_libraries_agree(dtype):
    tensor = torch.zeros(2, dtype=getattr(torch, dtype.torch))
    array = np.zeros(2, dtype.numpy)
    assert tensor.element_size() == array.itemsize == dtype.bytes
    assert dtype_of(tensor, "x") is dtype_of(array, "x") is as_dtype(dtype.torch) is dtype.in_memory
    assert as_dtype(dtype) is as_dtype(dtype.name) is dtype
    assert str(dtype) == dtype.name and getattr(tp.dtypes, dtype.name) is dtype


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_cutlass_agrees(dtype):
    cutlass = pytest.importorskip("cutlass")
    assert getattr(cutlass, dtype.cute).width == 8 * dtype.bytes


def test_bit_patterns_are_those_of_torch():
    """The model's view of a tensor is the same memory, so the formats must be the same bits."""
    values = [0.0, 1.0, -1.5, 0.1, 300.0]
    for dtype, integers in (
        (tp.dtypes.bf16, torch.int16),
        (tp.dtypes.fp8_e4m3, torch.int8),
        (tp.dtypes.fp8_e5m2, torch.int8),
    ):
        by_torch = torch.tensor(values).to(getattr(torch, dtype.torch)).view(integers).numpy()
        by_numpy = np.array(values, np.float32).astype(dtype.numpy).view(by_torch.dtype)
        assert (by_torch == by_numpy).all(), dtype


def test_unsupported_arrays():
    for array in (
        np.zeros(2, np.complex64),
        np.zeros(2, np.uint16),
        np.zeros(2, ml_dtypes.float8_e4m3b11fnuz),
        torch.zeros(2, dtype=torch.bool),
    ):
        name = str(array.dtype).removeprefix("torch.")
        refused(dtype_of, array, "x", argument="x", value=name, rule="one of bfloat16, float16")


def test_64_bits_are_moved_alone():
    for x in (2**60 + np.arange(6 * 40).reshape(6, 40), np.linspace(1, 2, 240).reshape(6, 40)):
        assert (tp.schedules.Copy()(x) == x).all()
        held = x.dtype == np.int64
        refused(
            softmax_of(1024),
            x,
            argument="y.store" if held else "slot.x.read",
            rule="holds no fp32" if held else "at most 32 bits",
        )
        y = x.copy()
        refused(tp.schedules.Gemm(), x, y, argument="a", rule="at most 32 bits")


class OtherSign(tp.Schedule):
    """y = x + 1, and -x in the column that the row's entry of a table names."""

    over, relations = "m", (tp.Dim("n", at_most=64),)
    load, work = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x, index = tp.TmaLoadStage("m n", tile=(1, 64), ring=ring), tp.Table("m")
    y = tp.ThreadStoreStage("m n", tile=(1, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile, n=0)

    @work.jit
    def change(self, k, tile):
        with k.ring.consume() as slot:
            x = slot.x.read()
        k.y.store_from(tile.m, 0, values=tp.math.where(x.columns == k.index.entry(tile.m), -x, x + 1))


def check_int64(device):
    x, index = torch.randint(-(2**40), 2**40, (10, 52)), torch.randint(-100, 52, (10,))
    x[0, 0], index[0] = -(2**31) - 1, -100
    found, low = OtherSign()(x.to(device), index.to(device)), x.to(torch.int32)
    want = torch.where(torch.arange(52) == index[:, None], -low, low + 1)
    assert found.dtype == torch.int64 and (found.cpu() == want).all()
    assert (OtherSign()(x.to(device), index.int().to(device)).cpu() == want).all()


def test_of_int64_threads_hold_the_lower_half():
    check_int64("cpu")
    x, index = np.arange(104).reshape(2, 52), np.array([1, -1])
    assert (OtherSign()(x, index)[0, :3] == [1, -1, 3]).all() and (OtherSign()(x, index)[1] == x[1] + 1).all()
    assert OtherSign().check({"x": "int64", "y": "int64"}).ok


def test_a_copy_of_a_thread_has_an_element():
    copies = Stacked()
    copies.x = tp.CpAsyncLoadStage("s m n", tile=(16, 64), ring=copies.ring, vector=4)
    copies.d = tp.TmaStoreStage("m n", source=copies.x)
    refused(copies, np.zeros((2, 16, 64)), argument="x.vector", rule="at least an element of 8 bytes")


def test_in_memory():
    """tf32 is made of fp32 by the loads; all others lie in memory as they are."""
    assert tp.dtypes.tf32.in_memory is tp.dtypes.fp32 and all(dtype.in_memory is dtype for dtype in OF_TENSORS)
    assert [dtype.name for dtype in ALL if dtype.integer] == ["int8", "int16", "int32", "int64"]


def test_every_type_is_exported():
    assert set(dtypes.ALL) == set(ALL) and {d.name for d in ALL} <= set(vars(tp.dtypes))
