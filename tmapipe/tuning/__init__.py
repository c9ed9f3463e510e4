"""Which schedule for which problem: an estimate that runs nothing, and a tuner that measures.

``choose(problem)`` takes the candidate with the least estimated time, ``choose_conv(x, f, windows)`` does for a convolution.
``tune(problem)`` compiles the candidates with the least estimated times, measures them on this GPU, and keeps the winner on
disk. ``autotune`` measures which parameters of a function that makes schedules are the fastest. ``looked`` measures which of a
few candidates is the fastest for a call, as kernels of rows ask for their forms; so does ``choose_dequant``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tmapipe import calling
from tmapipe.base.disk import cache_folder, locked
from tmapipe.bind import span
from tmapipe.epilogue import Epilogue
from tmapipe.errors import InputError, PipelineError, check_type, is_count, require
from tmapipe.schedule import Schedule
from tmapipe.schedules.dequant import DequantGemm
from tmapipe.tuning.candidates import candidates
from tmapipe.tuning.compiling import Few, built, compiled, export_tuned, import_tuned, keep, recall_entry
from tmapipe.tuning.cost import Method, Run, Timing, estimate, fastest, lost
from tmapipe.tuning.dequant import DequantForm, built_dequant, different_dequant, random_weights, ranked_dequant
from tmapipe.tuning.problem import H200, Candidate, Device, Problem, fingerprint, operands
from tmapipe.tuning.tuner import Tuned, choose, choose_conv, is_here, looks, need_gpu, ranked, tune

__all__ = [
    "AutoTuned", "Candidate", "Choice", "Device", "Problem", "Tuned", "autotune", "candidates", "choose", "choose_conv",
    "choose_dequant", "estimate", "export_tuned", "import_tuned", "ranked", "tune",
]  # fmt: skip


APART = 2e-2  # relative difference of results that mean the same: bf16 rounds to 0.2 %

Parameters = dict[str, Any]


@attrs.frozen
class Choice:
    """The schedule that was chosen for one kind of call.

    Args:
        schedule: The schedule, ready to be called.
        parameters: The parameters from which it was made.
        us: The time of a launch (microseconds); None: it was chosen without measuring.
        timings: (parameters, timing) of the candidates that were timed at length, the fastest first.
        refused: (parameters, reason) of the candidates that could not be used.
    """

    schedule: Schedule
    parameters: Parameters
    us: float | None = None
    timings: tuple[tuple[Parameters, Timing], ...] = ()
    refused: tuple[tuple[Parameters, str], ...] = ()


def autotune(
    space: Mapping[str, Sequence[Any]],
    *,
    key: Callable[..., Parameters] | None = None,
    most: int = 32,
    jobs: int | None = None,
    progress: bool = True,
) -> Callable[[Callable[..., Schedule]], AutoTuned]:
    """Makes a kernel of a function that returns a schedule. The first call for each kind of tensors measures which parameters
    are the fastest.

    Args:
        space: The values of each parameter of the function, the likely values first.
        key: A function of a call's tensors that returns further arguments for the decorated function. An example:
            ``lambda x: {"length": x.shape[1]}``. Calls of equal keys, element types and numbers of dimensions share a choice.
            None: there are no further arguments, and calls of equal shapes share a choice.
        most: How many candidates to try: the first that can be planned, in the order of the space, whose last parameter varies
            fastest.
        jobs: How many processes compile; None: one per core, at most 16.
        progress: Whether to show a progress bar.

    Raises:
        InputError: The space is empty, or has something other than values.
    """
    if not isinstance(space, Mapping) or not space or not all(isinstance(name, str) for name in space):
        raise InputError("autotune(space)", space, "is parameters with their values", 'e.g. {"warps": (4, 8)}')
    for name, values in space.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(f"autotune(space[{name!r}])", values, "is a sequence of values", "e.g. (4, 8)")
    require(key is None or callable(key), "autotune(key)", key, "is a function of the tensors", "leave it out")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InputError("autotune(most)", most, "is a positive number of candidates", "leave it out")
    return lambda make: AutoTuned(make, dict(space), key, most, jobs, progress)


class AutoTuned:
    """A function that makes schedules, as a kernel. Call it with tensors; `choice` says which schedule was chosen for them.

    On a GPU, each candidate is proved safe and compiled. Candidates are dropped that are refused, unsafe, or keep registers in
    local memory. The others are timed on the call's own tensors, with rests, in random order, on a cold L2 cache. Their
    outputs must be those of the first candidate, up to rounding. The result is remembered on disk, by the function's source,
    the key, the element types, the GPU and versions (`tmapipe.tuning.compiling`). Without a GPU, the candidate is chosen that
    a model expects to be the fastest (`lost`).

    Args:
        make: The function.
        space, key, most, jobs, progress: As in `autotune`.

    Raises:
        InputError: *make* cannot be called.
    """

    def __init__(
        self,
        make: Callable[..., Schedule],
        space: dict[str, Sequence[Any]],
        key: Callable[..., Parameters] | None,
        most: int,
        jobs: int | None,
        progress: bool,
    ):
        require(callable(make), "autotune()", make, "is over a function that returns a schedule", "decorate one")
        functools.update_wrapper(self, make)
        self.make, self.space, self.key = make, space, key
        self.most, self.jobs, self.progress = most, jobs, progress
        self.choices: dict[Any, Choice] = {}

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Runs the fastest schedule for these tensors, as `Schedule.__call__` does.

        Args:
            tensors, out, named: As in a call of the schedule.

        Raises:
            InputError: No candidate takes these tensors.
            PipelineError: No candidate works.
        """
        return self.choice(*tensors, out=out, **named).schedule(*tensors, out=out, **named)

    def _fixed(self, tensors: Any, named: Any) -> Parameters:
        """The arguments that the key gives for a call."""
        arguments = {} if self.key is None else self.key(*tensors, **named)
        if not isinstance(arguments, Mapping):
            rule = "returns arguments by name, in a dictionary"
            raise InputError("autotune(key)", arguments, rule, 'e.g. {"columns": 128}')
        return dict(arguments)

    def choice(self, *tensors: Any, out: Any = None, **named: Any) -> Choice:
        """The choice for these tensors. It is measured now if it has not been measured before.

        Args:
            tensors, out, named: As in a call of the schedule.
        """
        given = [*tensors, *named.values(), *(() if out is None else (out,))]
        fixed = self._fixed(tensors, named)
        kinds = tuple((str(x.dtype), x.ndim) for x in given)
        shapes = () if self.key is not None else tuple(tuple(x.shape) for x in given)
        problem = json.dumps([sorted(fixed.items()), kinds, tuple(named), out is None, shapes], default=str)
        if problem not in self.choices:
            self.choices[problem] = self._choose(problem, fixed, tensors, named, out)
        return self.choices[problem]

    def candidates(self, *tensors: Any, out: Any = None, **named: Any) -> tuple[list[Parameters], dict[int, str]]:
        """(the parameters that are tried for these tensors, why others are not tried, by number). The parameters that a model
        expects to be the fastest (`lost`) come first. It needs no GPU.

        Args:
            tensors, out, named: As in a call of the schedule.

        Raises:
            InputError: No parameters can be used for these tensors.
        """
        fixed = self._fixed(tensors, named)
        try:
            inspect.signature(self.make).bind(**fixed, **dict.fromkeys(self.space))
        except TypeError as error:
            names = [*fixed, *self.space]
            raise InputError("autotune(space)", names, f"is what the function takes: {error}", "rename them") from None
        good: list[tuple[float, Parameters]] = []
        bad: dict[int, str] = {}
        for number, values in enumerate(itertools.product(*self.space.values())):
            parameters = dict(zip(self.space, values, strict=True))
            try:
                schedule = self.make(**fixed, **parameters)
                check_type("autotune()'s result", schedule, Schedule, "return one; is a `return` missing?")
                plan = schedule.plan(schedule.bind(*tensors, out=out, **named).dtypes)
            except InputError as error:
                bad[number] = str(error)
                continue
            good.append((lost(plan, getattr(schedule.tiles, "ctas", 1)), parameters))
            if len(good) == self.most:
                break
        if not good:
            why = next(iter(bad.values())).removesuffix(".")
            raise InputError("autotune(space)", self.space, f"has no candidate for these tensors: {why}", "widen it")
        return [parameters for _, parameters in sorted(good, key=lambda each: each[0])], bad

    # ---- choosing -------------------------------------------------------------------------------------------------

    def _choose(self, name: str, fixed: Parameters, tensors: tuple[Any, ...], named: Parameters, out: Any) -> Choice:
        few, _ = self.candidates(*tensors, out=out, **named)
        first = tensors[0] if tensors else next(iter(named.values()))
        if not getattr(first, "is_cuda", False):
            return Choice(self.make(**fixed, **few[0]), few[0])
        import torch

        gpu, entry = torch.cuda.get_device_name(first.device), f"{self._fingerprint()} {name}"
        known = recall_entry(entry, gpu)
        if known is not None and known["parameters"] in few:
            return Choice(self.make(**fixed, **known["parameters"]), known["parameters"], known["us"])
        from tmapipe.gpu.launch import CudaClock

        schedules, wrong = self._build(fixed, few, tensors, named, out)
        runs = {
            number: functools.partial(schedule, *tensors, out=out, **named) for number, schedule in schedules.items()
        }
        wrong |= differing(runs)
        choice = fastest({n: run for n, run in runs.items() if n not in wrong}, CudaClock(device=str(first.device)))
        if not choice:
            said = "; ".join(f"{few[number]}: {error}" for number, error in wrong.items())
            raise PipelineError(f"no candidate of {self.make.__name__} works: {said}")
        best, timing = choice[0]
        try:
            keep(entry, gpu, {"parameters": few[best], "us": timing.us})
        except (OSError, TypeError) as error:  # of which the second is for values that are no JSON
            warnings.warn(f"autotune cannot keep its result in {cache_folder()}: {error}", stacklevel=4)
        timings = tuple((few[number], each) for number, each in choice)
        refused = tuple((few[number], error) for number, error in wrong.items())
        return Choice(schedules[best], few[best], timing.us, timings, refused)

    def _build(
        self, fixed: Parameters, few: list[Parameters], tensors: tuple[Any, ...], named: dict[str, Any], out: Any
    ) -> tuple[dict[int, Schedule], dict[int, str]]:
        """The candidates that are safe, compile and spill nothing, by number, and what is wrong with others."""
        from tqdm import tqdm

        jobs = [functools.partial(job_of, self.make, {**fixed, **each}, self._kinds(fixed, each, tensors, named, out))
                for each in few]  # fmt: skip
        with tqdm(total=len(few), desc=f"compiling {self.make.__name__}", disable=not self.progress) as bar:
            return compiled(jobs, self.jobs, lambda *_: bar.update() and None, spills=False)

    def _kinds(
        self, fixed: Parameters, parameters: Parameters, tensors: tuple[Any, ...], named: dict[str, Any], out: Any
    ) -> tuple[dict[str, str], dict[str, int]]:
        """Types and numbers of dimensions of all tensors of a call."""
        bound = self.make(**fixed, **parameters).bind(*tensors, out=out, **named)
        types = {name: dtype.name for name, dtype in bound.dtypes.items()}
        return types, {name: tensor.ndim for name, tensor in bound.tensors.items()}

    def _fingerprint(self) -> str:
        """Of the function: its name and its source."""
        try:
            source = inspect.getsource(self.make)
        except (OSError, TypeError):
            source = repr(self.make)
        return f"{self.make.__name__}-{hashlib.sha256(source.encode()).hexdigest()[:16]}"


