"""AddParts: ``d = parts[0] + parts[1] + ...``, in this order: the end of a split-K GEMM."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tmapipe.barrier import BarrierRing
from tmapipe.bind.bound import Bound
from tmapipe.dtypes import DType, int32
from tmapipe.errors import InputError
from tmapipe.fields import is_count
from tmapipe.isa.fragment import applied
from tmapipe.kernel import KernelContext
from tmapipe.plan.model import Plan
from tmapipe.protocol.ring import Slot
from tmapipe.protocol.tile import Tile
from tmapipe.role import Role
from tmapipe.schedule import Schedule
from tmapipe.schedules.required import check_stages
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["AddParts"]


class AddParts(Schedule):
    """``d[m, n] = epilogue(sum over s of x[s, m, n])``, with a batch dimension before each if the tensors have one.

    The sums are in the type of x, in the order of s, and are converted once to the type of d. One warp loads, four add,
    through slots that threads read.

    Args:
        tile: (m, n) elements at once.
        stages: Slots in flight; None: as many as fit.
        dtype: Of d; None: the tensor's, or if a call makes it that of x.
        epilogue: A function of the sums, element by element; None: the sums themselves.
        together: Parts in a slot, four of which take less time than one each. Those beyond the last one are zeros.
    """

    load, add = Role(warps=1), Role(warps=4)

    def __init__(
        self,
        tile: tuple[int, int] = (8, 256),
        stages: int | None = None,
        *,
        dtype: DType | str | None = None,
        epilogue: Callable[[Any], Any] | None = None,
        together: int = 1,
    ):
        if not is_count(together):
            raise InputError("AddParts(together)", together, "is a number of parts in a slot", "use 4")
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
        """As `Schedule.plan`. Raises `InputError` for types that cannot be added, or whose sums d cannot hold."""
        check_stages(self, "x", "d")
        made = super().plan(dtypes, arch=arch)
        x, d = made.buffer("x").dtype, made.buffer("d").dtype
        if x.name.startswith("fp8"):
            raise InputError(
                "x", x.name, "is a type that threads add, which fp8 is not", "add parts of bf16, fp16 or fp32"
            )
        if d.integer and not x.integer:
            raise InputError("d", d.name, f"holds sums of {x}, which are not rounded to integers", 'use dtype="fp32"')
        if x == int32 and d.name.startswith("fp8"):
            raise InputError(
                "d", d.name, f"is a type that {x} is converted to", 'use dtype="bf16", or add parts of fp32'
            )
        return made

    def empty_value(self, bound: Bound) -> Any:
        """The epilogue of empty sums."""
        return 0.0 if self.epilogue is None else applied(self.epilogue, (np.zeros(bound.shapes["d"], np.float32),), {})

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        for some in range(k.steps("x", "s")):
            with k.ring.produce() as slot:
                slot.x.load(tile, s=some)

    @add.jit
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
