"""State of one cluster, and its transitions: `enabled(agent, op)`, `apply(agent, op)`, and the steps engines can take.

No data and no greenlets: a scheduler drives it, a checker watches it and copies it. Everything that changes lies in flat
lists (mbarriers of all CTAs one after another, and so on), so a copy is cheap. Each kind of operation has its own file, which
registers its functions here: `applies` and `waits`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from tmapipe.isa.ops import Agent, Flight, LoadComplete, LoadWrite, Op, Step, StoreRead, StoreWrite, WgmmaDone
from tmapipe.machine.layout import Layout

__all__ = ["APPLY", "WAITS", "State", "Wait", "applies", "waits"]

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

LOAD_WRITE, LOAD_COMPLETE = LoadWrite(), LoadComplete()
STORE_READ, STORE_WRITE = StoreRead(), StoreWrite()
WGMMA_DONE = WgmmaDone()


class State:
    """One cluster's protocol state.

    mbarriers, at ``cta * nbars + bar``: `count` (0: not initialized), `pending` arrivals, `tx` pending bytes, `phase`
    number; named barriers, at ``cta * 16 + id``: `bar_threads`, `bar_arrived` (threads), `bar_generation`; by agent:
    `bar_seen` (that index and the generation of a ``bar.sync`` that has arrived, or None), `cluster_seen` (generation
    arrived in, or -1), `returned`, `serials`, `registers`, `sets_ahead` (setmaxnregs that not all warps of its warpgroup
    have executed); `cluster`: [warps arrived, generation]; `live`: warps of each
    CTA that have not returned; slots, at ``cta * nslots + slot``: `writers`, `readers` in flight; `loads`: flight (of a
    TMA load, st.async, cp.async or copy to a peer) -> (slot, share, shares, mbarrier, bytes, arrivals, source slot or -1,
    landed); `stores`: flight ->
    (slot, whether read); by thread (``agent * 32 + lane``): `open_group`, `groups` (flights, whether known read) oldest
    first, `committed`; by warpgroup: `queues` of (matmul, a, b, issuers), `done`; by agent: `issued`, `bounds` of groups,
    `awaited`, `latest` (matmul, `issued` after its last wgmma) of those not awaited, `unfenced`.

    split_loads: loads take two steps (bytes land, bytes are counted) instead of one.
    """

    def __init__(self, layout: Layout, split_loads: bool = False):
        self.layout, self.split_loads = layout, split_loads
        self.woken: list[Hashable] = []  #: keys of waits that may have become enabled since the caller last cleared it
        self.started: list[Flight] = []  #: flights that got their first or next step since the caller last cleared it
        ctas, agents = layout.ctas, layout.agents
        bars, places, groups = ctas * layout.nbars, ctas * layout.nslots, ctas * layout.warpgroups
        self.count, self.pending, self.tx, self.phase = ([0] * bars for _ in range(4))
        self.bar_threads, self.bar_arrived, self.bar_generation = ([0] * (16 * ctas) for _ in range(3))
        self.bar_seen: list[tuple[int, int] | None] = [None] * agents
        self.cluster_seen = [-1] * agents
        self.cluster = [0, 0]
        self.live, self.returned = [layout.warps] * ctas, [False] * agents
        self.serials = [0] * agents
        self.writers, self.readers = [0] * places, [0] * places
        self.queues: list[tuple] = [()] * groups
        self.done = [0] * groups
        self.issued, self.awaited, self.unfenced = [0] * agents, [0] * agents, [False] * agents
        self.bounds: list[tuple[int, ...]] = [()] * agents
        self.latest: list[tuple[tuple[str, int], ...]] = [()] * agents
        self.free_registers = [0] * ctas
        self.registers, self.sets_ahead = [layout.plan.launch_registers] * agents, [0] * agents
        self.loads: dict[Flight, tuple] = {}
        self.stores: dict[Flight, tuple] = {}
        self.open_group: dict[int, tuple[Flight, ...]] = {}
        self.groups: dict[int, tuple] = {}
        self.committed: dict[int, int] = {}

    # ---- transitions ----------------------------------------------------------------------------------------------

    def enabled(self, agent: Agent, op: Op | Step) -> bool:
        """Whether *op* can be executed now. An operation that would be an error is enabled: `apply` raises it."""
        wait = WAITS.get(type(op))
        return wait is None or wait.enabled(self, agent, op)

    def apply(self, agent: Agent, op: Op | Step) -> Any:
        """Executes an enabled operation of a warp (agent: its number) or step of an engine (agent: the flight). Returns the
        operation's facts (see `ops`). Raises `HazardError`, after which the state is of no use."""
        return APPLY[type(op)](self, agent, op)

    def step_of(self, flight: Flight) -> Step | None:
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


from tmapipe.machine import (  # noqa: E402, F401 - they register
    exits,
    globals,
    loads,
    mbarriers,
    registers,
    slots,
    stores,
    syncs,
    tensorcore,
)
