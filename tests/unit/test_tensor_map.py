"""TensorMap: each rule of the driver, one case on either side of it, without a GPU."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.sweeps import examples
from tests.unit.errors import refused
from tmapipe.base.tma_rules import TYPES


class Memory:
    """A tensor that lies nowhere. Strides are in bytes."""

    def __init__(self, shape, strides=None, typestr="<f2", address=1 << 20):
        self.__cuda_array_interface__ = {
            "shape": tuple(shape), "strides": strides, "typestr": typestr, "data": (address, False), "version": 3,
        }  # fmt: skip


def tiled(shape=(64, 64, 128), strides=None, box=(1, 8, 32), typestr="<f2", address=1 << 20, **options):
    return tp.TensorMap(Memory(shape, strides, typestr, address), box, **options)


def im2col(shape=(8, 32, 32, 64), lower=(-1, -1), upper=(-1, -1), channels=64, pixels=128, **options):
    return tp.TensorMap(Memory(shape), tp.Im2colBox(lower, upper, channels, pixels), **options)


#: What is wrong, what is named, the rule, and what would be right instead.
RULES = [
    ({"shape": (), "box": ()}, "tensor.shape", "1 to 5 dim", {"shape": (64,), "box": (8,)}),
    ({"shape": (2,) * 5 + (8,), "box": (8,) * 6}, "tensor.shape", "1 to 5 dim",
     {"shape": (2,) * 4 + (8,), "box": (8,) * 5}),
    ({"shape": (64, 64), "box": (8, 8), "interleave": 16}, "tensor.shape", "3 to 5 dim", {"interleave": 16}),
    ({"address": 8}, "tensor.data_ptr()", "multiple of 16", {"address": 16}),
    ({"address": 16, "interleave": 32, "swizzle": 32}, "tensor.data_ptr()", "multiple of 32",
     {"address": 16, "interleave": 16}),
    ({"shape": (64, 64, 0)}, "tensor.shape", "from 1 to 2^32", {"shape": (64, 64, 1), "strides": (16, 16, 2)}),
    ({"shape": (64, 64, 2**32 + 8)}, "tensor.shape", "from 1 to 2^32", {"shape": (64, 64, 2**32)}),
    ({"strides": (16384, 264, 2)}, "tensor.stride", "132 x 2 bytes is no positive", {"strides": (16384, 272, 2)}),
    ({"strides": (16384, 0, 2)}, "tensor.stride", "no positive multiple", {"strides": (16384, 16, 2)}),
    ({"strides": (-16384, 256, 2)}, "tensor.stride", "no positive multiple", {"strides": (16, 16, 2)}),
    ({"strides": (2**40, 256, 2)}, "tensor.stride", "below 2^40", {"strides": (2**40 - 16, 256, 2)}),
    ({"strides": (16384, 272, 2), "interleave": 32, "swizzle": 32}, "tensor.stride", "multiple of 32",
     {"strides": (16384, 288, 2), "interleave": 32, "swizzle": 32}),
    ({"strides": (16384, 256, 4)}, "tensor.stride", "must be contiguous",
     {"shape": (64, 64, 1), "strides": (16384, 256, 4)}),
    ({"strides": (16384, 257, 2)}, "tensor.stride", "whole elements", {"strides": (16384, 256, 2)}),
    ({"box": (1, 8)}, "box", "one number for each of the tensor's 3", {"box": (1, 8, 8)}),
    ({"box": 8}, "box", "one number for each", {"box": [1, 8, 8]}),
    ({"box": (0, 8, 32)}, "box", "at most 256", {"box": (1, 8, 32)}),
    ({"box": (1, 257, 32)}, "box", "at most 256", {"box": (1, 256, 32)}),
    ({"box": (1, 8.0, 32)}, "box", "at most 256", {"box": (1, 8, 32)}),
    ({"box": (1, 8, 12)}, "box[-1]", "is 24 bytes along the last dimension, no multiple of 16", {"box": (1, 8, 16)}),
    ({"box": (1, 8, 4), "interleave": 16}, "box[-1]", "no multiple of 16", {"box": (1, 8, 8), "interleave": 16}),
    ({"box": (1, 8, 24), "swizzle": 32}, "box[-1]", "is 48 bytes along the last dimension, more than", {"swizzle": 64}),
    ({"box": (1, 8, 40), "swizzle": 64}, "box[-1]", "is 80 bytes", {"box": (1, 8, 40), "swizzle": 128}),
    ({"box": (1, 8, 72), "swizzle": 128}, "box[-1]", "is 144 bytes", {"box": (1, 8, 64), "swizzle": 128}),
    ({"box": (1, 8, 72), "swizzle": "128 atom 32"}, "box[-1]", "span of 128",
     {"box": (1, 8, 64), "swizzle": "128 atom 64"}),
    ({"shape": (64, 256, 256), "box": (4, 228, 256), "typestr": "|u1"}, "box", "is a box of 233472 bytes",
     {"shape": (64, 256, 256), "box": (4, 227, 256), "typestr": "|u1"}),
    ({"box": (64, 64, 32)}, "box", "is a box of 262144 bytes", {"box": (64, 64, 32), "steps": (2, 1, 1)}),
    ({"swizzle": 16}, "swizzle", "is one of 0, 32, 64, 128", {"swizzle": 64}),
    ({"interleave": 32}, "swizzle", "is 32 with an interleave of 32", {"interleave": 32, "swizzle": 32}),
    ({"interleave": 8}, "interleave", "is one of 0, 16, 32", {"interleave": 16}),
    ({"interleave": False}, "interleave", "is one of", {"interleave": 0}),
    ({"l2_promotion": 32}, "l2_promotion", "is one of 0, 64, 128, 256", {"l2_promotion": 256}),
    ({"fill": "ones"}, "fill", "is one of 'zeros', 'nan'", {"fill": "nan"}),
    ({"fill": "nan", "typestr": "<i2"}, "fill", "is for floating types, not for uint16", {"typestr": "<i2"}),
    ({"fill": "nan", "typestr": "<i8"}, "fill", "not for int64", {"fill": "nan", "typestr": "<f8", "box": (1, 8, 16)}),
    ({"steps": (1, 9, 1)}, "steps", "from 1 to 8", {"steps": (1, 8, 1)}),
    ({"steps": (1, 0, 1)}, "steps", "from 1 to 8", {"steps": (8, 8, 8)}),
    ({"steps": (1, 1)}, "steps", "one number for each", {"steps": (1, 1, 1)}),
    ({"dtype": "complex64"}, "dtype", "is one of uint8", {"dtype": "bf16"}),
    ({"typestr": "<c8"}, "dtype", "is one of uint8", {"typestr": "<c8", "dtype": "int64"}),
    ({"dtype": "fp32"}, "dtype", r"as many bytes as the tensor's elements (2)", {"typestr": "<f4", "dtype": "tf32"}),
    ({"dtype": "16u4_align8b"}, "dtype", "is for a tensor of bytes", {"typestr": "|u1", "dtype": "16u4_align8b"}),
    ({"typestr": "|u1", "dtype": "16u4_align16b"}, "box[-1]", "has 128 elements",
     {"typestr": "|u1", "dtype": "16u4_align16b", "box": (1, 8, 128)}),
    ({"typestr": "|u1", "dtype": "16u4_align16b", "box": (1, 8, 128), "address": 16}, "tensor.data_ptr()", "multiple of 32",
     {"typestr": "|u1", "dtype": "16u4_align16b", "box": (1, 8, 128), "address": 32}),
    ({"typestr": "|u1", "dtype": "16u6_align16b", "box": (1, 8, 128)}, "tensor.shape", "a multiple of 128 elements",
     {"typestr": "|u1", "shape": (4, 4, 192), "dtype": "16u6_align16b", "box": (1, 8, 128)}),
    ({"typestr": "|u1", "dtype": "16u4_align16b", "box": (1, 8, 128), "swizzle": 64}, "swizzle", "for 16u4_align16b",
     {"typestr": "|u1", "dtype": "16u4_align16b", "box": (1, 8, 128), "swizzle": 128}),
    ({"typestr": "|u1", "shape": (4, 4, 192), "dtype": "16u6_align16b", "box": (1, 8, 128), "interleave": 16},
     "interleave", "is 0",
     {"typestr": "|u1", "shape": (4, 4, 192), "dtype": "16u6_align16b", "box": (1, 8, 128), "swizzle": "128 atom 64"}),
    ({"typestr": "|u1", "dtype": "16u4_align8b", "fill": "nan"}, "fill", "floating",
     {"typestr": "|u1", "dtype": "16u4_align8b"}),
]  # fmt: skip
IM2COL_RULES = [
    ({"shape": (8, 64), "lower": (), "upper": ()}, "tensor.shape", "3 to 5",
     {"shape": (8, 9, 64), "lower": (0,), "upper": (0,)}),
    ({"lower": (-1,)}, "Im2colBox(lower)", "is 2 offsets from -128 to 127", {"lower": (-128, -128)}),
    ({"lower": (-129, 0)}, "Im2colBox(lower)", "from -128 to 127", {"upper": (127, 127)}),
    ({"upper": (128, 0)}, "Im2colBox(upper)", "from -128 to 127", {"upper": (-1, 0)}),
    ({"upper": (0.0, 0)}, "Im2colBox(upper)", "from -128 to 127", {"upper": (0, 0)}),
    ({"shape": (8, 9, 64), "lower": (-(2**15) - 1,), "upper": (0,)}, "Im2colBox(lower)", "is 1 offset from -32768 to 32767",
     {"shape": (8, 9, 64), "lower": (-(2**15),), "upper": (0,)}),
    ({"shape": (8, 9, 9, 9, 64), "lower": (-17, 0, 0), "upper": (0,) * 3}, "Im2colBox(lower)", "is 3 offsets from -16 to 15",
     {"shape": (8, 9, 9, 9, 64), "lower": (-16, 0, 0), "upper": (0,) * 3}),
    ({"lower": (0, 0), "upper": (0, -32)}, "Im2colBox(lower, upper)", "begins before it ends", {"upper": (0, -32)}),
    ({"channels": 0}, "Im2colBox(channels)", "from 1 to 256", {"channels": 8}),
    ({"channels": 257}, "Im2colBox(channels)", "from 1 to 256", {"channels": 256}),
    ({"channels": 12}, "Im2colBox(channels)", "is 24 bytes", {"channels": 16}),
    ({"channels": 64, "swizzle": 64}, "Im2colBox(channels)", "more than the swizzle span",
     {"channels": 64, "swizzle": 128}),
    ({"pixels": 1024, "channels": 128}, "Im2colBox(channels, pixels)", "is a box of 262144 bytes", {"pixels": 1024}),
    ({"pixels": 1025}, "Im2colBox(pixels)", "from 1 to 1024", {"pixels": 1024}),
    ({"pixels": True}, "Im2colBox(pixels)", "from 1 to 1024", {"pixels": 1}),
]  # fmt: skip


@pytest.mark.parametrize("make, wrong, argument, rule, right", [
    *((tiled, *each) for each in RULES), *((im2col, *each) for each in IM2COL_RULES)
])  # fmt: skip
def test_each_rule(make, wrong, argument, rule, right):
    with pytest.raises(tp.InputError) as error:
        make(**wrong)
    assert error.value.argument == argument and rule in error.value.rule and error.value.fix
    make(**right)


def test_what_is_no_tensor():
    refused(tp.TensorMap, [1, 2], (8,), argument="tensor", rule="torch tensor, a NumPy array")


def test_readable():
    x = np.zeros((300, 1000), np.float32)
    found = repr(tp.TensorMap(x, (64, 32), swizzle=128))
    assert found == f"TensorMap(fp32, shape=(300, 1000), strides=(4000,) bytes, box=(64, 32), swizzle=128, " \
        f"address={x.ctypes.data:#x})"  # fmt: skip
    assert "steps=(1, 2, 1)" in repr(tiled(steps=(1, 2, 1))) and "fill='nan'" in repr(tiled(fill="nan"))
    assert "Im2colBox(lower=(-1, -1), upper=(-1, -1), channels=64, pixels=128)" in repr(im2col())


def test_tensors_of_torch_and_numpy_are_seen_alike():
    for dtype, name in (
        (torch.bfloat16, "bf16"),
        (torch.float8_e5m2, "uint8"),
        (torch.bool, "uint8"),
        (torch.int64, "int64"),
    ):
        assert tp.TensorMap(torch.zeros(32, 64).to(dtype), (8, 16)).dtype == name
    for dtype, name in ((np.float16, "fp16"), (np.int16, "uint16"), (np.uint32, "uint32"), (np.float64, "fp64")):
        assert tp.TensorMap(np.zeros((32, 64), dtype), (8, 16)).dtype == name
    x = torch.zeros(32, 64)
    assert tp.TensorMap(x, (8, 16)) == tp.TensorMap(x.numpy(), (8, 16))
    assert tp.TensorMap(x, (8, 16)) != tp.TensorMap(x, (8, 8))


def test_strides_along_an_extent_of_one_are_made_valid():
    whole = torch.zeros(64, 65)
    found = tp.TensorMap(whole[:1, :64], (8, 16))
    assert found.strides == (256,)
    assert tp.TensorMap(torch.zeros(1, 1, 3), (1, 1, 4)).strides == (16, 16)


def test_packed_types_count_numbers_of_4_or_6_bits():
    assert tiled(shape=(4, 64), box=(4, 32), typestr="|u1", dtype="16u4_align8b").shape == (4, 128)
    assert tiled(shape=(4, 192), box=(4, 128), typestr="|u1", dtype="16u6_align16b").shape == (4, 256)


def test_without_a_driver_it_says_so():
    if torch.cuda.is_available():
        assert len(tiled(address=torch.zeros(64, 64, 128, device="cuda").data_ptr()).encode()) == 128
    else:
        with pytest.raises(tp.errors.MissingGpuError, match="no CUDA driver"):
            tiled().encode()


# ---- random ones, against the rules as NVIDIA's documentation says them ----------------------------------------------

STRIDES = st.sampled_from([0, 8, 16, 32, 48, 256, 4096, 2**39, 2**40 - 16, 2**40])


@st.composite
def maps(draw):
    rank = draw(st.integers(1, 5))
    name = draw(st.sampled_from([name for name, kind in TYPES.items() if kind.bits >= 8]))
    return {
        "name": name,
        "shape": tuple(draw(st.lists(st.sampled_from([2, 7, 64, 2**31, 2**32, 2**32 + 2]), min_size=rank, max_size=rank))),
        "strides": tuple(draw(st.lists(STRIDES, min_size=rank - 1, max_size=rank - 1))),
        "box": tuple(draw(st.lists(st.sampled_from([1, 4, 8, 16, 24, 64, 256, 257]), min_size=rank, max_size=rank))),
        "steps": tuple(draw(st.lists(st.sampled_from([1, 1, 1, 2, 8, 9]), min_size=rank, max_size=rank))),
        "interleave": draw(st.sampled_from([0, 0, 16, 32])),
        "swizzle": draw(st.sampled_from([0, 32, 64, 128])),
        "fill": draw(st.sampled_from(["zeros", "zeros", "nan"])),
        "address": draw(st.sampled_from([0, 8, 16, 32, 4096])),
    }  # fmt: skip


def allowed(name, shape, strides, box, steps, interleave, swizzle, fill, address):
    """The documentation of cuTensorMapEncodeTiled, once more."""
    unit, inner = (32 if interleave == 32 else 16), box[-1] * TYPES[name].bits // 8
    return all((
        len(shape) >= 3 or not interleave,
        address % unit == 0,
        all(0 < stride < 2**40 and stride % unit == 0 for stride in strides),
        max(shape) <= 2**32,
        max(box) <= 256,
        max(steps) <= 8,
        inner % 16 == 0,
        interleave or not swizzle or inner <= swizzle,
        interleave != 32 or swizzle == 32,
        math.prod(-(-extent // step) for extent, step in zip(box[:-1], steps, strict=False)) * inner <= 227 * 1024,
        fill == "zeros" or "f" in name,
    ))  # fmt: skip


@settings(max_examples=examples(300), derandomize=True)
@given(maps())
def test_random_maps(given_):
    name, size = given_["name"], TYPES[given_["name"]].bits // 8
    assume(all(stride % size == 0 for stride in given_["strides"]))
    typestr = {1: "|u1", 2: "<f2", 4: "<f4", 8: "<f8"}[size]
    memory = Memory(given_["shape"], (*given_["strides"], size), typestr, given_["address"])
    options = {key: given_[key] for key in ("steps", "interleave", "swizzle", "fill")}
    if allowed(**given_):
        found = tp.TensorMap(memory, given_["box"], dtype=name, **options)
        assert found.strides == given_["strides"] and found.shape == given_["shape"]
    else:
        with pytest.raises(tp.InputError):
            tp.TensorMap(memory, given_["box"], dtype=name, **options)


@settings(max_examples=examples(100), derandomize=True)
@given(st.lists(st.integers(1, 40), min_size=3, max_size=5), st.data())
def test_random_windows(shape, data):
    """A box of an image with padding and a filter, as a convolution needs it: it has as many places as the result."""
    images = shape[1:-1]
    pads = [data.draw(st.integers(0, 3)) for _ in images]
    filters = [data.draw(st.integers(1, 5)) for _ in images]
    lower, upper = tuple(-pad for pad in pads), tuple(pad - (size - 1) for pad, size in zip(pads, filters, strict=True))
    outputs = [extent + 2 * pad - size + 1 for extent, pad, size in zip(images, pads, filters, strict=True)]
    memory = Memory((*shape[:-1], 64))
    if min(outputs) < 1:
        with pytest.raises(tp.InputError, match="begins before it ends"):
            tp.TensorMap(memory, tp.Im2colBox(lower, upper, 8, 64))
    else:
        box = tp.TensorMap(memory, tp.Im2colBox(lower, upper, 8, 64)).box
        places = [extent + high - low for extent, low, high in zip(images, box.lower, box.upper, strict=True)]
        assert math.prod(places) == math.prod(outputs)
