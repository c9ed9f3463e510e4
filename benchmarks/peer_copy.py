"""Peers of the copy: torch's copy_ (cudaMemcpy where both sides are contiguous) and a Triton kernel."""

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
