"""How a tile of any kind divides into segments: A B^(v - n) C for one number that bodies decide on, each of them for the next.

If several loops after each other are counted by one number, each has its own B.
"""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.check.kinds import Variation
from tmapipe.check.positions import Positions, iteration_of
from tmapipe.check.problems import Kind, NotRegular, Problems
from tmapipe.check.relative import parts_of
from tmapipe.check.sections import executed, numbered
from tmapipe.machine.decisions import Loop, sources

__all__ = ["After", "Dividing", "NotAlike", "Ops", "Piece", "Segment", "Where", "regular_from"]

Where = tuple[str, int]  # ("tile", i) before the i-th tile, ("step", i) between iterations of one of its loops
Ops = list[list[Any]]  # by warp


@attrs.frozen
class Segment:
    """A piece of a run: operations of all warps.

    parts: by warp, as recorded; words: the same as relative operations; start, end: positions of the warps before and after;
    to: the boundary to which it leads; kind: of the tile that begins, if one does.
    """

    parts: list[list[Any]]
    words: Ops
    start: Positions
    end: Positions
    to: Where
    name: str
    kind: Kind | None = None


After = dict[Where, list[Segment]]


class NotAlike(NotRegular):
    """Iterations of inner loops are not all alike, one by one, two by two or by three."""

    def __init__(self) -> None:
        super().__init__("inner steps are not all alike")


@attrs.frozen
class Piece:
    """Part of a tile of one kind: by warp, from where to where in its operations. shown: the kind of tile that begins with it,
    for texts."""

    kind: Kind
    first: list[int]
    last: list[int]
    shown: Kind


Portion = dict[tuple[int, ...], Piece]  # by the values of what is still to be told apart
Sizes = list[tuple[int, int]]  # by warp, the lengths of B and C
Cut = dict[tuple[int, ...], tuple[dict[int, Piece], Sizes]]  # the pieces by value, and their sizes


