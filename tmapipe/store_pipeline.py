"""Stages of stores: results on their way to global memory, and results that the same kernel loads again.

`TmaStoreStage`: the TMA engine stores a tile. `BulkStoreStage`: one piece of a vector, without a descriptor.
`ThreadStoreStage`: threads store from their registers. `StoredStage`: tells other roles that a tile has been written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import attrs

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import DType, optional_dtype
from tmapipe.errors import IS_BOOL, InputError, as_tuple, changed, fill, is_count, must, optional, require, shown
from tmapipe.parts import RegisterTile, Wgmma
from tmapipe.stage import L2_HINTS, LoadStage, SlotStage, TokenStage, check_dims, is_piece, is_tile, joined, names_in

# A buffer between threads and the engine goes through these states: free -> written by threads -> fenced and synchronized ->
# read by the engine -> free. One thread issues the stores of a warpgroup, or of a role, and tracks them as bulk groups.
# ``wait_group.read`` says that the engine has read a buffer: threads may overwrite it, and at the end the CTA may exit. (The
# writes are visible when the kernel has ended.)
#
# A store from a slot (``source=`` a load stage or a shared stage) has no buffer and no copy: the engine reads the slot, and
# the ring releases the slot when the read has retired.

#: Reduction -> the element types that it is done in. The hardware compares int32 too (PTX ISA, cp.reduce.async.bulk). But with
#: a descriptor of CuTe DSL 4.8.1 it compares without the sign, as seen on an H200. So "min" and "max" of int32 are for a
#: `BulkStoreStage` alone, which has no descriptor.
REDUCTIONS = {
    "add": ("bf16", "fp16", "fp32", "fp64", "int32", "int64"),
    "min": ("bf16", "fp16"),
    "max": ("bf16", "fp16"),
    **dict.fromkeys(("inc", "dec"), ("int32",)),
    **dict.fromkeys(("and", "or", "xor"), ("int32", "int64")),
}
FROM_ZERO = ("add", "or", "xor")  # reductions for which an output that a call leaves out begins with 0


_is_source = must(
    optional(lambda source: isinstance(source, (SlotStage, Wgmma, RegisterTile))),
    "is a TmaLoadStage, a SharedStage, a Wgmma, a RegisterTile or None",
    "pass one",
)
_is_role = must(
    optional(lambda role: isinstance(role, Role)), "must be the Role that computes the stored values", "pass a Role"
)
_is_reduction = must(
    lambda how: how is None or how in REDUCTIONS, f"is None or one of {', '.join(REDUCTIONS)}", 'e.g. "add"'
)
_is_of_pieces = must(
    optional(lambda source: isinstance(source, SlotStage) and len(source.tile) == 1),
    "is a stage of slots with one extent, or None",
    "use a TmaStoreStage",
)
_is_none = must(lambda columns: columns is None, "is for stores of matrices", "use a TmaStoreStage")

S = TypeVar("S", bound="StoreStage")


@attrs.frozen(eq=False, repr=False, kw_only=True)
class StoreStage:
    """Base of the stages that store tiles to tensors. The arguments are those of `TmaStoreStage`."""

    dims: tuple[str, ...] = attrs.field(default=None, converter=names_in, kw_only=False, repr=joined)
    source: SlotStage | Wgmma | RegisterTile | None = attrs.field(default=None, validator=_is_source)
    tile: tuple[int, ...] = attrs.field(default=None, converter=as_tuple, validator=attrs.validators.optional(is_tile))
    role: Role | None = attrs.field(default=None, validator=_is_role)
    stages: int = attrs.field(default=None)
    columns: int | None = None
    dtype: DType | None = attrs.field(default=None, converter=optional_dtype)
    reduce: str | None = attrs.field(default=None, validator=_is_reduction)

    parts: int = attrs.field(default=1, init=False)
    l2_hint: str | None = attrs.field(default=None, init=False)
    #: Loads whose tensors the output may overwrite.
    overwrites: tuple[LoadStage, ...] = attrs.field(default=(), init=False)
    #: How many bytes a thread stores at once; 0 where the engine stores.
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
        """The same stage, whose output may be the tensor of one of these loads: same address, extents, strides and type.

        The load and the store have the same dimensions and tiles. A CTA loads only the tiles that it stores: those at the
        coordinates of its output tile. The check sees that each load has ended before its store begins.

        Args:
            loads: Load stages without multicast, parts, windows or strides.

        Raises:
            InputError: One of *loads* is no load stage.
        """
        if not loads or not all(isinstance(load, LoadStage) for load in loads):
            raise InputError("in_place", loads, "names one or more stages that load tiles", "e.g. in_place(x)")
        return changed(self, overwrites=loads)

    @property
    def slot(self) -> SlotStage | None:
        """The stage whose slots are stored; None where threads fill buffers, or store themselves."""
        return self.source if isinstance(self.source, SlotStage) else None

    @property
    def sums(self) -> Wgmma | RegisterTile | None:
        """The source, if it lies in the registers of warpgroups as accumulators do; else None."""
        return None if isinstance(self.source, SlotStage) else self.source

    @property
    def storing(self) -> Role | None:
        """The role that stores; None: the role of the matmul that is the source."""
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
        """The element types in which the stage can `reduce`."""
        return REDUCTIONS[self.reduce] if self.reduce else ()

    @property
    def parts_tile(self) -> tuple[int, ...] | None:
        """Extents of the shared memory in which each warpgroup's threads exchange what they store, for subclasses. None: they
        exchange nothing."""
        return None

    @property
    def folded(self) -> Mapping[str, int]:
        """Leading dimensions of `dims` that the tensor does not have, with their extents: all tiles along them go to the same
        elements."""
        return {}

    def derive(self, extents: Mapping[str, int]) -> dict[str, int]:
        """Extents that follow from *extents*, by dimension, for subclasses that store to a workspace."""
        return {}


@attrs.frozen(eq=False, repr=False, kw_only=True)
class TmaStoreStage(StoreStage):
    """Stores tiles to a tensor through the TMA engine.

    Where the order of tiles gives a tile bounds of its own (as `GroupedTiles` does), no element beyond the bounds is written.

    Args:
        dims: Names of the tensor's dimensions, the last one contiguous; by default those of `source`. The last two may name a
            `Wgmma`'s columns and rows, in this order: its accumulators are then stored transposed, best as types of 16 bits.
        source: A `TmaLoadStage` or a `SharedStage`: the slot that was filled is stored. A `Wgmma` or a `RegisterTile`: the
            values in registers are stored, through buffers of 64 rows that each warpgroup fills and stores by itself. None:
            values that the threads of `role` have computed, through buffers of one tile.
        tile: Elements along the last dimensions; by default the source's.
        role: The role that stores, where it does not follow from the source.
        stages: How many buffers there are (for accumulators: for each warpgroup). For a store from a slot: how many stores may
            still read their slots while the role waits for the next slot.
        columns: Columns of a buffer for accumulators; by default as many as fill a swizzle span of 128 bytes.
        dtype: Element type, by default the tensor's.
        reduce: How a stored number is combined with the tensor's element, instead of overwriting it. The order of several
            stores to one element is open. "add": of bf16, fp16, fp32 and fp64 each addition rounds, so bits may differ from
            run to run; of int32 and int64 it is exact. "min" or "max": bf16, fp16. "and", "or", "xor": int32, int64. "inc" and
            "dec": int32 as unsigned numbers, where x is stored. "inc" makes an element one more, or 0 if it is at least x.
            "dec" makes it one less, or x if it is 0 or above x. For "add", "or" and "xor" a call may leave the output out,
            which then begins with 0; for the others it is passed.

    Raises:
        InputError: For any other value.
    """

    tensor_map = True

    def in_parts(self, parts: int) -> TmaStoreStage:
        """The same stage, whose slot is cut along its first extent into *parts* equal parts. Each part is stored by itself, to
        a place of its own: ``slot.y.store_part(i, ...)``. With as many parts as rows, the rows can be scattered.

        Raises:
            InputError: *parts* does not divide the extent, or the stage does not store from a slot.
        """
        if not (is_count(parts) and self.slot is not None) or self.tile[0] % parts:
            rule = f"is a number of parts that divides the tile's first extent, {self.tile[0]}, of a store from a slot"
            raise InputError("in_parts", parts, rule, f"e.g. {self.tile[0]}, with source=")
        return changed(self, parts=parts)

    def with_l2_hint(self, hint: str | None) -> TmaStoreStage:
        """The same stage, whose stores have the priority "evict_first", "evict_last" or "evict_normal" in L2; None: no hint.

        Raises:
            InputError: For any other *hint*.
        """
        if hint is not None and (not isinstance(hint, str) or hint not in L2_HINTS):
            rule = f"is one of {', '.join(L2_HINTS)}, of a store through a descriptor"
            raise InputError(f"{type(self).__name__}.with_l2_hint", hint, rule, 'e.g. "evict_first"')
        return changed(self, l2_hint=hint)


def _check_strided(source: LoadStage, dims: tuple[str, ...]) -> None:
    """Raises `InputError` if the output has a dimension along which the source's tile takes only every n-th element."""
    for dim, step in zip(source.dims[-len(source.tile) :], source.strides, strict=False):
        rule = f"names other dimensions than {dim}, along which the source takes only one of {step} elements"
        fix = "give the output's dimension a name of its own, related by a Dim"
        require(step <= 1 or dim not in dims, "TmaStoreStage(dims)", " ".join(dims), rule, fix)


