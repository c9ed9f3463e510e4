"""Compiling many schedules at once, in processes of their own; and what measuring has found, kept on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pickle
import select
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

import tmapipe
from tmapipe.base import disk
from tmapipe.calling import held
from tmapipe.epilogue import Epilogue
from tmapipe.errors import InputError, MissingPackageError, PipelineError, UnsafeError, needed, require
from tmapipe.program import ONE_AT_A_TIME, trace
from tmapipe.program.identity import identity
from tmapipe.prove import require_safe_once
from tmapipe.schedule import Schedule
from tmapipe.schedules.gemm import Gemm
from tmapipe.tuning.cost import Run
from tmapipe.tuning.problem import PLAIN, Candidate, Problem, fingerprint

if TYPE_CHECKING:
    from tmapipe.gpu.build import Code, Compiled


# ---- compiling -------------------------------------------------------------------------------------------------------
#
# Compiling many schedules at once, in processes of their own, since two compilations in one process break CuTe DSL.
#
# One process imports what compiling takes, which takes longer than to compile a kernel, and forks the others. Each of these
# proves its schedules (unless TMAPIPE_CHECK=0), compiles them meanwhile, and exports object files, which the caller loads. The
# store gets verdicts and kernels too, for other processes. The first process runs `main`: it reads jobs from its standard
# input, and a line is written for each job that is done. The first process has the caller's `sys.path` before it imports
# anything of the library. Jobs are sent with cloudpickle.


#: What the first process begins with: only then does it know where the library is.
_BEGIN = "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline())"
_BEGIN += "; from tmapipe.tuning.compiling import main; main()"

AnySchedule = TypeVar("AnySchedule", bound=Schedule)
#: A schedule, with the types and the numbers of dimensions of its tensors.
Made = tuple[AnySchedule, Mapping[str, Any], dict[str, int]]
Job = Callable[[], Made[AnySchedule]]
Few = TypeVar("Few")


def build_all(
    problem: Problem,
    candidates: Sequence[Candidate],
    jobs: int | None = None,
    done: Callable[[Candidate, str], None] = lambda candidate, error: None,
    epilogue: Epilogue = PLAIN,
) -> tuple[dict[Candidate, Gemm], dict[Candidate, str]]:
    """Schedules of the *candidates* that are safe and compile, and the reasons why other candidates do not.

    Args:
        problem: Its tensors have two dimensions, or three with a batch.
        jobs: How many processes compile; None: one per core, at most 16.
        done: Called with each candidate and "", or what went wrong.
        epilogue: The epilogue.

    Raises:
        InputError: The epilogue cannot be sent to another process.
    """
    made, errors = compiled(jobs_of(problem, candidates, epilogue), jobs, lambda i, error: done(candidates[i], error))
    return {candidates[i]: each for i, each in made.items()}, {candidates[i]: error for i, error in errors.items()}


def _pickled(value: Any) -> bytes:
    """Bytes for another process. Raises `MissingPackageError` if cloudpickle is not installed."""
    with needed("cloudpickle", "cloudpickle", "to compile in other processes"):
        import cloudpickle
    return bytes(cloudpickle.dumps(value))


def jobs_of(problem: Problem, candidates: Sequence[Candidate], epilogue: Epilogue = PLAIN) -> list[Job[Gemm]]:
    """A job for each candidate. Raises `InputError` if the epilogue cannot be sent to another process."""
    try:
        _pickled(epilogue)
    except MissingPackageError:
        raise
    except Exception as error:  # any: values define how they are pickled
        rule = f"is sent to the processes that compile, and cannot be pickled ({error})"
        fix = "enclose numbers and arrays, not locks, files or generators"
        raise InputError("epilogue", epilogue.function, rule, fix) from None
    return [functools.partial(_built, candidate, problem, epilogue) for candidate in candidates]


def _built(candidate: Candidate, problem: Problem, epilogue: Epilogue) -> Made[Gemm]:
    given = problem, epilogue
    return candidate.build(*given), candidate.dtypes(*given), candidate.ranks(*given)


def compile_each(
    jobs: Sequence[Job[Any]],
    folder: Path,
    processes: int | None = None,
    done: Callable[[int, str], None] = lambda index, error: None,
    *,
    spills: bool = True,
) -> dict[int, str]:
    """Compiles the schedules of *jobs* into *folder*. Returns for each index "", or what went wrong.

    Args:
        processes: How many processes compile; None: one per core, at most 16.
        done: Called with each index and "", or what went wrong.
        spills: Whether a kernel may keep registers in local memory.
    """
    processes = max(1, min(processes or os.cpu_count() or 1, 16, len(jobs)))
    numbered = list(enumerate(jobs))
    shares = [(range(len(jobs))[first::processes], _pickled(numbered[first::processes])) for first in range(processes)]
    errors: dict[int, str] = {}
    for index, error in _answers(pickle.dumps((shares, folder, spills)), len(jobs)):
        errors[index] = error
        done(index, error)
    return errors


def compiled(
    jobs: Sequence[Job[AnySchedule]],
    processes: int | None = None,
    done: Callable[[int, str], None] = lambda index, error: None,
    *,
    spills: bool = True,
) -> tuple[dict[int, AnySchedule], dict[int, str]]:
    """By index: the schedules of the jobs that succeed, ready to be launched, and what went wrong with the other jobs. The
    arguments are those of `compile_each`."""
    with tempfile.TemporaryDirectory(prefix="tmapipe-") as name:
        errors = compile_each(jobs, folder := Path(name), processes, done, spills=spills)
        made = {i: ready(jobs[i], folder, i) for i in range(len(jobs)) if not errors[i]}
    return made, {i: errors[i] for i in range(len(jobs)) if errors[i]}


def ready(job: Job[AnySchedule], folder: Path, index: int) -> AnySchedule:
    """The schedule that a job makes, with the kernel that `compile_each` has compiled for the *index*-th one."""
    from tmapipe.gpu.build import Compiled
    from tmapipe.gpu.launch import adopt

    schedule, dtypes, ranks = job()
    schedule.checked = False  # its process has proved it
    if getattr(schedule, "epilogue", None) != PLAIN:
        with ONE_AT_A_TIME:
            trace(schedule, schedule.plan(dtypes))  # which notes what calls are to compare, as values may change
    adopt(schedule, Compiled(schedule.plan(dtypes), load(folder, index)), ranks)
    return schedule


def load(folder: Path, index: int) -> Code:
    """The code that `compile_each` has compiled for job number *index*."""
    from tmapipe.gpu.build import Code

    content = _object(folder, index).read_bytes()
    return Code(lambda: content)


def _object(folder: Path, index: int) -> Path:
    return folder / f"{index}.o"


def _answers(task: bytes, count: int) -> Iterator[tuple[int, str]]:
    """Runs the first process, which reads *task*; yields how each of *count* jobs went, as soon as it is known, whatever
    happens."""
    left = set(range(count))
    ended = "without a word"
    try:
        with tempfile.TemporaryFile() as said:  # no pipe, which would be full before somebody reads it
            command = [sys.executable, "-I", "-c", _BEGIN]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said) as process:
                assert process.stdin is not None and process.stdout is not None
                with contextlib.suppress(BrokenPipeError):  # it has ended: what it said tells why
                    process.stdin.write(json.dumps(sys.path).encode() + b"\n" + task)
                    process.stdin.close()
                for line in process.stdout:
                    index, _, error = line.decode(errors="replace").rstrip("\n").partition(" ")
                    if index.isdecimal() and int(index) in left:
                        left.remove(int(index))
                        yield int(index), error
            said.seek(0)
            ended = (said.read().decode(errors="replace").strip().splitlines() or [ended])[-1]
    except Exception as error:  # no process, no file: whoever waits gets to know it
        ended = f"{type(error).__name__}: {error}"
    for number in left:
        yield number, f"the compiling process ended: {ended}"


def _import_tvm_ffi() -> None:
    """Without PyTorch, which it would import first, for a second or two, and which compiling does not need."""
    if "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]
        try:
            import tvm_ffi  # noqa: F401
        finally:
            del sys.modules["torch"]


def _kernel(schedule: Schedule, dtypes: Mapping[str, Any], ranks: dict[str, int]) -> Compiled:
    """The kernel from the store, where the process that launches it finds it, or newly compiled. Its verdict is kept, too.

    Raises:
        UnsafeError: The schedule is not safe.
    """
    plan = schedule.plan(dtypes)
    program = trace(schedule, plan)
    known = identity(program)
    with beside(functools.partial(require_safe_once, schedule, dtypes, program, known)):
        _import_tvm_ffi()
        from tmapipe.gpu import name_of
        from tmapipe.gpu.build import build, put_by, recalled

        if known is None:
            return build(schedule, plan, ranks, program=program)
        name = name_of(known, ranks, "")
        with disk.locked(disk.lock_of(name)):
            return recalled(name, plan) or put_by(name, build(schedule, plan, ranks, program=program))


@contextlib.contextmanager
def beside(check: Callable[[], object]) -> Iterator[None]:
    """The scope beside which a fork of this process runs *check*. The scope's end waits for the fork, and raises the check's
    error, or `UnsafeError` if the fork ended without an answer."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        said: Exception | None = None
        try:
            try:
                check()
            except Exception as error:
                said = error
            with open(send, "wb") as pipe:
                pipe.write(pickle.dumps(said))
        finally:
            os._exit(0)
    os.close(send)
    try:
        yield
    finally:
        with open(receive, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        said = pickle.loads(answer) if answer else UnsafeError("the process that proves it has ended without a word")
        if said is not None:
            raise said


def is_kept(schedule: Schedule, dtypes: Mapping[str, Any], ranks: dict[str, int]) -> bool:
    """Whether the store has the kernel."""
    from tmapipe.gpu import name_of

    with ONE_AT_A_TIME:
        known = identity(trace(schedule, schedule.plan(dtypes)))
    return known is not None and disk.recall("kernels", name_of(known, ranks, "")) is not None


def built(few: Sequence[Few], run: Callable[[Few], object]) -> dict[int, Run]:
    """Calls with those of *few* candidates that work, by number; *run* makes a call. Kernels that the store lacks are compiled
    side by side."""
    jobs: dict[Any, Any] = {}
    needs: dict[int, list[Any]] = {}
    for number, each in enumerate(few):
        try:
            with held() as launches:
                run(each)
            needs[number] = []
            for schedule, bound in launches:
                types = {name: dtype.name for name, dtype in bound.dtypes.items()}
                ranks = {name: tensor.ndim for name, tensor in bound.tensors.items()}
                if not is_kept(schedule, types, ranks):
                    key = id(schedule), *sorted(types.items()), *sorted(ranks.items())
                    jobs[key] = functools.partial(_same, schedule, types, ranks)
                    needs[number].append(key)
        except PipelineError:
            needs.pop(number, None)
    wrong: set[Any] = set()
    if len(jobs) > 1:
        with tempfile.TemporaryDirectory(prefix="tmapipe-") as folder:
            errors = compile_each([*jobs.values()], Path(folder))
        wrong = {key for index, key in enumerate(jobs) if errors[index]}
    runs: dict[int, Run] = {}
    for number in needs:
        if wrong.isdisjoint(needs[number]):
            with contextlib.suppress(PipelineError):
                run(few[number])
                runs[number] = functools.partial(run, few[number])
    return runs


def _same(*made: Any) -> tuple[Any, ...]:
    """What it gets: the `tmapipe.tuning.compiling.Job` of a schedule that is there."""
    return made


def main() -> None:
    """Runs in the first process: imports what compiling takes, and forks a process for each share of the jobs from standard
    input."""
    said = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what compilers print is no answer
    shares, folder, spills = pickle.load(sys.stdin.buffer)
    with contextlib.suppress(ImportError):  # which each job says
        _import_tvm_ffi()
        from tmapipe.gpu.build import forget_ir

        forget_ir()  # which finds what there is to forget
    running = {}
    for indices, share in shares:
        if child := os.fork():
            running[child] = indices
            continue
        try:
            _compile(share, folder, spills, said)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    while running:
        child, status = os.wait()
        indices, code = running.pop(child), os.waitstatus_to_exitcode(status)
        for index in indices if code < 0 else ():  # its caller knows which of them are done
            _say(said, index, f"the compiling process ended: by signal {-code}")


def _compile(share: bytes, folder: Path, spills: bool, said: int) -> None:
    """Compiles a share of the jobs, and writes a line for each to the file *said*."""
    for index, job in pickle.loads(share):
        try:
            schedule, dtypes, ranks = job()
            compiled = _kernel(schedule, dtypes, ranks)
            spilled = 0 if spills else compiled.resources.spill_bytes
            if not spilled:
                _object(folder, index).write_bytes(compiled.code.object)
            error = f"keeps {spilled} bytes of registers in local memory" if spilled else ""
        except UnsafeError as unsafe:
            error = f"not safe: {str(unsafe).splitlines()[0]}"
        except Exception as other:
            error = f"{type(other).__name__}: {(str(other).strip().splitlines() or [''])[0]}"
        _say(said, index, error)


def _say(said: int, index: int, error: str) -> None:
    """Writes the line of a job at once, as other processes write lines to the same pipe."""
    os.write(said, f"{index} {error}".encode(errors="replace")[: select.PIPE_BUF - 1] + b"\n")


# ---- cache -----------------------------------------------------------------------------------------------------------
#
# What tuning has found, kept in the library's store: an entry a GPU, problem and epilogue, which outlives upgrades.
#
# `export_tuned` writes entries to a file that `import_tuned` reads elsewhere.


KIND = "tuned"
FORMAT = "tmapipe tuned 1"  # of what `export_tuned` writes
LARGEST = 16 << 20  # bytes of such a file


@attrs.frozen
class Entry:
    """The winner on one problem.

    Args:
        candidate: The fastest one.
        us: Its time (microseconds).
        tried: How many candidates were timed, or wanted if fewer differ.
    """

    candidate: Candidate
    us: float
    tried: int


def _key(problem: Problem, epilogue: Epilogue) -> str:
    return f"{problem} {fingerprint(epilogue)}".strip()


def load_entry(problem: Problem, gpu: str, epilogue: Epilogue = PLAIN) -> Entry | None:
    """The entry of *problem* on a GPU of this name. One that cannot be read is None."""
    kept = recall_entry(_key(problem, epilogue), gpu)
    if kept is None:
        return None
    try:
        options = tuple((name, _tuples(value)) for name, value in kept["options"])
        candidate = Candidate(kept["schedule"], tuple(kept["tile"]), tuple(kept["cluster"]), options)
        return Entry(candidate, float(kept["us"]), int(kept["tried"]))
    except (KeyError, TypeError, ValueError):
        return None


def store(problem: Problem, gpu: str, entry: Entry, epilogue: Epilogue = PLAIN) -> Path:
    """Adds or replaces the entry; returns its file. Raises `OSError` if it cannot be written."""
    facts = {**attrs.asdict(entry.candidate), "us": entry.us, "tried": entry.tried}
    return keep(_key(problem, epilogue), gpu, facts)


def keep(name: str, gpu: str, found: dict[str, Any]) -> Path:
    """Adds or replaces the entry of this name. Its values are JSON. Errors are those of `store`."""
    facts = {"gpu": gpu, "name": name, "version": tmapipe.__version__, "found": found}
    return disk.put(KIND, _file(name, gpu), facts)


def recall_entry(name: str, gpu: str) -> dict[str, Any] | None:
    """The entry that `keep` has written under this name for a GPU; None if there is none."""
    kept = disk.recall(KIND, _file(name, gpu))
    if kept is None:
        return None
    found = kept[0].get("found")
    return found if isinstance(found, dict) and (kept[0].get("gpu"), kept[0].get("name")) == (gpu, name) else None


def export_tuned(path: str | os.PathLike[str]) -> int:
    """Writes all results of tuning on this machine to a file, for `import_tuned`.

    Args:
        path: The file, which is JSON.

    Raises:
        InputError: The file cannot be written.

    Returns:
        How many entries it has.
    """
    _check_path("export_tuned(path)", path)
    kept = [found[0] for name in disk.names(KIND) if (found := disk.recall(KIND, name)) is not None]
    entries = sorted(filter(_sound, kept), key=lambda each: (each["gpu"], each["name"]))
    try:
        Path(path).write_text(json.dumps({"format": FORMAT, "entries": entries}, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        rule = f"cannot be written: {error.strerror}"
        raise InputError("export_tuned(path)", str(path), rule, "name another one") from None
    return len(entries)


def import_tuned(path: str | os.PathLike[str]) -> int:
    """Keeps the entries that `export_tuned` has written, perhaps on another machine. They replace entries for the same
    problems.

    Args:
        path: The file.

    Raises:
        InputError: The file was not written by `export_tuned`.
        OSError: An entry cannot be kept.

    Returns:
        How many entries it has.
    """
    _check_path("import_tuned(path)", path)
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read(LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        rule = f"is a file that export_tuned has written ({error})"
        raise InputError("import_tuned(path)", str(path), rule, "export it again") from None
    entries = document.get("entries") if isinstance(document, dict) and document.get("format") == FORMAT else None
    if not isinstance(entries, list) or not all(map(_sound, entries)):
        rule = f"is a file that export_tuned has written ({FORMAT})"
        raise InputError("import_tuned(path)", str(path), rule, "export it again")
    for each in entries:
        keep(each["name"], each["gpu"], each["found"])
    return len(entries)


def _check_path(argument: str, path: Any) -> None:
    require(isinstance(path, (str, os.PathLike)), argument, path, "is the path of a file", 'e.g. "tuned.json"')


def _sound(facts: Any) -> bool:
    kinds = {"gpu": str, "name": str, "found": dict}
    return isinstance(facts, dict) and all(isinstance(facts.get(name), kind) for name, kind in kinds.items())


def _file(name: str, gpu: str) -> str:
    return hashlib.sha256(json.dumps([gpu, name]).encode()).hexdigest()


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
