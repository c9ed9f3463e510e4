"""Transitions of barriers, tensor cores and exits: mbarriers, barriers of warps, the queue of wgmmas of each warpgroup."""

from __future__ import annotations

from typing import Any

from tmapipe.isa import ops
from tmapipe.model.layout import check_live, hazard
from tmapipe.model.state import State, applies, check_slot, waits

# ---- mbarriers -------------------------------------------------------------------------------------------------------
#
# mbarriers: arrival count, pending arrivals, pending bytes (tx) and phase, as PTX describes them.
#
# A phase completes when no arrival and no byte is pending; the next one starts with `count` arrivals pending. Bytes
# may land before they are armed (tx goes below zero) as long as an arrival is pending; if the last arrival finds tx
# below zero, the phase could have completed before the bytes were armed, so that is an error.


MAX_COUNT = (1 << 20) - 1  # arrivals and bytes of one phase (PTX ISA, mbarrier)


def _index(state: State, agent: int, op: Any) -> int:
    return state.layout.flat_bar(agent, op.bar)


def _says(state: State, agent: int, op: ops.MbarWait) -> str:
    layout, bar = state.layout, _index(state, agent, op)
    phase, count, pending, tx = state.phase[bar], state.count[bar], state.pending[bar], state.tx[bar]
    text = f"{layout.bar_name(op.bar)} parity {op.parity}: it is in phase {phase} with {count - pending} of {count} arrivals"
    if tx > 0:
        text += f", {tx} bytes armed, not delivered and not on their way"
    if tx < 0:
        text += f", {-tx} bytes delivered and not armed"
    signallers = layout.signallers(op.bar)
    if signallers:
        text += f"; signalled by {', '.join(_status(state, role) for role in signallers)}"
    return text


def _status(state: State, role: str) -> str:
    """A role, with whether its warps have returned."""
    layout = state.layout
    agents = [agent for agent in range(layout.agents) if layout.role(agent) == role]
    returned = sum(state.returned[agent] for agent in agents)
    if not returned:
        return f"{role} (blocked)"
    return f"{role} ({'all' if returned == len(agents) else f'{returned} of {len(agents)}'} warps have returned)"


@waits(ops.MbarWait, key=_index, says=_says)
def _can_wait(state: State, agent: int, op: ops.MbarWait) -> bool:
    bar = _index(state, agent, op)
    return (state.phase[bar] & 1) != op.parity or not state.count[bar] or op.parity not in (0, 1)


@applies(ops.MbarWait)
def _wait(state: State, agent: int, op: ops.MbarWait) -> int:
    bar = _index(state, agent, op)
    if not state.count[bar]:
        raise _uninitialized(state, agent, op, bar)
    if op.parity not in (0, 1):
        text = f"waits for parity {op.parity} of {state.layout.bar_name(bar)}; a parity is 0 or 1"
        raise hazard(state.layout, "wait-parity", agent, op, text)
    return state.phase[bar] - 1


@applies(ops.MbarInit)
def _init(state: State, agent: int, op: ops.MbarInit) -> None:
    layout, bar = state.layout, _index(state, agent, op)
    name = layout.bar_name(bar)
    if not 1 <= op.arrivals <= MAX_COUNT:
        text = f"initializes {name} with count {op.arrivals}, not 1 to {MAX_COUNT}"
        raise hazard(layout, "barrier-count", agent, op, text)
    if state.count[bar]:
        raise hazard(layout, "barrier-init-twice", agent, op, f"initializes {name}, which is in use")
    state.count[bar] = state.pending[bar] = op.arrivals
    state.woken.append(bar)


@applies(ops.MbarArrive)
def _arrive(state: State, agent: int, op: ops.MbarArrive) -> tuple[ops.Counted, ...]:
    cta, bar = state.layout.cta_of(agent), _index(state, agent, op)
    left, counted = op.lanes.bit_count(), []
    while left:  # lanes may arrive in several phases
        now = min(left, max(1, state.pending[bar]))
        counted.append(_count(state, agent, op, cta, bar, now))
        left -= now
    return tuple(counted)


