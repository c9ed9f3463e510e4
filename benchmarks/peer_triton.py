"""A persistent Triton GEMM: tensor descriptors (TMA), grouped order of output tiles, the k loop pipelined by Triton."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.peers import Absent

PINNED = ()


@attrs.frozen
class Config:
    """tile: (m, n, k in bytes); stages: depth of the pipeline; warps: of a CTA; halves: the output tile is stored in two
    halves, which need half the shared memory."""

    tile: tuple[int, int, int]
    stages: int
    warps: int
    halves: bool = False

    def __str__(self) -> str:
        m, n, _ = self.tile
        return f"{m}x{n} stages {self.stages} warps {self.warps}{' halves' if self.halves else ''}"


FEW = (
    Config((128, 256, 128), 3, 8),
    Config((128, 256, 128), 4, 8, halves=True),
    Config((128, 128, 128), 4, 4),
    Config((128, 128, 128), 5, 8),
    Config((64, 128, 128), 6, 4),
)
EVERY = (
    *FEW,
    Config((256, 128, 128), 3, 8),
    Config((256, 128, 128), 4, 8, halves=True),
    Config((128, 128, 128), 4, 8),
    Config((128, 64, 128), 6, 4),
    Config((64, 64, 128), 6, 4),
    Config((64, 256, 128), 4, 4),
)
GROUP = 8  # rows of output tiles taken together, for the L2 cache


@triton.jit
def _tile(index, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of the index-th output tile: down GROUP rows, then to the next column."""
    band = GROUP * tiles_n
    first = index // band * GROUP
    rows = tl.minimum(tiles_m - first, GROUP)
    return first + index % band % rows, index % band // rows


@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
           CTAS: tl.constexpr, HALVES: tl.constexpr, PROMOTE: tl.constexpr):  # fmt: skip
    """c = a @ b.T by CTAS resident CTAs. a: descriptor of (m, k); b: of (n, k); c: of (m, n)."""
    tiles_m, tiles_n, steps = tl.cdiv(m, BM), tl.cdiv(n, BN), tl.cdiv(k, BK)
    # The flattened loop pipelines loads across output tiles; the store recomputes its tile, so as not to bind it to them.
    stored = tl.program_id(0)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, CTAS, flatten=True):
        row, column = _tile(tile, tiles_m, tiles_n, GROUP)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for step in range(steps):
            x = a.load([row * BM, step * BK])
            y = b.load([column * BN, step * BK])
            if PROMOTE > 0:
                acc = tl.dot(x, y.T, acc, max_num_imprecise_acc=PROMOTE)
            else:
                acc = tl.dot(x, y.T, acc)
        row, column = _tile(stored, tiles_m, tiles_n, GROUP)
        stored += CTAS
        if HALVES:
            left, right = tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
            c.store([row * BM, column * BN], left.to(c.dtype))
            c.store([row * BM, column * BN + BN // 2], right.to(c.dtype))
        else:
            c.store([row * BM, column * BN], acc.to(c.dtype))


def prepare(a: Any, b: Any, out: Any, every: bool) -> dict[str, Callable[[], object]]:
    if torch.cuda.get_device_capability(a.device)[0] < 9:
        raise Absent("tensor descriptors need compute capability 9.0")
    configs = EVERY if every else FEW
    if a.element_size() > 1:
        return {str(config): _launcher(a, b, out, config) for config in configs}
    variants = {f"fast {config}": _launcher(a, b, out, config) for config in configs}
    variants |= {f"promoted {config}": _launcher(a, b, out, config, promote=128) for config in configs}
    return variants


def _launcher(a: Any, b: Any, out: Any, config: Config, promote: int = 0) -> Callable[[], object]:
    (m, k), n = a.shape, b.shape[0]
    bm, bn, bk = config.tile[0], config.tile[1], config.tile[2] // a.element_size()
    ctas = min(
        torch.cuda.get_device_properties(a.device).multi_processor_count, triton.cdiv(m, bm) * triton.cdiv(n, bn)
    )
    x, y = TensorDescriptor.from_tensor(a, [bm, bk]), TensorDescriptor.from_tensor(b, [bn, bk])
    c = TensorDescriptor.from_tensor(out, [bm, bn // 2 if config.halves else bn])
    return functools.partial(
        matmul[(ctas,)], x, y, c, m, n, k, bm, bn, bk, GROUP, ctas, config.halves, promote,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
