"""Matmuls and their accumulators, as the role that executes them sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmapipe.errors import ScopeError
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried
from tmapipe.plan.model import Distributed, HeldTile, Matmul
from tmapipe.protocol.parts import PartInSlot
from tmapipe.protocol.ring import RingEnd

__all__ = ["Accumulator", "BoundMatmul", "BoundRegisterTile", "Epilogue", "HeldValues", "TileValues"]


class BoundMatmul(Carried):
    """A `Wgmma` in the role that executes it."""

    def __init__(self, isa: Isa, matmul: Matmul, end: RingEnd):
        self.isa, self.matmul, self.end = isa, matmul, end
        self.latest: Accumulator | None = None

    def accumulate(self, *, empty: bool = True) -> Accumulator:
        """``with k.mma.accumulate() as acc:`` starts from zero; inside, ``acc.add(slot.a, slot.b)`` once per slot.

        At the end of the block, all wgmma groups have retired, every slot is released, and the sums can be used. They can be
        used until the next such block begins, which has the same registers.

        Args:
            empty: Whether the block may end without a slot. False saves an instruction per value; the model then raises
                `ScopeError` if it does.
        """
        self.latest = Accumulator(self, empty)
        return self.latest


class Accumulator(Carried):
    """The fp32 sums of one output tile, in the registers of the role's warpgroups."""

    def __init__(self, bound: BoundMatmul, empty: bool):
        self.bound, self.empty = bound, empty
        self.registers: Any = None
        self.open = False

    @property
    def matmul(self) -> Matmul:
        """Whose sums these are."""
        return self.bound.matmul

    def __enter__(self) -> Accumulator:
        self.registers = self.bound.isa.fragments.accumulator(self.bound.matmul, self.empty)
        self.open = True
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.bound.end.drain()
        self.open = False

    def add(self, a: PartInSlot, b: PartInSlot) -> None:
        """Starts the matmul of two tiles of one open slot. The ring, and the end of `accumulate`, wait until it is done."""
        matmul = self.bound.matmul
        if not self.open:
            raise ScopeError("acc.add() outside `with k.<mma>.accumulate() as acc`. Move it into that block.")
        for part, operand in ((a, matmul.a), (b, matmul.b)):
            if isinstance(part, PartInSlot):
                part.slot._check_open()
            if not isinstance(part, PartInSlot) or part.ref.buffer != operand:
                raise ScopeError(f"acc.add() takes slot.{matmul.a.name} and slot.{matmul.b.name}, in this order.")
        # Once per tile would order the registers. But where a fence is missing before some wgmma, ptxas may add one, where
        # it likes; in a path that it takes for divergent it then serializes every wgmma (its note C7519).
        isa = self.bound.isa
        isa.wgmma_fence()
        isa.wgmma(matmul, self.registers, a.ref, b.ref)
        if matmul.promote:
            isa.wgmma_commit()
            isa.wgmma_wait(0)
            isa.fragments.accumulator_promote(matmul, self.registers)
            a.slot.retired = True

    def values(self) -> Fragment:
        """All sums, as a fragment of (m, n).

        Raises:
            ScopeError: Inside the `accumulate` block, or after the next one has begun.
        """
        self._check_done()
        return self.bound.isa.fragments.accumulator_values(self.bound.matmul, self.registers)

    def columns(self, block: int, first: int, columns: int) -> Fragment:
        """A piece: columns [first, first + columns) of the warpgroup's row block *block*, which has 64 rows. Raises as
        `values`."""
        self._check_done()
        return self.bound.isa.fragments.accumulator_columns(self.bound.matmul, self.registers, block, first, columns)

    def _check_done(self) -> None:
        if self.open:
            raise ScopeError(
                "an accumulator read inside its `accumulate` block, where wgmma may still write it. Leave it first."
            )
        if self.bound.latest is not self:
            raise ScopeError(
                f"an accumulator of {self.bound.matmul.name} read after the next `accumulate` block has begun, which has the "
                "same registers. Store it before, or declare a second Wgmma."
            )


class BoundRegisterTile(Carried):
    """A `RegisterTile` in the role that computes it."""

    def __init__(self, plan: HeldTile):
        self.plan = plan

    def read(self, part: PartInSlot) -> Fragment:
        """The tile of an open slot, of as many elements, in fp32."""
        return part.read_columns(self.plan, ("m", "n"), self.plan.shape[1])

    def of(self, values: Fragment) -> HeldValues:
        """What a store takes. values: distributed as `read` does it."""
        return HeldValues(self.plan, values)


class TileValues(Carried):
    """A fragment that is distributed as the accumulators of *matmul*, as a store takes it."""

    def __init__(self, matmul: Distributed, values: Fragment):
        self.matmul, self.values = matmul, values

    def columns(self, block: int, first: int, columns: int) -> Fragment:
        """A piece of it."""
        return self.values.backend.columns_of(self.values, block, first, columns)


class HeldValues(Carried):
    """The values of a whole `RegisterTile`."""

    def __init__(self, plan: HeldTile, values: Fragment):
        self.matmul, self.values = plan, values

    def columns(self, block: int, first: int, columns: int) -> Fragment:
        """The values, all of them: a store takes them in one piece."""
        return self.values


Epilogue = Callable[..., Any]
