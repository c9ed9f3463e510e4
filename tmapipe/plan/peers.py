"""CTAs of a cluster that write into each other's slots: by multicast, or by copies between them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tmapipe.errors import InputError
from tmapipe.peer_stage import PeerStage
from tmapipe.plan.model import Buffer, Peer
from tmapipe.stage import SlotStage, TmaLoadStage

__all__ = ["group_of", "peers_of"]


def group_of(part: SlotStage, cluster: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of the cluster along which CTAs write into each other's slots of this stage."""
    group = part.group if isinstance(part, PeerStage) else part.multicast if isinstance(part, TmaLoadStage) else None
    return tuple(axis for axis in group.axes if cluster.get(axis, 1) > 1) if group is not None else ()


def peers_of(part: PeerStage, cluster: Mapping[str, int], buffer: Buffer, source: Buffer, role: str) -> Peer:
    """What is known of the copies of a stage.

    Args:
        buffer, source: Of the stage, and of what is copied.
        role: That sends.

    Raises:
        InputError: The group has one CTA, or the two lie in their slots in different ways.
    """
    axes = group_of(part, cluster)
    if not axes:
        rule = f"names axes of the cluster, which is {dict(cluster)}: along these a CTA has no peers"
        raise InputError(f"{buffer.name}.group", part.group, rule, 'e.g. cluster = {"n": 2}')
    if (source.tile, source.swizzle) != (buffer.tile, buffer.swizzle):
        rule = (
            f"lies in its slots as {source.name} does, tiles of {source.tile} with a swizzle of {source.swizzle} bytes"
        )
        raise InputError(f"{buffer.name}.swizzle", buffer.swizzle, rule, "give the source the same tile and swizzle=")
    return Peer(buffer.name, buffer, source, role, axes, math.prod(cluster[axis] for axis in axes))
