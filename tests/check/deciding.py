"""Schedules whose bodies decide on coordinates, extents, clusters, tables and turns: right ones, and each with a slip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

import tmapipe as tp

STAGES = 2
Count = Callable[[Any, Any, Any], Any]  # (schedule, k, tile) -> slots


def put(k, tile, j=0):
    """Fills a slot."""
    with k.ring.produce() as slot:
        slot.x.load(tile, k=0)
        slot.z.load(h=0, j=j)


def take(k):
    """The values of a slot."""
    with k.ring.consume() as slot:
        values = slot.x.read()
    return values


class Tiles(tp.Schedule):
    """One slot a tile, and as many more as `given` says in the loader, and `taken` in the role that adds them up."""

    load, add = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(stages=STAGES, producer=load, consumer=add)
    x = tp.TmaLoadStage("l m k", tile=(4, 64), ring=ring)
    z = tp.TmaLoadStage("h j", tile=(4, 64), ring=ring)
    rows = tp.Table("g")
    y = tp.TmaStoreStage("l m n", tile=(4, 64), role=add, stages=1)

    def __init__(self, given: Count, taken: Count | None = None, cluster: int = 1):
        self.given, self.taken = given, taken or given
        if cluster > 1:
            self.cluster = {"m": cluster}

    @load.jit
    def fill(self, k, tile):
        put(k, tile)
        for _ in range(self.given(self, k, tile)):
            put(k, tile)

    @add.jit
    def total(self, k, tile):
        values = take(k)
        for _ in range(self.taken(self, k, tile)):
            values = values + take(k)
        k.y.store(tile, values)


class Nested(Tiles):
    """A loop over steps of k inside one over steps of j; `given` and `taken` say how many inside."""

    load, add = Tiles.load, Tiles.add

    @load.jit
    def fill(self, k, tile):
        put(k, tile)
        for j in range(k.steps("z", "j")):
            for _ in range(self.given(self, k, tile)):
                put(k, tile, j)

    @add.jit
    def total(self, k, tile):
        values = take(k)
        for _ in range(k.steps("z", "j")):
            for _ in range(self.taken(self, k, tile)):
                values = values + take(k)
        k.y.store(tile, values)


class OneAfterTheOther(Tiles):
    """A loop over steps of j, then `given` and `taken` more."""

    load, add = Tiles.load, Tiles.add

    @load.jit
    def fill(self, k, tile):
        put(k, tile)
        for j in range(k.steps("z", "j")):
            put(k, tile, j)
        for _ in range(self.given(self, k, tile)):
            put(k, tile)

    @add.jit
    def total(self, k, tile):
        values = take(k)
        for _ in range(k.steps("z", "j")):
            values = values + take(k)
        for _ in range(self.taken(self, k, tile)):
            values = values + take(k)
        k.y.store(tile, values)


class TwoPasses(Tiles):
    """As a softmax: through all steps, then through all of them again, in another way."""

    load, add = Tiles.load, Tiles.add

    @load.jit
    def fill(self, k, tile):
        put(k, tile)
        for _ in range(2):
            for _ in range(self.given(self, k, tile)):
                put(k, tile)

    @add.jit
    def total(self, k, tile):
        values = take(k)
        for _ in range(self.given(self, k, tile)):
            values = values + take(k)
        for _ in range(self.taken(self, k, tile)):
            with k.ring.consume() as slot:
                values = values * slot.x.read()
        k.y.store(tile, values)


class Diagonal(Tiles):
    """As causal attention: up to the tile of the diagonal, which is handled in another way."""

    load, add = Tiles.load, Tiles.add

    @add.jit
    def total(self, k, tile):
        values = take(k)
        for i in range(self.taken(self, k, tile)):
            with k.ring.consume() as slot:
                if i == tile.m:
                    values = values + slot.x.read() * 2
                else:
                    values = values + slot.x.read()
        k.y.store(tile, values)


Turn = Callable[[Any, Any, Any, Any], Any]  # (schedule, k, tile, turn) -> slots


class ByTurn(Tiles):
    """A loop over steps of k; `given` and `taken` say how many slots each of its turns takes."""

    load, add = Tiles.load, Tiles.add

    def __init__(self, given: Turn, taken: Turn | None = None, cluster: int = 1):
        super().__init__(given, taken, cluster)

    def turns(self, k, tile):
        return steps(k)

    @load.jit
    def fill(self, k, tile):
        put(k, tile)
        for i in range(self.turns(k, tile)):
            for _ in range(self.given(self, k, tile, i)):
                put(k, tile)

    @add.jit
    def total(self, k, tile):
        values = take(k)
        for i in range(self.turns(k, tile)):
            for _ in range(self.taken(self, k, tile, i)):
                values = values + take(k)
        k.y.store(tile, values)


class FewTurns(ByTurn):
    """As many turns as a remainder says: 0 to 2."""

    load, add = ByTurn.load, ByTurn.add

    def turns(self, k, tile):
        return tile.n % 3


class HeldOver(ByTurn):
    """The last slot that a turn has taken is held until a later turn takes one, or until the loop ends. In the broken one, a
    turn that takes none forgets it: wrong only if turns that take one and turns that take none follow each other.
    """

    load, add = ByTurn.load, ByTurn.add

    def __init__(self, given: Turn, forgets: bool):
        super().__init__(given)
        self.forgets = forgets

    @add.jit
    def total(self, k, tile):
        values = take(k)
        held = None
        for i in range(self.turns(k, tile)):
            taken = self.taken(self, k, tile, i)
            if taken == 1:
                slot = k.ring.wait()
                values = values + slot.x.read()
                if held is not None:
                    k.ring.release(held)
                held = slot
            elif self.forgets:
                held = None
        if held is not None:  # <- here
            k.ring.release(held)
        k.y.store(tile, values)


class CountsItself(Tiles):
    """Keeps a slot at the turn of this number, which it counts by itself: nothing that varies is compared."""

    load, add = Tiles.load, Tiles.add

    def __init__(self, at: int = 8):
        super().__init__(lambda s, k, tile: steps(k))
        self.at = at

    @add.jit
    def total(self, k, tile):
        values = take(k)
        n = 0
        for _ in range(self.taken(self, k, tile)):
            n = n + 1
            slot = k.ring.wait()
            values = values + slot.x.read()
            if n != self.at:
                k.ring.release(slot)
        k.y.store(tile, values)


class CountsStages(CountsItself):
    """What goes round a few values is no count: right, and proved."""

    load, add = CountsItself.load, CountsItself.add

    @add.jit
    def total(self, k, tile):
        values = take(k)
        stage = 0
        for _ in range(self.taken(self, k, tile)):
            values = values + take(k)
            stage = (stage + 1) % STAGES
        k.y.store(tile, values)


@attrs.frozen
class Case:
    """right: proved for all shapes; broken: with one slip."""

    name: str
    right: Callable[[], tp.Schedule]
    broken: Callable[[], tp.Schedule]


def case(name: str, right: Count, broken: Count, kind: type[Tiles] = Tiles, **options: Any) -> Case:
    """The loader and the other role decide alike; in the broken one the other role decides as *broken* says."""
    return Case(name, lambda: kind(right, **options), lambda: kind(right, broken, **options))


def steps(k: Any, dim: str = "k") -> Any:
    return k.steps("x" if dim in ("k", "m", "l") else "z", dim)


def extent(k: Any, dim: str) -> Any:
    return k.isa.extent("x", 2) if dim == "k" else k.isa.extent("z", 1)


def entry(k: Any, i: Any) -> Any:
    return k.isa.load_entry("rows", i, 2**31 - 1)


def one_if(condition: Any) -> int:
    if condition:
        return 1
    return 0


def _lesser(a: Any, b: Any) -> Any:
    return min(a, b)


CASES = (
    case("to the diagonal", lambda s, k, tile: tile.m + 1, lambda s, k, tile: tile.m),
    case("the diagonal by itself", lambda s, k, tile: tile.m + 1, lambda s, k, tile: tile.m, Diagonal),
    case("two for each row of tiles", lambda s, k, tile: 2 * tile.m + 2, lambda s, k, tile: 2 * tile.m + 1),
    case("a constant instead of the diagonal", lambda s, k, tile: tile.m + 1, lambda s, k, tile: 1),
    case("tiles along m", lambda s, k, tile: steps(k, "m"), lambda s, k, tile: 1),
    case("not in the first row", lambda s, k, tile: one_if(tile.m > 0), lambda s, k, tile: 1),
    case("in the first row alone", lambda s, k, tile: one_if(tile.m == 0), lambda s, k, tile: 1),
    case("from the third row on", lambda s, k, tile: one_if(tile.m > 2), lambda s, k, tile: 0),
    case("the first matrix of a batch", lambda s, k, tile: one_if(tile.l == 0), lambda s, k, tile: 1),
    case("every second column", lambda s, k, tile: one_if(tile.n % 2 == 0), lambda s, k, tile: one_if(tile.n % 2)),
    case("a window of four", lambda s, k, tile: min(tile.m + 1, 4), lambda s, k, tile: min(tile.m, 4)),
    case("rounded up, then down", lambda s, k, tile: steps(k), lambda s, k, tile: extent(k, "k") // 64),
    case("rounded down, then up", lambda s, k, tile: extent(k, "k") // 64, lambda s, k, tile: steps(k)),
    case("one more for a ragged end", lambda s, k, tile: one_if(extent(k, "k") % 64 != 0), lambda s, k, tile: 1),
    case("the lesser of two", lambda s, k, tile: _lesser(steps(k), steps(k, "j")), lambda s, k, tile: steps(k)),
    case("two inner dimensions", lambda s, k, tile: steps(k) + steps(k, "j"), lambda s, k, tile: 2 * steps(k)),
    case("one inside the other", lambda s, k, tile: steps(k), lambda s, k, tile: 1, Nested),
    case("one inside the other, one short", lambda s, k, tile: steps(k), lambda s, k, tile: steps(k) - 1, Nested),
    case("one after the other", lambda s, k, tile: steps(k), lambda s, k, tile: steps(k, "j"), OneAfterTheOther),
    case("two passes", lambda s, k, tile: steps(k), lambda s, k, tile: steps(k) - 1, TwoPasses),
    case("two passes to the diagonal", lambda s, k, tile: tile.m + 1, lambda s, k, tile: tile.m, TwoPasses),
    case("the first cluster", lambda s, k, tile: one_if(k.isa.cluster_id == 0), lambda s, k, tile: 1),
    case("the number of clusters", lambda s, k, tile: k.isa.clusters, lambda s, k, tile: 1),
    case("by rank", lambda s, k, tile: 3 * k.isa.cta_rank, lambda s, k, tile: 0, cluster=2),
    case("by rank, with steps", lambda s, k, tile: steps(k) * k.isa.cta_rank, lambda s, k, tile: 0, cluster=2),
    case("to the diagonal, in a cluster", lambda s, k, tile: tile.m + 1, lambda s, k, tile: tile.m, cluster=2),
    case("an entry of a table", lambda s, k, tile: entry(k, tile.l), lambda s, k, tile: 1),
    case("another entry of the table", lambda s, k, tile: entry(k, tile.l), lambda s, k, tile: entry(k, tile.l + 1)),
    case("between two entries", lambda s, k, tile: entry(k, tile.l + 1) - entry(k, tile.l),
         lambda s, k, tile: entry(k, tile.l + 1)),
    case("whether an entry is large", lambda s, k, tile: one_if(entry(k, tile.m) > 3), lambda s, k, tile: 1),
    case("more steps than twice the row", lambda s, k, tile: one_if(steps(k) > 2 * tile.m), lambda s, k, tile: 1),
    case("steps less twice the row", lambda s, k, tile: steps(k) - 2 * tile.m, lambda s, k, tile: steps(k) - tile.m),
    case("the row is that of the column", lambda s, k, tile: one_if(tile.m == tile.n), lambda s, k, tile: 0),
    case("in the thousandth row", lambda s, k, tile: one_if(tile.m >= 100), lambda s, k, tile: one_if(tile.m > 100)),
    case("as many turns inside", lambda s, k, tile: steps(k, "j"), lambda s, k, tile: steps(k, "j") - 1, Nested),
    case("a triangle", lambda s, k, tile, i: i, lambda s, k, tile, i: i - 1, ByTurn),
    case("a triangle to the end", lambda s, k, tile, i: steps(k) - i, lambda s, k, tile, i: steps(k), ByTurn),
    case("a triangle of few turns", lambda s, k, tile, i: i, lambda s, k, tile, i: 1, FewTurns),
    case("until twice the batch", lambda s, k, tile, i: one_if(i < 2 * tile.l), lambda s, k, tile, i: 1, ByTurn),
    case("at the turn of the row", lambda s, k, tile, i: one_if(i == tile.m),
         lambda s, k, tile, i: one_if(i == tile.m + 1), ByTurn),
    case("every fifth turn", lambda s, k, tile, i: one_if(i % 5 == 0), lambda s, k, tile, i: one_if(i % 5 == 4), ByTurn),
    case("the hundredth turn", lambda s, k, tile, i: one_if(i == 100), lambda s, k, tile, i: 0, ByTurn),
    case("an entry for each turn", lambda s, k, tile, i: entry(k, i), lambda s, k, tile, i: entry(k, i + 1), ByTurn),
    Case("a stage that is counted", CountsStages, lambda: CountsItself(2)),
    case("whether the entry of a turn is large", lambda s, k, tile, i: one_if(entry(k, i) > 1),
         lambda s, k, tile, i: 1, ByTurn),
)  # fmt: skip


class Placed(Tiles):
    """Loads from where `start` says."""

    load, add = Tiles.load, Tiles.add

    def __init__(self, start: Callable[[Any, Any], Any]):
        super().__init__(lambda s, k, tile: 1)
        self.start = start

    @load.jit
    def fill(self, k, tile):
        for _ in range(2):
            with k.ring.produce() as slot:
                slot.x.load_from(*self.start(k, tile))
                slot.z.load(h=0, j=0)


#: (name, where a tile begins, the same with a mistake): clamped tails of a tensor that may be part of a larger one
STARTS = (
    ("rows", lambda k, tile: (0, min(tile.m * 4, k.extent("m") - 4), 0),
     lambda k, tile: (0, 0, min(tile.m * 4, k.extent("m") - 4))),
    ("columns", lambda k, tile: (0, 0, min(tile.n * 64, (k.extent("k") - 64) // 8 * 8)),
     lambda k, tile: (0, 0, min(tile.n * 64, k.extent("k") - 64))),
    ("by an entry", lambda k, tile: (0, 0, 8 * entry(k, tile.m)), lambda k, tile: (0, 0, entry(k, tile.m))),
    ("by an entry of a list of ones", lambda k, tile: (0, entry(k, tile.l), 8 * (entry(k, tile.l) - 1)),
     lambda k, tile: (0, 0, entry(k, tile.l) - 1)),
    ("products", lambda k, tile: (0, 0, (8 * tile.n) * (tile.m + 1)), lambda k, tile: (0, 0, (4 * tile.n) * (tile.m + 1))),
)  # fmt: skip
