"""Forms of kernels that add up gradients over rows, of which a model says which one is best."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import attrs

from tmapipe.base.arithmetic import ceil_div
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.errors import InputError
from tmapipe.plan.model import WARP
from tmapipe.plan.rings import SM_RESERVED, arch_named
from tmapipe.plan.thread_layout import VectorLayout
from tmapipe.schedules.rowform import BOX, CTAS, LINE, MARGIN, MOST_CLUSTER, THREADS, RowForm
from tmapipe.schedules.waves import MULTIPROCESSORS, clusters_of

# ---- gradient forms --------------------------------------------------------------------------------------------------
#
# All clusters run at once, and each takes tiles of rows one after another: x and dy of them in one slot of a ring.

LOADS = 2  # tensors of rows
KEPT = 16  # weights of a thread that stay in registers
ROWS = 1, 2, 3, 4, 6, 8, 12, 16, 24, 32
WARPS = 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16
SLOTS = 2, 3, 4
MOST_VALUES = 32  # of a thread
TARGET = arch_named("sm_90a")
QUARTER = TARGET.registers // 4 // WARP  # registers of a quarter of a multiprocessor, for each lane
CLOCK = 1.7e3  # cycles a microsecond
BANDWIDTH = 4.3e6 / MULTIPROCESSORS  # bytes a microsecond and multiprocessor
BYTES = 128 << 20  # of x, for which times are estimated


@functools.lru_cache(maxsize=1024)
def gradient_forms(
    length: int, size: int, vector: int, sums: int, dense: bool = True, width: int = 0, weight: int = 0
) -> tuple[RowForm, ...]:
    """All forms, the best one first.

    Args:
        length: Of a row (elements).
        size: Bytes of an element.
        vector: As of `RowForm`.
        sums: Gradients that are sums over rows: 1 or 2.
        dense: Whether one row follows another in memory.
        width: Elements that a thread has side by side at most; 0: any number.
        weight: Bytes of a weight; 0: as many as of an element.

    Raises:
        InputError: No form has room for such rows.
    """
    found = {
        form: time_of(form, sums) for form in _forms(length, size, vector, sums, dense, width or 8, weight or size)
    }
    if not found:
        raise InputError("row length", length, "fits into the registers of a cluster", "split the rows")
    return tuple(sorted(found, key=found.__getitem__))


def _forms(
    length: int, size: int, vector: int, sums: int, dense: bool, most_wide: int, weight: int
) -> Iterator[RowForm]:
    further = (ALIGNMENT - vector) // size
    widest = min(most_wide, 8, ALIGNMENT // size)
    inside = min(widest, vector // size)
    kinds = [(widest, False), (min(4, widest), False), (min(2, widest), False)]
    if dense:
        kinds += [(inside, True), (min(2, inside), True), (1, True)]
    ctas = [2**i for i in range(5)]
    for (width, packed), count, warps, rows in itertools.product(dict.fromkeys(kinds), ctas, WARPS, ROWS):
        if count > 1 and (rows > 1 or packed or length * size < 2048 * count):
            continue
        if packed and (rows * vector % ALIGNMENT or rows == 1 or vector == ALIGNMENT):
            continue
        whole = length if packed else length + further
        unit = max(64, 1 if packed else LINE // size)
        columns = _columns(ceil_div(whole, count), rows, warps, width, unit)
        if columns is None or (count > 1 and ceil_div(whole, columns) < count):
            continue
        form = RowForm(length, rows, columns, warps, count, 1, vector, size, each=2, width=width, packed=packed)
        if form.values > MOST_VALUES or (packed and not form.layout.by_rows):
            continue
        for slots in SLOTS if count < MOST_CLUSTER else (1, *SLOTS):
            made = attrs.evolve(form, slots=slots)
            share = resident(made, sums, weight)
            if share or (count == MOST_CLUSTER and room_of(made, weight)):
                yield attrs.evolve(made, share=share or 1)


def _columns(piece: int, rows: int, warps: int, width: int, unit: int) -> int | None:
    """The least number of columns that has *piece* of a row, of which threads have the same number in vectors of *width*; if
    it takes several boxes, whole units."""
    if piece <= WARP * width:
        candidates = [width << i for i in range(1, 6) if width << i >= piece]
    else:
        first = ceil_div(piece, WARP * width)
        candidates = [(first + i) * WARP * width for i in range(warps)]
    for columns in candidates:
        if rows * columns % (WARP * warps * width) or (columns > BOX and columns % unit):
            continue
        if VectorLayout((rows, columns), width, warps, 1).regular:
            return columns
    return None


def registers_of(form: RowForm, sums: int) -> int:
    """Of a thread, about."""
    values, columns = form.values, form.layout.column_slots
    kept = columns if columns <= KEPT else 4
    return 40 + (2 + sums) * values + kept + 8 * (sums - 1) + (14 if form.apart > 1 else 0)


def resident(form: RowForm, sums: int, weight: int) -> int:
    """How many CTAs fit on a multiprocessor, without spilling registers."""
    warps = QUARTER // (ceil_div(registers_of(form, sums), 8) * 8) * 4  # of a multiprocessor, a quarter of them in each
    return min(room_of(form, weight), warps // (form.warps + 1))


def room_of(form: RowForm, weight: int) -> int:
    """How many CTAs a multiprocessor has threads and shared memory for."""
    threads, layout = WARP * (form.warps + 1), form.layout
    smem = form.slots * LOADS * form.slot * form.size + (form.columns + (MARGIN if form.apart > 1 else 0)) * weight
    width = max(2 * layout.row_slots, form.columns if layout.row_warps < form.warps else 1)
    smem += 8 * ceil_div(width, 4) * 4 * form.warps * form.ctas + 1024
    return min(CTAS, THREADS // threads, (TARGET.smem + SM_RESERVED) // (smem + SM_RESERVED))


def time_of(form: RowForm, sums: int) -> float:
    """What a form is expected to take for `BYTES` of x (microseconds)."""
    layout, share = form.layout, form.share or 1
    height = BYTES / (form.length * form.size)
    tiles = height / form.rows / clusters_of(form)  # of a cluster, one after another
    row = form.length * form.size
    flight = share * (form.slots - 0.5) * LOADS * form.rows * min(row / form.ctas, form.columns * form.size)
    memory = 3 * BYTES / MULTIPROCESSORS / BANDWIDTH * (1 + 0.5 * max(0.0, 64e3 / flight - 1))
    reductions = 2 * sums * layout.row_slots * (layout.row_lanes.bit_length() - 1)
    narrow = LOADS * form.values / ((form.width or form.unit) if not form.packed or form.width * form.size >= 4 else 1)
    each = 40 + (8 + 7 * sums + (2 if form.apart > 1 else 0)) * form.values + 2.5 * reductions + 3 * narrow
    issue = tiles * share * form.warps * each / 4 / CLOCK
    exchanges = sums * (1200 if form.ctas > 1 else 120 + 12 * form.warps if layout.row_warps > 1 else 0)
    latency = 450 + 300 * sums + exchanges + (8 + 7 * sums) * form.values
    chain = tiles * latency / CLOCK
    spilled = registers_of(form, sums) > QUARTER // ceil_div(form.warps + 1, 4)
    few = (1.5 if spilled else 1.0) + 0.04 * max(0.0, 16 / (share * form.warps) - 1)
    return few * (memory**4 + issue**4 + chain**4) ** 0.25 + 4e-3 * form.warps
