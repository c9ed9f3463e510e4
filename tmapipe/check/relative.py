"""Programs as relative operations, so that segments that differ only in their position in the ring compare equal.

The i-th iteration of a loop over a ring uses stage i mod S, with a parity that flips with every lap. As relative operations
(`positions`), all iterations are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tmapipe.check.positions import Key, Positions, Shifts, iteration_of, without_position
from tmapipe.isa.effects import declared
from tmapipe.isa.operands import Kind
from tmapipe.machine.layout import Layout
from tmapipe.machine.programs import Program

__all__ = ["Renaming", "RelativeRun", "origin_of", "parts_of"]


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
        self._renamed: dict[Any, Any] = {}
        self._parts: dict[int, Any] = {}

    @cached_property
    def bars(self) -> list[tuple[int, int]]:
        """By an mbarrier's flat index in the cluster: its index there, and whether its parity flips."""
        layout = self.layout
        found = []
        for cta in range(layout.ctas):
            for i, (array, stage, stages) in enumerate(layout.bar_places):
                laps, position = divmod(stage + self.shifts.get((cta, array), 0), stages)
                found.append((cta * layout.nbars + i - stage + position, laps & 1))
        return found

    @cached_property
    def slots(self) -> list[int]:
        """By a slot's flat index in the cluster: its index there."""
        layout = self.layout
        found = []
        for cta in range(layout.ctas):
            for i, (array, position, around) in enumerate(layout.slot_places):
                shift = self.shifts.get((cta, array), 0)
                found.append(cta * layout.nslots + i - position + (position + shift) % around)
        return found

    def parts(self, parts: list[list[Any]]) -> list[list[Any]]:
        """The same operations of all warps there; made once for each list."""
        if id(parts) not in self._parts:
            made = [[self.op(agent, op) for op in part] for agent, part in enumerate(parts)]
            self._parts[id(parts)] = parts, made  # which stays alive, and its id its own
        return self._parts[id(parts)][1]

    def op(self, agent: int, op: Any) -> Any:
        """The same operation of a warp there."""
        layout, cta = self.layout, agent // self.layout.warps
        bars, slots = cta * layout.nbars, cta * layout.nslots
        key = cta, without_position(op)
        found = self._renamed.get(key)
        if found is None:
            of = declared(type(op))
            changes: dict[str, Any] = {
                name: self.slots[slots + getattr(op, name)] - slots for name in of.named(Kind.SLOT)
            }
            for name in of.named(Kind.BAR):
                there, flips = self.bars[bars + getattr(op, name)]
                changes[name] = there - bars
                changes.update({parity: getattr(op, parity) ^ flips for parity in of.named(Kind.PARITY)})
            found = self._renamed[key] = op._replace(**changes) if changes else op
        return found
