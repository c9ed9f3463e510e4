"""FinishParts: ``d = epilogue(parts[0] + parts[1] + ...)``: what a split-K GEMM with an epilogue ends with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tmapipe.barrier import BarrierRing
from tmapipe.bind.bound import Bound
from tmapipe.dtypes import fp32
from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.epilogue.operands import Matrix
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.register_tile import RegisterTile
from tmapipe.role import Role
from tmapipe.schedules.fused import Fused

__all__ = ["FinishParts"]

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
        self.store_all(k, tile, (k.total.of(total),))
