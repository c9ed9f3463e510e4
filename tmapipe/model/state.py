"""State of one cluster, and its transitions; those of slots, of registers and of threads' accesses are here."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from tmapipe.isa import ops
from tmapipe.model.layout import Layout, check_live, hazard
from tmapipe.plan.model import WARP

# ---- state -----------------------------------------------------------------------------------------------------------
#
# State of one cluster, and its transitions: `enabled(agent, op)`, `apply(agent, op)`, and the steps engines can take.
#
# No data and no greenlets: a scheduler drives it, a checker watches it and copies it. Everything that changes lies in
# flat lists (mbarriers of all CTAs one after another, and so on), so a copy is cheap. Each kind of operation has its
# own file, which registers its functions here: `applies` and `waits`.


#: type of operation -> function (state, agent, op) -> facts
APPLY: dict[type, Callable[..., Any]] = {}


class Wait(NamedTuple):
    """Of an operation that can block: functions (state, agent, op).

    enabled: whether it can be executed now; key: what `State.woken` will hold when that may have changed; says: what a blocked
    warp waits for, with the numbers that show why it does not come.
    """

    enabled: Callable[..., bool]
    key: Callable[..., Hashable]
    says: Callable[..., str]


#: by type of operation; all others are always enabled
WAITS: dict[type, Wait] = {}

LOAD_WRITE, LOAD_COMPLETE = ops.LoadWrite(), ops.LoadComplete()
STORE_READ, STORE_WRITE = ops.StoreRead(), ops.StoreWrite()
WGMMA_DONE = ops.WgmmaDone()


class State:
    """One cluster's protocol state.

    mbarriers, at ``cta * nbars + bar``: `count` (0: not initialized), `pending` arrivals, `tx` pending bytes, `phase`
    number; named barriers, at ``cta * 16 + id``: `bar_threads`, `bar_arrived` (threads), `bar_generation`; by agent:
    `bar_seen` (that index and the generation of a ``bar.sync`` that has arrived, or None), `cluster_seen` (generation
    arrived in, or -1), `returned`, `serials`, `registers`, `sets_ahead` (setmaxnregs that not all warps of its warpgroup
    have executed), `ended` (whether the kernels before have, as it knows); `cluster`: [warps arrived, generation]; `live`:
    warps of each CTA that have not returned; slots, at ``cta * nslots + slot``: `writers`, `readers` in flight; `loads`:
    flight (of a TMA load, st.async, cp.async or copy to a peer) -> (slot, share, shares, mbarrier, bytes, arrivals, source
    slot or -1, landed); `stores`: flight -> (slot, whether read); by thread (``agent * 32 + lane``): `open_group`, `groups`
    (flights, whether known read) oldest first, `committed`; by warpgroup: `queues` of (matmul, a, b, issuers), `done`; by
    agent: `issued`, `bounds` of groups, `awaited`, `latest` (matmul, `issued` after its last wgmma) of those not awaited,
    `unfenced`.

    split_loads: loads take two steps (bytes land, bytes are counted) instead of one.
    """

    def __init__(self, layout: Layout, split_loads: bool = False):
        self.layout, self.split_loads = layout, split_loads
        self.woken: list[Hashable] = []  #: keys of waits that may have become enabled since the caller last cleared it
        self.started: list[ops.Flight] = []  #: that got their first or next step since the caller last cleared it
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


def applies(*kinds: type) -> Callable[[Callable], Callable]:
    """Registers the function that carries out operations of these types."""

    def register(function: Callable) -> Callable:
        APPLY.update(dict.fromkeys(kinds, function))
        return function

    return register


def waits(kind: type, key: Callable[..., Hashable], says: Callable[..., str]) -> Callable[[Callable], Callable]:
    """Registers the function that says whether an operation of type *kind* is enabled. Arguments as of `Wait`."""

    def register(function: Callable) -> Callable:
        WAITS[kind] = Wait(function, key, says)
        return function

    return register


# ---- slots -----------------------------------------------------------------------------------------------------------
#
# Slots in flight: who may touch which bytes of shared memory now.
#
# `State.writers` and `State.readers` count, for each slot, the loads on their way into it, and the stores and wgmmas
# that have not finished reading it. Slots that share bytes (aliased buffers) are checked together.


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
    """Raises an error if what is in flight forbids an access to a slot: loads into it, or if it *writes*, readers too.

    verb: what the operation does, before the slot's name; cta: where it lies, by default in the own one.
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


# ---- globals ---------------------------------------------------------------------------------------------------------
#
# Operations that leave the cluster's state as it is: threads' accesses to global memory, the lanes of a warp, and
# fences, which order accesses as only clocks can follow.
#
# What counters hold belongs to the whole grid, of which a state has one cluster (see `tmapipe.isa.ops`).


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
@applies(
    ops.WarpSync,
    ops.FenceMbarInit,
    ops.FenceProxyAsync,
    ops.FenceProxyAsyncGlobal,
    ops.PrefetchDescriptor,
    ops.DescriptorRelease,
)
def _nothing(state: State, agent: int, op: object) -> None:
    pass


# ---- registers -------------------------------------------------------------------------------------------------------
#
# setmaxnreg: registers move between warpgroups through the CTA's pool.
#
# The pool is what the CTA was launched with, all of it handed out at first. A decrease gives a warpgroup's registers
# back once all four of its warps have executed it; an increase takes a warp's share and blocks until it is free.


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


from tmapipe.model import barriers, copies  # noqa: E402, F401 - they register
