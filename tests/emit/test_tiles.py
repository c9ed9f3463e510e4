"""Tiles of many extents, parts, starts anywhere, slots that are held: the PTX asks for what the bodies ask for.

As in `test_events`, every address and coordinate of every TMA instruction is compared, in order.
"""

import pytest

from examples.conv import conv_of
from tests.emit.kernels import Kernel, build
from tests.emit.test_events import check
from tests.sweeps import ALL
from tests.unit.test_held import Multicast, OneTeam, Scaled, Transformed
from tests.unit.test_starts import Converted, Gathered, Halves, Indented, InOrder, Shifted
from tests.unit.test_tiles_of_three import (
    LONG,
    Buffered,
    Images,
    Shared,
    Vector,
    long_rows,
    of_tile,
    pixels,
    swizzled_shared,
)

WIDE = {"x": "fp32", "y": "fp32"}
IMAGES = {"b": 2, "h": 9, "w": 20, "c": 72}
MATRIX = {"m": 50, "n": 136, "i": 30}
KERNELS = {
    "images": Kernel(Images, WIDE, IMAGES),
    "images through buffers": Kernel(Buffered, WIDE, IMAGES),
    "images, swizzled": Kernel(of_tile(Images, (4, 8, 32), swizzle=128), WIDE, IMAGES),
    "images, spans side by side": Kernel(of_tile(Images, (4, 6, 64), swizzle=64), WIDE, IMAGES),
    "images, four extents": Kernel(of_tile(Images, (2, 3, 4, 32)), WIDE, IMAGES),
    "images, multicast": Kernel(Shared, WIDE, IMAGES),
    "images, swizzled, multicast": Kernel(lambda: swizzled_shared((4, 8, 64)), WIDE, IMAGES),
    "pieces of 400 bytes": Kernel(Vector, WIDE, {"n": 1000}),
    "convolution": Kernel(conv_of, {}, {"n": 2, "h": 9, "w": 20, "c": 72, "r": 3, "s": 3, "o": 136}),
    "rows of accumulators": Kernel(lambda: pixels((4, 32)), {}, {**IMAGES, "o": 72}),
    "rows of accumulators, two boxes a row": Kernel(lambda: pixels((1, 128)), {}, {**IMAGES, "w": 130, "o": 72}),
    "accumulators from another element on": Kernel(Indented, {}, {"m": 100, "n": 72, "k": 72, "p": 110, "q": 88}),
    "shifted": Kernel(Shifted, WIDE, MATRIX),
    "rows by index": Kernel(Gathered, WIDE, MATRIX | {"m": 21}, {"rows": tuple(range(29, 8, -1))}),
    "swizzled halves": Kernel(Halves, WIDE, MATRIX),
    "parts in order": Kernel(InOrder, WIDE, MATRIX),
    "stored by another role": Kernel(Converted, {"x": "fp32", "y": "bf16"}, MATRIX),
    "held": Kernel(Scaled, WIDE | {"w": "fp32"}, MATRIX | {"i": 8}),
    "held, multicast": Kernel(Multicast, WIDE | {"w": "fp32"}, MATRIX | {"i": 8}),
    "held, a chain": Kernel(Transformed, WIDE | {"w": "fp32"}, MATRIX | {"i": 8}),
    "held operand": Kernel(OneTeam, {}, {"m": 300, "n": 64, "k": 128}),
} | {
    f"rows of {tile}": Kernel(
        lambda tile=tile: long_rows(tile, "a b m n"[-2 * len(tile) + 1 :]),
        WIDE,
        {"a": 3, "b": 5, "m": 7, "n": 2 * tile[-1] + 8},
    )
    for tile, _ in LONG
}


#: What these have, others have too: for the whole sweep alone.
COMBINED = {
    "images",
    "images, swizzled",
    "rows of accumulators, two boxes a row",
    "images through buffers",
    "images, spans side by side",
    "images, four extents",
    "images, swizzled, multicast",
    "pieces of 400 bytes",
    "rows of accumulators",
    "rows by index",
    "stored by another role",
    "held",
    "held, multicast",
    "held operand",
    *(f"rows of {tile}" for tile, _ in LONG[1:]),
}


@pytest.mark.parametrize("name", [name for name in KERNELS if ALL or name not in COMBINED])
def test_ptx_does_what_the_bodies_say(name):
    assert check(build(KERNELS[name])) > 20
