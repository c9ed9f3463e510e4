"""Who fills and reads the slots of a ring, and so what its mbarriers count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tmapipe.barrier import BarrierRing
from tmapipe.errors import InputError
from tmapipe.multicast import Along, peer_pattern
from tmapipe.peer_stage import PeerStage, ReducedStage
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.model import WARP
from tmapipe.plan.rings import Ring
from tmapipe.stage import SharedStage, SlotStage

if TYPE_CHECKING:
    from tmapipe.plan.shared_memory import Layout

__all__ = ["group_of", "readers_of", "ring_of"]


def ring_of(layout: Layout, name: str, ring: BarrierRing) -> Ring:
    """The ring called *name*, with its mbarriers in *layout*.

    Raises:
        InputError: A role of several warps loads by TMA or sends to peers, CTAs read each other's tiles of a ring that is
            filled once, or its slots are fewer than a role holds back.
    """
    roles, name_of, cluster = layout.roles, layout.declared.name_of, layout.declared.cluster
    inside = layout.declared.stages_of(name)
    armed: dict[str, int] = {}
    loads: dict[str, tuple[str, ...]] = {}
    copies: dict[str, int] = {}
    writers: set[str] = set()
    sharing: set[str] = set()  # of these, those whose tiles other CTAs read
    groups = tuple(dict.fromkeys(axes for part in inside.values() if (axes := group_of(part, cluster))))
    for stage, part in inside.items():
        role = name_of(part.filler)
        if (part.filled_by == "engine" or isinstance(part, PeerStage)) and roles[role].warps != 1:
            rule = "a role that loads by TMA, or copies to peers, has one warp"
            raise InputError(f"Role({role})", f"{roles[role].warps} warps", rule, "Role(warps=1)")
        if part.filled_by == "warps":
            writers.add(role)
            if group_of(part, cluster):
                sharing.add(role)
                if ring.held:
                    rule = "is of a ring whose slots are released, so that no CTA leaves while others read them"
                    raise InputError(f"SharedStage(group) in {name}", part.sharing, rule, 'leave out per="cta"')
            continue
        loads[role] = (*loads.get(role, ()), stage)
        if part.filled_by == "threads":
            copies[role] = copies.get(role, 0) + 1
        else:
            times = part.group.size(cluster) if isinstance(part, ReducedStage) else 1
            armed[role] = armed.get(role, 0) + times * math.prod(part.tile) * layout.types[stage].bytes
    reached = 0
    for axes in groups:
        reached |= peer_pattern(axes)
    peers, slots = max(1, reached.bit_count()), layout.slots[name]
    phases = tuple(tuple(map(name_of, phase)) for phase in ring.phases)
    signalling = phases[:-1] if ring.held else phases
    far = tuple(p for p, phase in enumerate(phases) if sharing & set(phase))
    signals = tuple(
        role for p, phase in enumerate(signalling) for role in phase if p or role not in loads or role in writers
    )
    barriers = []
    for p, phase in enumerate(signalling):
        last = p == len(phases) - 1
        times, to_all = (peers, f" x {peers} CTAs") if p in far and not last else (1, "")
        taking = {role: roles[role].warps if ring.held else roles[role].team_warps for role in phase}
        terms = [(roles[r].team_warps, f"{roles[r].team_warps} expect-tx ({r})") for r in phase if r in armed]
        terms += [(times * taking[r], f"{taking[r]} warps ({r}){to_all}") for r in phase if r in signals]
        lanes = {role: WARP * taking[role] * copies[role] for role in phase if role in copies and not p}
        terms += [(count, f"{count} lanes of copies ({role})") for role, count in lanes.items()]
        count, formula = sum(count for count, _ in terms), " + ".join(text for _, text in terms)
        if last and peers > 1:
            count, formula = count * peers, f"({formula}) x {peers} CTAs"
        label = {0: "full", len(phases) - 1: "free"}.get(p, f"ready{p}")
        barriers.append(layout.space.barrier(f"{name}.{label}", slots, count, formula))
    lag, readers, fenced = readers_of(name, layout.declared, layout.matmul_roles, layout.storing_roles)
    if ring.held:
        lag, readers = {}, {}
    for role, held in lag.items():
        if held >= slots:
            rule = f"role {role} holds back {held} slots while it reads the next, so {held + 1} or more are needed"
            raise InputError(f"BarrierRing({name}).stages", slots, rule, "use more stages or fewer reads in flight")
    gone: dict[str, tuple[str, ...]] = {}
    over: tuple[str, ...] = ()
    for phase in phases:
        gone |= {role: over for role in phase if over}
        written = [part for part in inside.values() if isinstance(part, SharedStage) and name_of(part.writer) in phase]
        over += tuple(name_of(part.over) for part in written if part.over is not None)
    how = (armed, signals, lag, readers, groups, peers, loads, ring.held, gone, fenced, far)
    return Ring(name, slots, phases, tuple(barriers), *how)


def group_of(part: SlotStage, cluster: Mapping[str, int]) -> tuple[Along, ...]:
    """The axes of the cluster along which CTAs write into each other's slots of this stage, or read them."""
    return () if part.sharing is None else part.sharing.along(cluster)


def readers_of(
    ring: str, declared: Declarations, matmul_roles: dict[str, str], storing_roles: dict[str, str]
) -> tuple[dict[str, int], dict[str, tuple[str, ...]], tuple[str, ...]]:
    """`lag`, `readers` and `fenced` of the `Ring` called *ring*: who reads its slots by wgmma, or by the TMA engine.

    Args:
        matmul_roles: Matmul -> the role that executes it.
        storing_roles: Store -> the role that executes it.
    """
    found: list[tuple[str, SlotStage, str, int]] = [
        (matmul_roles[name], stage, "wgmma", mma.in_flight)
        for name, mma in declared.matmuls.items()
        for stage in mma.stages
    ]
    found += [
        (storing_roles[name], store.slot, "tma", store.stages)
        for name, store in declared.stores.items()
        if store.slot is not None
    ]
    lag: dict[str, int] = {}
    readers: dict[str, tuple[str, ...]] = {}
    fenced: dict[str, None] = {}
    for role, stage, how, in_flight in found:
        if declared.name_of(stage.ring) == ring:
            lag[role] = max(lag.get(role, 0), in_flight)
            readers[role] = tuple(dict.fromkeys((*readers.get(role, ()), how)))
            if stage.filled_by == "threads":
                fenced[role] = None
    return lag, readers, tuple(fenced)
