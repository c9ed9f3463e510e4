"""What lies in the slots of a ring, and the stages that are loaded from tensors: TmaLoadStage, BulkLoadStage,
CpAsyncLoadStage, Im2colLoadStage."""

from __future__ import annotations

import math
from typing import Any, ClassVar, TypeVar

import attrs

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base import MulticastGroup, optional_group
from tmapipe.base.arithmetic import DType, as_dtype, tf32
from tmapipe.base.tma_rules import Windows, check_steps
from tmapipe.errors import InputError, as_tuple, changed, fill, is_count, must, optional, shown

# ---- stage -----------------------------------------------------------------------------------------------------------
#
# TmaLoadStage: what lies in the slots of a ring, and how it gets there.


DEFAULT_DIMS = {1: "n", 2: "m n"}  # of a tile of so many extents


L2_HINTS = ("evict_first", "evict_last", "evict_normal")
#: Validator of fields that hold one, or None.
optional_hint = must(optional(lambda hint: hint in L2_HINTS), f"is one of {', '.join(L2_HINTS)}", "use one of these")

#: Validator of tiles.
is_tile = must(
    lambda tile: isinstance(tile, tuple) and 1 <= len(tile) <= 5 and all(map(is_count, tile)),
    "is one to five positive extents (elements)",
    "e.g. tile=(128, 64)",
)
#: Validator of the types of what threads write or copy.
is_written = must(lambda dtype: dtype != tf32, "is a type of TMA loads, which round fp32 to it", "fp32")

is_ring = must(lambda ring: isinstance(ring, BarrierRing), "is the BarrierRing that the slots belong to", "pass ring=")
SWIZZLES = (0, 32, 64, 128)
is_swizzle = must(optional(lambda span: span in SWIZZLES), "is 0, 32, 64 or 128 (bytes)", "leave it out to derive it")

#: Attributes of an open slot (`tmapipe.protocol.ring.Slot`), which no stage can be called.
RESERVED = ("added", "end", "entered", "gone", "index", "open", "reads", "retired", "touched_by_threads")


def names_in(dims: str | None) -> Any:
    """The names in *dims*, or None. Raises `InputError` for what is no string."""
    if dims is not None and not isinstance(dims, str):
        raise InputError("dims", dims, "is up to 5 different names", 'e.g. "m k" or "l m k"')
    return None if dims is None else tuple(dims.split())


def check_dims(part: object, dims: tuple[str, ...] | None, tile: tuple[int, ...]) -> tuple[str, ...]:
    """*dims*, or the default names of the extents of *tile*. Raises `InputError` unless they name these, and are distinct."""
    names = (names_in(DEFAULT_DIMS.get(len(tile))) or ()) if dims is None else dims
    if not len(tile) <= len(names) <= 5 or len(set(names)) != len(names) or not all(map(str.isidentifier, names)):
        rule = f"is up to 5 different names, {len(tile)} or more for a tile of {tile}"
        given = None if dims is None else " ".join(dims)
        raise InputError(f"{type(part).__name__}(dims)", given, rule, 'e.g. "m k" or "l m k"')
    return names


def joined(dims: tuple[str, ...]) -> str:
    """As they were given, for a repr."""
    return repr(" ".join(dims))


@attrs.frozen(eq=False, repr=False, kw_only=True)
class SlotStage:
    """What the stages in a slot have in common."""

    tile: tuple[int, ...] = attrs.field(converter=as_tuple, validator=is_tile)
    ring: BarrierRing = attrs.field(validator=is_ring)
    dtype: DType | None = attrs.field(default=None, converter=attrs.converters.optional(as_dtype))
    swizzle: int | None = attrs.field(default=None, validator=is_swizzle)

    @property
    def matrix(self) -> tuple[int, ...]:
        """The tile as bodies and matmuls see it: rows and columns, where it has more than two extents."""
        return as_matrix(self.tile)

    #: How the tile gets into a slot: by an "engine", or from "peers", whose bytes are counted; by copies of "threads", which
    #: arrive one by one; or as what "warps" have written, which then arrive.
    filled_by: ClassVar[str] = "warps"

    #: Of a `SharedStage`, as it says.
    source: ClassVar[Any] = None
    over: ClassVar[Any] = None
    reduce: ClassVar[Any] = None

    @property
    def filler(self) -> Role:
        """The role that fills the slots."""
        raise NotImplementedError

    @property
    def writer(self) -> Role | None:
        """The role whose threads write the tile of their own CTA."""
        return self.filler if self.filled_by == "warps" else None

    @property
    def sharing(self) -> MulticastGroup | None:
        """The CTAs that write into each other's slots, or read them."""
        return None

    @property
    def spread(self) -> bool:
        """Whether each warp reads from many rows at once, so that rows should be swizzled."""
        return False

    @property
    def number(self) -> bool:
        """Whether the tensor is a single number."""
        return False