def _transposes(dims: Any, source: Any) -> bool:
    """Whether the last two of *dims* are those of the matmul *source* in the other order."""
    named = source.dims if isinstance(source, Wgmma) else None
    return dims is not None and named is not None and dims[-2:] == named[::-1] != named


def _check_follows(source: SlotStage, tile: Any, columns: Any, dtype: Any) -> None:
    """Raises `InputError` for a tile, a type or columns other than those of the slot that is stored."""
    other = dtype is not None and source.dtype not in (None, dtype)
    if (tile or source.tile) != source.tile or columns is not None or other:
        given, rule = (tile, columns, dtype), "follow from the slot that is stored"
        raise InputError("TmaStoreStage(tile, columns, dtype)", given, rule, "leave them out")


@attrs.frozen(eq=False, repr=False, kw_only=True)
class BulkStoreStage(StoreStage):
    """Stores pieces of a vector by ``cp.async.bulk``, or adds to it by ``cp.reduce.async.bulk``.

    It needs no descriptor. The vector has a multiple of 16 bytes, and its last piece may be shorter than the others. For other
    vectors there is `ThreadStoreStage`.

    Args:
        dims: The name of the vector's dimension, by default the source's.
        source: The stage whose slots are stored; None: values that the threads of `role` have computed.
        tile: Elements of a piece, as a tuple of one number, by default the source's. A multiple of 16 bytes.
        role: The role that stores, where it does not follow from the source.
        reduce: As in `TmaStoreStage`; "min" and "max" of int32 and int64 too.
        stages: As in `TmaStoreStage`.
        columns: None: only stores of accumulators have columns.
        dtype: As in `TmaStoreStage`.

    Raises:
        InputError: For a tile of more than one extent, or another source.
    """

    source: SlotStage | None = attrs.field(default=None, validator=_is_of_pieces)
    tile: tuple[int, ...] = attrs.field(default=None, converter=as_tuple, validator=attrs.validators.optional(is_piece))
    columns: int | None = attrs.field(default=None, validator=_is_none)

    @property
    def reducible(self) -> tuple[str, ...]:
        return (*super().reducible, *(("int32", "int64") if self.reduce in ("min", "max") else ()))


