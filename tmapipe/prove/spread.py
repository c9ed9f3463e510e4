"""Two reasons why it does not matter whether a warp knows a fact: nobody can learn it from that warp, or all who need it are
going to know it."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Container, Iterable
from typing import Any, NamedTuple

import numpy as np

from tmapipe.isa import Arm, Arrive, ArriveAt, Group, Proxy, Start, Wait, WaitAt, declared
from tmapipe.isa.fragment import ClusterExchange
from tmapipe.model.layout import Layout
from tmapipe.plan.rings import Barrier
from tmapipe.program.expressions import Call, If, Let
from tmapipe.prove.places import is_role
from tmapipe.prove.positions import CLUSTER, FactKey, Future, PositionKey, at_peers, is_init, stages_of, tells_parity
from tmapipe.prove.shared import Shared, arrays_of
from tmapipe.prove.symbols import truth
from tmapipe.prove.walker import Open, Walker

# ---- spread ----------------------------------------------------------------------------------------------------------
#
# By which barriers knowledge can still come from one warp to another.
#
# A warp that arrives at a barrier tells the warps that wait for it later, and so on, along a chain of warps. If all chains
# to the warps that need a fact pass a warp that knows the fact, other warps' knowledge does not matter.


class Uses(NamedTuple):
    """Arrays of barriers, as bits. tells: at which a warp arrives; far: in other CTAs too; hears: for which it waits."""

    tells: int = 0
    far: int = 0
    hears: int = 0

    def __or__(self, other: Any) -> Uses:
        return Uses(self.tells | other.tells, self.far | other.far, self.hears | other.hears)


def _all(uses: Iterable[Uses]) -> Uses:
    return functools.reduce(operator.or_, uses, Uses())


class Spread:
    """The uses of barriers in one program, by node and warp.

    Arrays of mbarriers are bits, and three more stand for the named barriers of a CTA, the wgmmas of a warpgroup, and the
    cluster's barrier.
    """

    def __init__(self, shared: Shared):
        self.shared, self.layout = shared, shared.layout
        self.arrays = {name: 1 << i for i, name in enumerate(self.layout.bar_base)}
        self.named, self.group, self.cluster = (1 << len(self.arrays) + i for i in range(3))
        self._blocks: dict[tuple[int, int, int], Uses] = {}
        self._call = functools.cache(self._of_call)
        self.telling = functools.cache(functools.partial(Telling, self))
        self._seen: set[tuple[int, type]] = set()

    def from_here(self, walkers: list[Walker]) -> Telling:
        """Who can still tell whom, by what the warps still come to."""
        return self.telling(tuple(map(self._rest, walkers)))

    def foresee(self, node: Call, op: Any) -> None:
        """Raises `Open` if an operation is not among those that its node is known for."""
        key = id(node), type(op)
        if key not in self._seen:
            of, uses = self._of_op(op), self._call(node)
            if (of | uses) != uses:
                raise Open(f"what {node.method} does at {node.where}")
            self._seen.add(key)

    # ---- by warp and node ---------------------------------------------------------------------------------------------

    def _rest(self, walker: Walker) -> Uses:
        """The uses in all that a warp still comes to, at the barriers of its CTA and cluster even by returning."""
        found = Uses(self.named | self.cluster)
        for frame in walker.frames:
            if frame[0] == "block":
                found |= self._block(walker, frame[1], frame[2])
            elif frame[0] in ("joint", "for", "one", "head"):
                found |= self.of_node(walker, frame[1])
        for op in walker.queue:
            found |= self._of_op(op)
        return found

    def _block(self, walker: Walker, nodes: list[Any], at: int = 0) -> Uses:
        key = walker.agent, id(nodes), at
        if key not in self._blocks:
            self._blocks[key] = _all(self.of_node(walker, node) for node in nodes[at:])
        return self._blocks[key]

    def of_node(self, walker: Walker, node: Any) -> Uses:
        if type(node) is Call:
            return self._call(node)
        arms = [node.then, node.other] if type(node) is If else [] if type(node) is Let else [node.body]
        if type(node) is If and is_role(node):
            arms = [node.then if truth(walker.number(node.condition)) else node.other]
        return _all(self._block(walker, arm) for arm in arms)

    def _of_call(self, node: Call) -> Uses:
        if node.ops:
            return _all(map(self._of_op, node.ops))
        barriers = (x.full if isinstance(x, ClusterExchange) else x for x in node.args)
        bits = (self.arrays[x.name] for x in barriers if isinstance(x, Barrier))
        return _all(Uses(bit, bit, bit) for bit in bits)

    def _of_op(self, op: Any) -> Uses:
        of = declared(type(op))
        tells = far = hears = 0

        def bit(name: str) -> int:
            bar = getattr(op, name)
            return self.arrays[bar[0].name if isinstance(bar, tuple) else self.layout.bar_places[bar][0]]

        for effect in of.effects:
            if isinstance(effect, Wait):
                hears |= bit(effect.bar)
            elif isinstance(effect, (Arrive, Arm)) or (isinstance(effect, Start) and effect.until.bar):
                own = bit(effect.until.bar if isinstance(effect, Start) else effect.bar)
                tells |= own
                mask = getattr(effect, "mask", "")
                far |= own if mask and getattr(op, mask) is not None else 0
            elif isinstance(effect, (ArriveAt, WaitAt)):
                at = self.named if effect.barrier else self.cluster
                tells, hears = (tells | at, hears) if isinstance(effect, ArriveAt) else (tells, hears | at)
            elif getattr(getattr(effect, "until", effect), "group", None) is Group.WGMMA:
                tells, hears = tells | self.group, hears | self.group
        return Uses(tells, far, hears)


class Telling:
    """Whether a warp can still learn something from another warp. tells: [b, a], whether warp a can learn from warp b."""

    def __init__(self, spread: Spread, uses: tuple[Uses, ...]):
        self.spread, self.layout, self.uses = spread, spread.layout, uses
        agents = range(self.layout.agents)
        self.tells = np.array([[self._tells(b, a) for a in agents] for b in agents])
        self._reached: dict[bytes, bytes] = {}
        self.heard, self.heard_by = functools.cache(self._heard), functools.cache(self._heard_by)

    def _tells(self, b: int, a: int) -> bool:
        layout, spread = self.layout, self.spread
        same = self.uses[b].tells & self.uses[a].hears
        if same & (spread.cluster | self.uses[b].far):
            return True
        if not same or layout.cta_of(a) != layout.cta_of(b):
            return False
        return bool(same & ~spread.group) or layout.group_of(a) == layout.group_of(b)

    def matter(self, bars: list[int], lacking: Any, knowing: Any, knowers: list[Any]) -> Any:
        """Whether it matters who knows a fact, by fact and knower.

        Args:
            bars: By fact: the mbarrier that it is about, or -1.
            lacking: By fact and warp: whether the warp can be checked against it and does not know it.
            knowing: By fact and warp: whether it knows it.
        """
        packed = np.packbits(np.hstack([lacking, knowing]), axis=1)
        cases, of = np.unique(packed.view(np.dtype((np.void, packed.shape[1]))), return_inverse=True)
        found = [case.tobytes() for case in cases]
        new = [case for case in found if case not in self._reached]
        if new:
            self._reached.update(zip(new, self._reach(new), strict=True))
        reach = np.frombuffer(b"".join([self._reached[case] for case in found]), np.uint8)
        heard, own = self.heard_by(tuple(knowers))
        who = _meet(reach.reshape(len(found), heard.shape[1]), heard)
        return who[of.ravel()] | (np.array(bars)[:, None] == own[None, :])

    def _reach(self, cases: list[bytes]) -> list[bytes]:
        """For each case, the warps from which a fact can still come to a warp that lacks it, past no warp that knows it. A
        case has bits of the warps that lack the fact, then bits of the warps that know it."""
        agents = self.layout.agents
        bits = np.array([[*case] for case in cases], np.uint8)
        apart = np.unpackbits(bits, axis=1, count=2 * agents).astype(bool)
        reach, knowing = apart[:, :agents], apart[:, agents:]
        tells = np.packbits(self.tells, axis=1)
        while True:
            more = reach | (_meet(np.packbits(reach, axis=1), tells) & ~knowing)
            if (more == reach).all():
                return [row.tobytes() for row in np.packbits(reach, axis=1)]
            reach = more

    def _heard_by(self, knowers: tuple[Any, ...]) -> tuple[Any, Any]:
        """By knower: bits of `_heard`, and the mbarrier whose present or complete phase it is, or -2."""
        own = [key[1] if key[0] in ("present", "complete") else -2 for key in knowers]
        return np.packbits([self.heard(key) for key in knowers], axis=1), np.array(own)

    def _heard(self, key: Any) -> Any:
        """Who can learn directly what a warp or barrier knows, itself included."""
        found = np.zeros(self.layout.agents, bool)
        found[self._who_hears(key)] = True
        return found

    def _who_hears(self, key: Any) -> list[int]:
        layout, spread, kind = self.layout, self.spread, key[0]
        if kind in ("warp", "all lanes of"):
            return [key[1]]
        if kind == "exit":
            return list(layout.cta_warps(key[1]))
        if kind == "wgmma":
            return list(layout.group_warps(key[1]))
        if kind == "barrier":
            bit, cta = (spread.cluster, None) if key[1] == CLUSTER else (spread.named, key[1] // 16)
        else:
            cta, bar = divmod(key[1], layout.nbars)
            bit = spread.arrays[layout.bar_places[bar][0]]
        agents = range(layout.agents) if cta is None else layout.cta_warps(cta)
        return [agent for agent in agents if self.uses[agent].hears & bit]


def _meet(some: Any, others: Any) -> Any:
    """By set of *some* and set of *others*, as bits: whether they have a member in common."""
    found = np.zeros((len(some), len(others)), bool)
    for i in range(some.shape[1]):
        found |= (some[:, i, None] & others[None, :, i]) != 0
    return found


# ---- visits ----------------------------------------------------------------------------------------------------------
#
# Facts about a slot of a ring that a warp learns before the warp is checked against these facts.
#
# A warp *visits* the slots of a ring one after another. It waits for the slot's mbarrier, and works on the slot within a few
# visits. After the warp has left a slot, its next access to this slot comes after its next wait there. That wait sees the
# last complete phase, or the next phase, to which other warps contribute in visits of their own.
#
# Warps of teams skip slots. But they come to a ring in a *turn*: between a wait for an mbarrier of a turnstile and an arrival
# at the turnstile's next mbarrier. So after its turn, a warp's next access to any slot comes after its next wait there.
#
# The search compares each operation with this description (`watch`, `complete`). If a visit differs, the search goes on
# without the visits of that kind, or begins again if it has left out a state by this description.


OVER = "turn over"  # in the place of the sort in a key of positions: 1 after a warp's turn, 0 in its turn


class Visits:
    """Warps that visit the slots of rings, and what they are going to know.

    depth: by (warp, array of mbarriers that it waits for), in how many visits the warp is done with a slot; turns: by array of
    a turnstile and warp, the stage of the warp's first wait, of two laps; guards: by array, the turnstile in whose turns warps
    of teams come to the array; broken: (warp, array) of visits and turns that are not as described, (turnstile, array) of
    arrays to which warps come at other times, and (CTA, array, warp) of warps that do not contribute to each phase; changed:
    whether depth or broken has changed since `begin`.
    """

    def __init__(self, layout: Layout):
        self.layout, plan = layout, layout.plan
        self.stages = stages_of(layout)
        self.depth: dict[tuple[int, str], int] = {}
        self.broken: set[tuple[Any, ...]] = set()
        rings = [(ring.lag, arrays_of(plan, ring)) for ring in plan.rings]
        if plan.queue is not None:
            rings.append(({}, [plan.queue.full.name, plan.queue.free.name, f"slots of {plan.queue.buffer.name}"]))
        often = Counter(array for _, arrays in rings for array in arrays)
        self.rings = [(lag, [array for array in arrays if often[array] == 1]) for lag, arrays in rings]
        named = {role.name for role in plan.roles if role.teams > 1}
        self.in_turn = {agent for agent in range(layout.agents) if layout.role(agent) in named}

    def begin(self, future: Future) -> None:
        """Begins a description, by what has been seen so far. It assumes no more than the one before."""
        layout, self.changed = self.layout, False
        waits: dict[tuple[int, str], list[PositionKey]] = {}
        for key in future.touched:
            if tells_parity(key[1]):
                waits.setdefault(key[::2], []).append(key)
        self._find_turns(future, waits)
        self.tellers: dict[int, list[int]] = {}  # by mbarrier, who contributes to each phase
        for agent, sort, array in future.touched:
            kind = sort[0] if isinstance(sort, tuple) else sort
            of: Any = declared(kind)
            tells = array in layout.bar_base and (of.effect(Arrive) or of.effect(Arm) or _loads(kind))
            if tells and (agent in self.in_turn) == (array in self.turns):
                every = range(self.stages[array])
                stages = future.first[agent, sort, array] if agent in self.in_turn else every
                for cta in range(layout.ctas) if at_peers(sort) else (layout.cta_of(agent),):
                    for stage in stages if (cta, array, agent) not in self.broken else ():
                        self.tellers.setdefault(self._bars(cta, array)[stage], []).append(agent)
        self.keys: list[PositionKey] = []  # by visit, the sort of its waits
        self.visit: dict[tuple[int, str], int] = {}  # (warp, array) -> visit
        self.hearers: dict[int, list[int]] = {}  # by mbarrier, who waits for each phase
        for lag, arrays in self.rings:
            for agent in range(layout.agents):
                keys = [key for array in arrays for key in waits.get((agent, array), ())]
                if len(keys) == 1 and agent not in self.in_turn and (agent, keys[0][2]) not in self.broken:
                    name = keys[0][2]
                    self.depth.setdefault((agent, name), 1 + lag.get(layout.role(agent), 0))
                    same = [array for array in arrays if self.stages.get(array) == self.stages[name]]
                    self.visit.update(((agent, array), len(self.keys)) for array in same)
                    self.keys.append(keys[0])
                    for bar in self._bars(layout.cta_of(agent), name):
                        self.hearers.setdefault(bar, []).append(agent)
        self.first_turn = len(self.keys)  # the visits from here on are turns
        for name, own in self.turns.items():
            for agent in own:
                self.visit.update(((agent, array), len(self.keys)) for array, by in self.guards.items() if by == name)
                self.keys += waits[agent, name]
                self.hearers.setdefault(self._own_bar(agent, name), []).append(agent)
        if self.keys:
            self._tables(future)

    def _find_turns(self, future: Future, waits: dict[tuple[int, str], list[PositionKey]]) -> None:
        """Finds the turnstiles of teams: each warp waits for one mbarrier, and arrives at others."""
        self.turns: dict[str, dict[int, int]] = {}
        of_rings = {array for _, arrays in self.rings for array in arrays}
        arrives = {key[::2] for key in future.touched if not tells_parity(key[1])}
        for of, keys in waits.items():
            agent, array = of
            if agent in self.in_turn and array not in of_rings and len(keys) == 1 and of in arrives - self.broken:
                self.turns.setdefault(array, {})[agent] = future.first[keys[0]][0]
        inside: dict[int, list[str]] = {}  # by warp, the turnstiles in whose turns it is
        guards: dict[str, list[str]] = {}
        for agent, sort, array in future.touched:  # in the order in which a warp first comes to them
            own = inside.setdefault(agent, [])
            if agent in self.turns.get(array, ()):
                inside[agent] = [name for name in own if name != array] + [array] * tells_parity(sort)
            elif agent in self.in_turn:
                guards[array] = [t for t in guards.get(array, own) if t in own and (t, array) not in self.broken]
        self.guards = {array: found[0] for array, found in guards.items() if found and array not in self.turns}

    def _own_bar(self, agent: int, turnstile: str) -> int:
        """The mbarrier that a warp waits for."""
        stage = self.turns[turnstile][agent] % self.stages[turnstile]
        return self._bars(self.layout.cta_of(agent), turnstile)[stage]

    def _bars(self, cta: int, array: str) -> range:
        first = cta * self.layout.nbars + self.layout.bar_base[array]
        return range(first, first + self.stages[array])

    def _tables(self, future: Future) -> None:
        """What `leave_out` looks up, by set of warps that are checked against facts of one slot or mbarrier, and by warp."""
        layout, shape = self.layout, (len(future.sets), self.layout.agents)
        arrays_of_warp: dict[int, set[str]] = {}
        for agent, _, array in future.touched:
            arrays_of_warp.setdefault(agent, set()).add(array)
        aliases = [{layout.slot_places[alias][0] for alias in layout.aliases[i]} for i in range(layout.nslots)]
        self.stage = np.zeros((shape[0], 1), int)
        self.visits = np.zeros(shape, int)  # its visits there
        self.which = np.full(shape, -1)  # the number of its mbarrier among `bars`, those of its stage
        self.only = np.zeros(shape, bool)  # whether it comes there by visits only
        visits: dict[str, list[tuple[int, int]]] = {}
        for (agent, array), visit in self.visit.items():
            visits.setdefault(array, []).append((agent, visit))
        bars: list[list[int]] = []
        for row, (kind, *place) in enumerate(future.sets):
            own: dict[int, int] = {}
            if kind in ("slot", "use") or (kind == "bar" and self.turns):
                here = place[0] % (layout.nslots if kind == "slot" else layout.nbars)
                array, self.stage[row], _ = (layout.slot_places if kind == "slot" else layout.bar_places)[here]
                for agent, visit in visits.get(array, ()):
                    of, same = self.keys[visit][2], {array}
                    if visit >= self.first_turn:
                        bar, same = self._own_bar(agent, of), {name for name, turn in self.guards.items() if turn == of}
                    elif kind == "bar":
                        continue
                    else:
                        bar = self._bars(layout.cta_of(agent), of)[self.stage[row, 0]]
                    self.visits[row, agent], self.which[row, agent] = visit, own.setdefault(bar, len(own))
                    self.only[row, agent] = kind != "slot" or arrays_of_warp[agent] & aliases[here] <= same
            bars.append([*own])
        most = max(map(len, bars))
        self.bars = np.array([own + [-1] * (most - len(own)) for own in bars]).reshape(-1, most)
        self.tells = np.zeros((layout.ctas * layout.nbars + 1, layout.agents), bool)  # the last row: of no mbarrier
        for bar, agents in self.tellers.items():
            self.tells[bar, agents] = True
        self.around = np.array([self.stages[array] for _, _, array in self.keys])
        self.deep = np.array([self.depth.get((agent, array), 0) for agent, _, array in self.keys])

    # ---- whether visits are as described ----------------------------------------------------------------------------------

    def place(self, agent: int, sort: Any, array: str, stage: int) -> Any:
        """What is to be looked at when an operation comes: the key of its visit's waits; its stage, or None for such a wait;
        and the stages, of two laps, at which the last wait may have been. None: nothing."""
        visit = self.visit.get((agent, array))
        if visit is None or is_init(sort):  # which comes before all visits
            return None
        key, laps = self.keys[visit], 2 * self.stages[array]
        if visit >= self.first_turn:
            return (agent, OVER, key[2]), array, {0}
        if (agent, sort, array) == key:
            return key, None, {(stage - 1) % laps}
        depth = self.depth[agent, key[2]]
        return key, stage, {(stage + i + lap) % laps for i in range(depth) for lap in (0, laps // 2)}

    def turn(self, agent: int, sort: Any, array: str, stage: int) -> list[Any]:
        """What is to be looked at when a warp begins or ends a turn, as of `place`; nothing for other operations."""
        own = self.turns.get(array, {}).get(agent)
        if own is None or is_init(sort):
            return []
        over, stages = (agent, OVER, array), self.stages[array]
        if not tells_parity(sort):
            return [(over, None, {0})]
        before = {(stage + stages) % (2 * stages), *((None, (stage - 1) % (2 * stages)) if stage == own else ())}
        return [(over, None, {None, 1}), ((agent, sort, array), None, before if (stage - own) % stages == 0 else ())]

    def watch(self, key: PositionKey, stage: Any, last: int | None) -> None:
        """An operation comes after another wait than `place` and `turn` say, or outside of its turn. last: the stage of that
        wait, if there was one."""
        of = key[::2]
        if key[0] in self.in_turn:
            self.changed = True
            self.broken.add(of if stage is None else (key[2], stage))
            return
        if last is None and stage is None:
            return  # the first wait
        self.changed = True
        if last is None or stage is None:
            self.broken.add(of)
        else:
            self.depth[of] = max(self.depth[of], (last - stage) % self.stages[key[2]] + 1)

    def complete(self, bar: int, number: int, phase: Any, waits: Container[int]) -> None:
        """A phase of an mbarrier completes. waits: the warps that have waited for the phase before."""
        cta, own = divmod(bar, self.layout.nbars)
        array = self.layout.bar_places[own][0]
        missed: list[Any] = [(agent, array) for agent in self.hearers.get(bar, ()) if number and agent not in waits]
        loads = [step.agent for step in phase.steps if _loads(type(step.op))]  # type: ignore[arg-type]
        told = () if phase.relaxed else {*phase.by, *loads}
        missed += [(cta, array, a) for a in self.tellers.get(bar, ()) if a not in told]
        if missed:
            self.changed = True
            self.broken.update(missed)

    # ---- facts that need not be remembered --------------------------------------------------------------------------------

    def leave_out(self, state: Any, sets: Any, every: Any, knowers: dict[FactKey, int], lacking: Any) -> None:
        """Takes out of *lacking* each warp that will know a fact before the warp is checked against it.

        Args:
            state: A `RunState`.
            sets: By fact, the set of warps that can be checked against it; -1: a fact that is not looked at.
            every: By fact and clock, whether it knows it, the warps' clocks first.
            knowers: Of each knower, the number of its clock.
            lacking: By fact and warp, whether it may be checked against it and does not know it. This is changed.
        """
        if not self.keys:
            return
        at, skipped = state.positions.at, state.positions.skipped
        lasts = np.array([-1 if key[::2] in skipped else at.get(key, -1) for key in self.keys])
        for i, (agent, _, array) in enumerate(self.keys[self.first_turn :], self.first_turn):
            over, stages = at.get((agent, OVER, array)), self.stages[array]
            first = (self.turns[array][agent] + stages) % (2 * stages)  # as if this had been the last wait
            lasts[i] = first if over is None else lasts[i] if over else -1
        last, around = lasts[self.visits], self.around[self.visits]
        ahead = np.where(self.visits < self.first_turn, (self.stage - last) % around, around)
        left = (self.which >= 0) & (last >= 0) & (ahead > 0) & (ahead <= around - self.deep[self.visits])
        rows = np.flatnonzero((sets >= 0) & (lacking & (left & self.only)[sets]).any(1))
        if not len(rows):
            return
        (used, of), known = np.unique(sets[rows], return_inverse=True), every[rows]
        bars, which, agents = self.bars[used], np.maximum(self.which[used], 0), self.layout.agents
        parity = (last[used] + ahead[used]) % (2 * around[used]) // around[used]
        phases = np.array([*state.state.phase, 0])
        is_over = (phases[np.take_along_axis(bars, which, axis=1)] & 1) != parity  # what the next wait sees
        fresh = np.array([*(not (phase.by or phase.landed) for phase in state.check.phases.now), False])
        tells = np.packbits(self.tells & fresh[:, None], axis=1)[bars][of]
        early, late = ((left[used] & seen)[of] for seen in (is_over, ~is_over))
        bars, which = bars[of], which[of]
        over, present = (self._known_to(name, known, bars, knowers) for name in ("complete", "present"))
        will = known[:, :agents] | (early & np.take_along_axis(over, which, axis=1))
        count: Any = -1
        while count != (count := np.count_nonzero(will)):
            then = present | (tells & np.packbits(will, axis=1)[:, None, :]).any(2)
            will |= late & np.take_along_axis(then, which, axis=1)
        lacking[rows] &= ~(will & self.only[sets[rows]])

    def _known_to(self, name: str, known: Any, bars: Any, knowers: dict[FactKey, int]) -> Any:
        """By fact and mbarrier, whether its phase of this name knows the fact."""
        columns = np.array([*(knowers.get((name, bar), -1) for bar in range(len(self.tells) - 1)), -1])[bars]
        return np.take_along_axis(known, np.maximum(columns, 0), axis=1) & (columns >= 0)


@functools.cache
def _loads(op: type) -> bool:
    """Whether an engine counts bytes on an mbarrier for the operation: its phase comes to know what the issuer knew."""
    return any(start.until.bar and start.proxy is Proxy.ASYNC for start in declared(op).all(Start))
