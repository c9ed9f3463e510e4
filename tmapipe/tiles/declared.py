"""What the order of output tiles adds to a schedule's declarations."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.dim import Dim
from tmapipe.errors import InputError
from tmapipe.plan.declarations import Declarations, check_names
from tmapipe.role import Role
from tmapipe.tiles.axes import axes_of
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.queue import SCHEDULER

__all__ = ["with_order"]


def with_order(schedule: Any, declared: Declarations) -> Declarations:
    """*declared*, with what the order of tiles has of its own: bounds, a role, a queue.

    Raises:
        InputError: For attributes of the schedule that are not what they should be.
    """
    if not isinstance(schedule.tiles, TileOrder):
        fix = "e.g. PersistentTiles()"
        raise InputError("Schedule.tiles", schedule.tiles, "is an order of output tiles", fix)
    if not isinstance(schedule.relations, tuple) or not all(isinstance(dim, Dim) for dim in schedule.relations):
        raise InputError("Schedule.relations", schedule.relations, "is a tuple of Dim", 'e.g. (Dim("r", size=3),)')
    check_names("Schedule.transposed", schedule.transposed, declared.arguments)
    if not isinstance(schedule.checked, bool):
        raise InputError("Schedule.checked", schedule.checked, "is True or False", "use True, to be safe")
    relations = (*schedule.relations, *schedule.tiles.relations(declared, schedule.relations))
    declared = attrs.evolve(declared, bounded=schedule.tiles.bounded, relations=relations)
    queue = schedule.tiles.queue(len(axes_of(declared, schedule.over)) if declared.stages or declared.stores else 0)
    if queue is None:
        return declared
    if SCHEDULER in declared.roles:
        raise InputError("Schedule.tiles", schedule.tiles, f"has a role {SCHEDULER!r} of its own", "rename yours")
    return attrs.evolve(declared, parts={**declared.parts, SCHEDULER: Role(warps=1)}, queue=queue)
