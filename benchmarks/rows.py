"""Softmax and rmsnorm of rows of bf16 beside QuACK's kernels; suite `rows`, GB/s read and written.

python -m benchmarks.rows
python -m benchmarks.rows --problems "softmax 1024" --rounds 10

512 MiB of rows are read, as many written; rmsnorm has a weight. torch's copy_ beside them is a peer: no kernel that reads and
writes as much is expected to take much less. Every result is compared with torch's, in fp32.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.cases import Case, main_of
from benchmarks.results import OURS

BYTES = 512 << 20
#: Length of a row -> our variants: rows of a tile, warps, CTAs that share a row, CTAs on a multiprocessor.
TILES: dict[str, dict[int, tuple[tuple[int, int, int, int | None], ...]]] = {
    "softmax": {
        512: ((6, 3, 1, 10), (4, 2, 1, 16), (6, 3, 1, 12)),
        1024: ((3, 3, 1, 10), (3, 3, 1, 9)),
        4096: ((1, 4, 1, 9),),
        16384: ((1, 8, 1, 3),),
        65536: ((1, 8, 4, 4),),
        262144: ((1, 8, 16, 4),),
    },
    "rmsnorm": {
        512: ((6, 3, 1, 8),),
        1024: ((8, 4, 1, 4), (3, 3, 1, 8)),
        4096: ((2, 4, 1, 4),),
        16384: ((1, 8, 1, 3),),
        65536: ((1, 8, 4, 3),),
        262144: ((1, 8, 16, 3),),
    },
}


#: Lengths of rows that stay in registers.
HELD = {"softmax": (1024,), "rmsnorm": (512, 1024, 4096)}
#: Of rmsnorm with the weight loaded once for a few rows: warps, CTAs that share a row, CTAs on a multiprocessor, rows.
LONG = {65536: ((8, 4, 2, 2),), 262144: ((8, 16, 2, 4),)}


def case(name: str, length: int) -> Case:
    return Case(f"{name} {length}", "bf16", 2.0 * BYTES, functools.partial(make, name, length))


def make(name: str, length: int, device: str) -> tuple[dict[tuple[str, str], Callable[[], Any]], Any]:
    """The variants, and torch's result."""
    import torch

    from examples.rmsnorm import long_rmsnorm_of, plain_rmsnorm_of
    from examples.softmax import softmax_of

    x = torch.randn(BYTES // 2 // length, length, device=device, dtype=torch.bfloat16)
    weight = torch.randn(length, device=device, dtype=torch.bfloat16)
    out = torch.full_like(x, float("nan"))
    reference: Callable[[Any], Any] = functools.partial(torch.softmax, dim=1)
    if name == "rmsnorm":
        reference = functools.partial(torch.nn.functional.rms_norm, normalized_shape=(length,), weight=weight, eps=1e-6)
    of, inputs = (softmax_of, {"x": x}) if name == "softmax" else (plain_rmsnorm_of, {"x": x, "weight": weight})
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    for rows, warps, ctas, share in TILES[name][length]:
        schedule = of(length // ctas, rows, warps, ctas, length, share, length in HELD[name])
        runs[OURS, f"{rows} rows by {ctas} CTAs of {warps} warps, {share or 'all that fit'}"] = functools.partial(
            schedule, **inputs, out=out
        )
    for warps, ctas, share, each in LONG.get(length, ()) if name == "rmsnorm" else ():
        schedule = long_rmsnorm_of(length // ctas, warps, ctas, share, each)
        runs[OURS, f"{each} rows one after another by {ctas} CTAs of {warps} warps, {share}"] = functools.partial(
            schedule, **inputs, out=out
        )
    for title, run in quack(name, x, weight).items():
        runs["quack", title] = run
    want = reference(x)
    copied = want.clone()
    runs["torch", "copy_, which is not the same"] = functools.partial(copied.copy_, want)
    return runs, want


def quack(name: str, x: Any, weight: Any) -> dict[str, Callable[[], Any]]:
    """QuACK's kernel, where it is installed."""
    try:
        from quack.rmsnorm import rmsnorm_fwd
        from quack.softmax import softmax_fwd
    except ImportError as error:
        print(f"  quack: absent ({error})")
        return {}
    if name == "softmax":
        return {"softmax_fwd": functools.partial(softmax_fwd, x)}
    return {"rmsnorm_fwd": lambda: rmsnorm_fwd(x, weight)[0]}


CASES = [case(name, length) for name, lengths in TILES.items() for length in lengths]


def main(argv: list[str] | None = None) -> int:
    return main_of("rows", __doc__, CASES, argv)


if __name__ == "__main__":
    sys.exit(main())