class Dividing:
    """Divides tiles.

    values: by variation, those to look at; at_once: inner steps of a segment; boundaries: tiles of the recorded problems;
    within: boundaries between iterations so far.

    Args:
        laps: How many numbers of iterations show how a count goes on.
    """

    def __init__(self, problems: Problems, at_once: int, laps: int):
        self.problems, self.at_once = problems, at_once
        self.variations: tuple[Variation, ...] = problems.kinds.variations
        self.values = [each.values(laps, at_once) for each in self.variations]
        self.boundaries = 0
        self.within = 0

    def _text(self, kind: Kind) -> str:
        if not kind:
            return "a tile"
        if len(kind) == 1 and self.problems.is_steps(self.variations[0].key):
            return f"a tile of {kind[0]} steps"
        return f"a tile with {self.problems.kinds.text(kind)}"

    # ---- tiles --------------------------------------------------------------------------------------------------------

    def _whole(self, i: int, kind: Kind) -> Piece:
        lengths = [len(part) for part in self._parts(i, kind)]
        return Piece(kind, [0] * len(lengths), lengths, kind)

    def _parts(self, i: int, kind: Kind) -> list[list[Any]]:
        return parts_of(self.problems.layout, self.problems.programs(self.boundaries, kind), i)

    def _words(self, i: int, piece: Piece) -> Ops:
        """The relative operations of a piece."""
        tile = self.problems.relative(self.boundaries, piece.kind).tiles[i]
        return [part[a:b] for part, a, b in zip(tile, piece.first, piece.last, strict=True)]

    def _divide(
        self, into: After, i: int, d: int, portion: Portion, ends: tuple[Where, Where], begins: bool, least: int = 0
    ) -> None:
        """Adds the segments of a portion of tile *i*, which has a piece for all values of the variations from the *d*-th on.

        Args:
            into: Where to add them.
            ends: The boundaries before and after it.
            begins: Whether the tile begins with it.
            least: As many values are told apart at least.
        """
        if d == len(self.values):
            (piece,) = portion.values()
            into.setdefault(ends[0], []).append(self._segment(i, piece, ends, begins))
            return
        values, variation = self.values[d], self.variations[d]
        rests = list(dict.fromkeys(key[1:] for key in portion))

        def only(value: int) -> None:
            self._divide(into, i, d + 1, {rest: portion[(value, *rest)] for rest in rests}, ends, begins)

        if variation.all or variation.some:
            for value in values:
                only(value)
            return
        for own in (values[first :: self.at_once] for first in range(self.at_once)):
            sections = self._sections(i, variation, [{v: portion[(v, *rest)] for v in own} for rest in rests])
            cuts = [[self._cut(i, variation, list(pieces.values())) for pieces in each] for each in sections]
            n = max(start for each in cuts for start, _ in each)
            n = max(n, min(least, len(own) - 1))
            for value in own[:n]:
                only(value)
            before = ends[0]
            for number, (pieces, sizes) in enumerate(zip(sections, cuts, strict=True)):
                last = number == len(sections) - 1
                after = ends[1] if last else self._between()
                both = {rest: (each, of) for rest, each, (_, of) in zip(rests, pieces, sizes, strict=True)}
                self._repeat(into, i, d, both, own, n, (before, after), begins and number == 0)
                before = after

    def _between(self) -> Where:
        """A new boundary within tiles."""
        self.within += 1
        return "step", self.within - 1

    def _repeat(
        self, into: After, i: int, d: int, both: Cut, own: list[int], n: int, ends: tuple[Where, Where], begins: bool
    ) -> None:
        """Adds A, B and C of pieces of the values from the n-th of *own* on."""
        if not any(b for _, sizes in both.values() for b, _ in sizes):
            larger = {rest: pieces[own[n]] for rest, (pieces, _) in both.items()}
            return self._divide(into, i, d + 1, larger, ends, begins)
        within = self._between()
        enter, step, leave = Portion(), Portion(), Portion()
        for rest, (pieces, sizes) in both.items():
            piece, times = pieces[own[-1]], len(own) - 1 - n
            # before the first and the second iteration, and after the last: taken from one that has at least one iteration
            one, two, end = (
                [last - c - b * left for last, (b, c) in zip(piece.last, sizes, strict=True)]
                for left in (times, times - 1, 0)
            )
            shown = (*piece.shown[:d], own[n], *piece.shown[d + 1 :])
            enter[rest] = attrs.evolve(piece, last=one, shown=shown)
            step[rest] = attrs.evolve(piece, first=one, last=two)
            leave[rest] = attrs.evolve(piece, first=end)
        self._divide(into, i, d + 1, enter, (ends[0], within), begins)
        self._divide(into, i, d + 1, step, (within, within), False)
        self._divide(into, i, d + 1, leave, (within, ends[1]), False)

    def _sections(self, i: int, variation: Variation, portions: list[dict[int, Piece]]) -> list[list[dict[int, Piece]]]:
        """The pieces divided where sections of loops begin that the variation counts: the second and each further loop, if all
        have as many; else as they hand slots to each other."""
        loops = [{value: self._loops(i, variation, piece) for value, piece in each.items()} for each in portions]
        counts = {tuple(map(len, by_warp)) for each in loops for by_warp in each.values()}
        if len(counts) != 1:
            return [portions]
        (each,) = counts
        some = set(each) - {0}
        numbers: list[list[int]] | None = [list(range(n)) for n in each]
        if len(some) != 1 or some == {1}:
            largest = max(portions[0])
            programs = self.problems.programs(self.boundaries, portions[0][largest].kind)
            numbers = numbered(self.problems.layout, programs, loops[0][largest]) if some else None
        if numbers is None:
            return [portions]
        sections: list[list[dict[int, Piece]]] = []
        for number in range(1 + max(n for own in numbers for n in own)):
            section: list[dict[int, Piece]] = []
            for pieces, found in zip(portions, loops, strict=True):
                divided: dict[int, Piece] = {}
                for value, piece in pieces.items():
                    first, last = (self._begin(i, piece, found[value], numbers, n) for n in (number, number + 1))
                    divided[value] = attrs.evolve(piece, first=first, last=last)
                section.append(divided)
            sections.append(section)
        return sections

    def _begin(self, i: int, piece: Piece, loops: list[list[Loop]], numbers: list[list[int]], number: int) -> list[int]:
        """Where the section of this number begins in a piece, by warp: at the first loop of it or of a later one."""
        if not number:
            return piece.first
        begins = zip(loops, numbers, piece.last, range(len(loops)), strict=True)
        return [
            next(
                (loop.start - self._start(i, piece, agent) for loop, n in zip(own, of, strict=True) if n >= number),
                last,
            )
            for own, of, last, agent in begins
        ]

    def _start(self, i: int, piece: Piece, agent: int) -> int:
        """Where the tile begins in a warp's program; its end if another team handles it."""
        program = self.problems.programs(self.boundaries, piece.kind)[agent]
        iteration = iteration_of(self.problems.layout, agent, i)
        return (
            program.tiles[iteration] if iteration is not None and iteration < program.iterations else len(program.ops)
        )

    def _loops(self, i: int, variation: Variation, piece: Piece) -> list[list[Loop]]:
        """By warp: the outermost loops of a piece that the variation counts."""
        problems, keys = self.problems, {variation.key}
        found = []
        programs = problems.programs(self.boundaries, piece.kind)
        for agent, (program, first, last) in enumerate(zip(programs, piece.first, piece.last, strict=True)):
            own, end, begin = list[Loop](), -1, self._start(i, piece, agent)
            for loop in program.loops:
                inside = first <= loop.start - begin and loop.end - begin <= last and loop.start >= end
                if inside and sources(problems.decisions.terms, loop.terms, keys):
                    own.append(loop)
                    end = loop.end
            found.append(own)
        return found

    def _cut(self, i: int, variation: Variation, pieces: list[Piece]) -> tuple[int, Sizes]:
        """(n, by warp the lengths of B and C) of pieces for one value after another."""
        words = [self._words(i, piece) for piece in pieces]
        if variation.term.low is None and words[0] != words[1]:
            raise NotRegular(f"tiles differ for ever smaller {variation.text}")
        cut = regular_from(words)
        if cut is None:
            raise NotAlike
        return cut[0], self._ahead(i, pieces, *cut)

    def _ahead(self, i: int, pieces: list[Piece], n: int, sizes: Sizes) -> Sizes:
        """The same, where warps that have no B are in A as far as they come there, instead of in C: others may need that."""
        piece, left, layout = pieces[-1], len(pieces) - 1 - n, self.problems.layout
        begins = [self._start(i, piece, agent) for agent in range(layout.agents)]
        ends = [begin + last for begin, last in zip(begins, piece.last, strict=True)]
        programs = self.problems.programs(self.boundaries, piece.kind)
        stops = [end - (c + b * left if b else 0) for end, (b, c) in zip(ends, sizes, strict=True)]
        reached = executed(layout, [program.ops[:stop] for program, stop in zip(programs, stops, strict=True)])
        return [(b, c if b else min(c, end - at)) for end, at, (b, c) in zip(ends, reached, sizes, strict=True)]

    def _segment(self, i: int, piece: Piece, ends: tuple[Where, Where], begins: bool) -> Segment:
        parts = self._parts(i, piece.kind)
        nothing = [0] * len(parts)
        start = self.problems.relative(self.boundaries, piece.kind).starts[i].copy()
        start.advance(i, _between(parts, nothing, piece.first))
        end = start.copy()
        own = _between(parts, piece.first, piece.last)
        words = end.advance(i, own)
        if begins:
            name = self._text(piece.shown) + (", up to its end" if ends[1][0] == "step" else "")
            return Segment(own, words, start, end, ends[1], name, piece.shown)
        more = "one more step" if self.at_once == 1 else f"{self.at_once} more steps"
        name = "the tile's end" if ends[1][0] == "tile" else more if ends[0] == ends[1] else "part of a step"
        return Segment(own, words, start, end, ends[1], name)


def _between(parts: list[list[Any]], first: list[int], last: list[int]) -> list[list[Any]]:
    return [part[a:b] for part, a, b in zip(parts, first, last, strict=True)]


def regular_from(relative: list[Ops]) -> tuple[int, Sizes] | None:
    """(n, by warp the lengths of B and C): from the n-th number of steps on, tiles are A B^i C.

    None if they are not, or only the last three are.
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


def _one_more(fewer: Ops, more: Ops, longest: Ops, sizes: Sizes) -> bool:
    """Whether *more* is *fewer* with B put in before C, for all warps."""
    for x, y, z, (b, c) in zip(fewer, more, longest, sizes, strict=True):
        end = len(z) - c
        if len(x) < c or x[len(x) - c :] != z[end:] or y != x[: len(x) - c] + z[end - b : end] + z[end:]:
            return False
    return True
