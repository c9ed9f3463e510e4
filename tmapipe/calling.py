"""Calls of schedules: a call binds the tensors, and launches a kernel or runs the model. Here is also what is prepared once
for many calls, and the export of kernels.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tmapipe.base import replaced
from tmapipe.base.arithmetic import DType, as_dtype, bf16, fp32, int32
from tmapipe.bind import Bound, check_held, check_kind, note_written
from tmapipe.bind.tensors import signature
from tmapipe.errors import InputError, check_type, is_count, needed, require

if TYPE_CHECKING:
    from tmapipe.gpu.exporting import Exported
    from tmapipe.gpu.launch import Launcher
    from tmapipe.model import Machine
    from tmapipe.model.run import Run
    from tmapipe.program import Traced
    from tmapipe.schedule import Schedule


Tensors = tuple[Any, ...]
MOST = 4  # how many callers a schedule keeps, and tries in turn


class Calls:
    """The methods of a `Schedule` that call it, prepare calls of it, or export it."""

    _callers: tuple[Any, ...] = ()  # what makes calls of kinds that were made before
    _refresh: Callable[[], None]

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Runs the schedule.

        For CUDA tensors, a kernel is compiled once for each signature, and launched on the current stream; the call does not
        wait for it. CPU tensors and NumPy arrays run on the machine model.

        Args:
            tensors: One for each load stage, then one for each table, then one for each store stage, in the order of
                declaration. Outputs that are left out are made.
            out: The first store's tensor.
            named: Tensors by the names of stages and tables.

        Returns:
            The store's tensor, or a tuple of the stores' tensors.

        Raises:
            InputError: Before anything is launched.
        """
        found = self._known(tensors, out, named)
        return called(_schedule(self), tensors, named, out) if found is None else found

    def _known(self, tensors: Tensors, out: Any, named: dict[str, Any]) -> Any:
        """The result of a call of a kind that was made before; None for another one."""
        self._refresh()
        for call in self._callers:
            found = call(tensors, out, named)
            if found is not None:
                return found
        return None

    def prepare(self, *tensors: Any, out: Any = None, **named: Any) -> Callable[[], Any]:
        """A call with these tensors, to be made many times: everything is checked here, once.

        Each run uses the memory and the kernel of now: no run notices what is assigned to attributes, or to what bodies refer
        to, later. Outputs that are left out are made here, and each run overwrites them.

        Args:
            tensors, out, named: As in a call.

        Raises:
            InputError: As a call.

        Returns:
            A function without arguments that runs the schedule (CUDA tensors: on the current stream), and returns the outputs
            as a call does.
        """
        schedule = _schedule(self)
        check_one_kernel(schedule, "prepare")
        return prepared(schedule, schedule.bind(*tensors, out=out, **named))

    def warm_up(self, *tensors: Any, out: Any = None, **named: Any) -> None:
        """Does what a first call with tensors like these does besides launching: compiles the kernel, and allocates the memory
        that launches work in.

        A later call on the same stream, or in a CUDA graph that is captured, then compiles nothing, and allocates outputs
        alone. A schedule whose call is several kernels is called, with outputs of its own unless they are passed.

        Args:
            tensors, out, named: As in a call. If the call is one kernel, nothing is read or written.

        Raises:
            InputError: As a call.
        """
        schedule = _schedule(self)
        if not schedule.one_kernel:
            schedule(*tensors, out=out, **named)
            return
        tensors, named = _by_position(schedule, tensors, named)
        known_as = None if named else signature(tensors, out)
        bound = schedule.bind(*tensors, out=out, **named)
        schedule.plan(bound.dtypes)
        if bound.on_gpu and not bound.empty:
            launchers = self.__dict__.setdefault("_launchers", {})
            launcher = launchers.get(known_as) or launcher_for(schedule, bound)
            launcher.warm_up()
            _keep(schedule, launcher, bound, tensors, known_as, launchers)

    def export(
        self,
        path: str | os.PathLike[str],
        *tensors: Any,
        name: str | None = None,
        dtypes: Mapping[str, DType | str] | None = None,
        arch: str | None = None,
    ) -> Path:
        """Writes the kernel, ahead of time and without a GPU, to a library that needs the CUDA driver alone, and beside it a C
        header. `tmapipe.load` opens the library in Python. `tmapipe.export` writes several kernels to one library.

        Args:
            path: The path of the library, with the ending .so.
            tensors: One for each input and table, then outputs whose strides differ from those that a call would make. Each is
                either extents, such as (512, 256), or an array on the CPU that has the type and the strides.
            name: The name of the function; by default the path's stem.
            dtypes: Element types by name, where extents are given; by default the stage's type, or bf16.
            arch: The target; by default the schedule's.

        Raises:
            InputError: The tensors do not fit, or the schedule is launched by what a device says.
            UnsafeError: The schedule is not safe.
            MissingPackageError: CuTe DSL or a C compiler is not installed.

        Returns:
            The header's path.
        """
        place = _library_path(path)
        check_one_kernel(_schedule(self), "export")
        name = place.stem if name is None else name
        check_type("name", name, str, 'name the function, e.g. "gemm"')
        return _export_all(place, {name: _exported(self, tensors, {} if dtypes is None else dtypes)}, arch)


