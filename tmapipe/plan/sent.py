"""Shared memory and mbarriers of a `ClusterSum`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from tmapipe.cluster_sum import ClusterSum
from tmapipe.dtypes import fp32
from tmapipe.errors import InputError
from tmapipe.plan.model import Barrier, Buffer, HeldTile, RoleWarps
from tmapipe.register_tile import RegisterTile

if TYPE_CHECKING:
    from tmapipe.plan.shared_memory import Layout

__all__ = ["SentParts", "held_tile"]


@attrs.frozen
class SentParts:
    """Parts of a sum on their way between CTAs of a cluster.

    Args:
        buffer: One slot, for a part from each CTA.
        full: Completes when all parts have come: it counts one warp, and the bytes.
        free: Completes when the slots of all these CTAs have been read: it counts each warp of theirs.
        axis: Of the cluster, along which the CTAs lie.
        ctas: How many they are.
    """

    buffer: Buffer
    full: Barrier
    free: Barrier
    axis: str
    ctas: int


def held_tile(layout: Layout, name: str, tile: RegisterTile) -> HeldTile:
    """What is called *name* of a plan, with its shared memory and mbarriers in *layout*, if it has some.

    Raises:
        InputError: A `ClusterSum` of other CTAs than the cluster has, or in another role than the matmul's.
    """
    role = layout.roles[layout.name_of(tile.role)]
    sent = _sent_parts(layout, name, tile, role) if isinstance(tile, ClusterSum) else None
    return HeldTile(name, tile.shape, role.first_warp, role.warps // 4, sent)


def _sent_parts(layout: Layout, name: str, tile: ClusterSum, role: RoleWarps) -> SentParts:
    ctas, space = layout.declared.cluster.get(tile.axis, 1), layout.space
    if ctas != tile.ctas:
        rule = f"is how many CTAs the cluster has along {tile.axis}: {ctas}"
        raise InputError(f"{name}.ctas", tile.ctas, rule, "say the same in both")
    if layout.matmul_roles[layout.name_of(tile.source)] != role.name:
        raise InputError(f"{name}.role", role.name, "is the role that executes the matmul", "pass that")
    rows, columns = tile.shape
    warps = f"{role.warps} warps x {ctas} CTAs"
    full = Barrier(f"{name}.full", space.take(8, 8), 1, 1, "1 expect-tx")
    free = Barrier(f"{name}.free", space.take(8, 8), 1, role.warps * ctas, warps)
    place = space.take(ctas * rows * columns * fp32.bytes, 128)
    buffer = Buffer(name, place, 1, (ctas * rows, columns), fp32)
    layout.barriers += [full, free]
    layout.buffers.append(buffer)
    return SentParts(buffer, full, free, tile.axis, ctas)
