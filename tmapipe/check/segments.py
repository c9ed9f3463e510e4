"""What a run can do next, between two tiles or between two iterations of inner loops: the segments of a schedule.

They are taken from recorded programs and shown to be the same in all of them, as relative operations. A tile whose bodies
count k is ``A B^(k-n) C`` with the same A, B and C for each k from some n on, or has operations of its own (k < n). If the
bodies decide on several numbers, A, B and C have that form for the next one. So a program is ``head (tile)* tail``, with tiles
of any kinds. A few early tiles may have operations of their own: those of warps that hold back the last few slots. If a role
takes steps in pairs, even and odd numbers of steps have this form by themselves, with a B of two steps; and so by three.
"""

from __future__ import annotations

import itertools
import random

import attrs

from tmapipe.check.dividing import After, Dividing, NotAlike, Ops, Segment, Where
from tmapipe.check.future import Future
from tmapipe.check.kinds import MOST_KINDS
from tmapipe.check.positions import Positions, without_stages
from tmapipe.check.problems import Kind, NotRegular, Problems
from tmapipe.check.relative import RelativeRun

__all__ = ["END", "After", "NotRegular", "Segment", "Segments", "Where", "segments_of"]

END: Where = ("end", 0)
FEW_LAPS = 4  # where several numbers count iterations, as many of each are looked at together first
LAPS = 3  # around the longest ring, in the longest tiles that are looked at; all tiles together go two times around
SOME_TILES = 16  # at whose iterations decisions differ
MOST_PASSES = 6  # over the programs: each can show more that bodies decide on


@attrs.frozen
class Segments:
    """All segments of a schedule.

    head: from the start to the first tile; mixed: from each boundary, what can come next if the tiles of a CTA may be of
    different kinds; alike: the same if all are of one kind, where bodies decide on one number, by that number (the last one
    stands for all larger ones); future: what may still come; uneven: whether tiles are of different kinds; early: tiles
    before boundaries recur.
    """

    head: Segment
    mixed: After
    alike: dict[int, After]
    future: Future
    uneven: bool
    early: int


def segments_of(problems: Problems) -> Segments:
    """The segments of a schedule.

    Raises:
        NotRegular: Its programs do not have the form above.
    """
    if problems.layout.agents and not problems.kinds.keys:
        problems.programs(2 * problems.group, ())
    problems.vary()
    for _ in range(MOST_PASSES):
        try:
            found = _found(problems)
        except NotRegular:
            if not problems.vary():
                raise
            continue
        if not problems.vary():
            return found
    raise NotRegular("bodies decide on ever more numbers")


def _found(problems: Problems) -> Segments:
    if problems.kinds.open:
        raise NotRegular("bodies decide on " + "; ".join(problems.kinds.open))
    counts = sum(not (each.all or each.some) for each in problems.kinds.variations)
    ways = [(1, FEW_LAPS), (2, FEW_LAPS), (3, FEW_LAPS)] if counts > 1 else []
    ways += [(at_once, problems.slots + 3) for at_once in (1, 2, 3)]
    for way in ways:
        try:
            return _Finder(problems, *way).segments()
        except NotAlike as reason:
            last = reason
    raise last


