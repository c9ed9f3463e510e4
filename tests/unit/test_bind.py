"""Binding tensors: what goes where, and what is refused before anything runs."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe.bind.tensors import bind, signature
from tmapipe.model import Machine

S = tp.schedules


class Rows(tp.Schedule):
    """A copy as a user writes it, of one type of element."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.TmaLoadStage("l m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)


class Added(Rows):
    """Its result is added to the output, over a dimension that the output lacks."""

    x = tp.TmaLoadStage("s m n", tile=(8, 64), ring=Rows.ring)
    y = tp.TmaStoreStage("m n", tile=(8, 64), role=Rows.store, reduce="add")


def half(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16)


def bound(schedule, *tensors, out=None, **named):
    return bind(schedule, tensors, named, out)


# ---- what goes where --------------------------------------------------------------------------------------------------


def test_positions_names_and_out():
    gemm, a, b, d = S.Gemm(), half(16, 32), half(24, 32), half(16, 24)
    for given_ in (
        bound(gemm, a, b, d),
        bound(gemm, a, b, out=d),
        bound(gemm, a, b, d=d),
        bound(gemm, b=b, a=a, d=d),
        bound(gemm, a, b=b, out=d),
    ):
        assert given_.tensors["a"] is a and given_.tensors["b"] is b and given_.tensors["d"] is d
        assert given_.shapes == {"a": (1, 16, 32), "b": (1, 24, 32), "d": (1, 16, 24)}
        assert given_.result() is d and not given_.on_gpu and not given_.empty


def test_the_type_of_sums_follows_from_the_operand():
    """Integers that come first are widened for a matmul of x's type: sums of int32 would be refused."""

    class Widened(tp.Schedule):
        load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
        ring = tp.BarrierRing(2, producer=load, consumer=math)
        w = tp.TmaLoadStage("n k", tile=(64, 64), ring=ring)
        x = tp.TmaLoadStage("m k", tile=(64, 64), ring=ring)
        wide = tp.RegisterTile(math, (64, 64), dims="n k")
        mma = tp.Wgmma(wide, x)
        d = tp.TmaStoreStage("n m", source=mma)

    for weights in (torch.int8, torch.int32, torch.bfloat16):
        for dtype in (torch.bfloat16, torch.float16):
            made = bound(Widened(), torch.zeros(64, 64, dtype=weights), torch.zeros(64, 64, dtype=dtype)).tensors["d"]
            assert made.dtype == (weights if weights.is_floating_point else dtype)


def test_outputs_are_made():
    made = bound(S.Gemm(), half(16, 32), half(24, 32)).result()
    assert made.shape == (16, 24) and made.dtype == torch.bfloat16
    made = bound(S.Gemm(epilogue=tp.epilogue.Epilogue(dtype="fp32")), half(3, 16, 32), half(3, 24, 32)).result()
    assert made.shape == (3, 16, 24) and made.dtype == torch.float32
    made = bound(S.Gemm(), np.zeros((16, 32), np.float16), np.zeros((24, 32), np.float16)).result()
    assert isinstance(made, np.ndarray) and made.shape == (16, 24) and made.dtype == np.float16
    assert bound(S.AddParts(), np.zeros((3, 8, 16), np.float32)).result().shape == (8, 16)


