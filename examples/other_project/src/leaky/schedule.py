"""The schedule."""

from __future__ import annotations

from typing import Any

import tmapipe as tp
from tmapipe.epilogue import Epilogue, PerColumn


class LeakyGemm(tp.schedules.Gemm):
    """``d = leaky(a b^T + bias)``. The loading warp asks for b before a: weights come from L2, and arrive first.

    Args:
        slope: Of negative numbers.
        tile: (m, n, k) of a CTA.
        cluster: CTAs along (m, n).
    """

    def __init__(
        self, slope: float = 0.01, tile: tuple[int, int, int] = (128, 256, 64), cluster: tuple[int, int] = (2, 1)
    ):
        def leaky(acc: Any, bias: Any) -> Any:
            x = acc + bias
            return tp.math.maximum(x, slope * x)

        super().__init__(tile, cluster, epilogue=Epilogue(leaky, operands={"bias": PerColumn()}))

    @tp.schedules.Gemm.load.jit
    def fill(self, k: Any, tile: Any) -> None:
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.b.load(tile, k=step)
                slot.a.load(tile, k=step)
