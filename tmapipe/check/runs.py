"""Runs of a schedule's problems: from beginning to end, or in segments, so that the moments between can be compared."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.check.findings import Finding
from tmapipe.check.linear import LinearCheck
from tmapipe.check.problems import Inner, Problems, Shapes
from tmapipe.check.program import check_operations, run_checked, run_segment
from tmapipe.check.recurrence import Moment
from tmapipe.check.words import Places, Program, Renaming, TileWords, parts_of, turn_of
from tmapipe.errors import DeadlockError, HazardError
from tmapipe.machine import State

__all__ = ["Run", "UnevenRun", "any_tile_keeps", "recurring_tile", "run", "run_uneven", "run_with_cuts"]

_Tile = tuple[list[Program], TileWords, int]  # a run's programs, the same as words, and the number of one tile
MOST_MOMENTS = 40
NEVER_ENDS = 1 << 60
Cut = tuple[int, int]  # (tile, 0 or 1): before or after one inner step in that tile; (tile, -1): before that tile


@attrs.define
class Run:
    """What one run showed. boundaries: the moments between tiles; inner: by tile, the moments before and after one inner step;
    both are empty if the warps cannot all come to these moments."""

    found: list[Finding]
    events: int
    boundaries: list[Moment] = attrs.field(factory=list)
    inner: dict[int, list[Moment]] = attrs.field(factory=dict)

    def inner_steps_recur(self, tiles: int) -> bool:
        """Whether in each of the first *tiles* tiles the moment before an inner step recurs after it."""
        pairs = [self.inner.get(tile, []) for tile in range(tiles)]
        return all(len(pair) == 2 and pair[1].recurs(pair[0]) for pair in pairs)


@attrs.define
class UnevenRun:
    """A run with tiles along outer dimensions. uneven: whether they are different words."""

    run: Run
    programs: list[Program]
    words: TileWords

    @property
    def uneven(self) -> bool:
        return any(word != self.words.tiles[-1] for word in self.words.tiles[1:])


def run(problems: Problems, tiles: int, steps: int) -> Run:
    """One problem, from beginning to end."""
    if tiles == 0:  # the second of two clusters that share one tile
        return Run(*run_checked(problems.plan, problems.entry, problems.shapes(1, steps), 1, 2))
    return _run(problems, problems.shapes(tiles, steps), problems.programs(tiles, steps))


def _run(problems: Problems, shapes: Shapes, programs: list[Program]) -> Run:
    found, events = check_operations(problems.layout, [program.ops for program in programs], shapes)
    if found:  # once more, with source lines
        found, events = run_checked(problems.plan, problems.entry, shapes)
    return Run(found, events)


def run_uneven(problems: Problems) -> list[UnevenRun]:
    """The problems whose tiles may take different numbers of steps."""
    runs = []
    for shapes in problems.uneven():
        programs = problems.record(shapes)
        words = TileWords(problems.layout, programs, max(program.turns for program in programs))
        runs.append(UnevenRun(_run(problems, shapes, programs), programs, words))
    return runs


def run_with_cuts(problems: Problems, tiles: int, i: int) -> Run:
    """The problem of *tiles* tiles of `steps[i]` steps, stopped between tiles and, if its inner steps can be told, around one
    of them in each tile."""
    programs = problems.programs(tiles, problems.steps[i])
    inner = problems.inner_step(tiles, i)
    boundaries: list[Cut] = [(tile, -1) for tile in range(tiles + 1)]
    steps: list[Cut] = [(tile, j) for tile in range(tiles if inner else 0) for j in (0, 1)]
    made = _segments(problems, programs, sorted(boundaries + steps), inner, tiles, problems.steps[i])
    if made is None and inner:
        made = _segments(problems, programs, boundaries, None, tiles, problems.steps[i])
    return made or run(problems, tiles, problems.steps[i])


def _segments(
    problems: Problems, programs: list[Program], cuts: list[Cut], inner: Inner | None, tiles: int, steps: int
) -> Run | None:
    """Runs up to each cut and takes the moment. None if the warps cannot all come to some cut, or something is wrong."""
    layout = problems.layout
    state, check, places = State(layout), LinearCheck(layout, problems.shapes(tiles, steps)), Places(layout)
    made = Run([], 0)
    at = [0] * layout.agents
    last: int | None = None
    try:
        for tile, step in [*cuts, (None, -1)]:
            to = [_place(problems, a, p, tile, step, inner) for a, p in enumerate(programs)]
            if any(end < start for start, end in zip(at, to, strict=True)):
                return None
            parts = [p.ops[start:end] for p, start, end in zip(programs, at, to, strict=True)]
            run_segment(state, [iter(part) for part in parts], check)
            places.advance(last, parts)
            at, last = to, tile
            if tile is not None:
                moments = made.boundaries if step < 0 else made.inner.setdefault(tile, [])
                moments.append(Moment(state, check, places))
    except (DeadlockError, HazardError):
        return None
    check.finish()
    made.events = check.order
    return None if check.findings else made


def _place(problems: Problems, agent: int, program: Program, tile: int | None, step: int, inner: Inner | None) -> int:
    """How many of the warp's operations lie before the cut (tile None: all)."""
    if tile is None:
        return len(program.ops)
    turn = turn_of(problems.layout, agent, tile)
    if turn is not None and turn < program.turns and inner is not None and step >= 0:
        return program.tiles[turn] + inner[tile][agent][step]
    return problems.before(agent, program, tile)


