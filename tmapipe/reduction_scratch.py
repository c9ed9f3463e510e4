"""ReductionScratch: shared memory for reductions over several warps."""

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
    """Declares what `row_sum`, `column_sum` and their like need where a row or a column lies in several warps.

    Each warp leaves one number for each there, and reads those of the others after a barrier. There are two copies, so that
    one barrier for each reduction is enough.

    Args:
        role: Whose fragments are reduced.
        rows: Rows that a warp has of a tile, at most: as many as the tile has, or fewer if the warps share them out.
        columns: Of the tile, where columns are reduced.

    Raises:
        InputError: For any other value.
    """

    rows: int = 1
    columns: int = 1

    def __init__(self, role: Role, *, rows: int = 1, columns: int = 1):
        for name, value in (("rows", rows), ("columns", columns)):
            if not is_count(value):
                raise InputError(
                    f"ReductionScratch({name})", value, f"is a positive number of {name}", "leave it out for one"
                )
        warps, width = role.warps if isinstance(role, Role) else 1, 4 * ceil_div(max(rows, columns), 4)  # 16 bytes
        self.__attrs_init__(role, (warps, width), fp32, 2, rows, columns)

    def __repr__(self) -> str:
        return shown(self, "tile", "dtype", "copies", *(("columns",) if self.columns == 1 else ()))
