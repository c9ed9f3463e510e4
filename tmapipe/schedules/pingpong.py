"""PingPong: a GEMM of two warpgroups on two output tiles, so that one's epilogue runs under the other's mainloop."""

from __future__ import annotations

from typing import Any

from tmapipe.role import Role
from tmapipe.schedules import mainloop
from tmapipe.schedules.gemm import Gemm

__all__ = ["PingPong"]


class PingPong(Gemm):
    """`Gemm` with ``mainloop=tp.mainloop.PingPong(promote, in_turn, along=along)``.

    Args:
        tile: (m, n, k) elements of a CTA, whose accumulators fit in one warpgroup: up to 64 x 256 or 128 x 192.
        cluster: CTAs along (m, n).
        stages: Slots of a and b; None: as many as fit.
        promote: As of `tmapipe.mainloop.PingPong`.
        in_turn: Whether epilogues take turns as mainloops do; as there.
        along: As there.
        options: a, b, epilogue and tiles, as of `Gemm`.
    """

    math = Role(warpgroups=2, teams=2)

    def __init__(
        self,
        tile: tuple[int, int, int] = (128, 128, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        promote: bool = False,
        in_turn: bool = True,
        along: str = "m",
        **options: Any,
    ):
        super().__init__(tile, cluster, stages, mainloop=mainloop.PingPong(promote, in_turn, along=along), **options)
