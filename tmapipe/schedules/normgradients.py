"""The gradients of RMSNorm and LayerNorm, with those of their weights, of rows of any length."""

from __future__ import annotations

import functools
import itertools
import math as math_
from collections.abc import Iterator
from typing import Any

import attrs

from tmapipe import math
from tmapipe.barrier import BarrierRing
from tmapipe.base import MulticastGroup
from tmapipe.base.arithmetic import DType, as_dtype, ceil_div, fp32
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import check_kind
from tmapipe.bind.tensors import new_like, signature
from tmapipe.calling import watching
from tmapipe.errors import InputError, changed, checked_eps, require
from tmapipe.kernel import KernelContext
from tmapipe.parts import ReductionScratch
from tmapipe.plan.model import WARP
from tmapipe.plan.rings import SM_RESERVED, arch_named
from tmapipe.plan.thread_layout import VectorLayout
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.fused import adding_rows
from tmapipe.schedules.rowform import BOX, CTAS, LINE, MARGIN, MOST_CLUSTER, THREADS, RowForm
from tmapipe.schedules.rows import MULTIPROCESSORS, RowKernel, Rows
from tmapipe.store_pipeline import ThreadStoreStage
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.persistent import Grouped

# ---- gradient forms --------------------------------------------------------------------------------------------------
#
# All clusters run at once, and each takes tiles of rows one after another: x and dy of them in one slot of a ring.


@attrs.frozen
class GradientForm(RowForm):
    """How a kernel takes rows whose gradients it adds up. All clusters run at the same time, each with a tile of sums.

    Args:
        slots: Of a CTA's ring, with a tile of rows each.
        in_turn: Whether all threads take a tile's rows one after another, not each warp some of them. Of rows that begin
            anywhere, a tile has such that begin alike.
    """

    each: int = 2
    slots: int = 2
    in_turn: bool = False

    def __attrs_post_init__(self) -> None:
        RowForm(self.length, 1, self.columns, 1, self.ctas, vector=self.vector, size=self.size, packed=self.packed)

    @property
    def at_once(self) -> int:
        """Rows that threads take at once."""
        return 1 if self.in_turn else self.rows

    @property
    def kind(self) -> Any:
        return self.ctas, self.in_turn, self.rows.bit_length()

    @property
    def values(self) -> int:
        return self.at_once * self.columns // (WARP * self.warps)

    @property
    def layout(self) -> VectorLayout:
        return VectorLayout((self.at_once, self.columns), self.width or self.unit, self.warps, 1)

    @property
    def clusters(self) -> int:
        """How many run at the same time."""
        share = self.share or 1
        return MULTIPROCESSORS // GPC * (GPC * share // self.ctas) if self.ctas > 1 else MULTIPROCESSORS * share


LOADS = 2  # tensors of rows
GPC = 16  # multiprocessors of a part of the GPU that a cluster lies in
KEPT, MOST_VALUES = 16, 32  # weights of a thread that stay in registers; elements of a thread
ROWS, MOST_IN_TURN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), 4
WARPS = 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16
SLOTS = 2, 3, 4
TARGET = arch_named("sm_90a")
QUARTER = TARGET.registers // 4 // WARP  # registers of a quarter of a multiprocessor, for each lane
CLOCK = 1.7e3  # cycles a microsecond
BYTES = 128 << 20  # of x, for which times are estimated
MEMORY = 97.0  # microseconds in which so many are read twice and written
LEAST_FLIGHT, MOST_FLIGHT = 54 << 10, 45 << 10  # bytes on their way: fewer lose much, more lose little


@functools.lru_cache(maxsize=1024)
def gradient_forms(
    length: int, size: int, vector: int, sums: int, dense: bool = True, width: int = 0, weight: int = 0
) -> tuple[GradientForm, ...]:
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
    require(found, "row length", length, "fits into the registers of a cluster", "split the rows")
    return tuple(sorted(found, key=found.__getitem__))


