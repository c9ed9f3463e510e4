"""Compiling many schedules at once, in processes of their own, since two compilations in one process break CuTe DSL.

Each process proves its schedules (unless TMAPIPE_CHECK=0), compiles them and exports object files, which the caller loads.
Run as a program, this module is such a process: it reads jobs from its standard input and writes one line for each that is
done. Jobs are sent with cloudpickle, which takes functions that pickle does not.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.errors import InputError, MissingPackageError, needed
from tmapipe.schedule import Schedule
from tmapipe.schedules.gemm import Gemm
from tmapipe.tuning.candidate import Candidate
from tmapipe.tuning.epilogues import PLAIN
from tmapipe.tuning.problem import Problem

if TYPE_CHECKING:
    from tmapipe.gpu.objects import Code

__all__ = ["Job", "build_all", "compile_all", "compile_each", "load", "ready"]

#: Makes a schedule, and says the types and the numbers of dimensions of its tensors.
Job = Callable[[], tuple[Schedule, Mapping[str, Any], dict[str, int]]]

AnySchedule = TypeVar("AnySchedule", bound=Schedule)


def build_all(
    problem: Problem,
    candidates: Sequence[Candidate],
    jobs: int | None = None,
    done: Callable[[Candidate, str], None] = lambda candidate, error: None,
    epilogue: Epilogue = PLAIN,
) -> tuple[dict[Candidate, Gemm], dict[Candidate, str]]:
    """Schedules of the *candidates* that are safe and compile, and what went wrong with the others. Arguments as of
    `compile_all`.
    """
    schedules: dict[Candidate, Gemm] = {}
    with tempfile.TemporaryDirectory(prefix="tmapipe-") as name:
        errors = compile_all(problem, candidates, Path(name), jobs, done, epilogue)
        for index, candidate in enumerate(candidates):
            if errors[candidate]:
                continue
            schedules[candidate] = ready(functools.partial(_built, candidate, problem, epilogue), Path(name), index)
    return schedules, {candidate: error for candidate, error in errors.items() if error}


def _pickled(value: Any) -> bytes:
    """Bytes for another process. Raises `MissingPackageError` if cloudpickle is not installed."""
    with needed("cloudpickle", "cloudpickle", "to compile in other processes"):
        import cloudpickle
    return bytes(cloudpickle.dumps(value))


def compile_all(
    problem: Problem,
    candidates: Sequence[Candidate],
    folder: Path,
    jobs: int | None = None,
    done: Callable[[Candidate, str], None] = lambda candidate, error: None,
    epilogue: Epilogue = PLAIN,
) -> dict[Candidate, str]:
    """Compiles *candidates* into *folder*, in processes; returns "" or what went wrong for each.

    Args:
        problem: Its tensors have two dimensions, or three with a batch.
        jobs: Number of processes; None: one per core, at most 16.
        done: Called with each candidate and "" or what went wrong.
        epilogue: The epilogue.

    Raises:
        InputError: The epilogue cannot be sent to another process.
    """
    try:
        _pickled(epilogue)
    except MissingPackageError:
        raise
    except Exception as error:  # any: values define how they are pickled
        rule = f"is sent to the processes that compile, and cannot be pickled ({error})"
        fix = "enclose numbers and arrays, not locks, files or generators"
        raise InputError("epilogue", epilogue.function, rule, fix) from None
    made = [functools.partial(_built, candidate, problem, epilogue) for candidate in candidates]
    errors = compile_each(made, folder, jobs, lambda index, error: done(candidates[index], error))
    return {candidate: errors[index] for index, candidate in enumerate(candidates)}


def _built(
    candidate: Candidate, problem: Problem, epilogue: Epilogue
) -> tuple[Gemm, Mapping[str, Any], dict[str, int]]:
    """As a `Job`."""
    return (
        candidate.build(problem, epilogue),
        candidate.dtypes(problem, epilogue),
        candidate.ranks(problem, epilogue),
    )


def compile_each(
    jobs: Sequence[Job],
    folder: Path,
    processes: int | None = None,
    done: Callable[[int, str], None] = lambda index, error: None,
    *,
    spills: bool = True,
) -> dict[int, str]:
    """Compiles what *jobs* make into *folder*; returns "" or what went wrong for each, by index.

    Args:
        processes: As many; None: one per core, at most 16.
        done: Called with each index and "" or what went wrong.
        spills: Whether a kernel may keep registers in local memory.
    """
    processes = max(1, min(processes or os.cpu_count() or 1, 16, len(jobs)))
    lines: queue.Queue[tuple[int, str]] = queue.Queue()
    shares = [list(enumerate(jobs))[number::processes] for number in range(processes)]
    threads = [
        threading.Thread(
            target=_serve,
            args=(pickle.dumps(sys.path) + _pickled((share, folder, spills)), [i for i, _ in share], lines),
            daemon=True,
        )
        for share in shares
    ]
    for thread in threads:
        thread.start()
    errors: dict[int, str] = {}
    for _ in jobs:
        index, errors[index] = lines.get()
        done(index, errors[index])
    for thread in threads:
        thread.join()
    return errors


def ready(
    job: Callable[[], tuple[AnySchedule, Mapping[str, Any], dict[str, int]]], folder: Path, index: int
) -> AnySchedule:
    """The schedule that a job makes, with the kernel that `compile_each` has compiled for the *index*-th one."""
    from tmapipe.gpu.build import Compiled
    from tmapipe.gpu.launch import adopt

    schedule, dtypes, ranks = job()
    schedule.checked = False  # its process has proved it
    adopt(schedule, Compiled(schedule.plan(dtypes), load(folder, index)), ranks)
    return schedule


def load(folder: Path, index: int) -> Code:
    """What `compile_all` compiled for the *index*-th candidate."""
    from tmapipe.gpu.objects import Code

    content = _object(folder, index).read_bytes()
    return Code(lambda: content)


def _object(folder: Path, index: int) -> Path:
    return folder / f"{index}.o"


def _serve(task: bytes, share: list[int], lines: queue.Queue[tuple[int, str]]) -> None:
    """Runs one process, which reads *task*, and reports how each index of its *share* went, whatever happens."""
    left = set(share)
    ended = "without a word"
    try:
        with tempfile.TemporaryFile() as said:  # no pipe, which would be full before somebody reads it
            command = [sys.executable, "-m", __name__]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said) as process:
                assert process.stdin is not None and process.stdout is not None
                with contextlib.suppress(BrokenPipeError):  # it has ended: what it said tells why
                    process.stdin.write(task)
                    process.stdin.close()
                for line in process.stdout:
                    index, _, error = line.decode(errors="replace").rstrip("\n").partition(" ")
                    if index.isdecimal() and int(index) in left:
                        left.remove(int(index))
                        lines.put((int(index), error))
            said.seek(0)
            ended = (said.read().decode(errors="replace").strip().splitlines() or [ended])[-1]
    except Exception as error:  # no process, no file: report it to whoever waits
        ended = f"{type(error).__name__}: {error}"
    for number in left:
        lines.put((number, f"the compiling process ended: {ended}"))


def _import_tvm_ffi() -> None:
    """Without PyTorch, which it would import first, for a second or two, and which compiling does not need."""
    if "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]
        try:
            import tvm_ffi  # noqa: F401
        finally:
            del sys.modules["torch"]


def _main() -> None:
    said = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what compilers print is no answer
    sys.path[:] = pickle.load(sys.stdin.buffer)  # where modules that an epilogue uses are found
    share, folder, spills = pickle.load(sys.stdin.buffer)
    for index, job in share:
        try:
            schedule, dtypes, ranks = job()
            if os.environ.get("TMAPIPE_CHECK", "1") != "0":
                report = schedule.check(dtypes)
                if not report.ok:
                    said.write(f"{index} not safe: {str(report).splitlines()[0]}\n")
                    continue
            _import_tvm_ffi()
            from tmapipe.gpu.build import build  # some seconds, which a process does not need that only refuses

            compiled = build(schedule, schedule.plan(dtypes), ranks)
            if not spills and compiled.resources.spill_bytes:
                said.write(f"{index} keeps {compiled.resources.spill_bytes} bytes of registers in local memory\n")
                continue
            _object(folder, index).write_bytes(compiled.code.object)
            said.write(f"{index}\n")
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            said.write(f"{index} {type(error).__name__}: {first}\n")


if __name__ == "__main__":
    _main()
