"""ReductionScratch: shared memory for reductions over several warps, or several CTAs."""

from __future__ import annotations

import attrs

from tmapipe.dtypes import fp32
from tmapipe.errors import InputError
from tmapipe.fields import is_count, shown
from tmapipe.integers import ceil_div
from tmapipe.multicast import MulticastGroup
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
        group: CTAs of the cluster over which rows lie too: those that differ only along these axes, or with `ctas=` so many
            side by side. `row_sum`, `row_max` and their like are then over the whole row, in all of these CTAs, which all
            reduce at the same point. As many numbers fit for each of them.

    Raises:
        InputError: For any other value.
    """

    rows: int = 1
    columns: int = 1
    group: MulticastGroup | None = None

    def __init__(self, role: Role, *, rows: int = 1, columns: int = 1, group: MulticastGroup | None = None):
        for name, value in (("rows", rows), ("columns", columns)):
            if not is_count(value):
                rule = f"is a positive number of {name}"
                raise InputError(f"ReductionScratch({name})", value, rule, "leave it out for one")
        if group is not None and (not isinstance(group, MulticastGroup) or columns != 1):
            rule = "is a MulticastGroup: the CTAs of the cluster over which rows lie, and no columns"
            raise InputError("ReductionScratch(group)", group, rule, 'e.g. MulticastGroup("n"), without columns=')
        warps, width = role.warps if isinstance(role, Role) else 1, 4 * ceil_div(max(rows, columns), 4)  # 16 bytes
        self.__attrs_init__(role, tile=(warps, width), dtype=fp32, copies=2, rows=rows, columns=columns, group=group)

    def __repr__(self) -> str:
        unsaid = [name for name, default in (("columns", 1), ("group", None)) if getattr(self, name) == default]
        return shown(self, "tile", "dtype", "copies", *unsaid)
