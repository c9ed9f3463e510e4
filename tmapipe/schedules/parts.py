"""PartsOfK: what a GEMM whose k is divided among CTAs does around its kernel.

By default the kernel stores part s of each output tile, partial sums in fp32, to matrix s of a workspace [s, m, n]. A second
kernel adds these in a fixed order and applies the epilogue, so the bits are the same in every run. It starts while the first
one ends, and waits for it with griddepcontrol.wait. With ``reduce="add"`` the TMA engine adds all parts to the output as they
arrive: one kernel, no workspace, and last bits that differ from run to run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tmapipe.bind.memory import check_apart, check_kind
from tmapipe.bind.tensors import match, new_like, of_sums, signature
from tmapipe.dtypes import DType, as_dtype, dtype_of, fp32
from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.epilogue.outputs import StoreForm
from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.matmul import Wgmma
from tmapipe.multicast import check_cluster
from tmapipe.schedules.addparts import AddParts
from tmapipe.schedules.finishparts import FinishParts
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.tiles.splitk import SplitKTiles

__all__ = ["PartsOfK"]

MANY = 128  # tiles of an output that keep a GPU busy


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class AddedParts(TmaStoreStage):
    """A store that adds all tiles of a matmul's accumulators along "s" to one tile: the tensor has no such dimension.

    Args:
        source: The matmul.
        extent: Of "s".
        options: As of `TmaStoreStage`.
    """

    extent: int = attrs.field(default=1, init=False)

    def __init__(self, source: Wgmma, extent: int, **options: Any):
        super().__init__("s m n", source=source, reduce="add", **options)
        object.__setattr__(self, "extent", extent)

    @property
    def folded(self) -> Mapping[str, int]:
        return {"s": self.extent}


class PartsOfK:
    """The parts that *order* makes of each output tile; when they have been added, *epilogue* is applied."""

    def __init__(self, order: Any, epilogue: Epilogue, products: int):
        if products > 1:
            rule = f"is for one product; the parts of {products} are not added"
            raise InputError("tiles", order, rule, "use an order of whole tiles")
        if order.reduce and not epilogue.plain:
            rule = "is not applied to parts of k that are added as they come: no part has the whole sum"
            raise InputError("epilogue", epilogue.function or epilogue, rule, "leave out reduce=")
        if epilogue.l2_hint is not None:
            rule = "is of stores of whole tiles, not of parts of k"
            raise InputError("Epilogue(l2_hint)", epilogue.l2_hint, rule, "leave it out")
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
        """Calls *run*, the kernel of *schedule*, with a, b and a workspace, then adds the parts. Returns the outputs."""
        others = [*self.epilogue.operands, *self.epilogue.outputs]
        given = match(["a", "b", "d", *others], tensors, named, out, "d")
        for name in ("a", "b"):
            check_kind(name, given.get(name))
            batched = self.batched and given["a"].ndim == given[name].ndim == 3
            if given[name].ndim != 2 and not batched:
                rule = "is a matrix, where parts of k are added" + " to d, or with operands" * (not self.batched)
                raise InputError(name, tuple(given[name].shape), rule, "pass one matrix")
        a, b, d = given["a"], given["b"], given.get("d")
        shape = (*a.shape[:-1], b.shape[-2])
        if d is None:
            d = new_like(a, shape, self._made_type(a))
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
        self._check(schedule, (a, b, workspace), d, given, more, parts)
        run(a, b, workspace)
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

    def _made_type(self, a: Any) -> DType:
        """Of an output that the call makes."""
        return as_dtype(self.epilogue.dtype or (fp32 if self.order.reduce else of_sums(dtype_of(a, "a"))))

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
            made[least:] = 0
        return made


def _adding_tile(shape: tuple[int, ...]) -> tuple[int, int]:
    """Of `AddParts`, for an output of *shape*: 2048 elements, or fewer so that most multiprocessors have some. 480 x 32 x
    38640 in 16 parts takes 23.6 us with tiles of 8 x 256, 22.0 with 8 x 32; 728 x 72 x 12840 in 10 parts 18.0, and 17.2
    with 8 x 64."""
    columns = 1 << min(8, max(5, round(math.log2(max(1, shape[-1])))))
    elements = 1 << min(11, max(8, ceil_div(math.prod(shape), MANY).bit_length()))
    return elements // columns, columns


def _second(epilogue: Epilogue, tile: tuple[int, int] | None) -> Any:
    """What adds the parts: one schedule for all that end with *epilogue*, so that it is proved and compiled once. tile: of
    `AddParts`; None: there are operands or further outputs."""
    try:
        return _made(epilogue, tile)
    except TypeError:  # a callable that cannot be hashed
        return _made.__wrapped__(epilogue, tile)


@functools.lru_cache(maxsize=32)
def _made(epilogue: Epilogue, tile: tuple[int, int] | None) -> Any:
    if tile is None:
        return FinishParts(epilogue)
    return AddParts(tile, dtype=epilogue.dtype, epilogue=epilogue.function, together=4)
