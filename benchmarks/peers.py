"""The peers that tmapipe is measured against. A peer is a module with

    prepare(a, b, out, every) -> {variant: callable}

a: (m, k), b: (n, k), out: (m, n), row-major CUDA tensors. Each callable takes nothing, launches ``out = a @ b.t()`` on torch's
current stream, and allocates nothing that its library does not. every: all configurations worth trying, not a few. `PINNED`
names the variants that are measured even if they look slow. For fp8, the name of a variant begins with "fast" (sums in the
tensor core's own precision) or "promoted" (sums promoted to fp32 on the way).

A peer that cannot run raises `Absent` (or `ImportError`) with the reason. Nothing of a peer's code is copied here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["PEERS", "Absent", "module_of", "prepare"]

PEERS = {
    "cublas": "benchmarks.peer_cublas",
    "cutlass": "benchmarks.peer_cutlass",
    "quack": "benchmarks.peer_quack",
    "triton": "benchmarks.peer_triton",
    "tmapipe": "benchmarks.ours",
}


class Absent(Exception):
    """A peer is not installed, or has nothing for this problem."""


def module_of(peer: str) -> Any:
    """The peer's module. Raises `Absent` with the reason if it cannot be imported."""
    try:
        return importlib.import_module(PEERS[peer])
    except ImportError as error:
        raise Absent(f"{type(error).__name__}: {error}") from error


def prepare(peer: str, a: Any, b: Any, out: Any, *, every: bool = False) -> dict[str, Callable[[], object]]:
    """The peer's variants for these tensors; none, and a line that says why, if it is absent."""
    try:
        return module_of(peer).prepare(a, b, out, every)
    except (Absent, ImportError) as reason:
        print(f"  {peer}: absent ({reason})")
        return {}
