"""Clusters: masks, scopes, initialization that peers must see, and leaving while they still signal."""

from __future__ import annotations

from typing import Any

from tests.check.corpus.parts import Body, Case, HandRing, Parts, Program, init, leave_together, program
from tests.machine.slots import read_slot
from tmapipe.model.layout import Kind

TILES = 5


def multicast(
    load_mask: int = 0b11, release_mask: int = 0b11, leave: bool = True, setup: Body = init, **release: Any
) -> Program:
    """Two CTAs, each loading half of every tile for both. load_mask, release_mask: CTAs that get the data, and that are told
    when it has been read; leave: whether the CTAs leave together; release: options of the remote arrival."""
    parts = Parts(cluster=2)
    parts.role("load", 1)
    use = parts.role("use", 1)
    ring = HandRing(parts, 2, free=2, peers=2)

    def load(isa: Any) -> None:
        for turn in range(TILES):
            ring.wait_free(isa, turn)
            ring.arm(isa, turn)
            ring.load(isa, turn, mask=load_mask)
        if leave:
            leave_together(isa)

    def read(isa: Any) -> None:
        for turn in range(TILES):
            ring.wait_full(isa, turn)
            read_slot(isa, ring.slot(turn), use)
            isa.fence_proxy_async()
            isa.warp_sync()
            isa.mbarrier_arrive_cluster(ring.free, turn % ring.stages, release_mask, **release)
        if leave:
            leave_together(isa)

    return program(parts.plan(), {"load": load, "use": read}, TILES, setup)


# The mask was computed for another shape of cluster, and named a CTA that this one does not have.
CUTLASS_3658 = Case(
    "cutlass#3658",
    bad=(multicast(load_mask=0b101), multicast(release_mask=0b101)),
    wanted=frozenset({Kind.OUT_OF_RANGE}),
    says=(r"mask 0b101", r"cluster"),
    fixed=(multicast(),),
)

# An arrival at a peer's barrier released at CTA scope: the peer may see the arrival before the reads and writes it stands for.
CUTLASS_3643 = Case(
    "cutlass#3643",
    bad=(multicast(scope="cta"),),
    wanted=frozenset({Kind.SCOPE}),
    says=(r"scope", r"free\[\d\]"),
    fixed=(multicast(scope="cluster"),),
)

# Kernels of several CTAs had no cluster barrier before they returned.
TRITON_10656 = Case(
    "triton#10656",
    bad=(multicast(leave=False),),
    wanted=frozenset({Kind.EXITED_PEER}),
    says=(r"CTA \d",),
    fixed=(multicast(leave=True),),
)


def without_fence(isa: Any) -> None:
    init(isa, fence=False)


def without_cluster_barrier(isa: Any) -> None:
    init(isa, cluster=False)


# The barriers' initialization was not made visible to the cluster before the first remote use.
TRITON_FB_1240 = Case(
    "triton-fb#1240",
    bad=(multicast(setup=without_fence), multicast(setup=without_cluster_barrier)),
    wanted=frozenset({Kind.INIT_NOT_VISIBLE}),
    says=(r"(full|free)\[\d\]",),
    fixed=(multicast(),),
)

CASES = (CUTLASS_3658, CUTLASS_3643, TRITON_10656, TRITON_FB_1240)
