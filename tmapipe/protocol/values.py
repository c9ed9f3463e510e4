"""Fragments and the extents of the tiles that they come from and go to."""

from __future__ import annotations

import math
from typing import Any

from tmapipe.dtypes import DType
from tmapipe.errors import InputError
from tmapipe.isa.fragment import Fragment, combine
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import SlotRef
from tmapipe.plan.model import Buffer
from tmapipe.plan.thread_layout import ThreadLayout

__all__ = ["check_extents", "check_rounded", "checked_values", "layout_of", "write_values"]


def write_values(isa: Isa, where: str, slot: SlotRef, values: Any, at: Any = None) -> None:
    """Writes a fragment to a slot, by the threads that have it.

    Args:
        at: Of a part of the tile, where it begins.

    Raises:
        InputError: *values* is no fragment, has other extents, or is fp32 where the slot holds integers.
    """
    isa.fragments.write(slot, checked_values(where, slot.buffer, values, at), at)


def checked_values(where: str, buffer: Buffer, values: Any, at: Any = None) -> Fragment:
    """*values*, with 0 and 1 for bool, that a slot of *buffer* takes. Arguments and errors as of `write_values`."""
    layout, dtype = layout_of(where, values), buffer.dtype
    dtype.check_held(where)
    if at is None:
        check_extents(where, buffer.tile, layout, values.along)
    else:
        _check_block(where, buffer.tile, layout, values.along, at)
    if values.along != "tile":
        layout.check_rows()
    if dtype.integer and values.kind == "fp32":
        raise InputError(where, dtype.name, "holds no fp32", 'round first: tp.math.cast(values, "int32")')
    return combine("add", values, 0) if values.kind == "bool" else values


def check_rounded(name: str, dtype: DType) -> None:
    """Raises `InputError` for a store *name* of integers: an epilogue's results are not rounded to them."""
    if dtype.integer:
        rule = "an epilogue works in fp32, which is not rounded to integers"
        raise InputError(name, dtype.name, rule, 'give the store another dtype, e.g. "bf16"')


def _check_block(where: str, tile: tuple[int, ...], layout: ThreadLayout, along: str, at: Any) -> None:
    """Raises `InputError` unless fragments of these extents cut the tile into equal blocks, of which one begins at *at*."""
    block = layout.rows, layout.columns
    even = len(tile) == 2 and along == "tile" and not any(size % part for size, part in zip(tile, block, strict=True))
    pair = isinstance(at, tuple) and len(at) == 2 and all(isinstance(x, int) for x in at)
    if not even or not pair or any(x < 0 or x % n or x >= end for x, n, end in zip(at, block, tile, strict=True)):
        rule = f"is where one of the blocks of {block[0]} x {block[1]} begins that the tile {tile} is cut into"
        raise InputError(f"{where}(at)", at, rule, f"e.g. at=(0, {layout.columns})")


def layout_of(where: str, values: Any) -> ThreadLayout:
    """How *values* are distributed over threads. Raises `InputError` unless it is a fragment of a whole tile."""
    if not isinstance(values, Fragment):
        fix = "compute them from slot.x.read() or acc.values(), or make them with k.full()"
        raise InputError(where, values, "takes a fragment, distributed over the role's threads", fix)
    if values.layout is None:
        fix = "combine it with a fragment of a whole tile"
        raise InputError(where, values, "takes a fragment of a whole tile", fix)
    return values.layout


def check_extents(where: str, tile: tuple[int, ...], layout: ThreadLayout, along: str) -> None:
    """Raises `InputError` unless a tile has the extents of a fragment, or one extent for one number a row or column."""
    wanted: tuple[int, ...] = (1,) if along == "one" else (layout.rows,) if along == "rows" else (layout.columns,)
    found = tile
    if along == "tile":
        found, wanted = (math.prod(tile[:-1]), tile[-1]), (layout.rows, layout.columns)
    if found != wanted:
        what = {"tile": "the tile", "one": "one number"}.get(along, f"one number for each of the {along}")
        raise InputError(where, tile, f"is the shape of {what} of the fragment, {wanted}", "give the stage such a tile")
