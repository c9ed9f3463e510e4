"""Finds tests that compare bits with those of another library: ``python -m pytest -p tests.oracle.other_arithmetic``.

A plugin that gives the model another arithmetic, which agrees with its own wherever a result is exact: sums are rounded
towards zero, and functions to the neighbour nearer to zero. A test that fails under it compares rounded results of the model,
bit by bit, with what another library computes, or with a bound that is too tight. Tests that compare the model with itself
pass.
"""

import functools
from typing import Any

import numpy as np

from tmapipe import model as fragments
from tmapipe.base import arithmetic
from tmapipe.model import elements, memory
from tmapipe.model import elements as reductions


def _towards_zero(exact: Any) -> Any:
    nearest = np.asarray(exact).astype(np.float32)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(exact)
    return np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest)


def _accumulate(held: np.ndarray, sums: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        for each in sums:
            total = held + each
            held[...] = np.clip(total, -(2**31), 2**31 - 1) if held.dtype == np.int32 else _towards_zero(total)


def _add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return _towards_zero(x.astype(np.float64) + y) if x.dtype == np.float32 else x + y


def _total(values: np.ndarray) -> np.ndarray:
    return arithmetic.folded(_add, values) if values.shape[-1] else np.zeros(values.shape[:-1], values.dtype)


def _nearer_to_zero(function: Any, x: Any) -> Any:
    found, exact = function(x), function(np.asarray(x, np.float64))
    if np.asarray(found).dtype != np.float32:
        return found
    with np.errstate(all="ignore"):
        inexact = (found != exact) & np.isfinite(found)
        return np.where(inexact, np.nextafter(found, np.float32(0)), found).astype(np.float32)[()]


def pytest_configure() -> None:
    """As a plugin, not where it is imported: tests.oracle.judged_schedules imports all modules beside it."""
    memory.accumulate = _accumulate
    reductions.total = fragments.total = reductions.REDUCTIONS["sum"] = _total
    for name in elements.OF_ARITHMETIC:
        elements.FUNCTIONS[name] = functools.partial(_nearer_to_zero, elements.FUNCTIONS[name])
