"""Stages that threads or other CTAs of the cluster write, descriptors, and L2; scratch of a role; tables in global
memory; turnstiles."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import attrs

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base import MulticastGroup, optional_group
from tmapipe.base.arithmetic import DType, as_dtype, ceil_div, fp32, int32, tf32
from tmapipe.errors import InputError, as_tuple, is_count, must, shown
from tmapipe.stage import (
    LoadStage,
    SlotStage,
    TmaLoadStage,
    TokenStage,
    check_dims,
    is_ring,
    is_swizzle,
    is_tile,
    is_written,
    joined,
    names_in,
)

# ---- shared stage ----------------------------------------------------------------------------------------------------
#
# SharedStage: tiles that threads write, and what the CTAs of a cluster exchange.


#: Reduction into shared memory -> element types that it is done in.
REDUCED = {
    **dict.fromkeys(("add", "min", "max", "inc", "dec", "and", "or", "xor"), ("int32",)),
    "add": ("int32", "int64"),
}


class Exchange(NamedTuple):
    """CTAs of a cluster that write the tiles of a `SharedStage` in each other's slots, all at the same time.

    ``slot.<stage>.send(to)`` copies the tile of `source` to another CTA, or equal parts of it to several, by
    ``cp.async.bulk``; ``send(to, values)`` what threads have in registers, by ``st.async``. Each CTA gets one tile a slot.
    With `reduce`, ``slot.<stage>.reduce(to)`` combines a part of the source with what the writer has written there, by
    ``cp.reduce.async.bulk``, and ``reduce(to, values)`` registers, by ``red.async``: once for each CTA of the group, its own
    included. The stage raises `InputError` for values that do not fit.

    Args:
        group: The CTAs: all that differ from each other only along these axes of the cluster.
        sender: The role that writes into other CTAs' slots, of any phase of the ring but the last one. With a source, the
            sender is one warp, and its phase comes after the phase that fills the source.
        source: The stage of the same ring that is sent: a `TmaLoadStage`, or a `SharedStage` that threads write. To be
            reduced, it has as many times the rows as the group has CTAs. None: what threads of the sender have in registers.
        reduce: "add", "min", "max", "and", "or", "xor", "inc" or "dec", as of a `TmaStoreStage`, of int32, or "add" of int64;
            compared with their signs.
    """

    group: MulticastGroup
    sender: Role
    source: SlotStage | None = None
    reduce: str | None = None


def _of(field: str, name: str) -> Any:
    """The default of a field of a `SharedStage`: attribute *name* of what is in *field*, or None."""
    return attrs.Factory(lambda stage: getattr(getattr(stage, field), name, None), takes_self=True)


def _named(stage: Any) -> Any:
    dims = getattr(stage.source, "dims", None)
    return dims and " ".join(dims[-len(stage.source.tile) :])


@attrs.frozen(eq=False, repr=False, kw_only=True)
class SharedStage(SlotStage):
    """A tile in each slot of `ring` that threads write, such as scratch handed along with it, or the result of a transform;
    or a tile that CTAs of a cluster write into each other's slots, or read there.

    Args:
        dims: Names of the tile's extents, where a matmul reads it: by default it is contiguous along k.
        tile: Elements, as in `TmaLoadStage`. By default, as with ring, dtype and swizzle, that of the source of an `Exchange`.
        ring: Whose slots hold the tiles.
        writer: The role of the ring that writes the tiles. With an `Exchange`, None; or if the exchange reduces, the role
            that writes the values that each CTA's tile begins with.
        dtype: Of the elements.
        swizzle: Span (bytes), as in `TmaLoadStage`.
        over: A stage that an earlier phase of the ring fills, in whose memory this one lies, with no more bytes a slot. Once
            this stage is written, the other one's tile is gone. Where several warps read that one, the writer has a
            ``k.sync()`` in between.
        group: CTAs of the cluster that read each other's tiles, ``slot.<name>.read_from(i)``, once all of them have written
            their own: all CTAs that differ only along these axes. Or an `Exchange`, by which CTAs write each other's tiles.

    Raises:
        InputError: For any other value.
    """

    group: MulticastGroup | Exchange | None = attrs.field(default=None)
    source: SlotStage | None = attrs.field(init=False, default=_of("group", "source"))  # type: ignore[misc]
    sender: Role | None = attrs.field(init=False, default=_of("group", "sender"))
    reduce: str | None = attrs.field(init=False, default=_of("group", "reduce"))  # type: ignore[misc]
    tile: tuple[int, ...] = attrs.field(default=_of("source", "tile"), converter=as_tuple, validator=is_tile)
    ring: BarrierRing = attrs.field(default=_of("source", "ring"), validator=is_ring)
    swizzle: int | None = attrs.field(default=_of("source", "swizzle"), validator=is_swizzle)
    dims: tuple[str, ...] | None = attrs.field(
        default=attrs.Factory(_named, takes_self=True), converter=names_in, kw_only=False, repr=joined
    )
    dtype: DType | None = attrs.field(default=_of("source", "dtype"), converter=attrs.converters.optional(as_dtype))
    writer: Role | None = attrs.field(default=None)
    over: SlotStage | None = attrs.field(default=None)  # type: ignore[misc]

    @property
    def filled_by(self) -> str:  # type: ignore[override]
        return "warps" if self.sender is None else "peers"

    @property
    def filler(self) -> Role:
        return cast(Role, self.sender or self.writer)

    @property
    def sharing(self) -> MulticastGroup | None:
        return self.group.group if isinstance(self.group, Exchange) else self.group

    @group.validator
    def _group_exchanges(self, field: Any, group: Any) -> None:
        optional_group(self, field, self.sharing)
        source = self.source
        if source is not None and not (isinstance(source, SlotStage) and source.source is None):
            rule = "is a stage that TMA or threads fill"
            raise InputError("Exchange(source)", source, rule, "name such a stage of the same ring, or leave it out")

    @dtype.validator
    def _threads_or_engines_have_it(self, field: Any, dtype: Any) -> None:
        if self.source is None and dtype in (None, tf32):
            rule = "is one that threads can write: tf32 is a type of TMA loads, which round fp32 to it"
            raise InputError("SharedStage(dtype)", dtype, rule, "e.g. fp32")
        if self.reduce is not None and (dtype is None or dtype.name not in dict.get(REDUCED, self.reduce, ())):
            rule = f"is one of {', '.join(REDUCED)}, in int32, or add in int64; the tile is of {dtype}"
            raise InputError("Exchange(reduce)", self.reduce, rule, '"add", of int32')

    @dims.validator
    def _name_the_extents(self, field: Any, dims: Any) -> None:
        if dims is not None and len(check_dims(self, dims, self.tile)) != len(self.tile):
            rule = f"names the {len(self.tile)} extents of its tile"
            raise InputError("SharedStage(dims)", " ".join(dims), rule, 'e.g. "m k"')

    @writer.validator
    def _writer_is_of_the_ring(self, field: Any, writer: Any) -> None:
        sent = isinstance(self.group, Exchange) and self.reduce is None
        if sent != (writer is None) or (writer is not None and self.ring.phase_of(writer) is None):
            rule = "is None where a sender writes, unless it reduces" if sent else "is one of the ring's roles"
            raise InputError("SharedStage(writer)", writer, rule, "leave it out" if sent else "name one of them")

    @over.validator
    def _over_is_filled_before(self, field: Any, over: Any) -> None:
        if over is None:
            return
        if not isinstance(over, SlotStage) or over.ring is not self.ring or over.over is not None:
            rule = "is a stage of the same ring, with memory of its own"
            raise InputError("SharedStage(over)", over, rule, "leave it out, or name such a stage")
        filled, written = (self.ring.phase_of(role) for role in (over.filler, cast(Role, self.writer)))
        if filled is None or written is None or filled >= written:
            rule = "is filled by a phase before the one that writes this stage"
            raise InputError("SharedStage(over)", over, rule, "let a later role write it, or leave over= out")

    @writer.validator
    def _sender_is_in_between(self, field: Any, writer: Any) -> None:
        if self.group is not None and self.ring.held:
            rule = "is of a ring whose slots are released, so that no CTA leaves while others use them"
            raise InputError("SharedStage(group)", self.group, rule, 'leave out per="cta"')
        filled = [role for role in (writer, self.source and self.source.filler, self.sender) if role is not None]
        phases: list[Any] = list(map(self.ring.phase_of, cast(list[Role], filled)))
        inside = self.source is None or self.source.ring is self.ring
        last = len(self.ring.phases) - 1
        if isinstance(self.group, Exchange) and not (
            inside and self.sender and None not in phases and max([-1, *phases[:-1]]) < phases[-1] < last
        ):
            rule = "is of a phase of the ring after those that fill its source and this stage, and not of the last one"
            raise InputError("Exchange(sender)", self.sender, rule, "e.g. chain=(write, send, use)")

    def __attrs_post_init__(self) -> None:
        if self.source is not None and self.dtype != self.source.dtype:
            raise InputError("SharedStage(dtype)", self.dtype, "is that of the source", "leave it out")

    def __repr__(self) -> str:
        same = ("tile", "ring", "swizzle", "dims", "dtype")
        unsaid = [name for name in same if getattr(self, name) == getattr(self.source, name, None)]
        return shown(self, "source", "sender", "reduce", *unsaid)


# ---- descriptor stage ------------------------------------------------------------------------------------------------
#
# DescriptorStage: descriptors that a kernel changes, in the slots of a ring.


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class DescriptorStage(SlotStage):
    """A descriptor in each slot of `ring`, through which a stage is loaded: the kernel says which rows of the tensor it shows.

    The ring's producer, of one warp, calls ``slot.<stage>.set(first, rows)``. The role that loads has ``view =
    slot.<stage>.acquire()``, and loads with ``slot.b.load_through(view, ...)``: coordinates count from row *first*, and beyond
    the rows there are zeros. A slot is rewritten once all consumers have released it. So one of the consumers must be a role
    that has waited for the loads, such as the role that multiplies the loaded tiles.

    Args:
        of: The stage that is loaded through the descriptor. It has another ring, and a consumer of this ring loads it. Its
            tile has as many extents as its tensor has dimensions.
        ring: Whose slots hold the descriptors.

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
            rule = "is another ring than that of the stage, with one producer"
            raise InputError("DescriptorStage(ring)", ring, rule, "declare one for descriptors")
        if not any(of.loader is role for role in ring.phases[-1]):
            rule = "has the role that loads among its consumers"
            raise InputError("DescriptorStage(ring)", ring, rule, "e.g. consumer=(load, math)")
        self.__attrs_init__(tile=(32,), ring=ring, dtype=int32, of=of)

    @property
    def filler(self) -> Role:
        return self.ring.phases[0][0]

    def __repr__(self) -> str:
        return f"DescriptorStage({self.of!r}, ring={self.ring!r})"


