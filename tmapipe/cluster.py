"""MulticastGroup, and the arithmetic of CTAs in a cluster: ranks, peers and masks, for any shape up to 16 CTAs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.isa import Isa

__all__ = ["MulticastGroup", "check_cluster", "cluster_coordinate", "peer_mask", "peer_pattern"]

MAX_CLUSTER = 16  # CTAs; above 8 the kernel asks for a non-portable cluster size (CUDA programming guide)


@attrs.frozen(init=False)
class MulticastGroup:
    """The CTAs of a cluster that want the same tile: those that differ only along *axes* of the cluster.

    In a GEMM, CTAs along ``"n"`` share the tile of A and CTAs along ``"m"`` share the tile of B:
    ``TmaLoadStage("m k", ..., multicast=MulticastGroup("n"))``. Each of the g peers loads 1/g of the tile and the
    hardware writes it to all g of them. Along an axis of extent 1 the group is the CTA alone, and nothing is multicast.
    """

    axes: tuple[str, ...]

    def __init__(self, *axes: str):
        if not axes or len(set(axes)) != len(axes):
            raise InputError("MulticastGroup(axes)", axes, "needs one or more different axes", "name each axis once")
        self.__attrs_init__(axes)

    def size(self, cluster: dict[str, int]) -> int:
        """CTAs in a group. Axes that the cluster lacks count 1."""
        return math.prod(cluster.get(axis, 1) for axis in self.axes)


def check_cluster(cluster: dict[str, int], most: int = MAX_CLUSTER) -> None:
    """Raises `InputError` unless every extent is positive and the cluster has at most *most* CTAs."""
    for axis, size in cluster.items():
        if not isinstance(size, int) or size < 1:
            raise InputError(f"cluster[{axis!r}]", size, "a cluster extent is a positive integer", "use 1, 2 or 4")
    total = math.prod(cluster.values())
    if total > most:
        shape = " x ".join(map(str, cluster.values()))
        raise InputError(
            "cluster", cluster, f"{shape} = {total} CTAs, but a cluster has at most {most}", "use a smaller one"
        )


def _stride(cluster: dict[str, int], axis: str) -> int:
    names = list(cluster)
    return math.prod(cluster[name] for name in names[: names.index(axis)])


def peer_pattern(cluster: dict[str, int], axes: Iterable[str]) -> int:
    """The mask of the origin CTA's peers along *axes*: bit r is set for rank r. The first axis varies fastest."""
    ranks = [0]
    for axis in axes:
        if axis in cluster:
            stride = _stride(cluster, axis)
            ranks = [rank + i * stride for rank in ranks for i in range(cluster[axis])]
    return sum(1 << rank for rank in ranks)


def cluster_coordinate(isa: Isa, axis: str) -> Any:
    """The calling CTA's coordinate along *axis* of its cluster."""
    cluster = isa.plan.cluster
    if cluster.get(axis, 1) == 1:
        return 0
    stride = _stride(cluster, axis)
    rank = isa.cta_rank if stride == 1 else isa.cta_rank // stride
    return rank if stride * cluster[axis] == isa.plan.cluster_size else rank % cluster[axis]


def peer_mask(isa: Isa, axes: Iterable[str]) -> Any:
    """The mask of the calling CTA's peers along *axes*: the origin's pattern, shifted by the CTA's other coordinates."""
    axes = [axis for axis in axes if isa.plan.cluster.get(axis, 1) > 1]
    own = sum(cluster_coordinate(isa, axis) * _stride(isa.plan.cluster, axis) for axis in axes)
    origin = isa.cta_rank - own
    return peer_pattern(isa.plan.cluster, axes) << origin


def share_index(isa: Isa, axes: Iterable[str]) -> Any:
    """Which of the group's parts the calling CTA loads: its position among its peers."""
    index, stride = 0, 1
    for axis in axes:
        size = isa.plan.cluster.get(axis, 1)
        index = index + cluster_coordinate(isa, axis) * stride
        stride *= size
    return index