def job_of(
    make: Callable[..., Schedule], parameters: Parameters, kinds: tuple[dict[str, str], dict[str, int]]
) -> tuple[Schedule, dict[str, str], dict[str, int]]:
    """The `tmapipe.tuning.compiling.Job` of one candidate, which a compiling process gets."""
    return make(**parameters), *kinds


def differing(runs: Mapping[int, Run]) -> dict[int, str]:
    """The runs that fail, or whose outputs differ from the outputs of the first run that does not fail; each with the reason.
    A run returns its outputs."""
    right: list[Any] | None = None
    wrong = {}
    for number, run in runs.items():
        try:
            results = run()
        except PipelineError as error:
            wrong[number] = str(error).splitlines()[0]
            continue
        outputs = [each.double() for each in (results if isinstance(results, tuple) else (results,))]
        if right is None:
            right = outputs
            continue
        if [each.shape for each in outputs] != [each.shape for each in right]:
            wrong[number] = "its result has another shape than that of the first one"
            continue
        for mine, other in zip(outputs, right, strict=True):
            off = float((mine - other).norm() / other.norm().clamp_min(1e-30))
            if not off < APART:
                wrong[number] = f"its result is off that of the first one by {off:.1e}"
    return wrong


# ---- looks: which of a few candidates is the fastest for a call, which measures them once -----------------------------

