"""CTAs of a cluster that write into each other's slots: by multicast, or by copies between them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tmapipe.errors import InputError
from tmapipe.multicast import Along
from tmapipe.peer_stage import PeerStage, ReducedStage, SentStage
from tmapipe.plan.model import Buffer, Peer
from tmapipe.stage import SlotStage

__all__ = ["group_of", "peers_of"]


def group_of(part: SlotStage, cluster: Mapping[str, int]) -> tuple[Along, ...]:
    """The axes of the cluster along which CTAs write into each other's slots of this stage, or read them."""
    return () if part.sharing is None else part.sharing.along(cluster)


def peers_of(
    part: PeerStage | SentStage, cluster: Mapping[str, int], buffer: Buffer, source: Buffer | None, role: str
) -> Peer:
    """What is known of the copies of a stage.

    Args:
        buffer, source: Of the stage, and of what is copied; None: what threads have in registers.
        role: That sends.

    Raises:
        InputError: The group has one CTA, or the two lie in their slots in different ways.
    """
    axes = group_of(part, cluster)
    if not axes:
        rule = f"names axes of the cluster, which is {dict(cluster)}: along these a CTA has no peers"
        raise InputError(f"{buffer.name}.group", part.group, rule, 'e.g. cluster = {"n": 2}')
    peers, reduce = math.prod(each.ctas for each in axes), part.reduce if isinstance(part, ReducedStage) else None
    if reduce is not None and source is not None:
        rows, *rest = buffer.tile
        whole = (peers * rows, *rest)
        if (source.tile, source.dtype) != (whole, buffer.dtype) or source.swizzle or buffer.swizzle:
            rule = (
                f"is of a source of {whole} {buffer.dtype}, both without a swizzle; it has {source.tile} {source.dtype}"
            )
            raise InputError(f"{buffer.name}.tile", buffer.tile, rule, f"give the source {peers} times the rows")
    elif source is not None and (source.tile, source.swizzle) != (buffer.tile, buffer.swizzle):
        rule = (
            f"lies in its slots as {source.name} does, tiles of {source.tile} with a swizzle of {source.swizzle} bytes"
        )
        raise InputError(f"{buffer.name}.swizzle", buffer.swizzle, rule, "give the source the same tile and swizzle=")
    return Peer(buffer.name, buffer, source, role, axes, peers, reduce)
