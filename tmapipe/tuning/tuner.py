"""Choosing a schedule by estimate, for a GEMM or a convolution; and the tuner, which measures the best by estimate."""

from __future__ import annotations

import functools
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np

from tmapipe.base.arithmetic import as_dtype, ceil_div, dtype_of
from tmapipe.base.disk import cache_folder
from tmapipe.base.tma_rules import ALIGNMENT, Windows
from tmapipe.bind import check_kind
from tmapipe.epilogue import Epilogue
from tmapipe.epilogue.operands import check_operands
from tmapipe.errors import InputError, MissingGpuError, PipelineError, check_bool, check_type, is_count, needed, require
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.gemms import Conv
from tmapipe.schedules.mainloop import Cooperative, PingPong
from tmapipe.tiles.persistent import PersistentTiles
from tmapipe.tuning.candidates import UNSURE, candidates
from tmapipe.tuning.compiling import Entry, build_all, load_entry, store
from tmapipe.tuning.cost import Run, Timing, estimates, fastest, times, together, work
from tmapipe.tuning.problem import (
    H200,
    LINE,
    PLAIN,
    SWIZZLE_SPAN,
    Candidate,
    Device,
    Problem,
    expected,
    operands,
    order_of,
)

# ---- choosing by estimate: the candidate of the least estimated time that can be built ------------------------------

LOOKS = 4  # candidates that `choose` looks at where it can
AMONG = 24  # candidates of the least estimates, of which those that differ are looked at


def ranked(
    problem: Problem,
    device: Device = H200,
    most: int | None = None,
    epilogue: Epilogue | Callable[..., Any] | None = PLAIN,
) -> list[tuple[Candidate, float]]:
    """The candidates that can be built, each with its estimated time (microseconds), the fastest first.

    Args:
        problem: What is to be computed.
        device: The GPU for which to choose.
        most: Return at most this many; None: all.
        epilogue: What is done with the sums, as in `tmapipe.schedules.Gemm`.

    Raises:
        InputError: For any other value.
    """
    _check(problem, device)
    if most is not None and not is_count(most):
        raise InputError("ranked(most)", most, "is a positive number of candidates, or None", "leave it out")
    epilogue = Epilogue.of(epilogue)
    if epilogue.operands:  # now, since thousands of candidates would find the same
        check_operands(epilogue.operands, epilogue.function, 1)
    every = [each for each in candidates(problem, device) if device.resident(each.ctas)]
    us = estimates(problem, every, device, fused=not epilogue.plain)
    best: list[tuple[Candidate, float]] = []
    for i in np.argsort(us, kind="stable"):
        if most is not None and len(best) == most:
            break
        if every[i].can_be_built(problem, epilogue):
            best.append((every[i], float(us[i])))
    return best


def choose(
    problem: Problem,
    device: Device = H200,
    *,
    epilogue: Epilogue | Callable[..., Any] | None = None,
    look: int | None = None,
) -> Gemm:
    """The schedule that should be the fastest for *problem*, by estimate; if the estimate is unsure, a few candidates are
    measured.

    Args:
        problem: E.g. ``Problem.of(a, b, d)``, which knows how far apart rows of the three tensors lie.
        device: The GPU for which to choose.
        epilogue: As in `tmapipe.schedules.Gemm`.
        look: How many different candidates are compiled and measured on this machine's GPU, at most, if their estimates are
            within 10 %. That is done once; the result is remembered on disk, as by `tune`. None: 4, or as TMAPIPE_LOOK says,
            if *device* is this machine's GPU; otherwise 1, which runs nothing and needs no GPU.

    Raises:
        InputError: No candidate can be built for the problem's types or with the epilogue, or TMA does not take the problem's
            rows.
        MissingGpuError: There is something to measure, and no GPU.
    """
    look = 1 if look is None and not is_here(device) else looks(look)
    fused = Epilogue.of(epilogue)
    _check(problem, device)
    if look > 1:
        known = recall(problem, device.name, fused, look) if is_here(device) else None
        if known is not None:  # without estimates of thousands, which take a second
            return known.schedule
        few = unsure(problem, device, look, fused)
        if len(few) > 1:
            return compared(problem, few, look=look, progress=False, epilogue=fused).schedule
    return likely(problem, device, 1, fused)[0].build(problem, fused)


