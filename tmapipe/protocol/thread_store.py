"""A store by threads as the storing role sees it."""

from __future__ import annotations

from typing import Any

from tmapipe.errors import InputError
from tmapipe.isa.fragment import applied
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried
from tmapipe.plan.model import Store
from tmapipe.protocol.registry import stands_for
from tmapipe.protocol.tile import Tile, check_own, start_of, tile_at
from tmapipe.protocol.values import checked_values
from tmapipe.thread_store import ThreadStoreStage

__all__ = ["BoundThreadStore"]


@stands_for(ThreadStoreStage)
class BoundThreadStore(Carried):
    """A `ThreadStoreStage` in the role that stores. It has no buffers, so nothing is waited for."""

    def __init__(self, k: Any, name: str, stage: ThreadStoreStage):
        self.isa: Isa = k.isa
        self.plan: Store = k.plan.store(name)

    def store(self, tile: Tile, values: Any, epilogue: Any = None, *, surely: tuple[int, int] = (0, 0)) -> None:
        """Converts *values* to the tensor's type and stores them to *tile*.

        Args:
            tile: Of the output.
            values: A fragment of the tile's extents; or one number a row or a column, for a tile of one extent.
            epilogue: Applied to *values* before the conversion.
            surely: (first, end) of the tile's columns that are inside the tensor for every tile, of which the GPU compares no
                index; with a `wide` stage, whose tiles then begin at multiples of 16 bytes.

        Raises:
            InputError: *values* is no fragment, has other extents, or is fp32 where the tensor holds integers.
        """
        name, plan = f"{self.plan.name}.store", self.plan
        check_own(name, self.isa.plan, plan, tile, ())
        made = values if epilogue is None else applied(epilogue, (values,), {})
        found = checked_values(name, plan.buffer, made)
        pair = isinstance(surely, tuple) and len(surely) == 2 and all(type(n) is int for n in surely)
        if not pair:
            raise InputError(f"{name}(surely)", surely, "is (first, end) of columns inside the tensor", "leave it out")
        self.isa.store_values(plan, start_of(name, plan.dims, plan.tile, tile, {}), found, surely)

    def store_from(self, *start: Any, values: Any, epilogue: Any = None, surely: tuple[int, int] = (0, 0)) -> None:
        """As `store`, to the tile that starts at these elements: one index along each dimension of the tensor, perhaps
        negative or beyond its end. The last one is a multiple of the stage's `vector` bytes."""
        self.store(tile_at(f"{self.plan.name}.store_from", self.plan.dims, start), values, epilogue, surely=surely)

    def finish(self) -> None:
        """After the last tile: nothing is left to wait for."""
