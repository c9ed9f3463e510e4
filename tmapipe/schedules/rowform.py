"""RowForm: how rows of one length are shared out among threads, CTAs and clusters, and where rows lie in memory."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from tmapipe.base.arithmetic import ceil_div
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind.tensors import address_of, seen_as, strides_of
from tmapipe.errors import InputError
from tmapipe.plan.model import WARP
from tmapipe.plan.rings import SM_RESERVED, arch_named
from tmapipe.plan.thread_layout import VectorLayout

# ---- rowplaces -------------------------------------------------------------------------------------------------------
#
# Where the rows of a matrix lie in memory.


def loadable(x: Any) -> bool:
    """Whether a form loads a matrix where it lies: TMA starts at the last multiple of 16 bytes before a row."""
    return (x.shape[1] <= 1 or strides_of(x)[1] == 1) and begins_inside(x)


def copied(x: Any) -> Any:
    """A dense copy of a matrix."""
    return x.copy() if isinstance(x, np.ndarray) else x.clone(memory_format=sys.modules["torch"].contiguous_format)


def place_of(x: Any) -> tuple[int, int]:
    """(elements from one row of a matrix to the next, elements after the last multiple of 16 bytes where the first begins)."""
    return strides_of(x)[0] if x.shape[0] > 1 else x.shape[1], address_of(x) % ALIGNMENT // x.dtype.itemsize


def together(x: Any, together: int, start: int) -> Any:
    """The same memory with fewer, longer rows: each has *together* rows of x with all elements between them, and begins
    *start* elements earlier."""
    (*lead, height, length), (*steps, pitch, _) = x.shape, strides_of(x)
    pitch = pitch if height > 1 else length
    shape, strides = (height // together, (together - 1) * pitch + length + start), (together * pitch, 1)
    return seen_as(x, (*lead, *shape), (*steps, *strides), start)


def alignment_of(x: Any, stored: bool = False) -> int:
    """The most bytes, up to 16, of which the address and the pitch of a matrix are whole multiples; *stored*: and its rows."""
    size = x.dtype.itemsize
    pitch = strides_of(x)[0] * size if x.shape[0] > 1 else 0
    return math.gcd(ALIGNMENT, pitch, address_of(x), x.shape[1] * size if stored else 0)


def apart_of(x: Any, dim: int = -2) -> int:
    """Of how many rows along a dimension each begins differently, counted from multiples of 16 bytes."""
    return ALIGNMENT // math.gcd(ALIGNMENT, strides_of(x)[dim] * x.dtype.itemsize)


def begins_inside(x: Any) -> bool:
    """Whether the last multiple of 16 bytes before a tensor lies in the tensor's own memory, so that TMA may begin there."""
    start = address_of(x) % ALIGNMENT // x.dtype.itemsize
    return start == 0 or (not isinstance(x, np.ndarray) and x.storage_offset() >= start)


def expanded(x: Any, shape: tuple[int, ...]) -> Any:
    """A tensor broadcast to *shape*, with strides of 0 along dimensions in which it is repeated, or of one element."""
    own = (0 if n == 1 else s for n, s in zip(x.shape, strides_of(x), strict=True))
    return seen_as(x, shape, (*[0] * (len(shape) - x.ndim), *own))


