"""What a run can do next, between two tiles or between two turns of inner loops: the segments of a schedule.

They are taken from recorded programs and shown to be the same in all of them, as relative operations. A tile whose bodies
count k is ``A B^(k-n) C`` with the same A, B and C for each k from some n on, or has operations of its own (k < n). If the
bodies decide on several numbers, A, B and C have that form for the next one. So a program is ``head (tile)* tail``, with tiles
of any kinds. A few early tiles may have operations of their own: those of warps that hold back the last few slots. If a role
takes steps in pairs, even and odd numbers of steps have this form by themselves, with a B of two steps; and so by three.
"""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.check.future import Future
from tmapipe.check.kinds import MOST_KINDS, Variation, product, sources
from tmapipe.check.positions import Positions, iteration_of, without_stages
from tmapipe.check.problems import Kind, NotRegular, Problems
from tmapipe.check.relative import parts_of

__all__ = ["END", "After", "NotRegular", "Segment", "Segments", "Where", "segments_of"]

Where = tuple[str, int]  # ("tile", i) before the i-th tile, ("step", i) between turns of one of its loops
Ops = list[list[Any]]  # by warp
END: Where = ("end", 0)
LAPS = 3  # around the longest ring, in the longest programs that are looked at
EMPTY = "a tile of 0 steps"
MOST_PASSES = 6  # over the programs: each can show more that bodies decide on


@attrs.frozen
class Segment:
    """A piece of a run: operations of all warps.

    parts: by warp, as recorded; start, end: positions of the warps before and after; to: the boundary to which it leads;
    kind: of the tile that begins, if one does; empty: whether only a tensor without elements has such tiles; grows: which
    number of the tile's kind it adds to, and how much.
    """

    parts: list[list[Any]]
    start: Positions
    end: Positions
    to: Where
    name: str
    kind: Kind | None = None
    empty: bool = False
    grows: tuple[int, int] | None = None


@attrs.frozen
class Segments:
    """All segments of a schedule.

    head: from the start to the first tile; mixed: from each boundary, what can come next if the tiles of a CTA may be of
    different kinds; alike: the same if all are of one kind, where bodies decide on one number, by that number (the last one
    stands for all larger ones); loops: how many of the segments from a boundary between turns are one more turn; future: what
    may still come; uneven: whether tiles are of different kinds; empty: whether some take no steps, although no tensor is
    empty; early: tiles before boundaries recur.
    """

    head: Segment
    mixed: After
    alike: dict[int, After]
    loops: dict[Where, int]
    future: Future
    uneven: bool
    empty: bool
    early: int

    def without_empty(self) -> Segments:
        """The same without tiles that only a tensor without elements has."""
        mixed = {where: [s for s in segments if not s.empty] for where, segments in self.mixed.items()}
        alike = {k: after for k, after in self.alike.items() if not any(s.empty for s in after["tile", 0])}
        return attrs.evolve(self, mixed=mixed, alike=alike)


After = dict[Where, list[Segment]]


class NotAlike(NotRegular):
    """Turns of inner loops are not all alike, one by one, two by two or by three."""

    def __init__(self) -> None:
        super().__init__("inner steps are not all alike")


def segments_of(problems: Problems) -> Segments:
    """The segments of a schedule.

    Raises:
        NotRegular: Its programs do not have the form above.
    """
    if problems.layout.agents:
        problems.programs(2 * problems.group, problems.largest)
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
    for at_once in (1, 2):
        try:
            return _Finder(problems, at_once).segments()
        except NotAlike:
            continue
    return _Finder(problems, 3).segments()


@attrs.frozen
class _Piece:
    """Part of a tile of one kind: by warp, from where to where in its operations. shown: the kind of tile that begins with it,
    for texts; without_end: the variations that it stands for all larger values of."""

    kind: Kind
    first: list[int]
    last: list[int]
    shown: Kind
    without_end: tuple[int, ...] = ()


_Portion = dict[tuple[int, ...], _Piece]  # by the values of what is still to be told apart