LEAST = 32 << 20  # bytes that a call reads, from which on a look pays: with what it writes, more than L2 holds
MOST = 512 << 20  # from which on calls share a result, as others do that read up to four times as much
LOOK = Method(rounds=3, batch=5, rest=0.03)

taken: dict[tuple[str, str], dict[str, Any]] = {}  # by entry and GPU, what this process has found; {}: nothing
_one_at_a_time = threading.RLock()  # measurements of two threads would disturb one another


def looked(
    name: str | Callable[[], str | None],
    few: Sequence[Few],
    run: Callable[[Few], object],
    read: Sequence[Any],
    written: Sequence[Any],
    look: int | None = None,
    least: int | None = None,
) -> Few:
    """The fastest of *few* for a call, by measurement on the call's own tensors, or as remembered, in the process and on disk.

    Nothing is measured, and the first is taken, if the call reads fewer bytes than *least*, an output may lie over an input, a
    CUDA graph is captured, something traces the tensors, a watchdog waits for launches, or the tensors are not on a GPU.

    Args:
        name: By which the result is remembered, with the GPU and the class of how much is read: it names all that the choice
            depends on. Or a function that returns the name, where that takes time; None: the first is taken.
        few: What differs, likely the fastest first. A candidate is remembered by its `repr`.
        run: Makes the call with one of them, by calls of schedules.
        read, written: The call's tensors.
        look: How many are compiled and measured, at most. None: 4, or as TMAPIPE_LOOK says; 1: the first is taken.
        least: Bytes that are read, from which on there is a look; None: 32 MiB.
    """
    most, tensors, least = looks(look, "look"), (*read, *written), least or LEAST
    several, bytes_ = few[:most], sum(x.nbytes for x in read)
    if len(several) < 2 or bytes_ < least or (gpu := gpu_of(tensors)) is None:
        return few[0]
    while least << 2 <= min(bytes_, MOST):
        least <<= 2
    known_as = name if isinstance(name, str) else name()
    if known_as is None:
        return few[0]
    return measured(f"{known_as}, {least} bytes or more", gpu, few, run, read, written, len(several)) or few[0]


