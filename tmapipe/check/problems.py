"""The problems that a schedule is checked on: tensor shapes, and each warp's program for them.

Two numbers vary: the output tiles of a CTA, and the steps of the inner loops (tiles along dimensions that the output lacks).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tmapipe.check.positions import Key, without_position
from tmapipe.check.relative import Program, RelativeRun, origin_of, record_marked
from tmapipe.isa.interface import Isa
from tmapipe.kernel import kernel_main
from tmapipe.machine import Layout
from tmapipe.plan.model import Plan

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["Problems", "Shapes"]

Shapes = dict[str, tuple[int, ...]]


class Problems:
    """Problems of one schedule on one cluster.

    group: tiles that the teams of all roles take together; slots: of the longest ring; dims: of the output; inner: the
    dimensions of inner loops; steps: the numbers of steps whose programs differ, from 0 on.
    """

    def __init__(self, schedule: Schedule, plan: Plan):
        self.schedule, self.plan, self.layout = schedule, plan, Layout(plan)
        self.dims = tuple(schedule.axes)
        self.tile = tuple(axis.elements for axis in schedule.axes.values())
        self.group = max([role.teams for role in plan.roles])
        self.slots = max([ring.stages for ring in plan.rings], default=1)
        self._parts: dict[Any, Any] = {}
        self._programs: dict[tuple[int, int], list[Program]] = {}
        self._relative: dict[tuple[int, int], RelativeRun] = {}
        self.inner: tuple[str, ...] = ()
        others = dict.fromkeys(d for part in plan.transfers for d in part.dims if d not in self.dims)
        self.inner = tuple(dim for dim in others if self._counts(dim))
        self.steps = self.steps_taken(1)
        self._origin: dict[Key, int] | None = None

    def entry(self, isa: Isa) -> None:
        """What each warp runs."""
        kernel_main(isa, self.schedule)

    def shapes(self, tiles: int, steps: int, outer: int = 1) -> Shapes:
        """Shapes of all tensors.

        Args:
            tiles: Output tiles of a CTA, along the output's last dimension.
            steps: Tiles along each inner dimension.
            outer: Extent of the output's dimensions before its tile's.
        """
        extents: dict[str, int] = {}
        first = len(self.dims) - 2 if len(self.dims) > 1 else 0
        for i, (dim, extent) in enumerate(zip(self.dims, self.tile, strict=True)):
            size = extent * self.plan.cluster.get(dim, 1)
            extents[dim] = size * (tiles if i == len(self.dims) - 1 else outer if i < first else 1)
        for part in self.plan.transfers:
            for dim, extent in zip(part.dims, part.tile, strict=True):
                if dim not in self.dims:
                    extents[dim] = extent * (steps if dim in self.inner else 1)
        extents = self.plan.related(extents)
        return {name: tuple(extents[dim] for dim in dims) for name, dims in self.plan.dims.items()}

    def record(self, shapes: Shapes, ctas: int | None = None) -> list[Program]:
        """Each warp's program, or those of the first *ctas* CTAs."""
        return record_marked(self.layout, self.entry, shapes, ctas)

    def programs(self, tiles: int, steps: int) -> list[Program]:
        """Each warp's program for *tiles* output tiles a CTA, of *steps* steps each."""
        found = self._programs.get((tiles, steps))
        if found is None:
            found = self._programs[tiles, steps] = self.record(self.shapes(tiles, steps))
        return found

    def relative(self, tiles: int, steps: int) -> RelativeRun:
        """The same, as relative operations."""
        found = self._relative.get((tiles, steps))
        if found is None:
            found = self._relative[tiles, steps] = self.as_relative(self.programs(tiles, steps), tiles)
        return found

    def as_relative(self, programs: list[Program], tiles: int) -> RelativeRun:
        """Any programs as relative operations."""
        if self._origin is None:
            two = 2 * self.group
            self._origin = origin_of(self.layout, self.programs(two, self.steps[-1]), two, self.group)
        return RelativeRun(self.layout, programs, tiles, self._origin, self._parts)

    def steps_of(self, i: int) -> int:
        """The i-th number of steps; beyond the recorded ones, numbers go on by the same difference."""
        beyond = max(0, i - len(self.steps) + 1)
        return max(1, self.steps[i - beyond] + beyond * (self.steps[-1] - self.steps[-2])) if self.inner else 1

    def uneven(self) -> list[Shapes]:
        """Problems with several tiles along dimensions before the tile's, such as the parts of a split k.

        Their tiles can take different numbers of steps, or none.
        """
        if len(self.dims) < 3 or not self.inner or self.group > 1:
            return []
        return [self.shapes(1, steps, outer=3) for steps in (1, 2, 5)]

    def _counts(self, dim: str) -> bool:
        """Whether the programs depend on the number of tiles along *dim*: not if the bodies load only one of them."""
        shapes = self.shapes(self.group, 1)

        def lengths(times: int) -> list[int]:
            longer = {
                name: tuple(size * (times if d == dim else 1) for d, size in zip(dims, shapes[name], strict=True))
                for name, dims in self.plan.dims.items()
            }
            return [len(program.ops) for program in self.record(longer, ctas=1)]

        once = lengths(1)
        return any(lengths(times) != once for times in (2, 3, self.slots + 1, 2 * self.slots + 6))

    def steps_taken(self, at_once: int) -> list[int]:
        """`steps` of schedules that take *at_once* steps together."""
        return self._different_steps(at_once * (self.slots + 3))

    def _different_steps(self, most: int) -> list[int]:
        """Numbers of inner steps whose programs (the first CTA's) differ from those for one step fewer."""
        found, before = [0], self._without_positions(0)
        for steps in range(1, 4 * most) if self.inner else ():
            now = self._without_positions(steps)
            if now != before:
                found.append(steps)
                before = now
            if len(found) > most:
                break
        return found

    def _without_positions(self, steps: int) -> list[list[Any]]:
        programs = self.record(self.shapes(self.group, steps), ctas=1)
        return [[without_position(op) for op in program.ops] for program in programs]
