"""What a run can do next, between two tiles or between two inner steps: the segments of a schedule.

They are taken from recorded programs and shown to be the same in all of them, as relative operations. A tile of k steps is
``A B^(k-n) C`` with the same A, B and C for each k from some n on, or has operations of its own (k < n). So a program is
``head (tile)* tail``, with tiles of any steps. A few early tiles may have operations of their own: those of warps that hold
back the last few slots. If a role takes steps in pairs, even and odd numbers of steps have this form by themselves, with a B
of two steps.
"""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.check.future import Future
from tmapipe.check.positions import Positions
from tmapipe.check.problems import Problems
from tmapipe.check.relative import parts_of

__all__ = ["END", "After", "NotRegular", "Segment", "Segments", "Where", "segments_of"]

Where = tuple[str, int]  # ("tile", i) before the i-th tile, ("step", i) among its inner steps
Ops = list[list[Any]]  # by warp
END: Where = ("end", 0)
LAPS = 3  # around the longest ring, in the longest programs that are looked at
EMPTY = "a tile of 0 steps"


@attrs.frozen
class Segment:
    """A piece of a run: operations of all warps.

    parts: by warp, as recorded; start, end: positions of the warps before and after; to: the boundary to which it leads;
    steps: by how many numbers of steps it goes on (one, for a tile without inner loops); begins: whether a tile begins.
    """

    parts: list[list[Any]]
    start: Positions
    end: Positions
    to: Where
    name: str
    steps: int = 0
    begins: bool = False


@attrs.frozen
class Segments:
    """All segments of a schedule.

    head: from the start to the first tile; mixed: from each boundary, what can come next if the tiles of a CTA may take
    different numbers of steps; alike: the same if all take the same number, by that number (the last one stands for all larger
    ones); future: what may still come; uneven: whether tiles do take different numbers; empty: whether some take none,
    although no tensor is empty; early: tiles before boundaries recur.
    """

    head: Segment
    mixed: After
    alike: dict[int, After]
    future: Future
    uneven: bool
    empty: bool
    early: int

    def without_empty(self) -> Segments:
        """The same without tiles of no steps."""
        mixed = {where: [s for s in segments if s.name != EMPTY] for where, segments in self.mixed.items()}
        return attrs.evolve(self, mixed=mixed, alike={k: after for k, after in self.alike.items() if k})


After = dict[Where, list[Segment]]


class NotRegular(Exception):
    """The recorded programs do not have the form above; says where they first differ."""


class NotAlike(NotRegular):
    """Inner steps are not all alike, one by one or two by two."""

    def __init__(self) -> None:
        super().__init__("inner steps are not all alike")


def segments_of(problems: Problems) -> Segments:
    """The segments of a schedule.

    Raises:
        NotRegular: Its programs do not have the form above.
    """
    if len(problems.inner) > 1:
        raise NotRegular(f"inner loops over several dimensions ({', '.join(problems.inner)})")
    try:
        return _Finder(problems, problems.steps, 1).segments()
    except NotAlike:
        return _Finder(problems, problems.steps_taken(2), 2).segments()