class _Finder(Dividing):
    """Finds the segments.

    values: by variation, those to look at; few: a kind of small values; early: tiles before all are alike, a whole number of
    groups; around: as many tiles as go a few times around the rings; at_once: inner steps of a segment.
    """

    def __init__(self, problems: Problems, at_once: int, laps: int):
        super().__init__(problems, at_once, laps)
        self.group = problems.group
        self.kinds: list[Kind] = list(itertools.product(*self.values))
        if len(self.kinds) > MOST_KINDS:
            texts = ", ".join(each.text for each in self.variations)
            raise NotRegular(
                f"bodies decide on so many numbers ({texts}) that {len(self.kinds)} kinds of tiles would differ"
            )
        problems.largest = self.kinds[-1]
        self.few: Kind = tuple(max(0, values[min(1, len(values) - 1)]) for values in self.values)
        self.around = 2 * (problems.slots + 1) * self.group
        long = problems.relative(self.around, self.few).tiles
        self.early = next(n for n in range(0, len(long), self.group) if self._alike(long, n))
        if self.early + 2 * self.group > self.around - problems.slots:
            raise NotRegular("tiles are not alike")
        self.ends: list[Positions] = []
        self.mixed: After = {}
        self.alike: dict[int, After] = {}

    def segments(self) -> Segments:
        problems, group, early = self.problems, self.group, self.early
        self.boundaries = boundaries = early + group
        few = [(tiles, self.few) for tiles in (*range(1, boundaries + group), self.around)]
        relative = {each: problems.relative(*each) for each in [*few, *((boundaries, kind) for kind in self.kinds)]}
        for (tiles, kind), run in relative.items():
            self._check_alike(run, [kind] * tiles)
        for i in range(boundaries):
            self._tile(i)
            tiles = i or (0 if early else boundaries)
            if tiles:  # no tile at all is run by itself
                tail = [p.ops[p.tiles[-1] :] for p in problems.programs(tiles, self.few)]
                end = relative[tiles, self.few].starts[-1]
                ending = Segment(tail, relative[tiles, self.few].tail, end, end, END, "the end")
                for after in (self.mixed, *self.alike.values()):
                    after["tile", i].append(ending)
        both = zip(self.variations, self.values, self.few, strict=True)
        another = tuple(min(values[-1], few + 1) if not each.some else values[-1] for each, values, few in both)
        self._check_positions(another)
        uneven = any(each.term.per_tile for each in self.variations)
        if uneven:
            self._check_orders()
        self._check_large()
        self._check_turns()
        programs = problems.programs(boundaries, self.few)
        start = relative[boundaries, self.few].starts[0]
        head = relative[boundaries, self.few].head
        begin = Segment([p.ops[: p.tiles[0]] for p in programs], head, start, start, ("tile", 0), "the start")
        following = [segment for segments in self.mixed.values() for segment in segments]
        busy = {i for each in following for i, part in enumerate(each.parts) if len(part) > (each.to == END)}
        future = Future(problems.layout, [*(run.end for run in relative.values()), *self.ends], busy)
        return Segments(begin, self.mixed, self.alike, future, uneven, early)

    def _alike(self, tiles: list[Ops], n: int) -> bool:
        return all(tile == tiles[n + (i - n) % self.group] for i, tile in enumerate(tiles) if i >= n)

    def _boundary(self, tile: int) -> int:
        """Which boundary between tiles comes before the tile of this number."""
        return tile if tile < self.early else self.early + (tile - self.early) % self.group

    def _tile(self, i: int) -> None:
        """Adds what can come at the *i*-th boundary."""
        whole = {kind: self._whole(i, kind) for kind in self.kinds}
        before, following = ("tile", i), ("tile", self._boundary(i + 1))
        self._divide(self.mixed, i, 0, whole, (before, following), True)
        if len(self.values) <= 1:  # each number of iterations up to a lap by itself
            found: After = {}
            self._divide(found, i, 0, whole, (before, following), True, least=self.problems.slots + 1)
            for segment in found[before]:
                assert segment.kind is not None
                after = self.alike.setdefault(segment.kind[0] if segment.kind else 0, {})
                after[before], todo = [segment], [segment]
                while todo:
                    where = todo.pop().to
                    if where[0] == "step" and where not in after:
                        after[where] = found[where]
                        todo += found[where]

    def _check_alike(self, run: RelativeRun, kinds: list[Kind]) -> None:
        """Checks that a run of tiles of these kinds is what the run of each kind by itself shows."""
        for i, (tile, kind) in enumerate(zip(run.tiles, kinds, strict=True)):
            if tile != self.problems.relative(self.boundaries, kind).tiles[self._boundary(i)]:
                raise NotRegular(f"{self._text(kind)} depends on the tiles before it")
        usual = self.problems.relative(self._boundary(len(kinds)) or self.boundaries, self.few)
        if run.head != usual.head or run.tail != usual.tail:
            raise NotRegular("what comes before the first tile, or after the last one, depends on the problem")

    def _check_positions(self, another: Kind) -> None:
        """Checks that tiles of two kinds are the same wherever they begin in the rings."""
        lap = self.problems.slots * self.group
        tiles = [self.few] * (self.early + lap) + [another] * lap
        for program in self.problems.in_order(tiles, shifted=True)[0]:
            iterations = [list(map(without_stages, program.tile(i))) for i in range(program.iterations)]
            usual = len(iterations) * self.early // len(tiles)
            half = (len(iterations) + usual) // 2
            if any(iteration != tile[-1] for tile in (iterations[usual:half], iterations[half:]) for iteration in tile):
                raise NotRegular("what bodies do depends on where they are in a ring")

    def _check_orders(self) -> None:
        """Checks that tiles of each kind are the same after those of any other, for some kinds."""
        problems = self.problems
        spread = self.kinds[2 :: max(1, len(self.kinds) // 2)]
        some = list(dict.fromkeys([self.kinds[0], self.few, *spread, self.kinds[-1]]))
        order = [self.kinds[0]] * self.boundaries
        for a, kind in enumerate(some):  # each after each, and nothing twice
            order += [kind, *(each for other in some[a + 1 :] for each in (kind, other))]
        order += [self.few] * (-len(order) % self.group)
        programs, order = problems.in_order(order)
        run = problems.as_relative(programs, len(order))
        self.ends.append(run.end)
        self._check_alike(run, order)

    def _check_large(self) -> None:
        """Checks that tiles of many iterations, a few times around the rings, are made of these segments."""
        for d, variation in enumerate(self.variations):
            if variation.all or variation.some:
                continue
            every = variation.values(self.problems.slots + 3, self.at_once)
            times = max(1, LAPS * (self.problems.slots + 1) + 2 - len(every) // self.at_once)
            beyond = [value + times * self.at_once for value in every[-self.at_once :]]
            for value in (value for value in (*every, *beyond) if value not in self.values[d]):
                if not self._consists_of_segments((*self.few[:d], value, *self.few[d + 1 :])):
                    raise NotAlike

    def _check_turns(self) -> None:
        """Checks that a tile at whose iterations decisions differ is made of these segments, for some such tiles."""
        if not any(each.indices for each in self.variations):
            return
        choose = random.Random(0)
        for _ in range(SOME_TILES):
            kind: Kind = tuple(
                tuple(choose.choices(values, k=5))
                if each.indices
                else choose.randint(2, 6)
                if each.around
                else choose.choice(values)
                for each, values in zip(self.variations, self.values, strict=True)
            )
            if not self._consists_of_segments(kind):
                raise NotRegular(f"iterations of a loop depend on those before them, in {self._text(kind)}")

    def _consists_of_segments(self, kind: Kind) -> bool:
        """Whether tiles of this kind are made of these segments, at each boundary."""
        tiles = self.problems.relative(self.boundaries, kind).tiles
        return all(self._is_word(tile, i) for i, tile in enumerate(tiles))

    def _is_word(self, tile: Ops, i: int) -> bool:
        begin, end = ("tile", i), ("tile", self._boundary(i + 1))
        todo = [(begin, (0,) * len(tile))]
        seen = set(todo)
        while todo:
            where, at = todo.pop()
            for segment in self.mixed[where]:
                ends = tuple(a + len(part) for a, part in zip(at, segment.words, strict=True))
                parts = zip(tile, segment.words, at, ends, strict=True)
                if segment.to == END or any(own[a:b] != part for own, part, a, b in parts):
                    continue
                if segment.to == end and all(len(own) == b for own, b in zip(tile, ends, strict=True)):
                    return True
                if segment.to[0] == "step" and (segment.to, ends) not in seen:
                    seen.add((segment.to, ends))
                    todo.append((segment.to, ends))
        return False
