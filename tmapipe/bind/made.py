"""Shapes and types of the outputs that a call makes: rules on extents, which may be numbers that only a trace knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tmapipe.dtypes import DType, bf16, dtype_of, int32
from tmapipe.errors import InputError
from tmapipe.matmul import Wgmma
from tmapipe.plan.declarations import Declarations
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["made_as", "of_sums", "outputs_of"]


def of_sums(dtype: DType) -> DType:
    """The default type of sums of products of *dtype*: the same; for 8 bits bf16, or int32 for integers."""
    if dtype.bytes > 1:
        return dtype
    return int32 if dtype.integer else bf16


def made_as(
    name: str, store: TmaStoreStage, extents: Mapping[str, Any], like: Any, like_dims: tuple[str, ...], first_load: str
) -> tuple[tuple[Any, ...], DType | None]:
    """(shape, type) of a new output, without the batch dimensions that *like* lacks. The type is by default that of the slots
    that it is stored from; of sums of 8 bits, bf16 or int32; else None, for that of *like*.

    Raises:
        InputError: An extent follows from no input.
    """
    dims = store.dims[len(store.folded) :]
    unknown = [dim for dim in dims if dim not in extents]
    if unknown:
        raise InputError(name, None, f"its extent along {', '.join(unknown)} follows from no input", f"pass {name}=")
    lacking = like_dims[: len(like_dims) - like.ndim]
    dtype = store.dtype
    if dtype is None and isinstance(store.source, Wgmma):
        dtype = of_sums(dtype_of(like, first_load))
    if dtype is None and store.slot is not None:
        dtype = store.slot.dtype and store.slot.dtype.in_memory
    return tuple(extents[dim] for dim in dims if dim not in lacking), dtype


def outputs_of(declared: Declarations, given: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], DType | None]]:
    """(shape, type) of each output that a call makes; the type is None for that of the first input.

    Args:
        given: Inputs and tables by name. They have shapes, as fake tensors do: what a call checks besides is not looked at.

    Raises:
        InputError: An extent follows from no input.
    """
    extents: dict[str, Any] = {}
    parts: dict[str, Any] = {**declared.inputs, **declared.tables}
    for name, part in parts.items():
        shape = tuple(given[name].shape)
        extents |= dict(zip(part.dims, (*(1,) * (len(part.dims) - len(shape)), *shape), strict=True))
    first = next(iter(declared.inputs))
    found = []
    for name, store in declared.stores.items():
        extents |= {dim.name: size for dim in declared.relations if (size := dim.extent(extents)) is not None}
        extents = {**store.derive(extents), **extents}
        found.append(made_as(name, store, extents, given[first], declared.inputs[first].dims, first))
    return found
