"""Peers of the copy, the transpose and the gather: Triton kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

BLOCKS = ((1024, 4), (2048, 4), (4096, 4), (4096, 8), (8192, 8), (16384, 8))  # elements of a program, warps


@triton.jit
def copy_rows(x, y, columns, x_stride, y_stride, BLOCK: tl.constexpr):
    """y[i, :] = x[i, :]; a program copies BLOCK elements of one row. Strides: elements from row to row."""
    index = tl.program_id(0).to(tl.int64)
    pieces = tl.cdiv(columns, BLOCK)
    row, first = index // pieces, index % pieces * BLOCK
    at = first + tl.arange(0, BLOCK)
    inside = at < columns
    tl.store(y + row * y_stride + at, tl.load(x + row * x_stride + at, mask=inside), mask=inside)


def triton_variants(x: Any, y: Any) -> dict[str, Callable[[], object]]:
    variants: dict[str, Callable[[], object]] = {}
    if x.is_contiguous() and y.is_contiguous():  # rows as long as a program's largest block
        x, y = x.view(-1, 16384), y.view(-1, 16384)
    for block, warps in BLOCKS:
        grid = (x.shape[0] * triton.cdiv(x.shape[1], block),)
        variants[f"block {block} warps {warps}"] = functools.partial(
            copy_rows[grid], x, y, x.shape[1], x.stride(0), y.stride(0), block, num_warps=warps
        )
    return variants


SQUARES = ((32, 32, 4), (64, 32, 4), (32, 64, 4), (64, 64, 4), (64, 64, 8), (128, 64, 8), (64, 128, 8), (128, 128, 8))


@triton.jit
def transpose_tiles(x, y, m, n, M: tl.constexpr, N: tl.constexpr):
    """y[j, i] = x[i, j] for whole tiles of M x N; a program turns one. Row-major, without gaps."""
    index = tl.program_id(0)
    across = n // N
    i, j = index // across * M + tl.arange(0, M).to(tl.int64), index % across * N + tl.arange(0, N).to(tl.int64)
    tile = tl.load(x + i[:, None] * n + j[None, :])
    tl.store(y + j[:, None] * m + i[None, :], tl.trans(tile))


def triton_transposes(x: Any, y: Any) -> dict[str, Callable[[], object]]:
    m, n = x.shape
    return {
        f"tile {rows}x{columns} warps {warps}": functools.partial(
            transpose_tiles[((m // rows) * (n // columns),)], x, y, m, n, rows, columns, num_warps=warps
        )
        for rows, columns, warps in SQUARES
    }


@triton.jit
def gather_rows(x, index, y, columns, BLOCK: tl.constexpr):
    """y[i, :] = x[index[i], :]; a program copies BLOCK elements of one row. Rows lie without gaps."""
    program = tl.program_id(0).to(tl.int64)
    pieces = tl.cdiv(columns, BLOCK)
    row, at = program // pieces, program % pieces * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + tl.load(index + row).to(tl.int64) * columns + at, mask=inside)
    tl.store(y + row * columns + at, values, mask=inside)


def triton_gathers(x: Any, index: Any, y: Any) -> dict[str, Callable[[], object]]:
    rows, columns = y.shape
    return {
        f"block {block} warps {warps}": functools.partial(
            gather_rows[(rows * triton.cdiv(columns, block),)], x, index, y, columns, block, num_warps=warps
        )
        for block, warps in ((512, 2), *BLOCKS[:4])
        if block <= max(512, columns)
    }
