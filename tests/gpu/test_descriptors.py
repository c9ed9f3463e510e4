"""Loads whose descriptors the library has encoded, on the device, against PyTorch."""

import random
import runpy
from pathlib import Path

import pytest
import torch

import tmapipe as tp
from tests.oracle.descriptor_forms import AnyRows, Convolved, Every, EveryInParts, Lines, Padded, SomeRows, padded_gemm
from tests.unit.test_descriptors import LINES, WINDOWS, convolved, lines


@pytest.mark.parametrize("form", [Every, lambda: Every((4, 6, 64), 64), EveryInParts])
def test_every_so_many(form):
    rng, schedule = random.Random(0), form()
    for _ in range(8):
        shape = (rng.randint(1, 5), rng.randint(1, 70), rng.randint(1, 70), 8 * rng.randint(1, 20))
        x = torch.randn(shape, device="cuda").bfloat16()
        assert torch.equal(schedule(x), x[:, ::2, ::3]), shape
    wide = torch.randn(3, 40, 50, 96, device="cuda").bfloat16()
    x = wide[:, 3:30, 5:44, 8:80]
    assert torch.equal(schedule(x), x[:, ::2, ::3])


@pytest.mark.parametrize(
    "tile, dtype", [((16, 64), "fp32"), ((24, 512), "bf16"), ((64, 64), "fp16"), ((8, 32), "tf32")]
)
def test_nan_outside(tile, dtype):
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)
    schedule = Padded(tile, dtype)
    for shape in ((50, 136), (1, 8), (1000, 2056)):
        x = torch.randint(-9, 9, shape, device="cuda").to(kind)
        expected = torch.full_like(x, float("nan"))
        if shape[0] > 3 and shape[1] > 8:
            expected[3:, :-8] = x[:-3, 8:]
        torch.testing.assert_close(schedule(x), expected, rtol=0, atol=0, equal_nan=True)


def test_nan_beyond_an_operand():
    gemm = padded_gemm()
    for m, n, k in ((140, 72, 64), (1000, 520, 192)):  # whole k-tiles: NaN x 0 is NaN
        a, b = (torch.randint(-3, 4, shape, device="cuda").bfloat16() for shape in ((m, k), (n, k)))
        assert torch.equal(gemm(a, b), (a.float() @ b.float().T).bfloat16())


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("windows", WINDOWS, ids=repr)
def test_convolutions(windows, cluster):
    schedule, rng = Convolved(windows, cluster, 64 if cluster == 2 else 32), random.Random(cluster)
    for _ in range(6):
        n, h, w, c, o = (
            rng.randint(1, 5),
            *(rng.randint(5, 40) for _ in "hw"),
            *(8 * rng.randint(1, 12) for _ in "co"),
        )
        if min(windows.counts((h, w))) > 0:
            x = torch.randint(-3, 4, (n, h, w, c), device="cuda").bfloat16()
            f = torch.randint(-3, 4, (o, *windows.size, c), device="cuda").bfloat16()
            assert torch.equal(*convolved(schedule, x, f, windows)), (n, h, w, c, o)


def test_random_windows():
    """Some elements of some windows, of images of 1 to 3 dimensions."""
    rng = random.Random(1)
    cases = [(windows, element, shape[1:-1]) for windows, element, shape in LINES]
    for _ in range(12):
        rank = rng.randint(1, 3)

        def some(low, high, rank=rank):
            return tuple(rng.randint(low, high) for _ in range(rank))

        size = some(1, 4)
        windows = tp.Windows(size, padding=some(0, 4), stride=some(1, 4), dilation=some(1, 3))
        cases.append((windows, tuple(rng.randrange(n) for n in size), some(13, 24)))
    for windows, element, image in cases:
        schedule = Lines(windows, element)
        for many in (1, 5):
            x = torch.randn(many, *image, 4 * rng.randint(1, 12), device="cuda")
            expected = torch.from_numpy(lines(x.cpu().numpy(), windows, element))
            d = torch.empty(expected.shape, device="cuda")
            schedule(x, out=d)
            assert torch.equal(d.cpu(), expected), (windows, element, image)


