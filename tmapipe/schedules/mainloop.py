"""Mainloops of a GEMM: how its warpgroups share the output tiles.

Cooperative   all warpgroups on one tile: mainloop 0 | epilogue 0 | mainloop 1 | ...

PingPong      each warpgroup on a tile of its own, so that one's epilogue runs under the other's mainloop:
              team 0    mainloop 0 | epilogue 0           | mainloop 2 | ...
              team 1               | mainloop 1           | epilogue 1 | ...
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import attrs

from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.errors import InputError
from tmapipe.fields import must
from tmapipe.kernel import KernelContext
from tmapipe.role import Role
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.tiles.order import TileOrder
from tmapipe.turnstile import Turnstile

__all__ = ["Cooperative", "PingPong"]


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
        """As `Cooperative.mainloop_turn`: waits until the other team has left its mainloop."""
        return k.order.turn()

    def epilogue_turn(self, k: KernelContext) -> AbstractContextManager[object]:
        """As `Cooperative.epilogue_turn`: waits until the other team has left its epilogue, if `in_turn`."""
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
