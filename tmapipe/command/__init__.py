"""The command `tmapipe`: its entry point, and the verbs for one schedule, shipped or a user's (docs/command.md)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

import tmapipe
from tmapipe.base import replaced
from tmapipe.base.arithmetic import DType
from tmapipe.bind import Bound
from tmapipe.command.machine import Json, bench, cache, demo, doctor, tune
from tmapipe.command.named import (
    WRONG,
    Answer,
    Reference,
    answering,
    dtypes_of,
    errors_of,
    fitted,
    made,
    off,
    references,
    settings_of,
    tensors_of,
    within,
    working,
)
from tmapipe.errors import InputError, MissingGpuError, needed, require
from tmapipe.loaded import load
from tmapipe.model.run import Run
from tmapipe.schedule import Schedule

if TYPE_CHECKING:
    from tmapipe.timeline.trace import Trace

app = typer.Typer(
    name="tmapipe",
    help="Checks, explains, simulates and compiles TMA pipelines. SCHEDULE is a shipped schedule's name such as Gemm, "
    "module:object, or file.py:object. Exit codes: 0 fine, 1 findings or wrong numbers, 2 it cannot be done.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (doctor, cache, demo, tune):
    app.command()(verb)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench)

Name = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Gemm, module:object, or file.py:object.")]
Settings = Annotated[
    list[str], typer.Option("--set", metavar="NAME=VALUE", help="An argument, e.g. tile=128,128,64; repeat it.")
]
Types = Annotated[list[str], typer.Option("--dtype", metavar="NAME=TYPE", help="Of a tensor, e.g. a=fp16; repeat it.")]
Shapes = Annotated[
    list[str], typer.Option("--shape", metavar="NAME=EXTENTS", help="Of an input, e.g. a=512x256; repeat it.")
]
Files = Annotated[
    list[str], typer.Option("--tensor", metavar="NAME=FILE", help="An input from a .npy file; repeat it.")
]
Arch = Annotated[str | None, typer.Option(help="The target, such as sm_90a; by default the schedule's.")]
Clusters = Annotated[int | None, typer.Option(min=1, max=1024, help="In the grid; by default up to 2.")]
OfRows = Annotated[
    list[str], typer.Option("--shape", metavar="NAME=EXTENTS", help="Of inputs, for Softmax and RmsNorm alone.")
]


def _planned(name: str, settings: list[str], dtypes: list[str], shapes: list[str]) -> tuple[Schedule, Any]:
    """The schedule, and the types of its tensors."""
    types = dtypes_of(dtypes)
    given = made(name, settings_of(settings))
    if isinstance(given, Schedule) and shapes:
        raise InputError("--shape", shapes[0], f"does not matter here: {name} holds for every shape", "leave it out")
    schedule = fitted(given, shapes, types)
    return schedule, {n: t for n, t in types.items() if schedule is given or n in schedule.declared.arguments}


@app.command()
def check(
    schedule: Name,
    set_: Settings = [],  # noqa: B006 - typer's way to say: none
    dtype: Types = [],  # noqa: B006
    shape: OfRows = [],  # noqa: B006
    arch: Arch = None,
    sarif: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a SARIF 2.1.0 log.")] = None,
    drawn: Annotated[
        Path | None,
        typer.Option("--timeline", metavar="FILE", help="Also draw the findings' steps: .html, or .json for Perfetto."),
    ] = None,
    json_: Json = False,
) -> None:
    """Proves that a schedule cannot hang, race or corrupt, or says what can go wrong. Exit code 1: it can."""
    with answering("check", json_) as answer:
        planned, types = _planned(schedule, set_, dtype, shape)
        with working(f"checking {schedule}"):
            report = planned.check(types, arch=arch)
        answer.facts = {"report": report.to_json()}
        answer.text = [str(report)]
        answer.code = 0 if report.ok else WRONG
        if sarif is not None:
            _write(sarif, json.dumps(report.to_sarif(), indent=1) + "\n")
        if drawn is not None:
            _write(drawn, report.drawn(drawn))


@app.command()
def explain(
    schedule: Name,
    set_: Settings = [],  # noqa: B006
    dtype: Types = [],  # noqa: B006
    shape: OfRows = [],  # noqa: B006
    arch: Arch = None,
    json_: Json = False,
) -> None:
    """Prints every derived number with its formula."""
    with answering("explain", json_) as answer:
        planned, types = _planned(schedule, set_, dtype, shape)
        with working(f"planning {schedule}"):
            plan, text = planned.plan(types, arch=arch), planned.explain(types, arch=arch)
        answer.facts = {
            "schedule": plan.name,
            "arch": plan.arch,
            "threads": plan.threads,
            "cluster": plan.cluster_size,
            "shared_bytes": plan.smem_bytes,
            "roles": {role.name: role.warps for role in plan.roles},
            "rings": {ring.name: ring.stages for ring in plan.rings},
            "text": text,
        }
        answer.text = [text]


@app.command()
def program(
    schedule: Name,
    set_: Settings = [],  # noqa: B006
    dtype: Types = [],  # noqa: B006
    shape: OfRows = [],  # noqa: B006
    arch: Arch = None,
    json_: Json = False,
) -> None:
    """Prints the traced program: each role's loops, waits, arrivals and copies, with lines of the bodies."""
    with answering("program", json_) as answer:
        planned, types = _planned(schedule, set_, dtype, shape)
        with working(f"tracing {schedule}"):
            text = planned.program(types, arch=arch)
        answer.facts = {"schedule": type(planned).__name__, "text": text}
        answer.text = [text]


