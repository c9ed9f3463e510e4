"""Choosing by estimate: the candidate of the least estimated time that can be built."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.errors import InputError
from tmapipe.fields import check_type, is_count
from tmapipe.moved import moved
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.moved import OLD_KEYWORDS
from tmapipe.tuning.candidate import Candidate
from tmapipe.tuning.candidates import candidates
from tmapipe.tuning.cost import estimates
from tmapipe.tuning.epilogues import PLAIN
from tmapipe.tuning.problem import H200, Device, Problem

__all__ = ["choose", "likely", "ranked", "unsure"]

LOOKS = 4  # candidates that `choose` looks at where it can
UNSURE = 1.1  # estimates that are closer do not tell which is faster
AMONG = 24  # candidates of the least estimates, of which those that differ are looked at


def ranked(
    problem: Problem,
    device: Device = H200,
    most: int | None = None,
    epilogue: Epilogue | Callable[..., Any] | None = PLAIN,
) -> list[tuple[Candidate, float]]:
    """The candidates that can be built with their estimated times (microseconds), the fastest first.

    Args:
        problem: What is to be computed.
        device: The GPU to choose for.
        most: Return only so many; None: all.
        epilogue: What becomes of the sums, as of `tmapipe.schedules.Gemm`.

    Raises:
        InputError: For any other value.
    """
    _check(problem, device)
    if most is not None and not is_count(most):
        raise InputError("ranked(most)", most, "is a positive number of candidates, or None", "leave it out")
    epilogue = Epilogue.of(epilogue)
    every = [each for each in candidates(problem, device) if device.resident(each.ctas)]
    us = estimates(problem, every, device, fused=not epilogue.plain)
    found: list[tuple[Candidate, float]] = []
    for i in np.argsort(us, kind="stable"):
        if most is not None and len(found) == most:
            break
        if every[i].can_be_built(problem, epilogue):
            found.append((every[i], float(us[i])))
    return found


@moved(OLD_KEYWORDS)
def choose(
    problem: Problem,
    device: Device = H200,
    *,
    epilogue: Epilogue | Callable[..., Any] | None = None,
    look: int | None = None,
) -> Gemm:
    """The schedule that should be the fastest for *problem*, by estimate, and by a look at a few where that is unsure.

    Args:
        problem: E.g. ``Problem.of(a, b, d)``, which knows how far apart rows of the three lie.
        device: The GPU to choose for.
        epilogue: As of `tmapipe.schedules.Gemm`.
        look: Up to so many candidates that differ, whose estimates are within 10 %, are compiled and measured on this
            machine's GPU, once: what was found is remembered on disk, as by `tune`. None: 4 where *device* is this machine's
            GPU; else 1, which runs nothing and needs no GPU.

    Raises:
        InputError: No candidate can be built for the problem's types or with that epilogue.
        MissingGpuError: There is something to measure, and no GPU.
    """
    if look is not None and not is_count(look):
        raise InputError("choose(look)", look, "is a number of candidates, at least 1", "leave it out")
    fused = Epilogue.of(epilogue)
    _check(problem, device)
    look = look or (LOOKS if _is_here(device) else 1)
    if look > 1:
        few = unsure(problem, device, look, fused)
        if len(few) > 1:
            from tmapipe.tuning.tuner import compared

            return compared(problem, few, progress=False, epilogue=fused).schedule
    return likely(problem, device, 1, fused)[0].build(problem, fused)


def _is_here(device: Device) -> bool:
    """Whether the program uses this GPU: the present one of torch, which is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.get_device_name() == device.name


def unsure(problem: Problem, device: Device, most: int, epilogue: Epilogue = PLAIN) -> list[Candidate]:
    """Up to *most* candidates whose estimates are close to the least one: first that one, then others that differ in more than
    the cluster.

    Raises:
        InputError: As `choose`.
    """
    likely(problem, device, 1, epilogue)
    close = ranked(problem, device, AMONG, epilogue)
    found: dict[Any, Candidate] = {}
    for candidate, us in close:
        if us <= UNSURE * close[0][1]:
            found.setdefault(_form(candidate), candidate)
    return list(found.values())[:most]


def _form(candidate: Candidate) -> tuple[Any, ...]:
    return candidate.schedule, candidate.tile, candidate.accumulators, candidate.sharing, candidate.parts


def _check(problem: Any, device: Any) -> None:
    check_type("device", device, Device, "leave it out, or see tmapipe.tuning.Device")
    if not isinstance(problem, Problem):
        raise InputError("problem", problem, "is a Problem of tmapipe.tuning", "Problem(m, n, k), or Problem.of(a, b)")


def likely(problem: Problem, device: Device, most: int, epilogue: Epilogue = PLAIN) -> list[Candidate]:
    """The *most* candidates of the least estimated time, at least one.

    Raises:
        InputError: As `choose`.
    """
    found = ranked(problem, device, most, epilogue)
    if found:
        return [candidate for candidate, _ in found]
    if not epilogue.plain and ranked(problem, device, 1):
        Candidate("Gemm", (128, 128), (1, 1)).build(problem, epilogue)  # raises what is wrong with it
    fix = "use bf16 or fp16, or Problem.of(a, b, tf32=True) for fp32"
    raise InputError("Problem(dtype)", problem.dtype, "is a type that wgmma multiplies", fix)