@attrs.frozen(eq=False, repr=False, kw_only=True)
class TokenStage:
    """A stage whose slots have no memory: being handed on is all that they say."""

    ring: BarrierRing

    def __repr__(self) -> str:
        return shown(self)


L = TypeVar("L", bound="LoadStage")


@attrs.frozen(eq=False, repr=False, kw_only=True)
class LoadStage(SlotStage):
    """What the stages have in common whose slots are loaded from tensors. Arguments as of `TmaLoadStage`."""

    filled_by = "engine"
    dims: tuple[str, ...] = attrs.field(default=None, converter=names_in, kw_only=False, repr=joined)
    loader: Role = attrs.field(default=None)
    parts: int = attrs.field(default=1, init=False)
    outside: str = attrs.field(default="zeros", init=False)
    strides: tuple[int, ...] = attrs.field(default=(), init=False)
    #: The stage whose tensor it loads from; None: it has one of its own.
    input: LoadStage | None = attrs.field(default=None, init=False)
    result: Any = attrs.field(default=None, init=False)
    #: Whose elements the rows of a tile are, if they are those of windows.
    windows: Windows | None = attrs.field(default=None, init=False)
    multicast: ClassVar[MulticastGroup | None] = None
    l2_hint: ClassVar[str | None] = None
    #: Bytes that a thread copies at once; 0 where an engine loads.
    vector: ClassVar[int] = 0
    #: Whether the engine finds tiles through a descriptor, and fills what lies outside of the tensor.
    tensor_map: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        producers = self.ring.phases[0]
        if self.loader is None:
            if len(producers) > 1:
                rule = "must say which of the producing roles loads this stage"
                raise InputError(f"{type(self).__name__}(loader)", None, rule, "pass loader=")
            fill(self, loader=producers[0])
        fill(self, dims=check_dims(self, self.dims, self.tile))

    def of_input(self: L, load: LoadStage) -> L:
        """The same stage, which loads from the tensor of another one, perhaps in other tiles. A call has one tensor for both.

        Args:
            load: A stage with a tensor of its own, of the same dimensions.

        Raises:
            InputError: It has other dimensions, or no tensor of its own.
        """
        own = isinstance(load, LoadStage) and load.result is None and load.input is None
        if not own or load.dims != self.dims or self.result is not None:
            rule = f"is a stage with a tensor of its own, of dimensions {' '.join(self.dims)}"
            raise InputError("of_input", load, rule, "give both the same dims")
        return changed(self, input=load)

    @property
    def extents(self) -> tuple[int, ...]:
        """Elements of a tile along each of `dims`."""
        return (1,) * (len(self.dims) - len(self.tile)) + self.tile

    @property
    def span(self) -> tuple[int, ...]:
        """Elements of the tensor from one tile to the next, along each of `dims`."""
        steps = (1,) * (len(self.dims) - len(self.strides)) + self.strides
        return tuple(n * step for n, step in zip(self.extents, steps, strict=True))

    @property
    def filler(self) -> Role:
        return self.loader

    @property
    def sharing(self) -> MulticastGroup | None:
        return self.multicast

    @loader.validator
    def _loader_produces(self, field: Any, loader: Any) -> None:
        if loader is not None and not any(loader is role for role in self.ring.phases[0]):
            rule = "is a role of the ring's first phase"
            raise InputError(f"{type(self).__name__}(loader)", loader, rule, "name one of them")

    def __repr__(self) -> str:
        unsaid = ("outside", "parts", "strides", "result", "input")
        text = shown(self, *unsaid, *(("loader",) if len(self.ring.phases[0]) == 1 else ()))
        text += "" if self.parts == 1 else f".in_parts({self.parts})"
        by = ", ".join(f"{d}={n}" for d, n in zip(self.dims[-len(self.tile) :], self.strides, strict=False) if n > 1)
        text += f".strided({by})" if by else ""
        text += "" if self.result is None else f".of_result({self.result!r})"
        text += "" if self.input is None else f".of_input({self.input!r})"
        return text + ("" if self.outside == "zeros" else f".{self.outside}_outside()")


