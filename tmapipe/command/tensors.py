"""The tensors of a command line: NumPy arrays of given shapes and types, of random numbers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tmapipe.command.named import pairs
from tmapipe.dtypes import DType, as_dtype, bf16
from tmapipe.errors import InputError
from tmapipe.schedule import Schedule

__all__ = ["dtypes_of", "extents", "filled", "fitted", "inputs_of", "tensors_of"]


def dtypes_of(texts: Sequence[str]) -> dict[str, DType]:
    """Element types by tensor, from texts such as ``a=fp16``."""
    return {name: as_dtype(value) for name, value in pairs("--dtype", texts, "a=bf16").items()}


def extents(argument: str, text: str) -> tuple[int, ...]:
    """Extents from a text such as ``512x256``. Raises `InputError` for another form."""
    if not re.fullmatch(r"\d{1,10}(x\d{1,10}){0,7}", text):
        raise InputError(argument, text, "is extents in elements with an x between them", "e.g. 512x256")
    return tuple(map(int, text.split("x")))


def tensors_of(
    schedule: Any, shapes: Sequence[str], dtypes: dict[str, DType], files: Sequence[str], seed: int = 0
) -> dict[str, np.ndarray]:
    """The inputs of a call by name: those in *files* (``rows=rows.npy``), and the others of random numbers.

    Raises:
        InputError: An input has neither a shape nor a file, or there is no such input.
    """
    sizes = {name: extents(f"--shape {name}", text) for name, text in pairs("--shape", shapes, "a=512x256").items()}
    kept = {name: _loaded(path) for name, path in pairs("--tensor", files, "rows=rows.npy").items()}
    inputs = inputs_of(schedule)
    for option, given in (("--shape", sizes), ("--tensor", kept), ("--dtype", dtypes)):
        for name in given:
            if name not in inputs and not (option == "--dtype" and name in _all(schedule)):
                raise InputError(option, name, f"names no input; the inputs are {', '.join(inputs)}", "rename it")
    generator = np.random.default_rng(seed)
    found = {}
    for name, (needed, declared, table) in inputs.items():
        if name in kept:
            found[name] = kept[name]
        elif name in sizes and table:
            rule = "is a table, whose entries are no random numbers"
            raise InputError("--shape", name, rule, f"write it to a file by numpy.save, and pass --tensor {name}=FILE")
        elif name in sizes:
            found[name] = filled(generator, sizes[name], dtypes.get(name) or declared or bf16)
        elif needed:
            option = f"--tensor {name}=FILE" if table else f"--shape {name}=..., its extents, e.g. {name}=512x256"
            raise InputError(name, None, "a tensor is needed for every input", f"pass {option}")
    return found


def inputs_of(schedule: Any) -> dict[str, tuple[bool, DType | None, bool]]:
    """By the name of each input: whether it is needed, the type that it is declared with, whether it is a table."""
    if not isinstance(schedule, Schedule):  # a kernel of rows
        given = inspect.signature(schedule.__call__).parameters
        return {name: (p.default is p.empty, None, False) for name, p in given.items() if name != "out"}
    declared = schedule.declared
    types = {name: getattr(load, "dtype", None) for name, load in declared.inputs.items()}
    loads = {name: (True, as_dtype(kind).in_memory if kind else None, False) for name, kind in types.items()}
    return {**loads, **dict.fromkeys(declared.tables, (True, None, True))}


def _all(schedule: Any) -> tuple[str, ...]:
    return tuple(schedule.declared.arguments) if isinstance(schedule, Schedule) else ()


def filled(generator: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Random numbers: normal ones, or integers from -8 to 7."""
    if dtype.integer:
        return generator.integers(-8, 8, shape).astype(dtype.numpy)
    return generator.standard_normal(shape, np.float32).astype(dtype.numpy)


def _loaded(path: str) -> np.ndarray:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        rule = f"is an array that numpy.save has written: {error}"
        raise InputError("--tensor", path, rule, "check the path") from None
    if not isinstance(found, np.ndarray):
        raise InputError("--tensor", path, "holds one array", "write it by numpy.save")
    return found


def fitted(schedule: Any, shapes: Sequence[str], dtypes: dict[str, DType]) -> Schedule:
    """*schedule*, or what a kernel of rows makes for rows of these lengths and types: for that, it computes two rows on the
    CPU model."""
    if isinstance(schedule, Schedule):
        return schedule
    two = tensors_of(schedule, shapes, dtypes, ())
    schedule(**{name: x.reshape(-1, x.shape[-1])[:2] if x.ndim > 1 else x for name, x in two.items()})
    return next(iter(schedule.fitted.values()))
