"""Transposes of 16384 x 16384 matrices beside Triton kernels and torch; suite `transpose`, GB/s read and written.

python -m benchmarks.transpose
python -m benchmarks.transpose --problems bf16 --rounds 10

Results are compared with torch's bit by bit.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.cases import Case, main_of, returning
from benchmarks.results import OURS

SIDE = 16384
BYTES = {"bf16": 2, "fp32": 4}
#: Element type -> our variants: rows and columns of a tile, CTAs on a multiprocessor, and tiles that each takes.
TILES: dict[str, tuple[tuple[int, int, int | None, int], ...]] = {
    "bf16": ((64, 128, 4, 1), (128, 128, 3, 1)),
    "fp32": ((64, 64, 4, 1), (64, 64, None, 1)),
}


def make(dtype: str, device: str) -> tuple[dict[tuple[str, str], Callable[[], Any]], Any]:
    """The variants, and torch's result."""
    import torch

    from examples.transpose import transpose_of

    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    x = torch.randn(SIDE, SIDE, device=device, dtype=kind)
    out = torch.full_like(x, float("nan"))
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    for rows, columns, ctas, each in TILES[dtype]:
        schedule = transpose_of(dtype, rows, columns, ctas, each)
        share = "all CTAs that fit" if ctas is None else f"{ctas} CTAs"
        runs[OURS, f"{rows} x {columns}, {share}, {each} a CTA"] = functools.partial(schedule, x, out=out)
    runs["torch", "copy_"] = functools.partial(out.copy_, x.T)
    try:
        from benchmarks.peer_copy import triton_transposes
    except ImportError as error:
        print(f"  triton: absent ({error})")
    else:
        for name, run in triton_transposes(x, out).items():
            runs["triton", name] = returning(run, out)
    return runs, x.T


CASES = [
    Case(dtype, dtype, 2.0 * SIDE * SIDE * size, functools.partial(make, dtype), limit=0.0)
    for dtype, size in BYTES.items()
]


def main(argv: list[str] | None = None) -> int:
    return main_of("transpose", __doc__, CASES, argv)


if __name__ == "__main__":
    sys.exit(main())
