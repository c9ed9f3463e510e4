"""What a call of a schedule does: it binds the tensors, and launches a kernel or runs the model; and what it prepares once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tmapipe.bind.bound import Bound
from tmapipe.bind.memory import check_held, check_kind, note_written
from tmapipe.bind.tensors import signature
from tmapipe.errors import InputError, needed
from tmapipe.fields import is_count

if TYPE_CHECKING:
    from tmapipe.gpu.launch import Launcher
    from tmapipe.machine import Machine, Run
    from tmapipe.program.trace import Traced
    from tmapipe.schedule import Schedule

__all__ = [
    "as_declared",
    "check_clusters",
    "check_one_kernel",
    "first_call",
    "launcher_for",
    "on_model",
    "prepared",
]

Tensors = tuple[Any, ...]


def as_declared(schedule: Schedule, tensors: Tensors, named: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """The tensors with their dimensions as the stages declare them: views of those that are `Schedule.transposed`."""
    if isinstance(schedule.transposed, tuple) and not schedule.transposed:
        return tensors, named

    def view(name: str, tensor: Any) -> Any:
        if name not in schedule.transposed or getattr(tensor, "ndim", 0) < 2:
            return tensor
        check_kind(name, tensor)
        check_held(name, tensor)
        return tensor.swapaxes(-1, -2)

    names = schedule.declared.arguments
    given = [view(name, tensor) for name, tensor in zip(names, tensors, strict=False)]
    return (*given, *tensors[len(names) :]), {name: view(name, tensor) for name, tensor in named.items()}


def first_call(
    schedule: Schedule, tensors: Tensors, named: dict[str, Any], out: Any, known_as: Any, launchers: dict[Any, Any]
) -> Any:
    """A call of a signature that has no launcher yet: it is kept in *launchers* as *known_as*, unless that is None."""
    bound = schedule.bind(*tensors, out=out, **named)
    schedule.plan(bound.dtypes)
    if bound.on_gpu and not bound.empty:
        launcher = _launcher(schedule, bound)
        launcher.launch(list(bound.tensors.values()))
        given = schedule.declared.arguments[: len(tensors)]
        if known_as and all(x.ndim == bound.tensors[name].ndim for x, name in zip(tensors, given, strict=True)):
            launcher.views = [i for i, name in enumerate(given) if name in schedule.transposed and tensors[i].ndim > 1]
            launchers[known_as] = launcher
    else:
        schedule._simulate(bound)
    note_written(bound.outputs)
    return bound.result()


def launcher_for(schedule: Schedule, tensors: Tensors) -> Callable[[Tensors, Any], Any] | None:
    """What launches a call with tensors like these, inputs in the order of declaration, if there was one: it takes them, and
    `out`. The schedule must not change."""
    return schedule.__dict__.get("_launchers", {}).get(signature(tensors, None)) if schedule.one_kernel else None


def prepared(schedule: Schedule, bound: Bound) -> Callable[[], Any]:
    """A call with these tensors, as `Schedule.prepare` says."""
    schedule.plan(bound.dtypes)
    if not bound.on_gpu or bound.empty:
        return functools.partial(_run_again, schedule, bound)
    launcher = _launcher(schedule, bound)
    from tmapipe.gpu.launch import Prepared

    return Prepared(launcher, bound)


def check_one_kernel(schedule: Schedule, what: str) -> None:
    """Raises `InputError` if a call is more than one kernel with the call's tensors."""
    if not schedule.one_kernel:
        rule = "is of a schedule whose call is one kernel; this one views its tensors otherwise, or adds up parts"
        raise InputError(f"{type(schedule).__name__}.{what}", schedule, rule, "call it, perhaps in a CUDA graph")


def check_clusters(clusters: Any) -> None:
    """Raises `InputError` for what is neither a number of clusters nor None."""
    if clusters is not None and not (is_count(clusters) and clusters <= 1024):
        raise InputError("clusters", clusters, "is a number of clusters from 1 to 1024, or None", "leave it out")


def on_model(schedule: Schedule, bound: Bound, clusters: int | None, machine: Callable[..., Machine]) -> Run:
    """Runs these tensors on what *machine* makes of a plan and options: a `Machine`. clusters: as of `Schedule.simulate`."""
    from tmapipe.machine import steps_for
    from tmapipe.program.replay import replay
    from tmapipe.program.trace import trace

    plan = schedule.plan(bound.dtypes)
    spans = schedule.spans(bound.shapes)
    if spans is not None and clusters not in (None, spans):
        rule = f"is {spans}, since each cluster takes its tiles of {schedule.tiles} and no others"
        raise InputError("clusters", clusters, rule, "leave it out")
    clusters = clusters or spans or min(2, schedule.cluster_count(bound.shapes))
    tiles = math.prod(schedule.grid(lambda name, i: bound.shapes[name][i]).values())  # one cluster may take them all
    by_tables = plan.tables or schedule.tiles.in_parts  # which say what is written
    whole = () if by_tables else bound.made
    made = machine(plan, max_steps=steps_for(plan, max(tiles, clusters)), whole=whole)
    program = trace(schedule, plan)
    return made.run(lambda isa: replay(program, isa), bound.arrays(), clusters)


def _run_again(schedule: Schedule, bound: Bound) -> Any:
    bound.begin_sums()
    schedule._simulate(bound)
    note_written(bound.outputs)
    return bound.result()


def _launcher(schedule: Schedule, bound: Bound) -> Launcher:
    with needed("cutlass", "nvidia-cutlass-dsl", "to compile a kernel"):
        from tmapipe.gpu.launch import Launcher
    from tmapipe.prove.verdicts import require_safe_once

    def gate(program: Traced | None, identity: str | None) -> None:
        schedule.__dict__["_partly"] = require_safe_once(schedule, bound.dtypes, program, identity)

    launcher = Launcher(schedule, bound, gate)
    bound.check_whole(schedule.__dict__.get("_partly", ()))
    return launcher