@applies(ops.MbarArriveCluster)
def _arrive_cluster(state: State, agent: int, op: ops.MbarArriveCluster) -> tuple[ops.Counted, ...]:
    layout = state.layout
    if op.mask >> layout.ctas:
        text = f"arrives at {layout.bar_name(op.bar)} with mask {op.mask:#b}, but the cluster has {layout.ctas} CTAs"
        raise hazard(layout, "mask-outside-cluster", agent, op, text)
    counted = []
    for cta in range(layout.ctas):
        if op.mask >> cta & 1:
            check_live(state, agent, op, cta, f"arrives at {layout.bar_name(op.bar)} of")
            counted.append(_count(state, agent, op, cta, cta * layout.nbars + op.bar, 1))
    return tuple(counted)


@applies(ops.MbarArriveTx, ops.MbarExpectTx)
def _arm(state: State, agent: int, op: ops.MbarArriveTx | ops.MbarExpectTx) -> tuple[ops.Counted, ...]:
    arrivals = 1 if isinstance(op, ops.MbarArriveTx) else 0
    return (_count(state, agent, op, state.layout.cta_of(agent), _index(state, agent, op), arrivals, op.nbytes),)


@applies(ops.LoadComplete)
def _load_complete(state: State, agent: ops.Flight, op: ops.LoadComplete) -> tuple[ops.Counted, ...]:
    slot, _, _, bar, nbytes, lanes, source, _ = state.loads.pop(agent)
    state.writers[slot] -= 1
    if source >= 0:
        state.readers[source] -= 1
    check_live(state, agent, op, agent.cta, "completes on")
    return (_count(state, agent, op, agent.cta, bar, lanes, -nbytes),)


def _count(
    state: State, agent: int | ops.Flight, op: object, cta: int, bar: int, arrivals: int = 0, nbytes: int = 0
) -> ops.Counted:
    """Counts arrivals and bytes in the present phase of the mbarrier at flat index *bar* (of *cta*). nbytes: armed, or if
    negative landed."""
    layout, phase, count = state.layout, state.phase[bar], state.count[bar]
    if not count:
        raise _uninitialized(state, agent, op, bar)
    state.tx[bar] += nbytes
    tx, pending = state.tx[bar], state.pending[bar] - arrivals
    if tx > MAX_COUNT:
        text = f"arms {nbytes} bytes on {layout.bar_name(bar)}: {tx} pending, above {MAX_COUNT}"
        raise hazard(layout, "tx-overflow", agent, op, text)
    if pending < 0:
        held = f"whose phase {phase} has had all its {count} arrivals and still waits for {tx} bytes"
        text = f"arrives at {layout.bar_name(bar)} of CTA {cta}, {held}"
        raise hazard(layout, "surplus-arrival", agent, op, text)
    if not pending and tx < 0:
        held = f"in phase {phase} without pending arrivals and {-tx} bytes more landed than were armed"
        text = f"finds {layout.bar_name(bar)} of CTA {cta} {held}"
        raise hazard(layout, "tx-below-zero", agent, op, text)
    state.pending[bar] = pending
    completed = not pending and not tx
    if completed:
        state.phase[bar] += 1
        state.pending[bar] = count
        state.woken.append(bar)
    return ops.Counted(cta, bar - cta * layout.nbars, phase, arrivals, nbytes, completed)


def _uninitialized(state: State, agent: int | ops.Flight, op: object, bar: int) -> Exception:
    layout = state.layout
    text = f"uses {layout.bar_name(bar)} of CTA {bar // layout.nbars} before it is initialized"
    return hazard(layout, "barrier-before-init", agent, op, text)


# ---- syncs -----------------------------------------------------------------------------------------------------------
#
# Barriers of warps: ``bar.sync`` and ``bar.arrive`` of a CTA, and the cluster barrier.
#
# Warps that have returned count as arrived at the CTA's barrier 0 and at the cluster barrier (PTX: "non-exited
# threads").


LAST_ID = 15  # named barriers of a CTA are 1 .. 15 (PTX ISA, barrier)


@applies(ops.BarArrive)
def _bar_arrive(state: State, agent: int, op: ops.BarArrive) -> tuple[int, bool]:
    layout = state.layout
    cta = agent // layout.warps
    index = 16 * cta + op.id
    if op.id:
        _check_named(state, agent, op, index)
    generation = state.bar_generation[index]
    if op.sync:
        state.bar_seen[agent] = (index, generation)
    state.bar_arrived[index] += 32
    threads = op.threads or 32 * state.live[cta]
    state.bar_threads[index] = threads
    completed = state.bar_arrived[index] >= threads
    if completed:
        complete_bar(state, cta, op.id)
    return generation, completed


