"""The report of two accesses that nothing orders: who, which bytes, what is missing, what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tmapipe.check.findings import Kind
from tmapipe.check.log import Step
from tmapipe.isa.ops import TmaLoadThrough
from tmapipe.machine.describe import bar_name, slot_name, who

if TYPE_CHECKING:
    from tmapipe.check.slots import Access, Slots
    from tmapipe.machine.layout import Layout

__all__ = ["report_race"]

READ, WRITE, LOAD, STORE, MMA, ASYNC_READ, ASYNC_WRITE, COPY, SEND = range(9)
_DOES = {
    READ: "{who} reads",
    WRITE: "{who} writes",
    LOAD: "a TMA load issued by {who} writes",
    COPY: "a cp.async issued by {who} writes",
    SEND: "a copy to a peer issued by {who} reads",
    STORE: "a TMA store issued by {who} reads",
    MMA: "a wgmma issued by {who} reads",
    ASYNC_READ: "raw code of {who} reads",
    ASYNC_WRITE: "raw code of {who} writes",
}


def report_race(slots: Slots, kind: Kind, before: Access, access: Access, slot: int, other: int) -> None:
    """Reports that *access*, to the slot at flat index *slot*, conflicts with *before*, to the slot at *other* (the same, or
    aliased).
    """
    log, layout = slots.log, slots.layout
    owner: Step | None = None
    if kind is Kind.STORE_SOURCE_REUSED:
        owner = _foreign_wait(slots, before, access)
        kind = Kind.GROUP_OWNER if owner is not None else kind
    name, alias = slot_name(layout, slot), slot_name(layout, other)
    first, second = (_does(each).format(who=who(layout, each.agent)) for each in (before, access))
    same = "it" if slot == other else f"{alias}, which lies in the same bytes"
    text, fix, blame = _texts(slots, kind, before, access, f"{second} {name}", f"{first} {same}", owner)
    extra = [step for step in (owner, _end(slots, before)) if step is not None]
    log.add(kind, (text, fix), access.step, before.step, *extra, slot=slot, blame=blame)


def _texts(
    slots: Slots, kind: Kind, before: Access, access: Access, second: str, first: str, owner: Step | None
) -> tuple[str, str, Step]:
    """What happens, what to change, and at which step."""
    layout, clocks = slots.layout, slots.clocks
    role, later, issuer = layout.role(before.agent), layout.role(access.agent), who(layout, before.agent)
    array, then, while_ = layout.slots[access.slot][0].name, f"{second} after {first}", f"{second} while {first}"
    clock = clocks.of[access.agent]
    if kind is Kind.PROXY and before.kind == COPY:
        text = (
            f"{second} through the async proxy after {first} through the generic proxy, and no proxy fence lies between"
        )
        full = bar_name(layout, before.bar).split("[")[0]
        return text, f"let {later} execute fence_proxy_async after it has waited for {full}", access.step
    if kind is Kind.PROXY:
        text = f"{second} through the async proxy after {first} through the generic proxy, and no proxy fence of {role} lies "
        text += "between"
        fix = f"execute fence_proxy_async after its access to {array}, before the synchronization that hands it on"
    elif owner is not None:
        text = f"{while_}: {who(layout, owner.agent)} waits for bulk groups, but the store's group belongs to {issuer}, and "
        text += "wait_group covers only the calling thread's own"
        return text, f"let {issuer}, which commits the group, wait for it (bulk_wait_group)", before.step
    elif kind is Kind.STORE_SOURCE_REUSED:
        text = f"{while_}: no wait_group.read for that store lies between"
        fix = f"wait for the store's group (bulk_wait_group(..., read=True)) before it hands {array} on"
    elif before.agent == access.agent and before.kind in (READ, WRITE) and access.kind in (READ, WRITE):
        text = (
            f"{then}, with the elements distributed over lanes in another way, and nothing orders the lanes of one warp"
        )
        fix = f"{'execute warp_sync' if _alone(layout, role) else 'call k.sync()'} between the two"
    elif before.kind not in (LOAD, STORE, MMA, COPY, SEND) and clock[before.agent] >= before.time:
        if any(known[clocks.published + before.agent] >= before.time for known in clocks.of):  # some warp knows it
            text = f"{then}, but the signals between are relaxed, or came before that warp's lanes were synchronized: they "
            text += "order what is executed, not these accesses"
            fix = f'synchronize its lanes after its access to {array}, then signal without scope="relaxed"'
        else:
            text = f"{then}, but only one lane of that warp is ordered before it: the others' accesses are not"
            fix = f"execute warp_sync between its access to {array} and the signal of one lane"
            if _lacks_fence(slots, before, access):
                text += f", and no proxy fence of {role} lies between"
                fix = f"execute fence_proxy_async, then warp_sync, after its access to {array}, before one lane goes on"
    elif before.kind in (LOAD, COPY) and (access.kind, access.agent, None) == (
        before.kind,
        before.agent,
        before.number,
    ):
        fix = f"let {role} load {array} once a slot (each part of it once), and enter another slot for the next tile"
        return f"{while_}: the first one's bytes may still be on their way", fix, access.step
    elif before.kind in (LOAD, COPY):
        bar = bar_name(layout, before.bar)
        phase = f" (phase {before.number} of {bar})" if before.number is not None else ""
        fix = f"let {later} wait for {bar.split('[')[0]} before it touches {array}"
        return f"{while_}: nothing makes it wait until the bytes have landed{phase}", fix, access.step
    elif before.kind == SEND:
        bar = bar_name(layout, before.bar)
        if isinstance(before.step.op, TmaLoadThrough):
            waiter = f"a role that has waited for {bar.split('[')[0]} releases {array}, as one of its consumers"
            return (
                f"{while_}: nothing makes it wait until the load is over",
                f"let {later} wait until {waiter}",
                access.step,
            )
        fix = f"let {later} wait until the peer has waited for {bar.split('[')[0]}: until the slot is free again"
        return f"{while_}: nothing makes it wait until the copy has read it", fix, access.step
    elif before.kind == MMA:
        text = f"{while_}: no wgmma_wait for that group lies between"
        fix = f"wait for the wgmma's group (wgmma_wait) before it releases {array}"
    else:
        return f"{while_}: nothing orders the two", _ordered(layout, before.agent, access.agent, array), access.step
    return text, f"let {role} {fix}", before.step


def _does(access: Access) -> str:
    through = access.kind == SEND and isinstance(access.step.op, TmaLoadThrough)
    return "a TMA load issued by {who} reads" if through else _DOES[access.kind]


def _alone(layout: Layout, role: str) -> bool:
    """Whether it is a role of one warp, or of warps that no plan names."""
    return role == "idle" or layout.plan.role(role).warps == 1


def _ordered(layout: Layout, first: int, second: int, array: str) -> str:
    """How two accesses by threads are ordered by what a body can do."""
    role, later = layout.role(first), layout.role(second)
    if role != later or _alone(layout, role) or first // layout.warps != second // layout.warps:
        return f"let {later} wait until {role} is done with {array}: for a slot that it hands on then, or by k.sync in both"
    of = layout.plan.role(role)
    if of.team(first % layout.warps) != of.team(second % layout.warps):
        return f"let the teams of {role} do this in turns: `with k.<name>.turn()` of a Turnstile({role}, stores=({array},))"
    return f"let {role} call k.sync() between the two"


def _lacks_fence(slots: Slots, before: Access, access: Access) -> bool:
    """Whether *access* goes through the async proxy, and *before*, by threads, has not been fenced by its warp so far."""
    fenced = slots.clocks.fence[before.agent] >= before.time
    return before.kind in (READ, WRITE) and access.kind not in (READ, WRITE, COPY) and not fenced


def _end(slots: Slots, before: Access) -> Step | None:
    """The wait that ended *before*, if there was one, for the timeline."""
    if before.number is None or before.kind != STORE:
        return None
    waits = slots.bulk_waits[before.agent]
    time = waits.time(before.number)
    return None if time is None else waits.steps[waits.times.index(time)]


def _foreign_wait(slots: Slots, before: Access, access: Access) -> Step | None:
    """A wait for bulk groups after the store and before the access, by a warp that has no groups of its own."""
    clock: Any = slots.clocks.of[access.agent]
    cta = before.agent // slots.layout.warps
    for agent in range(cta * slots.layout.warps, (cta + 1) * slots.layout.warps):
        waits = slots.idle_waits.get(agent)
        if agent != before.agent and waits is not None:
            time, step = waits
            if step.order > before.step.order and clock[agent] >= time:
                return step
    return None
