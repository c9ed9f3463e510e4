"""What becomes of drawn bodies (`tests.oracle.bodies`): whether the judge and the traced program agree."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.util
import json
import multiprocessing
import platform
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import tmapipe as tp
from tests.oracle.bodies import Body, body
from tests.oracle.judge import Entry, entry_of, operations, ran
from tests.oracle.mutant_table import commit
from tmapipe.errors import PipelineError

__all__ = ["AGREES", "DIFFERS", "FAILS", "REFUSED", "WRONG", "Outcome", "outcome", "program_of", "table"]

AGREES, REFUSED, DIFFERS, FAILS, WRONG = "agrees", "refused", "DIFFERS", "FAILS", "wrong in Python"
SHAPES = ((20, 36), (1, 4))  #: of x and of y
PLACES = ((0, 1), (1, 3))  #: cluster, and of how many
MILLION = 1_000_000


@attrs.frozen
class Outcome:
    """end: AGREES; REFUSED, with a line; DIFFERS from the judge; FAILS: another error than a refusal with a line; WRONG: the
    judge itself finds an error. why: its text."""

    body: Body
    end: str
    why: str = ""


@contextlib.contextmanager
def _schedule(drawn: Body, folder: Path) -> Iterator[Any]:
    """Makes its schedule, each time from a new module, so that what it keeps begins anew."""
    file = folder / f"{drawn.name}.py"
    if not file.exists():
        file.write_text(drawn.source)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True

    def make() -> tp.Schedule:
        spec = importlib.util.spec_from_file_location(f"drawn.{drawn.name}", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        schedule: tp.Schedule = getattr(module, drawn.name)()
        return schedule

    try:
        yield make
    finally:
        sys.dont_write_bytecode = before
        file.unlink()


def program_of(schedule: tp.Schedule, plan: Any = None) -> Entry:
    """The traced program of a warp, as the model runs it."""
    from tmapipe.program import replay, trace

    program = trace(schedule, plan or schedule.plan())
    return lambda isa: replay(program, isa)


def tensors_of(shape: tuple[int, int], seed: int) -> dict[str, Any]:
    """Inputs of a body: small whole numbers, and a table with entries that are read."""
    rng = np.random.default_rng(seed)
    return {"x": rng.integers(-8, 9, shape).astype(np.float32), "t": rng.integers(0, 6, 6).astype(np.int32)}


def _evidence(make: Callable[[], tuple[tp.Schedule, Entry]]) -> Iterator[tuple[str, Any]]:
    """What is compared: (where, operations or outputs) of what *make* makes: a schedule, and the program of a warp."""
    for shape in SHAPES:
        shapes = {"x": shape, "y": shape, "t": (6,)}
        for cluster, clusters in PLACES:
            schedule, entry = make()
            where = f"{shape}, cluster {cluster} of {clusters}"
            yield where, operations(schedule.plan(), entry, shapes, cluster, clusters)
    schedule, entry = make()
    found = ran(schedule, entry, tensors_of(SHAPES[0], 1))
    yield "operations of a run", found.operations
    yield "outputs", {name: array.tobytes() for name, array in found.outputs.items()}


def outcome(drawn: Body, folder: Path) -> Outcome:
    """Judges a body."""
    with _schedule(drawn, folder) as make:
        once = functools.cache(make)

        def judged() -> tuple[tp.Schedule, Entry]:
            schedule = once() if drawn.right else make()  # what is kept begins anew
            return schedule, entry_of(schedule)

        try:
            wanted = list(_evidence(judged))
        except Exception as error:
            return Outcome(drawn, WRONG, _text(error))
        try:
            schedule = make()
            program = program_of(schedule)
        except Exception as error:
            refused = isinstance(error, PipelineError) and f"{drawn.name}.py" in str(error)
            return Outcome(drawn, REFUSED if refused else FAILS, _text(error))
        try:
            for (where, want), (_, found) in zip(wanted, _evidence(lambda: (schedule, program)), strict=True):
                if want != found:
                    return Outcome(drawn, DIFFERS, f"{where}: {difference(want, found)}")
        except Exception as error:
            return Outcome(drawn, DIFFERS, f"the program raises {_text(error)}")
    return Outcome(drawn, AGREES)


def difference(want: Any, found: Any) -> str:
    if isinstance(want, dict) and isinstance(next(iter(want.values())), bytes):
        return "other numbers"
    if isinstance(want, dict):
        pairs = [(key, want[key], found.get(key, [])) for key in want]
    else:
        pairs = list(zip(range(99), want, found, strict=False))
    for warp, wants, finds in pairs:
        if wants != finds:
            at = next(
                (i for i, (a, b) in enumerate(zip(wants, finds, strict=False)) if a != b), min(len(wants), len(finds))
            )
            return f"warp {warp}, operation {at} of {len(wants)} / {len(finds)}: {wants[at : at + 1]} / {finds[at : at + 1]}"
    return "other warps"


def _text(error: Exception) -> str:
    line = next((f for f in reversed(traceback.extract_tb(error.__traceback__)) if "Body" in f.filename), None)
    at = "" if line is None else f" (line {line.lineno}: {line.line})"
    return f"{type(error).__name__}: {error}{at}"


def reason(why: str) -> str:
    """A text without what differs from body to body."""
    why = re.sub(r"\(line .*", "", why)
    why = re.sub(r"\S*Body\d+\.py:\d+", "LINE", re.sub(r"`[^`]*`", "`...`", why))
    return re.sub(r"\d+", "N", why)[:150]


def outcomes_of(seeds: Sequence[int]) -> list[Outcome]:
    """What becomes of the bodies of these seeds; those that are wrong are printed."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            found.append(last := outcome(body(seed), Path(folder)))
            if last.end in (DIFFERS, FAILS):
                print(f"{last.end} {seed} {last.body.state or last.body.asked}: {last.why[:300]}", flush=True)
    return found


