"""The loads of a plan: which CTA loads what, and what one instruction moves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tmapipe import tma_rules
from tmapipe.descriptor_stage import DescriptorStage
from tmapipe.errors import InputError
from tmapipe.multicast import peer_pattern
from tmapipe.plan.model import Load
from tmapipe.plan.moves import check_moved
from tmapipe.plan.peers import group_of
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage

if TYPE_CHECKING:
    from tmapipe.plan.shared_memory import Layout

__all__ = ["load_of"]


def load_of(layout: Layout, name: str, load: TmaLoadStage) -> Load:
    """The load called *name*, into its slots in *layout*.

    Raises:
        InputError: For a tile that peers cannot share, or that the engine or threads cannot load.
    """
    declared, buffer = layout.declared, layout.of[name]
    axes = group_of(load, declared.cluster)
    peers = 1 if load.multicast is not None and load.multicast.whole else math.prod(each.ctas for each in axes)
    if axes:
        shared = [each.axis for each in axes if each.axis in load.dims]
        if shared:
            rule = f"CTAs along {', '.join(shared)} want different tiles of {name}"
            raise InputError(f"{name}.multicast", load.multicast, rule, "drop that axis")
        unit = 8 if buffer.swizzle else 1
        if load.tile[0] % peers or load.matrix[0] % (peers * unit):
            rule = f"{peers} multicast peers each load an equal part, in steps of {unit} rows"
            fix = f"use a multiple of {peers * unit}, or MulticastGroup(..., whole=True)"
            raise InputError(f"{name}.tile[0]", load.tile[0], rule, fix)
    if load.result is not None:
        _check_result(name, load, load.result)
    through = [each for each, part in declared.shared.items() if isinstance(part, DescriptorStage) and part.of is load]
    if len(through) > 1:
        raise InputError("DescriptorStage(of)", load, f"is that of {', '.join(through)}", "declare one for each stage")
    made = Load(
        name,
        name if load.result is None else declared.name_of(load.result),
        buffer,
        load.dims,
        load.extents,
        peers,
        axes,
        peer_pattern(axes),
        load.outside,
        load.strides,
        load.windows,
        layout.of[through[0]] if through else None,
        core=len(load.tile if load.windows is None else load.dims),
        parts=load.parts,
        vector=load.vector,
        tensor_map=load.tensor_map,
        l2_hint=load.l2_hint,
    )
    if load.tensor_map:
        check_moved(name, made)
        _check_described(name, made)
    elif 0 < load.vector < buffer.dtype.bytes:
        rule = f"is at least an element of {buffer.dtype.bytes} bytes"
        raise InputError(f"{name}.vector", load.vector, rule, f"e.g. vector={buffer.dtype.bytes}")
    return made


def _check_described(name: str, load: Load) -> None:
    """Raises `InputError` unless a descriptor can say where the elements of a tile lie, and what there is outside."""
    dtype = load.buffer.dtype
    if load.outside == "nan" and not tma_rules.TYPES[tma_rules.type_of(dtype)].floating:
        rule = f"is for types of floating point of 16 and 32 bits, not for {dtype}"
        raise InputError(f"{name}.nan_outside()", dtype.name, rule, "leave it out: there are zeros")
    if load.windows is not None:
        if load.box[0] * load.peers != load.buffer.tile[0]:
            rule = f"has up to {tma_rules.MAX_BOX} channels, or whole swizzle spans of them"
            raise InputError(f"{name}.tile", load.buffer.tile, rule, "load fewer channels at a time")
        return
    spans = [n * step for n, step in zip(load.box, load.steps[-len(load.box) :], strict=True)]
    if max(spans) > tma_rules.MAX_BOX:
        rule = f"spans {' x '.join(map(str, spans))} elements, and a box at most {tma_rules.MAX_BOX} along an extent"
        raise InputError(f"{name}.tile", load.tile, rule, "load smaller tiles, or with smaller strides")


def _check_result(name: str, load: TmaLoadStage, store: TmaStoreStage) -> None:
    """Raises `InputError` unless the tiles that a stage loads are those that a CTA stores by itself."""
    alike = load.dims == store.dims and load.tile == store.tile
    plain = load.tensor_map and load.outside == "zeros" and not (load.windows or load.multicast or load.strides)
    once = not (store.reduce or store.folded or store.parts > 1 or store.parts_tile is not None or store.transposed)
    if not (alike and plain and once):
        rule = (
            "is stored whole, not reduced, and loaded in the same tiles by a TmaLoadStage without multicast or strides"
        )
        raise InputError(f"{name}.of_result", store, rule, "give both the same dims and tile")
