"""Kernels as a user writes them, in few plain lines, whose numbers `tp.autotune` finds; suite `user_kernels`, GB/s.

python -m benchmarks.user_kernels                    measures beside torch, torch.compile and QuACK
python -m benchmarks.user_kernels --rehearse         small ones, on the CPU model, beside torch

A loss, an argmax, a cumulative sum, a rotation, a stencil of any size, a depthwise convolution: none uses a schedule that is
ready-made.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import tmapipe as tp
from benchmarks import row_kernels
from benchmarks.cases import Case
from benchmarks.results import OURS
from benchmarks.row_kernels import Made, compiled_later, device_of, some
from tmapipe.tuning import AutoTuned

TAPS = tuple((i, j) for i in range(3) for j in range(3))  # of a window
WARPS, SHARES = (8, 4, 16), (3, 2, 5)  # of a CTA; CTAs of a multiprocessor


def whole(length: int, warps: int) -> int:
    """The columns of a tile that holds a row, in vectors of 8 for each thread."""
    return -(-length // (256 * warps)) * 256 * warps


def of_rows(x: Any, *_: Any) -> dict[str, Any]:
    return {"length": x.shape[1]}


@tp.autotune({"warps": WARPS, "share": SHARES}, key=of_rows, progress=False)
def loss_of(length: int, warps: int, share: int) -> tp.Schedule:
    """The loss of each row: the logarithm of the sum of its powers, less the logit of its target."""
    columns = whole(length, warps)

    class Loss(tp.Schedule):
        over, relations = "m", (tp.Dim("n", size=length),)
        tiles = tp.tiles.GridTiles(ctas=share)
        load, work = tp.Role(warps=1), tp.Role(warps=warps)
        ring = tp.BarrierRing(1, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(columns,), ring=ring)
        target = tp.Table("m")
        across = tp.ReductionScratch(work, rows=1)
        loss = tp.ThreadStoreStage("m", tile=(1,), role=work, vector=4, dtype="fp32")

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=0)

        @work.jit
        def lose(self, k, tile):
            column = k.target.entry(tile.m)
            with k.ring.consume() as slot:
                lse = tp.math.row_logsumexp(slot.x.read(), inside=length)
                k.loss.store(tile, lse - slot.x.read(at=column))

    return Loss()


@tp.autotune({"warps": WARPS, "share": SHARES}, key=of_rows, progress=False)
def argmax_of(length: int, warps: int, share: int) -> tp.Schedule:
    """The first column of the largest element of each row."""
    columns = whole(length, warps)

    class Argmax(tp.Schedule):
        over, relations = "m", (tp.Dim("n", size=length),)
        tiles = tp.tiles.GridTiles(ctas=share)
        load, work = tp.Role(warps=1), tp.Role(warps=warps)
        ring = tp.BarrierRing(1, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(1, columns), ring=ring)
        across = tp.ReductionScratch(work, rows=1)
        y = tp.ThreadStoreStage("m", tile=(1,), role=work, vector=8, dtype="int64")

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=0)

        @work.jit
        def find(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
                top = tp.math.row_max(values, inside=length)
                found = tp.math.where(values == top, tp.math.cast(values.columns, "fp32"), float(length))
                k.y.store(tile, tp.math.cast(tp.math.row_min(found, inside=length), "int32"))

    return Argmax()


@tp.autotune({"warps": WARPS, "share": SHARES}, key=of_rows, progress=False)
def cumsum_of(length: int, warps: int, share: int) -> tp.Schedule:
    """The running sums of each row."""
    columns = whole(length, warps)

    class Cumsum(tp.Schedule):
        over, relations = "m", (tp.Dim("n", size=length),)
        tiles = tp.tiles.GridTiles(ctas=share)
        load, work = tp.Role(warps=1), tp.Role(warps=warps)
        ring = tp.BarrierRing(1, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(1, columns), ring=ring)
        across = tp.ReductionScratch(work, rows=columns // (256 * warps))
        y = tp.ThreadStoreStage("m n", tile=(1, columns), role=work)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=0)

        @work.jit
        def add(self, k, tile):
            with k.ring.consume() as slot:
                sums = tp.math.row_cumsum(slot.x.read())
            k.y.store_from(tile.m, 0, values=sums)

    return Cumsum()


@tp.autotune(
    {"positions": (16, 32), "warps": (4, 8), "share": (6, 4, 8)},
    key=lambda x, cos, sin: {"angles": cos.shape[1]},
    progress=False,
)
def rotary_of(angles: int, positions: int, warps: int, share: int) -> tp.Schedule:
    """Rotates columns i and i + angles of each head of each position."""

    class Rotary(tp.Schedule):
        over = "p h"
        tiles = tp.tiles.GridTiles(ctas=share)
        load, work = tp.Role(warps=1), tp.Role(warps=warps)
        ring = tp.BarrierRing(1, producer=load, consumer=work)
        relations = (tp.Dim("d", size=2 * angles), tp.Dim("r", size=angles))
        x = tp.TmaLoadStage("p h d", tile=(positions, 1, 2 * angles), ring=ring)
        cos = tp.TmaLoadStage("p r", tile=(positions, angles), ring=ring)
        sin = tp.TmaLoadStage("p r", tile=(positions, angles), ring=ring)
        y = tp.ThreadStoreStage("p h d", tile=(positions, 1, angles), role=work)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile, d=0)
                slot.cos.load(tile, r=0)
                slot.sin.load(tile, r=0)

        @work.jit
        def rotate(self, k, tile):
            with k.ring.consume() as slot:
                half = (positions, angles)
                first, second = slot.x.read(tile=half), slot.x.read(tile=half, at=(0, angles))
                cos, sin = slot.cos.read(), slot.sin.read()
            k.y.store_from(tile.p * positions, tile.h, 0, values=first * cos - second * sin)
            k.y.store_from(tile.p * positions, tile.h, angles, values=second * cos + first * sin)

    return Rotary()


@tp.autotune({"rows": (16, 32), "columns": (64, 128), "share": (7, 4)}, progress=False)
def stencil_of(rows: int, columns: int, share: int) -> tp.Schedule:
    """The mean of each element and its four neighbours, zero outside, of a matrix whose rows begin anywhere."""

    class Stencil(tp.Schedule):
        tiles = tp.tiles.GridTiles(ctas=share)
        load, work = tp.Role(warps=4), tp.Role(warps=4)
        ring = tp.BarrierRing(1, producer=load, consumer=work)
        x = tp.CpAsyncLoadStage("m n", tile=(rows + 2, columns + 8), ring=ring, vector=4, dtype="fp32")
        y = tp.ThreadStoreStage("m n", tile=(rows, columns), role=work, vector=4, dtype="fp32")

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load_from(tile.m * rows - 1, tile.n * columns - 4)

        @work.jit
        def average(self, k, tile):
            with k.ring.consume() as slot:
                total = slot.x.read(tile=(rows, columns), at=(1, 4), width=1)
                for row, column in ((0, 4), (2, 4), (1, 3), (1, 5)):
                    total = total + slot.x.read(tile=(rows, columns), at=(row, column), width=1)
            k.y.store(tile, total * 0.2)

    return Stencil()


@tp.autotune({"warps": (8, 4), "share": (3, 2, 5)}, progress=False)
def depthwise_of(warps: int, share: int) -> tp.Schedule:
    """A convolution of 3 x 3 of each channel by itself, of images whose channels come last, zero outside."""
    height, width, channels = 8, 16, 64

    class Depthwise(tp.Schedule):
        over = "b g w c"
        relations = (tp.Dim("t", size=9), tp.Dim("g", of="h", per=height), tp.Dim("i", size=height))
        tiles = tp.tiles.GridTiles(ctas=share)
        load, work = tp.Role(warps=1), tp.Role(warps=warps)
        ring = tp.BarrierRing(1, producer=load, consumer=work)
        x = tp.TmaLoadStage("b h w c", tile=(1, height + 2, width + 2, channels), ring=ring)
        f = tp.TmaLoadStage("t c", tile=(9, channels), ring=ring)
        y = tp.ThreadStoreStage("b g i w c", tile=(1, 1, 1, width, channels), role=work)  # rows of images in groups

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load_from(tile.b, tile.g * height - 1, tile.w * width - 1, tile.c * channels)
                slot.f.load(tile, t=0)

        @work.jit
        def convolve(self, k, tile):
            with k.ring.consume() as slot:
                for h in range(height):
                    total = 0.0
                    for i, j in TAPS:
                        x = slot.x.read(tile=(width, channels), at=((h + i) * (width + 2) + j, 0))
                        total = total + x * slot.f.read(columns_of=x, at=(3 * i + j, 0))
                    k.y.store_from(tile.b, tile.g, h, tile.w * width, tile.c * channels, values=total)

    return Depthwise()


# ---- beside others ---------------------------------------------------------------------------------------------------


def _runs(ours: AutoTuned, plain: Callable[..., Any], *inputs: Any, seen: Callable[[Any], Any] = lambda y: y) -> Made:
    """Ours, the first candidate, which needs no GPU to be chosen, torch's as it is and compiled, and what comes out in fp32.
    *seen*: as what our result is seen."""

    @functools.cache
    def first() -> tp.Schedule:
        fixed = {} if ours.key is None else ours.key(*inputs)
        return ours.make(**fixed, **ours.candidates(*inputs)[0][0])

    runs = {
        (OURS, "tuned"): lambda: seen(ours(*inputs)),
        (OURS, "first candidate"): lambda: seen(first()(*inputs)),
        ("torch", "eager"): functools.partial(plain, *inputs),
        ("torch", "compile"): functools.partial(compiled_later(plain), *inputs),
    }
    return runs, plain(*(x.float() if x.is_floating_point() else x for x in inputs)).float()


def loss(m: int, n: int) -> Made:
    import torch

    def plain(x: Any, target: Any) -> Any:
        return torch.nn.functional.cross_entropy(x, target, reduction="none")

    x = some(m, n)
    target = torch.randint(0, n, (m,), device=x.device)
    runs, want = _runs(loss_of, plain, x, target)
    try:
        from quack.cross_entropy import cross_entropy_fwd
    except ImportError as error:
        print(f"  quack: absent ({error})")
    else:
        runs["quack", "fwd"] = lambda: cross_entropy_fwd(x, target, return_lse=True)[0]
    return runs, want


def argmax(m: int, n: int) -> Made:
    x = some(m, n)
    runs, _ = _runs(argmax_of, lambda x: x.argmax(1), x)

    def check(run: Callable[[], Any]) -> float:  # of equal elements, any
        found = x.gather(1, run()[:, None])[:, 0]
        return 0.0 if (found == x.amax(1)).all() else math.inf

    return runs, check


def cumsum(m: int, n: int) -> Made:
    return _runs(cumsum_of, lambda x: x.cumsum(1), some(m, n))


def rotary(positions: int, heads: int, angles: int) -> Made:
    import torch

    def plain(x: Any, cos: Any, sin: Any) -> Any:
        (one, two), cos, sin = x.chunk(2, -1), cos[:, None], sin[:, None]
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    turns = 9 * torch.rand(positions, angles, device=device_of())
    return _runs(rotary_of, plain, some(positions, heads, 2 * angles), turns.cos().bfloat16(), turns.sin().bfloat16())


def stencil(m: int, n: int) -> Made:
    import torch

    def plain(x: Any) -> Any:
        wide = torch.nn.functional.pad(x, (1, 1, 1, 1))
        return (x + wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]) * 0.2

    return _runs(stencil_of, plain, some(m, n, dtype="float32"))


def depthwise(images: int, height: int, width: int, channels: int) -> Made:
    import torch

    def plain(x: Any, f: Any) -> Any:
        weights = f.T.reshape(channels, 1, 3, 3)
        found = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), weights, padding=1, groups=channels)
        return found.permute(0, 2, 3, 1)

    inputs = some(images, height, width, channels), some(9, channels)
    return _runs(depthwise_of, plain, *inputs, seen=lambda y: y.flatten(1, 2)[:, :height])


def cases(small: bool = False) -> list[Case]:
    """Of the suite, or *small* ones."""
    m, n, rows, columns = (9, 1008, 45, 133) if small else (16384, 8192, 8191, 8193)
    positions, heads, images, side, channels = (40, 3, 2, 13, 64) if small else (16384, 32, 64, 56, 256)
    found = (
        ("loss", (m, n), 2.0 * m * n, loss, row_kernels.LIMIT),
        ("argmax", (m, n), 2.0 * m * n, argmax, row_kernels.LIMIT),
        ("cumsum", (m, n // 2), 2.0 * m * n, cumsum, row_kernels.SUMS),
        ("rotary", (positions, heads, 64), 8.0 * positions * heads * 64, rotary, row_kernels.LIMIT),
        ("stencil", (rows, columns), 8.0 * rows * columns, stencil, row_kernels.LIMIT),
        ("depthwise", (images, side, side, channels), 4.0 * images * side**2 * channels, depthwise, row_kernels.LIMIT),
    )
    return [
        Case(f"{name} {' x '.join(map(str, extents))}", "fp32" if name == "stencil" else "bf16", work,
             lambda device, make=make, extents=extents: make(*extents), limit)  # type: ignore[misc]
        for name, extents, work, make, limit in found
    ]  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="small ones, also without a GPU: ours beside torch")
    row_kernels.add_time(parser)
    args = parser.parse_args(argv)
    if args.rehearse:
        return int(
            row_kernels.rehearse([case for case in cases(True) if case.name.startswith(tuple(args.problems))]) > 0
        )
    return row_kernels.run_suites({"user_kernels": cases()}, args, ["benchmarks.user_kernels"])


if __name__ == "__main__":
    sys.exit(main())