calling.looked = looked


def measured(
    entry: str,
    gpu: str,
    few: Sequence[Few],
    run: Callable[[Few], object],
    read: Sequence[Any],
    written: Sequence[Any],
    most: int,
) -> Few | None:
    """What `looked` finds, under the name *entry*, among the first *most* of *few*; None: nothing."""
    found = known(entry, gpu, few, most)
    if found is None and not busy(read, written):
        with _one_at_a_time:
            found = known(entry, gpu, few, most, anew=True)
            if found is None:  # nor has another thread looked meanwhile
                found = _looked(entry, gpu, few[:most], run, [*read, *written][0].device)
    return found


def known(entry: str, gpu: str, few: Sequence[Few], tried: int, anew: bool = False) -> Few | None:
    """The candidate that is remembered as the best of at least so many. *anew*: the disk is read again."""
    if anew or (entry, gpu) not in taken:
        taken[entry, gpu] = recall_entry(entry, gpu) or taken.get((entry, gpu), {})
    found = taken[entry, gpu]
    if not isinstance(found.get("tried"), int) or found["tried"] < tried:
        return None
    if found.get("best") not in [*few]:  # whose `repr` takes longer than a comparison
        found["best"] = next((each for each in few if repr(each) == found.get("choice")), None)
    return found["best"]


def gpu_of(tensors: Sequence[Any]) -> str | None:
    """The name of the GPU on which these *tensors* lie, if they are plain and nothing traces them."""
    torch = sys.modules.get("torch")
    if torch is None or not all(type(x) in (torch.Tensor, torch.nn.Parameter) and x.is_cuda for x in tensors):
        return None
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return None
    return str(torch.cuda.get_device_name(tensors[0].device))


def busy(read: Sequence[Any], written: Sequence[Any]) -> bool:
    """Whether a call cannot be made several times now: it is held, captured or waited for, or writes over what it reads."""
    from tmapipe.gpu.kernels import capturing
    from tmapipe.gpu.watchdog import seconds_of

    places = [[(x.data_ptr(), x.data_ptr() + span(x)) for x in of] for of in (read, written)]
    over = any(a < d and c < b for (a, b), (c, d) in itertools.product(*places))
    return over or calling.holding() or capturing() or seconds_of(Schedule()) is not None


