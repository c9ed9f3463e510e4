"""Wgmma: warpgroup matmuls on slots, accumulated in registers."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import must, shown
from tmapipe.stage import TmaLoadStage

__all__ = ["Wgmma"]

_OPERAND = must(
    lambda stage: isinstance(stage, TmaLoadStage) and len(stage.tile) >= 2,
    "is a TmaLoadStage with a tile of two or more extents",
    "pass such a stage",
)


@attrs.frozen(eq=False, init=False, repr=False)
class Wgmma:
    """Declares ``acc[m, n] += a[m, k] * b[n, k]`` on the slots of a ring, by the warpgroups of its last phase.

    A slot is released when its wgmma group has retired, so `in_flight` slots later. m is a multiple of 64 a warpgroup, n a
    multiple of 8 up to 256, and k takes a multiple of 32 bytes (PTX ISA, wgmma shapes).

    Operands are two of bf16, fp16, tf32 or int8, or any two of fp8_e4m3 and fp8_e5m2. tf32 is fp32 that the TMA engine has
    rounded to 10 bits after the point: stages of dtype "tf32", tensors of fp32. Sums of int8 products (n: 8, 24 or a multiple
    of 16) are in int32 and saturate. All others are in fp32; but of fp8 operands the tensor core keeps some 14 bits of a sum.

    Args:
        a: Stage with a tile (m, k), contiguous along k; of 16-bit types also (k, m), contiguous along m. k is the dimension
            that the last two of both stages have in common.
        b: Stage of the same ring with a tile (n, k), or likewise (k, n).
        in_flight: wgmma groups (one a slot) that may still run while the next slot is waited for: by default 1, or 0 if
            sums are promoted.
        promote: Whether after each slot (k elements of the tile, e.g. 128) the sums are added to others in fp32, outside of
            the tensor core. This takes twice the registers. The model sums in fp32 either way.

    Raises:
        InputError: For any other value.
    """

    a: TmaLoadStage = attrs.field(validator=_OPERAND)
    b: TmaLoadStage = attrs.field(validator=_OPERAND)
    in_flight: int = attrs.field()
    promote: bool = False

    def __init__(self, a: TmaLoadStage, b: TmaLoadStage, *, in_flight: int | None = None, promote: bool = False):
        if not isinstance(promote, bool):
            raise InputError("Wgmma(promote)", promote, "is True or False", "leave it out")
        self.__attrs_init__(a, b, (0 if promote else 1) if in_flight is None else in_flight, promote)

    @b.validator
    def _of_one_ring(self, field: Any, b: TmaLoadStage) -> None:
        if self.a.ring is not b.ring:
            raise InputError("Wgmma(a, b)", (self.a, b), "lie in the slots of one ring", "give both the same ring")

    @in_flight.validator
    def _fits_promotion(self, field: Any, in_flight: Any) -> None:
        rule = (
            "is 0 where sums are promoted, since each slot is waited for" if self.promote else "is a number, 0 or more"
        )
        if not isinstance(in_flight, int) or in_flight < 0 or (self.promote and in_flight):
            raise InputError("Wgmma(in_flight)", in_flight, rule, "leave it out")

    def __repr__(self) -> str:
        return shown(self, *(("in_flight",) if self.in_flight == (0 if self.promote else 1) else ()))

    @property
    def transposed(self) -> tuple[bool, bool]:
        """Whether the tiles of (a, b) are (k, m) and (k, n)."""
        shared = set(self.a.dims[-2:]) & set(self.b.dims[-2:])
        k = shared.pop() if len(shared) == 1 else None
        return k == self.a.dims[-2], k == self.b.dims[-2]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, n, k) elements of the CTA's tile; k of a."""
        (m, k), (n, _) = self.extents
        return m, n, k

    @property
    def extents(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(m, k) of a's tile and (n, k) of b's."""
        (of_a, of_b), a, b = self.transposed, self.a.matrix, self.b.matrix
        return a[::-1] if of_a else a, b[::-1] if of_b else b
