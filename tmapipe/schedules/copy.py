"""Copy: one warp loads, one stores, through a ring of shared-memory tiles."""

from __future__ import annotations

from typing import Any

from tmapipe.barrier import BarrierRing
from tmapipe.bind.memory import check_kind, check_memory
from tmapipe.bind.tensors import as_words, is_contiguous, match, new_like
from tmapipe.dtypes import int32
from tmapipe.errors import InputError
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.role import Role
from tmapipe.schedule import Schedule
from tmapipe.schedules.required import check_stages
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.tiles.grid import GridTiles
from tmapipe.tiles.persistent import PersistentTiles
from tmapipe.tiles.raster import Grouped

__all__ = ["Copy"]

MULTIPROCESSOR = 228 * 1024  # bytes of shared memory of one, on sm_90


class Copy(Schedule):
    """``y = x``, of any element type, as 32-bit words.

    Matrices (m, n) need contiguous rows of whole units of 16 bytes; the stride between rows is a multiple of 16 bytes. Tensors
    that are contiguous as a whole may have any shape: they are copied as rows of one tile's width, so that each tile is one
    contiguous piece of memory, and what is left of the last row by a second launch.

    By default each CTA copies one tile. So few bytes are in flight, which lie close together: DRAM pages stay open.

    Args:
        tile: (rows, words) moved at once.
        stages: Slots in flight. With more than one, or None (as many as fit), persistent CTAs stream through them.
        pending: Stores that may still read their slot while the next one is waited for; None: 2, or 0 with one slot.
        ctas: With one slot, CTAs that share a multiprocessor; None: 10, or as many as have room for a tile.
        l2_hint: Of the loads, as of `TmaLoadStage`. "evict_last" is 1 to 3 % faster for what is several times larger than L2,
            and leaves less of L2 to what runs next.
    """

    load, store = Role(warps=1), Role(warps=1)

    def __init__(
        self,
        tile: tuple[int, int] = (4, 256),
        stages: int | None = 1,
        pending: int | None = None,
        ctas: int | None = None,
        l2_hint: str | None = None,
    ):
        if not isinstance(tile, tuple) or len(tile) != 2:
            raise InputError("Copy(tile)", tile, "is (rows, words of 4 bytes)", "e.g. (4, 256)")
        self.ring = BarrierRing(stages, producer=self.load, consumer=self.store)
        if pending is None:
            pending = 0 if stages == 1 else 2
        self.x = TmaLoadStage("m n", tile=tile, ring=self.ring, dtype=int32, l2_hint=l2_hint)
        self.y = TmaStoreStage(source=self.x, stages=pending)
        if ctas is None:  # with a tile, barriers, and what is the system's
            ctas = min(10, max(1, MULTIPROCESSOR // (self.x.tile[0] * self.x.tile[1] * 4 + 2048)))
        self.tiles = GridTiles(Grouped(1), ctas) if stages == 1 else PersistentTiles(Grouped(1))

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Copies x to y (or `out`, or a new tensor) and returns that. Both by position or by name."""
        check_stages(self, "x", "y")
        given = match(("x", "y"), tensors, named, None)
        x: Any = given.get("x")
        y: Any = given.get("y")
        check_kind("x", x)
        if y is not None and out is not None:
            raise InputError("out", type(out).__name__, "names the output, which is given already", "pass it once")
        y = y if y is not None else out if out is not None else new_like(x)
        check_kind("y", y)
        if x.shape != y.shape or x.dtype != y.dtype:
            raise InputError(
                "y", (tuple(y.shape), y.dtype), f"must be like x: {tuple(x.shape)}, {x.dtype}", "pass such a tensor"
            )
        check_memory("x", x, output=False)
        check_memory("y", y, output=True)
        if is_contiguous(x) and is_contiguous(y):
            flat = [as_words(name, tensor.reshape(-1)) for name, tensor in (("x", x), ("y", y))]
            words, width = flat[0].shape[0], self.x.tile[1]
            whole = words - words % width
            if whole or not words:
                super().__call__(*(each[:whole].reshape(whole // width, width) for each in flat))
            if whole < words:
                super().__call__(*(each[whole:].reshape(1, words - whole) for each in flat))
        else:
            super().__call__(as_words("x", x), as_words("y", y))
        return y

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            slot.y.store(tile)
