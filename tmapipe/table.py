"""Table: integers in global memory that every warp may read, such as where the groups of a grouped GEMM end."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.fields import must

__all__ = ["Table"]


def _split(dims: Any) -> Any:
    return tuple(dims.split()) if isinstance(dims, str) else dims


@attrs.frozen(eq=False, repr=False)
class Table:
    """A vector, or a matrix, of int32 in global memory. In bodies, ``k.<name>.entry(i)``, or of a matrix ``entry(i, j)``, is
    one of its entries, the same for all threads.

    A schedule is called with one after its loads' tensors. It stays as it is while the kernel runs.

    Args:
        dims: Name of its dimension, or of both. It has as many entries as the other tensors have elements along it.

    Raises:
        InputError: If these are no names.
    """

    dims: tuple[str, ...] = attrs.field(
        converter=_split,
        validator=must(
            lambda dims: (
                type(dims) is tuple and len(set(dims)) == len(dims) in (1, 2) and all(map(str.isidentifier, dims))
            ),
            "is the name of one dimension, or of two",
            'e.g. Table("l") or Table("b i")',
        ),
    )

    def __repr__(self) -> str:
        return f"Table({' '.join(self.dims)!r})"