def _forms(
    length: int, size: int, vector: int, sums: int, dense: bool, most_wide: int, weight: int
) -> Iterator[GradientForm]:
    further = (ALIGNMENT - vector) // size
    widest = min(most_wide, 8, ALIGNMENT // size)
    inside = min(widest, vector // size)
    kinds = [(widest, False), (min(4, widest), False), (min(2, widest), False)]
    if dense:
        kinds += [(inside, True), (min(2, inside), True), (1, True)]
    ctas = [2**i for i in range(5)]
    sorts = [(*kind, in_turn) for kind in dict.fromkeys(kinds) for in_turn in (False, True)]
    for (width, packed, in_turn), count, warps, rows in itertools.product(sorts, ctas, WARPS, ROWS):
        far = count > 1 and (packed or length * size < 2048 * count or (rows > 1 and not in_turn))
        if far or (packed and (rows * vector % ALIGNMENT or rows == 1 or vector == ALIGNMENT)):
            continue
        if in_turn and (count == 1 or not 1 < rows <= MOST_IN_TURN):  # else, threads would hold all these rows
            continue
        whole = length if packed else length + further
        unit = max(64, 1 if packed else LINE // size)
        columns = _columns(ceil_div(whole, count), 1 if in_turn else rows, warps, width, unit)
        if columns is None or (count > 1 and ceil_div(whole, columns) < count):
            continue
        sizes = length, rows, columns, warps, count, 1, vector, size
        form = GradientForm(*sizes, width=width, packed=packed, in_turn=in_turn)
        if form.values > MOST_VALUES or (packed and not form.layout.by_rows):
            continue
        for slots in SLOTS:
            made = attrs.evolve(form, slots=slots)
            if share := resident(made, sums, weight):
                yield attrs.evolve(made, share=share)
        made = attrs.evolve(form, slots=2 if room_of(form, weight) else 1)
        if count == MOST_CLUSTER and not resident(made, sums, weight) and room_of(made, weight):
            yield attrs.evolve(made, share=1)  # with some registers spilled


def _columns(piece: int, rows: int, warps: int, width: int, unit: int) -> int | None:
    """The least number of columns that has *piece* of a row, which threads share evenly; of several boxes, whole units."""
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


def keeps(form: GradientForm) -> bool:
    """Whether a thread keeps the weights of its columns in registers: where reading them takes long, any number."""
    return form.layout.column_slots <= KEPT or (form.apart > 1 and not form.packed)


def registers_of(form: GradientForm, sums: int) -> int:
    """Of a thread, about."""
    columns, values, apart = form.layout.column_slots, form.values, form.apart > 1
    registers = 40 + (2 + sums) * values + (columns if keeps(form) else 4) + 8 * (sums - 1) + (14 if apart else 0)
    registers += columns if form.packed and not keeps(form) else 0
    slots = 0 if form.packed or form.in_turn else max(0, form.layout.row_slots - 2)
    return registers + math_.ceil(3.1 * slots) + 6 * (form.rows - 1) * form.in_turn


def resident(form: GradientForm, sums: int, weight: int) -> int:
    """How many CTAs fit on a multiprocessor, without spilling registers."""
    warps = QUARTER // (ceil_div(registers_of(form, sums), 8) * 8) * 4  # of a multiprocessor, a quarter of them in each
    return min(room_of(form, weight), warps // (form.warps + 1))


def room_of(form: GradientForm, weight: int) -> int:
    """How many CTAs a multiprocessor has threads and shared memory for."""
    threads, layout = WARP * (form.warps + 1), form.layout
    smem = form.slots * LOADS * form.slot * form.size + (form.columns + (MARGIN if form.apart > 1 else 0)) * weight
    sums = 2 * (form.rows if form.in_turn else layout.row_slots), form.columns * (layout.row_warps < form.warps)
    smem += 8 * ceil_div(max(sums), 4) * 4 * form.warps * form.ctas + 1024
    return min(CTAS, THREADS // threads, (TARGET.smem + SM_RESERVED) // (smem + SM_RESERVED))


def time_of(form: GradientForm, sums: int) -> float:
    """What a form is expected to take for `BYTES` of x (microseconds). Memory moves bytes, as long as enough are on their way;
    warps issue instructions; each cluster computes one tile after another. Fitted to 191 forms of 22 lengths on an H200."""
    layout, share, values = form.layout, form.share or 1, form.values
    turns, apart = form.rows if form.in_turn else 1, form.apart > 1 and not form.packed
    tiles = BYTES / (form.length * form.size) / form.rows / form.clusters  # of a cluster
    flight = share * form.slots * LOADS * form.rows * min(form.length / form.ctas, form.columns) * form.size
    memory = 1 + 0.4 * max(0.0, LEAST_FLIGHT / flight - 1) + 0.037 * max(0.0, flight / MOST_FLIGHT - 1)
    memory *= MEMORY * (1 + 0.041 * math_.log2(form.ctas))  # CTAs wait for the slowest of a cluster
    width, more, far = form.width or form.unit, sums - 1, form.ctas > 1
    each = 3 + (13 + 4.7 * more + 7.3 * apart) * values
    each += 10.2 * sums * layout.row_slots * (layout.row_lanes.bit_length() - 1)
    each += 4.8 * (sums + 1) * values / width + (0 if keeps(form) else 2.4 * layout.column_slots / min(4, width))
    issue = tiles * share * form.warps * turns * each / 4 / CLOCK
    exchange = (
        725 + 7.6 * form.ctas + 20.9 * form.ctas * form.warps if far else 0.0
    )  # a warp sends its sums to all CTAs
    exchange += 169 + 4.1 * form.warps if layout.row_warps > 1 and not far else 0.0
    of_value = max(11.3 + 5.7 * more + 38.7 * apart, (8.4 + 4.2 * more + 23 * apart) * form.warps / 4)
    chain = tiles * (218 + (210 + exchange) * sums + of_value * values * turns) / CLOCK
    spilled = registers_of(form, sums) > QUARTER // ceil_div(share * (form.warps + 1), 4) // 8 * 8
    many = 1 + 0.069 * max(0, share - 4)  # CTAs of few warps
    return many * (1.5 if spilled else 1.0) * math_.hypot((memory**8 + issue**8) ** (1 / 8), chain)


# ---- norm gradients --------------------------------------------------------------------------------------------------
#
# Two kernels: the first takes all rows; the second adds up the sums of the first one's clusters.

MOST_KNOWN = 64  # signatures of calls that a kernel knows


class NormBackwardRows(Rows):
    """``g = dy weight; dx = rstd (g - h mean(g h)); dweight = sum over m of dy h`` with ``h = x rstd``, of one form.

    If centered, ``h = (x - mean) rstd``, dx has ``- rstd mean(g)`` too, and ``dbias = sum over m of dy``. All clusters run at
    the same time. Each takes tiles of rows one after another, and adds up what the sums over m have of them.

    Args:
        form, stored: As of `Rows`, with several tiles for each cluster.
        eps: As of `RmsNorm` or `LayerNorm`.
        centered: Whether it is LayerNorm's.
        totals: The type of the sums over all rows.
    """

    form: GradientForm
    loaded, columns, stored, bulk, grouped = ("x", "dy"), ("weight",), ("dx",), False, True

    def __init__(
        self, form: GradientForm, eps: float = 1e-6, centered: bool = False, stored: int = ALIGNMENT, totals: Any = fp32
    ):
        super().__init__(form, stored)
        self.form, self.eps, self.centered, self.totals = form, checked_eps(self, eps), centered, totals
        self.over = "c n" if form.apart == 1 else "c b n"
        self.tiles = GridTiles(Grouped(1), form.share)
        self.ring = BarrierRing(form.slots, producer=self.load, consumer=self.work)
        for name in self.loaded:
            setattr(self, name, self._rows_in())
        self.dx: ThreadStoreStage = changed(getattr(self, "dx"), tile=(form.at_once, form.columns))  # noqa: B009
        layout, group = form.layout, MulticastGroup("n") if form.ctas > 1 else None
        several = 2 * len(self.turns) * layout.row_slots  # sums of rows that go together
        apart = layout.row_warps < form.warps  # warps that have other rows
        self.across = ReductionScratch(self.work, rows=several, columns=form.columns if apart else 1, group=group)
        how: dict[str, Any] = {"role": self.work, "vector": 4, "wide": form.apart > 1, "dtype": fp32}
        for name in self.sums:
            setattr(self, name, ThreadStoreStage(self.over, tile=(form.columns,), **how))

    @property
    def turns(self) -> tuple[int, ...]:
        """Rows of a tile that threads take one after another; 0 where they take all at once."""
        return tuple(range(self.form.rows)) if self.form.in_turn else (0,)

    @property
    def sums(self) -> tuple[str, ...]:
        """The outputs that are sums over rows."""
        return ("dweight", "dbias") if self.centered else ("dweight",)

    def count(self, k: KernelContext, tile: Tile) -> Any:
        """How many tiles of rows a cluster has, from its *tile* of sums on. *k* is as in bodies."""
        each = k.steps("dweight", "c")
        tiles = (k.extent("m" if self.form.apart == 1 else "a") + self.form.rows - 1) // self.form.rows
        return (tiles - tile.c + each - 1) // each

    def nth(self, k: KernelContext, tile: Tile, i: Any) -> Tile:
        """The *i*-th tile of rows of the cluster with this *tile* of sums. *k* is as in bodies."""
        place = tile.c + i * k.steps("dweight", "c")
        return tile.also(m=place) if self.form.apart == 1 else tile.also(a=place * self.form.rows)

    def turn(self, rows: Tile, i: int) -> Tile:
        """The *i*-th row of a tile of *rows* that are taken in turn."""
        if not self.form.in_turn:
            return rows
        return rows.also(m=rows.m * self.form.rows + i) if self.form.apart == 1 else rows.also(a=rows.a + i)

    @Rows.load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        for i in range(self.count(k, tile)):
            with k.ring.produce() as slot:
                self._load_rows(slot, self.nth(k, tile, i))

    @Rows.work.jit
    def differentiate(self, k: KernelContext, tile: Tile) -> None:
        form = self.form
        dweight = k.full("dx" if form.packed or form.in_turn else "x", 0.0, width=form.width or form.unit)
        dbias, weight = dweight, self.read_column(k, None, "weight", tile, dweight) if keeps(form) else None
        for i in range(self.count(k, tile)):
            with k.ring.consume() as slot:
                own = self.read_column(k, None, "weight", tile, dweight) if weight is None else weight
                dweight, dbias = self.one(k, tile, self.nth(k, tile, i), slot, own, (dweight, dbias))
        first = self.first(tile)
        for name, sums in zip(self.sums, (dweight, dbias), strict=False):
            values = math.column_sum(sums) if form.at_once > 1 else sums
            if form.apart == 1:
                getattr(k, name).store_from(tile.c, first, values=values)
            else:
                getattr(k, name).store_from(tile.c, tile.b, first, values=values)

    def one(
        self, k: KernelContext, tile: Tile, rows: Tile, slot: Any, weight: Any, before: tuple[Any, Any]
    ) -> tuple[Any, Any]:
        """Stores dx of a tile of *rows*.

        Args:
            k, tile: As in bodies.
            rows: As of `nth`.
            slot: With x and dy.
            weight: Of the columns.
            before: The sums over earlier rows.

        Returns:
            The sums with these rows.
        """
        length, inside, (dweight, dbias) = self.form.length, self.inside(tile), before
        sure, centers = {} if self.zeros else inside, [(0.0, 0.0) for _ in self.turns]
        if self.centered:
            terms = [self.loaded_of(slot, i, weight) for i in self.turns]
            sums: Any = math.row_sums(*(each for x, _, g in terms for each in (x, g)), **sure)
            centers = [(sums[2 * i] / length, sums[2 * i + 1] / length) for i in self.turns]
        terms = [self.off(slot, i, weight, centers[i]) for i in self.turns]
        sums = math.row_sums(*(h * each for h, _, g in terms for each in (h, g)), **(inside if self.centered else sure))
        for i in self.turns:
            rstd = math.rsqrt(sums[2 * i] / length + self.eps)
            h, dy, g = self.off(slot, i, weight, centers[i])  # again: meanwhile, the rows need no registers
            scale = sums[2 * i + 1] * rstd * rstd / length
            self.store_rows(k.dx, self.turn(rows, i), (g - h * scale) * rstd)
            dweight, dbias = dweight + dy * (h * rstd), dbias + dy
        return dweight, dbias

    def loaded_of(self, slot: Any, i: int, weight: Any) -> tuple[Any, Any, Any]:
        """x, dy and dy times *weight*, of a *slot*'s *i*-th row, or of all its rows at once."""
        x, dy = (self.taken(getattr(slot, name), i) for name in self.loaded)
        return x, dy, dy * weight

    def off(self, slot: Any, i: int, weight: Any, centers: tuple[Any, Any]) -> tuple[Any, Any, Any]:
        """As `loaded_of`, of *slot*, *i* and *weight*: x and the product without their means, which are *centers*."""
        x, dy, g = self.loaded_of(slot, i, weight)
        return (x - centers[0], dy, g - centers[1]) if self.centered else (x, dy, g)

    def taken(self, stage: Any, i: int) -> Any:
        """What lies in a stage, of the *i*-th row of a tile, or of all its rows at once."""
        form = self.form
        if not form.in_turn:
            return self.read_rows(stage)
        return stage.read(tile=(1, form.columns), at=(i, 0), width=form.width or form.unit)

    def run(self, given: dict[str, Any], others: dict[str, Any]) -> tuple[Any, ...]:
        """As in `Rows`; returns what clusters have of the sums over rows, and these sums, both in lines of whole 16 bytes."""
        form, length = self.form, self.form.length
        pitch = ceil_div(length, 4) * 4  # where TMA may begin
        parts, heights = [*self.parts(given)], list[tuple[int, ...]]()
        for part in parts:
            *classes, height, _ = part["dx"].shape
            clusters = max(1, form.clusters // math_.prod(classes))
            heights.append((min(ceil_div(height, form.rows), clusters), *classes))
        several = [math_.prod(each) for each in heights]
        made, first = new_like(given["x"], (len(self.sums), sum(several), pitch), fp32), 0
        for part, shape, some in zip(parts, heights, several, strict=True):
            own = (each[first : first + some, :length].reshape(*shape, length) for each in made)
            self(**part, **dict(zip(self.sums, own, strict=True)), **others)
            first += some
        sums = adding_rows(made.shape, *self.sums, dtype=self.totals)(made)
        return made, *(sums if self.centered else (sums,))


class RmsNormBackward(RowKernel):
    """The gradients of `RmsNorm` without a residual.

    Args:
        eps: As of the forward pass.
        totals: The type of the sums over rows.
    """

    schedule, centered = NormBackwardRows, False
    known: dict[Any, Any]  # by signature, what makes such calls again

    def __init__(self, eps: float = 1e-6, totals: DType | str = fp32):
        super().__init__()
        self.eps, self.totals = checked_eps(self, eps), as_dtype(totals)

    def __call__(self, x: Any, weight: Any, dy: Any, *, out: Any = None) -> Any:
        """The gradients of x, of the weights, and of `LayerNormBackward` of the biases.

        Args:
            x: The rows of the forward pass.
            weight: One number a column.
            dy: The gradient of y, of x's shape.
            out: dx, of x's shape; None: made, as x.

        Returns:
            (dx, dweight), or (dx, dweight, dbias).

        Raises:
            InputError: For shapes or types that do not fit.
        """
        given = x, weight, dy
        known = signature(given, out)
        again = self.known.get(known) if known else None
        made = again(given, out, {}) if again else None
        if made is None:
            with watching(x) as launches:
                made = self.made(*given, out)
            if known and launches:
                from tmapipe.gpu.launch import repeated

                if again := repeated(launches, given, out, made, parts=True):
                    self.known = {**(self.known if len(self.known) < MOST_KNOWN else {}), known: again}
        return self.results(*made)

    def made(self, x: Any, weight: Any, dy: Any, out: Any = None) -> tuple[Any, ...]:
        """What a call makes, of which it returns the `results`.

        Args:
            x, weight, dy, out: As of a call.

        Returns:
            (dx, what clusters have of the sums over rows, the sums).

        Raises:
            InputError: For shapes or types that do not fit.
        """
        check_kind("x", x)
        if 0 in x.shape[:-1]:
            raise InputError("x.shape", tuple(x.shape), "has rows, over which gradients are sums", "leave the call out")
        return tuple(self.run({"x": x, "dy": dy}, {"dx": out}, {"weight": weight}))

    @staticmethod
    def results(dx: Any, parts: Any, *sums: Any) -> tuple[Any, ...]:
        """What a call returns: *dx*, and the *sums* without columns beyond a row's. *parts* of clusters are left out."""
        length = dx.shape[-1]
        return dx, *(each if each.shape[0] == length else each[:length] for each in sums)

    def forms(
        self, length: int, size: int, vector: int, loads: int = 2, vectors: int = 0, dense: bool = True, width: int = 0
    ) -> list[RowForm]:
        """As in `RowKernel`."""
        return [*gradient_forms(length, size, vector, 1 + self.centered, dense, width, vectors)]

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> Rows:
        """As in `RowKernel`."""
        return NormBackwardRows(form, self.eps, self.centered, stored, self.totals)  # type: ignore[arg-type]


class LayerNormBackward(RmsNormBackward):
    """The gradients of `LayerNorm`.

    Args:
        eps: As of the forward pass.
        totals: The type of the sums over rows.
    """

    centered = True

    def __init__(self, eps: float = 1e-5, totals: DType | str = fp32):
        super().__init__(eps, totals)
