"""cuBLAS, as torch calls it: torch.mm, and torch._scaled_mm (cuBLASLt) for fp8 with fast and with promoted sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

PINNED = ("torch.mm", "fast torch._scaled_mm", "promoted torch._scaled_mm")


def prepare(a: Any, b: Any, out: Any, every: bool) -> dict[str, Callable[[], object]]:
    if a.element_size() > 1:
        return {"torch.mm": functools.partial(torch.mm, a, b.t(), out=out)}
    one = torch.ones((), device=a.device)
    scaled = functools.partial(torch._scaled_mm, a, b.t(), scale_a=one, scale_b=one, out_dtype=out.dtype, out=out)
    return {
        "fast torch._scaled_mm": functools.partial(scaled, use_fast_accum=True),
        "promoted torch._scaled_mm": functools.partial(scaled, use_fast_accum=False),
    }