@pytest.mark.parametrize("form", [
    {}, {"tile": (192, 128, 64), "cluster": (1, 2)}, {"tile": (128, 64, 64), "mainloop": tp.mainloop.PingPong()},
])  # fmt: skip
def test_conv(form):
    for windows in WINDOWS[1:3]:
        schedule, rng = tp.schedules.Conv(windows, **form), random.Random(0)
        for _ in range(4):
            n, h, w, c, o = (
                rng.randint(1, 9),
                *(rng.randint(5, 40) for _ in "hw"),
                *(8 * rng.randint(1, 30) for _ in "co"),
            )
            x = torch.randint(-3, 4, (n, h, w, c), device="cuda").bfloat16()
            f = torch.randint(-3, 4, (o, *windows.size, c), device="cuda").bfloat16()
            how = {"padding": windows.padding, "stride": windows.stride, "dilation": windows.dilation}
            expected = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2).float(), f.permute(0, 3, 1, 2).float(), **how)
            assert torch.equal(schedule(x, f), expected.permute(0, 2, 3, 1).bfloat16()), (n, h, w, c, o)


def test_conv_with_further_outputs(device="cuda"):
    """Their extents follow from those of d, whose rows no input has."""
    epilogue = tp.epilogue.Epilogue(
        lambda acc: {"d": acc, "double": acc + acc, "rows": acc, "columns": acc},
        outputs={
            "double": tp.epilogue.Output("fp32"), "rows": tp.epilogue.RowSum(), "columns": tp.epilogue.ColumnSum(),
        },
    )  # fmt: skip
    windows = tp.Windows((3, 3), padding=1)
    schedule = tp.schedules.Conv(windows, (128, 64, 64), epilogue=epilogue)
    x = torch.randint(-3, 4, (3, 9, 14, 72), device=device).bfloat16()
    f = torch.randint(-3, 4, (136, 3, 3, 72), device=device).bfloat16()
    expected = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2).float(), f.permute(0, 3, 1, 2).float(), padding=1)
    expected = expected.permute(0, 2, 3, 1)
    d, double, rows, columns = schedule(x, f)
    assert torch.equal(d, expected.bfloat16()) and torch.equal(double, 2 * expected)
    assert torch.equal(rows, expected.sum(3).flatten()) and torch.equal(columns, expected.sum((0, 1, 2)))


@pytest.mark.parametrize("least", [1, 0])
def test_descriptors_that_the_kernel_makes(least):
    """Many tiles, each through a descriptor of its own: one that is rewritten too early shows other rows."""
    schedule, rng = (AnyRows if least else SomeRows)(), random.Random(0)
    for many, m, n, k, width in ((3, 100, 40, 72, 90), (40, 200, 264, 128, 3000), (400, 64, 16, 32, 5000)):
        counts = torch.tensor([rng.randint(least, min(n, width)) for _ in range(many)], dtype=torch.int32)
        starts = torch.tensor([rng.randint(0, width - int(c)) for c in counts], dtype=torch.int32)
        a, b = (torch.randint(-3, 4, shape, device="cuda").bfloat16() for shape in ((many, m, k), (width, k)))
        expected = torch.zeros(many, m, n, device="cuda")
        for i, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
            expected[i, :, :count] = a[i].float() @ b[start : start + count].float().T
        for _ in range(3):
            d = torch.full((many, m, n), float("nan") if least else 0, device="cuda", dtype=torch.bfloat16)
            schedule(a, b, starts.cuda(), counts.cuda(), out=d)
            assert torch.equal(d, expected.bfloat16()), (many, m, n, k)


def test_groups_anywhere():
    """The example: descriptors of both operands, of many groups."""
    found = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "groups_anywhere.py"))
    schedule, rng = found["GroupsAnywhere"](), random.Random(0)
    for groups, m, n, k in ((3, 170, 144, 136), (60, 300, 400, 512)):
        a, b = (torch.randint(-3, 4, (rows, k), device="cuda").bfloat16() for rows in (3 * m, 3 * n))
        heights, widths = ([rng.randint(1, most) for _ in range(groups)] for most in (m, n))
        places = [
            [rng.randint(0, 3 * m - x) for x in heights],
            heights,
            [rng.randint(0, 3 * n - x) for x in widths],
            widths,
        ]
        d = torch.full((groups, m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        schedule(a, b, *(torch.tensor(each, dtype=torch.int32, device="cuda") for each in places), out=d)
        given = [each.float().cpu().numpy() for each in (a, b)]
        expected = torch.from_numpy(found["expected"](*given, *places, (groups, m, n)))
        assert torch.equal(d.cpu(), expected.bfloat16())