class _Finder:
    """Finds the segments.

    few: a small number of steps; early: tiles before all are alike, a whole number of groups; around: as many tiles as go a
    few times around the rings; at_once: inner steps of a segment.
    """

    def __init__(self, problems: Problems, steps: list[int], at_once: int):
        self.problems, self.group, self.steps, self.at_once = problems, problems.group, steps, at_once
        self.few = self.steps[min(1, len(self.steps) - 1)]
        self.around = (LAPS * problems.slots + 1) * self.group
        long = problems.relative(self.around, self.few).tiles
        self.early = next(n for n in range(0, len(long), self.group) if self._alike(long, n))
        if self.early + 2 * self.group > self.around - problems.slots:
            raise NotRegular("tiles are not alike")
        self.uneven_ends: list[Positions] = []
        self.mixed: After = {}
        self.alike: dict[int, After] = {}

    def segments(self) -> Segments:
        problems, group, early = self.problems, self.group, self.early
        boundaries = early + group
        few = [(tiles, self.few) for tiles in (*range(1, boundaries + group), self.around)]
        relative = {each: problems.relative(*each) for each in [*few, *((boundaries, k) for k in self.steps)]}
        head = relative[boundaries, self.few].head
        for (tiles, k), run in relative.items():
            if run.head != head:
                raise NotRegular("what comes before the first tile depends on the problem")
            usual = relative[boundaries, k].tiles
            if any(tile != usual[self._boundary(i)] for i, tile in enumerate(run.tiles)):
                raise NotRegular(f"tiles of {k} steps are not all alike")
            if run.tail != relative[self._boundary(tiles) or boundaries, self.few].tail:
                raise NotRegular("what comes after the last tile depends on the problem")
        for i in range(boundaries):
            self._tile(i, [relative[boundaries, k].tiles[i] for k in self.steps])
            tiles = i or (0 if early else boundaries)
            if tiles:  # no tile at all is run by itself
                tail = [p.ops[p.tiles[-1] :] for p in problems.programs(tiles, self.few)]
                end = relative[tiles, self.few].starts[-1]
                ending = Segment(tail, end, end, END, "the end")
                for after in (self.mixed, *self.alike.values()):
                    after["tile", i].append(ending)
        uneven, empty = self._add_uneven([relative[boundaries, k].tiles[early] for k in self.steps])
        programs = problems.programs(boundaries, self.few)
        start = relative[boundaries, self.few].starts[0]
        begin = Segment([p.ops[: p.tiles[0]] for p in programs], start, start, ("tile", 0), "the start")
        future = Future(problems.layout, [*(run.end for run in relative.values()), *self.uneven_ends])
        return Segments(begin, self.mixed, self.alike, future, uneven, empty, early)

    def _alike(self, tiles: list[Ops], n: int) -> bool:
        return all(tile == tiles[n + (i - n) % self.group] for i, tile in enumerate(tiles) if i >= n)

    def _boundary(self, tile: int) -> int:
        """Which boundary between tiles comes before the tile of this number."""
        return tile if tile < self.early else self.early + (tile - self.early) % self.group

    def _tile(self, i: int, relative: list[Ops]) -> None:
        """Adds what can come at the *i*-th boundary. *relative*: its tile's operations, by number of steps."""
        for first in range(self.at_once):
            self._tiles_from(i, first, relative[first :: self.at_once])

    def _tiles_from(self, i: int, first: int, relative: list[Ops]) -> None:
        """The same for tiles of every `at_once`-th number of steps from the *first* on."""
        problems, steps, tiles = self.problems, self.steps[first :: self.at_once], self.early + self.group
        before, following = ("tile", i), ("tile", self._boundary(i + 1))

        def whole(k: int) -> Segment:
            run, programs = problems.relative(tiles, k), problems.programs(tiles, k)
            text = f"a tile of {k} steps" if problems.inner else "a tile"
            taken = self.steps.index(k) if problems.inner else 1
            parts = parts_of(problems.layout, programs, i)
            return Segment(parts, run.starts[i], run.starts[i + 1], following, text, taken, True)

        if not problems.inner:
            self.mixed[before] = [whole(0)]
            self.alike.setdefault(0, {})[before] = [whole(0)]
            return
        cut = _regular_from(relative)
        if cut is None:
            raise NotAlike
        n, sizes = cut
        times = len(steps) - 1 - n
        run, parts = (
            problems.relative(tiles, steps[-1]),
            parts_of(problems.layout, problems.programs(tiles, steps[-1]), i),
        )
        entered, at = [], run.starts[i].copy()
        cuts = [0] * len(parts)
        for j in range(times + 1):  # before the inner step of this number
            following_cuts = [len(p) - c - b * (times - j) for p, (b, c) in zip(parts, sizes, strict=True)]
            at.advance(i, _between(parts, cuts, following_cuts))
            cuts = following_cuts
            entered.append((cuts, at.copy()))
        self._check_many(i, steps, sizes, relative[-1])
        within, last = ("step", self.at_once * i + first), [len(part) for part in parts]

        def enter(j: int) -> Segment:
            text, taken = f"a tile of {steps[n + j]} steps, up to its end", self.steps.index(steps[n + j])
            return Segment(
                _between(parts, [0] * len(parts), entered[j][0]),
                run.starts[i],
                entered[j][1],
                within,
                text,
                taken,
                True,
            )

        text = "one more step" if self.at_once == 1 else f"{self.at_once} more steps"
        step = Segment(
            _between(parts, entered[0][0], entered[1][0]), entered[0][1], entered[1][1], within, text, self.at_once
        )
        leave = Segment(_between(parts, cuts, last), at, run.starts[i + 1], following, "the tile's end")
        self.mixed.setdefault(before, []).extend([*(whole(k) for k in steps[:n]), enter(0)])
        self.mixed[within] = [step, leave]
        long = max(n, min(problems.slots + 1, len(steps) - 1))
        for k in steps[:long]:
            self.alike.setdefault(k, {})[before] = [whole(k)]
        after = self.alike.setdefault(steps[long], {})
        after[before], after[within] = [enter(long - n)], [step, leave]

    def _check_many(self, i: int, steps: list[int], sizes: list[tuple[int, int]], relative: Ops) -> None:
        """Checks that tiles of many steps, a few times around the rings, are the same with more inner steps."""
        times = max(1, LAPS * self.problems.slots + 2 - len(steps))
        many = steps[-1] + times * (steps[-1] - steps[-2])
        found = self.problems.relative(self.early + self.group, many).tiles[i]
        for x, y, (b, c) in zip(relative, found, sizes, strict=True):
            end = len(x) - c
            if y != x[:end] + x[end - b : end] * times + x[end:]:
                raise NotAlike

    def _add_uneven(self, known: list[Ops]) -> tuple[bool, bool]:
        """Adds kinds of tiles that occur only if the tiles of a CTA take different numbers of steps.

        Returns whether they do, and whether some take none.
        """
        problems, here = self.problems, ("tile", self.early)
        kinds, uneven, empty = [*known], False, self.steps[1:2] not in ([], [1])  # what one step does is what none does
        for shapes in problems.uneven():
            programs = problems.record(shapes)
            run = problems.as_relative(programs, max(program.iterations for program in programs))
            self.uneven_ends.append(run.end)
            uneven |= any(relative != run.tiles[-1] for relative in run.tiles[self.early :])
            for i, relative in enumerate(run.tiles[self.early :], self.early):
                empty |= relative == known[0]
                if relative not in kinds:
                    kinds.append(relative)
                    parts = parts_of(problems.layout, programs, i)
                    self.mixed[here].append(
                        Segment(parts, run.starts[i], run.starts[i + 1], here, "a tile of other steps", begins=True)
                    )
        return uneven, empty


