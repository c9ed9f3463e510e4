"""How far each warp is in its arrays of barriers and slots, the names of stages from there, and the operations that may
still come in a program."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Container, Iterable, Mapping
from copy import copy
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from tmapipe.check.slots import COPY, COUNTED
from tmapipe.errors import PipelineError
from tmapipe.isa import ArriveAt, Init, Kind, declared
from tmapipe.model.layout import Layout
from tmapipe.program.expressions import Call, For, If, While
from tmapipe.prove.places import is_role
from tmapipe.prove.shared import Shared
from tmapipe.prove.symbols import Sym, leaf, truth
from tmapipe.prove.walker import Open, Walker

# ---- positions -------------------------------------------------------------------------------------------------------
#
# How far each warp is in its arrays of barriers and slots. The *sort* of an operation is its type, with the name of the
# operand that is a slot, and whether it reaches peers.


PositionKey = tuple[int, Any, str]  # warp, sort of operation, array of barriers or slots
Place = tuple[Any, str, int, int]  # sort of operation, array, stage, stages: for waits, counted through two laps
Shifts = dict[tuple[int, str], int]  # (CTA, array) -> stages
PEERS = "peers"  # the last part of the sort of operations that reach peers
CLUSTER = -1  # the cluster's barrier, among the numbers of named ones


class Positions:
    """How far each warp is.

    at: by (warp, sort of operation, array), the stage of the warp's last operation (for waits, stage + stages * parity), less
    the slots that the warp's team has skipped; skipped: by (warp, array), the number of these slots; touched: by the same key
    as *at*, all stages of the run so far; first: likewise, those that first iterations use, of `everything`; arrivals: (warp,
    named barrier or CLUSTER) of the run so far.
    """

    def __init__(self, layout: Layout):
        self.layout = layout
        self.at: dict[PositionKey, int] = {}
        self.skipped: dict[tuple[int, str], int] = {}
        self.touched: dict[PositionKey, set[int]] = {}
        self.first: dict[PositionKey, list[int]] = {}
        self.arrivals: set[tuple[int, int]] = set()
        self._places: dict[Any, list[Place]] = {}
        self._positions: Any = None

    def copy(self) -> Positions:
        other = copy(self)
        other.at, other.skipped, other._positions = dict(self.at), dict(self.skipped), None
        return other

    def moved(self) -> None:
        """Warps have moved on: `of` looks again where they are."""
        self._positions = None

    def places(self, op: Any) -> list[Place]:
        """The places of an operation in its arrays."""
        key = without_data(op)
        if key not in self._places:
            self._places[key] = _places(self.layout, op)
        return self._places[key]

    def meet(self, agent: int, op: Any) -> None:
        """Notes an operation that has no places, if it arrives at a barrier of warps."""
        meets = declared(type(op)).effect(ArriveAt)
        if meets is not None:
            self.arrivals.add((agent, getattr(op, meets.barrier) if meets.barrier else CLUSTER))

    def of(self, live: Live) -> tuple[Any, bytes]:
        """By key of *live*: the stage where the warp is; and, as bytes, how far that is from the first key of the array, and
        whether the warp has executed such an operation. Kept until warps move on."""
        if self._positions is None:
            at, skipped = self.at, self.skipped
            now = np.array([at.get(key, 0) + skipped.get((key[0], key[2]), 0) for key in live.keys], np.int64)
            apart = (now - now[live.first]) % live.around
            self._positions = now, apart.tobytes() + bytes([key in at for key in live.keys])
        return self._positions


class Live:
    """Warps' sorts of operations that may come again.

    arrays: (CTAs, name, first key): the index in *keys* of the array's first key, of a wait if there is one. first, around: by
    key, the first key of its array, and the number of positions in it. An array that no peer signals or writes to counts as
    one array a CTA: CTAs may stand at different positions of it.
    """

    def __init__(self, layout: Layout, keys: Iterable[PositionKey]):
        self.keys = tuple(keys)
        stages = stages_of(layout)
        laps = [1 + tells_parity(sort) for _, sort, _ in self.keys]
        self.around = np.array([stages[array] * n for (_, _, array), n in zip(self.keys, laps, strict=True)], np.int64)
        self.first = np.zeros(len(self.keys), np.int64)
        self.arrays = []
        shared = {array for _, sort, array in self.keys if at_peers(sort)}
        every = tuple(range(layout.ctas))
        for ctas, array in dict.fromkeys(
            (every if array in shared else (agent // layout.warps,), array) for agent, _, array in self.keys
        ):
            own = [i for i, key in enumerate(self.keys) if key[2] == array and key[0] // layout.warps in ctas]
            first = self.first[own] = max(own, key=lambda i: (laps[i], -i))
            self.arrays.append((ctas, array, first))

    def shifts(self, moved: Any) -> Shifts:
        """By how many stages each array has moved on. moved: the same by key, of which the array's first key counts."""
        found: Shifts = {}
        for ctas, array, first in self.arrays:
            found.update(dict.fromkeys([(cta, array) for cta in ctas], int(moved[first] % self.around[first])))
        return found


