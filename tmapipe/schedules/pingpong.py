"""PingPong: two warpgroups on two output tiles, so that one's epilogue runs under the other's mainloop.

    load (1 warp)            a, b of tile 0, of tile 1, of tile 2, ...
    math, team 0             mainloop 0 | epilogue 0           | mainloop 2 | ...
    math, team 1                        | mainloop 1           | epilogue 1 | ...

Best where the epilogue weighs much: short k, or tiles too small to hide it otherwise.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tmapipe.errors import InputError
from tmapipe.protocol.tile import Tile
from tmapipe.role import Role
from tmapipe.schedules.gemm import Gemm
from tmapipe.turnstile import Turnstile

__all__ = ["PingPong"]


class PingPong(Gemm):
    """`Gemm`, with each output tile one warpgroup's alone. Arguments as there; the accumulators of a tile (m x n) must fit in
    one warpgroup: up to 64 x 256 or 128 x 192.

    in_turn: epilogues take turns as mainloops do, so that both warpgroups use the same output buffers, and neither runs ahead
    of the other's slots of operands by two laps (their parity would be its own). Without, each has buffers of its own and
    epilogues may overlap, which is faster where they take longer than mainloops; not with operands.
    """

    load = Gemm.load
    math = Role(warpgroups=2, teams=2)
    order = Turnstile(math)

    def __init__(
        self,
        tile: tuple[int, int, int] = (128, 128, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        in_turn: bool = True,
        **options: Any,
    ):
        if not in_turn and options.get("operands"):
            raise InputError("in_turn", in_turn, "is needed with operands of the epilogue", "leave it out")
        self.in_turn = in_turn
        super().__init__(tile, cluster, stages, **options)
        if in_turn:
            self.epilogue_order = Turnstile(self.math)

    def epilogue_turn(self, k: Any) -> Any:
        """A turn of the epilogue, where there is an order of them."""
        return k.epilogue_order.turn() if self.in_turn else nullcontext()

    @math.jit
    def multiply(self, k: Any, tile: Tile) -> None:
        with k.mma.accumulate(empty=self.empty_tiles) as acc:
            with k.order.turn():
                for _ in range(self.tile_slots(k, tile)):
                    with k.ring.consume() as slot:
                        acc.add(slot.a, slot.b)
        with self.epilogue_turn(k):
            self.store(k, tile, acc)
