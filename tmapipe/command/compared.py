"""Verbs that run a call on the model: several interleavings, whose results are compared, and timelines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from tmapipe.base.arithmetic import DType
from tmapipe.bind import Bound
from tmapipe.command.named import (
    WRONG,
    Answer,
    answering,
    dtypes_of,
    fitted,
    made,
    named,
    settings_of,
    tensors_of,
    users_code,
    working,
)
from tmapipe.errors import InputError, MissingGpuError, needed
from tmapipe.model.run import Run
from tmapipe.schedule import Schedule
from tmapipe.schedules.copy import Copy
from tmapipe.schedules.crossentropy import Softmax
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.gemms import ClusterSplitK, PingPong, SplitK, StreamK
from tmapipe.tuning.tuner import WITHIN, WITHIN_8_BITS

if TYPE_CHECKING:
    from tmapipe.timeline.trace import Trace


# ---- compared --------------------------------------------------------------------------------------------------------
#
# Runs on the CPU model, of several interleavings, whose results are compared with each other and with a reference.


Reference = Callable[..., Any]


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a b^T, of float64."""
    return a @ b.swapaxes(-1, -2)


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


#: What shipped schedules compute, of inputs in float64.
_KNOWN: dict[type, Reference] = {
    Copy: lambda x: x,
    Softmax: _softmax,
    **dict.fromkeys((Gemm, PingPong, SplitK, StreamK, ClusterSplitK), product),
}


def references(schedule: Any, text: str | None) -> Reference | None:
    """The function that *text* names, or what a shipped schedule is known to compute; None if that is not known."""
    if text is None:
        plain = not isinstance(schedule, Gemm) or schedule.epilogue.plain
        return _KNOWN.get(type(schedule)) if plain else None
    found = named("--reference", text)
    if not callable(found):
        rule = f"is a {type(found).__name__}, and no function of the inputs"
        raise InputError("--reference", text, rule, "name a function")
    return found


def simulate_seeds(
    schedule: Any,
    inputs: dict[str, np.ndarray],
    seeds: range,
    clusters: int | None,
    dtypes: Mapping[str, DType],
    reference: Reference | None,
    timeline: Path | None,
    step: Callable[[], object],
) -> Answer:
    """What the runs say: `Answer.code` is `WRONG` if results differ. *step* is called after each run."""
    names = [*schedule.declared.stores] if isinstance(schedule, Schedule) else []
    wanted = {name: dtype for name, dtype in dtypes.items() if name in names}
    runs: list[dict[str, Any]] = []
    first: dict[str, np.ndarray] = {}
    apart: dict[str, float] = {}
    shapes = {name: x.shape for name, x in _called(schedule, inputs, names).items()} if wanted else {}
    for seed in seeds:
        others = {name: np.zeros(shapes[name], dtype.numpy) for name, dtype in wanted.items()}
        with _launches(clusters, seed, timeline is not None and not runs) as launches:
            outputs = _called(schedule, {**inputs, **others}, names)
        if timeline is not None and not runs and launches:
            _draw(launches[0], timeline)
        counts = {
            name: sum(getattr(run, name) for run in launches) for name in ("steps", "loaded_bytes", "stored_tiles")
        }
        runs.append({"seed": seed, "launches": len(launches), **counts})
        first = first or outputs
        for name, output in outputs.items():
            apart[name] = max(apart.get(name, 0.0), off(output, first[name]))
        step()
    return _answer(schedule, runs, first, apart, _errors(first, inputs, reference))


@contextlib.contextmanager
def _launches(clusters: int | None, seed: int, trace: bool) -> Iterator[list[Run]]:
    """Yields what is launched on the model meanwhile, in an interleaving of this seed: also what the call of one schedule
    launches of others, such as the sum of the parts of a split k."""
    found: list[Run] = []
    simulate = Schedule._simulate

    def seeded(schedule: Schedule, bound: Bound) -> Run:
        found.append(simulate(schedule, bound, clusters, seed, trace))
        return found[-1]

    Schedule._simulate = seeded  # type: ignore[assignment,method-assign]
    try:
        yield found
    finally:
        Schedule._simulate = simulate  # type: ignore[method-assign]


