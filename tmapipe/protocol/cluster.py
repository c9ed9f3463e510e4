"""Where the calling CTA is in its cluster: coordinates, peers and shares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tmapipe.isa.interface import Isa
from tmapipe.multicast import peer_pattern, rank_stride

__all__ = ["cluster_coordinate", "peer_mask", "peer_rank", "share_index"]


def cluster_coordinate(isa: Isa, axis: str) -> Any:
    """The calling CTA's coordinate along *axis* of its cluster."""
    cluster = isa.plan.cluster
    if cluster.get(axis, 1) == 1:
        return 0
    stride = rank_stride(cluster, axis)
    rank = isa.cta_rank if stride == 1 else isa.cta_rank // stride
    return rank if stride * cluster[axis] == isa.plan.cluster_size else rank % cluster[axis]


def peer_mask(isa: Isa, axes: Iterable[str]) -> Any:
    """The mask of the calling CTA's peers along *axes*."""
    axes = [axis for axis in axes if isa.plan.cluster.get(axis, 1) > 1]
    own = sum(cluster_coordinate(isa, axis) * rank_stride(isa.plan.cluster, axis) for axis in axes)
    origin = isa.cta_rank - own
    return peer_pattern(isa.plan.cluster, axes) << origin


def share_index(isa: Isa, axes: Iterable[str]) -> Any:
    """Which share of a multicast tile the calling CTA loads: its index among its peers."""
    index, stride = 0, 1
    for axis in axes:
        size = isa.plan.cluster.get(axis, 1)
        index = index + cluster_coordinate(isa, axis) * stride
        stride *= size
    return index


def peer_rank(isa: Isa, axes: Iterable[str], index: Any) -> Any:
    """The rank of the CTA with this index (as of `share_index`) among the calling CTA's peers along *axes*, all of them
    axes of the cluster."""
    rank, left = isa.cta_rank, index
    for axis in axes:
        size = isa.plan.cluster[axis]
        rank = rank + (left % size - cluster_coordinate(isa, axis)) * rank_stride(isa.plan.cluster, axis)
        left = left // size
    return rank
