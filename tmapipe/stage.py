"""Stages of loads: what lies in the slots of a ring, for stages whose tiles come from tensors.

`TmaLoadStage`: the TMA engine loads a tile. `BulkLoadStage`: one piece of a vector, without a descriptor. `CpAsyncLoadStage`:
threads copy a tile. `Im2colLoadStage`: elements of a convolution's windows. `L2Stage`: tiles are asked into L2 ahead of their
loads. `DescriptorStage`: descriptors that a kernel changes, and loads through.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, TypeVar

import attrs

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base import MulticastGroup, optional_group
from tmapipe.base.arithmetic import DType, int32, optional_dtype, tf32
from tmapipe.base.tma_rules import Windows, check_steps
from tmapipe.errors import InputError, as_tuple, changed, fill, is_count, must, optional, require, shown

# ---- fields of stages ------------------------------------------------------------------------------------------------

DEFAULT_DIMS = {1: "n", 2: "m n"}  # extents of a tile -> its dimensions, where a stage names none

L2_HINTS = ("evict_first", "evict_last", "evict_normal")
#: Validator of an L2 hint, or None.
optional_hint = must(optional(lambda hint: hint in L2_HINTS), f"is one of {', '.join(L2_HINTS)}", "use one of these")

#: Validator of a tile.
is_tile = must(
    lambda tile: isinstance(tile, tuple) and 1 <= len(tile) <= 5 and all(map(is_count, tile)),
    "is one to five positive extents (elements)",
    "e.g. tile=(128, 64)",
)
#: Validator of a tile of one extent.
is_piece = must(
    lambda tile: isinstance(tile, tuple) and len(tile) == 1 and is_count(tile[0]),
    "is one extent (elements)",
    "e.g. tile=(4096,)",
)
#: Validator of an element type that threads write or copy.
is_written = must(lambda dtype: dtype != tf32, "is a type of TMA loads, which round fp32 to it", "use fp32")

is_ring = must(lambda ring: isinstance(ring, BarrierRing), "is the BarrierRing that the slots belong to", "pass ring=")
SWIZZLES = (0, 32, 64, 128)
is_swizzle = must(optional(lambda span: span in SWIZZLES), "is 0, 32, 64 or 128 (bytes)", "leave it out to derive it")

#: Attributes of an open slot (`tmapipe.protocol.ring.Slot`). No stage can have one of these names.
RESERVED = ("added", "end", "entered", "gone", "index", "open", "reads", "retired", "touched_by_threads")


def names_in(dims: str | None) -> Any:
    """The names in a text such as "m k", as a tuple; None for None. Raises `InputError` for a value that is no string."""
    require(dims is None or isinstance(dims, str), "dims", dims, "is up to 5 different names", 'e.g. "m k" or "l m k"')
    return None if dims is None else tuple(dims.split())


def check_dims(part: object, dims: tuple[str, ...] | None, tile: tuple[int, ...]) -> tuple[str, ...]:
    """The names of the dimensions of the stage *part*: *dims*, or the default names for a tile of as many extents.

    Raises:
        InputError: They are not up to 5 different names, or fewer than *tile* has extents.
    """
    names = (names_in(DEFAULT_DIMS.get(len(tile))) or ()) if dims is None else dims
    if not len(tile) <= len(names) <= 5 or len(set(names)) != len(names) or not all(map(str.isidentifier, names)):
        rule = f"is up to 5 different names, {len(tile)} or more for a tile of {tile}"
        given = None if dims is None else " ".join(dims)
        raise InputError(f"{type(part).__name__}(dims)", given, rule, 'e.g. "m k" or "l m k"')
    return names


def joined(dims: tuple[str, ...]) -> str:
    """The names of dimensions as they were given, for a repr: ``'m k'``."""
    return repr(" ".join(dims))


def as_matrix(tile: tuple[int, ...]) -> tuple[int, ...]:
    """The tile as rows and columns: if it has three or more extents, all but the last one make its rows."""
    return tile if len(tile) < 3 else (math.prod(tile[:-1]), tile[-1])


# ---- bases -----------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False, kw_only=True)
class SlotStage:
    """Base of the stages that have memory in each slot of a ring."""

    tile: tuple[int, ...] = attrs.field(converter=as_tuple, validator=is_tile)
    ring: BarrierRing = attrs.field(validator=is_ring)
    dtype: DType | None = attrs.field(default=None, converter=optional_dtype)
    swizzle: int | None = attrs.field(default=None, validator=is_swizzle)

    #: Who fills a slot. "engine": the TMA engine, whose bytes the mbarrier counts. "peers": other CTAs of the cluster, whose
    #: bytes it counts too. "threads": threads that copy; each of them arrives when its copies have landed. "warps": warps
    #: that write from registers, and then arrive.
    filled_by: ClassVar[str] = "warps"

    #: Attributes of a `SharedStage`, which documents them. Other stages have none.
    source: ClassVar[Any] = None
    over: ClassVar[Any] = None
    reduce: ClassVar[Any] = None

    @property
    def matrix(self) -> tuple[int, ...]:
        """The tile as bodies and matmuls see it: rows and columns."""
        return as_matrix(self.tile)

    @property
    def filler(self) -> Role:
        """The role that fills the slots."""
        raise NotImplementedError

    @property
    def writer(self) -> Role | None:
        """The role whose threads write the tile of their own CTA from registers; None: no role does."""
        return self.filler if self.filled_by == "warps" else None

    @property
    def sharing(self) -> MulticastGroup | None:
        """The CTAs that write into each other's slots, or read each other's slots."""
        return None

    @property
    def spread(self) -> bool:
        """Whether each warp reads from many rows at once. The rows are then swizzled, against bank conflicts."""
        return False

    @property
    def number(self) -> bool:
        """Whether the stage's tensor is a single number."""
        return False


