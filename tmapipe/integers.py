"""Integer arithmetic, on the host and in traced code."""

from __future__ import annotations

from typing import Any

__all__ = ["ceil_div"]


def ceil_div(a: Any, b: Any) -> Any:
    """a / b rounded up, for non-negative a and positive b, run-time values too."""
    return (a + b - 1) // b
