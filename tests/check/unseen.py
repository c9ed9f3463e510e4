"""Schedules whose bodies decide on what the check does not see through, on what no trace has, or on state that
outlives a tile."""

from __future__ import annotations

from typing import Any

from tests.check.deciding import STAGES, CountsItself, HeldOver, Tiles, entry, one_if, steps, take


class GroupsPending(Tiles):
    """The groups that may be pending are an operand that varies."""

    load, add = Tiles.load, Tiles.add

    def __init__(self):
        super().__init__(lambda s, k, tile: steps(k))

    @add.jit
    def total(self, k, tile):
        values = take(k)
        for _ in range(self.taken(self, k, tile)):
            values = values + take(k)
        k.isa.bulk_wait_group(steps(k) - 1, read=True)
        k.y.store(tile, values)


class LanesBySteps(Tiles):
    load, add = Tiles.load, Tiles.add

    def __init__(self):
        super().__init__(lambda s, k, tile: steps(k))

    @add.jit
    def total(self, k, tile):
        values = take(k)
        for _ in range(self.taken(self, k, tile)):
            slot = k.ring.wait()
            values = values + slot.x.read()
            k.isa.fence_proxy_async()
            k.isa.warp_sync()
            k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), slot.index, lanes=steps(k))
        k.y.store(tile, values)


class FarAway(Tiles):
    """One step of a hundred."""

    load, add = Tiles.load, Tiles.add

    def __init__(self):
        super().__init__(lambda s, k, tile: steps(k))

    @add.jit
    def total(self, k, tile):
        values = take(k)
        for step in range(self.taken(self, k, tile)):
            if step == 100:
                k.ring.wait()
            else:
                values = values + take(k)
        k.y.store(tile, values)


class ByAList(Tiles):
    """A coordinate as the index of a list."""

    load, add = Tiles.load, Tiles.add

    def __init__(self):
        numbers = [1, 2, 3, 4, 5, 6, 7, 8]
        super().__init__(
            lambda s, k, tile: numbers[tile.m],  # <- here
            lambda s, k, tile: tile.m + 1,
        )


class ByTheMultiprocessor(Tiles):
    def __init__(self):
        super().__init__(lambda s, k, tile: one_if(k.isa.smid() > 3))


def below(number: Any, most: int) -> Any:
    """*number*, which must be smaller."""
    if number >= most:
        raise ValueError(f"{number!r} is not below {most}")  # <- here
    return number


class FailsInTheTenthRow(Tiles):
    """The body itself refuses some tiles: no error of the check, since there may be none."""

    def __init__(self):
        super().__init__(lambda s, k, tile: below(tile.m, 9))


class ByAFloat(Tiles):
    def __init__(self):
        super().__init__(lambda s, k, tile: int(tile.m * 0.5 + 1.5))  # <- here


class ByTheSlot(Tiles):
    """The first slot of the ring is not released."""

    load, add = Tiles.load, Tiles.add

    def __init__(self):
        super().__init__(lambda s, k, tile: one_if(tile.m == 3))

    @add.jit
    def total(self, k, tile):
        values = take(k)
        for _ in range(self.taken(self, k, tile)):
            slot = k.ring.wait()
            values = values + slot.x.read()
            if slot.index == 0:
                k.ring.release(slot)
        k.y.store(tile, values)


class InTheHundredthRow(Tiles):
    def __init__(self):
        super().__init__(lambda s, k, tile: one_if(tile.m > 100), lambda s, k, tile: 0)


class HeldWhileTurnsDiffer(HeldOver):
    """Right, but turns depend on those before them."""

    load, add = HeldOver.load, HeldOver.add

    def __init__(self):
        super().__init__(lambda s, k, tile, i: one_if(entry(k, i) > 1), forgets=False)


class Forgotten(HeldOver):
    load, add = HeldOver.load, HeldOver.add

    def __init__(self):
        super().__init__(lambda s, k, tile, i: one_if(entry(k, i) > 1), forgets=True)


class ForgottenLate(HeldOver):
    load, add = HeldOver.load, HeldOver.add

    def __init__(self):
        super().__init__(lambda s, k, tile, i: one_if(i < 40 * tile.l), forgets=True)