@app.command()
def simulate(
    schedule: Name,
    shape: Shapes = [],  # noqa: B006
    set_: Settings = [],  # noqa: B006
    dtype: Types = [],  # noqa: B006
    tensor: Files = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="How many interleavings, from --seed on.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the first interleaving, and of the random numbers.")] = 0,
    clusters: Clusters = None,
    reference: Annotated[
        str | None, typer.Option(metavar="OBJECT", help="A function that returns the outputs, of the inputs by name.")
    ] = None,
    drawn: Annotated[
        Path | None,
        typer.Option("--timeline", metavar="FILE", help="Draw the first run: .html, or .json for Perfetto."),
    ] = None,
    json_: Json = False,
) -> None:
    """Runs a schedule on the CPU model with random tensors. Exit code 1: it hangs, an access is not ordered, results of two
    interleavings differ, or they differ from the reference."""
    with answering("simulate", json_) as answer:
        given = made(schedule, settings_of(set_))
        inputs = tensors_of(given, shape, dtypes_of(dtype), tensor, seed)
        right = references(given, reference)
        with working(f"running {schedule}", seeds) as step:
            answered = _runs_of(
                given, inputs, range(seed, seed + seeds), clusters, dtypes_of(dtype), right, drawn, step
            )
        answer.facts, answer.text, answer.code = answered.facts, answered.text, answered.code


@app.command(name="compile")
def compile_(
    schedule: Name,
    set_: Settings = [],  # noqa: B006
    dtype: Types = [],  # noqa: B006
    shape: OfRows = [],  # noqa: B006
    arch: Arch = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write NAME.ptx and NAME.cubin there.")] = None,
    json_: Json = False,
) -> None:
    """Compiles a schedule, without a GPU, and prints what the kernel uses."""
    with answering("compile", json_) as answer:
        planned, types = _planned(schedule, set_, dtype, shape)
        with working(f"compiling {schedule}"):
            built = planned.compile(types, arch=arch)
        used, files = built.resources, {}
        if out is not None:
            for ending, content in (("ptx", (built.ptx or "").encode()), ("cubin", built.cubin or b"")):
                path = out / f"{built.plan.name}.{ending}"
                _write(path, content)
                files[ending] = str(path)
        answer.facts = {
            "schedule": built.plan.name,
            "arch": built.plan.arch,
            "registers": used.registers,
            "spill_bytes": used.spill_bytes,
            "shared_bytes": used.shared_bytes,
            "files": files,
        }
        answer.text = [
            f"{built.plan.name} for {built.plan.arch}: {used.registers} registers a thread at launch, "
            f"{used.spill_bytes} bytes spilled, {used.shared_bytes} bytes of shared memory",
            *files.values(),
        ]


