"""The heuristic: the candidate of the least estimated time that can be built."""

from __future__ import annotations

from typing import Any

from tmapipe.errors import InputError
from tmapipe.tuning.candidates import Candidate, candidates
from tmapipe.tuning.cost import estimate
from tmapipe.tuning.problem import H200, Device, Problem

__all__ = ["choose", "ranked"]


def ranked(problem: Problem, device: Device = H200, most: int | None = None) -> list[tuple[Candidate, float]]:
    """Candidates that can be built with their estimated microseconds, the fastest first; *most* of them, or all."""
    order = sorted(((estimate(problem, c, device), i, c) for i, c in enumerate(candidates(problem, device))))
    found: list[tuple[Candidate, float]] = []
    for us, _, candidate in order:
        if most is not None and len(found) == most:
            break
        if candidate.can_be_built(problem):
            found.append((candidate, us))
    return found


def choose(problem: Problem, device: Device = H200) -> Any:
    """The schedule that should be the fastest for *problem*; needs no GPU and runs nothing. Raises `InputError` if none can
    be built for its types."""
    best = ranked(problem, device, 1)
    if not best:
        fix = "use bf16 or fp16, or tf32=True for fp32"
        raise InputError("Problem(dtype)", problem.dtype, "is a type that wgmma multiplies", fix)
    return best[0][0].build(problem)