def test_arrays_share_memory_with_the_tensors():
    """Also of types that NumPy does not have."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.int32, torch.float8_e4m3fn):
        x, y = (torch.zeros(8, 64, dtype=dtype) for _ in range(2))
        arrays = bound(Rows(), x, y).arrays()
        arrays["y"][0, 3, 5] = 1
        assert arrays["x"].shape == (1, 8, 64) and y[3, 5] == 1


def test_views_and_strides():
    whole = half(20, 256)
    view = whole[2:10, 64:128]
    given_ = bound(Rows(), view, half(8, 64))
    assert given_.strides["x"][-2:] == (256, 1)
    arrays = given_.arrays()
    arrays["x"][0, 0, 0] = 7
    assert whole[2, 64] == 7


@given(rows=st.integers(1, 5), words=st.integers(1, 40), gap=st.integers(0, 3), start=st.integers(0, 3))
def test_whatever_tma_takes_is_taken(rows, words, gap, start):
    """Rows of whole 16-byte units, at any distance of whole units, from any such unit on."""
    whole = half(rows, 8 * (words + gap + start))
    view = whole[:, 8 * start : 8 * (start + words)]
    assert bound(Rows(), view, view.clone()).shapes["x"] == (1, rows, 8 * words)


# ---- zero sizes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("m,n,k", [(0, 16, 32), (16, 0, 32), (16, 24, 0), (0, 0, 0), (0, 16, 0)])
def test_empty_gemm_returns_at_once(kind, m, n, k, monkeypatch):
    """An empty output is returned; a sum over nothing is zero. Nothing is compiled or simulated."""
    make = half if kind == "torch" else lambda *shape: np.zeros(shape, np.float16)
    monkeypatch.setattr(Machine, "run", None)  # would fail if called
    gemm = S.Gemm()
    assert gemm(make(m, k), make(n, k)).shape == (m, n)
    poisoned = make(m, n)
    poisoned[...] = 7
    result = gemm(make(m, k), make(n, k), out=poisoned)
    assert result is poisoned and (result == 0).all()


def test_empty_batch_and_copy():
    assert S.Gemm()(half(0, 16, 32), half(0, 24, 32)).shape == (0, 16, 24)
    for shape in ((0, 64), (64, 0), (0,), (3, 0, 5)):
        assert S.Copy()(half(*shape)).shape == shape


def test_sum_over_nothing_added_to_an_output_leaves_it():
    y = torch.full((8, 64), 7.0)
    assert (Added()(torch.zeros(0, 8, 64), y) == 7).all()


# ---- refused ----------------------------------------------------------------------------------------------------------


def test_too_many_and_too_few():
    gemm, a, b, d = S.Gemm(), half(16, 32), half(24, 32), half(16, 24)
    refused(bound, gemm, argument="a", value=None, rule="needed for every load stage")
    refused(bound, gemm, a, argument="b", value=None, rule="needed for every load stage")
    refused(bound, gemm, a, None, argument="b", value=None, rule="needed for every load stage")
    refused(bound, gemm, a, b, d, d, argument="tensors", value="4 tensors", rule="at most 3: a, b, d")
    refused(bound, gemm, a, b, a=a, argument="a", value="Tensor", rule="given twice")
    for several in ((half(16, 24),), [half(16, 24)] * 2):
        refused(bound, gemm, a, b, out=several, argument="out", rule="is the first output alone")
    refused(bound, gemm, a, b, c=d, argument="c", value="Tensor", rule="no stage; the stages are a, b, d")
    refused(bound, gemm, a, b, d, out=d, argument="out", rule="given already")
    refused(bound, gemm, a, b, d=d, out=d, argument="out", rule="given already")


def test_what_is_no_tensor():
    a, b = half(16, 32), half(24, 32)
    for wrong in ([[1.0]], 3, "a", object()):
        refused(
            bound, S.Gemm(), wrong, b, argument="a", value=type(wrong).__name__, rule="torch tensor or a NumPy array"
        )
        where, rule = (
            ("out", "first output alone") if isinstance(wrong, list) else ("d", "torch tensor or a NumPy array")
        )
        refused(bound, S.Gemm(), a, b, out=wrong, argument=where, rule=rule)
        refused(S.Copy(), wrong, argument="x", value=type(wrong).__name__, rule="torch tensor or a NumPy array")
        refused(S.SplitK(2), wrong, b, argument="a", value=type(wrong).__name__, rule="torch tensor or a NumPy array")
    assert refused(bound, S.Gemm(), a, b.to_sparse(), argument="b", rule="is dense").fix == "b.to_dense()"


def test_two_kinds_or_devices():
    a, b = half(16, 32), np.zeros((24, 32), np.float16)
    refused(bound, S.Gemm(), a, b, out=half(16, 24), argument="tensors", rule="all NumPy arrays or all torch tensors")
    elsewhere = torch.empty(24, 32, dtype=torch.bfloat16, device="meta")
    error = refused(bound, S.Gemm(), a, elsewhere, argument="b", value="meta", rule=r"another device than a \(cpu\)")
    assert "move it" in error.fix


def test_copies_of_other_types_move_words():
    """Any element type, shape and strides."""
    x = torch.arange(2 * 64, dtype=torch.int16).reshape(2, 64)
    assert torch.equal(S.Copy()(x), x)
    wide = torch.arange(4 * 72, dtype=torch.float64).reshape(4, 72)[:, :64]
    assert torch.equal(S.Copy()(wide), wide)
    assert torch.equal(S.Copy()(wide.t()), wide.t())
    refused(S.Copy(), half(8, 64), half(8, 64).int(), argument="y", rule="of its shape in bf16, fp16, fp32")


def test_an_output_without_inputs_is_needed():
    class Filled(tp.Schedule):
        work = tp.Role(warps=1)
        y = tp.TmaStoreStage("m n", tile=(8, 64), role=work)

    refused(bound, Filled(), argument="y", value=None, rule="needed for the output")
    assert bound(Filled(), half(8, 64)).stores == ("y",)


def test_shapes():
    a, b = half(16, 32), half(24, 32)
    refused(bound, S.Gemm(), a, half(24, 40), argument="b.shape", value=(1, 24, 40), rule="k = 40, but a has k = 32")
    refused(bound, S.Gemm(), a, b, half(16, 16), argument="d.shape", value=(1, 16, 16), rule="n = 16, but b has n = 24")
    refused(bound, S.Gemm(), half(2, 16, 32), half(3, 24, 32), argument="b.shape", rule="l = 3, but a has l = 2")
    refused(bound, S.Gemm(), half(32), b, argument="a", value=(32,), rule="has the dimensions l m k")
    few = refused(
        bound, S.Gemm(), half(1, 1, 16, 32), b, argument="a", value=(1, 1, 16, 32), rule="has the dimensions l m k"
    )
    assert few.fix == "pass a tensor of rank 3, or of 2 without the first one"
    refused(S.Copy(), half(8, 64), half(8, 128), argument="y", rule="must be like x")


def test_output_whose_extent_is_unknown():
    assert bound(S.SplitK(2), half(16, 32), half(24, 32)).shapes["d"] == (2, 16, 24)  # SplitK says it

    class Repeated(tp.Schedule):
        load, store = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(stages=2, producer=load, consumer=store)
        x = tp.TmaLoadStage(tile=(16, 64), dims="m n", ring=ring)
        y = tp.TmaStoreStage(tile=(1, 16, 64), dims="s m n", role=store)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
            k.y.store(tile, values)

    refused(bound, Repeated(), half(16, 64), argument="y", rule="along s")


def test_folded_dimensions():
    """The tensor lacks them; in the model every tile along them is the same memory."""
    split = S.SplitK(3, reduce="add")
    d = torch.zeros(16, 24)
    found = bound(split, half(16, 32), half(24, 32), d)
    assert found.shapes["d"] == (3, 16, 24) and found.strides["d"] == (0, 24, 1)
    view = found.arrays()["d"]
    view[0] += 1
    view[2] += 1
    assert (d == 2).all()
    refused(bound, split, half(16, 32), half(24, 32), d[None], argument="d", rule="has the dimensions m n")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.complex64, torch.uint16])
def test_unsupported_types(dtype):
    x = torch.zeros(8, 64).to(dtype)
    refused(bound, Rows(), x, argument="x", value=str(dtype).removeprefix("torch."), rule="element type must be one of")


def test_types_that_the_plan_refuses():
    refused(S.Gemm(), half(16, 32), half(24, 32).half(), argument="Wgmma(mma)", rule="of one type")
    refused(S.Gemm(), half(16, 32).float(), half(24, 32).float(), argument="Wgmma(mma)", rule="bf16, fp16")
    refused(
        S.Gemm(epilogue=tp.epilogue.Epilogue(dtype="fp32")),
        half(16, 32),
        half(24, 32),
        half(16, 24),
        argument="d",
        rule="element type fp32",
    )
    refused(Rows(), half(8, 64), half(8, 64).float(), argument="y", value="fp32", rule="stored from slots of bf16")


def test_inner_dimension_not_contiguous():
    refused(bound, Rows(), half(64, 8).t(), half(8, 64), argument="x.stride", rule="last dimension must be contiguous")
    refused(
        bound, Rows(), half(8, 128)[:, ::2], half(8, 64), argument="x.stride", rule="last dimension must be contiguous"
    )
    backwards = np.zeros((8, 64), np.float16)[:, ::-1]
    refused(bound, Rows(), backwards, np.zeros((8, 64), np.float16), argument="x.stride", rule="contiguous")
    # One column is contiguous whatever its stride.
    bound(S.Gemm(), half(16, 32)[:, :1], half(24, 32)[:, :1])


@pytest.mark.parametrize("width", [65, 68, 71])
def test_misaligned_strides(width):
    error = refused(
        bound, Rows(), half(8, width)[:, :64], half(8, 64),
        argument="x.stride", rule=f"{width} x 2 bytes is no positive multiple of 16",
    )  # fmt: skip
    assert "multiple of 8 elements" in error.fix
    refused(bound, Rows(), half(8, 64), half(8, width)[:, :64], argument="y.stride", rule="no positive multiple of 16")


def test_strides_that_are_not_positive():
    same = half(1, 64).expand(8, 64)
    error = refused(bound, Rows(), same, half(8, 64), argument="x.stride", rule="no positive multiple of 16")
    assert error.fix == "copy it to a dense tensor"
    upside_down = np.zeros((8, 64), np.float16)[::-1]
    refused(bound, Rows(), upside_down, np.zeros((8, 64), np.float16), argument="x.stride", rule="no positive multiple")


@pytest.mark.parametrize("offset", [1, 4, 7])
def test_misaligned_pointers(offset):
    whole = half(8 * 72)
    view = whole[offset : offset + 8 * 64].view(8, 64)
    refused(bound, Rows(), view, half(8, 64), argument="x.data_ptr()", rule="must be a multiple of 16 bytes")
    refused(bound, Rows(), half(8, 64), view, argument="y.data_ptr()", rule="must be a multiple of 16 bytes")


def test_huge_extents():
    """Not made, only described."""
    wide = torch.empty(1, 1, dtype=torch.int8, device="meta")
    for extent in (2**31, 2**31 - 64):  # a tile more has no number of 32 bits
        refused(bound, Rows(), wide.as_strided((1, extent), (extent, 1)), argument="x.shape", rule="have 32 bits")
    far = torch.empty(1, dtype=torch.int8, device="meta").as_strided((2, 64), (2**40, 1))
    refused(bound, Rows(), far, argument="x.stride", rule=r"below 2\^40")


@pytest.mark.parametrize("n", [65, 7, 1])
def test_output_rows_are_whole_units(n):
    """A store clips at the edge in units of 16 bytes: it would write past the row."""
    width = -(-n // 8) * 8
    x, y = (half(8, width)[:, :n] for _ in range(2))
    error = refused(bound, Rows(), x, y, argument="y.shape", rule=f"a row of {n} x 2 bytes is no multiple of 16")
    assert "multiple of 8" in error.fix


def test_overlapping_outputs():
    x = half(8, 64)
    storage = half(8 * 64)
    for strides in ((0, 1), (8, 1), (56, 1)):
        refused(
            bound,
            Rows(),
            x,
            storage.as_strided((8, 64), strides),
            argument="y.stride",
            rule="overlap|positive multiple",
        )
    batch = storage.as_strided((2, 4, 64), (128, 64, 1))
    refused(bound, Rows(), half(2, 4, 64), batch, argument="y.stride", rule="must not overlap")
    bound(Rows(), half(2, 4, 64), storage.as_strided((2, 4, 64), (64, 128, 1)))  # rows of two matrices in turn


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_outputs_share_no_memory_with_inputs(kind):
    """Views of one piece of memory: refused if an element is shared, taken if they only lie between each other."""
    storage = np.zeros((32, 256), np.float32) if kind == "numpy" else torch.zeros(32, 256)
    x = storage[:16, :64]
    for y in (x, storage[8:24, :64], storage[:16, 32:96], storage[1:17, :64]):
        refused(bound, Rows(), x, y, argument="y", rule="must not overlap that of x")
        refused(bound, Rows(), x, out=y, argument="y", rule="must not overlap that of x")
    for y in (storage[16:, :64], storage[:16, 64:128]):
        assert bound(Rows(), x, y).result() is y


def test_outputs_share_no_memory_with_each_other():
    class Both(Rows):
        z = tp.TmaStoreStage(source=Rows.x)

    x, y = half(8, 64), half(16, 64)
    refused(bound, Both(), x, y[:8], y[4:12], argument="y", rule="must not overlap that of z")
    refused(tp.schedules.Copy(), x, x, argument="y", rule="must not overlap that of x")
    assert len(bound(Both(), x, y[:8], y[8:]).result()) == 2


# ---- the launch's fast path -------------------------------------------------------------------------------------------


def test_signature_tells_apart_what_bind_would():
    one = half(16, 32)
    others = [
        half(16, 40), half(16, 32).half(), half(32, 16).t(), half(16, 64)[:, :32], half(1, 16, 32),
        half(8 * 72)[4 : 4 + 512].view(16, 32), torch.empty(16, 32, dtype=torch.bfloat16, device="meta"),
    ]  # fmt: skip
    seen = [signature((tensor,), None) for tensor in (one, *others)]
    for first, second in itertools.combinations(seen, 2):
        assert first != second
    assert signature((one,), None) == signature((half(16, 32),), None)
    assert signature((one, one), None) != signature((one,), one)  # an output by position, and by name
    assert signature(([1],), None) is None and signature((None,), None) is None


def test_tensors_by_name_take_their_positions(monkeypatch):
    """A launch is looked up by the tensors in order, however they were given."""
    seen = []
    monkeypatch.setattr("tmapipe.calling.signature", lambda tensors, out: seen.append(tensors))
    gemm = S.Gemm((64, 64, 64), (1, 1))
    a, b, d = half(64, 64), half(64, 64), half(64, 64)
    for positional, named in (((a, b), {"d": d}), ((a,), {"d": d, "b": b}), ((), {"b": b, "a": a, "d": d})):
        gemm(*positional, **named)
        assert [id(tensor) for tensor in seen.pop()] == [id(a), id(b), id(d)] and not seen


def test_rows_of_one_element_have_any_stride():
    a, b = half(16, 64)[:, ::64], half(24, 64)[:, ::64]
    assert a.stride() == (64, 64) and S.Gemm().bind(a, b).shapes["a"] == (1, 16, 1)
    refused(bound, S.Gemm(), half(16, 64)[:, ::32], half(24, 64)[:, ::32], argument="a.stride", rule="contiguous")


def test_numbers_beyond_32_bits_are_refused():
    """Of int64 a kernel reads the lower word: 2^32 + 3 would be 3."""
    tokens, weights = np.zeros((16, 64), np.float16), np.zeros((2, 64, 64), np.float16)
    grouped = tp.schedules.GroupedGemm((64, 64, 64))
    for beyond in (2**32 + 3, -(2**31) - 1, 2**31):
        ends = np.array([beyond, 16])
        refused(grouped, tokens, weights, ends, argument="offsets", rule="32 bits", value=beyond)
        target = torch.tensor([0, beyond])
        refused(tp.schedules.CrossEntropy(), torch.zeros(2, 8), target, argument="target", rule="32 bits", value=beyond)
    assert grouped(tokens, weights, np.array([4, 16])).shape == (16, 64)