@app.command()
def export(
    schedule: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The library, FILE.so; FILE.h is written beside it.")],
    shape: Shapes = [],  # noqa: B006
    set_: Settings = [],  # noqa: B006
    dtype: Types = [],  # noqa: B006
    tensor: Files = [],  # noqa: B006
    name: Annotated[str | None, typer.Option(help="Of the function; by default the file's.")] = None,
    arch: Arch = None,
    json_: Json = False,
) -> None:
    """Writes a kernel ahead of time, without a GPU: a library that needs the CUDA driver alone, with a C header."""
    with answering("export", json_) as answer:
        types, given = dtypes_of(dtype), made(schedule, settings_of(set_))
        inputs = tensors_of(given, shape, types, tensor)
        fits = fitted(given, shape, types)
        with working(f"compiling {schedule}"):
            header = fits.export(file, *inputs.values(), name=name, arch=arch)
        kernels = load(file)
        answer.facts = {
            "schedule": type(fits).__name__,
            "arch": kernels.arch,
            "library": str(file),
            "header": str(header),
            "functions": list(kernels),
        }
        answer.text = [f"{file}: {', '.join(kernels)} for {kernels.arch}, of {type(fits).__name__}", str(header)]


def _runs_of(
    schedule: Any,
    inputs: dict[str, np.ndarray],
    seeds: range,
    clusters: int | None,
    dtypes: Mapping[str, DType],
    reference: Reference | None,
    timeline: Path | None,
    step: Callable[[], object],
) -> Answer:
    """Runs the model and compares the results. `Answer.code` is `WRONG` if results differ. *step* is called after each run."""
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
            with _writing("--timeline", timeline):
                launches[0].write_timeline(timeline)
        counts = {
            name: sum(getattr(run, name) for run in launches) for name in ("steps", "loaded_bytes", "stored_tiles")
        }
        runs.append({"seed": seed, "launches": len(launches), **counts})
        first = first or outputs
        for name, output in outputs.items():
            apart[name] = max(apart.get(name, 0.0), off(output, first[name]))
        step()
    return _answer(schedule, runs, first, apart, errors_of(first, inputs, reference))


@contextlib.contextmanager
def _launches(clusters: int | None, seed: int, trace: bool) -> Iterator[list[Run]]:
    """Yields the model's runs that are launched in this scope, in an interleaving of this seed: also runs of schedules that
    another schedule calls, such as the sum of the parts of a split k."""
    runs: list[Run] = []
    simulate = Schedule._simulate

    def seeded(schedule: Schedule, bound: Bound) -> Run:
        runs.append(simulate(schedule, bound, clusters, seed, trace))
        return runs[-1]

    with replaced(Schedule, "_simulate", seeded):
        yield runs


