"""CTAs of a cluster that write into each other's slots: by multicast, or by copies between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tmapipe.dtypes import DType
from tmapipe.errors import InputError
from tmapipe.multicast import Along
from tmapipe.peer_stage import PeerStage, ReducedStage, SentStage
from tmapipe.plan.model import Buffer, Peer, RoleWarps
from tmapipe.stage import SlotStage

__all__ = ["bytes_of", "check_warps", "far_phases", "group_of", "peers_of", "read_by_peers"]


def bytes_of(part: SlotStage, dtype: DType, cluster: Mapping[str, int]) -> int:
    """How many come into each slot."""
    times = part.group.size(cluster) if isinstance(part, ReducedStage) else 1
    return times * math.prod(part.tile) * dtype.bytes


def group_of(part: SlotStage, cluster: Mapping[str, int]) -> tuple[Along, ...]:
    """The axes of the cluster along which CTAs write into each other's slots of this stage, or read them."""
    return () if part.sharing is None else part.sharing.along(cluster)


def far_phases(
    ring: str, phases: tuple[tuple[str, ...], ...], parts: Sequence[SlotStage], name_of: Callable[[Any], str]
) -> tuple[int, ...]:
    """The phases of a ring whose roles write tiles that other CTAs read, and so signal these too.

    Args:
        parts: Of the ring, those with a group of CTAs.

    Raises:
        InputError: The ring is filled once a CTA.
    """
    written = [part for part in parts if part.filled_by == "warps"]
    for part in written:
        if part.ring.held:
            rule = "is of a ring whose slots are released, so that no CTA leaves while others read them"
            raise InputError(f"SharedStage(group) in {ring}", part.sharing, rule, 'leave out per="cta"')
    writers = {name_of(part.filler) for part in written}
    return tuple(p for p, phase in enumerate(phases) if writers & set(phase))


def check_warps(parts: Iterable[SlotStage], roles: Mapping[str, RoleWarps], name_of: Callable[[Any], str]) -> None:
    """Raises `InputError` if a role of several warps loads by the engine, or copies to other CTAs."""
    for part in parts:
        name = name_of(part.filler)
        if (part.filled_by == "engine" or isinstance(part, PeerStage)) and roles[name].warps != 1:
            rule = "a role that loads by TMA, or copies to peers, has one warp"
            raise InputError(f"Role({name})", f"{roles[name].warps} warps", rule, "Role(warps=1)")


def read_by_peers(parts: Mapping[str, SlotStage], cluster: Mapping[str, int]) -> dict[str, tuple[Along, ...]]:
    """Of the stages whose tiles other CTAs read, by name: the axes along which these lie."""
    written = {name: part for name, part in parts.items() if part.filled_by == "warps"}
    return {name: axes for name, part in written.items() if (axes := group_of(part, cluster))}


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