def _looked(entry: str, gpu: str, few: Sequence[Few], run: Callable[[Few], object], device: Any) -> Few | None:
    """The fastest, which is remembered; None if fewer than two work, or there is no memory to measure them in. Processes
    compile side by side, and measure one after another."""
    from tmapipe.gpu.kernels import unwatched

    with unwatched():
        runs = built(few, run)
        if len(runs) < 2:
            return None
        with locked(cache_folder() / "locks" / "look.lock"):
            found = known(entry, gpu, few, len(few), anew=True)
            timings = [] if found is not None else timed(runs, device)  # nor has another process looked meanwhile
    if found is not None or not timings:
        return found
    best, timing = timings[0]
    taken[entry, gpu] = {"choice": repr(few[best]), "us": timing.us, "tried": len(few)}
    try:
        keep(entry, gpu, taken[entry, gpu])
    except OSError as error:
        warnings.warn(f"a look cannot keep its result in {cache_folder()}: {error}", stacklevel=4)
    return few[best]


def timed(runs: Mapping[int, Run], device: Any) -> list[tuple[int, Timing]]:
    """The times of *runs* on a *device*, the fastest first; none if there is no memory to measure them in."""
    import torch

    from tmapipe.gpu.launch import CudaClock

    with torch.cuda.device(device), contextlib.suppress(torch.cuda.OutOfMemoryError):
        return fastest(runs, CudaClock(device=str(device)), LOOK)
    return []


# ---- dequantgemm: the form that a model finds fastest, or a look among a few -------------------------------------------


def choose_dequant(
    shape: tuple[int, int, int],
    weights: str = "int8",
    *,
    group: int | None = None,
    zeros: bool = False,
    epilogue: Epilogue | Callable[..., Any] | None = None,
    device: Device = H200,
    look: int | None = None,
) -> DequantGemm:
    """The `DequantGemm` that should be the fastest for a product, by a model; on its GPU, the fastest of a few.

    Args:
        shape: (m, n, k) of the product.
        weights, group, zeros, epilogue: As in `DequantGemm`.
        device: The GPU for which to choose.
        look: How many different forms are compiled and measured, at most, if the model finds them nearly as fast; as of
            `choose`. a is bf16 then.

    Raises:
        InputError: `DequantGemm` refuses the arguments, or *shape* is not three positive integers.
        MissingGpuError: There is something to measure, and no GPU.
    """
    if not (isinstance(shape, (tuple, list)) and len(shape) == 3 and all(map(is_count, shape))):
        rule = "is (m, n, k), three positive integers"
        raise InputError("choose_dequant(shape)", shape, rule, "e.g. (16, 4096, 4096)")
    check_type("choose_dequant(device)", device, Device, "leave it out, or see tmapipe.tuning.Device")
    made = functools.partial(DequantGemm, weights, group=group, zeros=zeros, epilogue=epilogue)
    made((64, 64, 32), (1, 1))  # which checks the others
    look = 1 if look is None and not is_here(device) else looks(look, "choose_dequant(look)")
    m, n, k = shape
    forms = ranked_dequant((m, n, k), weights, group, zeros, device.multiprocessors)
    forms = [each for each in forms if epilogue is None or each[4] is None]  # whose operands might want room
    few = different_dequant((m, n, k), forms, weights, bool(group) or zeros, device.multiprocessors)[:look]
    if len(few) == 1:
        return built_dequant(forms[0], made)
    need_gpu()
    import torch

    fused, built_of = Epilogue.of(epilogue), functools.cache(functools.partial(built_dequant, made=made))
    entry = f"DequantGemm {m}x{n}x{k} {weights} {group} {zeros} {fingerprint(fused)}".strip()
    gpu, every = torch.cuda.get_device_name(), [*few, *forms]
    found = known(entry, gpu, every, len(few))
    if found is None and not busy((), ()):
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            given = random_weights((m, n, k), weights, group, zeros, device="cuda")
            given |= operands(Problem(m, n, k), fused, "cuda")
            out = given["a"].new_empty(m, n)
            run: Callable[[DequantForm], object] = lambda form: built_of(form)(**given, out=out)  # noqa: E731
            found = measured(entry, gpu, every, run, [*given.values()], [out], len(few))
    return built_of(found or forms[0])
