"""Operand: how one input of a matmul lies in memory, and how it is loaded."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.barrier import BarrierRing
from tmapipe.dtypes import DType
from tmapipe.errors import InputError
from tmapipe.fields import must
from tmapipe.multicast import MulticastGroup
from tmapipe.stage import TmaLoadStage

__all__ = ["Operand", "in_shares"]

MAJORS = ("k", "m", "n")


def in_shares(rows: int, peers: int) -> bool:
    """Whether *peers* CTAs can load equal shares of *rows* rows along k: in steps of 8, the rows of a swizzle's pattern."""
    return rows % (8 * peers) == 0


@attrs.frozen
class Operand:
    """An input of a matmul, a [m, k] or b [n, k].

    Args:
        major: The dimension along which it is contiguous: "k", or for 16-bit types "m" (a) or "n" (b). torch's usual weight w,
            [k, n], is passed as ``w.t()`` with major "n".
        dtype: Of its elements; None: the tensor's. "tf32": a tensor of fp32, rounded to tf32 while it is loaded.
        l2_hint: Of its loads: "evict_first" (read once), "evict_last" or "evict_normal".
        outside: What slots hold of rows beyond its edge: "zeros", or "anything" (see `TmaLoadStage.anything_outside`), which
            pays where its few rows fill little of a tile: with an m of 16, a GEMM takes 6 to 16 % less time.

    Raises:
        InputError: Another major, or ``outside="anything"`` for an operand that is not contiguous along k.
    """

    major: str = attrs.field(default="k")
    dtype: DType | str | None = None
    l2_hint: str | None = None
    outside: str = attrs.field(
        default="zeros",
        validator=must(
            lambda rows: rows in ("zeros", "anything"), "is one of zeros, anything (beyond the edge)", 'use "zeros"'
        ),
    )

    @major.validator
    def _check(self, attribute: Any, value: Any) -> None:
        if not isinstance(value, str) or value not in MAJORS:
            raise InputError("Operand(major)", value, 'is "k", or "m" of a, or "n" of b', 'e.g. "k"')
        if value != "k" and self.outside != "zeros":
            rule = f"is zeros for an operand that is contiguous along {value}: its rows are added up"
            raise InputError("Operand(outside)", self.outside, rule, 'use "zeros"')

    @property
    def transposed(self) -> bool:
        """Whether the stage's last two dimensions are in the other order than the tensor's."""
        return self.major != "k"

    def stage(
        self,
        side: str,
        rows: int,
        k: int,
        *,
        ring: BarrierRing,
        batch: str = "l ",
        multicast: str | None,
        peers: int = 1,
    ) -> TmaLoadStage:
        """Its load stage, in tiles of *rows* x *k* elements.

        Args:
            side: Its dimension besides k, "m" or "n".
            rows: Elements of a tile along that.
            k: Elements of a tile along k.
            ring: Whose slots hold the tiles.
            batch: Names of the dimensions before, each with a space.
            multicast: The cluster's axis whose CTAs want the same tile, if there is one.
            peers: CTAs along that axis. Each loads an equal part of the tile, or, if its rows are no multiple of 8 for each,
                the first one all of it.
        """
        if self.major not in ("k", side):
            argument = {"m": "a", "n": "b"}[side]
            rule = f'of {argument} is "k" or "{side}"'
            raise InputError("Operand(major)", self.major, rule, f"{argument}=Operand({side!r})")
        whole = not self.transposed and not in_shares(rows, peers)
        dims, tile = (f"{side} k", (rows, k)) if self.major == "k" else (f"k {side}", (k, rows))
        stage = TmaLoadStage(
            f"{batch}{dims}",
            tile=tile,
            ring=ring,
            dtype=self.dtype,
            multicast=None if multicast is None else MulticastGroup(multicast, whole=whole),
            l2_hint=self.l2_hint,
        )
        return stage.anything_outside() if self.outside == "anything" else stage