@attrs.frozen(eq=False, repr=False, kw_only=True)
class TmaLoadStage(LoadStage):
    """A tile that the TMA engine loads into each slot of `ring`.

    Args:
        dims: Names of the tensor's dimensions, the last one contiguous: "l m k" is a batch of matrices. By default "m n", or
            "n" for a tile of one extent; those of a tile of three or more have to be named.
        tile: Elements along the last of these dimensions; batch dimensions before them count 1. Of more than two extents, such
            as (h, w, c), all but the last make the rows that bodies and matmuls see: h w rows of c columns.
        ring: Whose slots hold the tiles.
        dtype: Of the elements, by default that of the tensor. "tf32": a tensor of fp32, rounded as it is loaded.
        multicast: The CTAs that share the tile.
        swizzle: Span (bytes), by default the largest that the tile and its readers allow.
        loader: The role that loads, where the ring's first phase has several.
        l2_hint: "evict_first", "evict_last" or "evict_normal".

    Beyond the tensor's edge a slot holds zeros; see `nan_outside` and `anything_outside`. A tile that is gathered from several
    places is loaded `in_parts`, and one of every so many-th element is `strided`.

    Raises:
        InputError: For any other value.
    """

    tensor_map = True
    multicast: MulticastGroup | None = attrs.field(default=None, validator=optional_group)  # type: ignore[misc]
    l2_hint: str | None = attrs.field(default=None, validator=optional_hint)  # type: ignore[misc]

    def anything_outside(self) -> TmaLoadStage:
        """The same stage, whose slots may hold anything of rows beyond the tensor's edge.

        The hardware fills such rows with zeros, and takes some 5 ns a row for it (on an H200). This is for where nobody looks
        at them, as in a GEMM's operand whose few rows fill little of a tile. On the GPU they are then copies of other rows, on
        the CPU model NaN. Within rows there are zeros beyond the edge in any case.

        Raises:
            InputError: The tile has one extent.
        """
        if len(self.tile) != 2 or self.windows is not None:
            raise InputError("TmaLoadStage(tile)", self.tile, "has rows, where these may hold anything", "leave it so")
        return changed(self, outside="anything")

    def nan_outside(self) -> TmaLoadStage:
        """The same stage, whose slots hold NaN beyond the tensor's edge. For types of floating point of 16 and 32 bits."""
        return changed(self, outside="nan")

    def of_result(self, store: Any) -> TmaLoadStage:
        """The same stage, which loads from the tensor that *store* stores to, at the coordinates of the CTA's output tile.

        It has the dimensions and the tile of *store*. That the tile has been written, a `StoredStage` of *store* says.
        """
        return changed(self, result=store)

    def strided(self, **strides: int) -> TmaLoadStage:
        """The same stage, whose tiles have every so many-th element (a descriptor's element strides): ``strided(h=2, w=2)``
        takes those in even rows and columns of an image.

        A tile still has as many elements as `tile` says, and spans so many times more of the tensor. Coordinates in tiles
        count what a tile spans; `load_from` takes the tensor's elements, as ever.

        Args:
            strides: Elements by dimension, 1 to 8, along dimensions of the tile but the last one.

        Raises:
            InputError: For another dimension or number.
        """
        inner = self.dims[-len(self.tile) : -1] if self.windows is None else ()
        if not strides or not set(strides) <= set(inner):
            rule = f"names dimensions of a TmaLoadStage's tile ({', '.join(inner) or 'none'}) but the contiguous one"
            raise InputError("strided", ", ".join(strides), rule, "name one of them")
        steps = (*(strides.get(dim, 1) for dim in inner), 1)
        check_steps("strided", steps)
        return changed(self, strides=steps)

    def in_parts(self, parts: int) -> TmaLoadStage:
        """The same stage, whose tile is cut along its first extent into so many equal parts, each of which is loaded by itself
        from wherever it lies: ``slot.x.load_part(i, ...)``. With as many parts as it has rows, it is gathered row by row.

        Raises:
            InputError: *parts* does not divide the extent.
        """
        if not is_count(parts) or self.tile[0] % parts or self.windows is not None:
            rule = f"is a number of parts that divides the tile's first extent, {self.tile[0]}, of a TmaLoadStage"
            raise InputError("in_parts", parts, rule, f"e.g. {self.tile[0]}")
        return changed(self, parts=parts)


def as_matrix(tile: tuple[int, ...]) -> tuple[int, ...]:
    """A tile of three or more extents as one of two: all but the last make its rows."""
    return tile if len(tile) < 3 else (math.prod(tile[:-1]), tile[-1])


# ---- bulk stage ------------------------------------------------------------------------------------------------------
#
# BulkLoadStage: pieces of a vector, loaded into the slots of a ring without a descriptor.


#: Validator of tiles of one extent.
is_piece = must(
    lambda tile: isinstance(tile, tuple) and len(tile) == 1 and is_count(tile[0]),
    "is one extent (elements)",
    "e.g. tile=(4096,)",
)


