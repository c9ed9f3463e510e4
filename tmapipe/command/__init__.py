"""The command `tmapipe`: its entry point, and the verbs for one schedule, shipped or a user's (docs/command.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import tmapipe
from tmapipe.command.compared import references, simulate_seeds, timeline
from tmapipe.command.machine import bench, cache, demo, doctor, tune
from tmapipe.command.named import WRONG, answering, dtypes_of, fitted, made, settings_of, tensors_of, working
from tmapipe.errors import InputError
from tmapipe.loaded import load
from tmapipe.schedule import Schedule

app = typer.Typer(
    name="tmapipe",
    help="Checks, explains, simulates and compiles TMA pipelines. SCHEDULE is a shipped schedule's name such as Gemm, "
    "module:object, or file.py:object. Exit codes: 0 fine, 1 findings or wrong numbers, 2 it cannot be done.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (doctor, cache, demo, tune, timeline):
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
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
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
        found, types = _planned(schedule, set_, dtype, shape)
        with working(f"checking {schedule}"):
            report = found.check(types, arch=arch)
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
        found, types = _planned(schedule, set_, dtype, shape)
        with working(f"planning {schedule}"):
            plan, text = found.plan(types, arch=arch), found.explain(types, arch=arch)
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
        found, types = _planned(schedule, set_, dtype, shape)
        with working(f"tracing {schedule}"):
            text = found.program(types, arch=arch)
        answer.facts = {"schedule": type(found).__name__, "text": text}
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
    clusters: Annotated[int | None, typer.Option(min=1, max=1024, help="In the grid; by default up to 2.")] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="OBJECT", help="A function that returns the outputs, of the inputs by name."),
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
            found = simulate_seeds(
                given, inputs, range(seed, seed + seeds), clusters, dtypes_of(dtype), right, drawn, step
            )
        answer.facts, answer.text, answer.code = found.facts, found.text, found.code


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
        found, types = _planned(schedule, set_, dtype, shape)
        with working(f"compiling {schedule}"):
            built = found.compile(types, arch=arch)
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
        found = fitted(given, shape, types)
        with working(f"compiling {schedule}"):
            header = found.export(file, *inputs.values(), name=name, arch=arch)
        kernels = load(file)
        answer.facts = {
            "schedule": type(found).__name__,
            "arch": kernels.arch,
            "library": str(file),
            "header": str(header),
            "functions": list(kernels),
        }
        answer.text = [f"{file}: {', '.join(kernels)} for {kernels.arch}, of {type(found).__name__}", str(header)]


def _write(path: Path, content: str | bytes) -> None:
    """Writes a file, and its folder if that is missing. Raises `InputError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise InputError("FILE", str(path), f"cannot be written: {error.strerror}", "name another one") from None


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"tmapipe {tmapipe.__version__}")
        raise typer.Exit


def main() -> None:
    """The entry point."""
    app()
