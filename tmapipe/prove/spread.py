"""Knowledge of warps: by which ways a fact can still reach a warp, and which operations of a program may still come."""

from __future__ import annotations

import contextlib
from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np

from tmapipe.errors import PipelineError
from tmapipe.isa import Arm, Arrive, ArriveAt, Group, Init, Kind, Start, Wait, WaitAt, declared
from tmapipe.isa.fragment import ClusterExchange
from tmapipe.plan.rings import Barrier
from tmapipe.program.expressions import Call, For, If, While
from tmapipe.prove.places import is_role
from tmapipe.prove.positions import CLUSTER, PositionKey, Positions
from tmapipe.prove.shared import Shared
from tmapipe.prove.symbols import Sym, leaf, truth
from tmapipe.prove.walker import Open, Walker

# ---- everything ------------------------------------------------------------------------------------------------------
#
# All operations of a program that may still come, which says what a state has to remember.


def everything(shared: Shared, pinned: Container[Any]) -> tuple[Positions, dict[PositionKey, int]]:
    """All operations that may come, at all places of their arrays; and positions before them, but for *pinned* arrays."""
    found = Positions(shared.layout)
    origin: dict[PositionKey, int] = {}
    for agent in range(shared.layout.agents):
        _Everything(pinned, Walker(shared, agent), found, origin).nodes(shared.program.nodes)
    return found, origin


def are_apart(program: Any) -> bool:
    """Whether the CTAs of a cluster do nothing to each other: no operation reaches a peer or its slots, they meet at most
    once, outside of loops, and load nothing that the kernel stores."""
    plan = program.plan
    if plan.cluster_size == 1 or {load.memory for load in plan.loads} & {store.memory for store in plan.stores}:
        return False
    meetings, blocks = 0, [(program.nodes, True)]
    while blocks:
        nodes, outermost = blocks.pop()
        for node in nodes:
            blocks.append((node.inside, False))
            if type(node) is Call:
                if any(isinstance(x, ClusterExchange) for x in (*node.args, *node.named.values())):
                    return False
                for op in node.ops:
                    of = declared(type(op))
                    if any(getattr(op, name) is not None for name in of.named(Kind.MASK)):
                        return False
                    meets = of.effect(ArriveAt)
                    if meets is not None and not meets.barrier:
                        meetings += 1 if outermost else 2
    return meetings <= 1


def foreseen(come: Positions, every: Positions) -> bool:
    """Whether what has come in a run (copies of its positions note that together) is among *every* operation."""
    sorts = ((agent, sort, array) for agent, sort, array in come.touched if not (type(sort) is type and _is_init(sort)))
    return every.touched.keys() >= set(sorts) and come.arrivals <= every.arrivals


def _is_init(op: type) -> bool:
    return declared(op).effect(Init) is not None


class _Everything:
    """Walks a program once, both arms and one iteration of each loop, and notes the operations of one warp."""

    def __init__(self, pinned: Container[Any], walker: Walker, found: Positions, origin: dict[PositionKey, int]):
        self.pinned, self.walker, self.found, self.origin = pinned, walker, found, origin
        self.sure = True  # whether what is walked through comes in a first iteration

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
        found = Call(node.method, node.args, {**node.named, "when": True}, node.results, node.ops, node.where or "")
        return self.walker.shared.alive(found)

    def _maybe(self, nodes: list[Any]) -> None:
        """What the first iteration leaves out may come in a later one, from other places."""
        env, sure = dict(self.walker.env), self.sure
        self.sure = False
        with contextlib.suppress(PipelineError, Open):
            self.nodes(nodes)
        self.walker.env, self.sure = env, sure

    def _note(self, op: Any) -> None:
        agent, found = self.walker.agent, self.found
        if _is_init(type(op)):
            return  # never again
        found.relative(agent, op)
        for key, position, around in found.moves(agent, op):
            found.touched[key] = set(range(around))
            if self.sure and key[2] not in self.pinned:
                self.origin.setdefault(key, (position - 1) % around)  # so that first iterations are like all others


# ---- spread ----------------------------------------------------------------------------------------------------------
#
# How what somebody knows can still come to others: by which barriers, from where all warps are.
#
# Whoever arrives at a barrier tells those who wait for it later. What an operation of a warp is checked against may
# have come to it by a chain of such steps. If all of these chains pass warps that know a fact already, it is of no
# matter who else does.


class Uses(NamedTuple):
    """Sets of arrays of barriers, as bits. tells: to whose waiters something is told; far: in all CTAs; hears: waited for."""

    tells: int = 0
    far: int = 0
    hears: int = 0

    def __or__(self, other: Any) -> Uses:
        return Uses(self.tells | other.tells, self.far | other.far, self.hears | other.hears)


