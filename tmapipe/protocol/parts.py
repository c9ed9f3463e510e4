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
from tmapipe.protocol.tile import Tile, check_fragment, check_start, start_of

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
        self._start_load(start_of(f"slot.{load.name}.load", load.dims, load.tile, tile, coordinates))

    def load_from(self, *start: Any) -> None:
        """As `load`, for the tile that starts at these elements.

        Args:
            start: One index along each dimension of the tensor, perhaps negative or beyond its end: what lies outside is zero.
                The last one is a multiple of 16 bytes; elsewhere the hardware traps, and the model raises `HazardError`. A
                load without a descriptor starts inside.
        """
        load = self._loaded()
        self._start_load(check_start(f"slot.{load.name}.load_from", load.dims, start), anywhere=True)

    def load_part(self, i: Any, tile: Tile | None = None, /, **coordinates: Any) -> None:
        """Starts the TMA load of part *i* of the tile, of as many as the stage says (`TmaLoadStage.in_parts`).

        Args:
            i: Which part of the slot.
            tile: Of which it is that part, along dimensions that *coordinates* do not name.
            coordinates: By dimension, in parts along the one that the tile is cut along, and in tiles along others.

        Raises:
            InputError: A coordinate is missing or unknown, or there is no such part.
        """
        load, where = self._loaded(), f"slot.{self.part.buffer.name}.load_part"
        cut = len(load.dims) - load.core
        named = load.dims[cut] in coordinates
        start = list(start_of(where, load.dims, load.part if named else load.tile, tile, coordinates))
        if not named:
            start[cut] = start[cut] + i * load.part[cut]
        self._start_load(tuple(start), part=self._part(i))

    def load_part_from(self, i: Any, *start: Any) -> None:
        """As `load_part`, for a part that starts at these elements, as in `load_from`."""
        load = self._loaded()
        checked = check_start(f"slot.{load.name}.load_part_from", load.dims, start)
        self._start_load(checked, part=self._part(i), anywhere=True)

    def _part(self, i: Any) -> Any:
        load = self._loaded()
        if isinstance(i, int) and not 0 <= i < load.parts:
            rule = f"is loaded in {load.parts} part{'s' * (load.parts > 1)}"
            raise InputError(f"slot.{load.name}.load_part", i, rule, "count from 0, or declare in_parts()")
        return None if load.parts == 1 else i

    def _start_load(self, start: tuple[Any, ...], *, part: Any = None, anywhere: bool = False) -> None:
        load = self._loaded()
        if load.parts > 1 and part is None:
            fix = f"slot.{load.name}.load_part(i, ...) for each"
            raise InputError(f"slot.{load.name}", "load()", f"is loaded in {load.parts} parts, one by one", fix)
        isa, index, signalled = self.part.isa, self.slot.index, self.end.signalled
        if load.tensor_map:
            own = self.part
            isa.tma_load(load, index, start, signalled, own.mask, own.share, part=part, anywhere=anywhere)
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
