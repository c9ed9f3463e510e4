"""The tuner: compiles the candidates of the least estimated times, checks and times them here, and keeps the winner."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.errors import InputError, MissingGpuError, PipelineError, needed
from tmapipe.fields import check_bool, check_type, is_count
from tmapipe.moved import moved
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.moved import OLD_KEYWORDS
from tmapipe.tuning import cache, epilogues
from tmapipe.tuning.candidate import Candidate
from tmapipe.tuning.choose import likely
from tmapipe.tuning.compiling import build_all
from tmapipe.tuning.problem import LINE, Device, Problem
from tmapipe.tuning.timing import Clock, Method, Run, Timing, rested, screen

__all__ = ["Tuned", "compare", "data_of", "pick", "product", "tune"]

METHOD = Method(rounds=4, batch=5, rest=0.1)
FINALISTS = 4
WITHIN = 2e-2  # relative error of what is right: bf16 rounds to 0.2 %
WITHIN_8_BITS = 0.1  # of fp8 outputs: e5m2 rounds to 6 %


@attrs.frozen
class Tuned:
    """What `tune` found.

    Args:
        schedule: The fastest, ready to be called.
        candidate: What it was built from.
        us: Time of a launch (microseconds).
        timings: The candidates that were timed at length, the fastest first.
        refused: Candidates that could not be used, with the reason.
    """

    schedule: Gemm
    candidate: Candidate
    us: float
    timings: tuple[tuple[Candidate, Timing], ...] = ()
    refused: tuple[tuple[Candidate, str], ...] = ()


@moved(OLD_KEYWORDS)
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
    compared with torch's (with NumPy's if there is an epilogue). Launches are timed as `tmapipe.tuning.timing` says, with a
    cold L2 cache.

    Args:
        problem: E.g. ``Problem.of(a, b)``.
        most: Candidates to try.
        jobs: Compiling processes; None: one per core, at most 16.
        again: Whether to measure even if the cache knows the problem.
        progress: Whether to show a progress bar.
        device: As torch names it.
        epilogue: As of `tmapipe.schedules.Gemm`.

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
    _need_gpu()
    few = likely(problem, device_of(device), most, fused)
    return compared(problem, few, jobs=jobs, again=again, progress=progress, device=device, epilogue=fused)


def compared(
    problem: Problem,
    few: list[Candidate],
    *,
    jobs: int | None = None,
    again: bool = False,
    progress: bool = False,
    device: str = "cuda",
    epilogue: Epilogue = epilogues.PLAIN,
) -> Tuned:
    """The fastest of *few* candidates, or of as many that were tried before, from the cache on disk. Else as `tune`."""
    _need_gpu()
    import torch

    gpu = torch.cuda.get_device_name(device)
    known = None if again else recall(problem, gpu, epilogue, len(few))
    if known is not None:
        return known
    from tmapipe.gpu.clock import CudaClock

    runs, schedules, refused = _prepare(problem, few, jobs, progress, device, epilogue)
    if not runs:
        raise PipelineError(f"no candidate for {problem} works: {'; '.join(f'{c}: {e}' for c, e in refused.items())}")
    timings = pick(runs, CudaClock(device=device), METHOD)
    best, timing = timings[0]
    remember(problem, gpu, cache.Entry(best, timing.us, len(few)), epilogue)
    return Tuned(schedules[best], best, timing.us, tuple(timings), tuple(refused.items()))


def _need_gpu() -> None:
    with needed("torch", "torch", "to measure candidates"):
        import torch
    with needed("cutlass", "nvidia-cutlass-dsl", "to compile candidates"):
        import cutlass  # noqa: F401

    if not torch.cuda.is_available():
        raise MissingGpuError(
            "candidates are measured on a GPU, and there is none here. choose() without look needs none."
        )


def recall(problem: Problem, gpu: str, epilogue: Epilogue, tried: int = 1) -> Tuned | None:
    """What the cache has for *problem*, the best of at least *tried* candidates, if it can still be built: the file may be
    older than the schedules."""
    entry = cache.load(problem, gpu, epilogue)
    if entry is None or entry.tried < tried:
        return None
    try:
        return Tuned(entry.candidate.build(problem, epilogue), entry.candidate, entry.us)
    except Exception:  # any: the entry's names and values mean nothing to today's constructors
        return None


def remember(problem: Problem, gpu: str, entry: cache.Entry, epilogue: Epilogue) -> None:
    """Stores *entry*. Only warns if that fails: the result is still good."""
    try:
        cache.store(problem, gpu, entry, epilogue)
    except OSError as error:
        warnings.warn(f"tune() cannot keep its result in {cache.cache_folder()}: {error}", stacklevel=3)


def pick(runs: Mapping[Candidate, Run], clock: Clock, method: Method) -> list[tuple[Candidate, Timing]]:
    """Screens all candidates, then times the best few at length; returns these, the fastest first."""
    kept = screen(runs, clock, FINALISTS, seed=method.seed)
    timed = rested({candidate: runs[candidate] for candidate in kept}, clock, method)
    return sorted(timed.items(), key=lambda item: item[1].us)


def device_of(device: str = "cuda") -> Device:
    """The properties of a CUDA device that the estimate needs."""
    import torch
    from cuda.bindings import driver

    from tmapipe.gpu.residency import resident_clusters

    found = torch.device(device)
    index = torch.cuda.current_device() if found.index is None else found.index
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
    """(launches of the candidates that compile and are right, their schedules, and what is wrong with the others)."""
    from tqdm import tqdm

    with tqdm(total=len(candidates), desc=f"compiling for {problem}", disable=not progress) as bar:
        schedules, refused = build_all(
            problem, candidates, jobs, lambda candidate, error: bar.update() and None, epilogue
        )
    runs: dict[Candidate, Run] = {}
    a, b, out = data_of(problem, device)
    given = epilogues.operands(problem, epilogue, device)
    right = epilogues.expected(epilogue, product(a, b, epilogue), given)
    for candidate, schedule in schedules.items():
        run = _launch(schedule, a, b, out, given)
        wrong = compare(run, out, right)
        if wrong:
            refused[candidate] = wrong
        else:
            runs[candidate] = run
    return runs, schedules, refused


def _launch(schedule: Gemm, a: Any, b: Any, out: Any, given: dict[str, Any]) -> Run:
    return lambda: schedule(a, b, out=out, **given)


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
    d = torch.empty(*lead, problem.m, _pitch(problem.n, problem.out.bytes, of_d), device=device, dtype=out)
    return a, b, d[..., : problem.n]


def _pitch(width: int, size: int, rows_at: int) -> int:
    """Elements from one row of so many to the next, where rows begin at multiples of so many bytes, and of no more."""
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
        found = run()
    except PipelineError as error:
        return str(error).splitlines()[0]
    outputs = found if isinstance(found, tuple) else (found,)
    for (name, value), output in zip(right.items(), outputs, strict=True):
        off = float((output.float() - value.float()).norm() / value.float().norm())
        if not off < (WITHIN_8_BITS if output.element_size() == 1 else WITHIN):
            return f"wrong: relative error of {name} {off:.1e}"
    return ""
