"""What users declare besides rings, loads and stores. Here: `Wgmma`, `RegisterTile` and `ClusterSum`, which sums up over CTAs.

`stages` has stages of further kinds, scratch, tables and turnstiles.
"""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.barrier import Role
from tmapipe.errors import InputError, fill, is_count, is_whole, must, shown
from tmapipe.parts.stages import SharedStage
from tmapipe.stage import LoadStage

# ---- matmul ----------------------------------------------------------------------------------------------------------
#
# Wgmma: warpgroup matmuls on slots, accumulated in registers.


def _is_stage(stage: Any) -> bool:
    return isinstance(stage, (LoadStage, SharedStage)) and len(stage.tile) >= 2


@attrs.frozen(eq=False, repr=False)
class Wgmma:
    """Declares ``acc[m, n] += a[m, k] * b[n, k]``, by the role of warpgroups that is in the rings of both operands and comes
    after the role that fills them (of several such roles, the last).

    m is a multiple of 64 a warpgroup, n a multiple of 8 up to 256, and k takes a multiple of 32 bytes (PTX ISA, wgmma
    shapes).

    Operands are two of bf16, fp16, tf32 or int8, or any two of fp8_e4m3 and fp8_e5m2. tf32 is fp32 that the TMA engine has
    rounded to 10 bits after the point: stages of dtype "tf32", tensors of fp32. Sums of int8 products (n: 8, 24 or a multiple
    of 16) are in int32 and saturate. All others are in fp32; but of fp8 operands the tensor core keeps some 14 bits of a sum.

    Args:
        a: Stage with a tile (m, k), contiguous along k; of 16-bit types also (k, m), contiguous along m. k is the dimension
            that the last two of both stages have in common. Or another `Wgmma` of the role: a then comes from registers, as a
            fragment of the shape of that one's sums, such as their softmax, and is of b's type, bf16 or fp16. Or a
            `RegisterTile` of the role, of shape (m, k): likewise, as what the role has made of other stages.
        b: Stage with a tile (n, k), or likewise (k, n); of the same ring or another.
        k: The dimension that is summed over, if the last two of both stages have both in common, as in ``x x^T``:
            ``Wgmma(x, x, k="k")``. The rows of the result are then named by its store: ``TmaStoreStage("m p", source=mma)``.
        in_flight: Of matmuls that are added (``acc.add``): wgmma groups (one a slot) that may still run while the next slot is
            waited for, by default 1, or 0 if sums are promoted. A slot is released that much later. Matmuls that are started
            and awaited apart (``start``) take 0, the default where a comes from registers. With 1, these are added as well:
            they have two sets of registers in turn, so that a loop adds two in an iteration.
        promote: Whether after each slot (k elements of the tile, e.g. 128) the sums are added to others in fp32, outside of
            the tensor core. This takes twice the registers, until the tile's last slot; several promoted matmuls of a role
            share those of a slot. The model sums in fp32 either way.

    Raises:
        InputError: For any other value.
    """

    a: LoadStage | SharedStage | Wgmma | RegisterTile = attrs.field(
        validator=must(
            lambda a: _is_stage(a) or isinstance(a, (Wgmma, RegisterTile)),
            "is a TmaLoadStage or SharedStage with a tile of two or more extents, a Wgmma or a RegisterTile",
            "pass such a stage",
        )
    )
    b: LoadStage | SharedStage = attrs.field(
        validator=must(
            _is_stage, "is a TmaLoadStage or SharedStage with a tile of two or more extents", "pass such a stage"
        )
    )
    promote: bool = attrs.field(
        default=False,
        kw_only=True,
        validator=must(lambda promote: isinstance(promote, bool), "is True or False", "leave it out"),
    )
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
        if in_flight is None:
            return
        rule = "is a number, 0 or more"
        if self.promote:
            rule = "is 0 where sums are promoted, since each slot is waited for"
        if not isinstance(in_flight, int) or in_flight < 0 or (in_flight and self.promote):
            raise InputError("Wgmma(in_flight)", in_flight, rule, "leave it out")

    def __repr__(self) -> str:
        return shown(self, *(("in_flight",) if self.in_flight == self._in_flight else ()))

    @property
    def _in_flight(self) -> int:
        """The default of `in_flight`: what is promoted or started is waited for by itself."""
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
        """What m and n are called, if the stages say so."""
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


# ---- register tile ---------------------------------------------------------------------------------------------------
#
# RegisterTile: a tile of numbers in the registers of warpgroups, distributed as a `Wgmma`'s accumulators are.


def _names(dims: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    return tuple(dims.split()) if isinstance(dims, str) else dims


@attrs.frozen(eq=False, repr=False)
class RegisterTile:
    """Declares fp32 values of an output tile that a role computes, which are stored as accumulators are, or multiplied.

    In the role's body, ``k.<name>.read(slot.x)`` is the tile of a slot, and ``k.<name>.of(values)`` what a store takes. As the
    first operand of a `Wgmma`: ``slot.x.read(like=k.full("<name>", 0))`` is distributed as that takes it.

    Args:
        role: Warpgroups, of one team.
        shape: (m, n) elements: 64 rows a warpgroup, and columns that are a multiple of 8.
        dims: Names of its rows and columns, such as "n k", for a `Wgmma` that takes it as first operand.

    Raises:
        InputError: For any other.
    """

    role: Role = attrs.field()
    shape: tuple[int, int] = attrs.field()
    dims: tuple[str, ...] | None = attrs.field(
        default=None,
        kw_only=True,
        converter=_names,
        validator=must(lambda dims: dims is None or len(dims) == 2, "is two names", 'e.g. "n k"'),
    )

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


# ---- cluster sum -----------------------------------------------------------------------------------------------------
#
# ClusterSum: sums of a matmul's accumulators over CTAs of a cluster.


@attrs.frozen(eq=False, init=False, repr=False)
class ClusterSum(RegisterTile):
    """Declares the sum of the accumulators of the CTAs that differ only along one axis of the cluster, such as partial sums
    of a split k. Each of these CTAs gets some of the columns: CTA i of c gets columns [i n / c, (i + 1) n / c).

    In the role's body, ``k.<name>.add(acc)`` sends each peer its columns by st.async, and adds those that it gets, in the
    order of the CTAs. A store takes the result as it takes accumulators.

    Args:
        role: That of the matmul: as many warpgroups as its tile has blocks of 64 rows.
        source: The matmul, in fp32.
        axis: Of the cluster, along which the CTAs differ.
        ctas: How many there are along this axis. The columns are a multiple of 8 for each.

    Raises:
        InputError: For any other value.
    """

    source: Wgmma = attrs.field(kw_only=True)
    axis: str = attrs.field(kw_only=True)
    ctas: int = attrs.field(kw_only=True)

    def __init__(self, role: Role, source: Wgmma, axis: str, ctas: int):
        if not isinstance(source, Wgmma):
            raise InputError("ClusterSum(source)", source, "is a Wgmma, whose accumulators are added", "pass one")
        if not isinstance(axis, str):
            raise InputError("ClusterSum(axis)", axis, "is the name of an axis of the cluster", 'e.g. "n"')
        rows, columns = source.shape[:2]
        if not is_count(ctas) or columns % (8 * ctas):
            rule = f"divides the {columns} columns into multiples of 8"
            raise InputError("ClusterSum(ctas)", ctas, rule, "use 2, 4 or 8")
        self.__attrs_init__(role, (rows, columns // ctas), source=source, axis=axis, ctas=ctas)

    def __repr__(self) -> str:
        return shown(self, "shape")