@attrs.frozen(eq=False, repr=False, kw_only=True)
class TokenStage:
    """Base of the stages whose slots have no memory. That a slot is handed on is the whole message."""

    ring: BarrierRing

    __repr__ = shown


L = TypeVar("L", bound="LoadStage")


@attrs.frozen(eq=False, repr=False, kw_only=True)
class LoadStage(SlotStage):
    """Base of the stages whose slots are loaded from tensors. The arguments are those of `TmaLoadStage`."""

    filled_by = "engine"
    dims: tuple[str, ...] = attrs.field(default=None, converter=names_in, kw_only=False, repr=joined)
    loader: Role = attrs.field(default=None)
    parts: int = attrs.field(default=1, init=False)
    outside: str = attrs.field(default="zeros", init=False)
    strides: tuple[int, ...] = attrs.field(default=(), init=False)
    #: The stage whose tensor this stage loads from too; None: this stage has a tensor of its own.
    input: LoadStage | None = attrs.field(default=None, init=False)
    result: Any = attrs.field(default=None, init=False)
    #: The windows whose elements are the rows of a tile; None: rows are rows of the tensor.
    windows: Windows | None = attrs.field(default=None, init=False)
    multicast: ClassVar[MulticastGroup | None] = None
    l2_hint: ClassVar[str | None] = None
    #: How many bytes a thread copies at once; 0 where an engine loads.
    vector: ClassVar[int] = 0
    #: Whether the engine finds tiles through a descriptor, and fills elements outside of the tensor.
    tensor_map: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        producers = self.ring.phases[0]
        if self.loader is None:
            rule = "must say which of the producing roles loads this stage, since the ring has several"
            require(len(producers) <= 1, f"{type(self).__name__}(loader)", None, rule, "pass loader=")
            fill(self, loader=producers[0])
        fill(self, dims=check_dims(self, self.dims, self.tile))

    def of_input(self: L, load: LoadStage) -> L:
        """The same stage, loading from the tensor of another stage, perhaps in other tiles. A call has one tensor for both.

        Args:
            load: A stage with a tensor of its own, of the same dimensions.

        Raises:
            InputError: *load* has other dimensions, or no tensor of its own.
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


# ---- loads -----------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False, kw_only=True)
class TmaLoadStage(LoadStage):
    """A tile that the TMA engine loads into each slot of `ring`.

    Args:
        dims: Names of the tensor's dimensions, the last one contiguous: "l m k" is a batch of matrices. By default "m n", or
            "n" for a tile of one extent. For a tile of three or more extents there is no default.
        tile: Elements along the last of these dimensions. A tile has one element along each dimension before them, such as l.
            If it has more than two extents, such as (h, w, c), bodies and matmuls see a matrix: h * w rows of c columns.
        ring: The ring whose slots hold the tiles.
        dtype: Element type, by default the tensor's. "tf32": the tensor has fp32, which the engine rounds as it loads.
        multicast: The CTAs that share the tile.
        swizzle: Swizzle span (bytes), by default the largest that the tile and its readers allow.
        loader: The role that loads, where the ring's first phase has several roles.
        l2_hint: "evict_first", "evict_last" or "evict_normal".

    Beyond the tensor's edge a slot holds zeros, unless `nan_outside` or `anything_outside` says otherwise. `in_parts` makes a
    tile of parts that lie in several places of the tensor. `strided` takes every second element, say.

    Raises:
        InputError: For any other value.
    """

    tensor_map = True
    multicast: MulticastGroup | None = attrs.field(default=None, validator=optional_group)  # type: ignore[misc]
    l2_hint: str | None = attrs.field(default=None, validator=optional_hint)  # type: ignore[misc]

    def anything_outside(self) -> TmaLoadStage:
        """The same stage, whose slots may hold anything in rows beyond the tensor's edge.

        The hardware fills such rows with zeros, which takes it some 5 ns a row (on an H200). Use this where no code looks at
        these rows, as for a GEMM whose few rows fill little of a tile. The GPU then puts copies of other rows there, and the
        CPU model NaN. Beyond the edge within a row there are zeros in any case.

        Raises:
            InputError: The tile has one extent.
        """
        if len(self.tile) != 2 or self.windows is not None:
            rule = "has rows and columns: rows beyond the edge may hold anything"
            raise InputError("TmaLoadStage(tile)", self.tile, rule, "leave anything_outside() out")
        return changed(self, outside="anything")

    def nan_outside(self) -> TmaLoadStage:
        """The same stage, whose slots hold NaN beyond the tensor's edge. For floating types of 16 and 32 bits."""
        return changed(self, outside="nan")

    def of_result(self, store: Any) -> TmaLoadStage:
        """The same stage, loading from the tensor that *store* stores to, at the coordinates of the CTA's output tile.

        The stage has the dimensions and the tile of *store*. A `StoredStage` of *store* says when the tile has been written.
        """
        return changed(self, result=store)

    def strided(self, **strides: int) -> TmaLoadStage:
        """The same stage, whose tiles have only every n-th element along some dimensions (a descriptor's element strides):
        ``strided(h=2, w=2)`` takes the elements in even rows and columns of an image.

        A tile still has as many elements as `tile` says, so it spans n times as many of the tensor. Coordinates in tiles count
        such spans. `load_from` takes the tensor's elements, as always.

        Args:
            strides: n by dimension, 1 to 8, for dimensions of the tile other than the last one.

        Raises:
            InputError: For another dimension or number.
        """
        inner = self.dims[-len(self.tile) : -1] if self.windows is None else ()
        rule = f"names dimensions of a TmaLoadStage's tile ({', '.join(inner) or 'none'}) but the contiguous one"
        require(strides and set(strides) <= set(inner), "strided", ", ".join(strides), rule, "name one of them")
        steps = (*(strides.get(dim, 1) for dim in inner), 1)
        check_steps("strided", steps)
        return changed(self, strides=steps)

    def in_parts(self, parts: int) -> TmaLoadStage:
        """The same stage, whose tile is cut along its first extent into *parts* equal parts. Each part is loaded by itself
        from wherever it lies: ``slot.x.load_part(i, ...)``. With as many parts as rows, a tile is gathered row by row.

        Raises:
            InputError: *parts* does not divide the extent.
        """
        if not is_count(parts) or self.tile[0] % parts or self.windows is not None:
            rule = f"is a number of parts that divides the tile's first extent, {self.tile[0]}, of a TmaLoadStage"
            raise InputError("in_parts", parts, rule, f"e.g. {self.tile[0]}")
        return changed(self, parts=parts)


