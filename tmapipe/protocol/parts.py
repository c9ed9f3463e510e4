"""The parts of an open slot: a stage's tile as one role loads, reads or writes it."""

from __future__ import annotations

from typing import Any

from tmapipe.errors import InputError, ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried, Fragment, SlotRef
from tmapipe.plan.model import Buffer, Load, Matmul, RoleWarps
from tmapipe.plan.sharing import row_width
from tmapipe.protocol.cluster import peer_mask, share_index
from tmapipe.protocol.ring import RingEnd, Slot
from tmapipe.protocol.tile import Tile, check_fragment, start_of

__all__ = ["PartInSlot", "SlotPart"]


class SlotPart(Carried):
    """One stage of a ring as one role sees it; `at(slot)` gives the part in an open slot.

    async_proxy: whether TMA or wgmma touches these bytes anywhere (so that threads' accesses need a proxy fence).
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
        """Starts the TMA load of the tile at *tile*, or at the given tile coordinates by dimension name (which win).

        Raises `ScopeError` outside the ring's first phase, `InputError` if a coordinate is missing or unknown."""
        load = self._loaded()
        self.load_from(*start_of(f"slot.{load.name}.load", load.dims, load.tile, tile, coordinates))

    def load_from(self, *start: Any) -> None:
        """As `load`, of the tile that starts at these elements, one index a dimension of the tensor."""
        load = self._loaded()
        if len(start) != len(load.dims):
            rule = f"is one index along each of {', '.join(load.dims)}, in elements"
            raise InputError(f"slot.{load.name}.load_from", start, rule, f"pass {len(load.dims)} indices")
        self.part.isa.tma_load(load, self.slot.index, start, self.end.signalled, self.part.mask, self.part.share)

    def _loaded(self) -> Load:
        self.slot._check_open()
        load = self.part.load
        if load is None or self.end.phase != 0:
            raise ScopeError(
                f"load() of {self.part.buffer.name!r} in role {self.part.role!r}: only the role that loads it can."
            )
        return load

    def read_columns(self, matmul: Matmul, along: tuple[str, ...], columns: int, first: int = 0) -> Fragment:
        """The values in fp32, dealt like *columns* columns of an accumulator of *matmul* (see `Isa.read_columns`)."""
        self.by_threads()
        return self.part.isa.fragments.read_columns(matmul, self.ref, along, columns, first)

    def by_threads(self) -> None:
        """Threads access the tile now: on leaving the slot this is fenced and released. Raises `ScopeError` outside it."""
        self.slot._check_open()
        self.slot.touched_by_threads.add(self.part.buffer.name)

    def read(self) -> Fragment:
        """The tile's elements, dealt over the role's threads: an array value that takes arithmetic and `tmapipe.math`.
        Raises `InputError` if the threads cannot share them evenly."""
        return self.part.isa.fragments.read(self.ref, self._dealt_over())

    def write(self, values: Fragment) -> None:
        """Replaces the tile's elements, converting to its type; *values* are dealt as `read` deals them. Raises `InputError`
        for a number."""
        check_fragment(f"slot.{self.part.buffer.name}.write", values)
        self.part.isa.fragments.write(self.ref, values, self._dealt_over())

    def _dealt_over(self) -> RoleWarps:
        self.by_threads()
        role = self.part.isa.plan.role(self.part.role)
        row_width(self.part.buffer.name, self.part.buffer.tile, role)
        return role
