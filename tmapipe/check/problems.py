"""The problems that a schedule is checked on: tensor shapes, kinds of tiles, and each warp's program for them.

What varies are the number of output tiles of a CTA, and what the bodies decide on (`kinds`): extents, coordinates, ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tmapipe.check.kinds import Kinds, kinds_of
from tmapipe.check.positions import Key
from tmapipe.check.relative import RelativeRun, origin_of
from tmapipe.errors import PipelineError
from tmapipe.isa.interface import Isa
from tmapipe.kernel import kernel_main
from tmapipe.machine import Layout
from tmapipe.machine.decisions import Decisions
from tmapipe.machine.layout import Shapes
from tmapipe.machine.programs import Program, record_marked
from tmapipe.machine.purity import unchanged
from tmapipe.machine.recording import RecordingIsa
from tmapipe.machine.varying_names import names_replaced
from tmapipe.machine.varying_text import text_of
from tmapipe.plan.model import Plan

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["Kind", "NotRegular", "Problems"]

Kind = tuple[Any, ...]  # a value of each variation, or a tuple of them, for one iteration of a loop after the other


ANY = 2**30  # an extent that no tile has


class NotRegular(Exception):
    """The recorded programs are no words over a few segments; says where they first differ."""


class Problems:
    """Problems of one schedule on one cluster.

    group: tiles that the teams of all roles take together; slots: of the longest ring; dims: of the output; along: that one
    along which a CTA gets more or fewer tiles, the last one that may have any extent; kinds: what the bodies decide on, by
    all that has been recorded so far.
    """

    def __init__(self, schedule: Schedule, plan: Plan):
        self.schedule, self.plan, self.layout = schedule, plan, Layout(plan)
        self.dims = tuple(schedule.axes)
        self.tile = tuple(axis.elements for axis in schedule.axes.values())
        ones = dict.fromkeys(self.dims, 1)
        free = (dim for dim in reversed(self.dims) if plan.related(ones | {dim: ANY})[dim] == ANY)
        self.along = next(free, self.dims[-1])
        self.group = max([role.teams for role in plan.roles])
        self.slots = max([ring.stages for ring in plan.rings], default=1)
        self.decisions = Decisions()
        self.decisions.lap = self.slots
        self.kinds = Kinds()
        #: the instruction set of one warp, which records its program
        self.isa = functools.partial(RecordingIsa, decisions=self.decisions, numbered=self.along)
        self.others = tuple(dict.fromkeys(d for part in plan.transfers for d in part.dims if d not in self.dims))
        self._parts: dict[Any, Any] = {}
        self._recorded: list[list[Program]] = []
        self._programs: dict[tuple[int, Kind], list[Program]] = {}
        self._relative: dict[tuple[int, Kind], RelativeRun] = {}
        self._origin: dict[Key, int] | None = None
        self.largest: Kind = ()  # the kind with the largest values that are looked at

    def entry(self, isa: Isa) -> None:
        """What each warp runs. The instruction set, which refers to itself and to all that was recorded, is of no use then."""
        kernel_main(isa, self.schedule)
        vars(isa).clear()

    @property
    def inner(self) -> tuple[str, ...]:
        """The dimensions that the output lacks and the bodies count."""
        steps = any(key[1] in ("tile.steps", "tile.first") for key in self.kinds.keys if key[0] == "symbol")
        extents = {key[1] for key in self.sources() if key[0] == "extent"}
        return tuple(dim for dim in self.others if steps or dim in extents)

    def sources(self) -> set[Any]:
        """All terms that bodies use, and those that these are computed of."""
        found: set[Any] = set()
        todo = [key for use in self.decisions.uses for key, _ in use.terms]
        while todo:
            key = todo.pop()
            found.add(key)
            todo += self.decisions.terms[key].of
        return found

    def is_steps(self, key: Any) -> bool:
        """Whether a term is the number of tiles along a dimension that the output lacks: all, or those of a part."""
        if key == ("symbol", "tile.steps"):
            return True
        parts = self.plan.transfers
        units = {(d, e) for part in parts for d, e in zip(part.dims, part.tile, strict=True) if d in self.others}
        return any(text_of(((key, 1),)) in (f"ceil(the extent of {d} / {e})", f"the extent of {d}"[: 99 * (e == 1)])
                   for d, e in units)  # fmt: skip

    def shapes(self, tiles: int, steps: int, outer: int = 1) -> Shapes:
        """Shapes of all tensors.

        Args:
            tiles: Output tiles of a CTA.
            steps: Tiles along each inner dimension.
            outer: Extent of the output's dimensions before its tile's.
        """
        extents: dict[str, int] = {}
        first = len(self.dims) - 2 if len(self.dims) > 1 else 0
        for i, (dim, extent) in enumerate(zip(self.dims, self.tile, strict=True)):
            size = extent * self.plan.cluster.get(dim, 1)
            extents[dim] = size * (tiles if dim == self.along else outer if i < first else 1)
        for part in self.plan.transfers:
            for dim, extent in zip(part.dims, part.tile, strict=True):
                if dim not in self.dims:
                    extents[dim] = extent * steps
        return self.plan.shapes(extents)

    # ---- recordings -----------------------------------------------------------------------------------------------

    def recording(self) -> Any:
        """The scope in which bodies are recorded."""
        self.decisions.run += 1
        return names_replaced(self.schedule)

    def check_state(self) -> None:
        """Raises `ScopeError` if what bodies do depends on something that they change."""
        shapes = self.shapes(2 * self.group, 2)

        def make(agent: int, emit: Callable[[Any], None]) -> RecordingIsa:
            return self.isa(self.layout, agent, 0, 1, shapes, emit)

        def programs(each: bool) -> list[Program]:
            with self.recording():
                return record_marked(self.layout, self.entry, make, each)

        unchanged(self.schedule, self.layout, programs)

    def in_order(self, kinds: list[Kind], shifted: bool = False) -> tuple[list[Program], list[Kind]]:
        """Each warp's program for tiles of these kinds, and the order in which they come. *shifted*: as of `RecordingIsa`."""
        shapes = self.shapes(len(kinds), 1)
        taken: list[list[int]] = []

        def make(agent: int, emit: Callable[[Any], None]) -> RecordingIsa:
            numbers: list[int] = []
            taken.append(numbers)

            def values_of(number: int) -> Mapping[Any, int]:
                numbers.append(number % len(kinds))
                return self.kinds.at(kinds[numbers[-1]])

            return self.isa(self.layout, agent, 0, 1, shapes, emit, values_of=values_of, shifted=shifted)

        try:
            with self.recording():
                programs = record_marked(self.layout, self.entry, make)
        except Exception as error:  # of a body: maybe no tile is of this kind
            if type(error) is PipelineError:
                raise
            raise NotRegular(f"a body fails at a tile with {self.kinds.text(kinds[-1])}: {error}") from error
        if self.schedule.declared.shared:
            self._recorded.append(programs)
        numbers = next((n for n in taken if len(n) == len(kinds)), range(len(kinds)))
        return programs, [kinds[number] for number in numbers]

    def unfilled(self, rule: Callable[..., list[Any]], *arguments: Any) -> list[Any]:
        """What a rule of programs finds in all that have been recorded for kinds of tiles."""
        return [
            each
            for programs in self._recorded
            for each in rule(self.layout, [program.ops for program in programs], *arguments)
        ]

    def programs(self, tiles: int, kind: Kind) -> list[Program]:
        """Each warp's program for *tiles* output tiles a CTA of one kind."""
        if (tiles, kind) not in self._programs:
            self._programs[tiles, kind] = self.in_order([kind] * tiles)[0]
        return self._programs[tiles, kind]

    def relative(self, tiles: int, kind: Kind) -> RelativeRun:
        """The same, as relative operations."""
        if (tiles, kind) not in self._relative:
            self._relative[tiles, kind] = self.as_relative(self.programs(tiles, kind), tiles)
        return self._relative[tiles, kind]

    def as_relative(self, programs: list[Program], tiles: int) -> RelativeRun:
        """Any programs as relative operations."""
        if self._origin is None:
            two = 2 * self.group
            self._origin = origin_of(self.layout, self.programs(two, self.largest), two, self.group)
        return RelativeRun(self.layout, programs, tiles, self._origin, self._parts)

    def vary(self) -> bool:
        """Takes up what bodies have been found to decide on; whether that is something new."""
        kinds = kinds_of(self.decisions)
        if kinds == self.kinds:
            return False
        if kinds.keys != self.kinds.keys:
            self._programs, self._relative, self._origin, self.largest = {}, {}, None, ()
            self.decisions.found = {}
        self.kinds = kinds
        return True