def _schedule(calls: Calls) -> Schedule:
    return cast("Schedule", calls)


def _by_position(schedule: Any, tensors: Tensors, named: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """(tensors, {}) with all tensors by position, if the *named* tensors are the next arguments; else the same as given."""
    if named:
        following = schedule.declared.arguments[len(tensors) : len(tensors) + len(named)]
        if set(named) == set(following):
            return (*tensors, *(named[name] for name in following)), {}
    return tensors, named


def as_declared(schedule: Schedule, tensors: Tensors, named: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """The tensors with their dimensions in the order that the stages declare: those in `Schedule.transposed` are
    transposed."""
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


def called(schedule: Schedule, tensors: Tensors, named: dict[str, Any], out: Any = None, *, keep: bool = True) -> Any:
    """A call that none of the schedule's callers has taken: it uses the launcher of its signature, and makes a new launcher if
    there is none. keep: whether the schedule then keeps a caller, which takes calls of this kind from now on."""
    count = len(tensors)
    tensors, others = _by_position(schedule, tensors, named) if named else (tensors, named)
    known_as = None if others else signature(tensors, out)
    launchers = schedule.__dict__.setdefault("_launchers", {})
    launcher = launchers.get(known_as)
    if launcher is None:
        return _first_call(schedule, tensors, others, out, known_as, launchers)
    result = launcher(tensors, out)
    if keep and schedule.one_kernel:
        call = launcher.caller(tensors, schedule.declared.arguments[count : len(tensors)], out)
        _put_first(schedule, "_callers", call)
    return result


def _put_first(owner: Any, name: str, entry: Any) -> None:
    """Keeps *entry*, unless it is None, as the first of the `MOST` entries that *owner* has under this name."""
    if entry is not None:
        owner.__dict__[name] = (entry, *owner.__dict__.get(name, ()))[:MOST]


def _first_call(
    schedule: Schedule, tensors: Tensors, named: dict[str, Any], out: Any, known_as: Any, launchers: dict[Any, Any]
) -> Any:
    """A call of a signature that has no launcher yet. The new launcher is kept in *launchers* under the signature *known_as*,
    unless that is None."""
    bound = schedule.bind(*tensors, out=out, **named)
    schedule.plan(bound.dtypes)
    if _held.launches is not None:
        _held.launches += [] if bound.empty else [(schedule, bound)]
        return bound.result()
    if bound.on_gpu and not bound.empty:
        launcher = launcher_for(schedule, bound)
        launcher.launch(list(bound.tensors.values()))
        _keep(schedule, launcher, bound, tensors, known_as, launchers)
    else:
        schedule._simulate(bound)
    note_written(bound.outputs)
    return bound.result()


def _keep(
    schedule: Schedule, launcher: Launcher, bound: Bound, tensors: Tensors, known_as: Any, launchers: dict[Any, Any]
) -> None:
    """Keeps a launcher for calls with tensors like these under their signature *known_as*, unless that is None."""
    given = schedule.declared.arguments[: len(tensors)]
    if known_as and all(x.ndim == bound.tensors[name].ndim for x, name in zip(tensors, given, strict=True)):
        launcher.views = [i for i, name in enumerate(given) if name in schedule.transposed and tensors[i].ndim > 1]
        launchers[known_as] = launcher


class _Held(threading.local):
    launches: list[tuple[Schedule, Bound]] | None = None


_held = _Held()


def held() -> contextlib.AbstractContextManager[list[tuple[Schedule, Bound]]]:
    """The scope in which first calls of this thread launch nothing. Yields a list that gets a schedule and its tensors for
    each launch left out. Results of such calls hold anything."""
    return replaced(_held, "launches", [])


def holding() -> bool:
    """Whether first calls of this thread launch nothing now."""
    return _held.launches is not None


def first_of(name: str, few: Sequence[Any], *call: Any, **how: Any) -> Any:
    """The first of *few*, whatever the *call* with this *name*, and *how*. It is what `looked` is without a tuner."""
    return few[0]


#: Which of a few candidates a call takes. `tmapipe.tuning` puts `tmapipe.tuning.looked` here: schedules, which call it, are
#: below the tuner.
looked: Callable[..., Any] = first_of


def best_of(
    owner: Any,
    made: Callable[[Any], Any],
    run: Callable[[Any], object],
    name: Any,
    few: Sequence[Any],
    read: Sequence[Any],
    written: Sequence[Any],
    least: int | None = None,
) -> Any:
    """The schedule of the fastest of *few* forms, as `looked` finds it. `owner.fitted` loses the schedules of the other
    forms.

    Args:
        owner: A kernel, with its schedules in `fitted`, by any key; its `look` says how many forms are measured.
        made: Makes the schedule of a form, or takes it from `fitted`.
        run: Makes the call with a schedule.
        name, few, read, written, least: As of `looked`.
    """
    before = {*owner.fitted}
    best = made(looked(name, few, lambda form: run(made(form)), read, written, owner.look, least))
    owner.fitted = {key: each for key, each in owner.fitted.items() if key in before or each is best}
    return best


def watching(tensor: Any) -> contextlib.AbstractContextManager[list[Any]]:
    """Notes this thread's launches, as `tmapipe.gpu.kernels.watched`, where a tensor like this one may have some."""
    if not getattr(tensor, "is_cuda", False):
        return contextlib.nullcontext([])
    from tmapipe.gpu.kernels import watched

    return watched()


def remember(
    schedule: Any,
    run: Callable[[], Any],
    tensors: Tensors,
    out: Any,
    named: dict[str, Any],
    *results: Any,
    parts: bool = False,
) -> None:
    """Runs *run*, a call of a schedule or of a kernel of rows that launches kernels with other views of its tensors. If it
    makes one launch, the schedule's `_again` gets a function that makes this launch again. *results*: the outputs. parts:
    whether the launch may take parts of the tensors, too."""
    with watching(None if named else results[0]) as launches:
        run()
    if not launches:
        return
    from tmapipe.gpu.launch import repeated

    _put_first(schedule, "_again", repeated(launches, tensors, out, results, parts))


def remember_by_name(kernel: Any, run: Callable[[], Any], given: dict[str, Any], made: dict[str, Any]) -> Any:
    """Calls *run*, a call of a kernel of rows, and returns what it returns. As in `remember`, the kernel's `_again` gets what
    makes the call again: (names of tensors, a function that takes these tensors in this order, what it depends on).

    Args:
        given: Tensors by stage; None for outputs that the call makes.
        made: All outputs by stage.
    """
    with watching(next(iter(made.values()), None)) as launches:
        result = run()
    if len(launches) == 1 and not result:
        from tmapipe.gpu.launch import repeated

        launcher = launches[0][0]
        names = [name for name in launcher.names if given.get(name) is not None]
        if tuple(made) == launcher.names[launcher.inputs :] and all(name in given for name in launcher.names):
            call = repeated(launches, [given[name] for name in names], None, tuple(made.values()))
            _put_first(kernel, "_again", call and (names, call, launcher.reads))
    return result


def set_to_zero(workspace: Any, first: int) -> None:
    """Sets a workspace to zero from index *first* on, since no kernel fills this part. A call that is remembered does so
    too."""
    workspace[first:] = 0
    if getattr(workspace, "is_cuda", False):
        from tmapipe.gpu.kernels import note_zeroed

        note_zeroed(workspace, first)


def prepared(schedule: Schedule, bound: Bound) -> Callable[[], Any]:
    """A call with these tensors, as `Schedule.prepare` says."""
    schedule.plan(bound.dtypes)
    if not bound.on_gpu or bound.empty:
        from tmapipe.program import trace

        kept = copy.copy(schedule)
        bound.program = None if bound.empty else trace(kept, kept.plan(bound.dtypes))
        return functools.partial(_run_again, kept, bound)
    launcher = launcher_for(schedule, bound)
    from tmapipe.gpu.launch import Prepared

    return Prepared(launcher, bound)


def check_one_kernel(schedule: Schedule, what: str) -> None:
    """Raises `InputError`, for the method *what*, if a call launches more than one kernel, or kernels with other views of the
    tensors."""
    if not schedule.one_kernel:
        rule = "is for a schedule whose call is one kernel; this one views its tensors otherwise, or adds up parts"
        raise InputError(f"{type(schedule).__name__}.{what}", schedule, rule, "call it, perhaps in a CUDA graph")


def check_clusters(clusters: Any) -> None:
    """Raises `InputError` unless *clusters* is a number of clusters or None."""
    if clusters is not None and not (is_count(clusters) and clusters <= 1024):
        raise InputError("clusters", clusters, "is a number of clusters from 1 to 1024, or None", "leave it out")


def on_model(schedule: Schedule, bound: Bound, clusters: int | None, machine: Callable[..., Machine]) -> Run:
    """Runs the tensors on the model. machine: makes the `Machine` from a plan and options. clusters: as of
    `Schedule.simulate`."""
    from tmapipe.model import steps_for
    from tmapipe.program import replay, trace

    program, spans = bound.program or trace(schedule, schedule.plan(bound.dtypes)), schedule.spans(bound.shapes)
    plan = program.plan
    rule = f"is {spans}, since each cluster takes its tiles of {schedule.tiles} and no others"
    require(spans is None or clusters in (None, spans), "clusters", clusters, rule, "leave it out")
    clusters = clusters or spans or min(2, schedule.cluster_count(bound.shapes))
    tiles = math.prod(schedule.grid(lambda name, i: bound.shapes[name][i]).values())  # one cluster may take them all
    in_part = plan.entries or schedule.tiles.in_parts  # a table, or a part of k, says which elements are written
    whole = () if in_part else bound.made
    made = machine(plan, max_steps=steps_for(plan, max(tiles, clusters)), whole=whole)
    return made.run(lambda isa: replay(program, isa), bound.arrays(), clusters)


def _run_again(schedule: Schedule, bound: Bound) -> Any:
    bound.begin_sums()
    schedule._simulate(bound)
    note_written(bound.outputs)
    return bound.result()


def launcher_for(schedule: Schedule, bound: Bound, stamps: Sequence[int] = ()) -> Launcher:
    """The launcher of the kernel for these tensors. The check has passed the schedule. stamps: as in `Launcher`."""
    with needed("cutlass", "nvidia-cutlass-dsl", "to compile a kernel"):
        from tmapipe.gpu.launch import Launcher
    from tmapipe.prove import require_safe_once

    def gate(program: Traced | None, identity: str | None) -> None:
        schedule.__dict__["_partly"] = require_safe_once(schedule, bound.dtypes, program, identity)

    launcher = Launcher(schedule, bound, gate, stamps)
    bound.check_whole(schedule.__dict__.get("_partly", ()))
    return launcher


# ---- exporting -------------------------------------------------------------------------------------------------------


def export(path: str | os.PathLike[str], kernels: Mapping[str, tuple[Any, ...]], *, arch: str | None = None) -> Path:
    """Writes kernels to one library, as `Schedule.export` does one.

    Args:
        path: The path of the library, with the ending .so.
        kernels: A schedule and its tensors for the name of each function: ``{"gemm": (schedule, a, b)}``.
        arch: The target; by default that of the schedules.

    Raises:
        InputError, UnsafeError, MissingPackageError: As in `Schedule.export`.

    Returns:
        The header's path.
    """
    rule = "is a dictionary with a schedule and its tensors for each name"
    require(isinstance(kernels, Mapping) and kernels, "kernels", kernels, rule, 'e.g. {"gemm": (gemm, a, b)}')
    for name, given in kernels.items():
        if not isinstance(given, tuple) or not given or not isinstance(given[0], Calls):
            rule = "is a tuple of a schedule and its tensors"
            raise InputError(f"kernels[{name!r}]", given, rule, "e.g. (gemm, a, b)")
        check_one_kernel(_schedule(given[0]), "export")
    made = {name: _exported(given[0], given[1:], {}) for name, given in kernels.items()}
    return _export_all(_library_path(path), made, arch)


def _library_path(path: str | os.PathLike[str]) -> Path:
    """*path*. Raises `InputError` unless it can be the path of a library."""
    if not isinstance(path, (str, os.PathLike)) or Path(path).suffix != ".so":
        raise InputError("path", path, "is the path of a library, which ends with .so", 'e.g. "gemm.so"')
    return Path(path)


def _exported(schedule: Any, tensors: tuple[Any, ...], dtypes: Mapping[str, DType | str]) -> Exported:
    """The kernel for tensors, some of which may be given by their extents alone."""
    with needed("cutlass", "nvidia-cutlass-dsl", "to compile a kernel"):
        from tmapipe.gpu.exporting import Exported

    check_type("dtypes", dtypes, Mapping, 'e.g. {"a": "bf16"}')
    declared = schedule.declared
    schedule.plan(types := {name: as_dtype(dtype) for name, dtype in dtypes.items()})
    names = declared.arguments
    rule = f"are at most {len(names)}: {', '.join(names)}"
    require(len(tensors) <= len(names), "tensors", f"{len(tensors)} tensors", rule, "pass fewer")
    given = {name: _example(schedule, name, x, types) for name, x in zip(names, tensors, strict=False)}
    bound = schedule.bind(*given.values())
    if bound.on_gpu or bound.empty:
        what = "tensors on the CPU, or extents" if bound.on_gpu else "no extent of 0"
        raise InputError("tensors", bound.shapes, f"are {what}", "pass extents such as (512, 256)")
    whole = {name: given.get(name, bound.tensors[name]) for name in names}
    return Exported(schedule, whole, bound)


def _example(schedule: Any, name: str, tensor: Any, dtypes: Mapping[str, DType]) -> Any:
    """An array of these extents, whose elements nobody reads; an array as it is."""
    if not isinstance(tensor, (tuple, list)):
        return tensor
    if not all(is_count(extent) for extent in tensor):
        raise InputError(name, tensor, "has extents that are positive integers", "e.g. (512, 256)")
    declared = schedule.declared
    part = declared.parts[name]
    dtype = dtypes.get(name) or getattr(part, "dtype", None) or (int32 if name in declared.tables else None)
    if dtype is None:
        dtype = fp32 if getattr(part, "number", False) else bf16
    return np.empty(tuple(tensor), as_dtype(dtype).in_memory.numpy)


def _export_all(path: Path, kernels: Mapping[str, Exported], arch: str | None) -> Path:
    with needed("cutlass", "nvidia-cutlass-dsl", "to compile a kernel"):
        from tmapipe.gpu.exporting import export as write
        from tmapipe.gpu.exporting import in_c
    for name in kernels:
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or in_c(name) != name:
            rule = "is the name of a C function that the library does not have yet"
            raise InputError("name", name, rule, 'e.g. "gemm"')
    from tmapipe.prove import require_safe_once

    return write(path, kernels, require_safe_once, arch)
