"""The instruction set with which programs are recorded: what varies is `Varying` inside bodies, and plain elsewhere.

The library's own loop over tiles sees plain numbers. Bodies, and what a schedule says about its slots (`ring_slots`), see:

    tile.m, tile.n     coordinates, of the cluster's tile: the CTA's are these, times the cluster's extent, plus its own
    tile.first, ...    what else the order says of a tile
    k.steps, extents   from the extents of the dimensions
    cluster_id, clusters
    entries of tables
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tmapipe.errors import ScopeError
from tmapipe.integers import ceil_div
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.globals import TableLoad
from tmapipe.machine.alike import Alike, Own
from tmapipe.machine.carried import Changes
from tmapipe.machine.decisions import COUNT, Decisions, Reduction, Term
from tmapipe.machine.layout import Layout, Shapes
from tmapipe.machine.locate import locate
from tmapipe.machine.moves import Call
from tmapipe.machine.varying import UNBOUNDED, VALUE, Condition, Varying
from tmapipe.machine.varying_names import greatest
from tmapipe.machine.warp import MachineIsa
from tmapipe.plan.model import Load, Store
from tmapipe.protocol.cluster import cluster_coordinate
from tmapipe.protocol.tile import Tile
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["RecordingIsa", "Tables"]

Key = tuple[Any, ...]
Tables = Mapping[str, Sequence[int]]

FREE = Term(None, None, per_tile=True)
COUNTED = Term(0, None, per_tile=True)
VARY = frozenset({Varying, Condition})


class RecordingIsa(MachineIsa):
    """One warp's program, recorded.

    Args:
        decisions: Where uses of what varies are noted.
        values_of: The values of terms at the tile with this number; by default those of the problem.
        numbered: The dimension by which tiles are numbered.
        tables: Entries that bodies read; 1 where there is none.
        shifted: Whether each tile of a warp begins one slot further in all rings than its last one, whatever that has taken.
    """

    def __init__(
        self,
        layout: Layout,
        agent: int,
        cluster_id: int,
        clusters: int,
        shapes: Shapes,
        emit: Callable[[Any], None],
        *,
        decisions: Decisions,
        values_of: Callable[[int], Mapping[Key, int]] | None = None,
        numbered: str = "",
        tables: Tables | None = None,
        shifted: bool = False,
    ):
        self.inside, self.shifted = False, shifted
        self.decisions, self.values_of, self.numbered = decisions, values_of, numbered
        self.tables: Tables = tables or {}
        self.calls = self.bodies = 0
        self.call_of: Call | None = None  # the call of a body that is being recorded
        super().__init__(layout, agent, cluster_id, clusters, shapes, self._plain_operands(emit))
        self.alike = alike = Alike(agent, range(layout.agents))
        self.agent, self.warp = alike.number(int), alike.number(lambda each: each % layout.warps)
        self.cta_rank = alike.number(lambda each: each // layout.warps)

    # ---- what bodies see ------------------------------------------------------------------------------------------

    def call(self, body: Callable[..., None], *arguments: Any) -> None:
        self._at(lambda *given: super(RecordingIsa, self).call(body, *given), arguments, body=True)

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._at(lambda *given: self.decisions.use(COUNT, function(*given)), arguments)

    def _at(self, function: Callable[..., Any], arguments: tuple[Any, ...], body: bool = False) -> Any:
        """Calls *function* with what varies in its arguments: `k`, and maybe a `Tile`, are among them."""
        tile = next((each for each in arguments if isinstance(each, Tile)), None)
        number = 0 if tile is None else tile.get(self.numbered)
        number = self.calls if number is None else int(number // self.plan.cluster.get(self.numbered, 1))
        self.calls += tile is not None
        context = next(each for each in arguments if hasattr(each, "name_of"))
        if self.shifted and body and tile is not None:
            self._shift(context, self.bodies)
            self.bodies += 1
        before, tiles = dict(vars(context)), context.tiles
        decisions, clusters = self.decisions, (self.cluster_id, self.clusters)
        self.inside, context.tiles = True, _Hidden()
        place = None if tile is None or not body else self._place(tile)
        decisions.values, decisions.around = self.values_of(number) if self.values_of else {}, []
        self.call_of = Call(decisions.run, place, decisions.values, self.alike) if body else None
        self.cluster_id = decisions.symbol(("symbol", "the cluster's number"), self.cluster_id, Term(0, None))
        self.clusters = decisions.symbol(("symbol", "the number of clusters"), self.clusters, Term(1, None))
        try:
            seen = None if tile is None else tile.changed(self._number)
            result = function(*(seen if each is tile else each for each in arguments))
        finally:
            self.inside, context.tiles, (self.cluster_id, self.clusters) = False, tiles, clusters
        if self.call_of is not None:
            decisions.calls.append(self.call_of)
            self.call_of = None
        changed = [name for name, value in vars(context).items() if name not in before or before[name] is not value]
        if changed:
            raise ScopeError(
                f"k.{changed[0]} is set by the body of role {context.role.name!r}. A body keeps no state: what it does may "
                "depend on its arguments alone. Use local names, or Isa.cells within one tile."
            )
        return result

    def _place(self, tile: Tile) -> dict[str, int]:
        """The coordinates of the cluster's tile, in tiles of a cluster."""
        found = {}
        for dim, extent in ((dim, self.plan.cluster.get(dim, 1)) for dim in self._dims):
            value = tile.get(dim)
            if value is not None:
                of_cluster = (value - cluster_coordinate(self, dim)) // extent
                found[dim] = int(of_cluster.here if type(of_cluster) is Own else of_cluster)
        return found

    def _shift(self, context: Any, slots: int) -> None:
        for end in context.ends.values():
            laps, index = divmod(slots, end.ring.stages)
            end.state[0], end.state[1] = index, (1 if end.phase == 0 else 0) ^ (laps & 1)

    def _number(self, name: str, value: Any) -> Any:
        """A coordinate of a tile, or something else that the order says about it."""
        if type(value) not in (int, Own):
            return value
        grid = self.plan.cluster
        if name in self._same:
            known = COUNTED if value >= 0 else FREE
            return self.decisions.symbol(("symbol", f"tile.{name}"), value, known)
        if name in grid or name in self._dims:
            extent, own = grid.get(name, 1), cluster_coordinate(self, name)
            if (value - own) % extent == 0:
                index = self.decisions.symbol(("symbol", f"tile.{name}"), (value - own) // extent, COUNTED)
                return index * extent + own
        here = f" of CTA {self.cta_rank}" if self.layout.ctas > 1 else ""
        return self.decisions.symbol(("symbol", f"tile.{name}{here}"), value, FREE)

    _same = ("first", "steps")  # the same for all CTAs of a cluster

    @property
    def _dims(self) -> set[str]:
        return {dim for part in self.plan.transfers for dim in part.dims}

    def extent(self, argument: str, dim: int) -> Any:
        value = self._shapes[argument][dim]
        return self._extent(self.plan.dims[argument][dim], value) if self.inside else value

    def _extent(self, name: str, value: int) -> Any:
        """The extent of a dimension: fixed, computed of that of another one, or a symbol."""
        relation = next((each for each in self.plan.relations if each.name == name), None)
        if relation is None or (relation.size is None and relation.of is None):
            return self.decisions.symbol(
                ("extent", name), value, Term(1, None if relation is None else relation.at_most)
            )
        if relation.size is not None:
            return value
        known = ((a, dims.index(relation.of)) for a, dims in self.plan.dims.items() if relation.of in dims)
        base = next((self._shapes[argument][i] for argument, i in known), value * relation.per)
        found = ceil_div(self._extent(str(relation.of), base), relation.per) + relation.plus
        return found if relation.plus >= 0 else greatest(found, 0)

    # ---- control flow ---------------------------------------------------------------------------------------------

    def select(self, condition: Any, then: Any, otherwise: Any) -> Any:
        if isinstance(condition, Condition):
            return condition.choose(then, otherwise)
        return super().select(condition, then, otherwise)

    def loop(self, trips: Any, body: Callable[[Any], None]) -> None:
        if not isinstance(trips, Varying):
            return super().loop(trips, body)
        changes = Changes(self.decisions.carries)
        for i in self.decisions.iterations(0, trips, 1):
            body(i)
            names = inspect.getclosurevars(body).nonlocals if inspect.isfunction(body) else {}
            changes.look(names, names)

    # ---- what answers ---------------------------------------------------------------------------------------------

    def load_entry(self, table: str, i: Any, without_data: int) -> Any:
        if not self.inside:
            return super().load_entry(table, i, without_data)
        form, of = (i.form, frozenset(i.terms)) if isinstance(i, Varying) else (int(i), frozenset())
        at = int(self.plain(i))
        self.emit(TableLoad(table, (at,)))
        entries = self.tables.get(table, ())
        known = self.decisions.derived(of, UNBOUNDED, entry=True)
        return self.decisions.symbol(("entry", table, form), entries[at] if 0 <= at < len(entries) else 1, known)

    def ballot(self, table: str, first: Any, count: Any, holds: Any, without_data: int) -> Any:
        votes = super().ballot(table, int(first), int(count), holds, without_data)
        return self._answer("votes", votes)

    def smid(self) -> Any:
        return self._answer("the number of the multiprocessor", super().smid())

    def atomic_add(self, counter: Any, in_turn: Callable[[], int]) -> Any:
        return self._answer("a counter", super().atomic_add(counter, in_turn))

    def _answer(self, name: str, value: int) -> Any:
        """What only this warp knows."""
        name = f"{name} in warp {self.agent}"
        return self.decisions.symbol(("symbol", name), value, COUNTED) if self.inside else value

    # ---- operands -------------------------------------------------------------------------------------------------

    def window_start(self, load: Any, number: Any) -> tuple[Any, ...]:
        return (0,) * (len(load.dims) - 1)  # where something is copied from: no use

    def start(self, of: Any, at: Sequence[Any]) -> tuple[int, ...]:
        """Where something is copied from or to: no use, but along the last dimension it must be a multiple of some bytes."""
        if at and isinstance(at[-1], Varying):
            self.decisions.starts(at[-1], max(1, (of.vector or ALIGNMENT) // of.buffer.dtype.bytes))
        if isinstance(of, Store):
            self.decisions.stored.add(of.name)
        if self.call_of is not None:
            self._note(of, at)
        plain = tuple([self.plain(x) for x in at])
        super().start(of, [x.here if type(x) is Own else x for x in plain])
        return plain

    def _note(self, of: Load | Store, at: Sequence[Any]) -> None:
        """Notes where a tile is moved. Loads of a kind of tile are noted at the first two iterations of loops."""
        decisions, call = self.decisions, self.call_of
        assert call is not None
        around = decisions.around
        if of.name not in decisions.lines:
            decisions.lines[of.name] = locate()
        if type(of) is Store or self.values_of is None or all(decisions.iteration[index] < 2 for index in around):
            loops = tuple([(index, decisions.counts[index]) for index in around])
            turn = tuple([decisions.iteration[index] for index in around])
            call.moves.append((of, tuple(at), loops, turn, locate() if decisions.located else None))

    def tma_gather(self, load: Any, *operands: Any) -> None:
        self.decisions.by_rows.add(load.name)
        super().tma_gather(load, *operands)

    def tma_scatter(self, store: Any, *operands: Any) -> None:
        self.decisions.by_rows.add(store.name)
        super().tma_scatter(store, *operands)

    def reduces(self, values: Fragment, along: str, inside: Any) -> None:
        """Notes what is reduced, and how much of it counts, if that varies."""
        layout, varies = values.layout, isinstance(inside, Varying)
        if self.inside and layout is not None:
            found = Reduction(layout.rows, layout.columns, along, inside.form if varies else None)
            if (varies or inside is None) and found not in self.decisions.reductions:
                self.decisions.reductions[found] = locate()

    def tma_load(
        self, load: Any, stage: Any, at: Sequence[Any], *more: Any, anywhere: bool = False, **named: Any
    ) -> None:
        super().tma_load(load, stage, at, *more, anywhere=anywhere or self._by_entries(at), **named)

    def cp_async(
        self, load: Any, stage: Any, at: Sequence[Any], barrier: Any, share: Any, shares: int, anywhere: bool
    ) -> None:
        super().cp_async(load, stage, at, barrier, share, shares, anywhere or self._by_entries(at))

    def _by_entries(self, at: Sequence[Any]) -> bool:
        """Whether entries of tables say where a tile starts. Which those are is no matter of the program."""
        return any(isinstance(x, Varying) and self.decisions.of_entries(x) for x in at)

    def plain(self, number: Any) -> Any:
        return number.value if isinstance(number, Varying) else number

    def _plain_operands(self, emit: Callable[[Any], None]) -> Callable[[Any], None]:
        """Where an operation is the same whatever an operand's value, its value is not used: the rest are uses."""

        def add(op: Any) -> None:
            if self.inside and not VARY.isdisjoint(map(type, op)):
                op = type(op)(*(_used(self.decisions, x) for x in op))
            emit(op)

        return add


def _used(decisions: Decisions, operand: Any) -> Any:
    if isinstance(operand, Varying):
        return decisions.use(VALUE, operand)
    return bool(operand) if isinstance(operand, Condition) else operand


class _Hidden:
    """In the place of what a body must not look at."""

    def __getattr__(self, name: str) -> Any:
        raise ScopeError(
            f"k.tiles.{name} in a body: the loop over tiles is the library's. Use the tile that is passed."
        )
