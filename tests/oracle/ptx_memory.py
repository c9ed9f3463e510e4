"""Memory of a launch, for `ptx_machine`: the tensors' bytes, the CTAs' shared memory, mbarriers, and what engines still have
to move between them.

What is asynchronous is done as late as can be and in any order: when no thread can go on, or one waits for it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from tests.oracle.ptx_execution import BASE
from tests.oracle.ptx_floats import UNSIGNED
from tmapipe.model.memory import round_to_tf32

__all__ = ["Barriers", "Box", "Engine", "Memory", "Wrong"]

GLOBAL = 1 << 34  #: where the first tensor is put
BETWEEN = 1 << 12  #: bytes between tensors that nobody may touch
PEER = 24  #: the bit from which on a shared address names a CTA of the cluster, plus 1
GARBAGE = 0xA5


class Wrong(AssertionError):
    """The kernel does what no GPU would take, or waits for what never comes."""


class Memory:
    """Global and shared memory, as bytes.

    Args:
        storages: Bytes of each of the tensors' memories, and a number of which the addresses have the last 8 bits.
        ctas: In the grid.
        shared: Bytes of shared memory of a CTA, with what lies before the dynamic part.
        cluster: CTAs of a cluster.
    """

    def __init__(self, storages: Sequence[tuple[np.ndarray, int]], ctas: int, shared: int, cluster: int):
        self.starts, at = list[int](), BETWEEN
        for storage, like in storages:
            self.starts.append(GLOBAL + at + like % 256)
            at += -(-(len(storage) + 256) // BETWEEN) * BETWEEN + BETWEEN
        self.whole = np.full(at, GARBAGE, np.uint8)
        self.held = np.zeros(at, bool)
        for start, (storage, _) in zip(self.starts, storages, strict=True):
            self.whole[start - GLOBAL : start - GLOBAL + len(storage)] = storage
            self.held[start - GLOBAL : start - GLOBAL + len(storage)] = True
        self.pitch = -(-(shared + BASE) // 1024) * 1024
        self.shared = np.full(ctas * self.pitch, GARBAGE, np.uint8)
        self.cluster = cluster

    def storage(self, number: int, nbytes: int) -> np.ndarray:
        """The bytes of a tensor's memory."""
        start = self.starts[number] - GLOBAL
        return self.whole[start : start + nbytes]

    def in_shared(self, address: Any, cta: Any, size: int) -> Any:
        """Where in `shared` an address of a CTA's window, or of its cluster's, is."""
        address, cta = np.asarray(address, np.int64), np.asarray(cta)
        if not address.size or (address.max() + size <= self.pitch and address.min() >= BASE):
            return cta * self.pitch + address
        rank = address >> PEER
        cta = np.where(rank > 0, cta // self.cluster * self.cluster + rank - 1, cta)
        offset = address & ((1 << PEER) - 1)
        if (offset < BASE).any() or (offset + size > self.pitch).any() or (rank > self.cluster).any():
            raise Wrong(f"shared address {int(offset.max() - BASE)} outside of shared memory")
        return cta * self.pitch + offset

    def in_global(self, address: Any, size: int) -> Any:
        """Where in `whole` an address is."""
        at = np.asarray(address, np.uint64).astype(np.int64) - GLOBAL
        if at.size:
            if (first := at.min()) < 0 or at.max() + size > len(self.whole):
                raise Wrong(f"global address {int(first)} outside of all tensors")
            if not (self.held[at].all() and self.held[at + size - 1].all()):
                raise Wrong("a global address outside of all tensors")
        return at

    def load(self, memory: np.ndarray, at: Any, size: int) -> np.ndarray:
        """Values of *size* bytes, at multiples of that."""
        found: np.ndarray = memory.view(UNSIGNED[size])[at // size]
        return found

    def store(self, memory: np.ndarray, at: Any, value: Any, size: int) -> None:
        memory.view(UNSIGNED[size])[at // size] = value


# ---- mbarriers --------------------------------------------------------------------------------------------------------


@attrs.define
class _Barrier:
    count: int
    pending: int
    bytes: int = 0
    phase: int = 0


class Barriers:
    """The mbarriers of all CTAs, by their place in shared memory."""

    def __init__(self) -> None:
        self.found: dict[int, _Barrier] = {}

    def init(self, place: int, count: int) -> None:
        self.found[place] = _Barrier(count, count)

    def at(self, place: int) -> _Barrier:
        if place not in self.found:
            raise Wrong(f"no mbarrier at {place}")
        return self.found[place]

    def arrive(self, place: int, count: int = 1, expected: int = 0) -> None:
        barrier = self.at(place)
        barrier.bytes += expected
        barrier.pending -= count
        if barrier.pending < 0:
            raise Wrong("more arrivals at an mbarrier than its phase takes")
        self._complete(barrier)

    def complete(self, place: int, nbytes: int) -> None:
        """Of bytes that have come."""
        barrier = self.at(place)
        barrier.bytes -= nbytes
        self._complete(barrier)

    def _complete(self, barrier: _Barrier) -> None:
        if barrier.pending == 0 and barrier.bytes == 0:
            barrier.phase += 1
            barrier.pending = barrier.count

    def passed(self, place: int, parity: int) -> bool:
        """Whether the phase of that parity has completed."""
        return self.at(place).phase & 1 != parity & 1


# ---- engines ----------------------------------------------------------------------------------------------------------


class _Move:
    """One asynchronous operation."""

    def __init__(self, action: Callable[[], None]):
        self.action, self.done = action, False

    def __call__(self) -> None:
        if not self.done:
            self.done = True
            self.action()


class Engine:
    """What has been asked for and is not yet done. seed: of the order in which it is."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.waiting: list[_Move] = []
        self.open: dict[int, list[_Move]] = defaultdict(list)  # by thread, of the group that it has not committed
        self.groups: dict[int, list[list[_Move]]] = defaultdict(list)
        self.copies: dict[int, list[_Move]] = defaultdict(list)  # of cp.async, by thread

    def later(self, action: Callable[[], None]) -> _Move:
        move = _Move(action)
        self.waiting.append(move)
        return move

    def commit(self, thread: int) -> None:
        self.groups[thread].append(self.open.pop(thread, []))

    def wait(self, thread: int, left: int) -> None:
        """Until at most *left* of the thread's groups are not done."""
        groups = self.groups[thread]
        while len(groups) > left:
            for move in groups.pop(0):
                move()

    def finish_copies(self, thread: int) -> None:
        for move in self.copies.pop(thread, []):
            move()

    def step(self) -> bool:
        """Does one of them; whether there was one."""
        while self.waiting:
            at = self.random.randrange(len(self.waiting))
            self.waiting[at], self.waiting[-1] = self.waiting[-1], self.waiting[at]
            move = self.waiting.pop()
            if not move.done:
                move()
                return True
        return False


@attrs.frozen
class Box:
    """What a descriptor says. Of each coordinate, the contiguous one first: extents and strides (bytes) of the tensor,
    elements of a box, and elements from one of these to the next.

    Args:
        start: Address of the tensor.
        size: Bytes of an element.
        swizzle: Bytes of a span, or 0.
        outside: What elements beyond the edge hold.
        word: The PTX type of its elements, for reductions.
        rounded: Whether the engine rounds fp32 to tf32.
    """

    start: int
    size: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int = 0
    outside: int = 0
    word: str = ""
    rounded: bool = False

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.box)) * self.size

    def places(self, coordinates: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """(address, whether it is inside the tensor) of each element of a box, in the order of shared memory."""
        address, inside = np.zeros(1, np.int64), np.ones(1, bool)
        for at, extent, stride, count, step in zip(
            coordinates, self.extents, self.strides, self.box, self.steps, strict=True
        ):
            index = at + step * np.arange(count)
            address = np.add.outer(index * stride, address).reshape(-1)
            inside = np.logical_and.outer((index >= 0) & (index < extent), inside).reshape(-1)
        return self.start + address, inside

    def spread(self, first: int) -> np.ndarray:
        """Where in shared memory each element of a box at *first* lies: in a swizzle, units of 16 bytes change places within
        8 rows of 128 bytes."""
        at = first + self.size * np.arange(int(np.prod(self.box)))
        if first % 16:
            raise Wrong("a box that does not begin at a multiple of 16 bytes")
        if not self.swizzle:
            return at
        if first % 128:
            raise Wrong("a swizzled box that does not begin at a multiple of 128 bytes")
        return at ^ ((at >> 7 & (self.swizzle // 16 - 1)) << 4)

    def load(self, memory: Memory, first: int, coordinates: Sequence[int]) -> None:
        """Into shared memory at *first* (of all CTAs')."""
        address, inside = self.places(coordinates)
        values = np.full(len(address), self.outside, UNSIGNED[self.size])
        values[inside] = memory.load(memory.whole, memory.in_global(address[inside], self.size), self.size)
        if self.rounded:
            values = round_to_tf32(values.view(np.float32)).view(np.uint32)
        memory.store(memory.shared, self.spread(first), values, self.size)

    def store(self, memory: Memory, first: int, coordinates: Sequence[int], combine: Any = None) -> None:
        """From shared memory. combine: of (there, new), to reduce."""
        address, inside = self.places(coordinates)
        values = memory.load(memory.shared, self.spread(first), self.size)[inside]
        at = memory.in_global(address[inside], self.size)
        if combine is not None:
            values = combine(memory.load(memory.whole, at, self.size), values)
        memory.store(memory.whole, at, values, self.size)