_is_vector = must(
    lambda n: type(n) is int and n in (1, 2, 4, 8, 16),
    "is one of 1, 2, 4, 8, 16 bytes",
    "the most that divides the row pitch",
)


@attrs.frozen(eq=False, repr=False, kw_only=True)
class ThreadStoreStage(StoreStage):
    """Stores values that the threads of `role` have computed straight from their registers, with ``st.global``.

    It needs no descriptor, no shared memory and no waits, and it runs on sm_80. Rows of the tensor may begin at any multiple
    of `vector` bytes, where TMA wants multiples of 16. Elements outside the tensor are not written.

    Args:
        dims: Names of the tensor's dimensions, as in `TmaStoreStage`.
        tile: Elements, as in `TmaStoreStage`: the extents of the fragments that are stored.
        role: The role that stores.
        vector: How many bytes a thread stores at once, if it has as many side by side: 1, 2, 4, 8 or 16, and no less than an
            element. The tensor's address, strides and rows are multiples of it, and so is where a tile starts along the
            contiguous dimension. For one number a row, an element's bytes: then there may be any number of rows.
        wide: Whether a thread stores 16 bytes at once where it has as many side by side at an address that is a multiple of
            16, which it finds out when it stores, and others by `vector`. For tensors whose rows begin anywhere.
        dtype: Element type, by default the tensor's.

    Raises:
        InputError: For any other value.
    """

    vector: int = attrs.field(default=16, validator=_is_vector)
    wide: bool = attrs.field(default=False, validator=IS_BOOL)
    source: None = attrs.field(default=None, init=False)
    stages: int = attrs.field(default=1, init=False)
    columns: int | None = attrs.field(default=None, init=False)
    reduce: str | None = attrs.field(default=None, init=False)


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class AddedParts(TmaStoreStage):
    """A store that adds all tiles of a matmul's accumulators along "s" to one tile: the tensor has no such dimension.

    Args:
        source: The matmul.
        extent: Of "s".
        options: As of `TmaStoreStage`.
    """

    extent: int = attrs.field(default=1, init=False)

    def __init__(self, source: Wgmma, extent: int, **options: Any):
        super().__init__("s m n", source=source, reduce="add", **options)
        object.__setattr__(self, "extent", extent)

    @property
    def folded(self) -> Mapping[str, int]:
        return {"s": self.extent}


@attrs.frozen(eq=False, repr=False, kw_only=True)
class StoredStage(TokenStage):
    """Tells the next roles of a ring that a CTA's tiles of an output have been written, and may be loaded by the same CTA.

    Its slots have no memory. The role that stores calls ``slot.<stage>.publish()`` in an open slot, after its stores. The call
    waits until the engine has written the tiles, and fences. The next roles of the ring load the tiles, by a stage
    ``of_result(store)``, once they have entered the slot. Meanwhile, tiles of the next output tile may be stored. A tile is
    stored again only once a load of it has ended.

    (The next kernel of the stream needs no such stage: it waits until this kernel has ended, and has written everything.)

    Args:
        store: The stage that stores the tiles.
        ring: The ring whose slots say so, produced by the role that stores.

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
