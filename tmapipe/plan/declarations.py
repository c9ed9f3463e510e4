"""A schedule's declared parts, sorted by kind."""

from __future__ import annotations

import attrs

from tmapipe.barrier import BarrierRing
from tmapipe.matmul import Wgmma
from tmapipe.role import Role
from tmapipe.stage import SharedStage, TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.table import Table
from tmapipe.turnstile import Turnstile

__all__ = ["Declarations"]


@attrs.frozen
class Declarations:
    """A schedule's declared parts, by kind, in the order of declaration. queue: (slots, words a slot) of a dynamic order."""

    name: str
    cluster: dict[str, int]
    roles: dict[str, Role]
    rings: dict[str, BarrierRing]
    loads: dict[str, TmaLoadStage]
    shared: dict[str, SharedStage]
    matmuls: dict[str, Wgmma]
    stores: dict[str, TmaStoreStage]
    turnstiles: dict[str, Turnstile]
    tables: dict[str, Table]
    queue: tuple[int, int] | None = None

    @property
    def stages(self) -> dict[str, TmaLoadStage | SharedStage]:
        """Everything that lies in slots of rings."""
        return {**self.loads, **self.shared}

    def stages_of(self, ring: BarrierRing) -> dict[str, TmaLoadStage | SharedStage]:
        """The stages in the slots of *ring*."""
        return {name: stage for name, stage in self.stages.items() if stage.ring.name == ring.name}
