"""What a role's `ReductionScratch` is in its warps: numbers exchanged within the CTA, or with others of the cluster."""

from __future__ import annotations

from typing import Any

from tmapipe.isa.exchange import ClusterExchange, Exchange
from tmapipe.protocol.cluster import peer_mask, share_index
from tmapipe.protocol.registry import stands_for
from tmapipe.reduction_scratch import ReductionScratch


@stands_for(ReductionScratch)
def _of_scratch(k: Any, name: str, scratch: ReductionScratch) -> None:
    """Fragments find it: bodies have no name for it."""
    isa, role = k.isa, k.role
    buffer = isa.plan.buffer(name)
    peers = buffer.tile[0] // role.warps
    if scratch.group is None or peers == 1:
        found: Exchange = Exchange(isa, buffer, isa.syncs.of([role]))
    else:
        axes = scratch.group.along(isa.plan.cluster)
        full = isa.plan.barrier(f"{name}.full")
        found = ClusterExchange(isa, buffer, full, peer_mask(isa, axes), share_index(isa, axes), peers)
    isa.fragments.exchanges[role.first_warp] = found
