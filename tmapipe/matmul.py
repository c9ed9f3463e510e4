"""Wgmma: warpgroup matmuls on slots, accumulated in registers."""

from __future__ import annotations

from tmapipe.errors import InputError
from tmapipe.stage import TmaLoadStage

__all__ = ["Wgmma"]


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
