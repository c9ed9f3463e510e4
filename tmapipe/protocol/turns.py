"""A turnstile as one team sees it, or one warpgroup of a role of one team."""

from __future__ import annotations

from typing import Any, ClassVar

from tmapipe.errors import ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried
from tmapipe.plan.model import Barrier, NamedBarrier
from tmapipe.protocol.registry import stands_for
from tmapipe.turnstile import Turnstile

__all__ = ["BoundTurnstile", "TeamsInTurn", "WarpgroupsInTurn"]


class BoundTurnstile(Carried):
    """A turnstile as one of those sees it that take turns. own: its number among them, of which there are *units*."""

    _facts: ClassVar[dict[str, str]] = {"inside": "same"}

    def __init__(self, isa: Isa, name: str, own: Any, units: int):
        self.isa, self.name, self.own, self.units = isa, name, own, units
        self.inside = False
        self.isa.follow(self)

    def turn(self) -> BoundTurnstile:
        """The scope of one turn: entering waits for the one before, leaving lets the next one in."""
        return self

    def __enter__(self) -> BoundTurnstile:
        if self.inside:
            raise ScopeError(f"turnstile {self.name!r} entered twice. Leave the first turn before the next.")
        self.inside = True
        self.wait()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.inside = False
        if kind is None:
            following = self.own + 1
            self._let_in(self.isa.select(following == self.units, 0, following))

    def wait(self) -> None:
        """Waits until the one before has let this one in."""
        raise NotImplementedError

    def _let_in(self, following: Any) -> None:
        raise NotImplementedError


class TeamsInTurn(BoundTurnstile):
    """Of teams, by mbarriers. The parity to wait for is kept in a register."""

    def __init__(self, k: Any, name: str):
        self.barrier: Barrier = k.plan.barrier(f"{name}.turn")
        super().__init__(k.isa, name, k.role.team(k.isa.warp), k.role.teams)
        self.parity = k.isa.cells(k.isa.select(self.own == 0, 1, 0))

    def wait(self) -> None:
        self.isa.mbarrier_wait(self.barrier, self.own, self.parity[0])
        self.parity[0] = self.parity[0] ^ 1

    def _let_in(self, following: Any) -> None:
        self.isa.mbarrier_arrive(self.barrier, following)


class WarpgroupsInTurn(BoundTurnstile):
    """Of warpgroups that share tiles, by named barriers, which hand on sooner. At each meet the warpgroup that waits and the
    one before it. The last one lets the first one in at the beginning, so that nobody is inside; at the end, the first one
    meets it again."""

    def __init__(self, k: Any, name: str):
        self.barrier: NamedBarrier = next(each for each in k.plan.named_barriers if each.name == f"{name}.turn")
        super().__init__(k.isa, name, k.isa.warp // 4 - k.role.first_warp // 4, self.barrier.instances)
        k.isa.when(self.own == self.units - 1, lambda: self._let_in(0))

    def finish(self) -> None:
        """After the last tile."""
        self.isa.when(self.own == 0, self.wait)

    def wait(self) -> None:
        self.isa.named_barrier_sync(self.barrier, self.own)

    def _let_in(self, following: Any) -> None:
        self.isa.named_barrier_arrive(self.barrier, following)


@stands_for(Turnstile)
def _of_turnstile(k: Any, name: str, turnstile: Turnstile) -> BoundTurnstile:
    return (TeamsInTurn if k.role.teams > 1 else WarpgroupsInTurn)(k, name)