# ---- l2 stage --------------------------------------------------------------------------------------------------------
#
# L2Stage: tiles that are asked into L2 ahead of their loads.


@attrs.frozen(eq=False, repr=False, kw_only=True)
class L2Stage(TokenStage):
    """Tiles that one role asks into L2, some slots before another role loads them by another stage.

    Its slots have no memory. Their ring says how far the asking role is ahead, across output tiles too: with 8 slots, at most
    8 tiles. Use it where the slots of shared memory alone do not cover the latency of memory; within one loop,
    ``slot.x.prefetch(tile, k=step + 8)`` does the same without a further role.

    Args:
        source: The stage that loads the tiles, each as a whole: a `TmaLoadStage` or a `BulkLoadStage`.
        ring: The asking role produces, with ``slot.<stage>.prefetch(tile)``; the loading role consumes.

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


# ---- scratch ---------------------------------------------------------------------------------------------------------
#
# Scratch: shared memory that belongs to one role.


@attrs.frozen(eq=False, repr=False)
class Scratch:
    """Declares shared memory in which the threads of a role pass values to each other.

    In the role's body, ``k.<name>`` is read and written as a stage's tile in an open slot is: ``k.<name>.write(v)``,
    ``k.<name>.read()``. Between a write and other threads' reads stands a ``k.sync()``, and another one between these reads
    and the next write. With two copies used in turn, ``k.<name>.copy(i)``, one `sync` for each write is enough.

    Args:
        role: Whose threads use it.
        tile: Elements.
        dtype: Of the elements.
        copies: How many tiles there are, one after another.

    Raises:
        InputError: For any other value.
    """

    role: Role = attrs.field(
        validator=must(
            lambda role: isinstance(role, Role) and role.teams == 1,
            "is the Role that uses it, of one team",
            "pass that Role",
        )
    )
    tile: tuple[int, ...] = attrs.field(kw_only=True, converter=as_tuple, validator=is_tile)
    dtype: DType = attrs.field(kw_only=True, converter=as_dtype, validator=is_written)
    copies: int = attrs.field(
        default=1, kw_only=True, validator=must(is_count, "is a positive number of tiles", "use 1 or 2")
    )

    @property
    def sharing(self) -> MulticastGroup | None:
        """The CTAs that write into each other's scratch."""
        return getattr(self, "group", None)

    def __repr__(self) -> str:
        return shown(self)


