"""Mainloops of a GEMM: how its warpgroups share the output tiles, and how its operands lie in memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import DType
from tmapipe.base.tensor_map import MulticastGroup
from tmapipe.epilogue import Epilogue
from tmapipe.errors import InputError, is_count, must
from tmapipe.kernel import KernelContext
from tmapipe.parts.stages import Turnstile
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.tiles.order import TileOrder

__all__ = ["Cooperative", "Operand", "PingPong", "in_shares"]


# ---- mainloop --------------------------------------------------------------------------------------------------------
#
# Mainloops of a GEMM: how its warpgroups share the output tiles.
#
# Cooperative   all warpgroups on one tile: mainloop 0 | epilogue 0 | mainloop 1 | ...
#
# PingPong      each warpgroup on a tile of its own, so that one's epilogue runs under the other's mainloop:
#               team 0    mainloop 0 | epilogue 0           | mainloop 2 | ...
#               team 1               | mainloop 1           | epilogue 1 | ...


_ALONG = must(lambda value: value in ("m", "n"), 'is "m" or "n" (of the output)', 'use "m"')
_BOOL = must(lambda value: isinstance(value, bool), "is True or False", "leave it out")


@attrs.frozen
class Cooperative:
    """All warpgroups share an output tile: 1 of m = 64, 2 of 128 or 256, 3 of 192 rows.

    Args:
        promote: Sums of fp8 operands leave the tensor core after each slot (see `Wgmma`).
        along: "m", or "n": warpgroups share the tile's columns instead, so that its rows are any multiple of 8 up to 256. The
            output is of 16 or 32 bits, and the only one.
    """

    promote: bool = attrs.field(default=False, validator=_BOOL)
    along: str = attrs.field(default="m", validator=_ALONG, kw_only=True)

    def role(self, declared: Role, rows: int) -> Role:
        """*declared*, or another role if its warpgroups cannot share *rows* rows of accumulators."""
        if rows % (16 * declared.warps) == 0 and declared.teams == 1:
            return declared
        return Role(warpgroups=2 if rows % 128 == 0 else 3 if rows % 192 == 0 else 1)

    def turnstiles(self, role: Role, stores: tuple[TmaStoreStage, ...]) -> dict[str, Turnstile]:
        """What orders the teams of *role*, which store through *stores*, by name."""
        return {}

    def mainloop_turn(self, k: KernelContext) -> AbstractContextManager[object]:
        """The scope of a mainloop. *k* is as in bodies."""
        return nullcontext()

    def epilogue_turn(self, k: KernelContext) -> AbstractContextManager[object]:
        """The scope of an epilogue. *k* is as in bodies."""
        return nullcontext()

    def check(self, tiles: TileOrder, epilogue: Epilogue) -> None:
        """Raises `InputError` for *tiles* or an *epilogue* that it does not go with."""
        _check_along(self, tiles, epilogue)


@attrs.frozen
class PingPong:
    """Two warpgroups, each with every second output tile, whose mainloops take turns.

    Best where the epilogue is long compared to the mainloop: short k, or tiles too small to hide it otherwise. The
    accumulators of a tile must fit in one warpgroup: up to 64 x 256 or 128 x 192.

    Args:
        promote: As of `Cooperative`.
        in_turn: Whether epilogues take turns as mainloops do, so that both warpgroups use the same output buffers. Without,
            each has buffers of its own and epilogues may overlap, which is faster if they take longer than mainloops. With
            operands it must be on, or one warpgroup could run ahead of the other by two laps of their ring.
        along: As of `Cooperative`.
    """

    promote: bool = attrs.field(default=False, validator=_BOOL)
    in_turn: bool = attrs.field(default=True, validator=_BOOL)
    along: str = attrs.field(default="m", validator=_ALONG, kw_only=True)

    def role(self, declared: Role, rows: int) -> Role:
        """*declared*, if it has teams, else two warpgroups. Each computes all *rows* rows of its tile."""
        return declared if declared.teams > 1 else Role(warpgroups=2, teams=2)

    def turnstiles(self, role: Role, stores: tuple[TmaStoreStage, ...]) -> dict[str, Turnstile]:
        """What orders the teams of *role*, which store through *stores*, by name."""
        found = {"order": Turnstile(role)}
        return found | ({"epilogue_order": Turnstile(role, stores)} if self.in_turn else {})

    def mainloop_turn(self, k: KernelContext) -> AbstractContextManager[object]:
        """The turn as `Cooperative.mainloop_turn` gives it: waits until the other team has left its mainloop."""
        return k.order.turn()

    def epilogue_turn(self, k: KernelContext) -> AbstractContextManager[object]:
        """The turn as `Cooperative.epilogue_turn` gives it: waits until the other team has left its epilogue, if `in_turn`."""
        return k.epilogue_order.turn() if self.in_turn else nullcontext()

    def check(self, tiles: TileOrder, epilogue: Epilogue) -> None:
        """Raises `InputError` for *tiles* or an *epilogue* that it does not go with."""
        _check_along(self, tiles, epilogue)
        if epilogue.operands and not self.in_turn:
            raise InputError("PingPong(in_turn)", False, "is needed with operands of the epilogue", "leave it out")
        if tiles.in_parts:
            rule = f"does not go with {type(tiles).__name__}, whose tiles differ in their steps or have none"
            raise InputError("mainloop", self, rule, "use Cooperative()")


def _check_along(mainloop: Cooperative | PingPong, tiles: TileOrder, epilogue: Epilogue) -> None:
    """Raises `InputError` for what transposed accumulators do not go with."""
    if mainloop.along == "m":
        return
    if tiles.bounded or getattr(tiles, "reduce", None):
        rule = f"does not go with {type(tiles).__name__}, whose tiles have bounds along m or are added to others"
        raise InputError("mainloop", mainloop, rule, 'use along="m"')
    if epilogue.outputs:
        raise InputError("mainloop", mainloop, "takes an epilogue without further outputs", 'use along="m"')


# ---- operand ---------------------------------------------------------------------------------------------------------
#
# Operand: how one input of a matmul lies in memory, and how it is loaded.


MAJORS = ("k", "m", "n")


def in_shares(rows: int, peers: int) -> bool:
    """Whether *peers* CTAs can load equal shares of *rows* rows along k: in steps of 8, the rows of a swizzle's pattern.

    Args:
        rows: Of the tile.
        peers: CTAs that take shares.

    Raises:
        InputError: One of them is no positive integer.
    """
    for name, value in (("rows", rows), ("peers", peers)):
        if not is_count(value):
            raise InputError(f"in_shares({name})", value, "is a positive integer", "e.g. 2")
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