@attrs.frozen(eq=False, repr=False, kw_only=True)
class BulkLoadStage(LoadStage):
    """A piece of a vector, or of a row of a matrix, that ``cp.async.bulk`` loads into each slot of `ring`.

    It needs no descriptor, so one instruction moves any number of elements, where a box of the TMA engine has 256 at most.
    Nothing fills elements outside of the tensor. So the tensor has a whole number of pieces, for each cluster too.

    Args:
        dims: The name of the vector's dimension. Of a matrix, the names of its dimensions, such as "m n": pieces lie along
            the last one.
        tile: Elements of a piece, as a tuple of one number. A multiple of 16 bytes (PTX ISA, cp.async.bulk).
        ring: The ring whose slots hold the pieces.
        dtype: As in `TmaLoadStage`.
        loader: As in `TmaLoadStage`.
        l2_hint: As in `TmaLoadStage`.
        swizzle: None: a swizzle needs a descriptor.

    Raises:
        InputError: For a tile of more than one extent, or any other value.
    """

    tile: tuple[int, ...] = attrs.field(converter=as_tuple, validator=is_piece)
    swizzle: int | None = attrs.field(
        default=None, validator=must(lambda span: span is None, "needs a descriptor", "use a TmaLoadStage")
    )
    l2_hint: str | None = attrs.field(default=None, validator=optional_hint)  # type: ignore[misc]


