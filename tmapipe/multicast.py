"""MulticastGroup, and the arithmetic of CTAs in a cluster: ranks, peers and masks, for any shape up to 16 CTAs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import is_count, must, optional

__all__ = [
    "MAX_CLUSTER", "Along", "MulticastGroup", "along", "check_cluster", "is_group", "optional_group", "peer_pattern",
]  # fmt: skip


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
        ctas: How many CTAs side by side along the one axis make a group, where not all of them do: with 2, in a cluster of
            four, the first two share one tile and the last two another.

    Raises:
        InputError: Unless these are one or more different names; for `ctas` of fewer than two, or along several axes.
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

    ctas: int | None = attrs.field(default=None)

    def __init__(self, *axes: str, whole: bool = False, ctas: int | None = None):
        self.__attrs_init__(axes, whole, ctas)

    @ctas.validator
    def _check_ctas(self, field: object, ctas: object) -> None:
        if ctas is not None and (not is_count(ctas) or ctas == 1 or len(self.axes) > 1):
            rule = "is a number of CTAs side by side along one axis, two or more"
            raise InputError("MulticastGroup(ctas)", ctas, rule, "leave it out for all along the axes")

    def __repr__(self) -> str:
        unlike = (", whole=True" if self.whole else "") + (f", ctas={self.ctas}" if self.ctas else "")
        return f"MulticastGroup({', '.join(map(repr, self.axes))}{unlike})"

    def along(self, cluster: Mapping[str, int]) -> tuple[Along, ...]:
        """Where the CTAs of a group lie in a *cluster* of these extents by axis; empty if each is alone. Raises `InputError`
        unless groups of `ctas` make an axis."""
        found = along(cluster, self.axes)
        if self.ctas is None:
            return found
        (axis,), extent = self.axes, cluster.get(self.axes[0], 1)
        if extent % self.ctas:
            rule = f"divides the cluster's {extent} CTAs along {axis}"
            raise InputError("MulticastGroup(ctas)", self.ctas, rule, f'e.g. cluster = {{"{axis}": {2 * self.ctas}}}')
        return (found[0]._replace(ctas=self.ctas),)

    def size(self, cluster: Mapping[str, int]) -> int:
        """CTAs in a group. Axes that the cluster lacks count 1."""
        return math.prod(each.ctas for each in self.along(cluster))


#: Validators of fields that hold a group, or None.
_RULE = ("is a MulticastGroup: the CTAs of the cluster that differ only along these axes", 'e.g. MulticastGroup("n")')
is_group = must(lambda group: isinstance(group, MulticastGroup), *_RULE)
optional_group = must(optional(lambda group: isinstance(group, MulticastGroup)), *_RULE)


def check_cluster(cluster: Mapping[str, int], most: int = MAX_CLUSTER) -> None:
    """Raises `InputError` unless *cluster* maps axes to positive extents of at most *most* CTAs in all."""
    if not isinstance(cluster, Mapping):
        raise InputError("cluster", cluster, "maps dimensions of the output to numbers of CTAs", 'e.g. {"m": 2}')
    for axis, size in cluster.items():
        if not is_count(size):
            raise InputError(f"cluster[{axis!r}]", size, "a cluster extent is a positive integer", "use 1, 2 or 4")
    total = math.prod(cluster.values())
    if total > most:
        shape = " x ".join(map(str, cluster.values())) + f" = {total}" * (len(cluster) > 1)
        raise InputError("cluster", cluster, f"is {shape} CTAs, but a cluster has at most {most}", "use a smaller one")


def rank_stride(cluster: Mapping[str, int], axis: str) -> int:
    """By how much a CTA's rank grows by one step along *axis*."""
    names = list(cluster)
    return math.prod(cluster[name] for name in names[: names.index(axis)])


class Along(NamedTuple):
    """CTAs of a group, side by side along one axis of the cluster.

    ctas: how many; extent: CTAs along the axis in all; stride: by how much the rank grows from one to the next.
    """

    axis: str
    ctas: int
    extent: int
    stride: int

    def __str__(self) -> str:
        return self.axis if self.ctas == self.extent else f"{self.axis} ({self.ctas} of {self.extent} CTAs)"


def along(cluster: Mapping[str, int], axes: Iterable[str]) -> tuple[Along, ...]:
    """All CTAs along each of *axes*, without those along which there is one."""
    several = ((axis, cluster[axis]) for axis in axes if cluster.get(axis, 1) > 1)
    return tuple(Along(axis, extent, extent, rank_stride(cluster, axis)) for axis, extent in several)


def peer_pattern(group: Iterable[Along]) -> int:
    """The mask of the peers of the CTA at the cluster's origin: bit r is set for rank r."""
    ranks = [0]
    for each in group:
        ranks = [rank + i * each.stride for rank in ranks for i in range(each.ctas)]
    return sum(1 << rank for rank in ranks)
