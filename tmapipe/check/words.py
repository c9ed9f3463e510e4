"""Programs as words: operations with stages and parities counted from the last ones, so that equal turns look equal.

The i-th turn of a loop over a ring uses stage i mod S, with a parity that flips with every lap. As a *letter*, an operation
tells how far it moves on from the warp's last operation of its sort on the same array of barriers or slots; so turns that
differ only in the place in the ring have the same letters. `Places` is where each warp has come to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

from tmapipe.machine import MachineIsa, ops
from tmapipe.machine.layout import Layout
from tmapipe.machine.ops import Exit

__all__ = [
    "CLUSTER",
    "Key",
    "Places",
    "Program",
    "Renaming",
    "TileWords",
    "origin_of",
    "parts_of",
    "record_marked",
    "turn_of",
    "without_place",
]

Key = tuple[int, Any, str]  # warp, sort of operation, array of barriers or slots
CLUSTER = -1  # the cluster's barrier, among the numbers of named ones

_PLACES = ("bar", "slot", "a", "b", "at", "where")  # operands that tell a place, or do not matter to the protocol


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
        isa: Any = MachineIsa(layout, agent, 0, 1, shapes, program.append)
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


class Places:
    """Where each warp has come to. By (warp, sort of operation, array), at: the last stage (for waits, stage + stages *
    parity), not counting what the warp's team has passed over. skipped: by (warp, array), how much it has passed over."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.at: dict[Key, int] = {}
        self.skipped: dict[tuple[int, str], int] = {}
        self.touched: dict[Key, set[int]] = {}  # all stages so far, at the end of the run
        self.arrivals: set[tuple[int, int]] = set()  # (warp, named barrier, or CLUSTER) so far, at the end of the run
        self.parts: dict[Any, Any] = {}  # operations taken apart
        self.guides = _guides(layout)
        self.stages = {barrier.name: barrier.stages for barrier in layout.plan.barriers}
        self.stages.update({"slots of " + buffer.name: buffer.stages for buffer in layout.plan.buffers})

    def copy(self) -> Places:
        other = copy(self)
        other.at, other.skipped = dict(self.at), dict(self.skipped)
        return other

    def advance(self, tile: int | None, parts: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """All warps execute their parts, which belong to *tile* (None: to none). Returns them as words. Teams that do not
        handle the tile pass over the slots that it takes."""
        words = [[self._letter(agent, op) for op in part] for agent, part in enumerate(parts)]
        if tile is not None:
            for (agent, array), (guide, awaited) in self.guides.items():
                if turn_of(self.layout, agent, tile) is None:
                    waits = (op for op in parts[guide] if type(op) is ops.MbarWait)
                    turns = sum(self.layout.bars[op.bar][0].name == awaited for op in waits)
                    self.skipped[agent, array] = self.skipped.get((agent, array), 0) + turns
        return words

    def move_on(self, start: Places, end: Places) -> None:
        """All warps move on as others, that were at *start*, did to *end*."""
        for key, place in end.at.items():
            if key not in start.at:
                self.at[key] = place
            elif start.at[key] != place:
                around = self.stages[key[2]] * (1 + (key[1] is ops.MbarWait))
                self.at[key] = (self.at[key] + place - start.at[key]) % around
        for where, slots in end.skipped.items():
            self.skipped[where] = self.skipped.get(where, 0) + slots - start.skipped.get(where, 0)

    def moves(self, agent: int, op: Any) -> list[tuple[Key, int, int]]:
        """What one operation of the warp does: (key, stage, stages), the stage less what its team has passed over."""
        found = []
        for sort, array, place, around in _cached(self, op)[1]:
            found.append(((agent, sort, array), (place - self.skipped.get((agent, array), 0)) % around, around))
        return found

    def _letter(self, agent: int, op: Any) -> Any:
        rest, moves = _cached(self, op)
        if not moves:
            if rest[0] is ops.BarArrive or rest[0] is ops.ClusterArrive:
                self.arrivals.add((agent, CLUSTER if rest[0] is ops.ClusterArrive else op.id))
            return rest
        at, skipped, touched = self.at, self.skipped, self.touched
        letter = [rest]
        for sort, array, place, around in moves:
            key = agent, sort, array
            if key in touched:
                touched[key].add(place)
            else:
                touched[key] = {place}
            if skipped:
                place = (place - skipped.get((agent, array), 0)) % around
            last = at.get(key)
            at[key] = place
            letter.append(("first", place) if last is None else (place - last) % around)
        return tuple(letter)

    def shifts_from(self, before: Places, live: Iterable[Key]) -> dict[str, int] | None:
        """By array of barriers or slots: by how many stages (and parity flips) the warps have moved on since *before*; None
        if they have not moved alike. live: what still comes, of which alone the places matter."""
        found: dict[str, int] = {}
        by_key = {}
        for key in live:
            if (key in self.at) != (key in before.at):
                return None
            agent, _, array = key
            passed = self.skipped.get((agent, array), 0) - before.skipped.get((agent, array), 0)
            by_key[key] = passed + (self.at[key] - before.at[key] if key in self.at else 0)
        for waits in (True, False):  # those tell the parity, too
            for (_, sort, array), shift in by_key.items():
                if (sort is ops.MbarWait) == waits:
                    around = self.stages[array] * (1 + waits)
                    if found.setdefault(array, shift % around) % around != shift % around:
                        return None
        return found


def without_place(op: Any) -> Any:
    """The operation without coordinates, and with its type, since operations of different types can be equal as tuples."""
    kind = type(op)
    return (kind, op._replace(at=())) if kind is ops.TmaLoad or kind is ops.TmaStore else (kind, op)


def _cached(places: Places, op: Any) -> Any:
    key = without_place(op)
    parts = places.parts.get(key)
    if parts is None:
        parts = places.parts[key] = _apart(places.layout, op)
    return parts


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
            found.append(i - stage + (stage + self.shifts.get("slots of " + buffer.name, 0)) % buffer.stages)
        return [cta * layout.nslots + i for cta in range(layout.ctas) for i in found]

    def op(self, op: Any) -> Any:
        """The same operation there."""
        key = without_place(op)
        found = self.renamed.get(key)
        if found is None:
            changes: dict[str, Any] = {
                name: self.slots[getattr(op, name)] for name in ("slot", "a", "b") if hasattr(op, name)
            }
            if hasattr(op, "bar"):
                changes["bar"], flips = self.bars[op.bar]
                if hasattr(op, "parity"):
                    changes["parity"] = op.parity ^ flips
            found = self.renamed[key] = op._replace(**changes) if changes else op
        return found


def turn_of(layout: Layout, agent: int, tile: int) -> int | None:
    """Which turn of the warp's tile loop handles *tile*; None if another team does."""
    name = layout.role(agent)
    role = layout.plan.role(name) if name != "idle" else None
    if role is None or role.teams == 1:
        return tile
    return tile // role.teams if tile % role.teams == role.team(agent % layout.warps) else None


def _guides(layout: Layout) -> dict[tuple[int, str], tuple[int, str]]:
    """For each warp of a role of several teams, and each array of its rings: a warp that takes part in every tile, and the
    barriers that it waits for once a slot."""
    found = {}
    for agent in range(layout.agents):
        name = layout.role(agent)
        if name == "idle" or layout.plan.role(name).teams == 1:
            continue
        for ring in layout.plan.rings:
            guides = [r for phase in ring.phases for r in phase if layout.plan.role(r).teams == 1]
            if ring.phase_of(name) is None or not guides:
                continue
            guide = agent // layout.warps * layout.warps + layout.plan.role(guides[0]).first_warp
            awaited = ring.barriers[ring.phase_of(guides[0]) - 1].name  # type: ignore[operator]
            arrays = {barrier.name for barrier in ring.barriers}
            arrays |= {
                "slots of " + load.buffer.name for load in layout.plan.loads if load.buffer.stages == ring.stages
            }
            found.update({(agent, array): (guide, awaited) for array in arrays})
    return found


def _apart(layout: Layout, op: Any) -> tuple[Any, list[tuple[Any, str, int, int]]]:
    """An operation without its places, and these: (sort, array, place, places around)."""
    kind = type(op)
    rest = kind, *(value for name, value in zip(op._fields, op, strict=True) if name not in _PLACES)
    moves: list[tuple[Any, str, int, int]] = []
    if hasattr(op, "bar"):
        barrier, stage = layout.bars[op.bar]
        if kind is ops.MbarWait:
            place = stage + barrier.stages * op.parity
            return (kind, barrier.name), [(kind, barrier.name, place, 2 * barrier.stages)]
        moves.append((kind, barrier.name, stage, barrier.stages))
    for name in ("slot", "a", "b"):
        slot = getattr(op, name, None)
        if slot is not None:
            buffer, stage = layout.slots[slot]
            moves.append(((kind, name), "slots of " + buffer.name, stage, buffer.stages))
    return (*rest, *(array for _, array, _, _ in moves)), moves
