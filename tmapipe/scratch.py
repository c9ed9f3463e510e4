"""Scratch: shared memory that belongs to one role."""

from __future__ import annotations

import attrs

from tmapipe.dtypes import DType, as_dtype
from tmapipe.fields import as_tuple, is_count, must, shown
from tmapipe.role import Role
from tmapipe.stage import is_tile, is_written

__all__ = ["Scratch"]


@attrs.frozen(eq=False, repr=False)
class Scratch:
    """Declares shared memory in which the threads of a role pass values to each other.

    In the role's body, ``k.<name>`` is read and written as a stage's tile in an open slot is: ``k.<name>.write(v)``,
    ``k.<name>.read()``. What one thread has written, others read after ``k.sync()``, and they overwrite it after another one.
    With two copies used in turn, ``k.<name>.copy(i)``, one `sync` for each write is enough.

    Args:
        role: Whose threads use it.
        tile: Elements.
        dtype: Of the elements.
        copies: How many tiles there are, one after another.

    Raises:
        InputError: For any other value.
    """

    role: Role = attrs.field(
        validator=must(
            lambda role: isinstance(role, Role) and role.teams == 1,
            "is the Role that uses it, of one team",
            "pass that Role",
        )
    )
    tile: tuple[int, ...] = attrs.field(kw_only=True, converter=as_tuple, validator=is_tile)
    dtype: DType = attrs.field(kw_only=True, converter=as_dtype, validator=is_written)
    copies: int = attrs.field(
        default=1, kw_only=True, validator=must(is_count, "is a positive number of tiles", "use 1 or 2")
    )

    def __repr__(self) -> str:
        return shown(self)