def stages_of(layout: Layout) -> dict[str, int]:
    """Stages of each array of barriers or slots."""
    return {array: around for array, _, around in (*layout.bar_places, *layout.slot_places)}


def without_data(op: Any) -> Any:
    """The operation without operands that only data depends on, and with its type: operations of different types can be equal
    as tuples."""
    kind = type(op)
    data = _data_operands(kind)  # type: ignore[arg-type]
    return (kind, op._replace(**data)) if data else (kind, op)


@functools.cache
def _data_operands(kind: Any) -> dict[str, Any]:
    """The operands that only data depends on, each with nothing in it."""
    return dict.fromkeys(declared(kind).named(Kind.AT), ())


def at_peers(sort: Any) -> bool:
    """Whether operations of this sort reach other CTAs."""
    return isinstance(sort, tuple) and sort[-1] is PEERS


def tells_parity(sort: Any) -> bool:
    """Whether operations of this sort name a phase's parity beside its barrier."""
    return isinstance(sort, type) and bool(declared(sort).named(Kind.PARITY))


def _places(layout: Layout, op: Any) -> list[Place]:
    kind, of = type(op), declared(type(op))
    parities = of.named(Kind.PARITY)
    laps = 2 if parities else 1  # a lap flips the parity
    lap = getattr(op, parities[0]) if parities else 0
    found: list[Place] = []
    far = (PEERS,) if any(getattr(op, name) is not None for name in of.named(Kind.MASK)) else ()
    for name in of.named(Kind.BAR):
        array, stage, stages = layout.bar_places[getattr(op, name)]
        found.append(((kind, *far) if far else kind, array, stage + stages * lap, laps * stages))
    for name in of.named(Kind.SLOT):
        found.append(((kind, name, *far), *layout.slot_places[getattr(op, name)]))
    return found


# ---- renaming --------------------------------------------------------------------------------------------------------
#
# The barriers and slots of one state, by their numbers in another one in which all warps are further around the rings.


class Renaming:
    """shifts: by CTA and array, by how many stages numbers differ, as of `Live.shifts`."""

    def __init__(self, layout: Layout, shifts: Shifts):
        self.layout, self.shifts = layout, shifts
        self._renamed: dict[Any, Any] = {}

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

    def op(self, agent: int, op: Any) -> Any:
        """The same operation of a warp there."""
        layout, cta = self.layout, agent // self.layout.warps
        bars, slots = cta * layout.nbars, cta * layout.nslots
        key = cta, without_data(op)
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


# ---- future ----------------------------------------------------------------------------------------------------------
#
# Who will use what: which warps can be checked against a fact, by the operations that may still come. A warp that uses one
# stage of a ring comes to use all.


FactKey = tuple[Any, ...]  # the name of a fact, or of a *knower*: a warp, or a barrier from which warps can learn


