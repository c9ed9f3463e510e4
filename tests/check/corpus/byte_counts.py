"""Bytes armed by expect-tx that differ from the bytes that arrive."""

from __future__ import annotations

from typing import Any

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
from tests.machine.slots import read_slot
from tmapipe.model.layout import Kind

TILES = 6


def one_cta_loads(arms: tuple[int, ...]) -> Program:
    """CTA 0 loads every tile for both CTAs; the CTAs *arms* arm their barrier for it."""
    parts = Parts(cluster=2)
    parts.role("load", 1)
    use = parts.role("use", 1)
    ring = HandRing(parts, 2, free=2)

    def load(isa: Any) -> None:
        for turn in range(TILES):
            ring.wait_free(isa, turn)
            if isa.cta_rank in arms:
                ring.arm(isa, turn)
            if isa.cta_rank == 0:
                ring.load(isa, turn, mask=0b11)
        leave_together(isa)

    def read(isa: Any) -> None:
        read_and_release(ring, use, TILES, mask=0b11)(isa)
        leave_together(isa)

    return program(parts.plan(), {"load": load, "use": read}, TILES)


# Only CTA 0 armed its barrier for a response that the hardware writes to, and signals in, every CTA of the cluster.
TRITON_FB_908 = Case(
    "triton-fb#908",
    bad=(one_cta_loads(arms=(0,)),),
    wanted=frozenset({Kind.DEADLOCK, Kind.MISSING_ARRIVAL}),
    says=(r"CTA 1",),
    fixed=(one_cta_loads(arms=(0, 1)),),
)


def pairs(times: int) -> Program:
    """Four CTAs in two pairs, each CTA loading half of its pair's tile; a CTA arms *times* the bytes that it loads itself."""
    parts = Parts(cluster=4)
    parts.role("load", 1)
    use = parts.role("use", 1)
    ring = HandRing(parts, 2, free=2, peers=2)

    def pair(isa: Any) -> int:
        return 0b11 << (isa.cta_rank & ~1)

    def load(isa: Any) -> None:
        for turn in range(TILES):
            ring.wait_free(isa, turn)
            ring.arm(isa, turn, times * ring.nbytes // 2)
            ring.load(isa, turn, mask=pair(isa))
        leave_together(isa)

    def read(isa: Any) -> None:
        read_and_release(ring, use, TILES, mask=pair(isa))(isa)
        leave_together(isa)

    return program(parts.plan(), {"load": load, "use": read}, TILES)


# The bytes of one CTA were multiplied by the size of the cluster, where a pair of CTAs shares a tile, however large the
# cluster is.
TILELANG_2644 = Case(
    "tilelang#2644",
    bad=(pairs(times=4),),
    wanted=frozenset({Kind.DEADLOCK, Kind.TX_MISMATCH}),
    says=(r"\b(512|1024) bytes",),
    fixed=(pairs(times=2),),
)


def slices(armed: int) -> Program:
    """A slot of two slices, each with its own load; the bytes of *armed* slices are armed."""
    parts = Parts()
    parts.role("load", 1)
    use = parts.role("use", 1)
    ring = HandRing(parts, 2, names=("low", "high"))

    def load(isa: Any) -> None:
        for turn in range(TILES):
            ring.wait_free(isa, turn)
            ring.arm(isa, turn, armed * ring.buffers["low"].slot_bytes)
            ring.load(isa, turn, "low")
            ring.load(isa, turn, "high")

    return program(parts.plan(), {"load": load, "use": read_and_release(ring, use, TILES)}, TILES)


# One barrier waited for all slices of a tile, and expected the bytes of one.
TILELANG_2182 = Case(
    "tilelang#2182",
    bad=(slices(armed=1),),
    wanted=frozenset({Kind.TX_MISMATCH, Kind.EARLY_ARRIVAL, Kind.RACE}),
    says=(r"full\[\d\]",),
    fixed=(slices(armed=2),),
)


def skipped_copy(arm_skipped: bool) -> Program:
    """The copy of tile 3 is left out, since nobody needs it. The slot is handed over all the same."""
    parts = Parts()
    parts.role("load", 1)
    use = parts.role("use", 1)
    ring = HandRing(parts, 2)

    def load(isa: Any) -> None:
        for turn in range(TILES):
            if turn != 3:
                ring.fill(isa, turn)
            elif arm_skipped:
                ring.wait_free(isa, turn)
                ring.arm(isa, turn)
            else:
                ring.wait_free(isa, turn)
                isa.mbarrier_arrive(ring.full, turn % ring.stages)

    def read(isa: Any) -> None:
        for turn in range(TILES):
            ring.wait_full(isa, turn)
            if turn != 3:
                read_slot(isa, ring.slot(turn), use)
                isa.fence_proxy_async()
                isa.warp_sync()
            ring.release(isa, turn)

    return program(parts.plan(), {"load": load, "use": read}, TILES)


# Acquiring the slot arms its bytes, so leaving out the copy leaves the consumer waiting for bytes that nobody sends.
CUTLASS_2641 = Case(
    "NVIDIA/cutlass#2641",
    bad=(skipped_copy(arm_skipped=True),),
    wanted=frozenset({Kind.DEADLOCK, Kind.TX_MISMATCH}),
    says=(r"\b512 bytes",),
    fixed=(skipped_copy(arm_skipped=False),),
)


def trips(count: int, arrives: bool = True) -> Program:
    """*count* turns of the loop. Without *arrives*, a loop of one turn arms its bytes and does not arrive."""
    parts = Parts()
    parts.role("load", 1)
    use = parts.role("use", 1)
    ring = HandRing(parts, 2)

    def load(isa: Any) -> None:
        if count == 1 and not arrives:
            ring.wait_free(isa, 0)
            isa.mbarrier_expect_tx(ring.full, 0, ring.nbytes)
            ring.load(isa, 0)
        else:
            fill_all(ring, count)(isa)

    return program(parts.plan(), {"load": load, "use": read_and_release(ring, use, count)}, max(count, 1))


# For a loop of one trip another kind of copy was chosen, and lowered to an expect-tx without the arrival.
TILELANG_2566 = Case(
    "tilelang#2566",
    bad=(trips(1, arrives=False),),
    wanted=frozenset({Kind.DEADLOCK, Kind.MISSING_ARRIVAL}),
    says=(r"\b0 of 1 arrivals|full\[0\]",),
    fixed=(trips(1), trips(0), trips(2), trips(2, arrives=False), trips(3)),
)

CASES = (TRITON_FB_908, TILELANG_2644, TILELANG_2182, CUTLASS_2641, TILELANG_2566)
