"""The state of one cluster, a transition system, and the scheduler that drives it. The transitions of slots, of registers and
of accesses to global memory are here, the others in `barriers` and `copies`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from tmapipe.errors import HazardError, PipelineError
from tmapipe.isa import ops, registering
from tmapipe.model.layout import Layout, check_live, hazard, set_location
from tmapipe.model.run import deadlock
from tmapipe.plan.model import WARP

# ---- state -----------------------------------------------------------------------------------------------------------
#
# A state has no data and no greenlets: the scheduler drives it, and the checker watches it and copies it. All that changes
# lies in flat lists (the mbarriers of all CTAs one after another, and so on), so a copy is cheap. Functions for operations
# register themselves by `applies` and `waits`.


#: type of operation -> function (state, agent, op) -> facts
APPLY: dict[type, Callable[..., Any]] = {}


class Wait(NamedTuple):
    """Three functions (state, agent, op) for operations that can block.

    enabled: whether the operation can be executed now. key: what `State.woken` will hold when the answer may have changed.
    says: what a blocked warp waits for, in words, with the numbers that show why it still waits.
    """

    enabled: Callable[..., bool]
    key: Callable[..., Hashable]
    says: Callable[..., str]


#: type of operation -> its functions; operations of other types are always enabled
WAITS: dict[type, Wait] = {}

LOAD_WRITE, LOAD_COMPLETE = ops.LoadWrite(), ops.LoadComplete()
STORE_READ, STORE_WRITE = ops.StoreRead(), ops.StoreWrite()
WGMMA_DONE = ops.WgmmaDone()


class State:
    """The protocol state of one cluster.

    Mbarriers, at ``cta * nbars + bar``: `count` (0: not initialized), `pending` arrivals, `tx` pending bytes, `phase` number.
    Named barriers, at ``cta * 16 + id``: `bar_threads`, `bar_arrived` (threads), `bar_generation`.
    The cluster's barrier: `cluster` is [warps that have arrived, generation].
    Slots, at ``cta * nslots + slot``: `writers` and `readers` in flight.
    CTAs: `live`, warps that have not returned; `free_registers`.
    Agents: `bar_seen` (index and generation of a ``bar.sync`` at which it has arrived, or None), `cluster_seen` (the
    generation in which it has arrived, or -1), `returned`, `serials`, `registers`, `sets_ahead` (setmaxnregs that not all
    warps of its warpgroup have executed), `ended` (whether it knows that the earlier kernels have ended); of wgmmas
    `issued`, `bounds` of groups, `awaited`, `latest` (matmul, `issued` after its last wgmma) for matmuls not awaited,
    `unfenced`.
    Warpgroups: `queues` of (matmul, a, b, issuers), `done`.
    Threads (``agent * 32 + lane``): `open_group`, `groups` (flights, whether known to be read) oldest first, `committed`.
    `loads`: flight (TMA load, st.async, cp.async or copy to a peer) -> (slot, share, shares, mbarrier, bytes, arrivals, source
    slot or -1, landed). `stores`: flight -> (slot, whether it has been read).

    split_loads: whether loads take two steps (bytes land, bytes are counted) instead of one.
    """

    def __init__(self, layout: Layout, split_loads: bool = False):
        self.layout, self.split_loads = layout, split_loads
        self.woken: list[Hashable] = []  #: keys of waits that may have become enabled since the caller cleared the list
        #: Flights that got their first or next step since the caller cleared the list.
        self.started: list[ops.Flight] = []
        ctas, agents = layout.ctas, layout.agents
        bars, places, groups = ctas * layout.nbars, ctas * layout.nslots, ctas * layout.warpgroups
        self.count, self.pending, self.tx, self.phase = ([0] * bars for _ in range(4))
        self.bar_threads, self.bar_arrived, self.bar_generation = ([0] * (16 * ctas) for _ in range(3))
        self.bar_seen: list[tuple[int, int] | None] = [None] * agents
        self.cluster_seen = [-1] * agents
        self.cluster = [0, 0]
        self.live, self.returned = [layout.warps] * ctas, [False] * agents
        self.serials = [0] * agents
        self.ended = [not layout.plan.overlaps] * agents
        self.writers, self.readers = [0] * places, [0] * places
        self.queues: list[tuple] = [()] * groups
        self.done = [0] * groups
        self.issued, self.awaited, self.unfenced = [0] * agents, [0] * agents, [False] * agents
        self.bounds: list[tuple[int, ...]] = [()] * agents
        self.latest: list[tuple[tuple[str, int], ...]] = [()] * agents
        self.free_registers = [0] * ctas
        self.registers, self.sets_ahead = [layout.plan.launch_registers] * agents, [0] * agents
        self.loads: dict[ops.Flight, tuple] = {}
        self.stores: dict[ops.Flight, tuple] = {}
        self.open_group: dict[int, tuple[ops.Flight, ...]] = {}
        self.groups: dict[int, tuple] = {}
        self.committed: dict[int, int] = {}

    # ---- transitions ----------------------------------------------------------------------------------------------

    def enabled(self, agent: ops.Agent, op: ops.Op | ops.Step) -> bool:
        """Whether *op* can be executed now. An operation that would be an error is enabled: `apply` raises it."""
        wait = WAITS.get(type(op))
        return wait is None or wait.enabled(self, agent, op)

    def apply(self, agent: ops.Agent, op: ops.Op | ops.Step) -> Any:
        """Executes an enabled operation of a warp (agent: its number) or step of an engine (agent: the flight). Returns the
        operation's facts (see `ops`). Raises `HazardError`, after which the state is of no use."""
        return APPLY[type(op)](self, agent, op)

    def step_of(self, flight: ops.Flight) -> ops.Step | None:
        """The step that *flight* can take now, or None (it has ended, or waits for an older wgmma or another warp)."""
        if flight.kind == "store":
            record = self.stores.get(flight)
            return None if record is None else STORE_WRITE if record[1] else STORE_READ
        if flight.kind != "wgmma":
            record = self.loads.get(flight)
            return None if record is None else LOAD_COMPLETE if record[-1] else LOAD_WRITE
        queue = self.queues[flight.issuer]
        ready = queue and flight.serial == self.done[flight.issuer] and queue[0][3] == 0b1111
        return WGMMA_DONE if ready else None

    def copy(self) -> State:
        """An independent copy, with empty `woken` and `started`."""
        other = State.__new__(State)
        vars(other).update(
            {name: value.copy() if type(value) in (list, dict) else value for name, value in vars(self).items()}
        )
        other.woken, other.started = [], []
        return other


