"""Programs as relative operations, so that segments that differ only in their position in the ring compare equal.

The i-th iteration of a loop over a ring uses stage i mod S, with a parity that flips with every lap. As relative operations
(`positions`), all iterations are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from tmapipe.check.positions import Key, Positions, Shifts, iteration_of, slot_position, without_position
from tmapipe.isa.effects import declared
from tmapipe.isa.operands import Kind
from tmapipe.isa.ops import Exit
from tmapipe.machine.layout import Layout
from tmapipe.machine.machine import at_most
from tmapipe.machine.varying import Loop

__all__ = ["Program", "Renaming", "RelativeRun", "origin_of", "parts_of", "record_marked"]

MAX_OPERATIONS = 200_000  # of one warp; problems are small, and take thousands


class Program(NamedTuple):
    """One warp's operations. tiles: the index at which each iteration of its tile loop starts, and at which the last ends;
    loops: those of bodies whose count varies, in the order of their beginnings."""

    ops: list[Any]
    tiles: list[int]
    loops: list[Loop]

    def tile(self, i: int) -> list[Any]:
        """The operations of the i-th iteration."""
        return self.ops[self.tiles[i] : self.tiles[i + 1]]

    @property
    def iterations(self) -> int:
        return len(self.tiles) - 1


def record_marked(
    layout: Layout,
    entry: Callable[[Any], None],
    make: Callable[[int, Callable[[Any], None]], Any],
    backwards: bool = False,
) -> list[Program]:
    """Each warp's operations, `Exit` last, with the iterations of the outermost `Isa.loop` marked.

    Local operations are left out: how often a warp looks into a table, say, depends on data alone.

    Args:
        make: Makes the instruction set of a warp, from its number and from what takes operations.
        backwards: Record the last warp first.
    """
    programs: dict[int, Program] = {}
    for agent in reversed(range(layout.agents)) if backwards else range(layout.agents):
        program: list[Any] = []
        marks: list[int] = []
        isa = make(agent, _without_local(at_most(MAX_OPERATIONS, program)))
        isa.loop = _marking(isa.loop, program, marks)
        loops = isa.decisions.loops = []
        isa.decisions.length = program.__len__
        entry(isa)
        program.append(Exit())
        programs[agent] = Program(program, marks or [len(program) - 1], loops)
    return [programs[agent] for agent in range(layout.agents)]


def _without_local(add: Callable[[Any], None]) -> Callable[[Any], None]:
    def emit(op: Any) -> None:
        if not _is_local(type(op)):  # type: ignore[arg-type]
            add(op)

    return emit


@functools.cache
def _is_local(kind: Any) -> bool:
    return declared(kind).local


def _marking(within: Callable[..., None], program: list[Any], marks: list[int]) -> Callable[..., None]:
    inside = False

    def loop(trips: int, body: Callable[[int], None]) -> None:
        nonlocal inside
        if inside:
            return within(trips, body)
        inside = True
        start = len(program)
        found = []
        for i in range(trips):
            found.append(len(program))
            body(i)
        inside = False
        if len(program) > start or not marks:  # a loop that only moves on in its rings does not count
            marks[:] = [*found, len(program)]

    return loop


class RelativeRun:
    """The programs of one run as relative operations.

    head, tail: by warp; tiles: by tile and warp (empty for warps of other teams); starts: positions of the warps before each
    tile and after the last one; end: at the end.

    Args:
        tiles: How many output tiles.
        origin: Positions before the first tile: one stage before those where the warps begin, so that first iterations look
            like all others.
        parts: Operations taken apart, shared among runs.
    """

    def __init__(
        self, layout: Layout, programs: Sequence[Program], tiles: int, origin: dict[Key, int], parts: dict[Any, Any]
    ):
        self.end = Positions(layout)
        self.end.parts = parts
        self.head = self.end.advance(None, [p.ops[: p.tiles[0]] for p in programs])
        self.end.at.update(origin)
        self.end.touched, self.end.arrivals = {}, set()
        self.tiles = []
        self.starts = [self.end.copy()]
        for tile in range(tiles):
            self.tiles.append(self.end.advance(tile, parts_of(layout, programs, tile)))
            self.starts.append(self.end.copy())
        self.tail = self.end.advance(None, [p.ops[p.tiles[-1] :] for p in programs])


def origin_of(layout: Layout, programs: Sequence[Program], tiles: int, group: int) -> dict[Key, int]:
    """Positions of the warps before their first tile, if the first iterations of each team move on as the next ones do.

    Args:
        programs: Of a problem of *tiles* tiles.
        group: Number of teams.
    """
    relative = RelativeRun(layout, programs, tiles, {}, {})
    found: dict[Key, int] = {}
    for tile in range(tiles - group):
        positions = relative.starts[tile]
        for agent, part in enumerate(parts_of(layout, programs, tile)):
            for op, first, later in zip(
                part, relative.tiles[tile][agent], relative.tiles[tile + group][agent], strict=False
            ):
                if first[0] != later[0]:
                    break
                for (key, position, around), step in zip(positions.moves(agent, op), later[1:], strict=False):
                    if key not in found and key not in positions.at and type(step) is int:
                        found[key] = (position - step) % around
    return found


def parts_of(layout: Layout, programs: Sequence[Program], tile: int) -> list[list[Any]]:
    """By warp: its operations for *tile*; none if another team handles it."""
    iterations = [iteration_of(layout, agent, tile) for agent in range(layout.agents)]
    return [[] if t is None or t >= p.iterations else p.tile(t) for p, t in zip(programs, iterations, strict=True)]


class Renaming:
    """Stages of one state, by their names in another. shifts: as `Positions.shifts_from` gives them."""

    def __init__(self, layout: Layout, shifts: Shifts):
        self.layout, self.shifts = layout, shifts
        self.renamed: dict[Any, Any] = {}

    @cached_property
    def bars(self) -> list[tuple[int, int]]:
        """By an mbarrier's flat index in the cluster: its index there, and whether its parity flips."""
        layout = self.layout
        found = []
        for cta in range(layout.ctas):
            for i, (barrier, stage) in enumerate(layout.bars):
                laps, position = divmod(stage + self.shifts.get((cta, barrier.name), 0), barrier.stages)
                found.append((cta * layout.nbars + i - stage + position, laps & 1))
        return found

    @cached_property
    def slots(self) -> list[int]:
        """By a slot's flat index in the cluster: its index there."""
        layout = self.layout
        found = []
        for cta in range(layout.ctas):
            for i, (buffer, stage) in enumerate(layout.slots):
                array, position, around = slot_position(buffer, stage)
                shift = self.shifts.get((cta, array), 0)
                found.append(cta * layout.nslots + i - position + (position + shift) % around)
        return found

    def op(self, agent: int, op: Any) -> Any:
        """The same operation of a warp there."""
        layout, cta = self.layout, agent // self.layout.warps
        bars, slots = cta * layout.nbars, cta * layout.nslots
        key = cta, without_position(op)
        found = self.renamed.get(key)
        if found is None:
            of = declared(type(op))
            changes: dict[str, Any] = {
                name: self.slots[slots + getattr(op, name)] - slots for name in of.named(Kind.SLOT)
            }
            for name in of.named(Kind.BAR):
                there, flips = self.bars[bars + getattr(op, name)]
                changes[name] = there - bars
                changes.update({parity: getattr(op, parity) ^ flips for parity in of.named(Kind.PARITY)})
            found = self.renamed[key] = op._replace(**changes) if changes else op
        return found
