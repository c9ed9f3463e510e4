"""Choosing the schedule of a convolution: by the estimate of the GEMM that it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np

from tmapipe.bind.memory import check_kind
from tmapipe.dtypes import dtype_of
from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.errors import InputError
from tmapipe.fields import check_type
from tmapipe.integers import ceil_div
from tmapipe.schedules.conv import Conv
from tmapipe.schedules.mainloop import Cooperative, PingPong
from tmapipe.tiles.persistent import PersistentTiles
from tmapipe.tuning.candidate import SWIZZLE_SPAN, Candidate, order_of
from tmapipe.tuning.candidates import candidates
from tmapipe.tuning.cost import times, together, work
from tmapipe.tuning.problem import H200, Device, Problem
from tmapipe.windows import Windows

__all__ = ["choose_conv"]


def choose_conv(
    x: Any,
    f: Any,
    windows: Windows,
    *,
    device: Device = H200,
    epilogue: Epilogue | Callable[..., Any] | None = None,
) -> Conv:
    """The `Conv` that should be the fastest for *x* and *f*, by estimate. Needs no GPU and runs nothing.

    Args:
        x: Images [n, h, w, c], of one to three dimensions beside n and c; a torch tensor or NumPy array.
        f: [o, r, s, c].
        windows: Of the convolution.
        device: The GPU to choose for.
        epilogue: As of `tmapipe.schedules.Conv`.

    Raises:
        InputError: The shapes or types do not fit, or no candidate can be built with that epilogue.
    """
    check_type("windows", windows, Windows, "e.g. Windows((3, 3))")
    check_type("device", device, Device, "leave it out, or see tmapipe.tuning.Device")
    fused = Epilogue.of(epilogue)
    problem, read = _as_gemm(x, f, windows)
    every = [each for each in _plain(problem, device) if device.resident(each.ctas)]
    done = together(work(problem, candidate, device) for candidate in every)._replace(read=read)
    errors: list[InputError] = []
    for i in np.argsort(times(done, fused=not fused.plain), kind="stable"):
        try:
            return _built(every[i], windows, problem, fused)
        except InputError as error:
            errors.append(error)
    raise errors[0]


def _as_gemm(x: Any, f: Any, windows: Windows) -> tuple[Problem, float]:
    """Windows times channels of each element of a window, in whole slots; and the bytes that are read of x and f."""
    rank = len(windows.size) + 2
    for name, tensor in (("x", x), ("f", f)):
        check_kind(name, tensor)
        if tensor.ndim != rank:
            rule = f"has {rank} dimensions, channels last"
            raise InputError(f"{name}.shape", tuple(tensor.shape), rule, "x [n, h, w, c] and f [o, r, s, c]")
    dtype, channels = dtype_of(x, "x"), int(x.shape[-1])
    if tuple(map(int, f.shape[1:])) != (*windows.size, channels):
        rule = f"is (o, {', '.join(map(str, (*windows.size, channels)))})"
        raise InputError("f.shape", tuple(f.shape), rule, "pass filters of these windows and channels")
    image = tuple(map(int, x.shape[1:-1]))
    windows.check_image("x.shape", image)
    of_slot = SWIZZLE_SPAN // dtype.bytes
    k = math.prod(windows.size) * ceil_div(channels, of_slot) * of_slot
    rows = int(x.shape[0]) * math.prod(map(int, windows.counts(image)))
    problem = Problem(rows, int(f.shape[0]), k, dtype, dtype)
    return problem, float((math.prod(x.shape) + math.prod(f.shape)) * dtype.bytes)


def _plain(problem: Problem, device: Device) -> Iterator[Candidate]:
    """The candidates that a `Conv` can be: whole tiles, rows of windows, one span of channels a slot."""
    for each in candidates(problem, device):
        names = {name for name, _ in each.options}
        if each.schedule in ("Gemm", "PingPong") and not names & {"along", "spans", "outside"}:
            yield each


def _built(candidate: Candidate, windows: Windows, problem: Problem, epilogue: Epilogue) -> Conv:
    chosen = dict(candidate.options)
    in_turn = chosen.get("in_turn", True) or bool(epilogue.operands)
    made = Conv(
        windows,
        (*candidate.tile, SWIZZLE_SPAN // problem.dtype.bytes),
        candidate.cluster,
        mainloop=PingPong(in_turn=in_turn) if candidate.schedule == "PingPong" else Cooperative(),
        epilogue=attrs.evolve(epilogue, stages=chosen.get("store_stages", epilogue.stages)),
        tiles=order_of(*chosen["order"]) if "order" in chosen else PersistentTiles(),
    )
    made.plan({"a": problem.dtype, "b": problem.dtype})
    return made
