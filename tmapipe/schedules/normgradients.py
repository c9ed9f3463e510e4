"""The gradients of RMSNorm and LayerNorm, with those of their weights, of rows of any length."""

from __future__ import annotations

import functools
import math as math_
from collections.abc import Callable
from typing import Any

from tmapipe import math
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base import MulticastGroup
from tmapipe.base.arithmetic import ceil_div, fp32
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import check_kind, note_written, span
from tmapipe.bind.tensors import new_like, signature
from tmapipe.calling import again_of
from tmapipe.errors import InputError
from tmapipe.kernel import KernelContext
from tmapipe.parts.stages import ReductionScratch
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.gradientforms import KEPT, gradient_forms
from tmapipe.schedules.rowform import RowForm
from tmapipe.schedules.rows import RowKernel, Rows
from tmapipe.schedules.waves import clusters_of
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.persistent import Grouped

PART = 2048  # elements of a slot of partial sums
MOST_KNOWN = 64  # signatures of calls that a kernel knows


class NormBackwardRows(Rows):
    """``g = dy weight; dx = rstd (g - h mean(g h)); dweight = sum over m of dy h`` with ``h = x rstd``, of one form.

    If centered, ``h = (x - mean) rstd``, dx has ``- rstd mean(g)`` too, and ``dbias = sum over m of dy``. All clusters run at
    the same time. Each takes tiles of rows one after another, and adds up what the sums over m have of them.

    Args:
        form, stored: As of `Rows`, with several tiles for each cluster.
        eps: As of `RmsNorm` or `LayerNorm`.
        centered: Whether it is LayerNorm's.
    """

    loaded, columns, stored, bulk = ("x", "dy"), ("weight",), ("dx",), False
    classes = True

    def __init__(self, form: RowForm, eps: float = 1e-6, centered: bool = False, stored: int = ALIGNMENT):
        super().__init__(form, stored)
        self.eps, self.centered = eps, centered
        self.over = "c n" if form.apart == 1 else "c b n"
        self.tiles = GridTiles(Grouped(1), form.share)
        layout, group = form.layout, MulticastGroup("n") if form.ctas > 1 else None
        several = 2 * len(self.turns) * layout.row_slots  # sums of rows that go together
        apart = layout.row_warps < form.warps  # warps that have other rows
        self.across = ReductionScratch(self.work, rows=several, columns=form.columns if apart else 1, group=group)
        for name in self.sums:
            part = ThreadStoreStage(
                self.over, tile=(form.columns,), role=self.work, vector=4, wide=form.apart > 1, dtype=fp32
            )
            setattr(self, name, part)

    @property
    def turns(self) -> tuple[int, ...]:
        """Rows of a tile that threads take one after another; 0 where they take all at once."""
        return tuple(range(self.form.rows)) if self.form.in_turn else (0,)

    @property
    def keeps(self) -> bool:
        """Whether a thread keeps the weights of its columns in registers."""
        return self.form.layout.column_slots <= KEPT

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
        dbias, weight = dweight, self.read_column(k, None, "weight", tile, dweight) if self.keeps else None
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
        """x, dy and dy times *weight*, of the *i*-th row of a tile, or of all its rows at once."""
        x, dy = (self.taken(getattr(slot, name), i) for name in self.loaded)
        return x, dy, dy * weight

    def off(self, slot: Any, i: int, weight: Any, centers: tuple[Any, Any]) -> tuple[Any, Any, Any]:
        """The same, x and dy times *weight* without their means, which are *centers*."""
        x, dy, g = self.loaded_of(slot, i, weight)
        return (x - centers[0], dy, g - centers[1]) if self.centered else (x, dy, g)

    def taken(self, stage: Any, i: int) -> Any:
        """What lies in a stage, of the *i*-th row of a tile, or of all its rows at once."""
        form = self.form
        if not form.in_turn:
            return self.read_rows(stage)
        return stage.read(tile=(1, form.columns), at=(i, 0), width=form.width or form.unit)

    def run(self, given: dict[str, Any], others: dict[str, Any]) -> tuple[Any, ...]:
        """As in `Rows`; returns the sums over rows, and what clusters had of these."""
        form, length, count = self.form, self.form.length, len(self.sums)
        pitch = ceil_div(count * length, 4) * 4  # where TMA may begin
        parts, heights = [*self.parts(given)], list[tuple[int, ...]]()
        for part in parts:
            *classes, height, _ = part["dx"].shape
            clusters = max(1, clusters_of(form) // math_.prod(classes))
            heights.append((min(ceil_div(height, form.rows), clusters), *classes))
        several = [math_.prod(each) for each in heights]
        made, first = new_like(given["x"], (sum(several), pitch), fp32), 0
        for part, shape, some in zip(parts, heights, several, strict=True):
            own = made[first : first + some].reshape(*shape, pitch)
            sums = {name: own[..., i * length : (i + 1) * length] for i, name in enumerate(self.sums)}
            self(**part, **sums, **others)
            first += some
        totals = part_sums(len(made))(made)
        return *(totals[i * length : (i + 1) * length] for i in range(count)), made


class PartSums(Schedule):
    """``y[n] = sum over c of x[c, n]``, of some hundred rows of fp32 that lie in L2.

    Args:
        columns: That a CTA takes: a power of two from 32 to 256.
    """

    over = "n"
    load, work = Role(warps=1), Role(warps=4)
    tiles = GridTiles(Grouped(1))

    def __init__(self, columns: int = 32):
        rows = PART // columns
        self.ring = BarrierRing(8, producer=self.load, consumer=self.work)
        self.across = ReductionScratch(self.work, columns=columns)
        self.x = TmaLoadStage("c n", tile=(rows, columns), ring=self.ring, dtype=fp32)
        self.y = ThreadStoreStage("n", tile=(columns,), role=self.work, vector=4, dtype=fp32)

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        for c in range(k.steps("x", "c")):
            with k.ring.produce() as slot:
                slot.x.load(tile, c=c)

    @work.jit
    def add(self, k: KernelContext, tile: Tile) -> None:
        sums = k.full("x", 0.0, width=4)
        for _ in range(k.steps("x", "c")):
            with k.ring.consume() as slot:
                sums = sums + slot.x.read(width=4)
        k.y.store(tile, math.column_sum(sums))


@functools.cache
def part_sums(rows: int) -> PartSums:
    """The sums of so many rows: few rows take wide tiles."""
    return PartSums(min(256, max(32, 1 << (PART // rows).bit_length() - 1)))


def overlap(one: Any, other: Any) -> bool:
    """Whether the spans of two torch tensors have bytes in common."""
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + span(other) and second < first + span(one)


class RmsNormBackward(RowKernel):
    """The gradients of `RmsNorm` without a residual.

    Args:
        eps: As of the forward pass.
    """

    schedule, centered = NormBackwardRows, False

    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.known: dict[Any, Callable[..., tuple[Any, ...] | None]] = {}  # by signature, what makes such calls again

    def __call__(self, x: Any, weight: Any, dy: Any, *, out: Any = None) -> Any:
        """The gradients of x, of the weights, and of `LayerNormBackward` of the biases.

        Args:
            x: The rows of the forward pass.
            weight: One number a column.
            dy: The gradient of y, of x's shape.
            out: dx, of x's shape; None: made, as x.

        Returns:
            (dx, dweight), or (dx, dweight, dbias). Sums over rows are fp32.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        known = signature((x, weight, dy), out)
        again = self.known.get(known) if known else None
        found = again(x, weight, dy, out) if again else None
        if found is not None:
            return found
        check_kind("x", x)
        if 0 in x.shape[:-1]:
            raise InputError("x.shape", tuple(x.shape), "has rows, over which gradients are sums", "leave the call out")
        *results, made, launches = self.run({"x": x, "dy": dy}, {"dx": out}, {"weight": weight})
        if known and launches:
            self.remember(known, launches, (x, weight, dy), results, made)
        return tuple(results)

    def apply(
        self, rows: dict[str, Any], stored: dict[str, Any], others: dict[str, Any], more: dict[str, Any]
    ) -> tuple[Any, ...]:
        """As in `RowKernel`, and returns the launches, too."""
        if not getattr(stored["dx"], "is_cuda", False):
            return *super().apply(rows, stored, others, more), []
        from tmapipe.gpu.kernels import watched

        with watched() as launches:
            found = super().apply(rows, stored, others, more)
        return *found, launches

    def remember(self, known: Any, launches: list[Any], given: tuple[Any, ...], results: list[Any], made: Any) -> None:
        """Notes what makes a call's launches again, for calls with tensors of a signature *known*.

        Args:
            launches: As `watched` has noted them.
            given: x, weight and dy.
            results: What the call returns.
            made: What clusters had of the sums.
        """
        of_rows = {"x": 0, "weight": 1, "dy": 2, "dx": 3, "dweight": 4, "dbias": 4}
        places = [of_rows] * (len(launches) - 1) + [{"x": 4, "y": 5}]
        launch = again_of(launches, places, (*given, results[0], made, results[1]))
        if launch is None:
            return
        shape, length, count = tuple(made.shape), results[1].shape[0], len(results) - 1

        def again(x: Any, weight: Any, dy: Any, out: Any) -> tuple[Any, ...] | None:
            dx = new_like(x) if out is None else out
            if out is not None and any(overlap(out, each) for each in (x, weight, dy)):
                return None
            made, totals = new_like(x, shape, fp32), new_like(x, shape[1:], fp32)
            launch((x, weight, dy, dx, made, totals))
            if out is not None:
                note_written((out,))
            return dx, *(totals[i * length : (i + 1) * length] for i in range(count))

        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known[known] = again

    def forms(
        self, length: int, size: int, vector: int, loads: int = 2, vectors: int = 0, dense: bool = True, width: int = 0
    ) -> list[RowForm]:
        """As in `RowKernel`."""
        return [*gradient_forms(length, size, vector, 1 + self.centered, dense, width, vectors)]

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> Rows:
        """As in `RowKernel`."""
        return NormBackwardRows(form, self.eps, self.centered, stored)


class LayerNormBackward(RmsNormBackward):
    """The gradients of `LayerNorm`.

    Args:
        eps: As of the forward pass.
    """

    centered = True

    def __init__(self, eps: float = 1e-5):
        super().__init__(eps)
