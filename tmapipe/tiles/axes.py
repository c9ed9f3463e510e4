"""The dimensions of the grid of output tiles, and what each is divided into."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from tmapipe.errors import InputError
from tmapipe.multicast import MulticastGroup, check_cluster
from tmapipe.plan.declarations import Declarations
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["Axis", "axes_of", "check_axes", "check_relations", "check_rows", "rows_of"]


class Axis(NamedTuple):
    """A dimension of the grid: the one at `place` of the tensor of `stage`, in tiles of `elements`."""

    stage: str
    place: int
    elements: int


def axes_of(declared: Declarations, over: str | None) -> dict[str, Axis]:
    """The axes of the grid by dimension, the last one varying fastest.

    Args:
        over: Names of its dimensions; by default those of the first store, else of the first load.

    Raises:
        InputError: There is no stage, or none with such a dimension.
    """
    parts: dict[str, TmaLoadStage | TmaStoreStage] = {**declared.stores, **declared.loads}
    if not parts:
        raise InputError("Schedule", declared.name, "has no load and no store stage", "declare one")
    known: dict[str, Axis] = {}
    for name, part in parts.items():
        for i, (dim, elements) in enumerate(zip(part.dims, part.span, strict=True)):
            known.setdefault(dim, Axis(name, i, elements))
    dims = tuple(over.split()) if isinstance(over, str) else next(iter(parts.values())).dims
    if over is not None and (
        not isinstance(over, str) or not dims or len(set(dims)) < len(dims) or set(dims) - set(known)
    ):
        rule = f"names different dimensions of stages ({', '.join(known)})"
        raise InputError("Schedule.over", over, rule, 'e.g. over = "m n"')
    return {dim: known[dim] for dim in dims}


def check_axes(declared: Declarations, over: str | None) -> None:
    """Raises `InputError` if the cluster or a multicast group names an axis that the grid does not have."""
    check_cluster(declared.cluster)
    axes = axes_of(declared, over)
    named = itertools.chain(
        ((f"cluster[{axis!r}]", axis) for axis in declared.cluster),
        (
            (f"{loaded}.multicast", axis)
            for loaded, load in declared.loads.items()
            if load.multicast is not None
            for axis in load.multicast.axes
        ),
        ((f"{name}.group", axis) for name, group in _groups(declared).items() for axis in group.axes),
    )
    for argument, axis in named:
        if axis not in axes:
            rule = f"is no dimension of the output's tiles ({', '.join(axes)})"
            raise InputError(argument, axis, rule, "name one of those")
    for loaded, load in declared.loads.items():
        if load.result is not None and (missing := [dim for dim in axes if dim not in load.result.dims]):
            rule = f"is of a tensor with all dimensions of the grid ({', '.join(axes)}): else two output tiles share it"
            fix = f"add {' '.join(missing)}, or set over="
            raise InputError(f"{loaded}.of_result", " ".join(load.result.dims), rule, fix)


def _groups(declared: Declarations) -> dict[str, MulticastGroup]:
    """The groups of CTAs that send each other tiles or numbers, by the part that says so."""
    parts: dict[str, Any] = {**declared.shared, **declared.scratches}
    found = {name: getattr(part, "group", None) for name, part in parts.items()}
    return {name: group for name, group in found.items() if group is not None}


def check_rows(declared: Declarations, axes: Mapping[str, Axis], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises `InputError` if a tensor's rows, which are reduced over the CTAs of a cluster, do not fit into one cluster."""
    for dim, name in rows_of(declared, axes).items():
        axis, ctas = axes[dim], declared.cluster.get(dim, 1)
        if shapes[axis.stage][axis.place] > axis.elements * ctas:
            rule = f"has at most {ctas} x {axis.elements} elements along {dim}: {name} reduces them over {ctas} CTAs"
            raise InputError(f"{axis.stage}.shape", shapes[axis.stage], rule, "use a larger tile or cluster")


def rows_of(declared: Declarations, axes: Mapping[str, Axis]) -> dict[str, str]:
    """The dimensions that are reduced over all CTAs of a cluster along them, each with the part that does."""
    found = {}
    for name, group in _groups(declared).items():
        for dim in group.axes if name in declared.scratches else ():
            if dim in axes and not group.ctas:  # the plan refuses others; blocks of CTAs each have rows of their own
                found[dim] = name
    return found


def check_relations(declared: Declarations) -> None:
    """Raises `InputError` if a `Dim` is about a dimension that no stage, table or other `Dim` has."""
    stages: dict[str, None] = {}
    tensors: dict[str, Any] = {**declared.loads, **declared.stores, **declared.tables}
    for part in tensors.values():
        stages |= dict.fromkeys(part.dims)
    named, followed = {dim.name for dim in declared.relations}, {dim.of for dim in declared.relations}
    rule = f"is a dimension of a stage ({', '.join(stages)})"
    for dim in declared.relations:
        if dim.name not in {*stages, *followed}:
            raise InputError("Dim(name)", dim.name, rule, "name one of those")
        if dim.of not in {*stages, *named, None}:
            raise InputError("Dim(of)", dim.of, rule, "name one of those")
    following = {dim.name: dim.of for dim in declared.relations}
    for name in following:
        seen, other = {name}, following[name]
        while other is not None and other not in seen:
            seen.add(other)
            other = following.get(other)
        if other is not None:
            circle = " and ".join(sorted(seen))
            raise InputError("Schedule.relations", circle, "follow from each other in a circle", "drop one of the Dims")
