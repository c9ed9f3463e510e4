"""Table: integers in global memory that every warp may read, such as where the groups of a grouped GEMM end."""

from __future__ import annotations

import attrs

from tmapipe.fields import must, shown

__all__ = ["Table"]


@attrs.frozen(eq=False, repr=False)
class Table:
    """A vector of int32 in global memory. In bodies, ``k.<name>.entry(i)`` is one of them, the same for all threads.

    A schedule is called with one after its loads' tensors. It stays as it is while the kernel runs.

    Args:
        dim: Name of its dimension. It has as many entries as the other tensors have elements along it.

    Raises:
        InputError: If that is no name.
    """

    dim: str = attrs.field(
        validator=must(
            lambda dim: isinstance(dim, str) and dim.isidentifier(),
            "is the name of one dimension",
            'e.g. Table("l")',
        )
    )

    @property
    def dims(self) -> tuple[str]:
        """Its dimensions by name, as stages have them."""
        return (self.dim,)

    def __repr__(self) -> str:
        return shown(self)
