"""MulticastGroup, and the arithmetic of CTAs in a cluster: ranks, peers and masks, for any shape up to 16 CTAs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import is_count, must

__all__ = ["MAX_CLUSTER", "MulticastGroup", "check_cluster", "peer_pattern"]


MAX_CLUSTER = 16  # CTAs; above 8 the kernel asks for a non-portable cluster size (CUDA programming guide)


@attrs.frozen(init=False, repr=False)
class MulticastGroup:
    """The CTAs of a cluster that want the same tile: those that differ only along *axes* of the cluster.

    In a GEMM, CTAs along ``"n"`` share the tile of A and CTAs along ``"m"`` share the tile of B:
    ``TmaLoadStage("m k", ..., multicast=MulticastGroup("n"))``. Each of the g peers loads 1/g of the tile and the
    hardware writes it to all g of them. Along an axis of extent 1 the group is the CTA alone, and nothing is multicast.

    Args:
        axes: Names of axes of the cluster.
        whole: Whether the first CTA of the group loads all of the tile, and the others none, as for a tile that cannot be cut
            into g equal parts.

    Raises:
        InputError: Unless these are one or more different names.
    """

    axes: tuple[str, ...] = attrs.field(
        validator=must(
            lambda axes: axes and all(isinstance(axis, str) for axis in axes) and len(set(axes)) == len(axes),
            "needs the names of one or more different axes",
            "name each axis once",
        )
    )

    whole: bool = attrs.field(
        default=False, validator=must(lambda whole: isinstance(whole, bool), "is yes or no", "leave it out")
    )

    def __init__(self, *axes: str, whole: bool = False):
        self.__attrs_init__(axes, whole)

    def __repr__(self) -> str:
        return f"MulticastGroup({', '.join(map(repr, self.axes))}{', whole=True' if self.whole else ''})"

    def size(self, cluster: Mapping[str, int]) -> int:
        """CTAs in a group. Axes that the cluster lacks count 1."""
        return math.prod(cluster.get(axis, 1) for axis in self.axes)


def check_cluster(cluster: Mapping[str, int], most: int = MAX_CLUSTER) -> None:
    """Raises `InputError` unless *cluster* maps axes to positive extents of at most *most* CTAs in all."""
    if not isinstance(cluster, Mapping):
        raise InputError("cluster", cluster, "maps dimensions of the output to numbers of CTAs", 'e.g. {"m": 2}')
    for axis, size in cluster.items():
        if not is_count(size):
            raise InputError(f"cluster[{axis!r}]", size, "a cluster extent is a positive integer", "use 1, 2 or 4")
    total = math.prod(cluster.values())
    if total > most:
        shape = " x ".join(map(str, cluster.values()))
        raise InputError(
            "cluster", cluster, f"{shape} = {total} CTAs, but a cluster has at most {most}", "use a smaller one"
        )


def rank_stride(cluster: Mapping[str, int], axis: str) -> int:
    """By how much a CTA's rank grows by one step along *axis*."""
    names = list(cluster)
    return math.prod(cluster[name] for name in names[: names.index(axis)])


def peer_pattern(cluster: Mapping[str, int], axes: Iterable[str]) -> int:
    """The mask of the origin CTA's peers along *axes*: bit r is set for rank r. The first axis varies fastest."""
    ranks = [0]
    for axis in axes:
        if axis in cluster:
            step = rank_stride(cluster, axis)
            ranks = [rank + i * step for rank in ranks for i in range(cluster[axis])]
    return sum(1 << rank for rank in ranks)
