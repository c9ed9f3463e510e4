"""Data: shared memory of every CTA and the bound tensors as NumPy arrays, and who has written each element of an output."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import ml_dtypes
import numpy as np

from tmapipe.base.arithmetic import DType, accumulate, ceil_div, larger, products, smaller, tf32
from tmapipe.errors import HazardError
from tmapipe.isa import ops, registering
from tmapipe.model.layout import Layout, Where, hazard, set_location
from tmapipe.plan.model import Load, Store
from tmapipe.plan.rings import Matmul
from tmapipe.plan.thread_layout import AccumulatorLayout

# ---- written ---------------------------------------------------------------------------------------------------------
#
# Who has written each element of an output, in a run with data.
#
# Two stores to one element are ordered only if one CTA makes both for one tile, and in one of two ways: the thread of
# the first store had waited until it was written; or one warp makes both from registers. Stores that are not ordered
# must write the same value. (Stores of different tiles never count as ordered, since it depends on the number of
# launched CTAs which CTA takes which tile.) Outputs of reductions are not followed: many tiles may add to an element.


STORES = (ops.TmaStore, ops.BulkStore, ops.TmaScatter, ops.TileStore)
Ints = tuple[int, ...]


class Issue:
    """One store. number: its number in the order of issue, from 1 on. tile: the output tile at which the warp is. group: the
    number of its thread's group, once the group is committed. waited: whether its thread has waited until the store was
    written."""

    known: frozenset[Issue] = frozenset()  # earlier stores that its thread knew to be written

    def __init__(self, number: int, agent: int, op: Any, cluster: int, tile: str, where: str | None):
        self.number, self.agent, self.op, self.cluster, self.tile, self.where = number, agent, op, cluster, tile, where
        self.group: int | None = None
        self.waited = False

    def before(self, later: Issue, layout: Layout) -> bool:
        """Whether this store has been written before *later* was issued, in every interleaving."""
        own = self.agent // layout.warps == later.agent // layout.warps and self.cluster == later.cluster
        ordered = self.agent == later.agent if type(self.op) is ops.TileStore else self in later.known
        return own and self.tile == later.tile and ordered


class Written:
    """What is known of all outputs of a run.

    tiles: the output tile at which each agent is, in words. owners: for each output, the number of the store that has last
    written each element; 0 for none.
    """

    def __init__(self, layout: Layout, tensors: dict[str, np.ndarray]):
        self.layout = layout
        self.stores = {store.name: store for store in layout.plan.stores if store.reduce is None}
        self.owners = {
            store.argument: np.zeros(tensors[store.argument].shape, np.int32) for store in self.stores.values()
        }
        self.issues: list[Issue] = []
        self.begin(0, lambda agent: None)

    def begin(self, cluster: int, where: Where) -> None:
        """A cluster begins. where: source line of a warp's present operation."""
        self.cluster, self.where = cluster, where
        self.tiles = [""] * self.layout.agents
        self.flights: dict[ops.Flight, Issue] = {}
        self.open: dict[ops.Agent, list[Issue]] = {}  # by warp

    def watch(self, agent: ops.Agent, op: Any, facts: Any) -> None:
        """Notes one transition, before its effect on data."""
        if isinstance(agent, ops.Flight):
            return
        kind = type(op)
        if kind in STORES and op.store in self.stores:
            open_ = self.open.setdefault(agent, [])
            issue = Issue(len(self.issues) + 1, agent, op, self.cluster, self.tiles[agent], self.where(agent))
            issue.known = frozenset(each for each in open_ if each.waited)
            self.issues.append(issue)
            open_.append(issue)
            self.flights |= dict.fromkeys(facts or (), issue)
            if facts is None:
                self.present = issue
        elif kind is ops.BulkCommit:
            for flight in facts[1]:
                if flight in self.flights:
                    self.flights[flight].group = facts[0]
        elif kind is ops.BulkWait and not op.read:
            for issue in self.open.get(agent, ()):
                issue.waited |= issue.group is not None and issue.group < facts

    def note(self, of: ops.Flight | int, store: Store, inside: Any, old: np.ndarray, new: np.ndarray) -> None:
        """Elements *inside* the output are written, from the values *old* to *new*. of: the flight, or the warp."""
        if store.name not in self.stores:
            return
        issue = self.flights[of] if type(of) is ops.Flight else self.present
        owners = self.owners[store.argument]
        before = owners[inside]
        if before.any():
            differ = (before != 0) & (before != issue.number) & (_bits(old) != _bits(new))
            for number in np.unique(before[differ]):
                other = self.issues[number - 1]
                if not other.before(issue, self.layout) and not issue.before(other, self.layout):
                    raise self._conflict(store, other, issue)
        owners[inside] = issue.number

    def finish(self, whole: Collection[str]) -> None:
        """Called after all clusters have ended. Raises `HazardError` if elements of one of the outputs *whole* have not been
        written."""
        for name, store in self.stores.items():
            if name not in whole:
                continue
            left = self.owners[store.argument] == 0
            if left.any():
                first = tuple(int(i) for i in np.argwhere(left)[0])
                where = next((issue.where for issue in self.issues if issue.op.store == name), None)
                many = f"{np.count_nonzero(left)} of {left.size} elements of {name}"
                text = f"{many} are written by nobody, the first one at {first}"
                raise set_location(hazard(self.layout, "output-unwritten", None, None, text), where)

    def _conflict(self, store: Store, one: Issue, other: Issue) -> HazardError:
        one, other = sorted((one, other), key=lambda issue: issue.number)
        layout = self.layout
        if one.tile == other.tile and one.cluster == other.cluster:
            which = f"stores {store.name} at {other.op.at} a second time, with another value"
            rule = "output-twice"
        else:
            where = f"at {other.op.at}{_of(other)}, where another tile{_of(one)} stores another value"
            which = f"stores {store.name} {where}"
            rule = "output-shared"
        if one.where and one.where != other.where:
            which += f" (at {one.where})"
        return set_location(hazard(layout, rule, other.agent, other.op, which), other.where)


