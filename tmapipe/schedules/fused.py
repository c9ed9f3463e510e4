"""Fused: what schedules whose output tiles end with an `Epilogue` have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np

from tmapipe.barrier import BarrierRing
from tmapipe.bind.bound import Bound
from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.epilogue.operands import Operands, columns_of
from tmapipe.epilogue.outputs import Output, StoreForm
from tmapipe.errors import InputError
from tmapipe.kernel import KernelContext
from tmapipe.matmul import Wgmma
from tmapipe.plan.declarations import PARTS
from tmapipe.plan.model import Plan
from tmapipe.protocol.tile import Tile
from tmapipe.register_tile import RegisterTile
from tmapipe.role import Role
from tmapipe.schedule import Schedule
from tmapipe.schedules.reduced import Reductions
from tmapipe.schedules.room import check_room
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["Fused"]

FETCH = Role(warps=1)  # loads the epilogue's operands, in schedules that have some


class Fused(Schedule):
    """Base of such schedules. The role that computes tiles is called `math`."""

    epilogue: Epilogue
    math: Role
    optional_roles = MappingProxyType({"fetch": FETCH})

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
        m, n = sources[0].shape[:2]
        if stored.operands:
            self._check_free("operands", stored.operands)
            self.fetch = FETCH
            self.operand_ring = BarrierRing(stored.ahead, producer=FETCH, consumer=self.math)
            options: dict[str, Any] = {"matmul": sources[0], "accumulators": len(sources), "batch": batch}
            options["columns"] = stored.columns
            self.operands = Operands(stored.operands, stored.function, ring=self.operand_ring, **options)
            for name, stage in self.operands.stages.items():
                setattr(self, name, stage)
        self._check_free("outputs", stored.outputs)
        self.outputs = ("d", *stored.outputs)
        self.reductions = Reductions(stored.reductions, m)
        if self.reductions.kinds and self.tiles.bounded:
            name, kind = next(iter(self.reductions.kinds.items()))
            rule = f"is a sum of whole rows or columns, which do not end where tiles of {type(self.tiles).__name__} do"
            raise InputError(f"outputs[{name!r}]", kind, rule, "store an Output, and add that up")
        width = self.operands.width if self.operands else min(stored.columns or 64, columns_of(n))
        same = stored.operands or stored.outputs or stored.columns
        form = StoreForm(batch, stored.stages, width if same else None, stored.l2_hint)
        kinds: dict[str, Any] = {"d": first or Output(stored.dtype), **stored.outputs}
        stores = {name: kind.stage(sources[0], width, form) for name, kind in kinds.items()}
        for name, store in stores.items():
            setattr(self, name, store)
        return tuple(store for name, store in stores.items() if name not in self.reductions.kinds)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "epilogue" and "outputs" in vars(self):
            value = Epilogue.of(value)
            other = attrs.evolve(value, function=None) != attrs.evolve(self.epilogue, function=None)
            if other or value.operands or self.tiles.in_parts:
                rule = (
                    "differs from the schedule's in its function alone, and has no operands: its stages follow from it"
                )
                raise InputError(
                    f"{type(self).__name__}.epilogue", value, rule, "make another schedule, with epilogue="
                )
        had = getattr(self, name, None) if "outputs" in vars(self) else None
        if isinstance(had, PARTS) and not isinstance(value, type(had)):
            rule = f"takes the place of a {type(had).__name__}, which the others need"
            raise InputError(
                f"{type(self).__name__}.{name}", value, rule, "assign another one, or make another schedule"
            )
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

    def store_all(self, k: KernelContext, tile: Tile, values: tuple[Any, ...]) -> None:
        """Stores what the epilogue makes of *values* to all outputs."""
        also = {name: getattr(k, name) for name in self.outputs[1:]}
        operands = self.operands.reader(k, tile) if self.operands else None
        k.d.store(tile, values, self.applied.function, also=also, operands=operands)

    @FETCH.jit
    def fetch_operands(self, k: KernelContext, tile: Tile) -> None:
        assert self.operands is not None
        self.operands.load(k, tile)
