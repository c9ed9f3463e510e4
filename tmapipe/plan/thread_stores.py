"""Stores by threads: what a plan has of them."""

from __future__ import annotations

from tmapipe.dtypes import DType
from tmapipe.errors import InputError
from tmapipe.plan.model import Buffer, Store
from tmapipe.stage import as_matrix
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["by_threads"]


def by_threads(name: str, store: TmaStoreStage, dtype: DType) -> Store:
    """The store called *name* of threads, from registers: it has no slots."""
    if store.vector < dtype.bytes or store.tile[-1] * dtype.bytes % store.vector:
        rule = (
            f"is at least an element of {dtype.bytes} bytes, and divides the tile's rows of {store.tile[-1]} elements"
        )
        raise InputError(f"{name}.vector", store.vector, rule, f"e.g. vector={dtype.bytes}")
    buffer = Buffer(name, 0, 0, as_matrix(store.tile), dtype)
    return Store(
        name, name, buffer, store.dims, store.span, core=len(store.tile), vector=store.vector, tensor_map=False
    )