def _of(issue: Issue) -> str:
    return f" of the tile at {issue.tile}" if issue.tile else ""


def _bits(values: np.ndarray) -> np.ndarray:
    """Values as integers, so that equal NaNs are equal."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


# ---- memory ----------------------------------------------------------------------------------------------------------
#
# Data: shared memory of every CTA and the bound tensors as NumPy arrays, moved when the protocol's steps are taken.
#
# The machine's protocol never looks here. Operands are read as late as the protocol allows (a store's slot at its
# read step, a wgmma's slots when it ends), so that a slot reused too early gives wrong numbers, as on the hardware.
# Shared memory starts as 0xFF bytes, NaN in every floating type.


class Accumulator:
    """One warp's part of ``acc[m, n]``, in fp32 or int32: 16 rows of each of the warpgroup's row blocks. defined: whether it
    may be read. (On the GPU, registers that no wgmma has written have the values of the last tile.)"""

    def __init__(self, matmul: Matmul, warp: int, defined: bool = True):
        self.defined = defined
        layout = AccumulatorLayout.of(matmul)
        strips = [block * layout.warpgroups + layout.group(warp) for block in range(layout.blocks)]
        self.first_row = [64 * strip + 16 * (warp % 4) for strip in strips]
        self.values = np.zeros((layout.blocks, 16, layout.columns), np.int32 if matmul.b.dtype.integer else np.float32)

    def add(self, sums: np.ndarray) -> None:
        """Adds what `products` gives for its row blocks."""
        self.defined = True
        accumulate(self.values, sums.reshape(-1, *self.values.shape))


class Memory:
    """Arrays of one cluster. `perform(agent, op, facts)` is called after each transition; `operands` and `results`, by
    agent, pass fragments between it and the calling warp. written: who has written the outputs, if that is watched."""

    def __init__(self, layout: Layout, tensors: dict[str, np.ndarray], written: Written | None = None):
        self.layout, self.tensors, self.written = layout, tensors, written
        end = max((end for _, end in layout.ranges), default=0)
        self.shared = [np.full(max(end, layout.plan.smem_bytes), 0xFF, dtype=np.uint8) for _ in range(layout.ctas)]
        self.operands: list[Any] = [None] * layout.agents
        self.results: list[Any] = [None] * layout.agents
        self.transfers: dict[ops.Flight, Any] = {}
        self.sources: dict[ops.Flight, np.ndarray] = {}
        #: each wgmma, and of each of its warps the accumulator and, if it comes from registers, the part of a
        self.matmuls: dict[ops.Flight, tuple[ops.Wgmma | ops.WgmmaFromRegisters, list[tuple[Accumulator, Any]]]] = {}

    def perform(self, agent: ops.Agent, op: Any, facts: Any) -> None:
        """Carries out what *op* does to data."""
        kind = type(op)
        if kind in MOVES:  # later
            if getattr(op, "words", None) == ():  # the lanes' values
                op = op._replace(words=self.given(agent))  # type: ignore[arg-type]
            for flight in facts:
                self.transfers[flight] = op
        elif kind in PERFORM:
            PERFORM[kind](self, agent, op, facts)

    def note(self, of: ops.Flight | int, store: Store, inside: Any, values: np.ndarray) -> None:
        """Tells `written` which elements of an output are about to become *values*. of: the store's flight, or the warp."""
        if self.written is not None:
            self.written.note(of, store, inside, self.tensors[store.argument][inside], values)

    def move(self, flight: ops.Flight, tile: np.ndarray) -> None:
        """Moves the data of a load or store to the *tile* of a slot, or from it. The flight takes no part in others."""
        issued = self.transfers.pop(flight)
        MOVES[type(issued)](self, flight, issued, tile)

    def given(self, agent: int) -> Any:
        """The values that the warp has handed to its present operation; None if there are none."""
        values, self.operands[agent] = self.operands[agent], None
        return values

    def slot(self, cta: int, slot: int) -> np.ndarray:
        """A view of the slot's bytes as its tile."""
        buffer, _ = self.layout.slots[slot]
        start, end = self.layout.ranges[slot]
        return self.shared[cta][start:end].view(buffer.dtype.numpy).reshape(buffer.tile)


