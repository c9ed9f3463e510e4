"""What users declare besides roles, rings, loads and stores: matmuls, tiles that threads or CTAs write, scratch, tables."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import attrs

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base import MulticastGroup, optional_group
from tmapipe.base.arithmetic import DType, as_dtype, ceil_div, fp32, optional_dtype, tf32
from tmapipe.errors import IS_BOOL, InputError, as_tuple, fill, is_count, is_whole, must, optional, require, shown
from tmapipe.stage import LoadStage, SlotStage, check_dims, is_ring, is_swizzle, is_tile, is_written, joined, names_in

# ---- matmuls: from slots, or from registers --------------------------------------------------------------------------

_STAGE = "is a TmaLoadStage or SharedStage with a tile of two or more extents"


def _is_stage(stage: Any) -> bool:
    return isinstance(stage, (LoadStage, SharedStage)) and len(stage.tile) >= 2


def _is_operand(a: Any) -> bool:
    return _is_stage(a) or isinstance(a, (Wgmma, RegisterTile))


@attrs.frozen(eq=False, repr=False)
class Wgmma:
    """Declares ``acc[m, n] += a[m, k] * b[n, k]``, a matmul of warpgroups. It belongs to the role of warpgroups that is in the
    rings of both operands, after the role that fills them. If several roles are, it belongs to the last one.

    m is a multiple of 64 for each warpgroup, n a multiple of 8 up to 256, and k takes a multiple of 32 bytes (PTX ISA, wgmma
    shapes).

    Operands are two of bf16, fp16, tf32 or int8, or any two of fp8_e4m3 and fp8_e5m2. tf32 is fp32 that the TMA engine has
    rounded to 10 bits after the point: stages of dtype "tf32", tensors of fp32. Sums of int8 products (n: 8, 24 or a multiple
    of 16) are in int32 and saturate. All other sums are in fp32, but of fp8 operands the tensor core keeps only some 14 bits.

    Args:
        a: Stage with a tile (m, k), contiguous along k; of 16-bit types also (k, m), contiguous along m. k is the dimension
            that the last two of both stages have in common. Or another `Wgmma` of the role: a then comes from registers, as a
            fragment of the shape of that matmul's sums, such as their softmax, and has b's type, bf16 or fp16. Or a
            `RegisterTile` of the role, of shape (m, k): likewise from registers, made of what the role has read.
        b: Stage with a tile (n, k), or for 16-bit types (k, n); of the same ring or another.
        k: The dimension that is summed over, needed if the last two of both stages have both in common, as in ``x x^T``:
            ``Wgmma(x, x, k="k")``. The store then names the rows of the result: ``TmaStoreStage("m p", source=mma)``.
        in_flight: How many wgmma groups (one for each slot) may still run while the next slot is waited for, by default 1,
            for matmuls that are added (``acc.add``). A slot is released that much later. It is 0 where sums are promoted, and
            for matmuls that are started and awaited apart (``start``). The default is 0 where a comes from registers. With 1,
            such matmuls are added too: a has two sets of registers in turn, so that a loop adds two in an iteration.
        promote: Whether the sums of each slot (k elements of the tile, e.g. 128) are added to fp32 sums outside of the tensor
            core. This takes twice the registers, until the tile's last slot. Several promoted matmuls of a role share the
            registers for one slot. The model sums in fp32 either way.

    Raises:
        InputError: For any other value.
    """

    a: LoadStage | SharedStage | Wgmma | RegisterTile = attrs.field(
        validator=must(_is_operand, f"{_STAGE}, a Wgmma or a RegisterTile", "pass such a stage")
    )
    b: LoadStage | SharedStage = attrs.field(validator=must(_is_stage, _STAGE, "pass such a stage"))
    promote: bool = attrs.field(default=False, kw_only=True, validator=IS_BOOL)
    in_flight: int = attrs.field(default=None, kw_only=True)
    k: str | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        common = self._common
        if len(common) > 1 and self.k is None:
            rule = f"have both {' and '.join(common)} in common, and a matmul sums over one dimension"
            raise InputError("Wgmma(a, b)", [" ".join(common)] * 2, rule, f'name it: k="{common[-1]}"')
        if self.k is not None and not (isinstance(self.k, str) and self.k in common):
            rule = f"names a dimension that the last two of both stages have in common ({', '.join(common) or 'none'})"
            raise InputError("Wgmma(k)", self.k, rule, "name that, or leave it out")
        if self.in_flight is None:
            fill(self, in_flight=self._in_flight)

    @in_flight.validator
    def _fits_promotion(self, field: Any, in_flight: Any) -> None:
        wrong = not isinstance(in_flight, int) or in_flight < 0 or (in_flight and self.promote)
        why = "is 0 where sums are promoted, since each slot is waited for"
        rule = why if self.promote else "is a number, 0 or more"
        require(in_flight is None or not wrong, "Wgmma(in_flight)", in_flight, rule, "leave it out")

    def __repr__(self) -> str:
        return shown(self, *(("in_flight",) if self.in_flight == self._in_flight else ()))

    @property
    def _in_flight(self) -> int:
        """The default of `in_flight`: matmuls that are promoted or started are waited for one by one."""
        return 0 if self.promote or self.in_registers else 1

    @property
    def in_registers(self) -> bool:
        """Whether a comes from registers."""
        return isinstance(self.a, (Wgmma, RegisterTile))

    @property
    def stages(self) -> tuple[LoadStage | SharedStage, ...]:
        """The operands that lie in slots."""
        return (self.b,) if isinstance(self.a, (Wgmma, RegisterTile)) else (self.a, self.b)

    @property
    def dims(self) -> tuple[str, str] | None:
        """The names of m and n; None if the stages do not name their dimensions."""
        a, b = _last_two(self.a), _last_two(self.b)
        (of_a, of_b) = self.transposed
        return None if a is None or b is None else (a[int(of_a)], b[int(of_b)])

    @property
    def transposed(self) -> tuple[bool, bool]:
        """Whether the tiles of (a, b) are (k, m) and (k, n)."""
        a, b = _last_two(self.a), _last_two(self.b)
        k = self.k or next(iter(self._common), None)
        return k is not None and k == a[0], k is not None and k == b[0]  # type: ignore[index]

    @property
    def _common(self) -> tuple[str, ...]:
        """The dimensions that the tiles of both operands have, if the stages name them."""
        a, b = _last_two(self.a), _last_two(self.b)
        return tuple(dim for dim in a if dim in b) if a and b else ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, n, k) elements of the CTA's tile; k of a."""
        (m, k), (n, _) = self.extents
        return m, n, k

    @property
    def extents(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(m, k) of a's tile and (n, k) of b's."""
        of_a, of_b = self.transposed
        a = self.a.shape[:2] if isinstance(self.a, (Wgmma, RegisterTile)) else self.a.matrix
        b = self.b.matrix
        return a[::-1] if of_a else a, b[::-1] if of_b else b


def _last_two(operand: LoadStage | SharedStage | Wgmma | RegisterTile) -> tuple[str, ...] | None:
    """The names of the dimensions of an operand's tile, or None."""
    return None if operand.dims is None else tuple(operand.dims[-2:])


def _split(dims: Any) -> Any:
    """The names in a text such as "n k"; any other value as it is."""
    return tuple(dims.split()) if isinstance(dims, str) else dims


_two_names = must(optional(lambda dims: len(dims) == 2), "is two names", 'e.g. "n k"')


@attrs.frozen(eq=False, repr=False)
class RegisterTile:
    """Declares a tile of fp32 values that a role computes, in registers that are distributed as a `Wgmma`'s accumulators are.
    They are stored as accumulators are, or multiplied.

    In the role's body, ``k.<name>.read(slot.x)`` is the tile of a slot in this distribution. A store takes what is computed
    from it. As the first operand of a `Wgmma`: ``slot.x.read(like=k.full("<name>", 0))`` is distributed as the matmul takes
    it.

    Args:
        role: Warpgroups, of one team.
        shape: (m, n) elements: 64 rows for each warpgroup, and a multiple of 8 columns.
        dims: Names of its rows and columns, such as "n k", for a `Wgmma` that takes it as first operand.

    Raises:
        InputError: For any other value.
    """

    role: Role = attrs.field()
    shape: tuple[int, int] = attrs.field()
    dims: tuple[str, ...] | None = attrs.field(default=None, kw_only=True, converter=_split, validator=_two_names)

    @role.validator
    def _check_role(self, field: object, role: Role) -> None:
        if not isinstance(role, Role) or not role.by_warpgroup or role.teams != 1:
            rule = "is a role of whole warpgroups, of one team"
            raise InputError(f"{type(self).__name__}(role)", role, rule, "Role(warpgroups=1)")

    @shape.validator
    def _check_shape(self, field: object, shape: tuple[int, int]) -> None:
        rows = 16 * self.role.warps
        pair = isinstance(shape, (tuple, list)) and len(shape) == 2 and all(map(is_whole, shape))
        if not pair or shape[0] != rows or shape[1] < 8 or shape[1] % 8:
            rule = f"has {rows} rows, 64 a warpgroup, and a multiple of 8 columns"
            raise InputError(f"{type(self).__name__}(shape)", shape, rule, f"e.g. ({rows}, 64)")

    def __repr__(self) -> str:
        return shown(self)


@attrs.frozen(eq=False, init=False, repr=False)
class ClusterSum(RegisterTile):
    """Declares the sum of the accumulators of the CTAs that differ only along one axis of the cluster, such as partial sums
    of a split k. Each of these c CTAs gets some of the n columns: CTA i gets columns [i n / c, (i + 1) n / c).

    In the role's body, ``k.<name>.add(acc)`` sends each peer its columns by st.async. Then it adds up the columns that the
    peers have sent to this CTA, in the order of the CTAs. A store takes the result as it takes accumulators.

    Args:
        role: The role of the matmul: as many warpgroups as its tile has blocks of 64 rows.
        source: The matmul, in fp32.
        axis: The axis of the cluster along which the CTAs differ.
        ctas: How many CTAs there are along this axis. The columns are a multiple of 8 for each.

    Raises:
        InputError: For any other value.
    """

    source: Wgmma = attrs.field(kw_only=True)
    axis: str = attrs.field(kw_only=True)
    ctas: int = attrs.field(kw_only=True)

    def __init__(self, role: Role, source: Wgmma, axis: str, ctas: int):
        if not isinstance(source, Wgmma):
            raise InputError("ClusterSum(source)", source, "is a Wgmma, whose accumulators are added", "pass one")
        require(isinstance(axis, str), "ClusterSum(axis)", axis, "is the name of an axis of the cluster", 'e.g. "n"')
        rows, columns = source.shape[:2]
        rule = f"divides the {columns} columns into multiples of 8"
        require(is_count(ctas) and columns % (8 * ctas) == 0, "ClusterSum(ctas)", ctas, rule, "use 2, 4 or 8")
        self.__attrs_init__(role, (rows, columns // ctas), source=source, axis=axis, ctas=ctas)

    def __repr__(self) -> str:
        return shown(self, "shape")


# ---- tiles that threads write, or other CTAs of the cluster ----------------------------------------------------------

#: Reduction into shared memory -> the element types that it is done in.
REDUCED = {
    **dict.fromkeys(("add", "min", "max", "inc", "dec", "and", "or", "xor"), ("int32",)),
    "add": ("int32", "int64"),
}


class Exchange(NamedTuple):
    """CTAs of a cluster that write the tiles of a `SharedStage` in each other's slots, all at the same time.

    ``slot.<stage>.send(to)`` copies the tile of `source` to another CTA by ``cp.async.bulk``, or equal parts of the tile to
    several CTAs. ``send(to, values)`` writes values that threads have in registers, by ``st.async``. Each CTA gets one tile a
    slot. With `reduce`, ``slot.<stage>.reduce(to)`` combines a part of the source with the tile that the writer has written
    there, by ``cp.reduce.async.bulk``; ``reduce(to, values)`` combines registers with it, by ``red.async``. The sender calls
    it once for each CTA of the group, its own CTA included. The stage raises `InputError` for values that do not fit.

    Args:
        group: The CTAs: all that differ from each other only along these axes of the cluster.
        sender: The role that writes into other CTAs' slots, of any phase of the ring but the last one. With a source, the
            sender is one warp, and its phase comes after the phase that fills the source.
        source: The stage of the same ring that is sent: a `TmaLoadStage`, or a `SharedStage` that threads write. To be
            reduced, it has as many times the rows as the group has CTAs. None: threads of the sender send registers.
        reduce: "add", "min", "max", "and", "or", "xor", "inc" or "dec", as in a `TmaStoreStage`, of int32, or "add" of int64;
            compared with their signs.
    """

    group: MulticastGroup
    sender: Role
    source: SlotStage | None = None
    reduce: str | None = None


def _of(field: str, name: str) -> Any:
    """The default of a field of a `SharedStage`: attribute *name* of the value of *field*, or None."""
    return attrs.Factory(lambda stage: getattr(getattr(stage, field), name, None), takes_self=True)


def _named(stage: Any) -> Any:
    """The default dims of a `SharedStage`: those of its source's tile, or None."""
    dims = getattr(stage.source, "dims", None)
    return dims and " ".join(dims[-len(stage.source.tile) :])


@attrs.frozen(eq=False, repr=False, kw_only=True)
class SharedStage(SlotStage):
    """A tile in each slot of `ring` that threads write, such as scratch handed along with the slot, or the result of a
    transform. Or a tile that CTAs of a cluster write into each other's slots, or read there.

    Args:
        dims: Names of the tile's extents, needed where a matmul reads it otherwise than contiguous along k.
        tile: Elements, as in `TmaLoadStage`. By default, as with ring, dtype and swizzle, that of the source of an `Exchange`.
        ring: The ring whose slots hold the tiles.
        writer: The role of the ring that writes the tiles. With an `Exchange`, None. But if the exchange reduces, the role
            that writes the values that each CTA's tile begins with.
        dtype: Element type.
        swizzle: Swizzle span (bytes), as in `TmaLoadStage`.
        over: A stage that an earlier phase of the ring fills. This stage lies in its memory, and has no more bytes a slot.
            Once this stage is written, the tile of *over* is gone. Where several warps read that tile, the writer calls
            ``k.sync()`` between reading and writing.
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
    dtype: DType | None = attrs.field(default=_of("source", "dtype"), converter=optional_dtype)
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
        rule = "is one that threads can write: tf32 is a type of TMA loads, which round fp32 to it"
        require(self.source is not None or dtype not in (None, tf32), "SharedStage(dtype)", dtype, rule, "e.g. fp32")
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
            rule = "must be None if a sender writes, unless it reduces" if sent else "must be one of the ring's roles"
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
        rule = "needs a ring whose slots are released, so that no CTA leaves while others use its slots"
        require(self.group is None or not self.ring.held, "SharedStage(group)", self.group, rule, 'leave out per="cta"')
        filled = [role for role in (writer, self.source and self.source.filler, self.sender) if role is not None]
        phases: list[Any] = list(map(self.ring.phase_of, cast(list[Role], filled)))
        inside = self.source is None or self.source.ring is self.ring
        last = len(self.ring.phases) - 1
        if isinstance(self.group, Exchange) and not (
            inside and self.sender and None not in phases and max([-1, *phases[:-1]]) < phases[-1] < last
        ):
            rule = "must be in a phase of the ring after the source's and the writer's, but not in the last phase"
            raise InputError("Exchange(sender)", self.sender, rule, "e.g. chain=(write, send, use)")

    def __attrs_post_init__(self) -> None:
        if self.source is not None and self.dtype != self.source.dtype:
            raise InputError("SharedStage(dtype)", self.dtype, "must be the source's", "leave it out")

    def __repr__(self) -> str:
        same = ("tile", "ring", "swizzle", "dims", "dtype")
        unsaid = [name for name in same if getattr(self, name) == getattr(self.source, name, None)]
        return shown(self, "source", "sender", "reduce", *unsaid)


# ---- scratch, and tables ---------------------------------------------------------------------------------------------

_of_one_team = must(lambda x: isinstance(x, Role) and x.teams == 1, "is the Role that uses it, of one team", "pass it")


@attrs.frozen(eq=False, repr=False)
class Scratch:
    """Declares shared memory of one role, in which the role's threads pass values to each other.

    In the role's body, ``k.<name>`` is read and written as a stage's tile in an open slot: ``k.<name>.write(v)``,
    ``k.<name>.read()``. Between a write and other threads' reads stands a ``k.sync()``, and another one between these reads
    and the next write. With two copies in turn, ``k.<name>.copy(i)`` and then ``i = i ^ 1``, one `sync` a write is enough.

    Args:
        role: The role whose threads use it.
        tile: Elements.
        dtype: Element type.
        copies: How many tiles there are, one after another.

    Raises:
        InputError: For any other value.
    """

    role: Role = attrs.field(validator=_of_one_team)
    tile: tuple[int, ...] = attrs.field(kw_only=True, converter=as_tuple, validator=is_tile)
    dtype: DType = attrs.field(kw_only=True, converter=as_dtype, validator=is_written)
    copies: int = attrs.field(default=1, kw_only=True, validator=must(is_count, "is a positive number", "use 1 or 2"))

    @property
    def sharing(self) -> MulticastGroup | None:
        """The CTAs that write into each other's scratch."""
        return getattr(self, "group", None)

    def __repr__(self) -> str:
        return shown(self)


@attrs.frozen(eq=False, init=False, repr=False)
class ReductionScratch(Scratch):
    """Declares the shared memory that `row_sum`, `column_sum` and other reductions need where a row or a column lies in
    several warps.

    For each row or column, each warp leaves one number there, and reads the other warps' numbers after a barrier. There are
    two copies, so that one barrier for each reduction is enough. Numbers are fp32: integers go by `tmapipe.math.cast`.

    Args:
        role: The role whose fragments are reduced.
        rows: How many rows of a tile one warp has, at most: as many as the tile has, or fewer if the warps share them out.
        columns: How many columns the tile has, where columns are reduced.
        group: CTAs of the cluster over which rows lie too: all that differ only along these axes, or with `ctas=` so many
            side by side. Reductions of rows are then over the whole row, in all of these CTAs, which all reduce at the same
            point. The scratch has room for the numbers of each of these CTAs.

    Raises:
        InputError: For any other value.
    """

    rows: int = 1
    columns: int = 1
    group: MulticastGroup | None = None

    def __init__(self, role: Role, *, rows: int = 1, columns: int = 1, group: MulticastGroup | None = None):
        for name, value in (("rows", rows), ("columns", columns)):
            rule = f"is a positive number of {name}"
            require(is_count(value), f"ReductionScratch({name})", value, rule, "leave it out for one")
        if group is not None and (not isinstance(group, MulticastGroup) or columns != 1):
            rule = "is a MulticastGroup: the CTAs of the cluster over which rows lie, and no columns"
            raise InputError("ReductionScratch(group)", group, rule, 'e.g. MulticastGroup("n"), without columns=')
        warps, width = getattr(role, "warps", 1), 4 * ceil_div(max(rows, columns), 4)  # units of 16 bytes
        self.__attrs_init__(role, tile=(warps, width), dtype=fp32, copies=2, rows=rows, columns=columns, group=group)

    def __repr__(self) -> str:
        unsaid = [name for name, default in (("columns", 1), ("group", None)) if getattr(self, name) == default]
        return shown(self, "tile", "dtype", "copies", *unsaid)


_is_of_table = must(
    lambda dims: type(dims) is tuple and len(set(dims)) == len(dims) in (1, 2) and all(map(str.isidentifier, dims)),
    "is the name of one dimension, or of two",
    'e.g. Table("l") or Table("b i")',
)
_is_of_data = must(optional(lambda x: x.integer and x.bytes <= 4), "is an integer of up to 4 bytes", '"int16"')


@attrs.frozen(eq=False, repr=False)
class Table:
    """A vector, or a matrix, of int32 or int64 in global memory, which every warp may read: where the groups of a grouped GEMM
    end, for example. In bodies, ``k.<name>.entry(i)``, or of a matrix ``entry(i, j)``, is an entry in int32, the same for all
    threads; a call on the CPU refuses int64 of more bits. Of a vector with a *dtype*, ``k.<name>.read(...)`` is a fragment.

    A call of the schedule takes the table after the tensors of the loads. The table stays as it is while the kernel runs.

    Args:
        dims: Name of its dimension, or of both. Along a dimension, the table has as many entries as the other tensors have
            elements.
        ascending: Whether no entry of a vector is less than the one before. A table on the CPU is looked at when it is bound;
            of one on a GPU this is a promise of the caller, which a report names where a result of the check depends on it.
        dtype: "int8", "int16" or "int32": the vector holds data of this type, which threads read; None: it holds entries.

    Raises:
        InputError: For other names, another *dtype*, or a matrix with either option.
    """

    dims: tuple[str, ...] = attrs.field(converter=_split, validator=_is_of_table)
    ascending: bool = attrs.field(default=False, kw_only=True, validator=IS_BOOL)
    dtype: DType | None = attrs.field(default=None, kw_only=True, converter=optional_dtype, validator=_is_of_data)

    def __attrs_post_init__(self) -> None:
        for name in ("ascending", "dtype") if len(self.dims) > 1 else ():
            value = getattr(self, name)
            require(not value, f"Table({name})", value, "is for a table of one dimension", "leave it out")

    def __repr__(self) -> str:
        typed = ("", f", dtype={self.dtype}")[self.dtype is not None]
        return f"Table({' '.join(self.dims)!r}{', ascending=True' * self.ascending}{typed})"