@attrs.frozen(eq=False, repr=False, kw_only=True)
class BulkLoadStage(LoadStage):
    """A piece of a vector, or of a row of a matrix, that ``cp.async.bulk`` loads into each slot of `ring`.

    It needs no descriptor, so one instruction moves any number of elements; a box of the TMA engine has 256 at most. There is
    a whole number of pieces, also for each cluster, since nothing fills what lies outside of the tensor.

    Args:
        dims: The name of the vector's dimension; of a matrix the names of its dimensions, such as "m n", where pieces lie
            along the last.
        tile: Elements of a piece, as a tuple of one. A multiple of 16 bytes (PTX ISA, cp.async.bulk).
        ring: Whose slots hold the pieces.
        dtype: As of `TmaLoadStage`.
        loader: As of `TmaLoadStage`.
        l2_hint: As of `TmaLoadStage`.
        swizzle: None: it needs a descriptor.

    Raises:
        InputError: For a tile of more than one extent, or any other value.
    """

    tile: tuple[int, ...] = attrs.field(converter=as_tuple, validator=is_piece)
    swizzle: int | None = attrs.field(
        default=None, validator=must(lambda span: span is None, "needs a descriptor", "use a TmaLoadStage")
    )
    l2_hint: str | None = attrs.field(default=None, validator=optional_hint)  # type: ignore[misc]


# ---- cp async stage --------------------------------------------------------------------------------------------------
#
# CpAsyncLoadStage: tiles that threads copy into the slots of a ring, of tensors that the TMA engine does not take.


@attrs.frozen(eq=False, repr=False, kw_only=True)
class CpAsyncLoadStage(LoadStage):
    """A tile that the threads of a role copy into each slot of `ring` with ``cp.async``, and go on meanwhile.

    It needs no descriptor: rows of the tensor may begin at any multiple of `vector` bytes, where TMA wants multiples of 16.
    The copies signal the same mbarriers as TMA loads, so a ring may have stages of both kinds. Beyond the tensor's edge a
    slot holds zeros.

    Args:
        dims: Names of the tensor's dimensions, as in `TmaLoadStage`.
        tile: Elements, as in `TmaLoadStage`. Rows are whole units of 16 bytes.
        ring: Whose slots hold the tiles.
        vector: Bytes that a thread copies at once: 4, 8 or 16. The tensor's address and strides are multiples of it, and so
            is where a tile starts along the contiguous dimension.
        dtype: Of the elements, by default that of the tensor.
        swizzle: Span (bytes), as in `TmaLoadStage`.
        loader: The role that copies, with any number of warps, where the ring's first phase has several.

    Raises:
        InputError: For any other value.
    """

    filled_by = "threads"
    dtype: DType | None = attrs.field(default=None, converter=attrs.converters.optional(as_dtype), validator=is_written)
    vector: int = attrs.field(  # type: ignore[misc]
        default=16,
        validator=must(
            lambda n: type(n) is int and n in (4, 8, 16), "is 4, 8 or 16 bytes", "the most that divides the row pitch"
        ),
    )


# ---- im2col stage ----------------------------------------------------------------------------------------------------
#
# Im2colLoadStage: elements of a convolution's windows, which the TMA engine gathers into the rows of a tile.


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class Im2colLoadStage(TmaLoadStage):
    """A tile whose rows are windows of images, and whose columns are channels: of each window one element, such as the upper
    left one. It is what an implicit GEMM multiplies.

    Windows are numbered through all images, the last dimension fastest: row m of the output [m, o] belongs to window m. Once
    a tile, ``first = k.windows("x", m)`` says where one begins. Then ``slot.x.load_windows(first, r, s, c)`` loads element
    (r, s) of it and of those after it, from channel c on. Outside of an image, and after the last one, there are zeros.

    Args:
        dims: Names of the tensor's dimensions: images, one to three of their own, channels, which are contiguous: "n h w c".
        tile: (windows, channels) of a slot; up to 1024 windows, and 256 channels or any whole number of swizzle spans.
        ring: Whose slots hold the tiles.
        windows: Their size, padding, stride and dilation.
        **options: As of `TmaLoadStage`.

    Raises:
        InputError: For any other value.
    """

    def __init__(self, dims: str, *, tile: tuple[int, int], windows: Windows, **options: Any):
        if not isinstance(windows, Windows):
            raise InputError("Im2colLoadStage(windows)", windows, "is a Windows", "e.g. Windows((3, 3), padding=1)")
        if not isinstance(tile, (tuple, list)) or len(tile) != 2:
            raise InputError("Im2colLoadStage(tile)", tile, "is (windows, channels)", "e.g. (128, 64)")
        super().__init__(dims, tile=tuple(tile), **options)
        object.__setattr__(self, "windows", windows)
        if len(self.dims) != len(windows.size) + 2:
            rule = f"names images, the {len(windows.size)} dimensions that windows have, and channels"
            raise InputError("Im2colLoadStage(dims)", dims, rule, 'e.g. "n h w c"')

    @property
    def extents(self) -> tuple[int, ...]:
        return (*(1,) * (len(self.dims) - 1), self.tile[-1])
