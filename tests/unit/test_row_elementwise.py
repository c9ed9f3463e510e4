"""Elementwise: tensors of all shapes that broadcast, of any alignment. `tests/gpu` runs the same cases."""

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tests.unit.test_row_schedules import BF16, FP16, FP32, close
from tmapipe.base.arithmetic import as_dtype
from tmapipe.program import trace
from tmapipe.schedules.elementwise import ElementwiseTiles, tile_forms, tile_of

CASES = {
    "one shape": ([(300, 100), (300, 100)], (BF16, BF16)),
    "types mixed": ([(7, 100), (7, 100)], (BF16, FP32)),
    "a number a column, odd": ([(7, 101), (101,)], (BF16, FP32)),
    "a number a row, odd": ([(40, 101), (40, 1)], (BF16, BF16)),
    "types mixed, odd": ([(5, 101), (5, 1, 101)], (FP16, FP32)),
    "a number a row": ([(40, 104), (40, 1)], (FP16, FP32)),
    "a number a column": ([(3, 11, 104), (104,)], (FP32, BF16)),
    "a number": ([(40, 104), ()], (FP32, BF16)),
    "an outer sum": ([(40, 1), (104,)], (FP32, FP32)),
    "a number an image": ([(4, 6, 5, 24), (4, 6, 1, 1)], (BF16, BF16)),
    "a number an image of rows": ([(4, 5, 24), (1, 5, 24), (4, 1, 1)], (BF16, FP16, BF16)),
    "rows repeated": ([(4, 5, 104), (4, 1, 104)], (BF16, BF16)),
    "rows repeated, odd": ([(4, 5, 33), (4, 1, 33)], (BF16, FP32)),
    "both repeated": ([(4, 1, 3, 33), (5, 1, 33)], (BF16, FP32)),
    "even tiles": ([(70, 1888), (70, 1888), (1888,)], (FP32, FP32, FP32)),
    "a vector": ([(9001,), (9001,)], (BF16, FP32)),
    "one element": ([(1, 1), (1,)], (FP32, BF16)),
}


def total(*values):
    return sum(values[1:], 2 * tp.math.relu(values[0]))


def tensors(name, device="cpu"):
    shapes, kinds = CASES[name]
    source = torch.Generator().manual_seed(len(name))
    return [torch.randn(shape, generator=source).to(device, kind) for shape, kind in zip(shapes, kinds, strict=True)]


def wanted(given):
    first, *others = (x.double() for x in given)
    return 2 * first.relu() + sum(others)


def check(given, out=None):
    found, (kind, *more) = tp.schedules.Elementwise(total)(*given, out=out), [x.dtype for x in given]
    close(found, wanted(given), out.dtype if out is not None else kind if {*more} <= {kind} else FP32)
    return found


@pytest.mark.parametrize("name", CASES)
def test_shapes_that_broadcast(name):
    check(tensors(name))


def check_views(device="cpu"):
    base = torch.randn(37, 501, generator=torch.Generator().manual_seed(0)).to(device, BF16)
    check([base[:, 5:301], base[:, 7:8]])
    check([base[3:, 8:304], base[3:, 16:312].float()])
    check([base.view(-1)[1:9000], base.view(-1)[3:9002]])  # vectors that begin anywhere
    check([base[:, :40].expand(3, 37, 40), base[:3, :1, None]])
    image = base.view(-1)[: 4 * 5 * 6 * 7].view(4, 5, 6, 7)[:, 1:4, 1:5, 1:6]
    check([image, image[:, :1]])
    lying = base[:32, :24].T.contiguous().T
    assert check([lying, lying]).stride() == lying.stride()  # as it lies
    check([lying, base[:32, :24]])
    wide = torch.empty(37, 304, device=device)[:, 3:]
    assert check([base[:, :301], base[0, :301]], wide) is wide


def test_views():
    check_views()


def test_integers_numbers_and_arrays():
    Elementwise = tp.schedules.Elementwise
    x, mask = np.arange(12.0, dtype=np.float32).reshape(3, 4), np.eye(3, 4, dtype=np.int32)
    found = Elementwise(lambda x, mask: tp.math.where(mask > 0, x, -1.0))(x, mask)
    assert (found == np.where(mask > 0, x, -1)).all()
    assert (Elementwise(lambda x: 3)(x) == 3).all()
    assert Elementwise(lambda x: x, dtype="bf16")(torch.ones(3)).dtype == BF16
    assert Elementwise(lambda x: x)(torch.ones(3, 0)).shape == (3, 0)


def test_a_kernel_serves_all_lengths():
    kernel = tp.schedules.Elementwise(total)
    for n in (2048, 6144, 10240):
        kernel(torch.ones(n), torch.ones(n))
    assert len(kernel.fitted) == 1


def test_tiles_waste_few_columns():
    for columns in (8, 100, 300, 1000, 1100, 5000):
        for beside, least in ((False, 1), (True, 8)):
            rows, width = tile_of((4096, columns), 2, beside, least)
            assert rows * width <= 4096 and rows >= least
            assert -(-columns // width) * width <= max(1.125 * columns, 32 if columns < 32 else columns + 64)


@pytest.mark.parametrize("kinds", [(("m n", 4), ("n", 4)), (("m n", 2), ("m n", 4), ("m", 2)), (("m n", 2),) * 3])
def test_forms_can_be_made(kinds):
    """Whatever the length, also those that a look takes."""
    sizes = [size for _, size in kinds]
    beside, least = any(dims != "m n" for dims, _ in kinds), 8 if ("m", 2) in kinds else 1
    types = {f"x{i}": as_dtype({2: "bf16", 4: "fp32"}[size]) for i, size in enumerate(sizes)} | {"y": as_dtype("bf16")}
    seen = set()
    for columns in (32, 200, 488, 1888, 3800, 4216, 5552, 7936, 9000):
        loaded = sum(size for dims, size in kinds if dims == "m n")
        for tile, ctas, each in tile_forms((500, columns), max(sizes), beside, least, loaded, 128 // min(sizes)):
            if (tile, ctas, each) not in seen:
                made = ElementwiseTiles(total, kinds, tile=tile, ctas=ctas, each=each)
                trace(made, made.plan(types))
                seen.add((tile, ctas, each))
    assert len({tile for tile, *_ in seen}) > 4


def test_bad_input():
    kernel, x = tp.schedules.Elementwise(lambda x, y: x + y), torch.ones(3, 4)
    refused(tp.schedules.Elementwise, 3, argument="Elementwise(function)", rule="is called with fragments")
    refused(kernel, x, argument="tensors", rule="what the function takes")
    refused(kernel, x, torch.ones(3), argument="tensors", rule="of shapes that broadcast")
    refused(kernel, x, 2.0, argument="tensors[1]", rule="torch tensor")
    refused(kernel, x, x.long(), argument="tensors[1].dtype", rule="is one of")
    refused(lambda: kernel(x, x, out=torch.ones(4)), argument="out", rule="as the tensors broadcast")
    refused(lambda: kernel(x, x, out=torch.ones(3, 8)[:, ::2]), argument="out.stride", rule="contiguous")