class RowsOfATable(CountsItself):
    """Loads rows that entries of a table name: they may lie anywhere."""

    load, add = CountsItself.load, CountsItself.add

    @load.jit
    def fill(self, k, tile):
        for _ in range(self.given(self, k, tile) + 1):
            with k.ring.produce() as slot:
                slot.x.load(tile, m=2 * k.rows.entry(tile.m) + 1, k=0)
                slot.z.load(h=0, j=0)


class FailsAtAnEntry(CountsItself):
    """A body divides by 0 where an entry is 3."""

    load, add = CountsItself.load, CountsItself.add

    @load.jit
    def fill(self, k, tile):
        entry = k.rows.entry(tile.m)
        for _ in range(self.given(self, k, tile) + 1):
            with k.ring.produce() as slot:
                slot.x.load(tile, k=0)
                if entry > 2:
                    slot.z.load(h=0, j=8 // (entry - 3))
                else:
                    slot.z.load(h=0, j=0)


class CountsAList(CountsItself):
    load, add = CountsItself.load, CountsItself.add

    @add.jit
    def total(self, k, tile):
        values = take(k)
        seen = []
        for i in range(self.taken(self, k, tile)):  # <- here
            seen.append(i)
            slot = k.ring.wait()
            values = values + slot.x.read()
            if len(seen) != self.at:
                k.ring.release(slot)
        k.y.store(tile, values)


class CountsSomeTurns(CountsItself):
    load, add = CountsItself.load, CountsItself.add

    @add.jit
    def total(self, k, tile):
        values = take(k)
        n = 0
        for i in range(self.taken(self, k, tile)):
            if i % 2 == 0:
                n = n + 1
            slot = k.ring.wait()
            values = values + slot.x.read()
            if n != self.at:
                k.ring.release(slot)
        k.y.store(tile, values)


class CountsRounds(CountsItself):
    """Two numbers that take few values each: after eight turns they are together what they never were before."""

    load, add = CountsItself.load, CountsItself.add

    @add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        n = rounds = 0
        for _ in range(self.taken(self, k, tile)):
            with k.ring.consume() as slot:
                values = values + slot.x.read()
            n = (n + 1) % (STAGES + 1)
            rounds = (rounds + (n == 0)) % (STAGES + 1)
        if n == rounds == STAGES:
            k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), 0)
        k.y.store(tile, values)


def last_of(turns):
    """Whether two numbers are together what they first are after eight turns; the loop never comes to its end."""
    n = rounds = 0
    for i in range(turns):
        n = (n + 1) % (STAGES + 1)
        rounds = (rounds + (n == 0)) % (STAGES + 1)
        if i == turns - 1:
            break
    return n == rounds == STAGES


class CountsAndBreaks(CountsItself):
    load, add = CountsItself.load, CountsItself.add

    @add.jit
    def total(self, k, tile):
        values = take(k)
        for _ in range(self.taken(self, k, tile)):
            values = values + take(k)
        if last_of(self.taken(self, k, tile)):
            k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), 0)
        k.y.store(tile, values)


class TurnsSoFar:
    """A count of turns that is no name of the body."""

    __slots__ = ("n",)

    def __init__(self):
        self.n = 0

    def turn(self):
        self.n += 1  # <- here


class CountsInAnObject(CountsItself):
    load, add = CountsItself.load, CountsItself.add

    @add.jit
    def total(self, k, tile):
        values = take(k)
        turns = TurnsSoFar()
        for _ in range(self.taken(self, k, tile)):
            values = values + take(k)
            turns.turn()
        if turns.n == self.at:
            k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), 0)
        k.y.store(tile, values)


class CountsInAList(CountsItself):
    """The list is seen by a function alone, and the loop is in a comprehension."""

    load, add = CountsItself.load, CountsItself.add

    @add.jit
    def total(self, k, tile):
        seen = [[0]]

        def turn():
            seen[0][0] += 1
            take(k)

        values = take(k)
        [turn() for _ in range(self.taken(self, k, tile))]  # <- here
        if seen[0][0] == self.at:
            k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), 0)
        k.y.store(tile, values)


