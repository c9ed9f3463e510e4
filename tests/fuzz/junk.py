"""Values that somebody might pass by mistake."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np

__all__ = ["JUNK", "junk", "said"]

JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 64, 10**9, 2**31, 2**70, 0.5, -1.0, float("nan"), float("inf"), 1j,
    "", "m", "m n", "k", "bf16", "int8", "anything", (), (1,), (0, 0), (64, 64), (64, -64), (64, 64.0), (None, None),
    ("m", "k"), [], [64, 64], [64], {}, {"m": 1}, {"m": 2, "n": 1}, {"q": 2}, {"m": 0}, {1: 1}, {"d": None}, set(),
    b"bf16", object, object(), int, print, lambda: None, lambda x: x, lambda x, y: x, Ellipsis, slice(None), range(2),
    np.float32, np.dtype("f2"), np.zeros(3), np.zeros((2, 2), np.float16), np.int64(2), np.float32(1), "sm_90a", "add",
    10**5000, -(10**400),
)  # fmt: skip


def junk(rng: random.Random) -> Any:
    """One of the values, a copy that its user may change."""
    value = rng.choice(JUNK)
    return copy.copy(value) if isinstance(value, (list, dict, set, np.ndarray)) else value


def said(value: Any) -> str:
    """A value as text for the report, no longer than 90 characters."""
    if isinstance(value, np.ndarray) and value.size > 9:
        return f"<{value.dtype} {value.shape}>"
    try:
        return repr(value)[:90]
    except ValueError:  # of integers of more digits than Python prints
        return f"<{type(value).__name__} with thousands of digits>"