def looks(given: Any, argument: str = "choose(look)") -> int:
    """How many candidates are looked at, at most: as *given*, or if that is None as TMAPIPE_LOOK says, or else `LOOKS`."""
    if given is None:
        argument, given = "TMAPIPE_LOOK", os.environ.get("TMAPIPE_LOOK") or LOOKS
        given = int(given) if str(given).isdecimal() else given
    if not is_count(given):
        raise InputError(argument, given, "is a number of candidates, at least 1", "leave it out")
    return int(given)


def is_here(device: Device) -> bool:
    """Whether *device* is the GPU that this program uses, which is torch's current GPU. Torch is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.get_device_name() == device.name


def unsure(problem: Problem, device: Device, most: int, epilogue: Epilogue = PLAIN) -> list[Candidate]:
    """Up to *most* candidates whose estimates are close to the least estimate; that candidate comes first. Candidates of other
    tiles or parts of k come before, say, the same candidate as a ping-pong. (Of pairs of `random_views`, 8 of 106 such
    candidates differ by 5 %, and 38 % of others.)

    Raises:
        InputError: As `choose`.
    """
    close = ranked(problem, device, AMONG, epilogue)
    if not close:
        likely(problem, device, 1, epilogue)  # raises what is wrong
    distinct: dict[Any, Candidate] = {}
    for candidate, us in close:
        if us <= UNSURE * close[0][1]:
            distinct.setdefault((candidate.schedule, candidate.accumulators, _form(candidate)), candidate)
    first = {_form(each): each for each in reversed(distinct.values())}.values()
    few = sorted(distinct.values(), key=lambda each: each not in first)
    shared = [candidate for candidate in few if candidate.share > 1]  # of which the estimate says least
    alone = most < 2 or not shared or shared[0] in few[:most]
    return few[:most] if alone else [*few[: most - 1], shared[0]]


def _form(of: Candidate) -> tuple[Any, ...]:
    return of.tile, of.sharing, of.parts, of.share


def _check(problem: Any, device: Any) -> None:
    check_type("device", device, Device, "leave it out, or see tmapipe.tuning.Device")
    if not isinstance(problem, Problem):
        raise InputError("problem", problem, "is a Problem of tmapipe.tuning", "Problem(m, n, k), or Problem.of(a, b)")
    of_a, of_b, of_d = problem.rows_at
    for name, at in (("a", of_a), ("b", of_b), ("d", math.gcd(of_d, problem.n * problem.out.bytes))):
        if at % ALIGNMENT:
            rule = f"begin at multiples of {ALIGNMENT} bytes, as TMA needs"
            raise InputError(f"rows of {name}", f"at multiples of {at} bytes", rule, "pad them, and begin views there")


def likely(problem: Problem, device: Device, most: int, epilogue: Epilogue = PLAIN) -> list[Candidate]:
    """The *most* candidates of the least estimated times, at least one.

    Raises:
        InputError: As `choose`.
    """
    best = ranked(problem, device, most, epilogue)
    if best:
        return [candidate for candidate, _ in best]
    if not epilogue.plain and ranked(problem, device, 1):
        Candidate("Gemm", (128, 128), (1, 1)).build(problem, epilogue)  # raises what is wrong with it
    fix = "use bf16 or fp16, or Problem.of(a, b, tf32=True) for fp32"
    raise InputError("Problem(dtype)", problem.dtype, "is a type that wgmma multiplies", fix)


# ---- convolutions: by the estimate of the GEMM that each is ----------------------------------------------------------


def choose_conv(
    x: Any,
    f: Any,
    windows: Windows,
    *,
    device: Device = H200,
    epilogue: Epilogue | Callable[..., Any] | None = None,
    tf32: bool = False,
) -> Conv:
    """The `Conv` that should be the fastest for *x* and *f*, by estimate. It needs no GPU and runs nothing.

    Args:
        x: Images [n, h, w, c], of one to three dimensions beside n and c; a torch tensor or NumPy array.
        f: Filters [o, r, s, c].
        windows: The windows of the convolution.
        device: The GPU for which to choose.
        epilogue, tf32: As in `tmapipe.schedules.Conv`.

    Raises:
        InputError: The shapes or types do not fit, or no candidate can be built with the epilogue.
    """
    check_type("windows", windows, Windows, "e.g. Windows((3, 3))")
    check_type("device", device, Device, "leave it out, or see tmapipe.tuning.Device")
    fused = Epilogue.of(epilogue)
    problem, read = _as_gemm(x, f, windows, tf32)
    every = [each for each in _plain(problem, device) if device.resident(each.ctas)]
    done = together(work(problem, candidate, device) for candidate in every)._replace(read=read)
    errors: list[InputError] = []
    for i in np.argsort(times(done, fused=not fused.plain), kind="stable"):
        try:
            return _built(every[i], windows, problem, fused)
        except InputError as error:
            errors.append(error)
    raise errors[0]


def _as_gemm(x: Any, f: Any, windows: Windows, tf32: bool) -> tuple[Problem, float]:
    """Windows times channels of each element of a window, in whole slots; and the bytes that are read of x and f."""
    rank = len(windows.size) + 2
    for name, tensor in (("x", x), ("f", f)):
        check_kind(name, tensor)
        rule = f"has {rank} dimensions, channels last"
        require(tensor.ndim == rank, f"{name}.shape", tuple(tensor.shape), rule, "x [n, h, w, c] and f [o, r, s, c]")
    dtype, channels = as_dtype("tf32") if tf32 else dtype_of(x, "x"), int(x.shape[-1])
    if tuple(map(int, f.shape[1:])) != (*windows.size, channels):
        rule = f"is (o, {', '.join(map(str, (*windows.size, channels)))})"
        raise InputError("f.shape", tuple(f.shape), rule, "pass filters of these windows and channels")
    image = tuple(map(int, x.shape[1:-1]))
    windows.check_image("x.shape", image)
    of_slot = SWIZZLE_SPAN // dtype.bytes
    k = math.prod(windows.size) * ceil_div(channels, of_slot) * of_slot
    rows = int(x.shape[0]) * math.prod(map(int, windows.counts(image)))
    problem = Problem(rows, int(f.shape[0]), k, dtype, dtype.in_memory)
    return problem, float((math.prod(x.shape) + math.prod(f.shape)) * dtype.bytes)


def _plain(problem: Problem, device: Device) -> Iterator[Candidate]:
    """The candidates that a `Conv` can be: whole tiles, rows of windows, one span of channels a slot; zeros beyond an edge."""
    for each in candidates(problem, device):
        options = {name: value for name, value in each.options if name != "outside"}
        if each.schedule in ("Gemm", "PingPong") and not options.keys() & {"along", "spans", "share"}:
            yield attrs.evolve(each, options=tuple(options.items()))


def _built(candidate: Candidate, windows: Windows, problem: Problem, epilogue: Epilogue) -> Conv:
    chosen = dict(candidate.options)
    in_turn = chosen.get("in_turn", True) or bool(epilogue.operands)
    tile = *candidate.tile, SWIZZLE_SPAN // problem.dtype.bytes
    how: dict[str, Any] = {"tiles": order_of(*chosen["order"]) if "order" in chosen else PersistentTiles()}
    how["mainloop"] = PingPong(in_turn=in_turn) if candidate.schedule == "PingPong" else Cooperative()
    how["epilogue"] = attrs.evolve(epilogue, stages=chosen.get("store_stages", epilogue.stages))
    made = Conv(windows, tile, candidate.cluster, tf32=problem.dtype.name == "tf32", **how)
    made.plan({"a": problem.dtype, "b": problem.dtype})
    return made


# ---- tuner: compiles the candidates of the least estimated times, times them here, and keeps the winner --------------

WITHIN = 2e-2  # relative error of what is right: bf16 rounds to 0.2 %
WITHIN_8_BITS = 0.1  # of fp8 outputs: e5m2 rounds to 6 %


@attrs.frozen
class Tuned:
    """The result of `tune`.

    Args:
        schedule: The fastest schedule, ready to be called.
        candidate: The candidate from which it was built.
        us: The time of a launch (microseconds).
        timings: The candidates that were timed at length, the fastest first.
        refused: The candidates that could not be used, with the reason.
    """

    schedule: Gemm
    candidate: Candidate
    us: float
    timings: tuple[tuple[Candidate, Timing], ...] = ()
    refused: tuple[tuple[Candidate, str], ...] = ()


def tune(
    problem: Problem,
    *,
    most: int = 12,
    jobs: int | None = None,
    again: bool = False,
    progress: bool = True,
    device: str = "cuda",
    epilogue: Epilogue | Callable[..., Any] | None = None,
) -> Tuned:
    """The fastest schedule for *problem* by measurement on *device*, or from the cache on disk.

    Each of the *most* candidates of the least estimated time is proved safe and compiled. Its result on random normal data is
    compared with torch's (with NumPy's if there is an epilogue). Launches are timed as `tmapipe.tuning.cost` says, with a cold
    L2 cache.

    Args:
        problem: E.g. ``Problem.of(a, b)``.
        most: How many candidates to try.
        jobs: How many processes compile; None: one per core, at most 16.
        again: Whether to measure even if the cache knows the problem.
        progress: Whether to show a progress bar.
        device: The device, by its name in torch.
        epilogue: As in `tmapipe.schedules.Gemm`.

    Raises:
        MissingGpuError: There is no GPU.
        InputError: As `choose`.
        PipelineError: No candidate gives the right result.
    """
    fused = Epilogue.of(epilogue)
    check_type("problem", problem, Problem, "Problem(m, n, k), or Problem.of(a, b)")
    for name, value in (("most", most), ("jobs", jobs)):
        if not (is_count(value) or (name == "jobs" and value is None)):
            raise InputError(f"tune({name})", value, "is a positive number", "leave it out")
    check_bool("tune(again)", again)
    check_bool("tune(progress)", progress)
    need_gpu()
    few = likely(problem, device_of(device), most, fused)
    return compared(problem, few, jobs=jobs, again=again, progress=progress, device=device, epilogue=fused)


def compared(
    problem: Problem,
    few: list[Candidate],
    *,
    look: int = 1,
    jobs: int | None = None,
    again: bool = False,
    progress: bool = False,
    device: str = "cuda",
    epilogue: Epilogue = PLAIN,
) -> Tuned:
    """The fastest of *few* candidates, from the cache on disk if it has the best of at least as many; otherwise measured as
    `tune` does. look: how many candidates were wanted, at most."""
    need_gpu()
    import torch

    gpu = torch.cuda.get_device_name(device)
    known = None if again else recall(problem, gpu, epilogue, len(few))
    if known is not None:
        return known
    from tmapipe.gpu.launch import CudaClock

    runs, schedules, refused = _prepare(problem, few, jobs, progress, device, epilogue)
    if not runs:
        raise PipelineError(f"no candidate for {problem} works: {'; '.join(f'{c}: {e}' for c, e in refused.items())}")
    timings = fastest(runs, CudaClock(device=device))
    best, timing = timings[0]
    remember(problem, gpu, Entry(best, timing.us, max(look, len(few))), epilogue)
    return Tuned(schedules[best], best, timing.us, tuple(timings), tuple(refused.items()))


def need_gpu() -> None:
    with needed("torch", "torch", "to measure candidates"):
        import torch
    with needed("cutlass", "nvidia-cutlass-dsl", "to compile candidates"):
        import cutlass  # noqa: F401

    if not torch.cuda.is_available():
        text = "candidates are measured on a GPU, and there is none here. choose() without look needs none."
        raise MissingGpuError(text)


def recall(problem: Problem, gpu: str, epilogue: Epilogue, tried: int = 1) -> Tuned | None:
    """The cached result for *problem*, the best of at least *tried* candidates, if it can still be built. (The file may be
    older than the schedules.)"""
    entry = load_entry(problem, gpu, epilogue)
    if entry is None or entry.tried < tried:
        return None
    try:
        return Tuned(entry.candidate.build(problem, epilogue), entry.candidate, entry.us)
    except Exception:  # any: the entry's names and values mean nothing to today's constructors
        return None


def remember(problem: Problem, gpu: str, entry: Entry, epilogue: Epilogue) -> None:
    """Stores *entry*. Only warns if that fails: the result is still good."""
    try:
        store(problem, gpu, entry, epilogue)
    except OSError as error:
        warnings.warn(f"tune() cannot keep its result in {cache_folder()}: {error}", stacklevel=3)


def device_of(device: str = "cuda") -> Device:
    """The properties of a CUDA device that the estimate needs."""
    import torch
    from cuda.bindings import driver

    from tmapipe.gpu.launch import resident_clusters

    named = torch.device(device)
    index = torch.cuda.current_device() if named.index is None else named.index
    torch.cuda.synchronize(index)  # what asks for occupancy needs a context
    properties = torch.cuda.get_device_properties(index)
    count = properties.multi_processor_count
    sizes = ((1, count), *((size, resident_clusters(index, size)) for size in (2, 3, 4, 8)))
    kinds = driver.CUdevice_attribute

    def attribute(kind: Any) -> int:
        error, value = driver.cuDeviceGetAttribute(kind, index)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise MissingGpuError(f"the driver does not tell {kind.name} of {properties.name}: {error.name}")
        return int(value)

    clock = attribute(kinds.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)  # kHz
    width = attribute(kinds.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)  # bits
    return Device(properties.name, count, sizes, 2 * clock * width / 8 / 1e6)


def _prepare(
    problem: Problem, candidates: list[Candidate], jobs: int | None, progress: bool, device: str, epilogue: Epilogue
) -> tuple[dict[Candidate, Run], dict[Candidate, Gemm], dict[Candidate, str]]:
    """(launches of the candidates that compile and are right, their schedules, what is wrong with the other candidates)."""
    from tqdm import tqdm

    with tqdm(total=len(candidates), desc=f"compiling for {problem}", disable=not progress) as bar:
        schedules, refused = build_all(
            problem, candidates, jobs, lambda candidate, error: bar.update() and None, epilogue
        )
    runs: dict[Candidate, Run] = {}
    a, b, out = data_of(problem, device)
    given = operands(problem, epilogue, device)
    right = expected(epilogue, product(a, b, epilogue), given)
    for candidate, schedule in schedules.items():
        run = functools.partial(schedule, a, b, out=out, **given)
        wrong = compare(run, out, right)
        if wrong:
            refused[candidate] = wrong
        else:
            runs[candidate] = run
    return runs, schedules, refused


def data_of(problem: Problem, device: str) -> tuple[Any, Any, Any]:
    """a, b and an output, for a problem: their rows begin where it says."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    lead = (problem.batch,) if problem.batch > 1 else ()
    of_a, of_b, of_d = problem.rows_at
    kind, out = (getattr(torch, dtype.torch) for dtype in (problem.dtype, problem.out))

    def normal(rows: int, major: str, rows_at: int) -> Any:
        height, width = (rows, problem.k) if major == "k" else (problem.k, rows)
        shape = *lead, height, _pitch(width, problem.dtype.bytes, rows_at)
        made = torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16).to(kind)[..., :width]
        return made if major == "k" else made.mT

    a, b = normal(problem.m, problem.majors[0], of_a), normal(problem.n, problem.majors[1], of_b)
    start = 0 if problem.pitch == of_d else of_d // problem.out.bytes
    pitch = _pitch(start + problem.n, problem.out.bytes, problem.pitch)
    d = torch.empty(*lead, problem.m, pitch, device=device, dtype=out)
    return a, b, d[..., start : start + problem.n]


