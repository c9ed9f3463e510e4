"""Fences between threads' accesses and the async proxy: missing, present but not where one looks, and redundant."""

from __future__ import annotations

from typing import Any

from tests.check.corpus.parts import TILE, Case, HandRing, Parts, Program, fill_all, program
from tests.machine.slots import read_slot, write_slot
from tmapipe.base.arithmetic import fp16
from tmapipe.isa.fragment import SlotRef
from tmapipe.model.layout import Kind

TILES = 5


def write_then_store(fences: int) -> Program:
    """Four warps write an output buffer, one stores it. *fences*: proxy fences of each warp between the two."""
    parts = Parts()
    role = parts.role("math", 4)
    out = parts.buffer("out")
    store = parts.store("y", out)
    sync = parts.named("y.sync", 1, 128)
    slot = SlotRef(out, 0)

    def body(isa: Any) -> None:
        for turn in range(TILES):
            if isa.warp == 0:
                isa.bulk_wait_group(0, read=True)
            isa.named_barrier_sync(sync)
            write_slot(isa, slot, 0.0, role)
            for _ in range(fences):
                isa.fence_proxy_async()
            isa.named_barrier_sync(sync)
            if isa.warp == 0:
                isa.tma_store(store, 0, (turn * TILE[0], 0))
                isa.bulk_commit_group()
        if isa.warp == 0:
            isa.bulk_wait_group(0, read=False)

    return program(parts.plan(), {"math": body}, TILES)


# A barrier stood between the threads' writes and the TMA store, but no proxy fence.
CUDNN_FRONTEND_784 = Case(
    "cudnn-frontend#784",
    bad=(write_then_store(fences=0),),
    wanted=frozenset({Kind.PROXY}),
    says=(r"out\[0\]", r"fence"),
    fixed=(write_then_store(fences=1),),
)

# Every warp fences twice where once is enough. Nothing is wrong with that but time.
TRITON_FB_1671 = Case(
    "triton-fb#1671",
    bad=(),
    wanted=frozenset(),
    says=(),
    fixed=(write_then_store(fences=2),),
    notes=frozenset({Kind.REDUNDANT_FENCE}),
)


def read_then_load(fence: bool) -> Program:
    """Threads read a slot which TMA then fills again."""
    parts = Parts()
    parts.role("load", 1)
    use = parts.role("use", 1)
    ring = HandRing(parts, 2)

    def read(isa: Any) -> None:
        for turn in range(TILES):
            ring.wait_full(isa, turn)
            read_slot(isa, ring.slot(turn), use)
            if fence:
                isa.fence_proxy_async()
            isa.warp_sync()
            ring.release(isa, turn)

    return program(parts.plan(), {"load": fill_all(ring, TILES), "use": read}, TILES)


# The slot was read by ordinary loads, and a TMA load overwrote it, with an mbarrier but no proxy fence between.
DEEPEP_642 = Case(
    "DeepEP#642",
    bad=(read_then_load(fence=False),),
    wanted=frozenset({Kind.PROXY}),
    says=(r"x\[\d\]", r"fence"),
    fixed=(read_then_load(fence=True),),
)


def write_then_wgmma(fence: bool) -> Program:
    """A warpgroup writes both operands with ordinary stores, and multiplies them."""
    parts = Parts()
    role = parts.role("math", 4)
    a = parts.buffer("a", (64, 16), dtype=fp16)
    b = parts.buffer("b", (16, 16), dtype=fp16)
    mma = parts.matmul(a, b, 1, 0)
    sync = parts.named("sync", 1, 128)

    def body(isa: Any) -> None:
        acc = isa.fragments.accumulator(mma)
        isa.wgmma_fence()
        for _ in range(TILES):
            write_slot(isa, SlotRef(a, 0), 0.0, role)
            write_slot(isa, SlotRef(b, 0), 0.0, role)
            if fence:
                isa.fence_proxy_async()
            isa.named_barrier_sync(sync)
            isa.wgmma(mma, acc, SlotRef(a, 0), SlotRef(b, 0))
            isa.wgmma_commit()
            isa.wgmma_wait(0)
            isa.named_barrier_sync(sync)

    return program(parts.plan(), {"math": body}, TILES)


# Operands converted by threads into shared memory were read through MMA descriptors, after a barrier but no proxy fence.
SGLANG_39124 = Case(
    "sglang#39124",
    bad=(write_then_wgmma(fence=False),),
    wanted=frozenset({Kind.PROXY}),
    says=(r"[ab]\[0\]", r"fence"),
    fixed=(write_then_wgmma(fence=True),),
)


def one_fence_for_two(fence: bool) -> Program:
    """A slot of q and lse. Threads read lse, write dq and store it by TMA, and then release the slot: the fence that dq needs
    stands between the reads of lse and the release, so it covers these too."""
    parts = Parts()
    parts.role("load", 1)
    use = parts.role("use", 1)
    ring = HandRing(parts, 2, names=("q", "lse"))
    out = parts.buffer("dq")
    store = parts.store("y", out)

    def body(isa: Any) -> None:
        for turn in range(TILES):
            ring.wait_full(isa, turn)
            read_slot(isa, ring.slot(turn, "lse"), use)
            isa.bulk_wait_group(0, read=True)
            isa.warp_sync()
            write_slot(isa, SlotRef(out, 0), 0.0, use)
            if fence:
                isa.fence_proxy_async()
            isa.warp_sync()
            isa.tma_store(store, 0, (turn * TILE[0], 0))
            isa.bulk_commit_group()
            ring.release(isa, turn)
        isa.bulk_wait_group(0, read=False)

    return program(parts.plan(), {"load": fill_all(ring, TILES), "use": body}, TILES)


# A fence was thought to be missing before the release of the slot; another one, there for the store, already covers it.
FLASH_ATTENTION_2462 = Case(
    "flash-attention#2462",
    bad=(one_fence_for_two(fence=False),),
    wanted=frozenset({Kind.PROXY}),
    says=(r"lse\[\d\]", r"dq\[0\]"),
    fixed=(one_fence_for_two(fence=True),),
)

CASES = (CUDNN_FRONTEND_784, TRITON_FB_1671, DEEPEP_642, SGLANG_39124, FLASH_ATTENTION_2462)
