"""The report of two accesses that nothing orders: who, which bytes, what is missing, what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tmapipe.check.accesses import COPY, COUNTED, DOES, MMA, SEND, STORE, THREADS, Access
from tmapipe.check.findings import Kind
from tmapipe.check.log import Step
from tmapipe.isa.ops import TmaLoadThrough
from tmapipe.machine.describe import bar_name, slot_name, who

if TYPE_CHECKING:
    from tmapipe.check.slots import Slots
    from tmapipe.machine.layout import Layout

__all__ = ["report_race"]


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
    first, second = _does(layout, before), _does(layout, access)
    same = "it" if slot == other else f"{alias}, which lies in the same bytes"
    text, fix, blame = _texts(slots, kind, before, access, f"{second} {name}", f"{first} {same}", owner)
    extra = [step for step in (owner, _end(slots, before)) if step is not None]
    log.add(kind, text, fix, access.step, before.step, *extra, slot=slot, blame=blame)


def _texts(
    slots: Slots, kind: Kind, before: Access, access: Access, second: str, first: str, owner: Step | None
) -> tuple[str, str, Step]:
    """What happens, what to change, and at which step."""
    layout, clocks = slots.layout, slots.clocks
    role, later, issuer = layout.role(before.agent), layout.role(access.agent), who(layout, before.agent)
    array, then, while_ = layout.slots[access.slot][0].name, f"{second} after {first}", f"{second} while {first}"
    clock = clocks.of[access.agent]
    bar = bar_name(layout, before.bar) if before.bar >= 0 else ""
    bars = bar.split("[")[0]
    if kind is Kind.PROXY:
        text = f"{second} through the async proxy after {first} through the generic proxy, and no proxy fence"
        if before.kind == COPY:
            fix = f"let {later} execute fence_proxy_async after it has waited for {bars}"
            return f"{text} lies between", fix, access.step
        text += f" of {role} lies between"
        fix = f"execute fence_proxy_async after its access to {array}, before the synchronization that hands it on"
    elif owner is not None:
        text = f"{while_}: {who(layout, owner.agent)} waits for bulk groups, but the store's group belongs to {issuer}, and "
        text += "wait_group covers only the calling thread's own"
        return text, f"let {issuer}, which commits the group, wait for it (bulk_wait_group)", before.step
    elif kind is Kind.STORE_SOURCE_REUSED:
        text = f"{while_}: no wait_group.read for that store lies between"
        fix = f"wait for the store's group (bulk_wait_group(..., read=True)) before it hands {array} on"
    elif before.agent == access.agent and before.kind in THREADS and access.kind in THREADS:
        text = (
            f"{then}, with the elements distributed over lanes in another way, and nothing orders the lanes of one warp"
        )
        fix = f"{'execute warp_sync' if _alone(layout, role) else 'call k.sync()'} between the two"
    elif before.kind not in (STORE, MMA, *COUNTED) and clock[before.agent] >= before.time:
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
    elif before.kind == MMA:
        text = f"{while_}: no wgmma_wait for that group lies between"
        fix = f"wait for the wgmma's group (wgmma_wait) before it releases {array}"
    elif before.kind == SEND:
        what = "copy has read it"
        fix = f"the peer has waited for {bars}: until the slot is free again"
        if isinstance(before.step.op, TmaLoadThrough):
            what, fix = "load is over", f"a role that has waited for {bars} releases {array}, as one of its consumers"
        return f"{while_}: nothing makes it wait until the {what}", f"let {later} wait until {fix}", access.step
    elif before.kind not in COUNTED:
        return f"{while_}: nothing orders the two", _ordered(layout, before.agent, access.agent, array), access.step
    elif (access.kind, access.agent, None) == (before.kind, before.agent, before.number):
        fix = f"let {role} load {array} once a slot (each part of it once), and enter another slot for the next tile"
        return f"{while_}: the first one's bytes may still be on their way", fix, access.step
    else:
        phase = f" (phase {before.number} of {bar})" if before.number is not None else ""
        text = f"{while_}: nothing makes it wait until the bytes have landed{phase}"
        return text, f"let {later} wait for {bars} before it touches {array}", access.step
    return text, f"let {role} {fix}", before.step


def _does(layout: Layout, access: Access) -> str:
    through = access.kind == SEND and isinstance(access.step.op, TmaLoadThrough)
    says = "a TMA load issued by {who} reads" if through else DOES[access.kind]
    return says.format(who=who(layout, access.agent))


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
    return before.kind in THREADS and access.kind not in (*THREADS, COPY) and not fenced


def _end(slots: Slots, before: Access) -> Step | None:
    """The wait that ended *before*, a store, if there was one, for the timeline."""
    if before.kind != STORE:
        return None
    return slots.bulk_waits[before.agent].first(before.number)


def _foreign_wait(slots: Slots, before: Access, access: Access) -> Step | None:
    """A wait for bulk groups after the store and before the access, by a warp that has no groups of its own."""
    clock: Any = slots.clocks.of[access.agent]
    for agent in slots.layout.cta_warps(slots.layout.cta_of(before.agent)):
        wait = slots.idle_waits.get(agent) if agent != before.agent else None
        if wait is not None and clock[agent] >= wait.time and wait.order > before.step.order:
            return wait
    return None
