"""What a role's `ReductionScratch` is in its warps: numbers exchanged within the CTA, or with others of the cluster."""

from __future__ import annotations

from typing import Any

from tmapipe.isa.exchange import ClusterExchange, Exchange
from tmapipe.isa.interface import Isa
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.cluster import peer_mask, share_index
from tmapipe.protocol.registry import stands_for
from tmapipe.reduction_scratch import ReductionScratch

__all__ = ["exchange_of"]


@stands_for(ReductionScratch)
def _of_scratch(k: Any, name: str, scratch: ReductionScratch) -> None:
    """Fragments find it: bodies have no name for it."""
    if k.name_of(scratch.role) == k.role.name:
        k.isa.fragments.exchanges[k.role.first_warp] = exchange_of(k.isa, name, scratch, k.role)


def exchange_of(isa: Isa, name: str, scratch: ReductionScratch, role: RoleWarps) -> Exchange:
    """The exchange of the calling warp.

    Args:
        name: Of the scratch in the plan.
    """
    buffer = isa.plan.buffer(name)
    peers = buffer.tile[0] // role.warps
    if scratch.group is None or peers == 1:
        return Exchange(isa, buffer, isa.syncs.of([role]))
    axes = scratch.group.along(isa.plan.cluster)
    full = isa.plan.barrier(f"{name}.full")
    return ClusterExchange(isa, buffer, full, peer_mask(isa, axes), share_index(isa, axes), peers)