def padded(x: Any, whole: bool = False) -> Any:
    """A copy of a tensor whose rows begin at multiples of 16 bytes, repeated as it was; or of the *whole* of it, dense."""
    steps, unit = strides_of(x), ALIGNMENT // x.dtype.itemsize
    kept = [n if step or whole else 1 for n, step in zip(x.shape, steps, strict=True)]
    held, last = list(kept), max((dim for dim, n in enumerate(kept) if n > 1), default=0)
    held[last] = kept[last] if whole else -(-kept[last] // unit) * unit
    some = seen_as(x, tuple(kept), tuple(step if n > 1 else 0 for n, step in zip(kept, steps, strict=True)))
    made: Any = np.zeros(held, x.dtype) if isinstance(x, np.ndarray) else x.new_zeros(held)
    made[tuple(slice(n) for n in kept)] = some
    strides = tuple(step if n > 1 else 0 for n, step in zip(kept, strides_of(made), strict=True))
    return seen_as(made, tuple(x.shape), strides)


# ---- rowform ---------------------------------------------------------------------------------------------------------
#
# RowForm: how rows of one length are shared out among threads, CTAs and clusters, and which way a model says is best.
#
# The model. A kernel that reads each row once is bound by memory, as long as enough bytes are on their way: the tiles of the
# CTAs that fit on a multiprocessor, by threads, registers and shared memory. Against that stand elements that are computed
# in vain, since threads share tiles out evenly, and threads that have too few elements or too many.


FLIGHT, FLIGHT_OF_READS = 72 << 10, 160 << 10  # bytes on their way to a multiprocessor, with which DRAM is busy
FLIGHT_OF_CLUSTERS = 108 << 10  # of rows that several CTAs share, which wait for each other
MOST_FLIGHT = 128 << 10  # beyond which they lie too far apart in DRAM
RESIDENT_WARPS = 24  # of a multiprocessor, with which its schedulers are busy
VALUES, MOST_READ = (16, 96), 112  # of a thread, at least and at most; if they are only read, a few after others
PIECE, LEAST_PIECE, FEW_CTAS = 32 << 10, 8 << 10, 8  # bytes that a CTA has of a row at most; at least, if more share it
THREADS, CTAS, SCHEDULERS = 2048, 32, 4  # of a multiprocessor; the last have a quarter of the registers each
MOST_WARPS, MOST_CLUSTER, FEW_WARPS = 16, 16, 120  # the last of a cluster: a proof of 208 takes 7 s, of 120 2.5 s
ROWS = (*range(1, 9), 12, 16, 24, 32, 48, 64)
LANES, OF_LANE, READ_OF_LANE = (2, 4, 8, 16), 64, 72  # that share a row, and elements of it that each has at most
SHORT, SHORTEST = 2048, 256  # elements of rows for which narrower vectors may be worth fewer elements in vain
WIDEST = 8  # elements that a thread has side by side
WORD, SECTOR = 4, 32  # bytes, below which reading a slot counts; that L2 takes at once
STORED = 0.25  # lost where lanes store as many bytes of a row as L2 takes at once, side by side but inside of these
HALVES, BESIDE = 0.1, 0.02  # lost by boxes of such rows, and by boxes that are wider than rows
READING = 16, 4, 35  # instructions of a thread: for each row, each doubling of the lanes that share it, and a reduction
LINE, BOX = 128, 256  # bytes, at multiples of which boxes begin; elements of the TMA engine's widest box
MARGIN = BOX  # elements more than columns, of a vector beside rows that begin anywhere: boxes stay as large
LEAST_TILE, MOST_TILE = 6 << 10, 104 << 10  # bytes; below the former, starting a CTA counts
HOT, WARM = 88, 0.15  # lines of weights that all CTAs read, below which L2 gives too few of each; lost before that
SHARED = 600  # bytes of a tile of rows that are loaded in the time in which warps that share each of them wait for each other
LARGEST_CLUSTER, UNUSUAL = 0.35, 0.05  # what 16 CTAs lose, which wait for the slowest; half or twice as many must gain
BY_PIECES = 0.3  # and weights that come piece by piece, for each row
EDGES = 180  # bytes of a row that are loaded in the time in which a branch stores its edges
EACH = 4  # tiles that a CTA takes one after another, where it loads one while it computes another
SLOTS, PERSISTENT = 4, 0.3  # of a CTA that takes tiles until none are left; what those lose, for as many bytes beside
DRAM, CONFLICT = 18, 0.7  # bytes of a multiprocessor in a cycle; what longer times of shared memory are counted as
NARROW_WARPS = 10  # with which a multiprocessor is busy, if vectors are narrow so that reads have no conflicts


@attrs.frozen
class RowForm:
    """How a kernel takes rows of `length` elements.

    Args:
        length: Of a row (elements).
        rows: That a CTA takes at once.
        columns: Of a row that a CTA takes, at least as many as it has of it.
        warps: That share them.
        ctas: Of the cluster that shares a row.
        share: CTAs on a multiprocessor.
        vector: Bytes of which all rows are whole units, so that a row begins at a multiple of them: at most 16.
        size: Bytes of an element of the rows that are loaded.
        held: Whether a row is read from its slot once. If it is only read, *ctas* are its pieces, which one CTA takes in turn.
        each: Tiles that a cluster takes one after another.
        width: Elements that a thread has side by side; None: 16 bytes of them.
        packed: Whether a tile is rows as they lie in memory, one after another, so that the first one begins at a multiple of
            16 bytes. Threads then read each row where it lies.
        pitch: Elements from one row to the next, where rows begin at no multiples of 16 bytes; 0: as many as a row has.
        start: Elements after the last such multiple where the first row begins.
        alike: Whether rows of results begin as many bytes after such a multiple, or a whole number of times as many.
        piece: Columns of a row that threads take at once, where numbers of columns come piece by piece; 0: all at once.
        ahead: Such pieces of numbers that are on their way.
        lanes: Of a warp that share a row, if a warp has several rows side by side; 0: as many as rows have vectors, up to 32.
        slots: Tiles of a CTA at once, if one CTA a multiprocessor takes tiles until none are left; 0: one, or two of *each*.
    """

    length: int
    rows: int
    columns: int
    warps: int
    ctas: int = 1
    share: int | None = None
    vector: int = ALIGNMENT
    size: int = 2
    held: bool = False
    each: int = 1
    width: int | None = None
    packed: bool = False
    pitch: int = 0
    start: int = 0
    alike: bool = True
    piece: int = 0
    ahead: int = 2
    slots: int = 0
    lanes: int = 0
    several = False  # whether a tile may be several rows that begin alike; then the CTAs of a row are no cluster

    def __attrs_post_init__(self) -> None:
        if self.length + self.further > self.ctas * self.columns:
            rule = f"has room for rows of {self.length} elements"
            raise InputError("RowForm(columns, ctas)", (self.columns, self.ctas), rule, "take more of either")
        if self.rows > 1 and self.apart > 1 and not self.several:
            raise InputError("RowForm(rows)", self.rows, "is 1 of rows that begin anywhere", "use packed=True, or 1")
        if self.piece and (
            self.columns % self.piece or (self.rows, self.each, self.held, self.packed) != (1, 1, False, False)
        ):
            rule = "divides the columns, of one row that a CTA takes, that is not held"
            raise InputError("RowForm(piece)", self.piece, rule, "leave it out")
        if self.slots and (self.each == 1 or self.share not in (None, 1)):
            rule = "is of one CTA that takes several tiles, and shares no multiprocessor"
            raise InputError("RowForm(slots)", self.slots, rule, "use share=1 and each=4")

    @property
    def depth(self) -> int:
        """Slots of rows of a CTA."""
        return self.slots or (2 if self.each > 1 or (self.held and self.ctas > 1) else 1)  # which is of pieces

    @property
    def unit(self) -> int:
        """Elements of 16 bytes: where TMA starts."""
        return ALIGNMENT // self.size

    @property
    def apart(self) -> int:
        """Rows whose beginnings are this far apart differ by multiples of 16 bytes, where they are loaded one by one."""
        return 1 if self.packed else ALIGNMENT // self.vector

    @property
    def slot(self) -> int:
        """Elements of a slot."""
        if not self.packed:
            return self.rows * self.columns
        return ceil_div((self.rows - 1) * self.length + self.columns, BOX) * BOX

    @property
    def further(self) -> int:
        """Elements that a tile may have before a row begins."""
        return 0 if self.packed else (ALIGNMENT - self.vector) // self.size

    @property
    def surely(self) -> tuple[int, int]:
        """The first, and the one after the last, of a tile's columns that are inside the row, whichever CTA's and row's."""
        last = self.length - (self.ctas - 1) * self.columns
        return (self.further, last) if self.further < last else (0, 0)

    @property
    def pieces(self) -> tuple[int, ...]:
        """Where the pieces of a CTA's columns begin."""
        return tuple(range(0, self.columns, self.piece or self.columns))

    @property
    def even(self) -> bool:
        """Whether the CTAs take whole tiles of columns."""
        return self.length == self.ctas * self.columns

    @property
    def values(self) -> int:
        """Of a thread."""
        return self.rows * self.columns // (WARP * self.warps)

    @property
    def kind(self) -> Any:
        """What forms have in common that are about as fast, where the model ranks them alike."""
        return bool(self.slots) or (self.ctas, self.each > 1 < self.ctas, self.rows.bit_length(), self.lanes > 0)

    @property
    def layout(self) -> VectorLayout:
        return VectorLayout((self.rows, self.columns), self.width or self.unit, self.warps, 1, lanes=self.lanes)

    @property
    def single(self) -> bool:
        """Whether a thread has elements of one row only."""
        return self.layout.row_slots == 1


@functools.lru_cache(maxsize=4096)
def row_form(length: int, size: int = 2, vector: int = ALIGNMENT, **how: Any) -> RowForm:
    """The form that the model says is best: the first of `row_forms`. Arguments and errors as of these."""
    return row_forms(length, size, vector, **how)[0]


def different(forms: Sequence[RowForm], most: int) -> list[RowForm]:
    """The first form of each kind, then others, *most* at most: the very first, then one of CTAs that take tiles until none
    are left. Of ten forms of 95 lengths, the first four so reach 0.997 of the fastest, 0.956 at least (H200)."""
    kinds: dict[Any, RowForm] = {}
    for form in forms:
        kinds.setdefault(form.kind, form)
    first, *others = kinds.values()
    return list(dict.fromkeys([first, *sorted(others, key=lambda form: not form.slots), *forms[:most]]))[:most]


def row_forms(
    length: int,
    size: int = 2,
    vector: int = ALIGNMENT,
    *,
    loads: int = 1,
    vectors: int = 0,
    hold: int = 0,
    dense: bool = True,
    width: int = 0,
    reads: bool = False,
) -> list[RowForm]:
    """All forms, the best one first.

    Args:
        length: Of a row (elements).
        size: Bytes of an element.
        vector: As of `RowForm`.
        loads: Tensors of rows that are loaded.
        vectors: Bytes a column of what is loaded beside them, such as weights.
        hold: Elements of a thread up to which a row is held in registers, if all of it lies in one warp or no cluster.
        dense: Whether one row follows another in memory.
        width: Elements that a thread has side by side at most, where more of a result do not lie at a multiple of their bytes.
        reads: Whether rows are only read.

    Raises:
        InputError: No form has room for such rows.
    """
    usual = _ctas(length, size, loads, vectors)
    others = (usual // 2, 2 * usual) if length * size * loads > PIECE // 2 else ()
    counts = [usual, *(n for n in others if 1 <= n <= MOST_CLUSTER)]
    found = {
        form: _cost_of_reads(form) if reads else _cost(form, loads, vectors) + UNUSUAL * (ctas != usual)
        for ctas in counts
        for form in _forms(length, size, vector, ctas, loads, vectors, hold, dense, width or WIDEST, reads)
    }
    if not found:
        most = MOST_CLUSTER * MOST_TILE // size
        raise InputError("row length", length, f"is at most {most} elements of {size} bytes", "split the rows")
    few = [form for form in found if reads or form.ctas * form.warps <= FEW_WARPS]
    return sorted(few or found, key=found.__getitem__)


def _ctas(length: int, size: int, loads: int, vectors: int) -> int:
    """How many CTAs share a row, so that pieces have few bytes."""
    ctas, column = 1, size * loads + 0.75 * max(0, vectors - size)  # bytes; what lies beside is loaded for several rows
    while ceil_div(length, ctas) * column > 1.25 * PIECE and ctas < MOST_CLUSTER:
        if ctas >= FEW_CTAS and ceil_div(length, 2 * ctas) * size * loads < LEAST_PIECE:
            break
        ctas *= 2
    return ctas


def _forms(
    length: int, size: int, vector: int, ctas: int, loads: int, vectors: int, hold: int, dense: bool, most_wide: int,
    reads: bool,
) -> Iterator[RowForm]:  # fmt: skip
    whole = length + (ALIGNMENT - vector) // size
    widest = min(most_wide, WIDEST, ALIGNMENT // size)
    widths = {widest, min(4, widest), *((2,) if widest > 2 and whole < SHORTEST else ())} if whole < SHORT else {widest}
    if _conflicts(vectors, widest, loads, size) and vector < ALIGNMENT and not reads:
        widths |= {min(widest, vector // size)}
    kinds = [(width, False) for width in sorted(widths, reverse=True)]
    if dense and ctas == 1:
        kinds += [(width, True) for width in {min(widest, vector // size), min(4, widest, vector // size)}]
    least, own = (0, READ_OF_LANE) if reads else (SECTOR * (2 if length * size % SECTOR else 1), OF_LANE)  # of lanes
    for (width, packed), warps, lanes in itertools.product(
        kinds, range(1, MOST_WARPS + 1), (0, *LANES) if ctas == 1 and whole < SHORT // 2 else (0,)
    ):
        if lanes and (width < min(4, kinds[-1][0]) or lanes * width * size < least or length > lanes * own):
            continue
        for rows in ROWS if packed or (ctas == 1 and vector == ALIGNMENT) else (1,):
            unit = max(64 if vectors else 1, 1 if packed else LINE // size)
            columns = _columns(length if packed else ceil_div(whole, ctas), rows, warps, width, unit, lanes)
            if columns is None or (packed and (rows == 1 or rows * math.gcd(vector, length * size) % ALIGNMENT)):
                continue
            tiles = ceil_div(whole, columns) if ctas > 1 else 1
            if tiles < ctas and not reads:  # a CTA of the cluster would have nothing
                continue
            how = {"size": size, "width": width, "packed": packed, "lanes": lanes}
            form = RowForm(length, rows, columns, warps, min(ctas, tiles), 1, vector, **how)
            if packed and not form.layout.by_rows:  # which would find each element's row by a division
                continue
            most = (MOST_READ if reads else VALUES[1]) if form.single else VALUES[1] // 2
            if form.slot * size > MOST_TILE or form.values > most:
                continue
            holds = (False, True) if form.values <= hold and ctas == 1 and not reads else (reads,)
            for held, each in itertools.product(holds, (1,) if reads else (1, EACH)):
                plain = vectors and (held, each, rows, packed) == (False, 1, 1, False)
                for piece in (0, WARP * warps * width) if plain and columns > 2 * WARP * warps * width else (0,):
                    made = attrs.evolve(form, held=held, each=each, piece=piece)
                    flight = FLIGHT_OF_READS if reads else FLIGHT_OF_CLUSTERS if ctas > 1 else FLIGHT
                    wanted = ceil_div(flight, _flight(made, loads))
                    most = resident(made, loads, vectors, reads)
                    if share := min(wanted, most):
                        yield _ahead(attrs.evolve(made, share=share), loads, vectors)
                    if most == 1 and each > 1 and ctas > 1 and vectors:
                        slots = (attrs.evolve(made, slots=n) for n in range(SLOTS, 1, -1))
                        yield next(form for form in slots if resident(form, loads, vectors))


def _ahead(form: RowForm, loads: int, vectors: int) -> RowForm:
    """The form with as many pieces of numbers on their way as there is room for: each takes the latency of L2."""
    if not form.piece or form.ahead >= len(form.pieces):
        return form
    more = attrs.evolve(form, ahead=form.ahead + 1)
    return _ahead(more, loads, vectors) if resident(more, loads, vectors) >= (form.share or 1) else form


def _conflicts(vectors: int, width: int, loads: int, size: int) -> float:
    """How much longer than DRAM shared memory takes, in times of what DRAM does, where numbers beside rows are read one by
    one: lanes read every *width*-th at once, which lie in few banks."""
    return max(0.0, vectors * width / LINE * DRAM / ((loads + 1) * size) - 1)


def _columns(piece: int, rows: int, warps: int, width: int, unit: int, lanes: int) -> int | None:
    """The least number of columns that has *piece* of a row, and that threads share evenly in vectors of *width*; if it
    takes several boxes, whole units, so that they begin at multiples of 128 bytes."""
    if lanes:
        own = ceil_div(piece, lanes * width)
        fits = own > 1 and rows * lanes % (WARP * warps) == 0
        candidates = [own * lanes * width] if fits else []
    elif piece <= WARP * width:  # rows that some lanes share: as many as divide a warp
        candidates = [width << i for i in range(3, 6) if width << i >= piece]
    else:
        step = WARP * width
        candidates = [(ceil_div(piece, step) + i) * step for i in range(2 * warps)]
    for columns in candidates:
        if rows * columns % (WARP * warps * width) or (columns > BOX and columns % unit):
            continue
        try:
            VectorLayout((rows, columns), width, warps, 1, lanes=lanes).check_rows()
        except InputError:
            continue
        return columns
    return None


def _flight(form: RowForm, loads: int) -> int:
    """Bytes of rows that a CTA has on their way."""
    columns = min(ceil_div(form.length, form.ctas), form.columns)
    return form.depth * loads * form.rows * columns * form.size


def resident(form: RowForm, loads: int, vectors: int, reads: bool = False) -> int:
    """How many CTAs fit on a multiprocessor; reads: as of `row_forms`."""
    target = arch_named("sm_90a")
    registers = 30 + (8 if form.packed else 0 if form.apart == 1 else 14)
    values = 3 * (form.width or form.unit) if form.piece else form.values  # of a piece, and of what is added up
    many = values * 9 // 8 if form.held or not form.single or form.lanes else values * 3 // 8
    registers += 10 + 2 * form.layout.row_slots if reads else many  # of what is only read, a few after others
    registers += max(0, values - 32) if form.apart > 1 < form.ctas and not reads else 0  # of where the row's edges are
    if vectors > form.size == 4 and form.ctas > 1:  # weights and biases beside a row of fp32
        registers = max(registers, 66)
    registers = max(registers, values + 18 if form.packed and not form.held else 0)  # read again before it is stored
    if registers > 168:
        return 0
    smem = form.depth * loads * form.slot * form.size
    margin = MARGIN if form.apart > 1 else 0
    smem += vectors * (form.ahead * (form.piece + margin) if form.piece else form.columns + margin)
    reduced, room = 32 * ceil_div(form.rows, 4) * form.warps * form.ctas, 640 if form.piece else 512
    smem += reduced + room if form.ctas > 1 else max(room, reduced + 128)  # room: of barriers, and between
    by_smem = (target.smem + SM_RESERVED) // (smem + SM_RESERVED)
    warps = target.registers // SCHEDULERS // (ceil_div(registers, 8) * 8 * WARP) * SCHEDULERS  # that have registers
    return min(CTAS, THREADS // WARP // (form.warps + 1), warps // (form.warps + 1), by_smem)


def _cost_of_reads(form: RowForm) -> float:
    """What a form loses where rows are only read, as a share of the time."""
    layout, share, (row, lanes, once) = form.layout, form.share or 1, READING
    each = form.values * (5 + (form.size == 2) + 1 / (form.width or form.unit)) + once * (1 + (layout.row_warps > 1))
    each += layout.row_slots * (row + lanes * math.log2(layout.row_lanes))
    elements, tile = form.rows * form.length, form.rows * min(form.length, form.columns) * form.size
    lost = 0.06 * (2 / form.size) ** 2 * each * WARP * form.warps * form.ctas / elements
    lost += 0.5 * max(0.0, (88 << 10) / (share * _flight(form, 1)) - 1) + 0.1 * max(0.0, (8 << 10) / tile - 1)
    lost += 0.1 * max(0.0, RESIDENT_WARPS / (share * form.warps) - 1) + 0.03 * tile / (24 << 10) * (form.ctas == 1)
    loaded = form.slot if form.packed else form.ctas * form.columns if form.apart > 1 else elements
    return lost + 0.5 * (loaded / elements - 1) + 0.03 * (form.rows > 1 and not form.packed)


def _cost(form: RowForm, loads: int, vectors: int) -> float:
    """What a form loses, as a share of the time."""
    assert form.share is not None
    flight, warps = form.share * _flight(form, loads), form.share * form.warps
    width = form.width or form.unit
    narrow = form.apart > 1 and width < form.unit and _conflicts(vectors, form.unit, loads, form.size) > 0
    wanted = FLIGHT_OF_CLUSTERS if form.ctas > 1 else FLIGHT
    lost = 0.6 * max(0.0, wanted / flight - 1) + 0.05 * max(0.0, flight / MOST_FLIGHT - 1)
    in_vain = 1.5 if form.ctas > 1 else 0.2 if form.apart == 1 else 0.8  # the slowest CTA's, or loaded where no edge is
    lost += in_vain * (form.ctas * form.columns / form.length - 1)
    lost += (0.01 if form.packed else 0.03) * (form.unit // width - 1)
    lost += CONFLICT * _conflicts(vectors, width, loads, form.size) if form.apart > 1 else 0.0
    inside, lanes = form.length * form.size % SECTOR > 0, form.layout.row_lanes  # rows begin inside of sectors
    lost += STORED * (SECTOR / (width * form.size * lanes)) ** 2 if inside and form.ctas == 1 and lanes < WARP else 0.0
    if form.ctas == form.apart == 1 < form.rows and not form.packed:
        lost += HALVES * inside + BESIDE * (form.columns > form.length)
    lost += EDGES / (form.length * form.size) if form.apart > 1 else 0.0
    if form.slots:
        return lost + PERSISTENT * vectors / (loads * form.size) + 0.002 * form.warps + 0.3 * narrow
    lost += 0.13 if form.apart > 1 and form.ctas == 1 and vectors else 0.0  # weights are read element by element
    lost += (0.2 if form.packed or form.ctas > 1 else 0.35) * max(
        0.0, (NARROW_WARPS if narrow else RESIDENT_WARPS) / warps - 1
    )
    if form.ctas > 1:  # warps that wait for numbers of all others
        lost += 0.001 * form.ctas * form.warps + (0.0 if form.piece else 0.5 * max(0.0, form.values / 64 - 1))
        lost += LARGEST_CLUSTER * (form.ctas == MOST_CLUSTER)
    lost += 0.04 * max(0.0, VALUES[0] / form.values - 1) + 0.04 * max(0.0, form.values / 48 - 1)
    if form.layout.row_warps > 1:
        lost += 0.02 + 0.004 * form.warps + (SHARED / (form.slot * form.size) if form.rows > 1 else 0.0)
    lost += 0.1 * max(0.0, 3 / form.share - 1) + 0.1 * (form.share == 1)
    lost += 0.0 if form.even and form.apart == 1 and form.rows == 1 else 0.0008 * form.slot / BOX
    if form.packed and width * form.size < WORD:
        lost += (0.0 if form.held else 0.06) + 0.004 * max(0, form.values - 32)
    if form.each == 1 and form.rows > 1 and (vectors if form.packed else not form.held):
        lost += 0.04 if form.packed else 0.06
    lost += 0.0 if form.held or form.single else 0.03  # which reads rows twice, for as many registers
    lost += 0.05 if form.each > 1 else 0.0
    if form.piece:  # from L2, for each row
        return lost + BY_PIECES + 0.16 * vectors / (loads * form.size) + 0.015 * len(form.pieces)
    alone, often = form.ctas == 1 and form.apart == 1, vectors / (form.rows * form.each * loads * form.size)
    hot = HOT * often / (form.length * max(1, vectors) / LINE)
    lost += (0.1 if alone else 0.5) * often + (max(WARM * hot, hot - 1) if alone else max(0.0, hot - 1))
    lost += 0.002 * form.columns / 256 / form.each if vectors else 0.0
    if form.each == 1:  # nothing is on its way to a CTA that computes
        lost += 0.06 * max(0.0, vectors / form.size - 2) + (0.015 * max(0, form.warps - 4) if form.rows > 1 else 0.0)
    lost += 0.03 * max(0.0, LEAST_TILE / (loads * form.rows * form.size * min(form.length, form.columns)) - 1)
    return lost
