"""Chunks of random calls, in processes of their own; what became of them; files of results."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from tests.fuzz import bodies, options, publics, tensors
from tests.fuzz.outcomes import Call, Outcome, judge

__all__ = [
    "KINDS",
    "RESULTS",
    "alike",
    "calls_of",
    "counted",
    "read",
    "run",
    "starts_of",
    "summary",
    "table",
    "total",
    "write",
]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz.json"
KINDS: dict[str, Callable[[int], Call]] = {
    "tensors": tensors.call,
    "options": options.call,
    "bodies": bodies.call,
    "publics": publics.call,
}
CHUNK = 50
#: Variables of the environment under which the chunks run, in turn.
CORES: tuple[dict[str, str], ...] = (
    {},
    {"OPENBLAS_CORETYPE": "Haswell"},
    {"OPENBLAS_CORETYPE": "Sandybridge", "OPENBLAS_NUM_THREADS": "2"},
    {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX"},
)
SHOWN = 40  # bad calls in a results file, each in at most 300 characters
Judged = tuple[str, str, Outcome, str]  # kind, text of the call, outcome, detail
Chunk = dict[str, Any]  # what `counted` makes of some calls


def starts_of(calls: int) -> range:
    """Where the chunks begin."""
    return range(0, calls, CHUNK)


def calls_of(seed: int, start: int, count: int, kinds: Sequence[str] = tuple(KINDS)) -> list[Judged]:
    """*count* calls from the *start*-th on, the kinds in turn."""
    return [judged for judged, _ in _timed(seed, start, count, kinds)]


def _timed(seed: int, start: int, count: int, kinds: Sequence[str]) -> Iterator[tuple[Judged, float]]:
    for i in range(start, start + count):
        began = time.process_time()
        kind = kinds[i % len(kinds)]
        call = KINDS[kind](seed * 1_000_003 + i)
        yield (kind, call.text, *judge(call)), time.process_time() - began


def counted(seed: int, start: int, count: int, kinds: Sequence[str] = tuple(KINDS)) -> Chunk:
    """How many of the calls of `calls_of` came to what, the bad ones, CPU seconds of all, and of the slowest."""
    of, bad, seconds, slowest = Counter[str](), [], 0.0, (0.0, "")
    for (kind, text, outcome, detail), each in _timed(seed, start, count, kinds):
        of[f"{kind} {outcome.name}"] += 1
        bad += [] if outcome.good else [(kind, text, outcome.name, detail)]
        seconds, slowest = seconds + each, max(slowest, (round(each, 3), text[:200]))
    return {"start": start, "counts": dict(of), "bad": bad, "seconds": round(seconds, 3), "slowest": list(slowest)}


def _crashed(start: int, count: int) -> Chunk:
    text = f"one of {count} calls from {start} on"
    bad = [("tensors", text, Outcome.CRASH.name, "")]
    return {"start": start, "counts": {"tensors CRASH": 1}, "bad": bad, "seconds": 0.0, "slowest": [0.0, ""]}


def total(chunks: Iterable[Chunk]) -> Counter[str]:
    """The counts of all, by "kind OUTCOME"."""
    found: Counter[str] = Counter()
    for chunk in chunks:
        found.update(chunk["counts"])
    return found


def table(counts: Counter[str]) -> str:
    """Outcomes by kind."""
    lines = [" ".join([f"{'':10}", *(f"{kind:>9}" for kind in KINDS), f"{'all':>9}"])]
    for outcome in Outcome:
        row = [counts[f"{kind} {outcome.name}"] for kind in KINDS]
        lines.append(
            " ".join([f"{outcome.name.lower():10}", *(f"{n:9}" for n in (*row, sum(row))), f"  {outcome.value}"])
        )
    return "\n".join(lines)


def summary(seed: int, chunks: Sequence[Chunk]) -> dict[str, Any]:
    """What a results file has: the commit, counts by kind and outcome, each bad outcome once with a call that shows it."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    counts = total(chunks)
    by_kind = {k: {o.name.lower(): counts[f"{k} {o.name}"] for o in Outcome} for k in KINDS}
    return {
        "commit": commit,
        "seed": f"{seed:#x}",
        "calls": sum(counts.values()),
        "all": {o.name.lower(): sum(row[o.name.lower()] for row in by_kind.values()) for o in Outcome},
        "by kind": by_kind,
        "CPU seconds": round(sum(chunk["seconds"] for chunk in chunks), 1),
        "slowest call": max((chunk["slowest"] for chunk in chunks), default=[0.0, ""]),
        "core types": [f"{core.get('OPENBLAS_CORETYPE', 'its own')}" for core in CORES],
        "bad": [
            {"times": n, "outcome": name.lower(), "detail": detail[:300], "call": text[:300]}
            for n, name, detail, text in alike(chunks)[:SHOWN]
        ],
    }


def alike(chunks: Iterable[Chunk]) -> list[tuple[int, str, str, str]]:
    """Bad outcomes, the most frequent ones first: how often, outcome, detail, a call."""
    bad = [entry for chunk in chunks for entry in chunk["bad"]]
    examples = {(name, detail.split(" At ")[0]): text for _, text, name, detail in reversed(bad)}
    alike = Counter((name, detail.split(" At ")[0]) for _, _, name, detail in bad)
    return [(n, *key, examples[key]) for key, n in alike.most_common()]


def run(seed: int, calls: int, starts: Sequence[int], jobs: int, kinds: Sequence[str], end: float) -> Iterator[Chunk]:
    """The chunks that begin at *starts*, until `time.perf_counter` says *end*: each core type in processes of its own."""
    waiting: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in CORES]
    for start in starts:
        waiting[start // CHUNK % len(CORES)].put(start)
    found: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
    spawning = threading.Lock()

    def work(worker: int) -> None:
        for which in range(worker % len(CORES), len(CORES), jobs):
            pool = None
            while time.perf_counter() < end and (start := _next(waiting[which])) is not None:
                count = min(CHUNK, calls - start)
                with spawning:  # a process has the environment of the time of its start, which is the first call's
                    before = dict(os.environ)
                    os.environ.update({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} | CORES[which])
                    pool = pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
                    future = pool.submit(counted, seed, start, count, kinds)
                    os.environ.clear()
                    os.environ.update(before)
                try:
                    found.put(future.result())
                except BrokenProcessPool:
                    pool = None
                    found.put(_crashed(start, count))
            if pool is not None:
                pool.shutdown()
        found.put(None)

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in range(jobs)]
    for thread in threads:
        thread.start()
    for _ in threads:
        yield from iter(found.get, None)


def _next(waiting: queue.SimpleQueue[int]) -> int | None:
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


def read(file: Path, of: list[Any]) -> dict[int, Chunk]:
    """What an earlier run has written to *file*. of: seed, number of calls, kinds."""
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return {line["start"]: line["chunk"] for line in lines if line["of"] == of}


def write(file: Path, of: list[Any], chunk: Chunk) -> None:
    """Adds *chunk* to *file*."""
    with file.open("a") as lines:
        lines.write(json.dumps({"of": of, "start": chunk["start"], "chunk": chunk}) + "\n")
