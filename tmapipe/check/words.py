"""Programs as words: operations with stages and parities counted from the last ones, so that equal turns look equal.

The i-th turn of a loop over a ring uses stage i mod S, with a parity that flips with every lap; as letters (`places`), all
turns are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from tmapipe.check.places import Key, Places, slot_place, turn_of, without_place
from tmapipe.isa.effects import Kind, declared
from tmapipe.isa.ops import Exit
from tmapipe.machine import MachineIsa
from tmapipe.machine.layout import Layout
from tmapipe.machine.machine import at_most

__all__ = ["Program", "Renaming", "TileWords", "origin_of", "parts_of", "record_marked"]

MAX_OPERATIONS = 1_000_000  # of one warp; problems are small, and take thousands


class Program(NamedTuple):
    """One warp's operations. tiles: index at which each turn of its tile loop starts, and at which the last one ends."""

    ops: list[Any]
    tiles: list[int]

    def tile(self, i: int) -> list[Any]:
        """The operations of the i-th turn."""
        return self.ops[self.tiles[i] : self.tiles[i + 1]]

    @property
    def turns(self) -> int:
        return len(self.tiles) - 1


def record_marked(
    layout: Layout, entry: Callable[[Any], None], shapes: dict[str, tuple[int, ...]], ctas: int | None = None
) -> list[Program]:
    """Each warp's operations, `Exit` last, with the turns of the outermost `Isa.loop` marked. ctas: only of the first ones."""
    programs = []
    for agent in range(layout.agents if ctas is None else ctas * layout.warps):
        program: list[Any] = []
        marks: list[int] = []
        isa: Any = MachineIsa(layout, agent, 0, 1, shapes, at_most(MAX_OPERATIONS, program))
        isa.loop = _marking(program, marks)
        entry(isa)
        program.append(Exit())
        programs.append(Program(program, marks or [len(program) - 1]))
    return programs


def _marking(program: list[Any], marks: list[int]) -> Callable[[int, Callable[[int], None]], None]:
    inside = False

    def loop(trips: int, body: Callable[[int], None]) -> None:
        nonlocal inside
        if inside:
            for i in range(trips):
                body(i)
            return
        inside = True
        start = len(program)
        found = []
        for i in range(trips):
            found.append(len(program))
            body(i)
        inside = False
        if len(program) > start or not marks:  # a loop that only moves on in its rings is no turn
            marks[:] = [*found, len(program)]

    return loop


class TileWords:
    """The programs of one run as words. head, tail: by warp; tiles: by tile and warp (empty for other teams' warps); starts:
    where the warps are before each tile and after the last one; end: at the end.

    origin: where the warps are said to be before their first tile: a stage before the one that they begin with, so that first
    turns look like all others. parts: operations taken apart, shared among runs."""

    def __init__(
        self, layout: Layout, programs: Sequence[Program], tiles: int, origin: dict[Key, int], parts: dict[Any, Any]
    ):
        self.end = Places(layout)
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
    """Where the warps were before their first tile, if the first turns of each of *group* teams move on as the next ones do.
    *programs*: of so many *tiles*."""
    words = TileWords(layout, programs, tiles, {}, {})
    found: dict[Key, int] = {}
    for tile in range(tiles - group):
        places = words.starts[tile]
        for agent, part in enumerate(parts_of(layout, programs, tile)):
            for op, first, later in zip(part, words.tiles[tile][agent], words.tiles[tile + group][agent], strict=False):
                if first[0] != later[0]:
                    break
                for (key, place, around), step in zip(places.moves(agent, op), later[1:], strict=False):
                    if key not in found and key not in places.at and type(step) is int:
                        found[key] = (place - step) % around
    return found


def parts_of(layout: Layout, programs: Sequence[Program], tile: int) -> list[list[Any]]:
    """By warp: its operations for *tile*, none if another team handles it."""
    turns = [turn_of(layout, agent, tile) for agent in range(layout.agents)]
    return [[] if t is None or t >= p.turns else p.tile(t) for p, t in zip(programs, turns, strict=True)]


class Renaming:
    """Stages of one moment, as they are called in another. shifts: as `Places.shifts_from` gives them."""

    def __init__(self, layout: Layout, shifts: dict[str, int]):
        self.layout, self.shifts = layout, shifts
        self.renamed: dict[Any, Any] = {}

    @cached_property
    def bars(self) -> list[tuple[int, int]]:
        """By an mbarrier's flat index in the cluster: its index there, and whether its parity flips."""
        layout = self.layout
        found = []
        for i, (barrier, stage) in enumerate(layout.bars):
            turns, place = divmod(stage + self.shifts.get(barrier.name, 0), barrier.stages)
            found.append((i - stage + place, turns & 1))
        return [(cta * layout.nbars + i, flips) for cta in range(layout.ctas) for i, flips in found]

    @cached_property
    def slots(self) -> list[int]:
        """By a slot's flat index in the cluster: its index there."""
        layout = self.layout
        found = []
        for i, (buffer, stage) in enumerate(layout.slots):
            array, place, around = slot_place(buffer, stage)
            found.append(i - place + (place + self.shifts.get(array, 0)) % around)
        return [cta * layout.nslots + i for cta in range(layout.ctas) for i in found]

    def op(self, op: Any) -> Any:
        """The same operation there."""
        key = without_place(op)
        found = self.renamed.get(key)
        if found is None:
            of = declared(type(op))
            changes: dict[str, Any] = {name: self.slots[getattr(op, name)] for name in of.named(Kind.SLOT)}
            for name in of.named(Kind.BAR):
                changes[name], flips = self.bars[getattr(op, name)]
                changes.update({parity: getattr(op, parity) ^ flips for parity in of.named(Kind.PARITY)})
            found = self.renamed[key] = op._replace(**changes) if changes else op
        return found