def complete_bar(state: State, cta: int, id: int) -> None:
    """Starts the barrier's next generation, and lets the warps go that wait for it."""
    index = 16 * cta + id
    state.bar_arrived[index] = state.bar_threads[index] = 0
    state.bar_generation[index] += 1
    state.woken.append(("barrier", index))


def _check_named(state: State, agent: int, op: ops.BarArrive, index: int) -> None:
    layout, rule = state.layout, "named-barrier-threads"
    if not 1 <= op.id <= LAST_ID:
        rule, text = "named-barrier-id", f"uses {{}}, but ids run from 1 to {LAST_ID}"
    elif op.threads % 32 or not 32 <= op.threads <= 32 * layout.warps:
        text = f"uses {{}} for {op.threads} threads, not a multiple of 32 up to the CTA's {32 * layout.warps}"
    elif (expected := state.bar_threads[index]) and expected != op.threads:
        text = f"arrives at {{}} for {op.threads} threads, others for {expected}"
    else:
        return
    raise hazard(layout, rule, agent, op, text.format(layout.named_barrier_name(op.id)))


def _bar_key(state: State, agent: int, op: ops.BarWait) -> tuple[str, int]:
    return "barrier", 16 * (agent // state.layout.warps) + op.id


def _bar_says(state: State, agent: int, op: ops.BarWait) -> str:
    index = 16 * (agent // state.layout.warps) + op.id
    arrived, threads = state.bar_arrived[index], state.bar_threads[index]
    return f"{state.layout.named_barrier_name(op.id)}: {arrived} of {threads} threads have arrived"


@waits(ops.BarWait, key=_bar_key, says=_bar_says)
def _can_pass(state: State, agent: int, op: ops.BarWait) -> bool:
    seen = state.bar_seen[agent]
    return seen is None or state.bar_generation[seen[0]] != seen[1]


@applies(ops.BarWait)
def _pass(state: State, agent: int, op: ops.BarWait) -> int:
    seen, state.bar_seen[agent] = state.bar_seen[agent], None
    return -1 if seen is None else seen[1]


@applies(ops.ClusterArrive)
def _cluster_arrive(state: State, agent: int, op: ops.ClusterArrive) -> tuple[int, bool]:
    if state.cluster_seen[agent] >= 0:
        text = "arrives at the cluster barrier twice without waiting for it"
        raise hazard(state.layout, "cluster-barrier", agent, op, text)
    generation = state.cluster_seen[agent] = state.cluster[1]
    state.cluster[0] += 1
    return generation, complete_cluster(state)


def complete_cluster(state: State) -> bool:
    """Completes the cluster barrier if every warp that has not returned has arrived."""
    if state.cluster[0] < sum(state.live):
        return False
    state.cluster[0] = 0
    state.cluster[1] += 1
    state.woken.append("cluster")
    return True


def _cluster_says(state: State, agent: int, op: ops.ClusterWait) -> str:
    return f"the cluster barrier: {state.cluster[0]} of {sum(state.live)} warps have arrived"


@waits(ops.ClusterWait, key=lambda state, agent, op: "cluster", says=_cluster_says)
def _can_leave(state: State, agent: int, op: ops.ClusterWait) -> bool:
    return state.cluster_seen[agent] != state.cluster[1]


@applies(ops.ClusterWait)
def _cluster_wait(state: State, agent: int, op: ops.ClusterWait) -> int:
    seen = state.cluster_seen[agent]
    if seen < 0:
        text = "waits for the cluster barrier without having arrived"
        raise hazard(state.layout, "cluster-barrier", agent, op, text)
    state.cluster_seen[agent] = -1
    return seen


# ---- tensorcore ------------------------------------------------------------------------------------------------------
#
# wgmma: a queue of asynchronous matmuls for each warpgroup.
#
# The four warps issue each wgmma together; here each does so at its own time, and the wgmma can end once all four
# have. It may read its slots from the first warp's issue until it ends. wgmmas of a warpgroup end in order;
# ``wait_group N`` of any of its warps looks at all of that warp's groups but the N newest.


ALL_FOUR = 0b1111
REGISTERS = -1  # in the place of a slot: the operand comes from registers


@applies(ops.Wgmma, ops.WgmmaFromRegisters)
def _issue(state: State, agent: int, op: ops.Wgmma | ops.WgmmaFromRegisters) -> tuple[ops.Flight]:
    layout, operands = state.layout, (op.a if isinstance(op, ops.Wgmma) else REGISTERS, op.b)
    cta, warp = divmod(agent, layout.warps)
    if not layout.whole_warpgroup[warp]:
        text = f"issues wgmma {op.matmul}, but not all 4 warps of its warpgroup play the role {layout.roles[warp]}"
        raise hazard(layout, "wgmma-warpgroup", agent, op, text)
    if state.unfenced[agent]:
        text = f"issues wgmma {op.matmul} after writing its accumulators, without wgmma_fence between"
        raise hazard(layout, "wgmma-fence", agent, op, text)
    base = cta * layout.nslots
    in_slots = [operand for operand in operands if operand != REGISTERS]
    for operand in in_slots:
        check_slot(state, agent, op, operand, f"multiplies ({op.matmul})")
    a, b = (operand if operand == REGISTERS else base + operand for operand in operands)
    wanted = op.matmul, a, b
    group = layout.group_of(agent)
    queue, position = state.queues[group], state.issued[agent] - state.done[group]
    bit = 1 << warp % 4
    if position == len(queue):
        state.queues[group] = (*queue, (*wanted, bit))
        for operand in in_slots:
            state.readers[base + operand] += 1
        last = False
    else:
        *issued, issuers = queue[position]
        if tuple(issued) != wanted:
            mine, theirs = _names(state, (a, b)), _names(state, tuple(issued[1:]))
            elsewhere = f"other warps of its warpgroup issued {issued[0]} of {theirs}"
            text = f"issues wgmma {op.matmul} of {mine} where {elsewhere}"
            raise hazard(layout, "wgmma-diverged", agent, op, text)
        issuers |= bit
        state.queues[group] = (*queue[:position], (*wanted, issuers), *queue[position + 1 :])
        last = issuers == ALL_FOUR
    flight = ops.Flight("wgmma", group, state.issued[agent], cta)
    state.issued[agent] += 1
    used = {op.matmul, op.matmul if isinstance(op, ops.Wgmma) else op.operand or op.matmul}
    others = [each for each in state.latest[agent] if each[0] not in used]
    state.latest[agent] = tuple(sorted([*others, *((name, state.issued[agent]) for name in used)]))
    if last and position == 0:
        state.started.append(flight)
    return (flight,)


def _names(state: State, slots: tuple[int, ...]) -> str:
    return " and ".join("registers" if slot == REGISTERS else state.layout.slot_name(slot) for slot in slots)


@applies(ops.WgmmaDone)
def _done(state: State, agent: ops.Flight, op: ops.WgmmaDone) -> None:
    group = agent.issuer
    queue = state.queues[group]
    _, a, b, _ = queue[0]
    for slot in (a, b):
        if slot != REGISTERS:
            state.readers[slot] -= 1
    state.queues[group] = queue[1:]
    state.done[group] += 1
    if len(queue) > 1 and queue[1][3] == ALL_FOUR:
        state.started.append(ops.Flight("wgmma", group, agent.serial + 1, agent.cta))
    state.woken.append(("wgmma", group))


@applies(ops.WgmmaCommit)
def _commit(state: State, agent: int, op: ops.WgmmaCommit) -> int:
    state.bounds[agent] = (*state.bounds[agent], state.issued[agent])
    return state.issued[agent]


def _says_wgmma(state: State, agent: int, op: ops.WgmmaWait) -> str:
    return f"wgmma groups (all but {op.pending}), which other warps of its warpgroup have not issued"


@waits(ops.WgmmaWait, key=lambda state, agent, op: ("wgmma", state.layout.group_of(agent)), says=_says_wgmma)
def _can_wait_wgmma(state: State, agent: int, op: ops.WgmmaWait) -> bool:
    bounds = state.bounds[agent]
    return len(bounds) <= op.pending or state.done[state.layout.group_of(agent)] >= bounds[-op.pending - 1]


@applies(ops.WgmmaWait)
def _wait_wgmma(state: State, agent: int, op: ops.WgmmaWait) -> int:
    bounds = state.bounds[agent]
    if len(bounds) > op.pending:
        state.awaited[agent] = bounds[-op.pending - 1]
        state.bounds[agent] = bounds[len(bounds) - op.pending :]
        known = state.awaited[agent]
        state.latest[agent] = tuple([each for each in state.latest[agent] if each[1] > known])
    return state.awaited[agent]


@applies(ops.WgmmaFence)
def _fence(state: State, agent: int, op: ops.WgmmaFence) -> None:
    state.unfenced[agent] = False


@applies(ops.AccumulatorWrite)
def _write(state: State, agent: int, op: ops.AccumulatorWrite) -> None:
    _check_idle(state, agent, op, "writes")
    state.unfenced[agent] = True


@applies(ops.AccumulatorRead)
def _read(state: State, agent: int, op: ops.AccumulatorRead) -> None:
    _check_idle(state, agent, op, "reads")


def _check_idle(state: State, agent: int, op: ops.AccumulatorRead | ops.AccumulatorWrite, verb: str) -> None:
    """A matmul's registers belong to the tensor core from the issue until this warp has waited."""
    if any(name == op.matmul for name, _ in state.latest[agent]):
        in_flight = state.issued[agent] - state.awaited[agent]
        text = f"{verb} the accumulators of {op.matmul} with {in_flight} wgmma not waited for (wgmma_wait(0) after a commit)"
        raise hazard(state.layout, "accumulator-in-flight", agent, op, text)


# ---- exits -----------------------------------------------------------------------------------------------------------
#
# Exit: what must not be in flight when a warp returns, or when the last warp of a CTA does.
#
# A CTA's shared memory and mbarriers are gone once all its warps have returned; peers that touch them later are
# caught where they do it.


@applies(ops.Exit)
def _exit(state: State, agent: int, op: ops.Exit) -> bool:
    layout = state.layout
    cta = agent // layout.warps
    _check_warp(state, agent, op)
    state.returned[agent] = True
    state.live[cta] -= 1
    if not state.live[cta]:
        _check_cta(state, agent, op, cta)
    elif state.bar_arrived[16 * cta] >= 32 * state.live[cta]:
        complete_bar(state, cta, 0)
    if state.cluster_seen[agent] == state.cluster[1]:
        state.cluster[0] -= 1  # it had arrived, and no longer takes part
    if state.cluster[0]:
        complete_cluster(state)
    return not state.live[cta]


def _check_warp(state: State, agent: int, op: ops.Exit) -> None:
    layout = state.layout
    if not state.ended[agent]:
        rest = "and the next waits only for this one's end"
        text = f"returns before it has waited for the kernels before this one, {rest}"
        raise hazard(layout, "exit-before-dependencies", agent, op, text)
    for lane in range(32) if state.groups or state.open_group else ():
        thread = agent * 32 + lane
        if state.open_group.get(thread):
            count = len(state.open_group[thread])
            text = f"returns with {count} TMA store(s) of lane {lane} in no bulk group (bulk_commit_group is missing)"
            raise hazard(layout, "exit-uncommitted-store", agent, op, text)
        unread = sum(1 for flights, known_read in state.groups.get(thread, ()) if flights and not known_read)
        if unread:
            text = f"returns with {unread} bulk group(s) of lane {lane} not waited for (bulk_wait_group is missing)"
            raise hazard(layout, "exit-unawaited-store", agent, op, text)
    if state.issued[agent] != state.awaited[agent]:
        count = state.issued[agent] - state.awaited[agent]
        raise hazard(layout, "exit-unawaited-wgmma", agent, op, f"returns with {count} wgmma not waited for")


def _check_cta(state: State, agent: int, op: ops.Exit, cta: int) -> None:
    layout, last = state.layout, "returns as the last warp of its CTA while"
    for flight, load in state.loads.items():
        does = ""
        if flight.cta == cta:
            into = f"into {layout.slot_name(load[0])} (completes on {layout.bar_name(load[3])})"
            does = f"is on its way {into}"
        elif load[6] >= 0 and load[6] // layout.nslots == cta:
            does = f"has not finished reading {layout.slot_name(load[6])}"
        if does:
            raise hazard(layout, "exit-load-in-flight", agent, op, f"{last} {layout.agent_name(flight)} {does}")
    for bar in range(cta * layout.nbars, (cta + 1) * layout.nbars):
        if state.tx[bar]:
            phase = f"phase {state.phase[bar]} that nothing delivers"
            text = f"{last} {layout.bar_name(bar)} waits for {state.tx[bar]} bytes in {phase}"
            raise hazard(layout, "exit-bytes-pending", agent, op, text)
    for first in layout.cta_warps(cta)[:-3:4]:
        if len(set(state.registers[first : first + 4])) > 1 or any(state.sets_ahead[first : first + 4]):
            text = f"returns, and setmaxnreg was not executed by all warps of warpgroup {(first % layout.warps) // 4}"
            raise hazard(layout, "setmaxnreg-warpgroup", agent, op, text)
