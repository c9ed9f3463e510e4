"""How the engine moves slots: which boxes it can take, how they are swizzled, and which rows of a tile make a box."""

from __future__ import annotations

import math

from tmapipe import tma_rules
from tmapipe.descriptor_stage import DescriptorStage
from tmapipe.dtypes import DType
from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.model import Buffer, Load, Store
from tmapipe.stage import SWIZZLES, TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage

__all__ = [
    "check_box",
    "check_load",
    "check_result",
    "check_store",
    "through_of",
    "default_columns",
    "even_columns",
    "rows_box",
    "widest_swizzle",
]


def rows_box(extents: tuple[int, ...], rows: int) -> tuple[int, ...] | None:
    """The box that has the first *rows* rows of a tile, whose rows are numbered along *extents*; None if these make no box.

    Every further *rows* rows then make a box too.
    """
    box: list[int] = []
    for extent in reversed(extents):
        taken = min(extent, rows)
        if rows % taken or extent % taken:
            return None
        box.insert(0, taken)
        rows //= taken
    return tuple(box) if rows == 1 else None


def check_box(name: str, buffer: Buffer, box: tuple[int, ...], rows: int = tma_rules.MAX_BOX) -> None:
    """Raises `InputError` unless the engine can move slots of *buffer* in boxes of *box* elements, the first extent up to
    *rows*."""
    tma_rules.check_box(f"{name}.tile", box, rows)
    nbytes = math.prod(box) * buffer.dtype.bytes
    if nbytes < buffer.slot_bytes and nbytes % 128:
        rule = (
            f"is moved in boxes of {' x '.join(map(str, box))} elements, {nbytes} bytes, but TMA takes slots and parts of "
            "them from multiples of 128 bytes on"
        )
        fix = (
            f"use rows of at most {tma_rules.MAX_BOX} elements, or of whole pieces of 128 bytes; or, for a vector, a "
            "BulkLoadStage"
        )
        raise InputError(f"{name}.tile", buffer.tile, rule, fix)


def through_of(declared: Declarations, load: TmaLoadStage, buffers: dict[str, Buffer]) -> Buffer | None:
    """The slots of the descriptors that a stage is loaded through, if a kernel changes them."""
    stages = {
        name: part for name, part in declared.shared.items() if isinstance(part, DescriptorStage) and part.of is load
    }
    if len(stages) > 1:
        raise InputError("DescriptorStage(of)", load, f"is that of {', '.join(stages)}", "declare one for each stage")
    return next((buffers[name] for name in stages), None)


def check_load(name: str, load: Load) -> None:
    """Raises `InputError` unless a descriptor can say what the load moves, where it lies, and what there is outside."""
    dtype = load.buffer.dtype
    check_parts(name, load)
    check_box(name, load.buffer, load.box, tma_rules.MAX_BOX if load.windows is None else tma_rules.MAX_PIXELS)
    if load.outside == "nan" and not tma_rules.TYPES[tma_rules.type_of(dtype)].floating:
        rule = f"is for types of floating point of 16 and 32 bits, not for {dtype}"
        raise InputError(f"{name}.nan_outside()", dtype.name, rule, "leave it out: there are zeros")
    if load.windows is not None and load.box[0] * load.peers != load.buffer.tile[0]:
        rule = f"has up to {tma_rules.MAX_BOX} channels, or whole swizzle spans of them"
        raise InputError(f"{name}.tile", load.buffer.tile, rule, "load fewer channels at a time")
    spans = (
        ()
        if load.windows is not None
        else tuple(n * step for n, step in zip(load.box, load.steps[-len(load.box) :], strict=True))
    )
    if max(spans, default=0) > tma_rules.MAX_BOX:
        rule = f"spans {' x '.join(map(str, spans))} elements, and a box at most {tma_rules.MAX_BOX} along an extent"
        raise InputError(f"{name}.tile", load.tile, rule, "load smaller tiles, or with smaller strides")


def check_result(name: str, load: TmaLoadStage, store: TmaStoreStage) -> None:
    """Raises `InputError` unless the tiles that a stage loads are those that a CTA stores by itself."""
    alike = load.dims == store.dims and load.tile == store.tile
    plain = load.tensor_map and load.outside == "zeros" and not (load.windows or load.multicast or load.strides)
    once = not (store.reduce or store.folded or store.parts > 1 or store.parts_tile is not None or store.transposed)
    if not (alike and plain and once):
        rule = (
            "is stored whole, not reduced, and loaded in the same tiles by a TmaLoadStage without multicast or strides"
        )
        raise InputError(f"{name}.of_result", store, rule, "give both the same dims and tile")


def check_store(name: str, store: Store) -> None:
    """Raises `InputError` unless the engine can store such slots."""
    check_parts(name, store)
    check_box(name, store.buffer, store.box)


def check_parts(name: str, part: Load | Store) -> None:
    """Raises `InputError` unless the engine can move the parts of a slot one by one, if there are several."""
    buffer, parts = part.buffer, part.parts
    if parts == 1:
        return
    rows, nbytes = buffer.tile[0] // parts, buffer.slot_bytes // parts
    if isinstance(part, Load) and part.axes:
        raise InputError(f"{name}.in_parts", parts, "is 1 where peers load shares of a tile", "drop the multicast")
    if nbytes % 128 or (buffer.swizzle and rows % 8):
        unit = "128 bytes" + (", and of 8 rows where they are swizzled" if buffer.swizzle else "")
        rule = f"makes parts of {rows} rows, {nbytes} bytes; they start at multiples of {unit}"
        raise InputError(f"{name}.in_parts", parts, rule, "use fewer parts, longer rows, or swizzle=0")


def widest_swizzle(argument: str, row: int) -> int:
    """The widest span (bytes) that divides a row of so many bytes. Raises `InputError` if none does."""
    for span in sorted(SWIZZLES, reverse=True):
        if span and row % span == 0:
            return span
    raise InputError(argument, f"rows of {row} bytes", "must be a multiple of 32 bytes", "widen the rows")


def even_columns(n: int, most: int) -> int:
    """Columns of a piece of *n* where accumulators are transposed, so that columns are rows of a buffer: all pieces as wide,
    and as few as *most* allows. 136 columns are stored as three times 48, not as three times 64, of which 56 come twice."""
    return ceil_div(n, 8 * ceil_div(n, most)) * 8


def default_columns(n: int, dtype: DType) -> int:
    """As many columns as fill a swizzle span of 128 bytes, or 64 or 32 if the tile is narrower."""
    for span in (128, 64, 32):
        if span // dtype.bytes <= n:
            return span // dtype.bytes
    return n
