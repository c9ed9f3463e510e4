"""Fused: what schedules whose output tiles end with an `Epilogue` share; and what adds up parts."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np

from tmapipe import math as functions
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import Dim, DType, fp32, int32
from tmapipe.bind import Bound
from tmapipe.epilogue import ADD, Epilogue, OperandSum, Reductions, SumsOfRows
from tmapipe.epilogue.operands import Operands, Output, StoreForm, check_room, columns_of, dims_of
from tmapipe.errors import NOTHING, InputError, check_kinds, is_count, require
from tmapipe.isa import applied
from tmapipe.isa.fragment import Fragment
from tmapipe.kernel import KernelContext
from tmapipe.parts import ReductionScratch, RegisterTile, Wgmma
from tmapipe.plan.declarations import PARTS
from tmapipe.plan.model import WARP, Plan
from tmapipe.protocol.ring import Slot
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage, TmaStoreStage
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.persistent import Grouped

# ---- required --------------------------------------------------------------------------------------------------------
#
# Parts that a ready-made schedule cannot do without.


def check_stages(schedule: Schedule, *names: str) -> None:
    """Raises `InputError` unless *schedule* loads or stores something under each of *names*."""
    known = {**schedule.declared.loads, **schedule.declared.stores}
    for name in names:
        kind = type(schedule).__name__
        rule = f"is a stage, which every {kind} has"
        require(name in known, f"{kind}.{name}", getattr(schedule, name, None), rule, f"make another {kind}")


class Adds(Schedule):
    """Base of schedules that add up x along s: one warp loads, four add."""

    ring: BarrierRing
    x: TmaLoadStage
    load, add = Role(warps=1), Role(warps=4)

    def tile_slots(self, k: KernelContext, tile: Tile) -> Any:
        """One slot for each tile along s."""
        return k.steps("x", "s")

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        for some in range(self.tile_slots(k, tile)):
            with k.ring.produce() as slot:
                slot.x.load(tile, s=some)


# ---- addparts: ``d = parts[0] + parts[1] + ...``, in this order: the end of a split-K GEMM -----------------------------


class AddParts(Adds):
    """``d[m, n] = epilogue(sum over s of x[s, m, n])``, with a batch dimension before each if the tensors have one.

    The sums are in the type of x, in the order of s, and are converted once to the type of d. One warp loads, four add,
    through slots that threads read. Raises `InputError` for *tile*, *together* or *epilogue* that are not as below.

    Args:
        tile: (m, n) elements at once.
        stages: Slots in flight; None: as many as fit.
        dtype: Of d; None: the tensor's, or if a call makes it that of x.
        epilogue: A function of the sums, element by element; None: the sums themselves.
        together: Parts in a slot, four of which take less time than one each. Those beyond the last one are zeros.
    """

    def __init__(
        self,
        tile: tuple[int, int] = (8, 256),
        stages: int | None = None,
        *,
        dtype: DType | str | None = None,
        epilogue: Callable[[Any], Any] | None = None,
        together: int = 1,
    ):
        require(is_count(together), "AddParts(together)", together, "is a number of parts in a slot", "use 4")
        if not isinstance(tile, tuple) or len(tile) != 2:
            raise InputError("AddParts(tile)", tile, "is (rows, columns)", "e.g. (8, 256)")
        if epilogue is not None and not callable(epilogue):
            raise InputError("AddParts(epilogue)", epilogue, "is a function of the sums, or None", "pass a function")
        self.epilogue = epilogue
        self.ring = BarrierRing(stages, producer=self.load, consumer=self.add)
        self.rows, self.together = tile[0], together
        self.x = TmaLoadStage("l s m n", tile=(together, *tile), ring=self.ring)
        self.d = TmaStoreStage("l m n", tile=tile, role=self.add, stages=2, dtype=dtype)

    def plan(self, dtypes: Mapping[str, DType | str] | None = None, *, arch: str | None = None) -> Plan:
        """The plan as `Schedule.plan` makes it. Raises `InputError` for types that cannot be added, or whose sums d cannot
        hold."""
        check_stages(self, "x", "d")
        require(is_count(self.together), "together", self.together, "is a number of parts", "e.g. 1")
        made = super().plan(dtypes, arch=arch)
        x, d = made.buffer("x").dtype, made.buffer("d").dtype
        if x.name.startswith("fp8"):
            rule = "is a type that threads add, which fp8 is not"
            raise InputError("x", x.name, rule, "add parts of bf16, fp16 or fp32")
        if d.integer and not x.integer:
            raise InputError("d", d.name, f"holds sums of {x}, which are not rounded to integers", 'use dtype="fp32"')
        if x == int32 and d.name.startswith("fp8"):
            fix = 'use dtype="bf16", or add parts of fp32'
            raise InputError("d", d.name, f"is a type that {x} is converted to", fix)
        return made

    def empty_value(self, bound: Bound) -> Any:
        """The epilogue of empty sums."""
        return 0.0 if self.epilogue is None else applied(self.epilogue, (np.zeros(bound.shapes["d"], np.float32),), {})

    @Adds.add.jit
    def total(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            total = self._sum(slot)
        for _ in range(k.steps("x", "s") - 1):
            with k.ring.consume() as slot:
                total = self._sum(slot, total)
        k.d.store(tile, total, self.epilogue)

    def _sum(self, slot: Slot, *before: Any) -> Any:
        """*before* plus the parts in a slot, one after another."""
        parts = (slot.x.read(tile=self.d.tile, at=(i * self.rows, 0)) for i in range(self.together))
        return functools.reduce(operator.add, (*before, *parts))


# ---- addrows ---------------------------------------------------------------------------------------------------------
#
# AddRows: ``y[n] = x[0, n] + x[1, n] + ...`` of a matrix x of few rows, in an order that depends on the tile alone.


class AddRows(Adds):
    """``y[n] = sum over s of x[s, n]`` in fp32, with a batch dimension before each if the tensors have one.

    Each CTA has some columns of all rows. One warp loads. Four warps read whole rows of a slot, so that a thread adds up
    its columns by itself; then the four warps add their sums.

    Args:
        tile: (rows, columns) of a slot; columns are a multiple of 32.
        stages: Slots in flight. 0: one slot, which has all rows.
        outputs: Names of tensors [n], in the place of y, one for each matrix of a batch.
        dtype: The type of the sums when they are stored.

    Raises:
        InputError: For any other tile.
    """

    def __init__(
        self, tile: tuple[int, int] = (64, 32), stages: int = 8, outputs: tuple[str, ...] = (), dtype: DType = fp32
    ):
        shape = isinstance(tile, tuple) and len(tile) == 2 and all(map(is_count, tile))
        if not shape or tile[1] % 32:
            raise InputError("AddRows(tile)", tile, "is (rows, columns), of a multiple of 32 columns", "e.g. (64, 32)")
        self.outputs, self.over, self.whole, self.width = outputs, "l n", not stages, math.gcd(8, tile[1] // WARP)
        self.relations = (Dim("l", size=len(outputs)),) if outputs else ()
        if self.whole:
            self.relations += (Dim("s", at_most=tile[0]),)
        self.tiles = GridTiles(Grouped(1))
        self.ring = BarrierRing(stages or 1, producer=self.load, consumer=self.add)
        self.x = TmaLoadStage("l s n", tile=tile, ring=self.ring, dtype=fp32)
        self.scratch = ReductionScratch(self.add, columns=tile[1])
        how: dict[str, Any] = {"tile": tile[1:], "role": self.add, "dtype": dtype, "vector": 4}
        for name in outputs or ("y",):
            setattr(self, name, ThreadStoreStage("n" if outputs else "l n", **how))

    def empty_value(self, bound: Bound) -> Any:
        """The sum of nothing."""
        return 0.0

    def tile_slots(self, k: KernelContext, tile: Tile) -> Any:
        """As in `Adds`, or the one slot that has all."""
        return 1 if self.whole else super().tile_slots(k, tile)

    @Adds.add.jit
    def total(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            total = slot.x.read(width=self.width)
        for _ in range(self.tile_slots(k, tile) - 1):
            with k.ring.consume() as slot:
                total = total + slot.x.read(width=self.width)
        sums = functions.column_sum(total)
        if not self.outputs:
            k.y.store(tile, sums)
        for i, name in enumerate(self.outputs):
            if tile.l == i:
                getattr(k, name).store(tile, sums)


HEIGHTS, MANY = (16, 64, 256), 264  # rows that are one slot; tiles of 32 columns up to which they are not wider
SHARE = 3  # CTAs of a multiprocessor: those that wait for the kernel before lie on few, and load one after another


@functools.cache
def _add_rows(tile: tuple[int, int], stages: int, outputs: tuple[str, ...], dtype: DType) -> AddRows:
    made = AddRows(tile, stages, outputs, dtype)
    made.tiles = GridTiles(Grouped(1), ctas=SHARE)
    return made


def adding_rows(shape: tuple[int, ...], *outputs: str, dtype: DType = fp32) -> AddRows:
    """What adds up the rows of a tensor of *shape*, [rows, columns] or [l, rows, columns]: in one slot, if there are few, in
    tiles of so many columns that most multiprocessors have one. outputs, dtype: as of `AddRows`."""
    height = next((rows for rows in HEIGHTS if shape[-2] <= rows), 0)
    wide = math.prod(shape[:-2]) * shape[-1] > 32 * MANY and height < HEIGHTS[-1]
    tile = (height or 16, 128) if wide else (height or 64, 32)
    return _add_rows(tile, 0 if height else 8, outputs, dtype)


# ---- fused -----------------------------------------------------------------------------------------------------------
#
# Fused: what schedules whose output tiles end with an `Epilogue` have in common.

FETCH = Role(warps=1)  # loads the epilogue's operands, in schedules that have some

# What the stages of a `Gemm` follow from, of an order of tiles.
_SHAPING = ("in_parts", "bounded", "table", "input_dims", "output_dims", "without_steps")


class Fused(Schedule):
    """Base of such schedules. The role that computes tiles is called `math`."""

    epilogue: Epilogue
    math: Role
    shared: dict[str, str | None]  # as of `Gemm`
    loaded: tuple[str, ...]  # stages of operands, first that along m
    sources: tuple[Any, ...]
    optional_roles = MappingProxyType({"fetch": FETCH, "add": ADD})
    summed: tuple[str, Mapping[str, OperandSum]] = ("", NOTHING)  #: an operand, and sums of its elements by name

    def declare_epilogue(
        self, stored: Epilogue, sources: tuple[Wgmma | RegisterTile, ...], batch: str = "l ", first: Any = None
    ) -> tuple[TmaStoreStage, ...]:
        """Declares what loads the operands of an epilogue and what stores its outputs. Returns the stores of whole outputs.

        Args:
            stored: The epilogue.
            sources: Whose values it takes.
            batch: Names of d's dimensions before m, each with a space.
            first: What declares the store of d, if not an `Output`.
        """
        self.operands: Operands | None = None
        n = sources[0].shape[1]
        if stored.operands:
            self._check_free("operands", stored.operands)
            self.fetch = FETCH
            self.operand_ring = BarrierRing(stored.ahead, producer=FETCH, consumer=self.math)
            of: dict[str, Any] = {"ring": self.operand_ring, "matmul": sources[0], "accumulators": len(sources)}
            of |= {"batch": batch, "columns": stored.columns}
            self.operands = Operands(stored.operands, stored.function, **of)
            for name, stage in self.operands.stages.items():
                setattr(self, name, stage)
        self._check_free("outputs", stored.outputs)
        self.outputs = ("d", *stored.outputs)
        self.reductions = Reductions(stored.reductions, adding_rows)
        if self.reductions.kinds and self.tiles.bounded:
            name, kind = next(iter(self.reductions.kinds.items()))
            rule = f"is a sum of whole rows or columns, which do not end where tiles of {type(self.tiles).__name__} do"
            raise InputError(f"outputs[{name!r}]", kind, rule, "store an Output, and add that up")
        dims = dims_of(sources[0])
        most = n if stored.columns and not stored.outputs else columns_of(n, dims[0] == "n")
        width = self.operands.width if self.operands else min(stored.columns or most, most)
        same = stored.operands or stored.outputs or stored.columns
        form = StoreForm(batch, self.math, dims, stored.stages, width if same else None, stored.l2_hint)
        kinds: dict[str, Any] = {"d": first or Output(stored.dtype), **stored.outputs}
        stores = {name: kind.stage(sources[0], width, form) for name, kind in kinds.items()}
        for name, store in stores.items():
            setattr(self, name, store)
        return tuple(store for name, store in stores.items() if name not in self.reductions.kinds)

    def declare_sums(self, operand: str, sums: Mapping[str, OperandSum], batch: str) -> None:
        """Declares what adds up *sums* of an operand, a or b, and stores them after the other outputs."""
        if not sums:
            return
        self._check_free("sums", sums)
        self.summed, self.add, stage = (operand, sums), ADD, getattr(self, operand)
        self._check_sums(f"Operand(sums) of {operand}", sums, stage.dims[-2])
        self.summed_rows = math.gcd(stage.tile[0], 32)
        for name, kind in sums.items():
            setattr(self, name, kind.stage(stage, self.summed_rows, batch))
        parts = {name: SumsOfRows() for name, kind in sums.items() if kind.over != "k"}
        if parts:
            self.add_scratch = ReductionScratch(ADD, columns=stage.tile[-1])
            self.relations = (*self.relations, Dim(f"{stage.dims[-2]}_tiles", of=stage.dims[-2], per=stage.tile[0]))
        self.reductions = Reductions({**self.reductions.kinds, **parts}, adding_rows)

    def _check_sums(self, where: str, sums: Mapping[str, OperandSum], side: str) -> None:
        """Raises `InputError` for sums that two warps cannot add up beside the matmul."""
        over = {kind.over for kind in sums.values()}
        rule = f'are all over "k", or all over "{side}"'
        require(over in ({"k"}, {side}), where, dict(sums), rule, "take another kernel for others")
        if self.tiles.in_parts or self.tiles.bounded:
            rule = f"are of whole tiles, which {type(self.tiles).__name__} does not have"
            raise InputError(where, self.tiles, rule, "use PersistentTiles() or the like")
        rule = "are of a where there are no tiles above the diagonal, and so not all of the first along m"
        require(not self.tiles.lower or side == "m", where, self.tiles, rule, "pass them to a")
        if self.cluster["n" if side == "m" else "m"] > 1 or not all(self.shared.values()) or self.math.teams > 1:
            rule = f"are of one team, whose CTAs share no tiles of it: in a cluster along {side} alone"
            raise InputError(where, self.cluster, rule, "use such a cluster and Cooperative()")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "epilogue" and "outputs" in vars(self):
            value = Epilogue.of(value)
            other = attrs.evolve(value, function=None) != attrs.evolve(self.epilogue, function=None)
            if other or value.operands or self.tiles.in_parts:
                rule = "differs from the schedule's in its function alone, and has no operands: stages follow from it"
                fix = "make another schedule, with epilogue="
                raise InputError(f"{type(self).__name__}.epilogue", value, rule, fix)
        made = "sources" in vars(self)  # as of a `Gemm`
        if made and name == "mainloop":
            rule = "is fixed once a schedule is made, since its roles follow from it"
            raise InputError(f"{type(self).__name__}.mainloop", value, rule, "make another schedule, with mainloop=")
        if made and name == "tiles":
            check_kinds("tiles", value, TileOrder)
            value = value.of_rows(self.sources[0].shape[0])
            parts = self.tiles.in_parts and value != self.tiles
            if parts or any(getattr(value, each) != getattr(self.tiles, each) for each in _SHAPING):
                rule = f"takes the place of {type(self.tiles).__name__}, for which the stages were declared"
                raise InputError(f"{type(self).__name__}.tiles", value, rule, "make another schedule, with tiles=")
        had = getattr(self, name, None) if "outputs" in vars(self) else None
        if isinstance(had, PARTS) and not isinstance(value, type(had)):
            rule = f"takes the place of a {type(had).__name__}, which the others need"
            fix = "assign another one, or make another schedule"
            raise InputError(f"{type(self).__name__}.{name}", value, rule, fix)
        super().__setattr__(name, value)

    def _check_free(self, argument: str, names: Iterable[str]) -> None:
        for name in names:
            if hasattr(self, name) or name in ("d", "out"):
                raise InputError(f"{argument}[{name!r}]", name, "is a name that the schedule has already", "rename it")

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """As `Schedule.__call__`. Outputs that are reductions are vectors in fp32: [m] or [n], of a batch [l, m] or [l, n]."""
        if not self.reductions.kinds:
            return super().__call__(*tensors, out=out, **named)
        return self.reductions.call(self, super().__call__, tensors, out, named)

    @property
    def one_kernel(self) -> bool:  # type: ignore[override]
        """Not if a second one adds up parts of k, or of reductions."""
        return not (self.reductions.kinds or self.tiles.in_parts)

    def shape_of_output(self, given: Mapping[str, Any]) -> tuple[int, ...]:
        """Of d, by the inputs *given* by name. Raises `InputError` for what is no tensor."""
        raise NotImplementedError

    @property
    def applied(self) -> Epilogue:
        """What the sums of a tile end with in this kernel."""
        return self.epilogue

    def check_plan(self, plan: Plan) -> None:
        check_room(plan, self.applied)

    def whole_value(self, bound: Bound, sources: int) -> Any:
        """What the epilogue makes of *sources* sums of nothing."""
        if self.epilogue.function is None:
            return 0.0
        zero = np.zeros(bound.shapes["d"], np.float32)
        values = self.epilogue.values((zero,) * sources, self.operands.whole(bound) if self.operands else {})
        return values if not self.reductions.kinds else self.reductions.whole(values, bound)

    def ring_slots(self, k: KernelContext, ring: str, tile: Tile) -> Any:
        """Of the operands' ring, one slot a piece or a tile."""
        if self.operands is not None and ring == self.declared.name_of(self.operand_ring):
            return len(self.operands.slots)
        return self.tile_slots(k, tile)

    def store_all(self, k: KernelContext, tile: Tile, values: tuple[Any, ...], mirror: Any = False) -> None:
        """Stores what the epilogue makes of *values* to all outputs. mirror: as of `BoundStore.store`."""
        also = {name: getattr(k, name) for name in self.outputs[1:]}
        operands = self.operands.reader(k, tile) if self.operands else None
        k.d.store(tile, values, self.applied.function, also=also, operands=operands, mirror=mirror)

    @ADD.jit
    def add_up(self, k: KernelContext, tile: Tile) -> None:
        operand, sums = self.summed
        across = "n" if operand == "a" else "m"
        if any(kind.over != "k" for kind in sums.values()):
            self._add_over_rows(k, tile, across)
        elif tile[across] == 0:
            self._add_slots(k, tile)
        else:
            for _ in range(self.tile_slots(k, tile)):
                self._pass_on(k)

    def _add_over_rows(self, k: KernelContext, tile: Tile, across: str) -> None:
        tiles = 1 if self.tiles.lower else k.steps(self.loaded[across == "n"], across)
        for step in range(self.tile_slots(k, tile)):
            if step % tiles == tile[across]:  # tiles side by side take k-tiles in turn
                self._store_sums(k, tile, step)
            else:
                self._pass_on(k)

    def _pass_on(self, k: KernelContext) -> None:
        with k.ring.consume():
            pass

    def _add_slots(self, k: KernelContext, tile: Tile) -> None:
        operand, sums = self.summed
        steps = self.tile_slots(k, tile)
        totals = self._row_sums(k, None)
        for _ in range(steps - 1):
            totals = self._row_sums(k, totals)
        side, blocks = ("m", "n")[operand == "b"], self._blocks()
        for i, (block, name) in enumerate(itertools.product(range(len(blocks)), sums)):
            at = tile.also(**{side: tile[side] * len(blocks) + block})
            getattr(k, name).store(at, functions.row_sum(totals[i]))

    def _blocks(self) -> list[dict[str, Any]]:
        """The parts of a tile that are read at once, as `read` takes them."""
        rows, width = getattr(self, self.summed[0]).tile
        return [{"tile": (self.summed_rows, width), "at": (first, 0)} for first in range(0, rows, self.summed_rows)]

    def _row_sums(self, k: KernelContext, before: tuple[Fragment, ...] | None) -> tuple[Fragment, ...]:
        """Parts of the sums over k, by block of rows and name, up to the next slot."""
        operand, sums = self.summed
        found: list[Any] = []
        with k.ring.consume() as slot:
            for block in self._blocks():
                values = getattr(slot, operand).read(**block)
                for kind in sums.values():
                    parts = functions.row_sum_parts(kind.of(values))
                    found.append(parts if before is None else before[len(found)] + parts)
        return tuple(found)

    def _store_sums(self, k: KernelContext, tile: Tile, step: Any) -> None:
        """Stores the sums over the rows of the next slot, which is k-tile number *step*."""
        operand, sums = self.summed
        totals: dict[str, Any] = {}
        with k.ring.consume() as slot:
            for block in self._blocks():
                values = getattr(slot, operand).read(**block, width=4)
                for name, kind in sums.items():
                    totals[name] = kind.of(values) if name not in totals else totals[name] + kind.of(values)
        for name, kind in sums.items():
            at = tile.also(**{f"{kind.over}_tiles": tile[kind.over], "k_padded": step})
            getattr(k, name).store(at, functions.column_sum(totals[name]))

    @FETCH.jit
    def fetch_operands(self, k: KernelContext, tile: Tile) -> None:
        assert self.operands is not None
        self.operands.load(k, tile)