# ---- reduction scratch -----------------------------------------------------------------------------------------------
#
# ReductionScratch: shared memory for reductions over several warps, or several CTAs.


@attrs.frozen(eq=False, init=False, repr=False)
class ReductionScratch(Scratch):
    """Declares what `row_sum`, `column_sum` and their like need where a row or a column lies in several warps.

    For each row or column, each warp leaves one number there, and reads the other warps' numbers after a barrier. There are
    two copies, so that one barrier for each reduction is enough.

    Args:
        role: Whose fragments are reduced.
        rows: Rows that a warp has of a tile, at most: as many as the tile has, or fewer if the warps share them out.
        columns: Of the tile, where columns are reduced.
        group: CTAs of the cluster over which rows lie too: all that differ only along these axes, or with `ctas=` so many
            side by side. `row_sum`, `row_max` and their like are then over the whole row, in all of these CTAs, which all
            reduce at the same point. As many numbers fit for each of them.

    Raises:
        InputError: For any other value.
    """

    rows: int = 1
    columns: int = 1
    group: MulticastGroup | None = None

    def __init__(self, role: Role, *, rows: int = 1, columns: int = 1, group: MulticastGroup | None = None):
        for name, value in (("rows", rows), ("columns", columns)):
            if not is_count(value):
                rule = f"is a positive number of {name}"
                raise InputError(f"ReductionScratch({name})", value, rule, "leave it out for one")
        if group is not None and (not isinstance(group, MulticastGroup) or columns != 1):
            rule = "is a MulticastGroup: the CTAs of the cluster over which rows lie, and no columns"
            raise InputError("ReductionScratch(group)", group, rule, 'e.g. MulticastGroup("n"), without columns=')
        warps, width = role.warps if isinstance(role, Role) else 1, 4 * ceil_div(max(rows, columns), 4)  # 16 bytes
        self.__attrs_init__(role, tile=(warps, width), dtype=fp32, copies=2, rows=rows, columns=columns, group=group)

    def __repr__(self) -> str:
        unsaid = [name for name, default in (("columns", 1), ("group", None)) if getattr(self, name) == default]
        return shown(self, "tile", "dtype", "copies", *unsaid)