class CountsInAnIterator(CountsItself):
    load, add = CountsItself.load, CountsItself.add

    @add.jit
    def total(self, k, tile):
        values = take(k)
        turns = iter([*[False] * self.at, True] * 2)
        for _ in range(self.taken(self, k, tile)):
            values = values + take(k)
            next(turns, None)  # <- here
        if next(turns, None):
            k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), 0)
        k.y.store(tile, values)


class CountsInAFunction(CountsItself):
    load, add = CountsItself.load, CountsItself.add

    @add.jit
    def total(self, k, tile):
        values = take(k)
        n = [0]

        def turn(i):
            n[0] = n[0] + 1
            slot = k.ring.wait()
            slot.x.read()
            if n[0] != self.at:
                k.ring.release(slot)

        k.isa.loop(self.taken(self, k, tile), turn)
        k.y.store(tile, values)


_elsewhere: dict[str, Any] = {}
exec("def numbers(count): return list(range(count))", _elsewhere)


class ByAHelperElsewhere(Tiles):
    """A helper of a module in which `range` is Python's own."""

    def __init__(self):
        super().__init__(lambda s, k, tile: len(_elsewhere["numbers"](steps(k))), lambda s, k, tile: min(steps(k), 7))


UNSEEN = (
    CountsItself,
    lambda: CountsItself(100),
    CountsSomeTurns,
    CountsRounds,
    CountsAndBreaks,
    CountsInAFunction,
    GroupsPending,
    FarAway,
    ByTheMultiprocessor,
    ByTheSlot,
    InTheHundredthRow,
)

#: What a trace refuses, with what it says of it at the line that is marked, if there is a file.
NOT_TRACED = (
    (CountsAList, "`seen`, changed at .* has 0 elements where an iteration begins, and 1 where it ends"),
    (CountsInAnObject, "`.n` of an object of TurnsSoFar is set, which was made outside"),
    (CountsInAList, "an iteration of range.* outside of a `for` statement"),
    (CountsInAnIterator, r"next\(\) changes list_iterator, which was made outside"),
    (ByAHelperElsewhere, "a Python index or count of"),
    (HeldWhileTurnsDiffer, "`held` is Slot in one branch and NoneType in the other"),
    (Forgotten, "`held` is Slot in one branch and NoneType in the other"),
    (ForgottenLate, "`held` is Slot in one branch and NoneType in the other"),
    (ByAList, "a Python index or count of `tile.m`"),
    (FailsInTheTenthRow, "`raise` in a branch or loop that only the kernel decides"),
    (ByAFloat, "arithmetic of `tile.m`, which only the kernel knows, with 0.5"),
)


# ---- Python's state ---------------------------------------------------------------------------------------------------


class FlagOnContext(Tiles):
    load, add = Tiles.load, Tiles.add

    def __init__(self):
        super().__init__(lambda s, k, tile: 1)

    @add.jit
    def total(self, k, tile):
        k.seen = True
        values = take(k)
        k.y.store(tile, values)


class FlagOnSchedule(Tiles):
    load, add = Tiles.load, Tiles.add

    def __init__(self):
        super().__init__(lambda s, k, tile: 1)
        self.turn = 0

    @add.jit
    def total(self, k, tile):
        self.turn = self.turn + 1
        values = take(k)
        k.y.store(tile, values)


class SharedList(Tiles):
    """One role leaves the counts for the other."""

    def __init__(self):
        self.counts = []

        def given(s, k, tile):
            s.counts.append(steps(k))
            return s.counts[-1]

        super().__init__(given, lambda s, k, tile: s.counts[-1])


class Counter(Tiles):
    def __init__(self):
        turn = 0

        def given(s, k, tile):
            nonlocal turn
            turn += 1
            return turn % 2

        super().__init__(given)


REFUSED = (
    (FlagOnContext, "`.seen` of an object of KernelContext is set"),
    (FlagOnSchedule, "`.turn` of an object of FlagOnSchedule is set"),
    (SharedList, r"`.append\(\)` changes list"),
    (Counter, "`turn` of a function around is set"),
)
