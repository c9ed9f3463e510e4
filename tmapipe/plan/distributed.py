"""Of a plan: slots of shared memory, and what is distributed over the registers of warpgroups as accumulators are."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import attrs

from tmapipe.dtypes import DType
from tmapipe.plan.barriers import Barrier

__all__ = ["Buffer", "Distributed", "HeldTile", "Matmul", "MatmulRegisters", "SentParts", "registers_of", "widest"]

BESIDE_SUMS = 26  # registers a thread that ptxas wants at launch for a wgmma besides its sums (its note C7602)


def widest(launch: int) -> int:
    """The largest n of a wgmma where threads are launched with so many registers."""
    return min(256, (launch - BESIDE_SUMS) * 2 // 8 * 8)


class MatmulRegisters(NamedTuple):
    """Of a thread. sums: of the tile; a: for an a from registers; slot: for the sums of one slot, which are promoted before
    another matmul's begin."""

    sums: int
    a: int
    slot: int


def registers_of(
    shape: tuple[int, int, int], warpgroups: int, promote: bool = False, from_registers: bool = False
) -> MatmulRegisters:
    """Of a matmul of *shape*; an a from registers is of 16 bits."""
    (m, n, k), threads = shape, 128 * warpgroups
    sums = m * n // threads
    return MatmulRegisters(sums, m * k // (2 * threads) if from_registers else 0, sums if promote else 0)


@attrs.frozen
class Buffer:
    """Slots of shared memory, all alike.

    Args:
        name: That of the stage whose tiles lie in it.
        offset: Where the first slot begins (bytes).
        stages: How many slots there are, of all owners together.
        tile: Elements of a slot along its one or two extents, the last one contiguous. (A tile of three or more extents lies
            in it as a matrix.)
        dtype: Of the elements.
        swizzle: Span (bytes): 0, 32, 64 or 128.
        owners: Warpgroups that have stages / owners slots each, and use those alone.
        gap: Bytes between slots, so that each starts where TMA takes it.
        over: The stage in whose slots these lie, if they have no memory of their own.
    """

    name: str
    offset: int
    stages: int
    tile: tuple[int, ...]
    dtype: DType
    swizzle: int = 0
    owners: int = 1
    gap: int = 0
    over: str | None = None

    @property
    def slot_bytes(self) -> int:
        return math.prod(self.tile) * self.dtype.bytes

    @property
    def pitch(self) -> int:
        """Bytes from one slot to the next."""
        return self.slot_bytes + self.gap

    def byte_in_slot(self, row: Any, column: Any) -> Any:
        """At which byte of a slot byte *column* of a row lies; run-time values too. Rows are cut into swizzle spans, whose
        16-byte units are permuted among each 8 rows."""
        if not self.swizzle:
            return row * (self.tile[-1] * self.dtype.bytes) + column
        span = self.swizzle
        found = column // span * (self.tile[0] * span) + row * span + column % span
        return found ^ (((found >> 7) & (span // 16 - 1)) << 4)


class Distributed:
    """What values in registers that are distributed as accumulators have in common."""

    name: str
    shape: tuple[int, ...]
    warpgroups: int
    first_warp: int
    teams: int

    def group(self, warp: Any) -> Any:
        """Which of its team's warpgroups the warp (its index in the CTA, of the role) belongs to."""
        own = warp // 4 - self.first_warp // 4
        return own if self.teams == 1 else own % self.warpgroups


@attrs.frozen
class SentParts:
    """Parts of a `ClusterSum` on their way between CTAs of a cluster.

    Args:
        buffer: One slot, for a part from each CTA.
        full: Completes when all parts have come: it counts one warp, and the bytes.
        free: Completes when the slots of all these CTAs have been read: it counts each warp of theirs.
        axis: Of the cluster, along which the CTAs lie.
        ctas: How many they are.
    """

    buffer: Buffer
    full: Barrier
    free: Barrier
    axis: str
    ctas: int


@attrs.frozen
class HeldTile(Distributed):
    """A tile of fp32 values that warpgroups compute and store as a matmul's accumulators.

    Args:
        name: Of the `RegisterTile`.
        shape: (m, n) elements.
        first_warp: Of the role.
        warpgroups: Of the role, with 64 rows each.
        sent: Of a `ClusterSum`.
    """

    name: str
    shape: tuple[int, int]
    first_warp: int
    warpgroups: int = 1
    sent: SentParts | None = None
    teams = 1


@attrs.frozen
class Matmul(Distributed):
    """A warpgroup matmul: ``acc[m, n] += a[m, k] * b[n, k]`` with b, and mostly a, read from slots.

    The warpgroups that work on one tile, a team, share its rows in blocks of 64: warp w of the team's warpgroup g holds the
    rows ``(r * warpgroups + g) * 64 + 16 * w`` .. ``+ 16`` for r = 0, 1, ...

    Args:
        name: Of the matmul.
        a: Slots of the first operand; None: it comes from registers.
        b: Slots of the second operand.
        shape: (m, n, k) elements of the CTA's tile.
        warpgroups: Of one team.
        first_warp: Of the role, all of its teams together.
        teams: Of the role.
        promote: Whether sums leave the tensor core after each slot.
        transposed: Whether the slots of (a, b) hold tiles (k, m) and (k, n), contiguous along m and n.
        widest: The largest n of one instruction.
    """

    name: str
    a: Buffer | None
    b: Buffer
    shape: tuple[int, int, int]
    warpgroups: int
    first_warp: int
    teams: int = 1
    promote: bool = False
    transposed: tuple[bool, bool] = (False, False)
    widest: int = 256

    @property
    def types(self) -> tuple[DType, DType]:
        """Of (a, b)."""
        return self.b.dtype if self.a is None else self.a.dtype, self.b.dtype

    @property
    def registers(self) -> MatmulRegisters:
        """Of a thread."""
        return registers_of(self.shape, self.warpgroups, self.promote, self.a is None)

    @property
    def n_instructions(self) -> tuple[int, ...]:
        """n of the wgmma instructions side by side.

        Two where the tile is so wide that one instruction would need more registers than a thread is launched with, where
        there are many.
        """
        n, step = self.shape[1], 16 if self.b.dtype.integer else 8
        if n <= self.widest:
            return (n,)
        left = -(-n // (2 * step)) * step
        return left, n - left

    @property
    def k_instructions(self) -> int:
        """wgmma instructions a slot along k: each takes 32 bytes of k."""
        return self.shape[2] * self.b.dtype.bytes // 32