def _between(parts: list[list[Any]], first: list[int], last: list[int]) -> list[list[Any]]:
    return [part[a:b] for part, a, b in zip(parts, first, last, strict=True)]


def _regular_from(relative: list[Ops]) -> tuple[int, list[tuple[int, int]]] | None:
    """(n, by warp the lengths of B and C): from the n-th number of steps on, tiles are A B^i C.

    None if they are not, or only the last few are.
    """
    sizes = []
    for x, y in zip(relative[-2], relative[-1], strict=True):
        b = len(y) - len(x)
        same = next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), len(x)) if b else 0
        if b < 0 or y[same + b :] != x[same:]:
            return None
        sizes.append((b, len(x) - same))
    n = len(relative) - 2
    if not _one_more(relative[n], relative[n + 1], relative[n + 1], sizes):
        return None
    while n and _one_more(relative[n - 1], relative[n], relative[-1], sizes):
        n -= 1
    return (n, sizes) if len(relative) - n > 3 else None


def _one_more(fewer: Ops, more: Ops, longest: Ops, sizes: list[tuple[int, int]]) -> bool:
    """Whether *more* is *fewer* with B put in before C, for all warps."""
    for x, y, z, (b, c) in zip(fewer, more, longest, sizes, strict=True):
        end = len(z) - c
        if len(x) < c or x[len(x) - c :] != z[end:] or y != x[: len(x) - c] + z[end - b : end] + z[end:]:
            return False
    return True