def recurring_tile(problems: Problems, made: Run, groups: int, i: int) -> int | None:
    """The least n so that the moment after n groups of tiles recurs after the next one, and all groups from there on, and what
    follows the last, are the same words."""
    moments = made.boundaries[:: problems.group]
    if len(moments) != groups + 1:
        return None
    now, more = (problems.words((groups + k) * problems.group, problems.steps[i]) for k in (0, 1))
    if now.head != more.head or now.tail != more.tail or now.tiles != more.tiles[: groups * problems.group]:
        return None
    by_group = [more.tiles[n * problems.group : (n + 1) * problems.group] for n in range(groups + 1)]
    for n in range(groups):
        if all(group == by_group[n] for group in by_group[n:]) and moments[n + 1].recurs(moments[n]):
            return n
    return None


def any_tile_keeps(problems: Problems, seen: list[tuple[int, int]], uneven: list[UnevenRun]) -> bool:
    """Whether tiles may come in any order: from the moment that recurs with the fewest steps on, each kind of tile that was
    seen leads to a moment known before, or to one from which each kind does in turn; and the run ends well after each. seen:
    by number of steps, (n, tiles): after n of *tiles* tiles the moment recurs."""
    kinds: dict[str, _Tile] = {}
    for i, (n, tiles) in enumerate(seen):
        words = problems.words(tiles, problems.steps[i])
        kinds[repr(words.tiles[n])] = problems.programs(tiles, problems.steps[i]), words, n
    for other in uneven:
        for tile in range(1, len(other.words.tiles)):
            kinds[repr(other.words.tiles[tile])] = other.programs, other.words, tile
    first = problems.programs(seen[0][1], problems.steps[0]), problems.words(seen[0][1], problems.steps[0]), seen[0][0]
    future = _endless(problems, [first[1], *(words for _, words, _ in kinds.values())])
    known: list[Moment] = []
    paths: list[list[_Tile]] = [[]]
    while paths and len(known) <= MOST_MOMENTS:
        path = paths.pop()
        moment = _moment_after(problems, first, path)
        if moment is None:
            return False
        moment.end = future
        if not any(moment.recurs(other) for other in known):
            known.append(moment)
            paths += [[*path, kind] for kind in kinds.values()]
    return not paths


def _endless(problems: Problems, words: list[TileWords]) -> Places:
    """Where the warps are after tiles of these runs without end: what any tile does matters at all moments."""
    end = Places(problems.layout)
    for run in words:
        for key, count in run.end.count.items():
            if key not in end.at or count > run.starts[0].count.get(key, 0):
                end.at[key] = 0
                end.count[key] = NEVER_ENDS if count > run.starts[0].count.get(key, 0) else count
        for key, stages in run.end.touched.items():
            end.touched.setdefault(key, set()).update(stages)
    return end


def _moment_after(problems: Problems, first: _Tile, path: list[_Tile]) -> Moment | None:
    """The moment after what comes before one tile of the first run and then the tiles of *path*; None if something is wrong
    up to there or in the end that follows."""
    layout = problems.layout
    base, base_words, n = first
    state, check, places = State(layout), LinearCheck(layout, {}), Places(layout)

    def go(tile: int | None, parts: list[list[Any]], shifts: dict[str, int]) -> None:
        rename = Renaming(layout, shifts)
        parts = [[rename.op(op) for op in part] for part in parts]
        run_segment(state, [iter(part) for part in parts], check)
        places.advance(tile, parts)

    try:
        go(0, [p.ops[: problems.before(agent, p, n)] for agent, p in enumerate(base)], {})
        for programs, words, tile in path:
            shifts = places.shifts_from(words.starts[tile], words.end)
            if shifts is None:
                return None
            go(0, parts_of(layout, programs, tile), shifts)
        moment = Moment(state, check, places)
        shifts = places.shifts_from(base_words.starts[-1], base_words.end)
        if shifts is None:
            return None
        go(None, [p.ops[p.tiles[-1] :] for p in base], shifts)
    except (DeadlockError, HazardError):
        return None
    check.finish()
    return moment if all(finding.kind.note for finding in check.findings) else None
