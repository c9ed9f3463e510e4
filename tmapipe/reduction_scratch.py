"""ReductionScratch: shared memory for reductions of rows that lie in several warps."""

from __future__ import annotations

import attrs

from tmapipe.dtypes import fp32
from tmapipe.errors import InputError
from tmapipe.fields import is_count, shown
from tmapipe.integers import ceil_div
from tmapipe.role import Role
from tmapipe.scratch import Scratch

__all__ = ["ReductionScratch"]


@attrs.frozen(eq=False, init=False, repr=False)
class ReductionScratch(Scratch):
    """Declares what `tmapipe.math.row_sum` and its like need where a row lies in several warps of a role.

    Each warp leaves one number a row there, and reads those of the others after a barrier. There are two copies, so that one
    barrier for each reduction is enough.

    Args:
        role: Whose fragments are reduced.
        rows: Rows that a warp has of a tile, at most: as many as the tile has, or fewer if the warps share them out.

    Raises:
        InputError: For any other value.
    """

    rows: int = 1

    def __init__(self, role: Role, *, rows: int = 1):
        if not is_count(rows):
            raise InputError("ReductionScratch(rows)", rows, "is a positive number of rows", "leave it out for one row")
        warps = role.warps if isinstance(role, Role) else 1
        self.__attrs_init__(role, (warps, 4 * ceil_div(rows, 4)), fp32, 2, rows)  # rows of 16 bytes

    def __repr__(self) -> str:
        return shown(self, "tile", "dtype", "copies")