#: Registers the function that carries out operations of the types that it is given.
applies = registering(APPLY)


def waits(kind: type, key: Callable[..., Hashable], says: Callable[..., str]) -> Callable[[Callable], Callable]:
    """Registers the function that says whether an operation of type *kind* is enabled. The other arguments are those of
    `Wait`."""

    def register(function: Callable) -> Callable:
        WAITS[kind] = Wait(function, key, says)
        return function

    return register


# ---- slots: which bytes of shared memory may be touched now ----------------------------------------------------------
#
# `State.writers` and `State.readers` count, for each slot, the loads on their way into it, and the stores and wgmmas that have
# not finished reading it. Slots that share bytes (aliased buffers) are checked together.


@applies(ops.SlotRead, ops.DescriptorAcquire)
def _read(state: State, agent: int, op: ops.SlotRead | ops.DescriptorAcquire) -> None:
    check_slot(state, agent, op, op.slot, "reads")


@applies(ops.PeerRead)
def _read_peer(state: State, agent: int, op: ops.PeerRead) -> None:
    layout = state.layout
    if op.mask >> layout.ctas or op.mask.bit_count() != 1:
        text = f"reads {layout.slot_name(op.slot)} with mask {op.mask:#b}, which is not one of the {layout.ctas} CTAs"
        raise hazard(layout, "mask-outside-cluster", agent, op, text)
    cta = op.mask.bit_length() - 1
    check_live(state, agent, op, cta, f"reads {layout.slot_name(op.slot)} of")
    check_slot(state, agent, op, op.slot, "reads", cta)


@applies(ops.SlotWrite, ops.DescriptorWrite)
def _write(state: State, agent: int, op: ops.SlotWrite | ops.DescriptorWrite) -> None:
    check_slot(state, agent, op, op.slot, "writes", writes=True)


