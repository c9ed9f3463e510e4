"""Slots overwritten while something asynchronous, or somebody else, still uses them."""

from __future__ import annotations

from typing import Any

from tests.check.corpus.parts import TILE, Case, HandRing, Parts, Program, leave_together, program
from tests.machine.slots import read_slot, write_slot
from tmapipe.isa.fragment import SlotRef
from tmapipe.model.layout import Kind

TILES = 6
REUSED = frozenset({Kind.STORE_SOURCE_REUSED, Kind.RACE})


def copy_by_one_warp(pending: int) -> Program:
    """One warp copies tiles through two slots: load, wait, store, and refill the slot when at most *pending* groups of stores
    are left that have not read their source."""
    stages = 2
    parts = Parts()
    parts.role("copy", 1)
    full = parts.barrier("full", 1, stages)
    slots = parts.buffer("x", stages=stages)
    load, store = parts.load(slots), parts.store("y", slots)

    def body(isa: Any) -> None:
        def fill(turn: int) -> None:
            isa.mbarrier_arrive_expect_tx(full, turn % stages, slots.slot_bytes)
            isa.tma_load(load, turn % stages, (turn * TILE[0], 0), full)

        for turn in range(stages):
            fill(turn)
        for turn in range(TILES):
            isa.mbarrier_wait(full, turn % stages, turn // stages & 1)
            isa.tma_store(store, turn % stages, (turn * TILE[0], 0))
            isa.bulk_commit_group()
            if turn + stages < TILES:
                isa.bulk_wait_group(pending, read=True)
                fill(turn + stages)
        isa.bulk_wait_group(0, read=False)

    return program(parts.plan(), {"copy": body}, TILES)


# The wait before a refill leaves stages - 1 groups pending. With two stages that is the store just committed, which reads
# the very slot that is refilled.
DEEPEP_657 = Case(
    "DeepEP#657",
    bad=(copy_by_one_warp(pending=1),),
    wanted=REUSED,
    says=(r"x\[\d\]",),
    fixed=(copy_by_one_warp(pending=0),),
)


def aliased_epilogue(peers: bool) -> Program:
    """Two CTAs that load tiles for each other. After the last read of a slot, its bytes serve as the output buffer. *peers*:
    whether the loaders wait for the epilogues of both CTAs or of their own only."""
    parts = Parts(cluster=2)
    parts.role("load", 1)
    use = parts.role("math", 1)
    ring = HandRing(parts, 1, free=2, peers=2)
    stored = parts.barrier("stored", 2 if peers else 1)
    out = parts.buffer("out", at=ring.buffers["x"].offset)
    store = parts.store("y", out)

    def load(isa: Any) -> None:
        for turn in range(TILES):
            ring.wait_free(isa, turn)
            isa.mbarrier_wait(stored, 0, turn & 1 ^ 1)
            ring.arm(isa, turn)
            ring.load(isa, turn, mask=0b11)
        leave_together(isa)

    def math(isa: Any) -> None:
        for turn in range(TILES):
            ring.wait_full(isa, turn)
            read_slot(isa, ring.slot(turn), use)
            isa.fence_proxy_async()
            isa.warp_sync()
            ring.release(isa, turn, mask=0b11)
            write_slot(isa, SlotRef(out, 0), 0.0, use)
            isa.fence_proxy_async()
            isa.warp_sync()
            isa.tma_store(store, 0, (turn * TILE[0], 0))
            isa.bulk_commit_group()
            isa.bulk_wait_group(0, read=True)
            if peers:
                isa.mbarrier_arrive_cluster(stored, 0, 0b11)
            else:
                isa.mbarrier_arrive(stored, 0)
        isa.bulk_wait_group(0, read=False)
        leave_together(isa)

    return program(parts.plan(), {"load": load, "math": math}, TILES)


# The epilogue's buffer shares its bytes with the slots. The leader waited for its own epilogue before it loaded the next
# tile into both CTAs, not for its peer's.
HUMMING_56 = Case(
    "humming#56",
    bad=(aliased_epilogue(peers=False),),
    wanted=REUSED,
    says=(r"CTA 1|CTA 0", r"(out|x)\[0\]"),
    fixed=(aliased_epilogue(peers=True),),
)


def descriptor_slot(drain: bool) -> Program:
    """A warp writes the descriptor of each group into one slot, from where the TMA engine reads it (as a store does here).
    *drain*: whether it waits for that before it writes the next one."""
    parts = Parts()
    role = parts.role("load", 1)
    table = parts.buffer("descriptor", (1, 32))
    publish = parts.store("descriptors", table)

    def body(isa: Any) -> None:
        for group in range(TILES):
            if drain:
                isa.bulk_wait_group(0, read=True)
                isa.warp_sync()
            write_slot(isa, SlotRef(table, 0), 0.0, role)
            isa.fence_proxy_async()
            isa.warp_sync()
            isa.tma_store(publish, 0, (group, 0))
            isa.bulk_commit_group()
        isa.bulk_wait_group(0, read=False)

    return program(parts.plan(), {"load": body}, TILES)


# At the change to another group the tensor map was rewritten in place, while the engine could still be reading it.
DEEPGEMM_343 = Case(
    "DeepGEMM#343",
    bad=(descriptor_slot(drain=False),),
    wanted=REUSED,
    says=(r"descriptor\[0\]",),
    fixed=(descriptor_slot(drain=True),),
)


def two_writers(sync_before_write: bool) -> Program:
    """Two warpgroups write halves of one output buffer, which the first one's first warp stores."""
    parts = Parts()
    role = parts.role("math", 8)
    out = parts.buffer("out", (16, 16))
    store = parts.store("y", out)
    sync = parts.named("y.sync", 1, 256)

    def body(isa: Any) -> None:
        for turn in range(TILES):
            if isa.warp == 0:
                isa.bulk_wait_group(0, read=True)
            if sync_before_write:
                isa.named_barrier_sync(sync)
            write_slot(isa, SlotRef(out, 0), 0.0, role)
            isa.fence_proxy_async()
            isa.named_barrier_sync(sync)
            if isa.warp == 0:
                isa.tma_store(store, 0, (turn * 16, 0))
                isa.bulk_commit_group()
        if isa.warp == 0:
            isa.bulk_wait_group(0, read=False)

    return program(parts.plan(), {"math": body}, TILES)


# A comment in Pallas' pipeline emitter: two warpgroups share an output buffer, and the faster one may write its next result
# before the store of the last one, which the other issues, has read it.
PALLAS_OUTPUT = Case(
    "Pallas pipeline.py: output buffer",
    bad=(two_writers(sync_before_write=False),),
    wanted=REUSED,
    says=(r"out\[0\]",),
    fixed=(two_writers(sync_before_write=True),),
)

CASES = (DEEPEP_657, HUMMING_56, DEEPGEMM_343, PALLAS_OUTPUT)