def _called(schedule: Any, tensors: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    """The outputs of a call by name."""
    results = schedule(**tensors)
    many = results if isinstance(results, tuple) else (results,)
    return dict(zip(names if len(names) == len(many) else [f"output {i}" for i in range(len(many))], many, strict=True))


def _draw(run: Run, path: Path) -> None:
    try:
        run.write_timeline(path)
    except OSError as error:
        rule = f"cannot be written: {error.strerror}"
        raise InputError("--timeline", str(path), rule, "name another file") from None


def _errors(
    outputs: dict[str, np.ndarray], inputs: dict[str, np.ndarray], reference: Reference | None
) -> dict[str, float]:
    """How far each output is from the reference."""
    if reference is None:
        return {}
    given = {n: x if np.issubdtype(x.dtype, np.integer) else x.astype(np.float64) for n, x in inputs.items()}
    with users_code("--reference"):
        right = reference(**given)
    rights = right if isinstance(right, tuple) else (right,)
    if len(rights) != len(outputs):
        rule = f"returns {len(rights)} arrays, and there are {len(outputs)} outputs: {', '.join(outputs)}"
        raise InputError("--reference", reference.__name__, rule, "return a tuple of them")
    found = {}
    for (name, output), expected in zip(outputs.items(), rights, strict=True):
        if np.shape(expected) != output.shape:
            rule = f"returns the shape {np.shape(expected)} for {name}, which has {output.shape}"
            raise InputError("--reference", reference.__name__, rule, "return that shape")
        found[name] = off(output, np.asarray(expected))
    return found


def off(found: np.ndarray, right: np.ndarray) -> float:
    """The largest difference, relative to the largest number of *right*."""
    one, other = found.astype(np.float64), np.asarray(right).astype(np.float64)
    if not one.size or np.array_equal(one, other):
        return 0.0
    largest = float(np.abs(one - other).max() / (np.abs(other).max() or 1.0))
    return largest if np.isfinite(largest) else float("inf")


def within(found: np.ndarray) -> float:
    """What `off` may be, by rounding."""
    return WITHIN_8_BITS if found.dtype.itemsize == 1 else WITHIN


def _answer(
    schedule: Any,
    runs: list[dict[str, Any]],
    outputs: dict[str, np.ndarray],
    apart: dict[str, float],
    errors: dict[str, float],
) -> Answer:
    rows, text, many = [], [], len(runs) > 1
    for name, output in outputs.items():
        error = errors.get(name)
        said = [f"{len(runs)} interleavings differ by {apart[name]:.1e}"] if many else []
        said += [] if error is None else [f"the reference differs by {error:.1e}"]
        ok = max(apart[name], error or 0.0) <= within(output)
        shape = "x".join(map(str, output.shape))
        text.append(f"{name} {shape} {output.dtype}: {'; '.join(said) or 'computed'}{'' if ok else ' (WRONG)'}")
        rows.append(
            {
                "name": name,
                "shape": list(output.shape),
                "dtype": str(output.dtype),
                "between_interleavings": _finite(apart[name]),
                "from_reference": None if error is None else _finite(error),
                "ok": ok,
            }
        )
    wrong = not all(row["ok"] for row in rows)
    name = type(schedule).__name__
    counts = "{steps} steps, {loaded_bytes} bytes loaded, {stored_tiles} tiles stored".format(**runs[0])
    head = f"{name}: {'wrong numbers' if wrong else 'ran'} ({counts})"
    return Answer({"schedule": name, "outputs": rows, "runs": runs}, [head, *text], WRONG if wrong else 0)


def _finite(number: float) -> float | None:
    """JSON has no infinity: None stands for it."""
    return number if np.isfinite(number) else None


# ---- drawn -----------------------------------------------------------------------------------------------------------
#
# The verb `timeline`: a call on the model with times, drawn.


def timeline(
    schedule: Annotated[str, typer.Argument(metavar="SCHEDULE", help="Gemm, module:object, or file.py:object.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="A page (.html), or .json for Perfetto. [NAME.html]"),
    ] = None,
    shape: Annotated[
        list[str], typer.Option("--shape", metavar="NAME=EXTENTS", help="Of an input, e.g. a=512x256; repeat it.")
    ] = [],  # noqa: B006 - typer's way to say: none
    set_: Annotated[
        list[str], typer.Option("--set", metavar="NAME=VALUE", help="An argument, e.g. tile=128,128,64; repeat it.")
    ] = [],  # noqa: B006
    dtype: Annotated[
        list[str], typer.Option("--dtype", metavar="NAME=TYPE", help="Of a tensor, e.g. a=fp16; repeat it.")
    ] = [],  # noqa: B006
    tensor: Annotated[
        list[str], typer.Option("--tensor", metavar="NAME=FILE", help="An input from a .npy file; repeat it.")
    ] = [],  # noqa: B006
    clusters: Annotated[int | None, typer.Option(min=1, max=1024, help="In the grid; by default up to 2.")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Run the kernel, whose roles stamp the clock.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Draws what runs when and what waits for what, on the CPU model with a cost model of an H200, or on the GPU. Exit code
    1: the check finds something wrong."""
    with answering("timeline", json_) as answer:
        given = made(schedule, settings_of(set_))
        inputs = tensors_of(given, shape, dtypes_of(dtype), tensor)
        with working(f"running {schedule}"):
            found = (
                traced_on_gpu(given, inputs, clusters, shape, dtypes_of(dtype))
                if gpu
                else traced(given, inputs, clusters)
            )
        path = out or Path(f"{found.plan.name}.html")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            found.write_timeline(path)
        except OSError as error:
            raise InputError("-o", str(path), f"cannot be written: {error.strerror}", "name another file") from None
        wrong = [each.args["kind"] for each in found.findings if not each.note]
        roles = found.roles()
        answer.facts = {
            "schedule": found.plan.name,
            "cycles": found.cycles,
            "nanoseconds": found.nanoseconds,
            "findings": wrong,
            "roles": roles,
            "file": str(path),
        }
        place = "GPU" if gpu else "model"
        head = f"{found.plan.name}: {found.cycles} cycles, {found.nanoseconds / 1000:.2f} us on the {place}"
        answer.text = [f"{head}; found: {', '.join(wrong)}" if wrong else head, _table(roles), str(path)]
        answer.code = WRONG if wrong else 0


def traced_on_gpu(
    schedule: Any, inputs: dict[str, Any], clusters: int | None, shapes: list[str], dtypes: dict[str, DType]
) -> Trace:
    """The trace of a kernel on the GPU, of random tensors there. Of a kernel of rows, of the schedule that it makes. Raises
    `MissingGpuError` without one."""
    with needed("torch", "torch", "to run a kernel"):
        import torch
    if not torch.cuda.is_available():
        raise MissingGpuError("--gpu needs a CUDA GPU; without it, the verb draws a run on the CPU model.")
    tensors = {
        n: torch.from_numpy(x.view(f"i{x.itemsize}")).cuda().view(getattr(torch, x.dtype.name))
        for n, x in inputs.items()
    }
    return fitted(schedule, shapes, dtypes).trace(**tensors, clusters=clusters)


def traced(schedule: Any, inputs: dict[str, Any], clusters: int | None) -> Trace:
    """The trace of a call's first launch on the model: of a kernel of rows, of the schedule that it makes."""
    from tmapipe.timeline.trace import trace

    found: list[Trace] = []
    simulate: Callable[..., Any] = Schedule._simulate

    def timed(schedule: Schedule, bound: Bound) -> Any:
        if found or bound.empty:
            return simulate(schedule, bound)
        found.append(trace(schedule, bound, clusters))
        return None

    Schedule._simulate = timed  # type: ignore[assignment,method-assign]
    try:
        schedule(**inputs)
    finally:
        Schedule._simulate = simulate  # type: ignore[method-assign]
    if not found:
        raise InputError("--shape", [x.shape for x in inputs.values()], "have elements to compute from", "pass some")
    return found[0]


def _table(roles: dict[str, dict[str, float]]) -> Table:
    """What each role spends its time on."""
    table = Table("role", "of its time", box=None)
    for role, parts in roles.items():
        shown = sorted(parts.items(), key=lambda part: -part[1])[:4]
        table.add_row(role, ", ".join(f"{name} {part:.0%}" for name, part in shown))
    return table