is_vector = must(
    lambda n: type(n) is int and n in (4, 8, 16), "is 4, 8 or 16 bytes", "the most that divides the row pitch"
)


@attrs.frozen(eq=False, repr=False, kw_only=True)
class CpAsyncLoadStage(LoadStage):
    """A tile that the threads of a role copy into each slot of `ring` with ``cp.async``. The threads do not wait for it.

    It needs no descriptor: rows of the tensor may begin at any multiple of `vector` bytes, where TMA wants multiples of 16.
    The copies signal the same mbarriers as TMA loads do, so a ring may have stages of both kinds. Beyond the tensor's edge a
    slot holds zeros.

    Args:
        dims: Names of the tensor's dimensions, as in `TmaLoadStage`.
        tile: Elements, as in `TmaLoadStage`. Rows are whole units of 16 bytes.
        ring: The ring whose slots hold the tiles.
        vector: Bytes that a thread copies at once: 4, 8 or 16. The tensor's address and strides are multiples of it, and so
            is where a tile starts along the contiguous dimension.
        dtype: Element type, by default the tensor's.
        swizzle: Swizzle span (bytes), as in `TmaLoadStage`.
        loader: The role that copies, with any number of warps, where the ring's first phase has several roles.

    Raises:
        InputError: For any other value.
    """

    filled_by = "threads"
    dtype: DType | None = attrs.field(default=None, converter=optional_dtype, validator=is_written)
    vector: int = attrs.field(default=16, validator=is_vector)  # type: ignore[misc]


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class Im2colLoadStage(TmaLoadStage):
    """A tile of which each row belongs to one window of an image, and has the channels of one of the window's elements, such
    as its upper left one. An implicit GEMM multiplies such tiles.

    Windows are numbered through all images, the last dimension fastest: row m of the output [m, o] belongs to window m. Once
    for each tile, ``first = k.windows("x", m)`` says where a window begins. Then ``slot.x.load_windows(first, r, s, c)`` loads
    element (r, s) of this window and of the windows after it, from channel c on. Outside of an image, and after the last
    image, there are zeros.

    Args:
        dims: Names of the tensor's dimensions: images, then one to three dimensions of an image, then channels, which are
            contiguous: "n h w c".
        tile: (windows, channels) of a slot; up to 1024 windows, and 256 channels or any whole number of swizzle spans.
        ring: The ring whose slots hold the tiles.
        windows: Their size, padding, stride and dilation.
        **options: As in `TmaLoadStage`.

    Raises:
        InputError: For any other value.
    """

    def __init__(self, dims: str, *, tile: tuple[int, int], windows: Windows, **options: Any):
        if not isinstance(windows, Windows):
            raise InputError("Im2colLoadStage(windows)", windows, "is a Windows", "e.g. Windows((3, 3), padding=1)")
        if not isinstance(tile, (tuple, list)) or len(tile) != 2:
            raise InputError("Im2colLoadStage(tile)", tile, "is (windows, channels)", "e.g. (128, 64)")
        super().__init__(dims, tile=tuple(tile), **options)
        fill(self, windows=windows)
        rule = f"names images, the {len(windows.size)} dimensions that windows have, and channels"
        require(len(self.dims) == len(windows.size) + 2, "Im2colLoadStage(dims)", dims, rule, 'e.g. "n h w c"')

    @property
    def extents(self) -> tuple[int, ...]:
        return (*(1,) * (len(self.dims) - 1), self.tile[-1])


