"""Ahead of time: from a schedule and tensors, of which some are extents, to a library of compiled kernels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tmapipe.base.arithmetic import DType, as_dtype, bf16, fp32, int32
from tmapipe.errors import InputError, is_count, needed

if TYPE_CHECKING:
    from tmapipe.gpu.exporting import Exported


def exported(schedule: Any, tensors: tuple[Any, ...], dtypes: Mapping[str, DType | str]) -> Exported:
    """The kernel for tensors of which some are extents."""
    with needed("cutlass", "nvidia-cutlass-dsl", "to compile a kernel"):
        from tmapipe.gpu.exporting import Exported

    declared = schedule.declared
    schedule.plan(types := {name: as_dtype(dtype) for name, dtype in dtypes.items()})
    names = declared.arguments
    if len(tensors) > len(names):
        raise InputError(
            "tensors", f"{len(tensors)} tensors", f"at most {len(names)}: {', '.join(names)}", "pass fewer"
        )
    given = {name: _example(schedule, name, x, types) for name, x in zip(names, tensors, strict=False)}
    bound = schedule.bind(*given.values())
    if bound.on_gpu or bound.empty:
        what = "tensors on the CPU, or extents" if bound.on_gpu else "no extent of 0"
        raise InputError("tensors", bound.shapes, f"are {what}", "pass extents such as (512, 256)")
    whole = {name: given.get(name, bound.tensors[name]) for name in names}
    return Exported(schedule, whole, bound)


def _example(schedule: Any, name: str, tensor: Any, dtypes: Mapping[str, DType]) -> Any:
    """An array of these extents, of which nothing is read; an array as it is."""
    if not isinstance(tensor, (tuple, list)):
        return tensor
    if not all(is_count(extent) for extent in tensor):
        raise InputError(name, tensor, "has extents that are positive integers", "e.g. (512, 256)")
    declared = schedule.declared
    part = declared.inputs.get(name) or declared.stores.get(name)
    dtype = dtypes.get(name) or (int32 if part is None else getattr(part, "dtype", None))
    if dtype is None:
        dtype = fp32 if getattr(part, "number", False) else bf16
    return np.empty(tuple(tensor), as_dtype(dtype).in_memory.numpy)


def export_all(path: str | os.PathLike[str], kernels: Mapping[str, Exported], arch: str | None) -> Path:
    if not isinstance(path, (str, os.PathLike)) or Path(path).suffix != ".so":
        raise InputError("path", path, "is the path of a library, which ends with .so", 'e.g. "gemm.so"')
    with needed("cutlass", "nvidia-cutlass-dsl", "to compile a kernel"):
        from tmapipe.gpu.exporting import export as write
        from tmapipe.gpu.exporting import in_c
    for name in kernels:
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or in_c(name) != name:
            rule = "is the name of a C function that the library does not have yet"
            raise InputError("name", name, rule, 'e.g. "gemm"')
    from tmapipe.prove.trips import require_safe_once

    return write(Path(path), kernels, require_safe_once, arch)
