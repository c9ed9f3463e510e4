"""Where the calling CTA is in its cluster: coordinates, peers and shares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tmapipe.isa.interface import Isa
from tmapipe.multicast import Along, peer_pattern, rank_stride

__all__ = ["cluster_coordinate", "peer_mask", "peer_rank", "share_index"]


def cluster_coordinate(isa: Isa, axis: str) -> Any:
    """The calling CTA's coordinate along *axis* of its cluster."""
    cluster = isa.plan.cluster
    if cluster.get(axis, 1) == 1:
        return 0
    stride = rank_stride(cluster, axis)
    rank = isa.cta_rank if stride == 1 else isa.cta_rank // stride
    return rank if stride * cluster[axis] == isa.plan.cluster_size else rank % cluster[axis]


def _index(isa: Isa, along: Along) -> Any:
    """The calling CTA's index among those of its group along one axis."""
    coordinate = cluster_coordinate(isa, along.axis)
    return coordinate if along.ctas == along.extent else coordinate % along.ctas


def peer_mask(isa: Isa, group: Iterable[Along]) -> Any:
    """The mask of the CTAs in the calling CTA's group."""
    group = tuple(group)
    own = sum(_index(isa, each) * each.stride for each in group)
    return peer_pattern(group) << (isa.cta_rank - own)


def share_index(isa: Isa, group: Iterable[Along]) -> Any:
    """Which share of a multicast tile the calling CTA loads: its index in its group."""
    index, stride = 0, 1
    for each in group:
        index = index + _index(isa, each) * stride
        stride *= each.ctas
    return index


def peer_rank(isa: Isa, group: Iterable[Along], index: Any) -> Any:
    """The rank of the CTA with this index (as of `share_index`) in the calling CTA's group."""
    rank, left = isa.cta_rank, index
    for each in group:
        rank = rank + (left % each.ctas - _index(isa, each)) * each.stride
        left = left // each.ctas
    return rank