class Future:
    """What *every* operation that may come does.

    live: the sorts of operations; sets: the numbers of sets of warps, by name; checked: by number of a set and warp, whether
    the warp is in it; as_one: by number, whether it is enough that one warp of the set knows a fact; waiters: by
    set of warps, the mbarriers of the cluster for which these wait; visits: a `Visits`.
    """

    def __init__(self, layout: Layout, every: Positions):
        self.layout, self.touched, self.first = layout, every.touched, every.first
        arrivers: dict[int, list[int]] = {CLUSTER: []}
        for agent, id in sorted(every.arrivals):
            which = CLUSTER if id == CLUSTER else 16 * (agent // layout.warps) + id
            arrivers.setdefault(which, []).append(agent)
        self.live = Live(layout, self.touched)
        waits = self._by_bar(key for key in self.live.keys if tells_parity(key[1]))
        self.waiters: dict[tuple[int, ...], list[int]] = {}
        for bar, those in waits.items():
            self.waiters.setdefault(tuple(those), []).append(bar)
        sets: dict[FactKey, Iterable[int]] = {("all",): range(layout.agents), ("nobody",): ()}
        for kind, by_place in (("slot", self._users()), ("barrier", arrivers), ("use", self._by_bar(self.touched))):
            sets.update({(kind, place): agents for place, agents in by_place.items()})
        sets.update({("bar", bar): agents for bar, agents in waits.items()})
        sets.update({("exit", cta): layout.cta_warps(cta) for cta in range(layout.ctas)})
        self.sets = {key: number for number, key in enumerate(sets)}
        self.checked = np.zeros((len(sets), layout.agents), bool)
        for row, agents in zip(self.checked, sets.values(), strict=True):
            row[list(agents)] = True
        self.as_one = np.array([key[0] == "exit" for key in sets])
        self.checked_of = _Numbers(lambda key: self.sets[_checked_against(key, self.sets)])  # by fact
        self.facts: dict[FactKey, int] = {}  # numbers of facts, the same in all states
        self.knowers: dict[FactKey, int] = {}  # numbers of knowers, likewise
        self.forms: dict[tuple[Any, ...], int] = {}  # numbers of what must be equal in two states, likewise
        self.visits: Any = None
        self._here: dict[tuple[int, ...], Here] = {}

    def here(self, positions: Positions) -> Here:
        """Names where the warps are."""
        shifts = self.live.shifts(-positions.of(self.live)[0])
        key = tuple(shifts.values())
        if key not in self._here:
            self._here[key] = Here(self, Renaming(self.layout, shifts))
        return self._here[key]

    def _by_bar(self, keys: Iterable[PositionKey]) -> dict[int, list[int]]:
        """By mbarrier of the cluster, the warps of those keys whose operations use it."""
        layout = self.layout
        found: dict[int, list[int]] = {}
        for agent, sort, array in keys:
            if array in layout.bar_base:
                for cta in range(layout.ctas) if at_peers(sort) else (agent // layout.warps,):
                    first = cta * layout.nbars + layout.bar_base[array]
                    for bar in range(first, first + layout.plan.barrier(array).stages):
                        found.setdefault(bar, []).append(agent)
        return found

    def _users(self) -> dict[int, list[int]]:
        """The users of each slot. A warp that accesses one slot of a buffer counts as a user of all slots that other users of
        that slot access."""
        layout = self.layout
        found: dict[int, list[int]] = {}
        first_slots: dict[str, int] = {}
        for i, (array, _, _) in enumerate(layout.slot_places):
            first_slots.setdefault(array, i)
        of_array: dict[str, list[set[int]]] = {}
        for (_, _, array), stages in self.touched.items():
            if stages not in of_array.setdefault(array, []):
                of_array[array].append(stages)
        for (agent, sort, array), stages in self.touched.items():
            if array not in first_slots:
                continue
            for others in 2 * of_array[array]:
                stages = stages | others if stages & others else stages
            for cta in range(layout.ctas) if at_peers(sort) else (agent // layout.warps,):
                for stage in stages:
                    for alias in layout.aliases[first_slots[array] + stage]:
                        found.setdefault(cta * layout.nslots + alias, []).append(agent)
        return found


class Here:
    """Numbers of facts and knowers, by their names in one state. rename: to stages counted from where the warps are."""

    def __init__(self, future: Future, rename: Renaming):
        knowers, facts = future.knowers, future.facts
        self.rename = rename
        self.knowers = _Numbers(lambda key: _number(knowers, rename, key))
        self.facts = _Numbers(lambda key: _number(facts, rename, key))


def _checked_against(fact: FactKey, sets: Mapping[FactKey, int]) -> FactKey:
    """The set of warps that can be checked against a fact."""
    kind: str = fact[0]
    which: FactKey = ("all",)
    if kind in ("arrival", "far read"):
        which = "exit", fact[1]
    elif kind == "slot" and fact[2] == COPY and fact[-1] != "fenced":
        pass  # a proxy fence by any warp that knows its end counts
    elif kind in ("slot", "barrier"):
        which = fact[:2]
    elif kind == "bar" and fact[2] in ("landing", "sent"):
        which = "exit", fact[3]
    elif kind == "bar" and fact[2] != "loads of":
        which = fact[:2] if fact[2] in ("before", "last but one") else ("use", fact[1])
    return which if which in sets else ("nobody",)


class _Numbers(dict[FactKey, Any]):
    """Numbers that are made when they are first asked for."""

    def __init__(self, make: Callable[[FactKey], Any]):
        self.make = make

    def __missing__(self, key: FactKey) -> Any:
        self[key] = made = self.make(key)
        return made


def _number(numbers: dict[FactKey, int], rename: Renaming, key: FactKey) -> int:
    """Of a fact or a knower, with its barriers and slots renamed."""
    kind = key[0]
    if kind == "slot":
        bars = (rename.bars[key[4]][0], *key[5:]) if key[2] in COUNTED else key[4:]
        key = (kind, rename.slots[key[1]], *key[2:4], *bars)
    elif kind in ("bar", "present", "complete"):
        key = (kind, rename.bars[key[1]][0], *key[2:])
    return numbers.setdefault(key, len(numbers))


# ---- everything ------------------------------------------------------------------------------------------------------
#
# All operations that may come in a program, found without running it. They say what a state has to remember.


def everything(shared: Shared, pinned: Container[Any]) -> tuple[Positions, dict[PositionKey, int]]:
    """All operations that may come, at all stages of their arrays; and, except in *pinned* arrays, the stage before each
    warp's first operation of a sort."""
    found = Positions(shared.layout)
    origin: dict[PositionKey, int] = {}
    for agent in range(shared.layout.agents):
        _Everything(pinned, Walker(shared, agent), found, origin).nodes(shared.program.nodes)
    return found, origin


def foreseen(come: Positions, every: Positions) -> bool:
    """Whether the operations that have come in a run are among *every* operation."""
    return (
        every.touched.keys() >= {key for key in come.touched if not is_init(key[1])} and come.arrivals <= every.arrivals
    )


def is_init(sort: Any) -> bool:
    """Whether operations of this sort initialize an mbarrier."""
    return isinstance(sort, type) and declared(sort).effect(Init) is not None


class _Everything:
    """One warp's way through a program, through both arms of branches and one iteration of loops of open count."""

    def __init__(self, pinned: Container[Any], walker: Walker, found: Positions, origin: dict[PositionKey, int]):
        self.pinned, self.walker, self.found, self.origin = pinned, walker, found, origin
        self.sure = True  # whether nodes are executed in a first iteration

    def nodes(self, nodes: list[Any]) -> None:
        for node in nodes:
            self._node(node)

    def _node(self, node: Any) -> None:
        walker, kind = self.walker, type(node)
        if kind is not Call and walker.shared.inert(node):
            return
        if kind is If:
            condition = truth(walker.number(node.condition))
            arms = [(node.then, 1), (node.other, 2)]
            if not isinstance(condition, Sym):
                (other, _), arms = arms[condition], [arms[not condition]]
                if not is_role(node):
                    self._maybe(other)
            for body, which in arms:
                self.nodes(body)
                for phi in node.phis:
                    if phi[0] in walker.shared.decides:
                        walker.env[phi[0]] = walker.number(phi[which])
        elif kind in (For, While):
            count: Any = walker.number(node.count) if kind is For else None
            walker._start(node)
            if kind is For:
                walker.env[node.index] = 0 if not isinstance(count, Sym) else leaf("turn", "some")
            if kind is While or isinstance(count, Sym) or count > 0:
                times = count if isinstance(count, int) and count <= 16 else 1
                for i in range(times):
                    if kind is For and isinstance(count, int):
                        walker.env[node.index] = i
                    self.nodes(node.body)
                    walker._next(node)
            walker.leave_loop(node)
        elif kind is Call and node.method == "skip":
            walker.env.update(zip(node.results, map(walker.number, node.args[:2]), strict=True))
        elif kind is Call:
            self._call(node)
            if "when" in node.named and not walker.queue:
                self._maybe([self._always(node)])

    def _call(self, node: Call) -> None:
        walker = self.walker
        walker.queue.clear()
        walker.frames = [("block", [node], 0)]
        walker._call(node, lambda condition: True)
        for op in walker.queue:
            self._note(op)

    def _always(self, node: Call) -> Call:
        """An instruction without its condition."""
        return attrs.evolve(node, named={**node.named, "when": True})

    def _maybe(self, nodes: list[Any]) -> None:
        """Notes the operations of nodes that the first iteration leaves out: a later one may come to them."""
        env, sure = dict(self.walker.env), self.sure
        self.sure = False
        with contextlib.suppress(PipelineError, Open):
            self.nodes(nodes)
        self.walker.env, self.sure = env, sure

    def _note(self, op: Any) -> None:
        agent, found = self.walker.agent, self.found
        if is_init(type(op)):
            return  # never again
        if not found.places(op):
            found.meet(agent, op)
        for sort, array, position, around in found.places(op):
            key = agent, sort, array
            found.touched[key] = set(range(around))
            found.first.setdefault(key, []).append(position)
            if self.sure and key[2] not in self.pinned:
                self.origin.setdefault(key, (position - 1) % around)  # so that first iterations are like all others
