"""RegisterTile: a tile of numbers in the registers of warpgroups, distributed as a `Wgmma`'s accumulators are."""

from __future__ import annotations

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import is_whole, shown
from tmapipe.role import Role

__all__ = ["RegisterTile"]


@attrs.frozen(eq=False, repr=False)
class RegisterTile:
    """Declares fp32 values of an output tile that a role computes, which are stored as accumulators are.

    In the role's body, ``k.<name>.read(slot.x)`` is the tile of a slot, and ``k.<name>.of(values)`` what a store takes.

    Args:
        role: Warpgroups, of one team.
        shape: (m, n) elements: 64 rows a warpgroup, and columns that are a multiple of 8.

    Raises:
        InputError: For any other.
    """

    role: Role = attrs.field()
    shape: tuple[int, int] = attrs.field()

    @role.validator
    def _check_role(self, field: object, role: Role) -> None:
        if not isinstance(role, Role) or not role.by_warpgroup or role.teams != 1:
            rule = "is a role of whole warpgroups, of one team"
            raise InputError(f"{type(self).__name__}(role)", role, rule, "Role(warpgroups=1)")

    @shape.validator
    def _check_shape(self, field: object, shape: tuple[int, int]) -> None:
        rows = 16 * self.role.warps
        pair = isinstance(shape, (tuple, list)) and len(shape) == 2 and all(map(is_whole, shape))
        if not pair or shape[0] != rows or shape[1] < 8 or shape[1] % 8:
            rule = f"has {rows} rows, 64 a warpgroup, and a multiple of 8 columns"
            raise InputError(f"{type(self).__name__}(shape)", shape, rule, f"e.g. ({rows}, 64)")

    def __repr__(self) -> str:
        return shown(self)
