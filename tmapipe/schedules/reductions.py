"""What a GEMM with outputs that are sums of rows or columns does around its kernel; and AddRows, which adds up their parts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tmapipe import math as functions
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import dtype_of, fp32
from tmapipe.bind import Bound, check_apart, check_kind, check_memory
from tmapipe.epilogue import Reduction
from tmapipe.errors import InputError, ScopeError, is_count
from tmapipe.kernel import KernelContext
from tmapipe.parts.stages import ReductionScratch
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage

# ---- addrows ---------------------------------------------------------------------------------------------------------
#
# AddRows: ``y[n] = x[0, n] + x[1, n] + ...`` of a matrix x of few rows, in an order that depends on the tile alone.


class AddRows(Schedule):
    """``y[n] = sum over s of x[s, n]`` in fp32, with a batch dimension before each if the tensors have one.

    Each CTA has some columns of all rows. One warp loads, and threads of four add up the rows that they have of each slot,
    then those of each other.

    Args:
        tile: (rows, columns) of a slot; columns are a multiple of 32.
        stages: Slots in flight.

    Raises:
        InputError: For any other tile.
    """

    load, add = Role(warps=1), Role(warps=4)

    def __init__(self, tile: tuple[int, int] = (64, 32), stages: int = 8):
        shape = isinstance(tile, tuple) and len(tile) == 2 and all(map(is_count, tile))
        if not shape or tile[1] % 32:
            raise InputError("AddRows(tile)", tile, "is (rows, columns), of a multiple of 32 columns", "e.g. (64, 32)")
        self.ring = BarrierRing(stages, producer=self.load, consumer=self.add)
        self.x = TmaLoadStage("l s n", tile=tile, ring=self.ring, dtype=fp32)
        self.scratch = ReductionScratch(self.add, columns=tile[1])
        self.y = ThreadStoreStage("l n", tile=tile[1:], role=self.add, dtype=fp32, vector=fp32.bytes)

    def empty_value(self, bound: Bound) -> Any:
        """The sum of nothing."""
        return 0.0

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        for some in range(k.steps("x", "s")):
            with k.ring.produce() as slot:
                slot.x.load(tile, s=some)

    @add.jit
    def total(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            total = slot.x.read()
        for _ in range(k.steps("x", "s") - 1):
            with k.ring.consume() as slot:
                total = total + slot.x.read()
        k.y.store(tile, functions.column_sum(total))


FEW, MANY = 16, 264  # rows up to which slots have no more; tiles of 32 columns up to which they are not wider


@functools.cache
def _made(tile: tuple[int, int]) -> AddRows:
    return AddRows(tile)


def _adding(shape: tuple[int, ...]) -> AddRows:
    """What adds up the rows of a tensor of *shape*, [rows, columns] or [l, rows, columns]: in tiles of so many columns that
    most multiprocessors have one."""
    columns = 32 if math.prod(shape[:-2]) * shape[-1] <= 32 * MANY else 128
    return _made((FEW if shape[-2] <= FEW else 64, columns))


# ---- reduced ---------------------------------------------------------------------------------------------------------
#
# Reductions: what a GEMM with outputs that are sums over rows or columns does around its kernel.


class Reductions:
    """The reductions among a GEMM's outputs, by name. Its kernel stores parts to workspaces, which `AddRows` adds up."""

    def __init__(self, kinds: Mapping[str, Reduction]):
        self.kinds = dict(kinds)

    def call(self, schedule: Schedule, run: Callable[..., Any], tensors: tuple[Any, ...], out: Any, named: Any) -> Any:
        """Calls *run*, which makes the workspaces, then adds up the parts. Returns all outputs."""
        loads, stores = tuple(schedule.declared.loads), tuple(schedule.declared.stores)
        tensors, named = self._split((*loads, *stores), tensors, named)
        wanted = {name: named.pop(name, None) for name in self.kinds}
        wanted = {name: tensor for name, tensor in wanted.items() if tensor is not None}
        if wanted:
            self._check(schedule, wanted, {**dict(zip((*loads, *stores), tensors, strict=False)), **named}, out)
        results = dict(zip(stores, run(*tensors, out=out, **named), strict=True))
        *_, m, n = results["d"].shape
        for name, kind in self.kinds.items():
            parts = results[name]
            extent = {"m": m, "n": n}.get(kind.along, parts.shape[-1])
            sums = _adding((*parts.shape[:-1], extent))(parts[..., :extent])
            if name in wanted:
                wanted[name][...] = sums
            results[name] = wanted.get(name, sums)
        return tuple(results.values())

    def whole(self, values: Any, bound: Bound) -> dict[str, Any]:
        """*values*, which an epilogue gives for a whole output, with workspaces for those that are reduced."""
        if not isinstance(values, dict):
            fix = f"Return a dictionary of d, {', '.join(self.kinds)}."
            raise ScopeError(f"an epilogue returned a {type(values).__name__}, not one value for each output. {fix}")
        found = dict(values)
        for name, kind in self.kinds.items():
            sums = kind.whole(values[name], bound.shapes["d"])
            found[name] = np.zeros(bound.shapes[name], np.float32)
            found[name][:, :1, : sums.shape[-1]] = sums[:, None]
        return found

    def _split(
        self, names: tuple[str, ...], tensors: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The tensors by position up to the first reduction, and all others by name."""
        first = next((i for i, name in enumerate(names[: len(tensors)]) if name in self.kinds), None)
        if first is None or len(tensors) > len(names):
            return tensors, dict(named)
        moved = dict(zip(names[first:], tensors[first:], strict=False))
        for name in moved:
            if name in named:
                raise InputError(name, type(named[name]).__name__, "is given twice", "pass it once")
        return tensors[:first], {**named, **moved}

    def _check(self, schedule: Any, wanted: dict[str, Any], others: dict[str, Any], out: Any) -> None:
        """Raises `InputError` for tensors that the sums cannot be written to."""
        *batch, m, n = schedule.shape_of_output(others)
        a = next(iter(others.values()))
        for name, tensor in wanted.items():
            check_kind(name, tensor)
            check_memory(name, tensor, output=True)
            shape = (*batch, {"m": m, "n": n, "k": a.shape[-1]}[self.kinds[name].along])
            if tuple(tensor.shape) != tuple(shape):
                rule = f"has one element for each of {self.kinds[name].along}, and of the batch: {tuple(shape)}"
                raise InputError(f"{name}.shape", tuple(tensor.shape), rule, "pass such a tensor, or leave it out")
            if dtype_of(tensor, name) != fp32:
                raise InputError(name, dtype_of(tensor, name).name, "sums are in fp32", "pass a tensor of fp32")
            if type(tensor) is not type(a) or getattr(tensor, "device", None) != getattr(a, "device", None):
                raise InputError(name, type(tensor).__name__, "is of the kind and device of a", "convert or move it")
        given = {**others, **wanted} | ({} if out is None else {"d": out})
        check_apart({n: t for n, t in given.items() if hasattr(t, "shape")}, tuple(wanted))