def check_slot(
    state: State, agent: int, op: object, slot: int, verb: str, cta: int | None = None, writes: bool = False
) -> None:
    """Raises an error if work in flight forbids an access to a slot: a load into the slot; or, if the access *writes*, also a
    read.

    verb: what the operation does, in words that come before the slot's name. cta: the CTA in which the slot lies, by default
    the warp's own CTA.
    """
    layout = state.layout
    cta = agent // layout.warps if cta is None else cta
    base = cta * layout.nslots
    for alias in layout.aliases[slot]:
        if state.writers[base + alias] or (writes and state.readers[base + alias]):
            raise conflict(state, agent, op, cta, slot, verb, writes)


def conflict(state: State, agent: ops.Agent, op: object, cta: int, slot: int, verb: str, writes: bool) -> Exception:
    """The error for an access to *slot* of *cta* while something in flight touches the same bytes."""
    layout = state.layout
    other, what = _in_flight(state, cta, slot, writes)
    rule = {"store": "slot-being-stored", "wgmma": "slot-read-by-wgmma"}.get(other.kind, "slot-being-loaded")
    text = f"{verb} slot {layout.slot_name(slot)} of CTA {cta} while {layout.agent_name(other)} {what}"
    return hazard(layout, rule, agent, op, text)


def _in_flight(state: State, cta: int, slot: int, writes: bool) -> tuple[ops.Flight, str]:
    """A flight that touches *slot*, and in words whether it reads or writes."""
    layout = state.layout
    touched = {cta * layout.nslots + alias for alias in layout.aliases[slot]}
    for flight, load in state.loads.items():
        if load[0] in touched:
            return flight, f"is on its way into {layout.slot_name(load[0])} (completes on {layout.bar_name(load[3])})"
        if writes and load[6] in touched:
            return flight, f"has not finished reading {layout.slot_name(load[6])}"
    if writes:
        for flight, store in state.stores.items():
            if store[0] in touched and not store[1]:
                return flight, f"has not finished reading {layout.slot_name(store[0])}"
        for group, queue in enumerate(state.queues):
            for i, (_, a, b, _) in enumerate(queue):
                if a in touched or b in touched:
                    name = layout.slot_name(a if a in touched else b)
                    return ops.Flight("wgmma", group, state.done[group] + i, cta), f"may still read {name}"
    raise AssertionError("a slot counted as in flight, and no flight that touches it")


# ---- operations that leave the state of the cluster as it is ---------------------------------------------------------
#
# Accesses to global memory, operations among the lanes of a warp, and fences, whose effect on the order of accesses only
# vector clocks can follow. The values of counters belong to the whole grid, of which a state has one cluster (see
# `tmapipe.isa.ops`).


@applies(ops.CounterAdd, ops.CounterStore, ops.TableLoad)
def _touch(state: State, agent: int, op: object) -> None:
    check_ended(state, agent, op)


@applies(ops.GridWait)
def _await_grid(state: State, agent: int, op: ops.GridWait) -> None:
    state.ended[agent] = True


def check_ended(state: State, agent: int, op: object, argument: str = "") -> None:
    """Raises an error if a warp touches global memory before the kernels before this one have ended. argument: the loaded
    tensor, which may be a constant one (`Role(early=)`)."""
    if not state.ended[agent] and argument not in state.layout.early[agent % state.layout.warps]:
        text = f"touches {argument or 'global memory'} before it has waited for the kernels before this one"
        raise hazard(state.layout, "before-dependencies", agent, op, text)


@applies(ops.Ballot, ops.Shuffle, ops.ReadSmid, ops.GridLaunch)
@applies(ops.WarpSync, ops.FenceMbarInit, ops.FenceProxyAsync, ops.FenceProxyAsyncGlobal)
@applies(ops.PrefetchDescriptor, ops.DescriptorRelease)
def _nothing(state: State, agent: int, op: object) -> None:
    pass


# ---- setmaxnreg: registers move between warpgroups through the CTA's pool --------------------------------------------
#
# The pool has the registers that the CTA was launched with. At first the warps have all of them. A decrease gives a
# warpgroup's registers back once all four warps have executed it. An increase takes a warp's share, and blocks until the
# share is free.


