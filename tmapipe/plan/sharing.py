"""How the elements of a slot are distributed over the threads of a role: in short rows, one thread after another.

This depends only on the tile and the number of threads, not on the element type. So what is read from a slot of one type can
be written to a slot of another.
"""

from __future__ import annotations

import math

from tmapipe.errors import InputError
from tmapipe.plan.model import RoleWarps

__all__ = ["row_width"]


def row_width(stage: str, tile: tuple[int, ...], role: RoleWarps) -> int:
    """Elements of the row that one thread takes at a time: 8, 4, 2 or 1.

    Args:
        stage: Its name.
        tile: Elements of its slots along their extents.
        role: Whose threads share a slot.

    Raises:
        InputError: If they cannot share it evenly.
    """
    elements = math.prod(tile)
    for width in (8, 4, 2, 1):
        if tile[-1] % width == 0 and elements % (width * role.threads) == 0:
            return width
    raise InputError(
        f"{stage}.tile",
        tile,
        f"has {elements} elements, which the {role.threads} threads of role {role.name} cannot share evenly",
        f"choose a tile of a multiple of {role.threads} elements, or another number of warps",
    )