class Spread:
    """The uses of barriers in one program, by node, for each warp.

    Arrays of mbarriers are bits, and three more stand for the named barriers of a CTA, the wgmmas of a warpgroup, and the
    cluster's barrier.
    """

    def __init__(self, shared: Shared):
        self.shared, self.layout = shared, shared.layout
        self.arrays = {name: 1 << i for i, name in enumerate(self.layout.bar_base)}
        self.named, self.group, self.cluster = (1 << len(self.arrays) + i for i in range(3))
        self._calls: dict[int, Uses] = {}
        self._nodes: dict[tuple[int, int], Uses] = {}
        self._blocks: dict[tuple[int, int, int], Uses] = {}
        self._tellings: dict[Any, Telling] = {}
        self._seen: set[tuple[int, type]] = set()

    def from_here(self, walkers: list[Walker]) -> Telling:
        """Who can still tell whom."""
        uses = tuple(map(self._rest, walkers))
        if uses not in self._tellings:
            self._tellings[uses] = Telling(self, uses)
        return self._tellings[uses]

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
        """Of all that a warp still comes to. Whoever has returned counts as arrived where all warps have to be."""
        found = Uses(self.named | self.cluster)
        for frame in walker.frames:
            if frame[0] == "block":
                found |= self._block(walker, frame[1], frame[2])
            elif frame[0] in ("joint", "for", "one", "head"):
                found |= self.of_node(walker, frame[1])
        for op in walker.queue:
            found |= self._of_op(op)
        return found

    def _block(self, walker: Walker, nodes: Any, at: int) -> Uses:
        key = walker.agent, id(nodes), at
        if key not in self._blocks:
            found = Uses()
            for node in nodes[at:]:
                found |= self.of_node(walker, node)
            self._blocks[key] = found
        return self._blocks[key]

    def of_node(self, walker: Walker, node: Any) -> Uses:
        if type(node) is Call:
            return self._call(node)
        key = walker.agent, id(node)
        if key not in self._nodes:
            found = Uses()
            if type(node) is If:
                taken = truth(walker.number(node.condition)) if is_role(node) else None
                found |= self._block(walker, node.then, 0) if taken is not False else found
                found |= self._block(walker, node.other, 0) if taken is not True else found
            elif type(node) in (For, While):
                found |= self._block(walker, node.body, 0)
            self._nodes[key] = found
        return self._nodes[key]

    def _call(self, node: Call) -> Uses:
        if id(node) not in self._calls:
            found = Uses()
            for op in node.ops:
                found |= self._of_op(op)
            for x in node.args if not node.ops else ():
                barrier = x.full if isinstance(x, ClusterExchange) else x
                if isinstance(barrier, Barrier):
                    bit = self.arrays[barrier.name]
                    found |= Uses(bit, bit, bit)
            self._calls[id(node)] = found
        return self._calls[id(node)]

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
        self._hearers: dict[Any, Any] = {}
        self._reached: dict[bytes, bytes] = {}
        self._by_knowers: dict[tuple[Any, ...], tuple[Any, Any]] = {}

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
        flat, width = packed.tobytes(), packed.shape[1]
        cases = [flat[i : i + width] for i in range(0, len(flat), width)]
        new = [case for case in dict.fromkeys(cases) if case not in self._reached]
        if new:
            self._reached.update(zip(new, self._reach(new), strict=True))
        reach = np.frombuffer(b"".join([self._reached[case] for case in cases]), np.uint8)
        heard, own = self._heard_by(tuple(knowers))
        return _meet(reach.reshape(len(cases), heard.shape[1]), heard) | (np.array(bars)[:, None] == own[None, :])

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
        if knowers not in self._by_knowers:
            own = [key[1] if key[0] in ("present", "complete") else -2 for key in knowers]
            self._by_knowers[knowers] = np.packbits([self._heard(key) for key in knowers], axis=1), np.array(own)
        return self._by_knowers[knowers]

    def _heard(self, key: Any) -> Any:
        """Who can learn directly what a warp or barrier knows, itself included."""
        found = self._hearers.get(key)
        if found is None:
            found = self._hearers[key] = np.zeros(self.layout.agents, bool)
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
    """By set of one list and of another one, as bits: whether they have a member in common."""
    found = np.zeros((len(some), len(others)), bool)
    for i in range(some.shape[1]):
        found |= (some[:, i, None] & others[None, :, i]) != 0
    return found
