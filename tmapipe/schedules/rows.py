"""Rows: what kernels share that compute each row of a matrix by itself, of any length and alignment.

    load (1 warp)      a tile of rows -> the slot of the CTA, TMA
    work (warps)       reads the slot, reduces each row over lanes, warps and CTAs of the cluster, stores from registers

Rows that begin at multiples of 16 bytes are tiles of a matrix. Others are loaded from the last such multiple before them: a
matrix of n columns is seen as one whose rows hold as many rows as begin alike. Threads then read each row where it lies in the
slot. Each CTA takes one tile; several share a multiprocessor.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from tmapipe.barrier import BarrierRing
from tmapipe.bind.memory import check_kind
from tmapipe.bind.tensors import is_contiguous, new_like
from tmapipe.bulk_stage import BulkLoadStage
from tmapipe.dim import Dim
from tmapipe.dtypes import DType, dtype_of
from tmapipe.errors import InputError
from tmapipe.multicast import MulticastGroup
from tmapipe.protocol.tile import Tile
from tmapipe.reduction_scratch import ReductionScratch
from tmapipe.role import Role
from tmapipe.schedule import Schedule
from tmapipe.schedules.rowform import MARGIN, RowForm, row_form
from tmapipe.stage import TmaLoadStage
from tmapipe.thread_store import ThreadStoreStage
from tmapipe.tiles.grid import GridTiles
from tmapipe.tiles.raster import Grouped
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["RowKernel", "Rows", "alignment_of", "as_matrix"]

KINDS = ("bf16", "fp16", "fp32")
BEFORE = 8  # elements before the first one of a column: a multiple of 16 bytes of any type, and as many as a row has


class Rows(Schedule):
    """Base of schedules of rows. A subclass declares its stages with `rows_in`, `rows_out` and `per_column`.

    Args:
        form: How rows are shared out; None: a call chooses it, by length, types and alignment.
    """

    load, work = Role(warps=1), Role(warps=4)
    #: Stages of rows that are loaded, and stored, in the order of a call.
    loaded: tuple[str, ...] = ("x",)
    stored: tuple[str, ...] = ("y",)

    def __init__(self, form: RowForm):
        self.form = form
        self.over = "m n" if form.apart == 1 else "a b n"
        self.relations = (Dim("n", size=form.length),)
        self.tiles = GridTiles(Grouped(1), form.share, form.each)
        self.cluster = {"n": form.ctas}
        self.work = Role(warps=form.warps)
        self.ring = BarrierRing(1 if form.each == 1 else 2, producer=self.load, consumer=self.work)
        group = MulticastGroup("n") if form.ctas > 1 else None
        self.across = ReductionScratch(self.work, rows=form.rows, group=group)

    def rows_in(self) -> TmaLoadStage:
        """A stage of the rows that a CTA takes."""
        form = self.form
        if form.apart == 1 and form.even and form.rows == 1:  # one instruction, where boxes take many
            return BulkLoadStage("m n", tile=(form.columns,), ring=self.ring, l2_hint="evict_last")
        dims = "m n" if form.apart == 1 else "a w"
        return TmaLoadStage(dims, tile=(form.rows, form.columns), ring=self.ring, l2_hint="evict_last")

    def per_column(self, ring: BarrierRing | None = None) -> TmaLoadStage:
        """A stage of one number a column, for the columns of a CTA."""
        form = self.form
        if form.apart == 1 and form.even:
            return BulkLoadStage("n", tile=(form.columns,), ring=ring or self.ring)
        return TmaLoadStage("n", tile=(form.columns + (0 if form.apart == 1 else MARGIN),), ring=ring or self.ring)

    def rows_out(self, vector: int, dtype: DType | str | None = None) -> ThreadStoreStage:
        """A stage of as many rows of results, which begin at multiples of *vector* bytes."""
        form = self.form
        dims, wide = ("m n", False) if form.apart == 1 else ("b a n", True)
        tile = form.rows, form.columns
        return ThreadStoreStage(dims, tile=tile, role=self.work, vector=vector, wide=wide, dtype=dtype)

    # ---- in bodies ------------------------------------------------------------------------------------------------

    def before(self, tile: Tile) -> Any:
        """Elements that a CTA's tile of rows has before their first ones."""
        return tile.b * self.form.length % self.form.unit

    def load_rows(self, stage: Any, tile: Tile) -> None:
        """Starts the load of a stage of rows in an open slot."""
        form = self.form
        if form.apart == 1:
            stage.load(tile)
        else:
            first = tile.b * form.length // form.unit * form.unit
            stage.load_from(tile.a * form.rows, first + tile.n * form.columns)

    def read_rows(self, stage: Any) -> Any:
        """What lies in a stage of rows in an open slot."""
        return stage.read(width=self.form.width or self.form.unit)

    def load_per_column(self, stage: Any, rank: Any) -> None:
        """Starts the load of a stage of one number a column, for the CTA of this rank along n."""
        form = self.form
        if form.apart == 1:
            stage.load(n=rank)
        else:
            stage.load_from(rank * form.columns - BEFORE)

    def read_per_column(self, stage: Any, tile: Tile, values: Any) -> Any:
        """What lies in a stage of one number a column, for those of a fragment of rows."""
        if self.form.apart == 1:
            return stage.read(columns_of=values)
        return stage.read(columns_of=values, at=BEFORE - self.before(tile))

    def store_rows(self, stage: Any, tile: Tile, values: Any) -> None:
        """Stores a fragment of rows."""
        form = self.form
        if form.apart == 1:
            stage.store(tile, values, surely=form.surely)
        else:
            first = tile.n * form.columns - self.before(tile)
            stage.store_from(tile.b, tile.a * form.rows, first, values=values, surely=form.surely)

    def inside(self, tile: Tile) -> dict[str, Any]:
        """Which columns of a CTA's tile are inside the row, as reductions take it."""
        form = self.form
        if form.apart == 1 and (form.even or form.ctas == 1):
            return {"inside": form.columns if form.even else form.length}
        before = 0 if form.apart == 1 else self.before(tile)
        first = before - tile.n * form.columns
        inside = first + form.length if form.apart == 1 else (first, first + form.length)
        return {"inside": inside, "surely": form.surely}

    # ---- calls ----------------------------------------------------------------------------------------------------

    def run(self, rows: dict[str, Any], others: dict[str, Any]) -> None:
        """Runs the schedule on matrices of rows, by stage, and on *others*."""
        form = self.form
        if form.apart == 1:
            self(**rows, **others)
            return
        height = next(iter(rows.values())).shape[0]
        whole = height - height % form.apart
        for first, last in ((0, whole), (whole, height)):
            if first < last:
                self(**{name: self._grouped(name, x[first:last]) for name, x in rows.items()}, **others)

    def _grouped(self, name: str, x: Any) -> Any:
        """Rows with as many in one as begin alike, as a stage of rows takes them."""
        height, length = x.shape
        together = min(height, self.form.apart)
        if name in self.loaded:
            return x.reshape(height // together, together * length)
        return x.reshape(height // together, together, length).swapaxes(0, 1)


class RowKernel:
    """Base of kernels of rows that a call fits to its tensors: a `Rows` for each length, type and alignment."""

    hold = 64  # elements of a thread up to which rows are held in registers

    def __init__(self) -> None:
        self.fitted: dict[Any, Rows] = {}

    def rows(self, form: RowForm, stored: int, loads: int) -> Rows:
        """The schedule of this form, with so many tensors of rows loaded, for results at multiples of *stored* bytes."""
        raise NotImplementedError

    def fit(self, loaded: list[Any], stored: list[Any], others: list[Any]) -> Rows:
        """The schedule for these matrices, and *others* of one number a column."""
        aligned, out = min(map(alignment_of, loaded)), min(map(alignment_of, stored))
        length, size = loaded[0].shape[1], max(x.dtype.itemsize for x in loaded)
        vectors = sum(x.dtype.itemsize for x in others)
        if aligned < ALIGNMENT and len({x.dtype.itemsize for x in loaded}) > 1:
            rule = "are of one size where their rows are no multiples of 16 bytes"
            raise InputError("element types", [str(x.dtype) for x in loaded], rule, "convert one")
        key = length, size, aligned, out, len(loaded), vectors
        if key not in self.fitted:
            form = row_form(length, size, aligned, loads=len(loaded), vectors=vectors, hold=self.hold)
            self.fitted[key] = self.rows(form, out, len(loaded))
        return self.fitted[key]

    def run(self, loaded: dict[str, Any], stored: dict[str, Any], others: dict[str, Any]) -> Any:
        """Computes the outputs, of which those that are None are made, from tensors of rows and from *others*."""
        first = next(iter(loaded.values()))
        rows = {name: as_matrix(name, x) for name, x in loaded.items()}
        for name, x in (*loaded.items(), *stored.items()):
            if x is not None and tuple(x.shape) != tuple(first.shape):
                raise InputError(f"{name}.shape", tuple(x.shape), f"is that of x, {tuple(first.shape)}", "make it so")
        for name, x in others.items():
            check_kind(name, x)
        made = {name: new_like(first) if x is None else x for name, x in stored.items()}
        if 0 not in first.shape:
            outputs = {name: as_matrix(name, x) for name, x in made.items()}
            for name, x in outputs.items():
                if (
                    np.shares_memory(x, made[name])
                    if isinstance(x, np.ndarray)
                    else x.data_ptr() == made[name].data_ptr()
                ):
                    continue
                rule = "can be seen as a matrix of its rows"
                raise InputError(f"{name}.stride", made[name].stride(), rule, "pass a contiguous tensor")
            rows = {name: _loadable(x) for name, x in rows.items()}
            self.fit([*rows.values()], [*outputs.values()], [*others.values()]).run({**rows, **outputs}, others)
        results = tuple(made.values())
        return results[0] if len(results) == 1 else results


def _loadable(x: Any) -> Any:
    """A matrix, or a copy of it where its rows lie as no form takes them: apart, from no multiple of 16 bytes on."""
    if alignment_of(x) == ALIGNMENT or (is_contiguous(x) and address_of(x) % ALIGNMENT == 0):
        return x
    return x.copy() if isinstance(x, np.ndarray) else x.clone(memory_format=sys.modules["torch"].contiguous_format)


def as_matrix(name: str, x: Any) -> Any:
    """*x*, of one to four dimensions, as a matrix of its rows; a copy where it lies so that there is no such view.

    Raises:
        InputError: It is no tensor of bf16, fp16 or fp32 of so many dimensions.
    """
    check_kind(name, x)
    kind = dtype_of(x, name)
    if kind.name not in KINDS:
        raise InputError(f"{name}.dtype", kind.name, f"is one of {', '.join(KINDS)}", f"{name}.to(torch.float32)")
    if not 1 <= x.ndim <= 4:
        raise InputError(f"{name}.shape", tuple(x.shape), "has one to four dimensions", "reshape it")
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def alignment_of(x: Any) -> int:
    """The most bytes, up to 16, of which the address, the rows and the pitch of a matrix are whole multiples."""
    size = x.dtype.itemsize
    pitch = x.strides[0] if isinstance(x, np.ndarray) else x.stride(0) * size
    return math.gcd(ALIGNMENT, x.shape[1] * size, pitch if x.shape[0] > 1 else 0, address_of(x))


def address_of(x: Any) -> int:
    """Where a tensor lies."""
    return int(x.ctypes.data) if isinstance(x, np.ndarray) else int(x.data_ptr())
