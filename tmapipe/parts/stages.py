"""Stages of the cluster, of descriptors and of L2; scratch of a role; tables in global memory; turnstiles."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import DType, as_dtype, ceil_div, fp32, int32
from tmapipe.base.tensor_map import MulticastGroup, is_group
from tmapipe.errors import InputError, as_tuple, is_count, must, shown
from tmapipe.stage import SharedStage, SlotStage, TmaLoadStage, TokenStage, is_tile, is_written

# ---- peer stage ------------------------------------------------------------------------------------------------------
#
# PeerStage, SentStage: tiles that the CTAs of a cluster copy, or write, into each other's slots.


#: Reduction into shared memory -> element types that it is done in.
REDUCED = {
    **dict.fromkeys(("add", "min", "max", "inc", "dec", "and", "or", "xor"), ("int32",)),
    "add": ("int32", "int64"),
}


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class PeerStage(SharedStage):
    """A tile in each slot that another CTA of the cluster has copied there, from a tile of its own slot, by
    ``cp.async.bulk``.

    All CTAs of a group do this at the same time, each for its own tile: ``slot.<stage>.send(to)`` copies the tile to another
    CTA, and each CTA gets one tile a slot. Or each sends equal parts of its tile to all, and gets one part of each.

    Args:
        source: The stage of the same ring that is copied: a `TmaLoadStage`, or a `SharedStage` that threads write. Tile,
            element type and swizzle are its own.
        sender: The role of one warp that sends, of a phase after that which fills the source, and not the last one.
        group: Which CTAs send to each other: those that differ only along these axes of the cluster.

    Raises:
        InputError: For any other value.
    """

    filled_by = "peers"
    dims: tuple[str, ...] | None = attrs.field(default=None)
    dtype: DType | None = attrs.field(default=None)  # type: ignore[assignment]
    source: SlotStage = attrs.field()
    group: MulticastGroup = attrs.field(validator=is_group)

    def __init__(self, source: SlotStage, *, sender: Role, group: MulticastGroup):
        self._set_up(source, source, sender, group=group, dims=getattr(source, "dims", None))

    def _set_up(self, source: SlotStage, like: SlotStage, sender: Role, **fields: Any) -> None:
        """Sets all fields: tile, ring, type and swizzle of *like*."""
        if not isinstance(source, SlotStage) or isinstance(source, PeerStage):
            rule = "is a stage that TMA or threads fill"
            raise InputError(f"{type(self).__name__}(source)", source, rule, "name such a stage of the same ring")
        same: Any = {name: getattr(like, name) for name in ("tile", "ring", "dtype", "swizzle")}
        self.__attrs_init__(**same, writer=sender, source=source, **fields)
        filled, sent = (self.ring.phase_of(role) for role in (source.filler, sender))
        if filled is None or sent is None or not filled < sent < len(self.ring.phases) - 1:
            rule = "is of a phase after that which fills the source, and not of the last one"
            raise InputError(f"{type(self).__name__}(sender)", sender, rule, "e.g. chain=(write, send, use)")

    def __repr__(self) -> str:
        return f"PeerStage({self.source!r}, sender={self.writer!r}, group={self.group!r})"


class ReducedStage(PeerStage):
    """A tile in each slot into which all CTAs of a group have reduced a part of theirs, by ``cp.reduce.async.bulk``.

    It begins as what threads have written, in all CTAs, and has the memory of that. Each CTA reduces one part of its source,
    cut along the first extent, into the tile of each other one, and of its own: ``slot.<stage>.send(i)`` for each index i.

    Args:
        source: As of `PeerStage`, of the same type, with as many times the rows as the group has CTAs.
        into: What it begins with: a `SharedStage` with the group, of int32, or for "add" of int64.
        sender: The role of one warp that sends, of a phase after those that fill the two, and not the last one.
        reduce: "add", "min", "max", "and", "or", "xor", "inc" or "dec", as of a `TmaStoreStage`; compared with their signs.

    Raises:
        InputError: For any other value.
    """

    reduce: str = "add"

    def __init__(self, source: SlotStage, *, into: SharedStage, sender: Role, reduce: str = "add"):
        if type(into) is not SharedStage or into.group is None:
            rule = "is a SharedStage with group=, which threads write in all CTAs"
            raise InputError("ReducedStage(into)", into, rule, "declare one of the same ring")
        if reduce not in REDUCED or into.dtype is None or into.dtype.name not in REDUCED[reduce]:
            rule = f"is one of {', '.join(REDUCED)}, in int32, or add in int64; the tile is of {into.dtype}"
            raise InputError("ReducedStage(reduce)", reduce, rule, '"add", and dtype="int32"')
        self._set_up(source, into, sender, over=into, group=into.group, dims=None)
        object.__setattr__(self, "reduce", reduce)

    def __repr__(self) -> str:
        how = f"into={self.over!r}, sender={self.writer!r}, reduce={self.reduce!r}"
        return f"ReducedStage({self.source!r}, {how})"


@attrs.frozen(eq=False, repr=False, kw_only=True)
class SentStage(SharedStage):
    """A tile in each slot that threads of another CTA of the cluster have written there from their registers, by ``st.async``.

    All CTAs of a group do this at the same time: ``slot.<stage>.send(values, to)``. Each gets one tile a slot.

    Args:
        tile: Elements, as in `TmaLoadStage`.
        ring: Whose slots hold the tiles.
        sender: The role whose threads send, of any phase but the last one.
        dtype: Of the elements.
        group: Which CTAs send to each other: those that differ only along these axes of the cluster.
        swizzle: Span (bytes), as in `TmaLoadStage`.

    Raises:
        InputError: For any other value.
    """

    filled_by = "peers"
    source = None

    dims: tuple[str, ...] | None = attrs.field(default=None, init=False)
    over: SlotStage | None = attrs.field(default=None, init=False)
    writer: Role = attrs.field(alias="sender")
    group: MulticastGroup = attrs.field(validator=is_group)

    @writer.validator
    def _sender_is_before_the_last(self, field: Any, sender: Any) -> None:
        if self.ring.phase_of(sender) not in range(len(self.ring.phases) - 1) or self.ring.held:
            rule = 'is of any phase but the last one, of a ring that is not per="cta"'
            raise InputError("SentStage(sender)", sender, rule, "e.g. the producer")


# ---- descriptor stage ------------------------------------------------------------------------------------------------
#
# DescriptorStage: descriptors that a kernel changes, in the slots of a ring.


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class DescriptorStage(SharedStage):
    """A descriptor in each slot of `ring`, through which a stage is loaded: the kernel says which rows of the tensor it shows.

    The ring's producer, of one warp, calls ``slot.<stage>.set(first, rows)``. The role that loads has ``view =
    slot.<stage>.acquire()``, and loads with ``slot.b.load_through(view, ...)``: coordinates count from row *first*, and beyond
    the rows there are zeros. A slot is rewritten once all consumers have released it. So a role that has waited for the loads
    must be one of them, such as that which multiplies what was loaded.

    Args:
        of: The stage that is loaded through it, of another ring, by one of this ring's consumers. Its tile has as many extents
            as its tensor has dimensions.
        ring: Whose slots hold the descriptors.

    Raises:
        InputError: For any other value.
    """

    of: TmaLoadStage = attrs.field(default=None)

    def __init__(self, of: TmaLoadStage, *, ring: BarrierRing):
        plain = isinstance(of, TmaLoadStage) and of.tensor_map and of.windows is None and of.parts == 1
        if not plain or len(of.tile) != len(of.dims) or len(of.tile) < 2 or of.outside == "anything":
            rule = "is a TmaLoadStage whose tile has all extents of its tensor, two or more, and is loaded whole"
            raise InputError("DescriptorStage(of)", of, rule, "name such a stage")
        if not isinstance(ring, BarrierRing) or len(ring.phases[0]) != 1 or ring is of.ring:
            rule = "is another ring than that of the stage, with one producer"
            raise InputError("DescriptorStage(ring)", ring, rule, "declare one for descriptors")
        if not any(of.loader is role for role in ring.phases[-1]):
            rule = "has the role that loads among its consumers"
            raise InputError("DescriptorStage(ring)", ring, rule, "e.g. consumer=(load, math)")
        super().__init__(tile=(32,), ring=ring, writer=ring.phases[0][0], dtype=int32)
        object.__setattr__(self, "of", of)

    def __repr__(self) -> str:
        return f"DescriptorStage({self.of!r}, ring={self.ring!r})"


# ---- l2 stage --------------------------------------------------------------------------------------------------------
#
# L2Stage: tiles that are asked into L2 ahead of their loads.


@attrs.frozen(eq=False, repr=False, kw_only=True)
class L2Stage(TokenStage):
    """Tiles of another stage's tensor, which one role asks into L2 some slots before another role loads them.

    Its slots have no memory. Their ring says how far the asking role is ahead, across output tiles too: with 8 slots, at most
    8 tiles. Use it where the slots of shared memory alone do not cover the latency of memory; within one loop,
    ``slot.x.prefetch(tile, k=step + 8)`` does the same without a further role.

    Args:
        source: The stage that loads the tiles, each as a whole: a `TmaLoadStage` or a `BulkLoadStage`.
        ring: Produced by the role that asks, with ``slot.<stage>.prefetch(tile)``, and consumed by the one that loads.

    Raises:
        InputError: For any other value.
    """

    source: TmaLoadStage = attrs.field(kw_only=False)

    def __attrs_post_init__(self) -> None:
        source, ring = self.source, self.ring
        whole = isinstance(source, TmaLoadStage) and source.filled_by == "engine" and source.parts == 1
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
    ``k.<name>.read()``. What one thread has written, others read after ``k.sync()``, and they overwrite it after another one.
    With two copies used in turn, ``k.<name>.copy(i)``, one `sync` for each write is enough.

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

    def __repr__(self) -> str:
        return shown(self)


# ---- reduction scratch -----------------------------------------------------------------------------------------------
#
# ReductionScratch: shared memory for reductions over several warps, or several CTAs.


@attrs.frozen(eq=False, init=False, repr=False)
class ReductionScratch(Scratch):
    """Declares what `row_sum`, `column_sum` and their like need where a row or a column lies in several warps.

    Each warp leaves one number for each there, and reads those of the others after a barrier. There are two copies, so that
    one barrier for each reduction is enough.

    Args:
        role: Whose fragments are reduced.
        rows: Rows that a warp has of a tile, at most: as many as the tile has, or fewer if the warps share them out.
        columns: Of the tile, where columns are reduced.
        group: CTAs of the cluster over which rows lie too: those that differ only along these axes, or with `ctas=` so many
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
    """A vector, or a matrix, of int32 in global memory. In bodies, ``k.<name>.entry(i)``, or of a matrix ``entry(i, j)``, is
    one of its entries, the same for all threads.

    A schedule is called with one after its loads' tensors. It stays as it is while the kernel runs.

    Args:
        dims: Name of its dimension, or of both. It has as many entries as the other tensors have elements along it.

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