# ---- table -----------------------------------------------------------------------------------------------------------
#
# Table: integers in global memory that every warp may read, such as where the groups of a grouped GEMM end.


def _split(dims: Any) -> Any:
    return tuple(dims.split()) if isinstance(dims, str) else dims


@attrs.frozen(eq=False, repr=False)
class Table:
    """A vector, or a matrix, of int32 or int64 in global memory. In bodies, ``k.<name>.entry(i)``, or of a matrix
    ``entry(i, j)``, is one of its entries in int32 (of int64 the lower 32 bits), the same for all threads.

    A schedule is called with one after its loads' tensors. It stays as it is while the kernel runs.

    Args:
        dims: Name of its dimension, or of both. Along a dimension, the table has as many entries as the other tensors have
            elements.

    Raises:
        InputError: If these are no names.
    """

    dims: tuple[str, ...] = attrs.field(
        converter=_split,
        validator=must(
            lambda dims: (
                type(dims) is tuple and len(set(dims)) == len(dims) in (1, 2) and all(map(str.isidentifier, dims))
            ),
            "is the name of one dimension, or of two",
            'e.g. Table("l") or Table("b i")',
        ),
    )

    def __repr__(self) -> str:
        return f"Table({' '.join(self.dims)!r})"


# ---- turnstile -------------------------------------------------------------------------------------------------------
#
# Turnstile: an order in which the teams of a role, or its warpgroups, pass, one after another, again and again.
#
# In a ping-pong GEMM, two teams of one warpgroup each work on different output tiles. With their mainloops in turn,
# one team's epilogue runs while the other keeps the tensor cores busy:
#
# team 0   | mainloop 0 |  epilogue 0  | mainloop 2 |  ...
# team 1                | mainloop 1   |  epilogue 1 | mainloop 3 | ...
#
# The warpgroups of a role of one team share tiles and slots. With the starts of their matmuls in turn, the softmax of
# one runs under the matmuls of the other.
#
# There is one mbarrier per team. Its phase n completes when the one before has left its turn for the n-th time. The
# first turn of the first one waits for nobody, so it starts with parity 1, the others with parity 0. Warpgroups that
# share tiles have a named barrier each, where one that waits meets the one before.


@attrs.frozen(eq=False, repr=False)
class Turnstile:
    """Declares the order in which the teams of a role go, or the warpgroups of a role of one team.

    In its body: ``with k.<turnstile>.turn():``, by all of them equally often.

    Args:
        role: Of two or more teams, or warpgroups.
        stores: Of teams' accumulators, each of which happens in such a turn: all teams have the same buffers.

    Raises:
        InputError: For any other.
    """

    role: Role = attrs.field(
        validator=must(
            lambda role: isinstance(role, Role) and (role.teams > 1 or (role.by_warpgroup and role.warps > 4)),
            "is a role of two or more teams, or warpgroups",
            "Role(warpgroups=2)",
        )
    )

    stores: tuple[Any, ...] = attrs.field(default=())

    @stores.validator
    def _of_teams(self, field: Any, stores: Any) -> None:
        if not isinstance(stores, (tuple, list)):
            raise InputError("Turnstile(stores)", stores, "is a tuple of TmaStoreStage", "e.g. stores=(d,)")
        if stores and self.role.teams == 1:
            rule = "are of teams, which have the same buffers"
            raise InputError("Turnstile(stores)", stores, rule, "leave them out: each warpgroup has buffers of its own")

    def __repr__(self) -> str:
        return shown(self)
