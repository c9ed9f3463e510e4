"""What a GEMM is made of: how its warpgroups share the output tiles, how its operands lie in memory, what adds parts of k."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs

from tmapipe.barrier import BarrierRing, Role, Turnstile
from tmapipe.base import MulticastGroup, check_cluster
from tmapipe.base.arithmetic import DType, as_dtype, ceil_div, dtype_of, fp32
from tmapipe.bind import Bound, check_apart, check_kind, of_sums
from tmapipe.bind.tensors import match, new_like, signature
from tmapipe.calling import set_to_zero
from tmapipe.epilogue import ColumnSum, Epilogue, OperandSum, sums_by_name
from tmapipe.epilogue.operands import Matrix, StoreForm
from tmapipe.errors import NOTHING, InputError, is_count, must, require
from tmapipe.kernel import KernelContext
from tmapipe.parts import RegisterTile, Wgmma
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.fused import AddParts, Fused
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import AddedParts, TmaStoreStage
from tmapipe.tiles import SplitKTiles
from tmapipe.tiles.order import TileOrder

__all__ = ["Cooperative", "Operand", "PingPong", "in_shares"]


# ---- mainloop --------------------------------------------------------------------------------------------------------
#
# Mainloops of a GEMM: how its warpgroups share the output tiles.
#
# Cooperative   all warpgroups on one tile: mainloop 0 | epilogue 0 | mainloop 1 | ...
#
# PingPong      each warpgroup on a tile of its own, so that one's epilogue runs under the other's mainloop:
#               team 0    mainloop 0 | epilogue 0           | mainloop 2 | ...
#               team 1               | mainloop 1           | epilogue 1 | ...


_ALONG = must(lambda value: value in (None, "m", "n"), 'is "m" or "n" (of the output), or None', "leave it out")
_BOOL = must(lambda value: isinstance(value, bool), "is True or False", "leave it out")


@attrs.frozen
class Cooperative:
    """All warpgroups share an output tile: 1 of m = 64, 2 of 128 or 256, 3 of 192 rows.

    Args:
        promote: Sums of fp8 operands leave the tensor core after each slot (see `Wgmma`).
        along: "m", or "n": warpgroups share the tile's columns instead, so that its rows are any multiple of 8 up to 256.
            Further outputs are sums. None: "n" where all of these are `ColumnSum`, which take less time so, if the tile and
            the epilogue allow it; else "m".
    """

    promote: bool = attrs.field(default=False, validator=_BOOL)
    along: str | None = attrs.field(default=None, validator=_ALONG, kw_only=True)

    def role(self, declared: Role, rows: int) -> Role:
        """*declared*, or another role if its warpgroups cannot share *rows* rows of accumulators."""
        if rows % (16 * declared.warps) == 0 and declared.teams == 1:
            return declared
        return Role(warpgroups=2 if rows % 128 == 0 else 3 if rows % 192 == 0 else 1)

    def turnstiles(self, role: Role, stores: tuple[TmaStoreStage, ...]) -> dict[str, Turnstile]:
        """What orders the teams of *role*, which store through *stores*, by name."""
        return {}

    def mainloop_turn(self, k: KernelContext) -> AbstractContextManager[object]:
        """The scope of a mainloop. *k* is as in bodies."""
        return nullcontext()

    def epilogue_turn(self, k: KernelContext) -> AbstractContextManager[object]:
        """The scope of an epilogue. *k* is as in bodies."""
        return nullcontext()

    def check(self, tiles: TileOrder, epilogue: Epilogue) -> None:
        """Raises `InputError` for *tiles* or an *epilogue* that it does not go with."""
        _check_along(self, tiles, epilogue)


@attrs.frozen
class PingPong:
    """Two warpgroups, each with every second output tile, whose mainloops take turns.

    Best where the epilogue is long compared to the mainloop: short k, or tiles too small to hide it otherwise. The
    accumulators of a tile must fit in one warpgroup: up to 64 x 256 or 128 x 192.

    Args:
        promote: As of `Cooperative`.
        in_turn: Whether epilogues take turns as mainloops do, so that both warpgroups use the same output buffers. Without,
            each has buffers of its own and epilogues may overlap, which is faster if they take longer than mainloops. With
            operands it must be on, or one warpgroup could run ahead of the other by two laps of their ring.
        along: As of `Cooperative`.
    """

    promote: bool = attrs.field(default=False, validator=_BOOL)
    in_turn: bool = attrs.field(default=True, validator=_BOOL)
    along: str | None = attrs.field(default=None, validator=_ALONG, kw_only=True)

    def role(self, declared: Role, rows: int) -> Role:
        """*declared*, if it has teams, else two warpgroups. Each computes all *rows* rows of its tile."""
        return declared if declared.teams > 1 else Role(warpgroups=2, teams=2)

    def turnstiles(self, role: Role, stores: tuple[TmaStoreStage, ...]) -> dict[str, Turnstile]:
        """What orders the teams of *role*, which store through *stores*, by name."""
        found = {"order": Turnstile(role)}
        return found | ({"epilogue_order": Turnstile(role, stores)} if self.in_turn else {})

    def mainloop_turn(self, k: KernelContext) -> AbstractContextManager[object]:
        """The turn as `Cooperative.mainloop_turn` gives it: waits until the other team has left its mainloop."""
        return k.order.turn()

    def epilogue_turn(self, k: KernelContext) -> AbstractContextManager[object]:
        """The turn as `Cooperative.epilogue_turn` gives it: waits until the other team has left its epilogue, if `in_turn`."""
        return k.epilogue_order.turn() if self.in_turn else nullcontext()

    def check(self, tiles: TileOrder, epilogue: Epilogue) -> None:
        """Raises `InputError` for *tiles* or an *epilogue* that it does not go with."""
        _check_along(self, tiles, epilogue)
        if epilogue.operands and not self.in_turn:
            raise InputError("PingPong(in_turn)", False, "is needed with operands of the epilogue", "leave it out")
        rule = f"does not go with {type(tiles).__name__}, whose tiles differ in their steps or have none"
        require(not tiles.in_parts, "mainloop", self, rule, "use Cooperative()")


def along_of(mainloop: Any, gemm: Any, tile: tuple[int, int, int], tiles: TileOrder) -> Any:
    """*mainloop* of a *gemm* that is being made, with the `along` that None stands for."""
    if mainloop.along is not None:
        return mainloop
    (m, n, _), epilogue, role = tile, gemm.epilogue, functools.partial(mainloop.role, gemm.math)
    sums = epilogue.outputs and all(isinstance(kind, ColumnSum) for kind in epilogue.outputs.values())
    matrix = any(isinstance(kind, Matrix) for kind in epilogue.operands.values())
    alone, whole = len(gemm.products) == 1 and not (epilogue.columns or matrix), not (tiles.in_parts or tiles.bounded)
    fits = n % 64 == 0 and m % 8 == 0 and m <= 256 and role(n).warps >= role(m).warps
    return attrs.evolve(mainloop, along="n" if sums and gemm.turns and alone and whole and fits else "m")


def _check_along(mainloop: Cooperative | PingPong, tiles: TileOrder, epilogue: Epilogue) -> None:
    """Raises `InputError` for what transposed accumulators do not go with."""
    if mainloop.along != "n":
        return
    if tiles.bounded or getattr(tiles, "reduce", None):
        rule = f"does not go with {type(tiles).__name__}, whose tiles have bounds along m or are added to others"
        raise InputError("mainloop", mainloop, rule, 'use along="m"')
    whole = [name for name, kind in epilogue.outputs.items() if not kind.reduced]
    require(not whole, "mainloop", mainloop, "takes an epilogue whose further outputs are sums", 'use along="m"')


# ---- operand ---------------------------------------------------------------------------------------------------------
#
# Operand: how one input of a matmul lies in memory, and how it is loaded.


MAJORS = ("k", "m", "n")


def in_shares(rows: int, peers: int) -> bool:
    """Whether *peers* CTAs can load equal shares of *rows* rows along k: in steps of 8, the rows of a swizzle's pattern.

    Args:
        rows: Of the tile.
        peers: CTAs that take shares.

    Raises:
        InputError: One of them is no positive integer.
    """
    for name, value in (("rows", rows), ("peers", peers)):
        require(is_count(value), f"in_shares({name})", value, "is a positive integer", "e.g. 2")
    return rows % (8 * peers) == 0


@attrs.frozen
class Operand:
    """An input of a matmul, a [m, k] or b [n, k].

    Args:
        major: The dimension along which it is contiguous: "k", or for 16-bit types "m" (a) or "n" (b). torch's usual weight w,
            [k, n], is passed as ``w.t()`` with major "n".
        dtype: Of its elements; None: the tensor's. "tf32": a tensor of fp32, rounded to tf32 while it is loaded.
        l2_hint: Of its loads: "evict_first" (read once), "evict_last" or "evict_normal".
        outside: What slots hold of rows beyond its edge: "zeros", or "anything" (see `TmaLoadStage.anything_outside`), which
            pays where its few rows fill little of a tile: with an m of 16, a GEMM takes 6 to 16 % less time.
        sums: By-products by name, of what is contiguous along k: each an `OperandSum`, which a call returns after the outputs.

    Raises:
        InputError: Another major; ``outside="anything"`` or sums for an operand that is not contiguous along k.
    """

    major: str = attrs.field(default="k")
    dtype: DType | str | None = None
    l2_hint: str | None = None
    outside: str = attrs.field(
        default="zeros",
        validator=must(
            lambda rows: rows in ("zeros", "anything"), "is one of zeros, anything (beyond the edge)", 'use "zeros"'
        ),
    )
    sums: Mapping[str, OperandSum] = attrs.field(default=NOTHING, converter=sums_by_name, kw_only=True)

    @major.validator
    def _check(self, attribute: Any, value: Any) -> None:
        if not isinstance(value, str) or value not in MAJORS:
            raise InputError("Operand(major)", value, 'is "k", or "m" of a, or "n" of b', 'e.g. "k"')
        if value != "k" and self.outside != "zeros":
            rule = f"is zeros for an operand that is contiguous along {value}: its rows are added up"
            raise InputError("Operand(outside)", self.outside, rule, 'use "zeros"')

    @sums.validator
    def _check_sums(self, attribute: Any, value: Any) -> None:
        if value and self.major != "k":
            raise InputError(
                "Operand(sums)", dict(value), "are of an operand that is contiguous along k", "leave them out"
            )
        if self.outside != "zeros" and any(kind.over != "k" for kind in value.values()):
            rule = "is over k where rows beyond the edge hold anything"
            raise InputError("Operand(sums)", dict(value), rule, 'leave out outside="anything"')

    @property
    def transposed(self) -> bool:
        """Whether the stage's last two dimensions are in the other order than the tensor's."""
        return self.major != "k"

    def stage(
        self,
        side: str,
        rows: int,
        k: int,
        *,
        ring: BarrierRing,
        batch: str = "l ",
        multicast: str | None,
        peers: int = 1,
    ) -> TmaLoadStage:
        """Its load stage, in tiles of *rows* x *k* elements.

        Args:
            side: Its dimension besides k, "m" or "n".
            rows: Elements of a tile along that.
            k: Elements of a tile along k.
            ring: Whose slots hold the tiles.
            batch: Names of the dimensions before, each with a space.
            multicast: The cluster's axis whose CTAs want the same tile, if there is one.
            peers: CTAs along that axis. Each loads an equal part of the tile, or, if its rows are no multiple of 8 for each,
                the first one all of it.

        Raises:
            InputError: The major is neither k nor the side.
        """
        if self.major not in ("k", side):
            argument = {"m": "a", "n": "b"}[side]
            rule = f'of {argument} is "k" or "{side}"'
            raise InputError("Operand(major)", self.major, rule, f"{argument}=Operand({side!r})")
        whole = not self.transposed and not in_shares(rows, peers)
        dims, tile = (f"{side} k", (rows, k)) if self.major == "k" else (f"k {side}", (k, rows))
        stage = TmaLoadStage(
            f"{batch}{dims}",
            tile=tile,
            ring=ring,
            dtype=self.dtype,
            multicast=None if multicast is None else MulticastGroup(multicast, whole=whole),
            l2_hint=self.l2_hint,
        )
        return stage.anything_outside() if self.outside == "anything" else stage


def summed_of(a: Operand, b: Operand, products: Mapping[str, str]) -> tuple[str, Mapping[str, OperandSum]]:
    """The operand that has sums, and these. Raises `InputError` for sums of both, or of one of several *products*."""
    operand, sums = ("b", b.sums) if b.sums else ("a", a.sums)
    if b.sums and (a.sums or len(products) > 1):
        rule = "are of one operand: of a, or of a single b"
        raise InputError("b.sums", dict(b.sums), rule, "leave them out, and take another kernel for them")
    return operand, sums


# ---- finishparts -----------------------------------------------------------------------------------------------------
#
# FinishParts: ``d = epilogue(parts[0] + parts[1] + ...)``: what a split-K GEMM with an epilogue ends with.


SHAPE = 64, 64  # elements of a tile: one piece of what a warpgroup holds


class FinishParts(Fused):
    """``d[m, n] = epilogue(sum over s of workspace[s, m, n])``; sums in fp32, in the order of s.

    One warp loads the parts, four add them, through slots that threads read; operands come as in a `Gemm`.

    Args:
        epilogue: As of `Gemm`.
        stages: Slots of parts; None: as many as fit.
    """

    load, math = Role(warps=1), Role(warpgroups=1)

    def __init__(self, epilogue: Epilogue | Callable[..., Any] | None, stages: int | None = None):
        self.epilogue = epilogue = Epilogue.of(epilogue)
        self.ring = BarrierRing(stages, producer=self.load, consumer=self.math)
        self.workspace = Matrix(fp32, None).stage("workspace", self.ring, *SHAPE, "s ")
        self.total = RegisterTile(self.math, SHAPE)
        self.declare_epilogue(epilogue, (self.total,), batch="")

    def empty_value(self, bound: Bound) -> Any:
        """The epilogue of empty sums."""
        return self.whole_value(bound, 1)

    def shape_of_output(self, given: Mapping[str, Any]) -> tuple[int, ...]:
        """As in `Fused`."""
        return tuple(given["workspace"].shape[1:])

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        for part in range(k.steps("workspace", "s")):
            with k.ring.produce() as slot:
                slot.workspace.load(tile, s=part)

    @math.jit
    def finish(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            total = k.total.read(slot.workspace)
        for _ in range(k.steps("workspace", "s") - 1):
            with k.ring.consume() as slot:
                total = total + k.total.read(slot.workspace)
        self.store_all(k, tile, (total,))


# ---- parts -----------------------------------------------------------------------------------------------------------
#
# PartsOfK: what a GEMM whose k is divided among CTAs does around its kernel.
#
# By default the kernel stores part s of each output tile, partial sums in fp32, to matrix s of a workspace [s, m, n].
# A second kernel adds these in a fixed order and applies the epilogue, so the bits are the same in every run. It
# starts while the first one ends, and waits for it with griddepcontrol.wait. With ``reduce="add"`` the TMA engine
# adds all parts to the output as they arrive: one kernel, no workspace, and last bits that differ from run to run.


MANY = 128  # tiles of an output that keep a GPU busy


class PartsOfK:
    """The parts that *order* makes of each output tile; when they have been added, *epilogue* is applied."""

    def __init__(self, order: Any, epilogue: Epilogue, products: int):
        if products > 1:
            rule = f"is for one product; the parts of {products} are not added"
            raise InputError("tiles", order, rule, "use an order of whole tiles")
        if order.reduce and not epilogue.plain:
            rule = "is not applied to parts of k that are added as they come: no part has the whole sum"
            raise InputError("epilogue", epilogue.function or epilogue, rule, "leave out reduce=")
        rule = "is of stores of whole tiles, not of parts of k"
        require(epilogue.l2_hint is None, "Epilogue(l2_hint)", epilogue.l2_hint, rule, "leave it out")
        self.order, self.epilogue = order, epilogue
        self.stored = Epilogue(stages=epilogue.stages)  #: what each part ends with
        self.more = bool(epilogue.operands or epilogue.outputs)
        self.batched = isinstance(order, SplitKTiles) and not order.reduce and not self.more
        self._bound: set[Any] = set()  # signatures of calls that were found right

    def stage(self, mma: Wgmma, width: int, form: StoreForm) -> TmaStoreStage:
        """The store of the parts."""
        if self.order.reduce:
            return AddedParts(mma, self.order.parts, stages=form.stages, dtype=self.epilogue.dtype)
        return TmaStoreStage(f"{form.batch}m n", source=mma, stages=form.stages, dtype=fp32)

    def call(self, schedule: Any, run: Callable[..., Any], tensors: tuple[Any, ...], out: Any, named: Any) -> Any:
        """Calls *run*, the kernel of *schedule*, with its inputs and a workspace, then adds the parts. Returns the outputs."""
        others = [*self.epilogue.operands, *self.epilogue.outputs]
        loads = [name for name in schedule.declared.loads if name not in others]
        given = match([*loads, "d", *others], tensors, named, out, "d")
        for name in loads:
            check_kind(name, given.get(name))
        for name in ("a", "b"):
            batched = self.batched and given["a"].ndim == given[name].ndim == 3
            if given[name].ndim != 2 and not batched:
                rule = "is a matrix, where parts of k are added" + " to d, or with operands" * (not self.batched)
                raise InputError(name, tuple(given[name].shape), rule, "pass one matrix")
        a, b, d = given["a"], given["b"], given.get("d")
        shape = (*a.shape[:-1], b.shape[-2])
        if d is None:
            kind = self.epilogue.dtype or (fp32 if self.order.reduce else of_sums(dtype_of(a, "a")))
            d = new_like(a, shape, as_dtype(kind))
        check_kind("d", d)
        if self.order.reduce:
            self._check(schedule, (a, b, d), d, given, {})
            d[...] = 0
            return run(a, b, d)
        if dtype_of(d, "d").integer:
            rule = "the parts are added in fp32, which is not rounded to integers"
            raise InputError("d", dtype_of(d, "d").name, rule, "pass a d of a floating type")
        if tuple(d.shape) != shape:
            raise InputError("d.shape", tuple(d.shape), f"is (m, n), {shape}", "pass such a tensor")
        workspace = self._workspace(schedule, a, shape)
        parts = workspace if a.ndim == 2 else workspace.reshape(a.shape[0], self.order.parts, *shape[1:])
        more = self._further(a, d, given)
        inputs = [given[name] for name in loads]
        self._check(schedule, (*inputs, workspace), d, given, more, parts)
        run(*inputs, workspace)
        finish = self.finish(shape)
        return finish(parts, d=d, **more) if self.more else finish(parts, d)

    def finish(self, shape: tuple[int, ...]) -> Any:
        """What adds the parts of an output of *shape*."""
        return _second(self.epilogue, None if self.more else _adding_tile(shape))

    def _further(self, a: Any, d: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Operands, and further outputs: those of d's shape are made here if they are not given, of a type as d's."""
        found = {name: given[name] for name in (*self.epilogue.operands, *self.epilogue.outputs) if name in given}
        for name, kind in self.epilogue.outputs.items():
            if not kind.reduced and name not in found:
                found[name] = new_like(a, tuple(d.shape), kind.type_of(of_sums(dtype_of(a, "a"))))
        return found

    def _check(
        self,
        schedule: Any,
        tensors: tuple[Any, ...],
        d: Any,
        given: Mapping[str, Any],
        more: Mapping[str, Any],
        parts: Any = None,
    ) -> None:
        """Raises `InputError` for what one of the kernels would refuse, before the first runs or d is zeroed: *tensors* of the
        first, *parts* and d of the second."""
        found = signature((*tensors, d, *more.values()), None)
        seen = None if found is None else (*found, *more)
        if seen is None or seen not in self._bound:
            schedule.plan(schedule.bind(*tensors).dtypes)
            if not self.order.reduce:
                whole = {name: value for name, value in more.items() if name not in self.epilogue.reductions}
                finish = self.finish(tuple(d.shape))
                finish.plan(finish.bind(parts, d=d, **whole).dtypes)
            if seen is not None:
                self._bound.add(seen)
        written = tuple(name for name in ("d", *self.epilogue.outputs) if name in given)
        check_apart({name: value for name, value in given.items() if hasattr(value, "shape")}, written)

    def _workspace(self, schedule: Any, a: Any, shape: tuple[int, ...]) -> Any:
        """A new matrix for each part that a tile of an output of *shape* may have; of a batch, the first matrix' parts first.
        Those that only some tiles have are set to zero."""
        (m, n), k = schedule.d.tile[-2:], schedule.mma.shape[2]
        check_cluster(schedule.cluster)
        extents = ((shape[-2], m * schedule.cluster.get("m", 1)), (shape[-1], n * schedule.cluster.get("n", 1)))
        tiles = math.prod(ceil_div(extent, tile) for extent, tile in extents)
        least, most = self.order.pieces(tiles, ceil_div(a.shape[-1], k))
        made = new_like(a, (math.prod(shape[:-2]) * most, *shape[-2:]), fp32)
        if least < most:
            set_to_zero(made, least)
        return made


