"""Which interleavings the exhaustive oracle may leave out (partial-order reduction by persistent sets).

If agent w's next operation commutes with everything that the others can do before it, it is enough to look at the
interleavings in which it comes first. What the others can do while w stands still is estimated from above: each goes on until
it must wait for something that w (or nobody) brings. Contributions to one phase of an mbarrier commute unless the phase could
complete without the one in question, complete for someone who still waits for the phase before, or complete with the wrong
bytes; operations that begin or end accesses to slots do not commute with conflicting ones.
"""

from __future__ import annotations

from tests.oracle.explore_accesses import Classes
from tests.oracle.explore_programs import (
    ARRIVE,
    CLUSTER,
    EXIT,
    FAR,
    FENCE,
    FREE,
    INIT,
    LOAD,
    NAMED,
    WAIT,
    Visible,
    WarpProgram,
)
from tmapipe.isa import ops
from tmapipe.isa.ops import Flight
from tmapipe.model.state import State

__all__ = ["Reach", "commutes", "landing_commutes"]


class Reach:
    """What all agents but one can do before it moves, estimated from above.

    By mbarrier: `arrivals`, `armed`, `loose` (bytes armed without an arrival), `landing` bytes, `lands` (how many loads),
    `waits`; by named barrier: `arrived` (threads) and `sizes`; `cluster`: warps that arrive; by CTA: `exits`, `reached` by
    others; `touch`: classes of accesses begun or ended; `far`: mbarriers used from afar; `fenced`: warps that publish inits.
    The estimate ends as soon as one of the classes *against* is touched.
    """

    def __init__(
        self, state: State, programs: list[WarpProgram], at: list[int], frozen: int | Flight, against: int = 0
    ):
        self.state, self.programs, self.against = state, programs, against
        layout = state.layout
        bars = len(state.count)
        self.arrivals, self.armed, self.loose, self.landing, self.lands, self.waits = ([0] * bars for _ in range(6))
        self.arming: dict[int, list[int]] = {}  # bytes of each arrival that arms some
        self.arrived: dict[int, int] = {}
        self.sizes: dict[int, set[int]] = {}
        self.cluster = 0
        self.exits = [0] * layout.ctas
        self.reached: set[int] = set()
        self.touch = 0
        self.far: set[int] = set()
        self.used: set[int] = set()
        self.inits: set[int] = set()
        self.fenced: set[int] = set()
        for flight, load in state.loads.items():
            if flight != frozen:
                self.landing[load[3]] += load[4]
                self.arrivals[load[3]] += load[5]
                self.lands[load[3]] += 1
                self.reached |= {flight.cta} | ({load[6] // layout.nslots} if load[6] >= 0 else set())
        self.least: dict[tuple[int, int], int] = {}  # (agent, mbarrier) -> the phase that it has seen
        self.own: dict[tuple[int, int], int] = {}  # (agent, named barrier) -> its arrivals so far
        self.own_cluster: dict[int, int] = {}
        self.position = list(at)
        agents = [a for a in range(layout.agents) if a != frozen and at[a] < programs[a].end]
        moved = True
        while moved and not self.touch & against:
            moved = False
            for agent in agents:
                moved |= self._advance(agent)

    def completions(self, bar: int) -> int:
        """How many phases of *bar* can complete at most."""
        state = self.state
        arrivals, landing = self.arrivals[bar], self.landing[bar]
        needed, count = state.pending[bar], max(1, state.count[bar])
        if not (arrivals or self.lands[bar]):
            return 0
        phases = 0
        while arrivals >= needed and state.tx[bar] + self._armed_by(bar, needed) <= landing:
            phases += 1
            needed += count
        return phases

    def _armed_by(self, bar: int, arrivals: int) -> int:
        """Bytes that this many of the arrivals arm at least."""
        arming = self.arming.get(bar, ())
        plain = self.arrivals[bar] - len(arming)
        return sum(sorted(arming)[: arrivals - plain]) if arrivals > plain else 0

    def _advance(self, agent: int) -> bool:
        program = self.programs[agent]
        position = before = self.position[agent]
        visible, past, end = program.visible, program.past, program.end
        while position < end and not self.touch & self.against:
            after, touch = past[position]
            if after > position:
                position = after
                self.touch |= touch
            elif self._passes(agent, visible[position]):
                position += 1
            else:
                break
        self.position[agent] = position
        return position != before

    def _passes(self, agent: int, v: Visible) -> bool:
        """Whether the agent may get past *v*; if so, counts what it does."""
        kind, state = v.kind, self.state
        if kind == WAIT:
            bar = v.bars[0][0]
            if state.count[bar]:
                now = state.phase[bar]
                seen = self.least.get((agent, bar), now)
                if seen & 1 == v.op.parity:
                    seen += 1
                if seen > now + self.completions(bar):
                    return False
                self.least[agent, bar] = seen
            self.waits[bar] += 1
            self.used.add(bar)
        elif kind == ARRIVE:
            for bar, arrivals, nbytes in v.bars:
                self.arrivals[bar] += arrivals
                self.armed[bar] += nbytes
                self.used.add(bar)
                if nbytes and not arrivals:
                    self.loose[bar] += nbytes
                elif nbytes:
                    self.arming.setdefault(bar, []).append(nbytes)
            self.far.update(v.far)
            self.reached.update(v.ctas)
        elif kind == LOAD:
            for bar, arrivals, nbytes in v.lands:
                self.landing[bar] += nbytes
                self.arrivals[bar] += arrivals
                self.lands[bar] += 1
                self.used.add(bar)
            self.far.update(v.far)
            self.reached.update(v.ctas)
            self.reached.add(agent // state.layout.warps)
        elif kind == FREE:
            if not self._free(agent, v):
                return False
        elif kind == NAMED:
            self.arrived[v.where] = self.arrived.get(v.where, 0) + 32
            self.sizes.setdefault(v.where, set()).add(v.op.threads)
            if v.op.sync:
                self.own[agent, v.where] = self.own.get((agent, v.where), 0) + 1
        elif kind == CLUSTER:
            self.cluster += 1
            self.own_cluster[agent] = self.own_cluster.get(agent, 0) + 1
        elif kind == EXIT:
            self.exits[agent // state.layout.warps] += 1
        elif kind == INIT:
            self.inits.add(v.bars[0][0])
        elif kind == FENCE:
            self.fenced.add(agent)
        self.touch |= v.touch
        return True

    def _free(self, agent: int, v: Visible) -> bool:
        state = self.state
        if isinstance(v.op, ops.BarWait):
            cta = agent // state.layout.warps
            where = 16 * cta + v.op.id
            own = self.own.get((agent, where), 0)
            seen = state.bar_seen[agent]
            if seen is not None and seen[0] == where and state.bar_generation[where] == seen[1]:
                own += 1
            if v.op.id > 15:  # which the machine refuses before this
                return True
            arrived = state.bar_arrived[where] + self.arrived.get(where, 0)
            if v.op.id == 0:
                threads = 32 * max(1, state.live[cta] - self.exits[cta])
            else:
                sizes = {*self.sizes.get(where, ()), state.bar_threads[where]} - {0}
                threads = min(sizes, default=1)
            return arrived // threads >= own
        if isinstance(v.op, ops.ClusterWait):
            own = self.own_cluster.get(agent, 0) + (0 <= state.cluster_seen[agent] == state.cluster[1])
            return (state.cluster[0] + self.cluster) // max(1, sum(state.live) - sum(self.exits)) >= own
        return True


def commutes(
    state: State, classes: Classes, programs: list[WarpProgram], at: list[int], agent: int, v: Visible
) -> bool:
    """Whether the enabled operation *v*, the agent's next, may be executed before anything that the others can do."""
    against = classes.against(v.touch)
    if v.kind == FREE and not against:
        return True
    reach = Reach(state, programs, at, agent, against)
    if against & reach.touch:
        return False
    kind = v.kind
    if kind == WAIT:
        bar = v.bars[0][0]
        return not reach.completions(bar) and bar not in reach.inits
    if kind == ARRIVE:
        return (
            all(_counts_alike(state, reach, bar, n, nbytes, 0) for bar, n, nbytes in v.bars)
            and not any(reach.exits[cta] >= state.live[cta] for cta in v.ctas)
            and not any(bar in reach.inits for bar, _, _ in v.bars)
        )
    if kind in (LOAD, FAR):
        return not any(reach.exits[cta] >= state.live[cta] for cta in v.ctas)
    if kind == NAMED:
        if not 0 <= v.op.id <= 15:
            return True
        threads = v.op.threads or 32 * state.live[v.where // 16]
        others = reach.sizes.get(v.where, set()) - {v.op.threads}
        return not others and state.bar_arrived[v.where] + 32 + reach.arrived.get(v.where, 0) <= threads
    if kind == CLUSTER:
        return state.cluster[0] + 1 + reach.cluster <= sum(state.live)
    if kind == INIT:
        return v.bars[0][0] not in reach.used
    if kind == FENCE:
        return not reach.far
    if kind == EXIT:
        return _exit_commutes(state, reach, agent)
    return True


def landing_commutes(
    state: State, classes: Classes, programs: list[WarpProgram], at: list[int], flight: Flight, bit: int
) -> bool:
    """Whether the bytes of a load in flight may be counted before anything else happens."""
    against = classes.against(bit)
    reach = Reach(state, programs, at, flight, against)
    _, _, _, bar, nbytes, arrivals, source, _ = state.loads[flight]
    ctas = {flight.cta} | ({source // state.layout.nslots} if source >= 0 else set())
    return (
        not against & reach.touch
        and _counts_alike(state, reach, bar, arrivals, 0, nbytes)
        and all(reach.exits[cta] < state.live[cta] for cta in ctas)
    )


def _counts_alike(state: State, reach: Reach, bar: int, arrivals: int, armed: int, landed: int) -> bool:
    """Whether a contribution counts in the present phase of *bar*, to the same effect, whatever others do before or after."""
    total = arrivals + reach.arrivals[bar]
    pending = state.pending[bar]
    if total < pending:
        return True
    if total > pending:
        return False
    loose = reach.loose[bar] or (armed and not arrivals)
    left = state.tx[bar] + armed + reach.armed[bar] - landed - reach.landing[bar]
    return not reach.waits[bar] and not loose and left >= 0 and bool(arrivals or landed)


def _exit_commutes(state: State, reach: Reach, agent: int) -> bool:
    cta = agent // state.layout.warps
    if state.live[cta] > 1:
        return True
    return cta not in reach.reached
