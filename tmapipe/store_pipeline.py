"""TmaStoreStage and the other stores: results on their way to global memory, and StoredStage, for roles that load them
again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import attrs

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import DType, as_dtype
from tmapipe.errors import InputError, as_tuple, changed, fill, is_count, must, optional, shown
from tmapipe.parts import RegisterTile, Wgmma
from tmapipe.stage import L2_HINTS, LoadStage, SlotStage, TokenStage, check_dims, is_piece, is_tile, joined, names_in

# ---- store pipeline --------------------------------------------------------------------------------------------------
#
# TmaStoreStage: results on their way to global memory through the TMA engine.
#
# The life of a buffer: free -> written by threads -> fenced and synchronized -> read by the engine -> free. One
# thread issues all stores of a unit and tracks them as bulk groups. ``wait_group.read`` says that the bytes of a
# buffer have been read: threads may overwrite it, and at the end the CTA may exit. (The writes are visible when the
# kernel has ended.)
#
# From a slot (``source=`` a load stage or a shared stage) there is no buffer and no copy: the engine reads the slot,
# and the ring releases it when the read has retired.


#: Reduction -> element types that it is done in. The hardware compares int32 too (PTX ISA, cp.reduce.async.bulk), but with the
#: descriptors of CuTe DSL 4.8.1 it does so without a sign, as seen on an H200: so "min" and "max" are not for it. (They are
#: in a `BulkStoreStage`, which has no descriptor.)
REDUCTIONS = {
    "add": ("bf16", "fp16", "fp32", "fp64", "int32", "int64"),
    "min": ("bf16", "fp16"),
    "max": ("bf16", "fp16"),
    **dict.fromkeys(("inc", "dec"), ("int32",)),
    **dict.fromkeys(("and", "or", "xor"), ("int32", "int64")),
}
FROM_ZERO = ("add", "or", "xor")  # those that an output which a call leaves out can begin with


S = TypeVar("S", bound="StoreStage")


@attrs.frozen(eq=False, repr=False, kw_only=True)
class StoreStage:
    """What the stages have in common that store tiles to tensors. Arguments as of `TmaStoreStage`."""

    dims: tuple[str, ...] = attrs.field(default=None, converter=names_in, kw_only=False, repr=joined)
    source: SlotStage | Wgmma | RegisterTile | None = attrs.field(
        default=None,
        validator=must(
            optional(lambda source: isinstance(source, (SlotStage, Wgmma, RegisterTile))),
            "is a TmaLoadStage, a SharedStage, a Wgmma, a RegisterTile or None",
            "pass one",
        ),
    )
    tile: tuple[int, ...] = attrs.field(default=None, converter=as_tuple, validator=attrs.validators.optional(is_tile))
    role: Role | None = attrs.field(
        default=None,
        validator=must(
            optional(lambda role: isinstance(role, Role)), "is the Role that computes what is stored", "pass a Role"
        ),
    )
    stages: int = attrs.field(default=None)
    columns: int | None = None
    dtype: DType | None = attrs.field(default=None, converter=attrs.converters.optional(as_dtype))
    reduce: str | None = attrs.field(
        default=None,
        validator=must(
            optional(lambda reduce: reduce in REDUCTIONS), f"is None or one of {', '.join(REDUCTIONS)}", '"add"'
        ),
    )

    parts: int = attrs.field(default=1, init=False)
    l2_hint: str | None = attrs.field(default=None, init=False)
    #: Loads of tensors that the output may be.
    overwrites: tuple[LoadStage, ...] = attrs.field(default=(), init=False)
    #: Bytes that a thread stores at once; 0 where the engine stores.
    vector: int = attrs.field(default=0, init=False)
    wide: bool = attrs.field(default=False, init=False)
    #: Whether the engine finds tiles through a descriptor.
    tensor_map: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        source, slot, dims, tile = self.source, self.slot, self.dims, self.tile
        if source is None and (tile is None or self.role is None):
            argument = f"{type(self).__name__}(tile, role)"
            raise InputError(argument, (tile, self.role), "are needed without a source", "pass both")
        if slot is not None:
            _check_follows(slot, tile, self.columns, self.dtype)
        if isinstance(source, LoadStage):
            dims = dims or source.dims
            _check_strided(source, dims)
        if source is not None:
            tile = tile or (source.tile if isinstance(source, SlotStage) else source.shape[:2])
            tile = tile[::-1] if _transposes(dims, source) and len(tile) == 2 else tile
        if self.stages is None:
            fill(self, stages=2 if slot is None else 1)
        fill(self, dims=check_dims(self, dims, tile), tile=tile)

    @stages.validator
    def _check_stages(self, field: Any, stages: Any) -> None:
        least = 0 if self.slot is not None else 1
        if stages is not None and (not isinstance(stages, int) or stages < least):
            argument = f"{type(self).__name__}(stages)"
            raise InputError(argument, stages, f"is an integer of at least {least}", "use 2")

    def __repr__(self) -> str:
        derived = () if self.source is None else ("tile",)
        parts = "" if self.parts == 1 else f".in_parts({self.parts})"
        hint = "" if self.l2_hint is None else f".with_l2_hint({self.l2_hint!r})"
        over = f".in_place({', '.join(map(repr, self.overwrites))})" if self.overwrites else ""
        return shown(self, "parts", "l2_hint", "overwrites", *derived) + parts + hint + over

    @property
    def extents(self) -> tuple[int, ...]:
        """Elements of a tile along each of `dims`."""
        return (1,) * (len(self.dims) - len(self.tile)) + self.tile

    def in_place(self: S, *loads: LoadStage) -> S:
        """The same stage, whose output may be the tensor of one of these loads: of its address, extents, strides and type.

        Both have the same dimensions and tiles. A CTA loads what it stores, at the coordinates of its output tile alone. The
        check sees that the load has ended before the store begins.

        Args:
            loads: Stages without multicast, parts, windows or strides.

        Raises:
            InputError: One of *loads* is no load stage.
        """
        if not loads or not all(isinstance(load, LoadStage) for load in loads):
            raise InputError("in_place", loads, "names stages that load tiles", "e.g. in_place(x)")
        return changed(self, overwrites=loads)

    @property
    def slot(self) -> SlotStage | None:
        """The stage whose slots are stored; None where threads fill buffers."""
        return self.source if isinstance(self.source, SlotStage) else None

    @property
    def sums(self) -> Wgmma | RegisterTile | None:
        """What lies in the registers of warpgroups as accumulators do, if that is stored."""
        return None if isinstance(self.source, SlotStage) else self.source

    @property
    def storing(self) -> Role | None:
        """Who stores; None if that is the role of a matmul."""
        if self.role is not None:
            return self.role
        if self.slot is not None:
            return self.slot.ring.phases[-1][0]
        return self.source.role if isinstance(self.source, RegisterTile) else None

    span = extents  # elements of the tensor from one tile to the next

    @property
    def transposed(self) -> bool:
        """Whether the source's rows are the tensor's columns."""
        return _transposes(self.dims, self.source)

    @property
    def reducible(self) -> tuple[str, ...]:
        """The element types in which it can `reduce`."""
        return REDUCTIONS[self.reduce] if self.reduce else ()

    @property
    def parts_tile(self) -> tuple[int, ...] | None:
        """Elements of shared memory in which each warpgroup's threads exchange what they store, for subclasses; None: of
        none."""
        return None

    @property
    def folded(self) -> Mapping[str, int]:
        """Leading dimensions that the tensor lacks, with their extents: all tiles along them go to the same elements."""
        return {}

    def derive(self, extents: Mapping[str, int]) -> dict[str, int]:
        """Extents of dimensions that follow from *extents*, for subclasses that store to a workspace."""
        return {}


@attrs.frozen(eq=False, repr=False, kw_only=True)
class TmaStoreStage(StoreStage):
    """Stores tiles to a tensor through the TMA engine.

    Where the order of tiles gives them bounds of their own (as `GroupedTiles`), it writes no more than these.

    Args:
        dims: Names of the tensor's dimensions, the last one contiguous; by default those of `source`. The last two may name a
            `Wgmma`'s columns and rows, in this order: its accumulators are then stored transposed, as types of 16 or 32 bits.
        source: A `TmaLoadStage` or a `SharedStage`: the slot that was filled is stored. A `Wgmma`: its accumulators, through
            buffers of 64 rows that each warpgroup fills and stores by itself. A `RegisterTile`: likewise. None: what the
            threads of `role` computed, through buffers of one tile.
        tile: Elements along the last dimensions; by default the source's.
        role: Who stores, where that does not follow from the source.
        stages: Buffers (of each warpgroup, for accumulators); or, from a slot, stores that may still read while the next slot
            is waited for.
        columns: Of a buffer for accumulators; by default as many as fill a swizzle span of 128 bytes.
        dtype: Of the elements, by default that of the tensor.
        reduce: What the tensor's elements become, instead of being overwritten, from what they are and what is stored, in no
            fixed order: "add" (bf16, fp16, fp32, fp64: rounded each time, so bits may differ from run to run; int32, int64),
            "min" or "max" (bf16, fp16), "and", "or", "xor" (int32, int64), and of int32 as unsigned numbers "inc" (one more,
            or 0 if it is at least what is stored) and "dec" (one less, or what is stored if it is 0 or above that). "add",
            "or" and "xor" begin with 0 where a call leaves the output out; for the others it is passed.

    Raises:
        InputError: For any other value.
    """

    tensor_map = True

    def in_parts(self, parts: int) -> TmaStoreStage:
        """The same stage, whose slot is cut along its first extent into so many equal parts, each of which is stored by itself
        to wherever it belongs: ``slot.y.store_part(i, ...)``. With as many parts as it has rows, these can be scattered.

        Raises:
            InputError: *parts* does not divide the extent, or the stage does not store from a slot.
        """
        if not (is_count(parts) and self.slot is not None) or self.tile[0] % parts:
            rule = f"is a number of parts that divides the tile's first extent, {self.tile[0]}, of a store from a slot"
            raise InputError("in_parts", parts, rule, f"e.g. {self.tile[0]}, with source=")
        return changed(self, parts=parts)

    def with_l2_hint(self, hint: str | None) -> TmaStoreStage:
        """The same stage, whose stores have the priority "evict_first", "evict_last" or "evict_normal" in L2. None: the usual.

        Raises:
            InputError: For any other *hint*.
        """
        if hint is not None and (not isinstance(hint, str) or hint not in L2_HINTS):
            rule = f"is one of {', '.join(L2_HINTS)}, of a store through a descriptor"
            raise InputError(f"{type(self).__name__}.with_l2_hint", hint, rule, 'e.g. "evict_first"')
        return changed(self, l2_hint=hint)


def _check_strided(source: LoadStage, dims: tuple[str, ...]) -> None:
    """Raises `InputError` if the output has a dimension of which a tile takes some elements only."""
    for dim, step in zip(source.dims[-len(source.tile) :], source.strides, strict=False):
        if step > 1 and dim in dims:
            rule = f"names other dimensions than {dim}, of which the source takes every {step}. element"
            raise InputError("TmaStoreStage(dims)", " ".join(dims), rule, "give it a name of its own, related by a Dim")


def _transposes(dims: Any, source: Any) -> bool:
    """Whether the last two of *dims* are those of the matmul *source* in the other order."""
    named = source.dims if isinstance(source, Wgmma) else None
    return dims is not None and named is not None and dims[-2:] == named[::-1] != named


def _check_follows(source: SlotStage, tile: Any, columns: Any, dtype: Any) -> None:
    """Raises `InputError` for what differs from the slot."""
    other = dtype is not None and source.dtype not in (None, dtype)
    if (tile or source.tile) != source.tile or columns is not None or other:
        given, rule = (tile, columns, dtype), "follow from the slot"
        raise InputError("TmaStoreStage(tile, columns, dtype)", given, rule, "leave them out")


# ---- bulk store ------------------------------------------------------------------------------------------------------
#
# BulkStoreStage: pieces of a vector, stored without a descriptor.


@attrs.frozen(eq=False, repr=False, kw_only=True)
class BulkStoreStage(StoreStage):
    """Stores pieces of a vector by ``cp.async.bulk``, or adds to it by ``cp.reduce.async.bulk``.

    It needs no descriptor. The vector has a multiple of 16 bytes, of which the last piece may be shorter; for others there is
    `ThreadStoreStage`.

    Args:
        dims: The name of the vector's dimension, by default the source's.
        source: The stage whose slots are stored; None: what the threads of `role` computed.
        tile: Elements of a piece, as a tuple of one, by default the source's. A multiple of 16 bytes.
        role: Who stores, where that does not follow from the source.
        reduce: As of `TmaStoreStage`; "min" and "max" of int32 and int64 too.
        stages: As of `TmaStoreStage`.
        columns: None: it is of stores of accumulators.
        dtype: As of `TmaStoreStage`.

    Raises:
        InputError: For a tile of more than one extent, or another source.
    """

    source: SlotStage | None = attrs.field(
        default=None,
        validator=must(
            optional(lambda source: isinstance(source, SlotStage) and len(source.tile) == 1),
            "is a stage of slots with one extent, or None",
            "use a TmaStoreStage",
        ),
    )
    tile: tuple[int, ...] = attrs.field(default=None, converter=as_tuple, validator=attrs.validators.optional(is_piece))
    columns: int | None = attrs.field(
        default=None, validator=must(lambda columns: columns is None, "is of other stores", "use a TmaStoreStage")
    )

    @property
    def reducible(self) -> tuple[str, ...]:
        return (*super().reducible, *(("int32", "int64") if self.reduce in ("min", "max") else ()))


# ---- thread store ----------------------------------------------------------------------------------------------------
#
# ThreadStoreStage: results that threads store from registers, to tensors that the TMA engine does not take.


@attrs.frozen(eq=False, repr=False, kw_only=True)
class ThreadStoreStage(StoreStage):
    """Stores what the threads of `role` have computed straight from their registers, with ``st.global``.

    It needs no descriptor, no shared memory and no waits: rows of the tensor may begin at any multiple of `vector` bytes,
    where TMA wants multiples of 16, and it runs on sm_80. Elements outside the tensor are not written.

    Args:
        dims: Names of the tensor's dimensions, as in `TmaStoreStage`.
        tile: Elements, as in `TmaStoreStage`: the extents of the fragments that are stored.
        role: Who stores.
        vector: Bytes that a thread stores at once, if it has so many side by side: 1, 2, 4, 8 or 16, and no less than an
            element. The tensor's address, strides and rows are multiples of it, and so is where a tile starts along the
            contiguous dimension.
        wide: Whether a thread stores 16 bytes at once where so many lie side by side at a multiple of 16, which it finds out
            when it stores, and the others by `vector`: for rows that begin anywhere, with tiles that start before them.
        dtype: Of the elements, by default that of the tensor.

    Raises:
        InputError: For any other value.
    """

    vector: int = attrs.field(
        default=16,
        validator=must(
            lambda n: type(n) is int and n in (1, 2, 4, 8, 16),
            "is one of 1, 2, 4, 8, 16 bytes",
            "the most that divides the row pitch",
        ),
    )
    wide: bool = attrs.field(
        default=False, validator=must(lambda value: isinstance(value, bool), "is True or False", "leave it out")
    )
    source: None = attrs.field(default=None, init=False)
    stages: int = attrs.field(default=1, init=False)
    columns: int | None = attrs.field(default=None, init=False)
    reduce: str | None = attrs.field(default=None, init=False)


# ---- stored stage ----------------------------------------------------------------------------------------------------
#
# StoredStage: that tiles of an output have been written, for roles of the same kernel that load them.


@attrs.frozen(eq=False, repr=False, kw_only=True)
class StoredStage(TokenStage):
    """That a CTA's tiles of an output have been written, and may be loaded by the same CTA.

    Its slots have no memory. The role that stores calls ``slot.<stage>.publish()`` in one, after its stores: that waits until
    the engine has written them, and fences. The next roles of the ring load them, by a stage ``of_result(store)``, once they
    have entered the slot. Tiles of the next output tile may be stored meanwhile. The same tile is stored again only once its
    bytes have come.

    (For the next kernel of the stream nothing is needed: it waits until this one has ended, and written everything.)

    Args:
        store: The stage that stores the tiles.
        ring: Produced by the role that stores.

    Raises:
        InputError: For any other value.
    """

    store: StoreStage = attrs.field(kw_only=False)

    def __attrs_post_init__(self) -> None:
        store, ring = self.store, self.ring
        if not isinstance(store, StoreStage):
            raise InputError("StoredStage(store)", store, "is a stage that stores tiles", "e.g. a TmaStoreStage")
        if not isinstance(ring, BarrierRing) or ring.per == "cta":
            rule = "is a BarrierRing whose slots follow the tiles"
            raise InputError("StoredStage(ring)", ring, rule, "e.g. BarrierRing(1, producer=store, consumer=load)")
        if store.storing is not None and not any(store.storing is role for role in ring.phases[0]):
            raise InputError("StoredStage(ring)", ring, "is produced by the role that stores", "name that as producer")
