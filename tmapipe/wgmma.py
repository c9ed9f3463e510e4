"""Wgmma: warpgroup matmuls on slots, accumulated in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmapipe.barrier import RingEnd
from tmapipe.errors import InputError, ScopeError
from tmapipe.isa import Carried, Fragment, Isa
from tmapipe.plan import Matmul
from tmapipe.stage import PartInSlot, TmaLoadStage

__all__ = ["Accumulator", "BoundMatmul", "Wgmma"]


class Wgmma:
    """Declares ``acc[m, n] += a[m, k] * b[n, k]`` on the slots of a ring, by the warpgroups of its last phase.

    a, b: stages of one ring with tiles (m, k) and (n, k), contiguous along k; of 16-bit types also (k, m) and (k, n),
    contiguous along m or n, if the stages' dimensions say so: k is the one that the last two of both have in common;
    in_flight: wgmma groups (one a slot) that may still run while the next slot is waited for (1; 0 if sums are promoted).
    A slot is released when its group has retired, so `in_flight` slots later. m is a multiple of 64 a warpgroup, n a
    multiple of 8 up to 256, and k takes a multiple of 32 bytes (PTX ISA, wgmma shapes).

    Operands: two of bf16, fp16, tf32 or int8, or any two of fp8_e4m3 and fp8_e5m2. tf32 is fp32 that the TMA engine has
    rounded to 10 bits after the point: stages of dtype "tf32", tensors of fp32. Sums of int8 products (n: 8, 24 or a
    multiple of 16) are in int32 and saturate. All others are in fp32; but of fp8 operands the tensor core keeps some 14 bits
    of a sum. promote: after each slot (k elements of the tile, e.g. 128) the sums are added to others in fp32, outside of the
    tensor core, which takes twice the registers. The model sums in fp32 either way.
    """

    def __init__(self, a: TmaLoadStage, b: TmaLoadStage, *, in_flight: int | None = None, promote: bool = False):
        for argument, stage in (("Wgmma(a)", a), ("Wgmma(b)", b)):
            if not isinstance(stage, TmaLoadStage) or len(stage.tile) != 2:
                raise InputError(argument, stage, "is a TmaLoadStage with a tile of two extents", "pass such a stage")
        if a.ring is not b.ring:
            raise InputError("Wgmma(a, b)", (a.name, b.name), "lie in the slots of one ring", "give both the same ring")
        if in_flight is None:
            in_flight = 0 if promote else 1
        if not isinstance(in_flight, int) or in_flight < 0 or (promote and in_flight):
            rule = (
                "is 0 where sums are promoted, since each slot is waited for" if promote else "is a number, 0 or more"
            )
            raise InputError("Wgmma(in_flight)", in_flight, rule, "leave it out")
        self.a, self.b, self.in_flight, self.promote = a, b, in_flight, promote
        shared = set(a.dims[-2:]) & set(b.dims[-2:])
        k = shared.pop() if len(shared) == 1 else None
        self.transposed = (k == a.dims[-2], k == b.dims[-2])
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, n, k) elements of the CTA's tile; k of a."""
        (m, k), (n, _) = self.extents
        return m, n, k

    @property
    def extents(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(m, k) of a's tile and (n, k) of b's."""
        a, b = self.a.tile, self.b.tile
        return a[::-1] if self.transposed[0] else a, b[::-1] if self.transposed[1] else b


class BoundMatmul(Carried):
    """A `Wgmma` in the role that executes it."""

    def __init__(self, isa: Isa, matmul: Matmul, end: RingEnd):
        self.isa, self.matmul, self.end = isa, matmul, end
        self.latest: Accumulator | None = None

    def accumulate(self, *, empty: bool = True) -> Accumulator:
        """``with k.mma.accumulate() as acc:`` starts from zero; inside, ``acc.add(slot.a, slot.b)`` once a slot; on leaving,
        all groups have retired, every slot is released and the values can be used, until the next such block begins (it
        has the same registers). empty: whether it may end without a slot; False saves an instruction a value, and the model
        raises `ScopeError` if it does."""
        self.latest = Accumulator(self, empty)
        return self.latest


class Accumulator(Carried):
    """The fp32 sums of one output tile, in the registers of the role's warpgroups."""

    def __init__(self, bound: BoundMatmul, empty: bool):
        self.bound, self.empty = bound, empty
        self.registers: Fragment = None
        self.open = False

    def __enter__(self) -> Accumulator:
        self.registers = self.bound.isa.accumulator(self.bound.matmul, self.empty)
        self.open = True
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.bound.end.drain()
        self.open = False

    def add(self, a: PartInSlot, b: PartInSlot) -> None:
        """Starts the matmul of the two tiles of one open slot. Its end is awaited by the ring and by leaving `accumulate`."""
        matmul = self.bound.matmul
        if not self.open:
            raise ScopeError("acc.add() outside `with k.<mma>.accumulate() as acc`. Move it into that block.")
        for part, operand in ((a, matmul.a), (b, matmul.b)):
            part.slot._check_open()
            if part.ref.buffer != operand:
                raise ScopeError(f"acc.add() takes slot.{matmul.a.name} and slot.{matmul.b.name}, in this order.")
        # Once a slot, although once a tile would order the registers: ptxas puts in a missing one where it likes, and in a
        # path that it takes for divergent it then serializes every wgmma (its note C7519).
        isa = self.bound.isa
        isa.wgmma_fence()
        isa.wgmma(matmul, self.registers, a.ref, b.ref)
        if matmul.promote:
            isa.wgmma_commit()
            isa.wgmma_wait(0)
            isa.accumulator_promote(matmul, self.registers)
            a.slot.retired = True

    def columns(self, block: int, first: int, columns: int) -> Fragment:
        """The values of columns [first, first + columns) of the warpgroup's row block *block* (64 rows), as a fragment."""
        if self.open:
            raise ScopeError(
                "an accumulator read inside its `accumulate` block, where wgmma may still write it. Leave it first."
            )
        if self.bound.latest is not self:
            raise ScopeError(
                f"an accumulator of {self.bound.matmul.name} read after the next `accumulate` block has begun, which has the "
                "same registers. Store it before, or declare a second Wgmma."
            )
        return self.bound.isa.accumulator_columns(self.bound.matmul, self.registers, block, first, columns)


Epilogue = Callable[..., Any]
