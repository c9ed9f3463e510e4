"""GatedGemm: two products of the same a, combined in the epilogue, as in a gated feed-forward layer (SwiGLU).

load (1 warp)        a, gate, up of k-tile 0, 1, 2, ...    -> ring of slots
math (warpgroups)    two wgmma on the slot, into two accumulators; then epilogue(gate, up) -> TMA store
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from tmapipe import math as functions
from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.errors import InputError
from tmapipe.schedules.gemm import Gemm

__all__ = ["GatedGemm", "swiglu"]


def swiglu(gate: Any, up: Any) -> Any:
    """silu(gate) * up."""
    return functions.silu(gate) * up


class GatedGemm(Gemm):
    """``d[m, n] = epilogue(a gate^T, a up^T)``, with a [m, k], and gate and up [n, k].

    Each may have a batch dimension before these. Weights that lie one after the other in one tensor w [2 n, k] are passed as
    ``w[:n], w[n:]``.

    Args:
        tile: (m, n, k) elements of a CTA. Both accumulators must fit in the warpgroups' registers: n is at most 192 of
            m = 64, 184 of 128, 112 of 192 and 88 of 256, or if sums are promoted, 128, 128, 80 and 56 (in k-tiles of 256
            bytes, 112, 112, 72 and 56).
        cluster: CTAs along (m, n).
        stages: Slots of a, gate and up; None: as many as fit.
        epilogue: A function of the two sums in fp32, element by element, or an `Epilogue`, as of `Gemm`.
        options: a, b (for gate and up), mainloop and tiles, as of `Gemm`; not in parts of k.
    """

    products = {"gate_mma": "gate", "up_mma": "up"}  # noqa: RUF012 - never changed

    def __init__(
        self,
        tile: tuple[int, int, int] = (128, 128, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        epilogue: Epilogue | Callable[..., Any] = swiglu,
        **options: Any,
    ):
        if epilogue is None:
            raise InputError("epilogue", None, "combines both sums", "leave it out for swiglu")
        given = Epilogue.of(epilogue)
        if given.function is None:  # the type of d alone, say
            given = attrs.evolve(given, function=swiglu)
        super().__init__(tile, cluster, stages, epilogue=given, **options)
