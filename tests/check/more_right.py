"""Right programs as people write them: rows, sums of parts, held rings, tables, windows, orders of tiles, clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tmapipe as tp
from tests.check.deciding import Tiles, entry, one_if, put, steps, take
from tests.check.test_endless import Bisection, Turns
from tests.check.test_filled import Narrowed
from tests.check.test_held_rings import AtTheSecondColumn, Doubled, InTeams, Ones
from tests.check.test_problems import OfOneMatrix, PartsOfSums
from tests.check.test_right_programs import Blocks, InTheFirstColumn, LoopsOfLoops, TwoRowsAStep, nested

S = tp.schedules
ADD: dict[str, Any] = {"dtype": "fp32", "reduce": "add"}


class Rows(tp.Schedule):
    """Each tile of x is read, and `store` stores what it makes of it."""

    relations = (tp.Dim("n", at_most=64),)
    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring, dtype="fp32")
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work, dtype="fp32")

    def __init__(self, store: Callable[..., None] | None = None, tiles: Any = None, **cluster: int):
        self.store = store or (lambda k, tile, v: k.y.store(tile, v))
        self.tiles, self.cluster = tiles or tp.tiles.PersistentTiles(), cluster

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def compute(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        self.store(k, tile, values)


class Long(Rows):
    """Rows of any length, in tiles."""

    load, work = Rows.load, Rows.work
    relations = ()


class SumsOfRows(Long):
    """Tiles of a row are added to one number."""

    load, work = Rows.load, Rows.work
    over = "m n"
    y = tp.TmaStoreStage("m", tile=(4,), role=Rows.work, **ADD)

    def __init__(self):
        super().__init__(lambda k, tile, v: k.y.store(tile, tp.math.row_sum(v)))


class SumsOfColumns(Long):
    load, work = Rows.load, Rows.work
    over = "m n"
    scratch = tp.ReductionScratch(Rows.work, columns=64)
    y = tp.TmaStoreStage("n", tile=(64,), role=Rows.work, **ADD)

    def __init__(self):
        super().__init__(lambda k, tile, v: k.y.store(tile, tp.math.column_sum(v)))


class TwoOutputs(Rows):
    load, work = Rows.load, Rows.work
    top = tp.TmaStoreStage("m", tile=(4,), role=Rows.work, dtype="fp32")


class Halo(Long):
    """y[m] = x[m - 1] + x[m + 1]."""

    load, work = Rows.load, Rows.work

    @load.jit
    def both(self, k, tile):
        for by in (-1, 1):
            with k.ring.produce() as slot:
                slot.x.load_from(tile.m * 4 + by, tile.n * 64)

    @work.jit
    def compute(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        with k.ring.consume() as slot:
            k.y.store(tile, values + slot.x.read())


class Gathered(Long):
    """Tiles of rows as a table says."""

    load, work = Rows.load, Rows.work
    index = tp.Table("g")

    @load.jit
    def by_table(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile, m=k.index.entry(tile.m))


class Vector(tp.Schedule):
    """y = x + 1, of vectors without descriptors."""

    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.BulkLoadStage("n", tile=(256,), ring=ring, dtype="fp32")
    y = tp.BulkStoreStage("n", tile=(256,), role=work, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values + 1)


class ByThreads(tp.Schedule):
    """A copy by threads."""

    load, work = tp.Role(warps=2), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.CpAsyncLoadStage("m n", tile=(4, 64), ring=ring, vector=4, dtype="fp32")
    y = tp.ThreadStoreStage("m n", tile=(4, 64), role=work, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values)


class Attentive(Tiles):
    """Blocks from the first one of a window to the diagonal, of which the last is handled apart."""

    load, add = Tiles.load, Tiles.add

    def __init__(self, window: int):
        super().__init__(lambda s, k, tile: 0)
        self.window = window

    @load.jit
    def blocks(self, k, tile):
        for _ in range(min(tile.m, self.window)):
            put(k, tile)
        put(k, tile)

    @add.jit
    def sums(self, k, tile):
        values = k.full("y", 0.0)
        for _ in range(min(tile.m, self.window)):
            values = values + take(k)
        k.y.store(tile, values + 2 * take(k))


class ScaledParts(S.SplitK):
    """The first part is twice what it is."""

    @S.Gemm.math.jit
    def multiply(self, k, tile):
        with self.accumulate(k) as sums:
            for _ in range(self.tile_slots(k, tile)):
                with k.ring.consume() as slot:
                    sums.add(slot)
        if tile.s == 0:
            k.d.store(tile, sums.accumulators[0], lambda acc: 2 * acc)
        else:
            k.d.store(tile, sums.accumulators[0])


class OneMoreSlot(S.SplitK):
    """The first part takes a slot more, in both roles."""

    @S.Gemm.load.jit
    def fill(self, k, tile):
        if tile.s == 0:
            with k.ring.produce() as slot:
                slot.a.load(tile, k=0)
                slot.b.load(tile, k=0)
        super().fill(k, tile)

    @S.Gemm.math.jit
    def multiply(self, k, tile):
        if tile.s == 0:
            with k.ring.consume():
                pass
        super().multiply(k, tile)


def counted(condition: Callable[[Any, Any], Any]) -> tp.Schedule:
    """A slot more wherever the condition holds, in both roles."""
    return Tiles(lambda s, k, tile: one_if(condition(k, tile)))


def whole(k, tile, v):
    k.y.store(tile, v / tp.math.row_sum(v, inside=k.extent("n")))


def with_top(k, tile, v):
    k.y.store(tile, v)
    k.top.store(tile, tp.math.row_max(v))


def by_parity(k, tile, v):
    if tile.m % 2 == 0:
        k.y.store(tile, v)
    else:
        k.y.store(tile, -v)


MORE: dict[str, Callable[[], tp.Schedule]] = {
    "whole rows": lambda: Rows(whole),
    "blocks of rows": lambda: Long(lambda k, tile, v: k.y.store(tile, v - tp.math.row_max(v))),
    "two outputs": lambda: TwoOutputs(with_top),
    "by parity of the row": lambda: Long(by_parity),
    "sums of rows": SumsOfRows,
    "sums of columns": SumsOfColumns,
    "a halo": Halo,
    "tiles by a table": Gathered,
    "a vector": Vector,
    "copies by threads": ByThreads,
    "fetched tiles, snake": lambda: Long(tiles=tp.tiles.DynamicTiles(tp.tiles.Snake(4))),
    "by GPC": lambda: Long(tiles=tp.tiles.GpcTiles(tp.tiles.Snake(4))),
    "hilbert": lambda: Long(tiles=tp.tiles.PersistentTiles(tp.tiles.Hilbert(4))),
    "a grid, four CTAs": lambda: Long(tiles=tp.tiles.GridTiles(tp.tiles.Grouped(1), ctas=4)),
    "a grid, three tiles each": lambda: Long(tiles=tp.tiles.GridTiles(tp.tiles.Grouped(1), each=3)),
    "a cluster along m": lambda: Long(m=2),
    "a cluster along both, fetched": lambda: Long(tiles=tp.tiles.DynamicTiles(), m=2, n=2),
    "held, by threads": Doubled,
    "held, read by wgmma": Ones,
    "held, read by wgmma in one column": AtTheSecondColumn,
    "parts that threads write": Narrowed,
    "teams that write every other slot": InTeams,
    "x x^T, four slots": lambda: nested(4),
    "x x^T, seven slots": lambda: nested(7),
    "x x^T, twelve slots": lambda: nested(12),
    "x x^T, and one more a step": lambda: nested(5, 1, 1),
    "parts of a sum, the first apart": lambda: PartsOfSums(lambda tile: tile.s == 0),
    "parts of a sum, every second apart": lambda: PartsOfSums(lambda tile: tile.s % 2 == 0),
    "parts of one sum": lambda: OfOneMatrix(lambda tile: tile.s == 1),
    "split k, the first part scaled": lambda: ScaledParts(2, (64, 64, 64), (1, 1), 3),
    "split k, the first part scaled, fetched": lambda: ScaledParts(
        3, (64, 64, 64), (2, 1), 3, tiles=tp.tiles.DynamicTiles()
    ),
    "split k, a slot more in the first part": lambda: OneMoreSlot(2, (64, 64, 64), (1, 1), 3),
    "stored in the first column": InTheFirstColumn,
    "blocks by a table": Blocks,
    "three passes in one loop": LoopsOfLoops,
    "rows of scales, two a step": TwoRowsAStep,
    "rows of scales, counted by the other role": lambda: TwoRowsAStep(1, True),
    "37 steps": lambda: counted(lambda k, tile: steps(k) == 37),
    "an extent beyond 2,000,000": lambda: counted(lambda k, tile: k.isa.extent("x", 2) > 2_000_000),
    "an entry of the column": lambda: counted(lambda k, tile: entry(k, tile.n) >= 2),
    "a window of blocks": lambda: Attentive(3),
    "a window of many blocks": lambda: Attentive(100),
    "while, by twos": lambda: Turns(lambda k, tile, i: i <= tile.m, lambda tile, i: i + 2),
    "while, until an entry": lambda: Turns(lambda k, tile, i: k.rows.entry(i) >= 0, lambda tile, i: i + 1),
    "a bisection": Bisection,
}