def _pitch(width: int, size: int, rows_at: int) -> int:
    """How many elements after one row the next row begins, if rows have *width* elements and begin at multiples of exactly
    this many bytes."""
    return next(pitch for pitch in range(width, width + 2 * LINE) if math.gcd(LINE, pitch * size) == rows_at)


def product(a: Any, b: Any, epilogue: Epilogue) -> Any:
    """a b^T by torch: rounded to bf16, or in fp32 for an epilogue."""
    import torch

    kind = torch.bfloat16 if epilogue.plain else torch.float32
    return a.to(kind) @ b.to(kind).transpose(-1, -2)


def compare(run: Callable[[], object], out: Any, right: Mapping[str, Any]) -> str:
    """What is wrong with the results of *run*; "" if they are right up to rounding."""
    out.fill_(float("nan") if out.is_floating_point() else -1)
    try:
        results = run()
    except PipelineError as error:
        return str(error).splitlines()[0]
    outputs = results if isinstance(results, tuple) else (results,)
    for (name, value), output in zip(right.items(), outputs, strict=True):
        off = float((output.float() - value.float()).norm() / value.float().norm())
        if not off < (WITHIN_8_BITS if output.element_size() == 1 else WITHIN):
            return f"wrong: relative error of {name} {off:.1e}"
    return ""
