"""The verb `timeline`: a call on the model with times, drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tmapipe.command.answer import WRONG, answering, working
from tmapipe.command.named import made, settings_of
from tmapipe.command.tensors import dtypes_of, tensors_of
from tmapipe.errors import InputError
from tmapipe.schedule import Schedule

if TYPE_CHECKING:
    from tmapipe.bind.bound import Bound
    from tmapipe.timeline.trace import Trace

__all__ = ["timeline"]


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
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Draws what runs when and what waits for what, on the CPU model with a cost model of an H200. Exit code 1: the check
    finds something wrong."""
    with answering("timeline", json_) as answer:
        given = made(schedule, settings_of(set_))
        inputs = tensors_of(given, shape, dtypes_of(dtype), tensor)
        with working(f"running {schedule}"):
            found = traced(given, inputs, clusters)
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
        head = f"{found.plan.name}: {found.cycles} cycles, {found.nanoseconds / 1000:.2f} us on the model"
        answer.text = [f"{head}; found: {', '.join(wrong)}" if wrong else head, _table(roles), str(path)]
        answer.code = WRONG if wrong else 0


def traced(schedule: Any, inputs: dict[str, Any], clusters: int | None) -> Trace:
    """The trace of a call's first launch on the model: of a kernel of rows, of the schedule that it makes."""
    from tmapipe.timeline.run import trace

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