class _Finder:
    """Finds the segments.

    values: by variation, those to look at; few: a kind of small values; early: tiles before all are alike, a whole number of
    groups; around: as many tiles as go a few times around the rings; at_once: inner steps of a segment.
    """

    def __init__(self, problems: Problems, at_once: int):
        self.problems, self.group, self.at_once = problems, problems.group, at_once
        self.variations: tuple[Variation, ...] = problems.kinds.variations
        self.values = [each.values(problems.slots + 3, at_once) for each in self.variations]
        self.kinds = product(self.values)
        if len(self.kinds) > MOST_KINDS:
            texts = ", ".join(each.text for each in self.variations)
            raise NotRegular(
                f"bodies decide on so many numbers ({texts}) that {len(self.kinds)} kinds of tiles would differ"
            )
        problems.largest = self.kinds[-1]
        self.few: Kind = tuple(max(0, values[min(1, len(values) - 1)]) for values in self.values)
        self.around = (LAPS * problems.slots + 1) * self.group
        long = problems.relative(self.around, self.few).tiles
        self.early = next(n for n in range(0, len(long), self.group) if self._alike(long, n))
        if self.early + 2 * self.group > self.around - problems.slots:
            raise NotRegular("tiles are not alike")
        self.ends: list[Positions] = []
        self.mixed: After = {}
        self.alike: dict[int, After] = {}
        self.loops: dict[Where, int] = {}

    def segments(self) -> Segments:
        problems, group, early = self.problems, self.group, self.early
        self.boundaries = boundaries = early + group
        few = [(tiles, self.few) for tiles in (*range(1, boundaries + group), self.around)]
        relative = {each: problems.relative(*each) for each in [*few, *((boundaries, kind) for kind in self.kinds)]}
        head = relative[boundaries, self.few].head
        for (tiles, kind), run in relative.items():
            if run.head != head:
                raise NotRegular("what comes before the first tile depends on the problem")
            usual = relative[boundaries, kind].tiles
            if any(tile != usual[self._boundary(i)] for i, tile in enumerate(run.tiles)):
                raise NotRegular(f"{self._text(kind)} is not always alike")
            if run.tail != relative[self._boundary(tiles) or boundaries, self.few].tail:
                raise NotRegular("what comes after the last tile depends on the problem")
        for i in range(boundaries):
            self._tile(i)
            tiles = i or (0 if early else boundaries)
            if tiles:  # no tile at all is run by itself
                tail = [p.ops[p.tiles[-1] :] for p in problems.programs(tiles, self.few)]
                end = relative[tiles, self.few].starts[-1]
                ending = Segment(tail, end, end, END, "the end")
                for after in (self.mixed, *self.alike.values()):
                    after["tile", i].append(ending)
        both = zip(self.variations, self.values, self.few, strict=True)
        another = tuple(min(values[-1], few + 1) if each.counted else values[-1] for each, values, few in both)
        for kind in dict.fromkeys((self.few, another)):
            self._check_positions(kind)
        uneven = any(each.term.per_tile for each in self.variations)
        if uneven:
            self._check_orders()
        programs = problems.programs(boundaries, self.few)
        start = relative[boundaries, self.few].starts[0]
        begin = Segment([p.ops[: p.tiles[0]] for p in programs], start, start, ("tile", 0), "the start")
        future = Future(problems.layout, [*(run.end for run in relative.values()), *self.ends])
        empty = not any(each.term.low != each.term.empty for each in self.variations)
        return Segments(begin, self.mixed, self.alike, self.loops, future, uneven, empty, early)

    def _alike(self, tiles: list[Ops], n: int) -> bool:
        return all(tile == tiles[n + (i - n) % self.group] for i, tile in enumerate(tiles) if i >= n)

    def _boundary(self, tile: int) -> int:
        """Which boundary between tiles comes before the tile of this number."""
        return tile if tile < self.early else self.early + (tile - self.early) % self.group

    def _text(self, kind: Kind) -> str:
        if not kind:
            return "a tile"
        if len(kind) == 1 and self.problems.is_steps(self.variations[0].key):
            return f"a tile of {kind[0]} steps"
        return f"a tile with {self.problems.kinds.text(kind)}"

    def _empty(self, piece: _Piece) -> bool:
        fixed = [d for d in range(len(piece.shown)) if d not in piece.without_end]
        lows = [self.variations[d].term.low for d in fixed]
        return any(low is not None and piece.shown[d] < low for d, low in zip(fixed, lows, strict=True))

    # ---- tiles --------------------------------------------------------------------------------------------------------

    def _tile(self, i: int) -> None:
        """Adds what can come at the *i*-th boundary."""
        whole = {kind: self._whole(i, kind) for kind in self.kinds}
        before, following = ("tile", i), ("tile", self._boundary(i + 1))
        self._divide(self.mixed, i, 0, whole, (before, following), True)
        for d in range(len(self.values)):
            self._check_many(i, d)
        if len(self.values) <= 1:  # each number of turns up to a lap by itself
            found: After = {}
            self._divide(found, i, 0, whole, (before, following), True, least=self.problems.slots + 1)
            for segment in found[before]:
                assert segment.kind is not None
                after = self.alike.setdefault(segment.kind[0] if segment.kind else 0, {})
                after[before] = [segment]
                if segment.to[0] == "step":
                    after[segment.to] = found[segment.to]

    def _whole(self, i: int, kind: Kind) -> _Piece:
        lengths = [len(part) for part in self._parts(i, kind)]
        return _Piece(kind, [0] * len(lengths), lengths, kind)

    def _parts(self, i: int, kind: Kind) -> list[list[Any]]:
        return parts_of(self.problems.layout, self.problems.programs(self.boundaries, kind), i)

    def _words(self, i: int, piece: _Piece) -> Ops:
        """The relative operations of a piece."""
        tile = self.problems.relative(self.boundaries, piece.kind).tiles[i]
        return [part[a:b] for part, a, b in zip(tile, piece.first, piece.last, strict=True)]

    def _divide(
        self,
        into: After,
        i: int,
        d: int,
        portion: _Portion,
        ends: tuple[Where, Where],
        begins: bool,
        grows: tuple[int, int] | None = None,
        least: int = 0,
    ) -> None:
        """Adds the segments of a portion of tile *i*, which has a piece for all values of the variations from the *d*-th on.

        Args:
            into: Where to add them.
            ends: The boundaries before and after it.
            begins: Whether the tile begins with it.
            grows: As of `Segment`.
            least: As many values are told apart at least.
        """
        if d == len(self.values):
            (piece,) = portion.values()
            into.setdefault(ends[0], []).append(self._segment(i, piece, ends[1], begins, grows))
            return
        values, variation = self.values[d], self.variations[d]
        rests = list(dict.fromkeys(key[1:] for key in portion))

        def only(value: int) -> None:
            self._divide(into, i, d + 1, {rest: portion[(value, *rest)] for rest in rests}, ends, begins, grows)

        if variation.all:
            for value in values:
                only(value)
            return
        if not variation.counted:  # the least and the largest value stand for all beyond them
            for value in values[:-1]:
                only(value)
            words = [[self._words(i, portion[(value, *rest)]) for rest in rests] for value in values]
            if words[-1] != words[-2] or (variation.term.empty is None and words[0] != words[1]):
                raise NotRegular(f"tiles differ for ever larger {variation.text}")
            larger = {rest: self._open_ended(portion[(values[-1], *rest)], d) for rest in rests}
            self._divide(into, i, d + 1, larger, ends, begins, grows)
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
                self._repeat(into, i, d, both, own, n, (before, after), begins and number == 0, grows if last else None)
                before = after

    def _between(self) -> Where:
        """A new boundary within tiles."""
        within = ("step", len(self.loops))
        self.loops[within] = 0
        return within

    def _repeat(
        self,
        into: After,
        i: int,
        d: int,
        both: dict[tuple[int, ...], tuple[dict[int, _Piece], list[tuple[int, int]]]],
        own: list[int],
        n: int,
        ends: tuple[Where, Where],
        begins: bool,
        grows: tuple[int, int] | None,
    ) -> None:
        """Adds A, B and C of pieces of the values from the n-th of *own* on. *both*: the pieces, by what is still to be told
        apart and by value, and the lengths of B and C."""
        if not any(b for _, sizes in both.values() for b, _ in sizes):
            larger = {rest: self._open_ended(pieces[own[n]], d) for rest, (pieces, _) in both.items()}
            return self._divide(into, i, d + 1, larger, ends, begins, grows)
        within = self._between()
        enter, step, leave = _Portion(), _Portion(), _Portion()
        for rest, (pieces, sizes) in both.items():
            piece, times = pieces[own[-1]], len(own) - 1 - n
            # before the first and the second turn, and after the last: taken from one that has at least one turn
            one, two, end = (
                [last - c - b * left for last, (b, c) in zip(piece.last, sizes, strict=True)]
                for left in (times, times - 1, 0)
            )
            shown = (*piece.shown[:d], own[n], *piece.shown[d + 1 :])
            enter[rest] = self._open_ended(attrs.evolve(piece, last=one, shown=shown), d)
            step[rest] = attrs.evolve(piece, first=one, last=two)
            leave[rest] = attrs.evolve(piece, first=end)
        self._divide(into, i, d + 1, enter, (ends[0], within), begins, None)
        self._divide(into, i, d + 1, step, (within, within), False, (d, self.at_once))
        self.loops[within] = len(into[within])
        self._divide(into, i, d + 1, leave, (within, ends[1]), False, grows)

    def _sections(
        self, i: int, variation: Variation, portions: list[dict[int, _Piece]]
    ) -> list[list[dict[int, _Piece]]]:
        """The pieces divided where the second and each further loop begins that the variation counts, if all have as many."""
        starts = [{value: self._loops(i, variation, piece) for value, piece in each.items()} for each in portions]
        counts = {len(found) for each in starts for by_warp in each.values() for found in by_warp if found}
        if len(counts) != 1 or counts == {1}:
            return [portions]
        (count,) = counts
        sections: list[list[dict[int, _Piece]]] = [[] for _ in range(count)]
        for each, found in zip(portions, starts, strict=True):
            for number, section in enumerate(sections):
                divided: dict[int, _Piece] = {}
                for value, piece in each.items():
                    warps = list(zip(piece.first, piece.last, found[value], strict=True))
                    first = [a if not number else own[number] if own else b for a, b, own in warps]
                    last = [own[number + 1] if own and number + 1 < count else b for a, b, own in warps]
                    divided[value] = attrs.evolve(piece, first=first, last=last)
                section.append(divided)
        return sections

    def _loops(self, i: int, variation: Variation, piece: _Piece) -> list[list[int]]:
        """By warp: where the outermost loops of a piece begin that the variation counts."""
        problems, keys = self.problems, {variation.key, *(key for key, _ in variation.others)}
        found = []
        programs = problems.programs(self.boundaries, piece.kind)
        for agent, (program, first, last) in enumerate(zip(programs, piece.first, piece.last, strict=True)):
            turn, own, end = iteration_of(problems.layout, agent, i), list[int](), -1
            begin = program.tiles[turn] if turn is not None and turn < program.iterations else len(program.ops)
            for loop in program.loops:
                at = loop.start - begin
                inside = first <= at and loop.end - begin <= last and loop.start >= end
                if inside and sources(problems.decisions.terms, loop.terms, keys):
                    own.append(at)
                    end = loop.end
            found.append(own)
        return found

    def _open_ended(self, piece: _Piece, d: int) -> _Piece:
        return attrs.evolve(piece, without_end=(*piece.without_end, d))

    def _cut(self, i: int, variation: Variation, pieces: list[_Piece]) -> tuple[int, list[tuple[int, int]]]:
        """(n, by warp the lengths of B and C) of pieces for one value after another."""
        words = [self._words(i, piece) for piece in pieces]
        if variation.term.empty is None and words[0] != words[1]:
            raise NotRegular(f"tiles differ for ever smaller {variation.text}")
        cut = _regular_from(words)
        if cut is None:
            raise NotAlike
        return cut

    def _segment(self, i: int, piece: _Piece, to: Where, begins: bool, grows: tuple[int, int] | None) -> Segment:
        parts = self._parts(i, piece.kind)
        nothing = [0] * len(parts)
        start = self.problems.relative(self.boundaries, piece.kind).starts[i].copy()
        start.advance(i, _between(parts, nothing, piece.first))
        end = start.copy()
        own = _between(parts, piece.first, piece.last)
        end.advance(i, own)
        if begins:
            name = self._text(piece.shown) + (", up to its end" if to[0] == "step" else "")
            return Segment(own, start, end, to, name, piece.shown, self._empty(piece))
        if grows:
            name = "one more step" if grows[1] == 1 else f"{grows[1]} more steps"
            return Segment(own, start, end, to, name, grows=grows)
        return Segment(own, start, end, to, "the tile's end")

    def _check_many(self, i: int, d: int) -> None:
        """Checks that tiles of many steps, a few times around the rings, are the same with more inner steps."""
        variation = self.variations[d]
        if variation.all or not variation.counted:
            return
        at_once, others = self.at_once, self.few
        for steps in (self.values[d][first::at_once] for first in range(at_once)):
            times = max(1, LAPS * self.problems.slots + 2 - len(steps))
            beyond = steps[-1] + times * (steps[-1] - steps[-2])
            whole = {v: self._whole(i, (*others[:d], v, *others[d + 1 :])) for v in (*steps[-4:], beyond)}
            for (pieces,) in self._sections(i, variation, [whole]):
                *words, many = (self._words(i, piece) for piece in pieces.values())
                cut = _regular_from(words, 0)
                if cut is None:
                    raise NotAlike
                for x, y, (b, c) in zip(words[-1], many, cut[1], strict=True):
                    end = len(x) - c
                    if y != x[:end] + x[end - b : end] * times + x[end:]:
                        raise NotAlike

    def _check_positions(self, kind: Kind) -> None:
        """Checks that a tile is the same wherever it begins in the rings."""
        tiles = [kind] * (2 * self.problems.slots * self.group)
        for program in self.problems.in_order(tiles, shifted=True)[0]:
            turns = [list(map(without_stages, program.tile(i))) for i in range(program.iterations)]
            if any(turn != turns[self.early // self.group] for turn in turns[self.early // self.group :]):
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
        for i, kind in enumerate(order):
            if run.tiles[i] != problems.relative(self.boundaries, kind).tiles[self._boundary(i)]:
                raise NotRegular(f"{self._text(kind)} depends on the tiles before it")
        usual = problems.relative(self._boundary(len(order)) or self.boundaries, self.few)
        if run.tail != usual.tail:
            raise NotRegular("what comes after the last tile depends on its kind")


def _between(parts: list[list[Any]], first: list[int], last: list[int]) -> list[list[Any]]:
    return [part[a:b] for part, a, b in zip(parts, first, last, strict=True)]


def _regular_from(relative: list[Ops], most: int = 3) -> tuple[int, list[tuple[int, int]]] | None:
    """(n, by warp the lengths of B and C): from the n-th number of steps on, tiles are A B^i C.

    None if they are not, or only the last few (*most*) are.
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
    return (n, sizes) if len(relative) - n > most else None


def _one_more(fewer: Ops, more: Ops, longest: Ops, sizes: list[tuple[int, int]]) -> bool:
    """Whether *more* is *fewer* with B put in before C, for all warps."""
    for x, y, z, (b, c) in zip(fewer, more, longest, sizes, strict=True):
        end = len(z) - c
        if len(x) < c or x[len(x) - c :] != z[end:] or y != x[: len(x) - c] + z[end - b : end] + z[end:]:
            return False
    return True