def _adding_tile(shape: tuple[int, ...]) -> tuple[int, int]:
    """The tile of `AddParts` for an output of *shape*: 2048 elements, or fewer so that most multiprocessors have a tile.

    480 x 32 x 38640 in 16 parts takes 23.6 us with tiles of 8 x 256, 22.0 with 8 x 32; 728 x 72 x 12840 in 10 parts takes
    18.0, and 17.2 with 8 x 64.
    """
    columns = 1 << min(8, max(5, round(math.log2(max(1, shape[-1])))))
    elements = 1 << min(11, max(8, ceil_div(math.prod(shape), MANY).bit_length()))
    return elements // columns, columns


def _second(epilogue: Epilogue, tile: tuple[int, int] | None) -> Any:
    """The schedule that adds the parts. All GEMMs with an equal *epilogue* share one, which is proved and compiled once.
    tile: of `AddParts`; None: the epilogue has operands or further outputs."""
    try:
        return _made(epilogue, tile)
    except TypeError:  # a callable that cannot be hashed
        return _made.__wrapped__(epilogue, tile)


@functools.lru_cache(maxsize=32)
def _made(epilogue: Epilogue, tile: tuple[int, int] | None) -> Any:
    if tile is None:
        return FinishParts(epilogue)
    return AddParts(tile, dtype=epilogue.dtype, epilogue=epilogue.function, together=4)
