"""The tile of a stage in an open slot, as one role loads, reads or writes it."""

from __future__ import annotations

from typing import Any

from tmapipe.errors import InputError, ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried, Fragment, SlotRef
from tmapipe.plan.model import Buffer, Distributed, Load, RoleWarps
from tmapipe.plan.sharing import row_width
from tmapipe.protocol.cluster import peer_mask, share_index
from tmapipe.protocol.ring import RingEnd, Slot
from tmapipe.protocol.tile import Tile, check_fragment, start_of

__all__ = ["PartInSlot", "SlotPart"]


class SlotPart(Carried):
    """One stage of a ring as one role sees it; `at(slot)` gives its tile in an open slot.

    `async_proxy` says whether TMA or wgmma accesses these bytes anywhere, so that accesses by threads need a proxy fence.
    """

    def __init__(self, isa: Isa, buffer: Buffer, load: Load | None, role: str, async_proxy: bool):
        self.isa, self.buffer, self.load, self.role, self.async_proxy = isa, buffer, load, role, async_proxy
        self.mask: Any = None
        self.share: Any = 0
        if load is not None and load.peers > 1:
            self.mask = peer_mask(isa, load.axes)
            self.share = share_index(isa, load.axes)

    def at(self, slot: Slot) -> PartInSlot:
        return PartInSlot(self, slot)


class PartInSlot(Carried):
    """A stage's tile in one open slot."""

    def __init__(self, part: SlotPart, slot: Slot):
        self.part, self.slot = part, slot
        self.ref = SlotRef(part.buffer, slot.index)

    @property
    def end(self) -> RingEnd:
        return self.slot.end

    def load(self, tile: Tile | None = None, **coordinates: Any) -> None:
        """Starts the TMA load of a tile.

        Args:
            tile: Its coordinates, in tiles.
            coordinates: Coordinates by dimension, in tiles, instead of those of *tile*.

        Raises:
            ScopeError: Outside the ring's first phase.
            InputError: A coordinate is missing or unknown.
        """
        load = self._loaded()
        self.load_from(*start_of(f"slot.{load.name}.load", load.dims, load.tile, tile, coordinates))

    def load_from(self, *start: Any) -> None:
        """As `load`, for the tile that starts at these elements: one index per dimension of the tensor, the last one at a
        multiple of 16 bytes. Elsewhere the hardware traps, and the model raises `HazardError`."""
        load = self._loaded()
        if len(start) != len(load.dims):
            rule = f"is one index along each of {', '.join(load.dims)}, in elements"
            raise InputError(f"slot.{load.name}.load_from", start, rule, f"pass {len(load.dims)} indices")
        isa, index, signalled = self.part.isa, self.slot.index, self.end.signalled
        if load.tensor_map:
            isa.tma_load(load, index, start, signalled, self.part.mask, self.part.share)
        else:
            isa.bulk_load(load, index, start, signalled)

    def _loaded(self) -> Load:
        self.slot._check_open()
        load = self.part.load
        if load is None or self.end.phase != 0:
            raise ScopeError(
                f"load() of {self.part.buffer.name!r} in role {self.part.role!r}: only the role that loads it can."
            )
        return load

    def read_columns(self, matmul: Distributed, along: tuple[str, ...], columns: int, first: int = 0) -> Fragment:
        """The values in fp32, distributed like columns of an accumulator (see `Fragments.read_columns`)."""
        self.by_threads()
        return self.part.isa.fragments.read_columns(matmul, self.ref, along, columns, first)

    def by_threads(self) -> None:
        """Notes that threads access the tile: at the end of the scope, a fence and an arrival follow.

        Raises:
            ScopeError: The slot is not open.
        """
        self.slot._check_open()
        self.slot.touched_by_threads.add(self.part.buffer.name)

    def read(self) -> Fragment:
        """The tile's elements as a fragment, distributed over the role's threads. It takes arithmetic and `tmapipe.math`.

        Raises:
            InputError: The threads cannot share the elements evenly.
        """
        return self.part.isa.fragments.read(self.ref, self._sharing_role())

    def write(self, values: Fragment) -> None:
        """Replaces the tile's elements, converted to its type.

        Args:
            values: A fragment, distributed as `read` distributes it.

        Raises:
            InputError: *values* is a number.
        """
        check_fragment(f"slot.{self.part.buffer.name}.write", values)
        self.part.isa.fragments.write(self.ref, values, self._sharing_role())

    def _sharing_role(self) -> RoleWarps:
        self.by_threads()
        role = self.part.isa.plan.role(self.part.role)
        row_width(self.part.buffer.name, self.part.buffer.tile, role)
        return role