def _called(schedule: Any, tensors: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    """The outputs of a call by name."""
    results = schedule(**tensors)
    many = results if isinstance(results, tuple) else (results,)
    return dict(zip(names if len(names) == len(many) else [f"output {i}" for i in range(len(many))], many, strict=True))


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


@app.command()
def timeline(
    schedule: Name,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="A page (.html), or .json for Perfetto. [NAME.html]"),
    ] = None,
    shape: Shapes = [],  # noqa: B006
    set_: Settings = [],  # noqa: B006
    dtype: Types = [],  # noqa: B006
    tensor: Files = [],  # noqa: B006
    clusters: Clusters = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Run the kernel, whose roles stamp the clock.")] = False,
    json_: Json = False,
) -> None:
    """Draws what runs when and what waits for what, on the CPU model with a cost model of an H200, or on the GPU. Exit code
    1: the check finds something wrong."""
    with answering("timeline", json_) as answer:
        given = made(schedule, settings_of(set_))
        inputs = tensors_of(given, shape, dtypes_of(dtype), tensor)
        with working(f"running {schedule}"):
            trace = (
                _traced_on_gpu(given, inputs, clusters, shape, dtypes_of(dtype))
                if gpu
                else _traced(given, inputs, clusters)
            )
        path = out or Path(f"{trace.plan.name}.html")
        with _writing("-o", path):
            trace.write_timeline(path)
        wrong = [each.args["kind"] for each in trace.findings if not each.note]
        roles = trace.roles()
        answer.facts = {
            "schedule": trace.plan.name,
            "cycles": trace.cycles,
            "nanoseconds": trace.nanoseconds,
            "findings": wrong,
            "roles": roles,
            "file": str(path),
        }
        place = "GPU" if gpu else "model"
        head = f"{trace.plan.name}: {trace.cycles} cycles, {trace.nanoseconds / 1000:.2f} us on the {place}"
        answer.text = [f"{head}; trace: {', '.join(wrong)}" if wrong else head, _table(roles), str(path)]
        answer.code = WRONG if wrong else 0


def _traced_on_gpu(
    schedule: Any, inputs: dict[str, Any], clusters: int | None, shapes: list[str], dtypes: dict[str, DType]
) -> Trace:
    """The trace of a kernel on the GPU, with random tensors; for a kernel of rows, the trace of the schedule that it makes.
    Raises `MissingGpuError` without a GPU."""
    with needed("torch", "torch", "to run a kernel"):
        import torch
    if not torch.cuda.is_available():
        raise MissingGpuError("--gpu needs a CUDA GPU; without it, the verb draws a run on the CPU model.")
    tensors = {
        n: torch.from_numpy(x.view(f"i{x.itemsize}")).cuda().view(getattr(torch, x.dtype.name))
        for n, x in inputs.items()
    }
    return fitted(schedule, shapes, dtypes).trace(**tensors, clusters=clusters)


def _traced(schedule: Any, inputs: dict[str, Any], clusters: int | None) -> Trace:
    """The trace of a call's first launch on the model: of a kernel of rows, of the schedule that it makes."""
    from tmapipe.timeline.trace import trace

    traces: list[Trace] = []
    simulate: Callable[..., Any] = Schedule._simulate

    def timed(schedule: Schedule, bound: Bound) -> Any:
        if traces or bound.empty:
            return simulate(schedule, bound)
        traces.append(trace(schedule, bound, clusters))
        return None

    with replaced(Schedule, "_simulate", timed):
        schedule(**inputs)
    require(traces, "--shape", [x.shape for x in inputs.values()], "have elements to compute from", "pass some")
    return traces[0]


def _table(roles: dict[str, dict[str, float]]) -> Table:
    """A table of how each role spends its time."""
    table = Table("role", "of its time", box=None)
    for role, parts in roles.items():
        shown = sorted(parts.items(), key=lambda part: -part[1])[:4]
        table.add_row(role, ", ".join(f"{name} {part:.0%}" for name, part in shown))
    return table


def _write(path: Path, content: str | bytes) -> None:
    """Writes a file, and its folder if that is missing. Raises `InputError` if it cannot be written."""
    with _writing("FILE", path):
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def _writing(argument: str, path: Path) -> Iterator[None]:
    """The scope in which the file *argument* is written; its folder is made. Raises `InputError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(argument, str(path), f"cannot be written: {error.strerror}", "name another file") from None


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"tmapipe {tmapipe.__version__}")
        raise typer.Exit


def main() -> None:
    """The entry point."""
    app()