def _says(state: State, agent: int, op: ops.SetMaxNreg) -> str:
    wanted = (op.registers - state.registers[agent]) * WARP
    return (
        f"{wanted} more registers a warp (setmaxnreg {op.registers}); the CTA's pool has "
        f"{state.free_registers[agent // state.layout.warps]} free "
        "(a warpgroup's come free when all 4 of its warps have decreased)"
    )


@waits(ops.SetMaxNreg, key=lambda state, agent, op: ("registers", agent // state.layout.warps), says=_says)
def _can_set(state: State, agent: int, op: ops.SetMaxNreg) -> bool:
    if not op.increase:
        return True
    return state.free_registers[agent // state.layout.warps] >= (op.registers - state.registers[agent]) * WARP


@applies(ops.SetMaxNreg)
def _set(state: State, agent: int, op: ops.SetMaxNreg) -> int:
    layout = state.layout
    cta, warp = divmod(agent, layout.warps)
    before = state.registers[agent]
    if not 24 <= op.registers <= 256 or op.registers % 8:
        text = f"sets {op.registers} registers a thread; setmaxnreg takes 24 to 256 in steps of 8"
        raise hazard(layout, "setmaxnreg-range", agent, op, text)
    if op.increase != (op.registers > before) and op.registers != before:
        verb = "increases" if op.increase else "decreases"
        text = f"{verb} its registers from {before} to {op.registers} a thread"
        raise hazard(layout, "setmaxnreg-direction", agent, op, text)
    if warp // 4 * 4 + 4 > layout.warps:
        raise hazard(layout, "setmaxnreg-warpgroup", agent, op, "sets the registers of an incomplete warpgroup")
    state.registers[agent] = op.registers
    four = range(agent - warp % 4, agent - warp % 4 + 4)
    state.sets_ahead[agent] += 1
    if all(state.sets_ahead[other] for other in four):
        for other in four:
            state.sets_ahead[other] -= 1
    if op.increase:
        state.free_registers[cta] -= (op.registers - before) * WARP
        return before
    if all(state.registers[other] == op.registers for other in four):
        state.free_registers[cta] += 4 * (before - op.registers) * WARP
        state.woken.append(("registers", cta))
    return before


# ---- scheduler -------------------------------------------------------------------------------------------------------
#
# The policies, each of which is deterministic for a seed. A correct kernel gives the same result under all of them.
#
# "fair": warps in turn, each until it blocks; engines take their steps in order whenever a warp has blocked.
# "random": after a few operations another warp or engine, drawn by the seed, goes on.
# "late": engines move only when no warp can, one step at a time, drawn by the seed. Asynchronous work ends as late as
# possible.


POLICIES = ("fair", "random", "late")

Watcher = Callable[[ops.Agent, Any, Any], None]


class Scheduler:
    """Runs the warps' programs on *state* until all have returned and all engines are idle.

    programs: for each agent, an iterator of its operations, the last one `Exit`. watchers: called in order with (agent,
    operation, facts) after each transition. where: gives the source line of a warp's present operation, for errors.
    `reached[agent]`: of a warp that blocked, the number of the transition before which it came to its present operation.
    """

    def __init__(
        self,
        state: State,
        programs: list[Iterator[Any]],
        policy: str = "fair",
        seed: int = 0,
        watchers: tuple[Watcher, ...] = (),
        max_steps: int = 50_000_000,
        where: Callable[[int], str | None] | None = None,
    ):
        self.state, self.programs, self.policy, self.watchers = state, programs, policy, watchers
        self.max_steps, self.where = max_steps, where
        self.random = random.Random(seed)
        self.current: list[Any] = [None] * len(programs)  # the operation that a warp will execute next, once fetched
        self.ready = list(range(len(programs)))
        self.blocked: dict[Hashable, list[int]] = {}  # key -> agents
        self.flights: list[ops.Flight] = []  # with a step to take, oldest first
        self.step_count = 0
        self.reached = [-1] * len(programs)
        if seed:
            self.random.shuffle(self.ready)

    def run(self) -> None:
        """Raises `HazardError`, `DeadlockError`, or `PipelineError` when `max_steps` is not enough."""
        try:
            if self.policy == "fair":
                self._run_fair()
            else:
                self._run_drawn(late=self.policy == "late")
        except HazardError as error:
            agent = getattr(error, "agent", None)
            if self.where is not None and isinstance(agent, int):
                set_location(error, self.where(agent))
            raise
        if self.blocked:
            waiting = {agent: self.current[agent] for agents in self.blocked.values() for agent in agents}
            said = {agent: (op, WAITS[type(op)].says(self.state, agent, op)) for agent, op in waiting.items()}
            raise deadlock(self.state, said, self.where)

    # ---- policies -------------------------------------------------------------------------------------------------

    def _run_fair(self) -> None:
        while self.ready or self.flights:
            now, self.ready = self.ready, []
            for agent in now:
                self._advance(agent, self.max_steps)
                self._move_all()
            if not self.ready:
                self._move_all()

    def _move_all(self) -> None:
        """Lets each copy or matmul in flight that can go on take one step."""
        flights, self.flights = self.flights, []
        for flight in flights:
            self._move(flight)

    def _run_drawn(self, late: bool) -> None:
        draw = self.random.random
        while True:
            warps, flights = len(self.ready), len(self.flights)
            if warps and (late or int(draw() * (warps + flights)) < warps):
                agent = self._take(self.ready, int(draw() * warps))
                if self._advance(agent, 1 + int(draw() * 8)):
                    self.ready.append(agent)
            elif flights:
                self._move(self._take(self.flights, int(draw() * flights)))
            else:
                return

    @staticmethod
    def _take(items: list[Any], i: int) -> Any:
        items[i], items[-1] = items[-1], items[i]
        return items.pop()

    # ---- steps ----------------------------------------------------------------------------------------------------

    def _advance(self, agent: int, budget: int) -> bool:
        """Executes up to *budget* operations of a warp. Returns whether it can go on (neither blocked nor returned)."""
        state, watchers, program = self.state, self.watchers, self.programs[agent]
        woken, started = state.woken, state.started
        op = self.current[agent]
        steps = 0
        try:
            while steps < budget:
                if op is None:
                    op = next(program, None)
                    if op is None:
                        return False
                kind = type(op)
                wait = WAITS.get(kind)
                if wait is not None and not wait.enabled(state, agent, op):
                    self.blocked.setdefault(wait.key(state, agent, op), []).append(agent)
                    self.reached[agent] = self.step_count + steps
                    return False
                facts = APPLY[kind](state, agent, op)
                for watcher in watchers:
                    watcher(agent, op, facts)
                steps += 1
                op = None
                if woken or started:
                    self._go_on()
            return True
        finally:
            self.current[agent] = op
            self._count(steps)

    def _move(self, flight: ops.Flight) -> None:
        """One step of an engine."""
        state = self.state
        step = state.step_of(flight)
        assert step is not None, flight
        facts = APPLY[type(step)](state, flight, step)
        for watcher in self.watchers:
            watcher(flight, step, facts)
        self._count(1)
        self._go_on()

    def _go_on(self) -> None:
        """Takes up the warps whose operations may have become enabled, and flights with a step to take."""
        for key in self.state.woken:
            agents = self.blocked.pop(key, None)
            if agents:
                self.ready += agents
        self.state.woken.clear()
        self.flights += self.state.started
        self.state.started.clear()

    def _count(self, steps: int) -> None:
        self.step_count += steps
        if self.step_count > self.max_steps:
            raise PipelineError(
                f"stopped after {self.max_steps} operations of one cluster, the limit given as max_steps, before all warps "
                f"had returned{self._places()}. Fix: see that every loop of a body ends."
            )

    def _places(self) -> str:
        """Where the roles are."""
        if self.where is None:
            return ""
        places: dict[tuple[str, str], None] = {}
        for agent in range(len(self.programs)):
            line = self.where(agent)
            if line is not None:
                places.setdefault((self.state.layout.role(agent), line))
        return ": " + ", ".join(f"{role} is at {line}" for role, line in places) if places else ""


from tmapipe.model import barriers, copies  # noqa: E402, F401 - they register
