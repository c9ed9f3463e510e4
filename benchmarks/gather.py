"""Rows of a table by index, as of an embedding, beside torch and Triton kernels; suite `gather`, GB/s read and written.

python -m benchmarks.gather
python -m benchmarks.gather --problems 4096 --rounds 10

512 MiB of rows of bf16, at random places of a table of 2 GiB; a problem is the length of a row. Results are compared with
torch's bit by bit.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.cases import Case, main_of, returning
from benchmarks.results import OURS

BYTES, TABLE = 512 << 20, 2 << 30
#: Length of a row -> rows and 4-byte words of our tiles, and how many CTAs share a multiprocessor.
TILES = {512: ((8, 256, 16), (4, 256, 16)), 4096: ((1, 512, 16), (1, 1024, 12), (4, 256, 12))}


def make(length: int, device: str) -> tuple[dict[tuple[str, str], Callable[[], Any]], Any]:
    """The variants, and torch's result."""
    import torch

    from examples.embedding import gather_of

    table = torch.randn(TABLE // 2 // length, length, device=device, dtype=torch.bfloat16)
    index = torch.randint(table.shape[0], (BYTES // 2 // length,), device=device, dtype=torch.int32)
    out = torch.full((len(index), length), float("nan"), device=device, dtype=torch.bfloat16)
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    words, to = table.view(torch.int32), out.view(torch.int32)
    for (rows, columns, ctas), hint in itertools.product(TILES[length], (None, "evict_last")):
        gather = functools.partial(gather_of(columns, rows, ctas, hint), words, index, out=to)
        read = f", reads {hint}" if hint else ""
        runs[OURS, f"{rows} x {columns} words, {ctas} CTAs{read}"] = returning(gather, out)
    runs["torch", "index_select"] = functools.partial(torch.index_select, table, 0, index, out=out)
    try:
        from benchmarks.peer_copy import triton_gathers
    except ImportError as error:
        print(f"  triton: absent ({error})")
    else:
        for name, run in triton_gathers(table, index, out).items():
            runs["triton", name] = returning(run, out)
    return runs, table[index.long()]


CASES = [Case(str(length), "bf16", 2.0 * BYTES, functools.partial(make, length), limit=0.0) for length in TILES]


def main(argv: list[str] | None = None) -> int:
    return main_of("gather", __doc__, CASES, argv)


if __name__ == "__main__":
    sys.exit(main())
