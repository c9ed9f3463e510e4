"""GatedGemm: two products of the same a, combined in the epilogue, as in a gated feed-forward layer (SwiGLU).

load (1 warp)        a, gate, up of k-tile 0, 1, 2, ...    -> ring of slots
math (2 warpgroups)  two wgmma on the slot, into two accumulators; then epilogue(gate, up) -> TMA store
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tmapipe import math as functions
from tmapipe.barrier import BarrierRing
from tmapipe.bind.bound import Bound
from tmapipe.dtypes import DType
from tmapipe.matmul import Wgmma
from tmapipe.multicast import MulticastGroup
from tmapipe.protocol.tile import Tile
from tmapipe.role import Role
from tmapipe.schedule import Schedule
from tmapipe.schedules.gemm import check_majors, check_tile, consumers, operand, turned
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.tiles.persistent import PersistentTiles

__all__ = ["GatedGemm", "swiglu"]


def swiglu(gate: Any, up: Any) -> Any:
    """silu(gate) * up."""
    return functions.silu(gate) * up


class GatedGemm(Schedule):
    """``d[m, n] = epilogue(a gate^T, a up^T)``, with a [m, k], and gate and up [n, k]; a batch dimension before each if the
    tensors have one. Types as in `Gemm`; sums of 8-bit operands are not promoted. Weights that lie one after the other in one
    tensor w [2 n, k] are passed as ``w[:n], w[n:]``. majors: of a, and of gate and up, as in `Gemm`.

    tile: (m, n, k) elements of one CTA: both accumulators must fit in the warpgroups' registers, so it is up to 64 x 128 a
    warpgroup of two (m = 128), or 64 x 96 of three (m = 192); epilogue: a function of the two fp32 sums, element by element.
    The others as in `Gemm`.
    """

    load = Role(warps=1)
    math = Role(warpgroups=2)

    def __init__(
        self,
        tile: tuple[int, int, int] = (128, 128, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        store_stages: int = 2,
        order: PersistentTiles = PersistentTiles(),  # noqa: B008 - immutable
        majors: tuple[str, str] = ("k", "k"),
        dtype: DType | str | None = None,
        tf32: bool = False,
        epilogue: Callable[[Any, Any], Any] = swiglu,
    ):
        m, n, k = check_tile(tile)
        self.cluster = {"m": cluster[0], "n": cluster[1]}
        self.tiles = order
        self.math = consumers(self.math, m)
        self.ring = BarrierRing(stages, producer=self.load, consumer=self.math)
        along_a, along_b = check_majors(majors)
        common: dict[str, Any] = {"ring": self.ring, "dtype": "tf32" if tf32 else None}
        self.a = operand("m", m, k, along_a, multicast=MulticastGroup("n"), **common)
        self.gate = operand("n", n, k, along_b, multicast=MulticastGroup("m"), **common)
        self.up = operand("n", n, k, along_b, multicast=MulticastGroup("m"), **common)
        self.turned = turned(a=along_a, gate=along_b, up=along_b)
        self.gate_mma, self.up_mma = Wgmma(self.a, self.gate), Wgmma(self.a, self.up)
        self.d = TmaStoreStage("l m n", source=self.gate_mma, stages=store_stages, dtype=dtype)
        self.epilogue = epilogue

    def empty_value(self, bound: Bound) -> Any:
        """The epilogue of two empty sums."""
        zero = np.zeros(bound.shapes["d"], np.float32)
        return self.epilogue(zero, zero)

    @load.jit
    def fill(self, k: Any, tile: Tile) -> None:
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.gate.load(tile, k=step)
                slot.up.load(tile, k=step)

    @math.jit
    def multiply(self, k: Any, tile: Tile) -> None:
        with k.gate_mma.accumulate(empty=False) as gate, k.up_mma.accumulate(empty=False) as up:
            for _ in range(k.steps("a", "k")):
                with k.ring.consume() as slot:
                    gate.add(slot.a, slot.gate)
                    up.add(slot.a, slot.up)
        k.d.store(tile, (gate, up), self.epilogue)
