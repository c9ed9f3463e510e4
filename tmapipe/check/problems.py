"""The problems that a schedule is checked on: shapes, and each warp's program for them.

Two numbers vary: output tiles a CTA, and steps of the inner loops (tiles along dimensions that the output lacks).
"""

from __future__ import annotations

from typing import Any

from tmapipe.check.words import Program, TileWords, record_marked, turn_of
from tmapipe.kernel import kernel_main
from tmapipe.machine import Layout
from tmapipe.plan import Plan

__all__ = ["Inner", "Problems", "Shapes"]

Shapes = dict[str, tuple[int, ...]]
Inner = list[list[tuple[int, int]]]  # by tile and warp: where in the warp's turn one inner step begins and ends


class Problems:
    """Problems of one schedule on one cluster.

    group: tiles that the teams of all roles take together; slots: of the longest ring; steps: the numbers of inner steps that
    make a difference (one only, without inner loops); most_tiles: that are worth a try.
    """

    def __init__(self, schedule: Any, plan: Plan):
        self.schedule, self.plan, self.layout = schedule, plan, Layout(plan)
        self.group = max([role.teams for role in plan.roles])
        self.slots = max([ring.stages for ring in plan.rings], default=1)
        output, self.tile = schedule.tile_grid()
        self.dims = schedule.part(output).dims
        self.inner: tuple[str, ...] = ()
        others = dict.fromkeys(d for part in plan.transfers for d in part.dims if d not in self.dims)
        self.inner = tuple(dim for dim in others if self._counts(dim))
        self.most_tiles = self.group * 4 * (self.slots + 4)
        self._programs: dict[tuple[int, int], list[Program]] = {}
        self._words: dict[tuple[int, int], TileWords] = {}
        self.steps = self._different_steps(2 * self.slots + 6)

    def entry(self, isa: Any) -> None:
        """What each warp runs."""
        kernel_main(isa, self.schedule)

    def shapes(self, tiles: int, steps: int, outer: int = 1) -> Shapes:
        """Shapes of all tensors. outer: extent of the output's dimensions before its tile's."""
        extents: dict[str, int] = {}
        first = len(self.dims) - 2 if len(self.dims) > 1 else 0
        for i, (dim, extent) in enumerate(zip(self.dims, self.tile, strict=True)):
            size = extent * self.plan.cluster.get(dim, 1)
            extents[dim] = size * (tiles if i == len(self.dims) - 1 else outer if i < first else 1)
        for part in self.plan.transfers:
            for dim, extent in zip(part.dims, part.tile, strict=True):
                if dim not in self.dims:
                    extents[dim] = extent * (steps if dim in self.inner else 1)
        return {part.argument: tuple(extents[dim] for dim in part.dims) for part in self.plan.transfers}

    def programs(self, tiles: int, steps: int) -> list[Program]:
        """Each warp's program."""
        found = self._programs.get((tiles, steps))
        if found is None:
            found = self._programs[tiles, steps] = self.record(self.shapes(tiles, steps))
        return found

    def record(self, shapes: Shapes) -> list[Program]:
        return record_marked(self.layout, self.entry, shapes)

    def words(self, tiles: int, steps: int) -> TileWords:
        """The same as words."""
        found = self._words.get((tiles, steps))
        if found is None:
            found = self._words[tiles, steps] = TileWords(self.layout, self.programs(tiles, steps), tiles)
        return found

    def uneven(self) -> list[Shapes]:
        """Problems with several tiles along dimensions before the tile's, such as the parts of a split k: their tiles can take
        different numbers of steps, or none."""
        if len(self.dims) < 3 or not self.inner or self.group > 1:
            return []
        return [self.shapes(1, steps, outer=3) for steps in (1, 2, 4, self.slots + 2)]

    def inner_step(self, tiles: int, i: int) -> Inner | None:
        """Where one step of `steps[i]` lies in each of *tiles* tiles: the programs for one step fewer lack just it, and those
        for one more have it twice. None if that is not so, or if there are too few steps for anything to recur."""
        laps = 1 if self.group == 1 else 2  # a team that waits for its turn knows less: it takes a lap more to recur
        if not self.inner or i < max(1, laps * self.slots) or i + 1 >= len(self.steps):
            return None
        fewer, now, more = (self.words(tiles, self.steps[j]) for j in (i - 1, i, i + 1))
        found: Inner = []
        for by_warp in zip(fewer.tiles, now.tiles, more.tiles, strict=True):
            steps = [_one_step(*words) for words in zip(*by_warp, strict=True)]
            if None in steps:
                return None
            found.append(steps)  # type: ignore[arg-type]
        return found

    def before(self, agent: int, program: Program, tile: int) -> int:
        """How many of a warp's operations come before *tile*."""
        done = sum(turn_of(self.layout, agent, earlier) is not None for earlier in range(tile))
        return program.tiles[min(done, program.turns)]

    def _counts(self, dim: str) -> bool:
        """Whether the programs depend on how many tiles there are along *dim*: not if the bodies only load one coordinate."""
        shapes = self.shapes(self.group, 1)

        def words(times: int) -> list[Any]:
            longer = {
                part.argument: tuple(
                    size * (times if d == dim else 1) for d, size in zip(part.dims, shapes[part.argument], strict=True)
                )
                for part in self.plan.transfers
            }
            return TileWords(self.layout, self.record(longer), self.group).tiles

        return any(words(times) != words(1) for times in (2, 3, self.slots + 1, 2 * self.slots + 6))

    def _different_steps(self, most: int) -> list[int]:
        """Numbers of inner steps whose programs are longer than those for fewer."""
        found = [1]  # a tensor with an extent of 0 never reaches a kernel
        for steps in range(2, 4 * most) if self.inner else ():
            lengths = [[len(p.ops) for p in self.programs(self.group, k)] for k in (found[-1], steps)]
            if lengths[0] != lengths[1]:
                found.append(steps)
            if len(found) > most:
                break
        return found


def _one_step(a: list[Any], b: list[Any], c: list[Any]) -> tuple[int, int] | None:
    """Where *b* has one inner step more than *a*, if *c* has the same one twice."""
    more = len(b) - len(a)
    if more < 0 or len(c) - len(b) != more:
        return None
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    step, rest = b[start : start + more], a[start:]
    if b[start + more :] != rest or c != [*a[:start], *step, *step, *rest]:
        return None
    return (start, start + more) if more else (0, 0)