def table(seeds: Iterable[int], jobs: int = 1, out: Path | None = None) -> int:
    """Judges the bodies of these seeds, and prints what became of them. Returns 1 if one that is right is refused too often,
    or any differs. out: a file for the results."""
    began, every = time.perf_counter(), list(seeds)
    parts = [every[first : first + 25] for first in range(0, len(every), 25)]
    if jobs > 1:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            outcomes = [each for part in pool.map(outcomes_of, parts) for each in part]
    else:
        outcomes = [each for part in parts for each in outcomes_of(part)]
    right = [each for each in outcomes if each.body.right and each.end != WRONG]
    kept = [each for each in outcomes if not each.body.right and each.end != WRONG]
    found = {
        "suite": "bodies",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": "none",
        "versions": {"python": platform.python_version(), "tmapipe": tp.__version__},
        "commit": commit(),
        "command": f"python -m tests.oracle.bodies {len(every)} --seed {every[0] // MILLION}",
        "bodies": len(outcomes),
        "seconds": round(time.perf_counter() - began, 1),
        "jobs": jobs,
        "right in plain Python": dict(Counter(each.end for each in right).most_common()),
        "with state outside of locals, or asking Python": dict(Counter(each.end for each in kept).most_common()),
        "wrong in Python, and left out": len(outcomes) - len(right) - len(kept),
        "right, but refused": _by_reason(right, REFUSED),
        "left out": _by_reason(outcomes, WRONG),
        "disagree": [
            f"{each.end} {each.body.seed}: {each.why[:300]}" for each in outcomes if each.end in (DIFFERS, FAILS)
        ],
    }
    text = json.dumps(found, indent=1)
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
    refused = sum(each.end == REFUSED for each in right)
    return int(bool(found["disagree"]) or refused > 0.02 * len(right))


def _by_reason(outcomes: Sequence[Outcome], end: str) -> dict[str, int]:
    return dict(Counter(reason(each.why) for each in outcomes if each.end == end).most_common())