# ---- beside loads ----------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False, kw_only=True)
class L2Stage(TokenStage):
    """Tiles that one role asks into L2, some slots before another role loads them by another stage.

    The slots have no memory. Their number says how many tiles the asking role may be ahead, across output tiles too: with 8
    slots, at most 8. Use it where the slots of shared memory alone do not cover the latency of memory. Within one loop,
    ``slot.x.prefetch(tile, k=step + 8)`` does the same without a further role.

    Args:
        source: The stage that loads the tiles, each as a whole: a `TmaLoadStage` or a `BulkLoadStage`.
        ring: The asking role produces its slots, with ``slot.<stage>.prefetch(tile)``. The loading role consumes them.

    Raises:
        InputError: For any other value.
    """

    source: LoadStage = attrs.field(kw_only=False)

    def __attrs_post_init__(self) -> None:
        source, ring = self.source, self.ring
        whole = isinstance(source, LoadStage) and source.filled_by == "engine" and source.parts == 1
        if not whole or source.windows is not None or source.strides or source.outside == "nan":
            rule = "is a stage whose tiles an engine loads whole, without strides, and zeros outside"
            raise InputError("L2Stage(source)", source, rule, "name such a stage, or leave the L2Stage out")
        if not isinstance(ring, BarrierRing) or ring is source.ring or ring.per == "cta":
            rule = "is a BarrierRing of its own, whose slots follow the tiles"
            raise InputError("L2Stage(ring)", ring, rule, "e.g. BarrierRing(8, producer=ask, consumer=load)")
        if not any(source.loader is role for role in ring.phases[-1]):
            rule = "is consumed by the role that loads the source"
            raise InputError("L2Stage(ring)", ring, rule, "name that role as its consumer")


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class DescriptorStage(SlotStage):
    """A descriptor in each slot of `ring`, through which another stage is loaded. The kernel says which rows of the tensor a
    descriptor shows.

    The ring's producer, of one warp, calls ``slot.<stage>.set(first, rows)``. The role that loads calls
    ``view = slot.<stage>.acquire()``, and loads with ``slot.b.load_through(view, ...)``. Coordinates then count from row
    *first*, and beyond the rows there are zeros. A slot is rewritten once all consumers have released it. So one of the
    consumers must be a role that has waited for the loads, such as the role that multiplies the loaded tiles.

    Args:
        of: The stage that is loaded through the descriptor. It has another ring, and a consumer of this ring loads it. Its
            tile has as many extents as its tensor has dimensions.
        ring: The ring whose slots hold the descriptors.

    Raises:
        InputError: For any other value.
    """

    of: TmaLoadStage = attrs.field(default=None)

    def __init__(self, of: TmaLoadStage, *, ring: BarrierRing):
        plain = isinstance(of, TmaLoadStage) and of.windows is None and of.parts == 1
        if not plain or len(of.tile) != len(of.dims) or len(of.tile) < 2 or of.outside == "anything":
            rule = "is a TmaLoadStage whose tile has all extents of its tensor, two or more, and is loaded whole"
            raise InputError("DescriptorStage(of)", of, rule, "name such a stage")
        if not isinstance(ring, BarrierRing) or len(ring.phases[0]) != 1 or ring is of.ring:
            rule = "must be another ring than the stage's, with one producer"
            raise InputError("DescriptorStage(ring)", ring, rule, "declare a ring for the descriptors")
        if not any(of.loader is role for role in ring.phases[-1]):
            rule = "has the role that loads among its consumers"
            raise InputError("DescriptorStage(ring)", ring, rule, "e.g. consumer=(load, math)")
        self.__attrs_init__(tile=(32,), ring=ring, dtype=int32, of=of)

    @property
    def filler(self) -> Role:
        return self.ring.phases[0][0]

    def __repr__(self) -> str:
        return f"DescriptorStage({self.of!r}, ring={self.ring!r})"