#: type of operation or step -> function (memory, agent, op, facts) that moves its data
PERFORM: dict[type, Callable[[Memory, Any, Any, Any], None]] = {}
#: type of load or store -> function (memory, flight, op, tile) that moves its data to the *tile* of a slot, or from it
MOVES: dict[type, Callable[[Memory, ops.Flight, Any, np.ndarray], None]] = {}


performs, moves = registering(PERFORM), registering(MOVES)


# ---- wgmma ------------------------------------------------------------------------------------------------------------


@performs(ops.Wgmma, ops.WgmmaFromRegisters)
def _note_wgmma(memory: Memory, agent: int, op: ops.Wgmma | ops.WgmmaFromRegisters, facts: tuple[ops.Flight]) -> None:
    memory.matmuls.setdefault(facts[0], (op, []))[1].append(memory.given(agent))


@performs(ops.WgmmaDone)
def _multiply(memory: Memory, flight: ops.Flight, op: ops.WgmmaDone, facts: None) -> None:
    issued, warps = memory.matmuls.pop(flight)
    matmul, tiles = memory.layout.matmuls[issued.matmul], {}
    for name, transposed in zip("ab", matmul.transposed, strict=True):
        if name in issued._fields:
            tile = memory.slot(flight.cta, getattr(issued, name)).astype(np.float64)
            tiles[name] = tile.T if transposed else tile
    rows = [
        own[block] if own is not None else tiles["a"][row : row + 16]
        for accumulator, own in warps
        for block, row in enumerate(accumulator.first_row)
    ]
    bytes_of_k = 32  # an instruction's
    sums = products(np.concatenate(rows), tiles["b"], bytes_of_k // matmul.b.dtype.bytes)
    for (accumulator, _), part in zip(warps, np.split(sums, len(warps), 1), strict=True):
        accumulator.add(part)


# ---- generic accesses -------------------------------------------------------------------------------------------------


def _part(slot: np.ndarray, op: ops.SlotRead | ops.SlotWrite) -> np.ndarray:
    """One of the parts into which the rows of a slot are cut, or its first extent."""
    if slot.ndim > 2 and not op.split.partition("/")[2]:
        slot = slot.reshape(-1, slot.shape[-1])
    size = slot.shape[0] // op.parts
    return slot[op.part * size : (op.part + 1) * size]


@performs(ops.SlotRead)
def _read(memory: Memory, agent: int, op: ops.SlotRead, facts: None) -> None:
    slot, at = memory.slot(agent // memory.layout.warps, op.slot), memory.given(agent)
    memory.results[agent] = _part(slot, op).copy() if at is None else slot.reshape(-1)[at]


@performs(ops.PeerRead)
def _read_peer(memory: Memory, agent: int, op: ops.PeerRead, facts: None) -> None:
    slot = memory.slot(op.mask.bit_length() - 1, op.slot)
    memory.results[agent] = slot.reshape(-1)[memory.given(agent)]


@performs(ops.TableLoad)
def _look_up(memory: Memory, agent: int, op: ops.TableLoad, facts: None) -> None:
    entries, places = memory.tensors[op.table].reshape(-1), memory.given(agent)
    if places is None:
        memory.results[agent] = entries[[*map(int, op.entries)]]
    else:  # of data
        inside = (places >= 0) & (places < len(entries))
        memory.results[agent] = np.where(inside, entries[np.where(inside, places, 0)], 0).astype(np.int32)


@performs(ops.SlotWrite)
def _write(memory: Memory, agent: int, op: ops.SlotWrite, facts: None) -> None:
    buffer, _ = memory.layout.slots[op.slot]
    slot, (at, values) = memory.slot(agent // memory.layout.warps, op.slot), memory.given(agent)
    if at is None:
        target = _part(slot, op)
        target[...] = convert(values, buffer.dtype).reshape(target.shape)
    else:
        slot.reshape(-1)[at] = convert(values, buffer.dtype)


def weights(data: np.ndarray, kind: str, dtype: DType, zeros: Any = (), scales: Any = ()) -> np.ndarray:
    """Weights of few bits in fp32, as `Fragments.widened` makes them of *dtype*. data: their integers, or bytes with two of 4
    bits; zeros, scales: of equal parts of the last dimension."""
    values = data.astype(np.float32)
    if "int4" in kind:
        blocks = (data.astype(np.int32) & 255).reshape(*data.shape[:-1], -1, 4, 2, 2)  # byte 4 q + 2 i + c
        both = np.moveaxis(np.stack([blocks & 15, blocks >> 4], -1), (-4, -3), (-2, -1))  # of 16 c + 8 half + 2 q + i
        both = both.reshape(*data.shape[:-1], -1)
        values = (both if kind.startswith("uint4") else both - 16 * (both > 7)).astype(np.float32)
    values /= 64 if kind.endswith("/64") else 1
    parts_of, count = [], max(len(zeros), len(scales), 1)
    for i, part in enumerate(np.split(values, count, -1)):
        columns = (..., slice(i * part.shape[-1], (i + 1) * part.shape[-1]))
        by = np.broadcast_to(scales[i] if scales else np.float32(1), values.shape)[columns]
        zero = np.broadcast_to(zeros[i] if zeros else np.float32(0), values.shape)[columns]
        with np.errstate(all="ignore"):
            plus = convert(-zero * by, dtype).astype(np.float64)
            parts_of.append(convert(part * convert(by, dtype).astype(np.float64) + plus, dtype).astype(np.float32))
    return np.concatenate(parts_of, -1)


def few_rows(sums: np.ndarray, left: np.ndarray, right: np.ndarray, four: bool) -> np.ndarray:
    """*sums* [16, n] plus *left* [16, k] times *right* [n, k], as `Fragments.products` adds them: of each so many elements of
    k as four lanes have at once, 16 at a time. four: whether weights have 4 bits."""
    k = np.arange(left.shape[1])
    parts = (
        k.reshape(-1, 4, 2, 2, 4, 2) if four else k.reshape(-1, 4, 1, 4, 2, 2).swapaxes(3, 4)
    )  # [, q, c, half, i, 2]
    order = parts.transpose(0, 4, 2, 3, 1, 5).reshape(len(parts), -1)
    totals = [sums.copy(), *(np.zeros_like(sums) for _ in order[1:])]
    for total, some in zip(totals, order, strict=True):
        accumulate(total, products(left[:, some], right[:, some], 16))
    return functools.reduce(np.add, totals)


def convert(values: np.ndarray, dtype: DType) -> np.ndarray:
    """*values* in the element type, rounded to nearest even; 8-bit floats saturate, as ``cvt.satfinite`` does."""
    if dtype.name.startswith("fp8"):
        largest = float(ml_dtypes.finfo(dtype.numpy).max)
        values = np.clip(np.asarray(values).astype(np.float32), -largest, largest)
    return np.asarray(values).astype(dtype.numpy)


def gather(tensor: np.ndarray, load: Load, at: tuple[int, ...]) -> np.ndarray:
    """The elements of the slot's tile, which starts at element *at* of *tensor*. Outside the tensor they are zero or NaN. In
    rows that may hold anything there, they are NaN (or the largest integer)."""
    inside, box = _clip(tensor, load.tile, at, load.steps)
    tile = np.full(load.tile, np.nan if load.outside == "nan" else 0, dtype=load.buffer.dtype.numpy)
    if load.outside == "anything":
        tile[..., max(box[-2].stop, 0) :, :] = np.iinfo(tile.dtype).max if load.buffer.dtype.integer else np.nan
    tile[box] = tensor[inside]
    return (round_to_tf32(tile) if load.buffer.dtype == tf32 else tile).reshape(load.buffer.tile)


def gather_windows(tensor: np.ndarray, load: Load, at: Ints, offsets: Ints, count: int) -> np.ndarray:
    """One element of each of *count* windows, from the window that begins at *at* on. As the engine does, it goes from window
    to window by the stride, and in each image from the lower corner to the upper corner."""
    windows = load.windows
    assert windows is not None
    size, (image, *place, channel) = load.tile[-1], at
    tile = np.full((count, size), np.nan if load.outside == "nan" else 0, dtype=load.buffer.dtype.numpy)
    for row in tile:
        pixel = [image, *(x + offset for x, offset in zip(place, offsets, strict=True))]
        if all(0 <= x < extent for x, extent in zip(pixel, tensor.shape, strict=False)):
            some = tensor[tuple(pixel)][channel : channel + size]
            row[: len(some)] = some
        for i in reversed(range(len(place))):
            place[i] += windows.stride[i]
            if place[i] < tensor.shape[1 + i] + windows.corners[1][i]:
                break
            place[i] = windows.corners[0][i]
        else:
            image += 1
    return round_to_tf32(tile) if load.buffer.dtype == tf32 else tile


def rows_inside(tensor: np.ndarray, rows: Ints, first: int, count: int) -> tuple[list[tuple[int, int]], np.ndarray]:
    """(which of the four rows lie in the matrix, their numbers, the columns in the matrix from *first* on). *first* is not
    negative."""
    columns = np.arange(first, min(first + count, tensor.shape[1]))
    return [(i, row) for i, row in enumerate(rows) if 0 <= row < tensor.shape[0]], columns


def round_to_tf32(values: np.ndarray) -> np.ndarray:
    """fp32 *values* rounded to 10 bits after the point, to nearest even; NaN and infinities as they are."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded, bits).astype(np.uint32).view(np.float32)


def scatter(
    memory: Memory, of: ops.Flight, store: Store, values: np.ndarray, at: tuple[int, ...], rows: int | None = None
) -> None:
    """Writes the slot's *values*, or the first *rows* rows, to the tile of the output that starts at element *at*; or reduces
    the tile by them. of: the store."""
    tensor = memory.tensors[store.argument]
    extents = store.part if rows is None else (*store.tile[:-2], rows, store.tile[-1])
    inside, box = _clip(tensor, extents, at)
    tile = values.reshape(store.part)[box]
    memory.note(of, store, inside, tile)
    tensor[inside] = tile if store.reduce is None else reduced(store.reduce, tensor[inside], tile)


#: Of elements that are there, and what is stored: in fp32, or 32-bit integers (of "inc" and "dec", without a sign).
_REDUCED: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "min": lambda old, new: smaller(*_but_nan(old, new)),
    "max": lambda old, new: larger(*_but_nan(old, new)),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, new: np.where(old >= new, 0, old + 1).astype(old.dtype),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype),
}


def _but_nan(old: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both, with the other one in the place of each NaN."""
    return np.where(old != old, new, old), np.where(new != new, old, new)


def reduced(how: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """*old* elements after *new* elements have been reduced into them, rounded once."""
    wide: Any = np.uint32 if how in ("inc", "dec") else old.dtype
    if old.dtype.itemsize < 4:
        wide = np.float32
    return _REDUCED[how](old.astype(wide), new.astype(wide)).astype(old.dtype)


def _clip(
    tensor: np.ndarray, tile: tuple[int, ...], at: tuple[int, ...], steps: tuple[int, ...] | None = None
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The tile at *at*, as slices of the tensor and of the tile, without elements outside the tensor. steps: how far apart two
    neighbouring elements of the tile are in the tensor, along each dimension."""
    inside, box = [], []
    for start, size, extent, step in zip(at, tile, tensor.shape, steps or (1,) * len(tile), strict=True):
        low = min(max(0, ceil_div(-start, step)), size)  # of the tile, the first inside, and the first beyond
        high = min(max(low, ceil_div(extent - start, step)), size)
        inside.append(slice(start + low * step, start + high * step, step) if high > low else slice(0, 0))
        box.append(slice(low, high))
    return tuple(inside), tuple(box)
