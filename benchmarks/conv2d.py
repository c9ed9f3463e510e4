"""Convolutions 3 x 3, stride 1, padding 1, of 64 images of bf16 beside cuDNN; suite `conv2d`, TFLOP/s.

python -m benchmarks.conv2d
python -m benchmarks.conv2d --problems 56x56x64 --rounds 10

HxWxC: images with C channels in and out, the channels contiguous. cuDNN chooses its algorithm by trying all
(torch.backends.cudnn.benchmark). Results are compared with cuDNN's in fp32.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.cases import Case, main_of
from benchmarks.results import OURS

IMAGES = 64
#: (side of an image, channels) -> tiles of (windows, output channels, channels) and whether warpgroups take turns, by im2col.
CONVS = {
    (56, 64): (((128, 64, 64), True), ((256, 64, 64), False)),
    (28, 128): (((192, 128, 64), False), ((128, 128, 64), True)),
    (14, 256): (((192, 128, 64), False), ((128, 128, 64), True)),
}
#: The same -> our boxes of (images, height, width), channels of a tile, and warpgroups.
VARIANTS = {
    (56, 64): (((4, 8, 8), 64, 2),),
    (28, 128): (((8, 4, 4), 128, 2),),
    (14, 256): (((32, 2, 2), 128, 2),),
}


def make(side: int, channels: int, device: str) -> tuple[dict[tuple[str, str], Callable[[], Any]], Any]:
    """The variants, and cuDNN's result."""
    import torch

    import tmapipe as tp
    from examples.conv import conv_of
    from tmapipe.tuning import choose_conv

    torch.backends.cudnn.benchmark = True
    x = torch.randn(IMAGES, side, side, channels, device=device, dtype=torch.bfloat16)
    f = torch.randn(3, 3, channels, channels, device=device, dtype=torch.bfloat16)
    out = torch.full_like(x, float("nan"))
    weight = f.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)

    def cudnn() -> Any:
        return torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), weight, padding=1).permute(0, 2, 3, 1)

    runs: dict[tuple[str, str], Callable[[], Any]] = {("cudnn", "conv2d"): cudnn}
    for box, columns, warpgroups in VARIANTS[side, channels]:
        name = f"{' x '.join(map(str, box))} pixels, {columns} channels, {warpgroups} warpgroups"
        runs[OURS, name] = functools.partial(conv_of(box, columns, warpgroups), x, f, out=out)
    last = f.permute(2, 0, 1, 3).contiguous()
    for tile, turns in CONVS[side, channels]:
        mainloop = tp.mainloop.PingPong() if turns else tp.mainloop.Cooperative()
        conv = tp.schedules.Conv(tp.Windows((3, 3), padding=1), tile, mainloop=mainloop)
        name = f"Conv {' x '.join(map(str, tile))}{', warpgroups in turn' if turns else ''}"
        runs[OURS, name] = functools.partial(conv, x, last, out=out)
    chosen = choose_conv(x, last, tp.Windows((3, 3), padding=1))
    runs[OURS, "Conv, what choose_conv takes"] = functools.partial(chosen, x, last, out=out)
    return runs, cudnn().clone()


CASES = [
    Case(
        f"{side}x{side}x{channels}",
        "bf16",
        2.0 * 9 * channels * channels * IMAGES * side * side,
        functools.partial(make, side, channels),
        measure="tflops",
    )
    for side, channels in VARIANTS
]


def main(argv: list[str] | None = None) -> int:
    return main_of("conv2d", __doc__, CASES, argv)


if __name__ == "__main__":
    sys.exit(main())
