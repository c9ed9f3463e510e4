"""Table: integers in global memory that every warp may look into, such as where the groups of a grouped GEMM end."""

from __future__ import annotations

from tmapipe.errors import InputError

__all__ = ["Table"]


class Table:
    """A vector of int32 in global memory, read by `Isa.table_value` and `Isa.table_count`; a schedule is called with one after
    its loads' tensors. It stays as it is while the kernel runs.

    dim: the name of its dimension; as many entries as the other tensors have along it. Raises `InputError` for no name.
    """

    def __init__(self, dim: str):
        if not isinstance(dim, str) or not dim.isidentifier():
            raise InputError("Table(dim)", dim, "is the name of one dimension", 'e.g. Table("l")')
        self.dims = (dim,)
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name
