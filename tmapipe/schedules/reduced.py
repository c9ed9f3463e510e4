"""Reductions: what a GEMM with outputs that are sums over rows or columns does around its kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tmapipe.bind.bound import Bound
from tmapipe.bind.memory import check_apart, check_kind, check_memory
from tmapipe.dtypes import dtype_of, fp32
from tmapipe.epilogue.reductions import Reduction
from tmapipe.errors import InputError, ScopeError
from tmapipe.schedule import Schedule
from tmapipe.schedules.addparts import AddParts

__all__ = ["Reductions"]


class Reductions:
    """The reductions among a GEMM's outputs. Its kernel stores partial sums to workspaces, which `AddParts` adds up.

    kinds: of the reductions, by name; rows: of an output tile.
    """

    def __init__(self, kinds: Mapping[str, Reduction], rows: int):
        self.kinds, self.rows = dict(kinds), rows

    @functools.cached_property
    def add_tiles(self) -> AddParts:
        return AddParts((1, 256), together=4)

    @functools.cached_property
    def add_warps(self) -> AddParts:
        return AddParts(together=4)

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
            sums = self._add(kind, results[name], m if kind.along == "m" else n)
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

    def _add(self, kind: Reduction, workspace: Any, extent: int) -> Any:
        """The sums over the parts of *workspace*, [parts, extent] or [l, parts, extent], perhaps padded."""
        parts = workspace if workspace.ndim == 3 else workspace[None]
        a_tile = kind.first(self.rows)
        if a_tile > 1:  # the parts of a tile first: many short sums, rather than few long ones
            batch, count, n = parts.shape
            tiles = parts.reshape(batch * (count // a_tile), a_tile, n)
            parts = self.add_warps(tiles.swapaxes(0, 1)).reshape(batch, count // a_tile, n)
        sums = self.add_tiles(parts.swapaxes(0, 1))[:, :extent]
        return sums if workspace.ndim == 3 else sums[0]

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
            shape = (*batch, m if self.kinds[name].along == "m" else n)
            if tuple(tensor.shape) != tuple(shape):
                rule = f"has one element for each of {self.kinds[name].along}, and of the batch: {tuple(shape)}"
                raise InputError(f"{name}.shape", tuple(tensor.shape), rule, "pass such a tensor, or leave it out")
            if dtype_of(tensor, name) != fp32:
                raise InputError(name, dtype_of(tensor, name).name, "sums are in fp32", "pass a tensor of fp32")
            if type(tensor) is not type(a) or getattr(tensor, "device", None) != getattr(a, "device", None):
                raise InputError(name, type(tensor).__name__, "is of the kind and device of a", "convert or move it")
        given = {**others, **wanted} | ({} if out is None else {"d": out})
        check_apart({n: t for n, t in given.items() if hasattr(t, "shape")}, tuple(wanted))
