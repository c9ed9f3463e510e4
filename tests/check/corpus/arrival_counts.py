"""Arrival counts that differ from the number of arrivals."""

from __future__ import annotations

from typing import Any

import attrs

import tmapipe as tp
from tests.check.corpus.parts import (
    Case,
    HandRing,
    Parts,
    Program,
    fill_all,
    leave_together,
    program,
    read_and_release,
)
from tests.machine.slots import read_slot, write_slot
from tmapipe.isa.fragment import SlotRef
from tmapipe.kernel import kernel_main
from tmapipe.model.layout import Kind

TILES = 6
TOO_MANY = frozenset({Kind.SURPLUS_ARRIVAL, Kind.EARLY_ARRIVAL, Kind.LAPPED_WAIT})


def consumers(warps: int, count: int, arriving: int) -> Program:
    """A loader and *warps* consumer warps, the first *arriving* of which release each slot; *count*: what the ring expects."""
    parts = Parts()
    parts.role("load", 1)
    use = parts.role("use", warps)
    ring = HandRing(parts, 2, free=count)

    def read(isa: Any) -> None:
        for turn in range(TILES):
            ring.wait_full(isa, turn)
            read_slot(isa, ring.slot(turn), use)
            isa.fence_proxy_async()
            isa.warp_sync()
            if isa.warp < use.first_warp + arriving:
                ring.release(isa, turn)

    return program(parts.plan(), {"load": fill_all(ring, TILES), "use": read}, TILES)


# The pipeline was told of a consumer group of four warps, but its release lets one thread of the group arrive.
CUTLASS_2404 = Case(
    "cutlass#2404",
    bad=(consumers(warps=4, count=4, arriving=1),),
    wanted=frozenset({Kind.DEADLOCK, Kind.MISSING_ARRIVAL}),
    says=(r"\b1 of 4 arrivals|count(?: of)? 4|expects 4",),
    fixed=(consumers(warps=4, count=4, arriving=4),),
)

# A kernel for three consumers was given a fourth; the ring still counts to three, so its phases run ahead of its slots.
THUNDERKITTENS_115 = Case(
    "ThunderKittens#115",
    bad=(consumers(warps=4, count=3, arriving=4),),
    wanted=TOO_MANY | {Kind.DEADLOCK},
    says=(r"free\[\d\]",),
    fixed=(consumers(warps=4, count=4, arriving=4), consumers(warps=3, count=3, arriving=3)),
)


def multicast(count: int) -> Program:
    """Two CTAs that load half of each tile for both; each one's consumer tells both that it has read the slot."""
    parts = Parts(cluster=2)
    parts.role("load", 1)
    use = parts.role("use", 1)
    ring = HandRing(parts, 2, free=count, peers=2)

    def load(isa: Any) -> None:
        for turn in range(TILES):
            ring.wait_free(isa, turn)
            ring.arm(isa, turn)
            ring.load(isa, turn, mask=0b11)
        leave_together(isa)

    def read(isa: Any) -> None:
        read_and_release(ring, use, TILES, mask=0b11)(isa)
        leave_together(isa)

    return program(parts.plan(), {"load": load, "use": read}, TILES)


# Somebody set the count to the consumers of one CTA. A slot that is written by multicast is free when both CTAs' are done.
DEEPGEMM_51 = Case(
    "DeepGEMM#51",
    bad=(multicast(count=1),),
    wanted=TOO_MANY | {Kind.RACE},
    says=(r"free\[\d\]",),
    fixed=(multicast(count=2),),
)


def signalling_lanes(count: int) -> Program:
    """A warp whose 32 lanes write a slot and each signal it; the first arrival must not be enough."""
    parts = Parts()
    write = parts.role("load", 1)
    use = parts.role("use", 1)
    full, free = parts.barrier("w_loaded", count, 2), parts.barrier("free", 1, 2)
    weights = parts.buffer("w", stages=2)

    def produce(isa: Any) -> None:
        for turn in range(TILES):
            isa.mbarrier_wait(free, turn % 2, (turn // 2 & 1) ^ 1)
            write_slot(isa, slot(turn), read_slot(isa, slot(turn), write), write)
            isa.mbarrier_arrive(full, turn % 2, lanes=32)

    def consume(isa: Any) -> None:
        for turn in range(TILES):
            isa.mbarrier_wait(full, turn % 2, turn // 2 & 1)
            read_slot(isa, slot(turn), use)
            isa.warp_sync()
            isa.mbarrier_arrive(free, turn % 2)

    def slot(turn: int) -> SlotRef:
        return SlotRef(weights, turn % 2)

    return program(parts.plan(), {"load": produce, "use": consume}, TILES)


# The barrier was made for one arrival, while all 32 lanes of the loading warp signalled it.
CUDNN_FRONTEND_426 = Case(
    "cudnn-frontend#426",
    bad=(signalling_lanes(count=1),),
    wanted=TOO_MANY | {Kind.RACE},
    says=(r"w_loaded\[\d\]",),
    fixed=(signalling_lanes(count=32),),
)


def gemm(count_of: Any = None) -> Program:
    """The shipped GEMM on a (1, 2) cluster; *count_of* changes what its slots count to before they are free."""
    schedule = tp.schedules.Gemm(tile=(64, 64, 64), cluster=(1, 2), stages=2)
    plan = schedule.plan({"a": "bf16", "b": "bf16", "d": "bf16"})
    if count_of is not None:

        def change(barrier: Any) -> Any:
            return attrs.evolve(barrier, count=count_of(barrier.count)) if barrier.name == "ring.free" else barrier

        rings = tuple(attrs.evolve(ring, barriers=tuple(map(change, ring.barriers))) for ring in plan.rings)
        plan = attrs.evolve(plan, barriers=tuple(map(change, plan.barriers)), rings=rings)
    shapes = {"a": (1, 64, 320), "b": (1, 128, 320), "d": (1, 64, 128)}
    return Program(plan, lambda isa: kernel_main(isa, schedule), shapes)


# A comment in QuACK's tests of pipeline checks: the number of CTAs whose consumers free a slot was derived from the wrong
# axis of a (1, 2) cluster. Half of the arrivals make a slot free early; twice as many never come.
QUACK_PEERS = Case(
    "QuACK test_pipeline_checks.py: peer count",
    bad=(gemm(lambda count: count // 2), gemm(lambda count: 2 * count)),
    wanted=TOO_MANY | {Kind.RACE, Kind.DEADLOCK, Kind.MISSING_ARRIVAL},
    says=(r"ring\.free\[\d\]",),
    fixed=(gemm(),),
)

CASES = (CUTLASS_2404, THUNDERKITTENS_115, DEEPGEMM_51, CUDNN_FRONTEND_426, QUACK_PEERS)
