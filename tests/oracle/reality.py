"""``python -m tests.oracle.reality --out DIR``: what the checker accepts, and mutants that it rejects, run on a GPU.

Accepted random pipelines must give the right result, bit-identical in every launch. Of the rejected mutants, each in a
process of its own, it is counted how many hung, corrupted the result, ended in an error, or got away. --dry compiles for
sm_90a without a GPU and runs the CPU model instead of the kernel. Writes DIR/reality.json.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.oracle.mutations import mutations_of
from tests.oracle.plain import record
from tests.oracle.random_pipelines import draw
from tmapipe.kernel import kernel_main

ROOT = Path(__file__).parents[2]
WORKER = ["-m", "tests.oracle.reality_worker"]
PREPARING = 120  # seconds of silence before a kernel is launched: imports, the check, compilation
HANGS = 12  # seconds of silence after it
SANITIZED = 120  # the same, under compute-sanitizer


class Slot(threading.Thread):
    """Runs batches of jobs in a process each, and starts the rest of a batch anew when one of its jobs hangs."""

    def __init__(self, batches: queue.SimpleQueue[list[dict[str, Any]]], dry: bool, until: float):
        super().__init__(daemon=True)
        self.batches, self.dry, self.until = batches, dry, until

    def run(self) -> None:
        while True:
            try:
                batch = self.batches.get_nowait()
            except queue.Empty:
                return
            while batch and time.monotonic() < self.until:
                batch = batch[self._process(batch) :]

    def _process(self, batch: list[dict[str, Any]]) -> int:
        """Runs *batch* until it ends or one job hangs; fills in the jobs' results. Returns how many are settled."""
        asked = [{name: job[name] for name in ("seed", "size", "mutation")} for job in batch]
        sanitizer = batch[0].get("tool")
        # Libraries ask the driver for functions that it may lack: API errors are not what is looked for.
        api = ["--report-api-errors", "no"] if sanitizer == "memcheck" else []
        prefix = ["compute-sanitizer", "--tool", sanitizer, *api] if sanitizer else []
        command = [*prefix, sys.executable, *WORKER, *(["--dry"] if self.dry else []), json.dumps(asked)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, errors="replace"
        )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        current, launched, other = 0, False, collections.deque[str](maxlen=6)
        while True:
            limit = (SANITIZED if sanitizer else HANGS) if launched else PREPARING
            try:
                line = lines.get(timeout=limit)
            except queue.Empty:
                process.kill()
                process.wait()
                seen = f"silent for {limit} s " + ("after its launch" if launched else "before its launch")
                batch[current].update(outcome="hung" if launched else "error", seen=seen)
                return current + 1
            if line is None:
                break
            try:
                fact = json.loads(line)
                current, launched = fact.pop("job"), fact["step"] == "launching"
                batch[current].update({name: value for name, value in fact.items() if name != "step"})
            except (ValueError, KeyError, AttributeError, TypeError):
                other.append(line.strip())
                if line.startswith("=========") and len(batch[current].setdefault("sanitizer_says", [])) < 12:
                    batch[current]["sanitizer_says"].append(line.strip("= \n"))
                if "ERROR SUMMARY" in line:
                    batch[current]["sanitizer"] = line.split("ERROR SUMMARY:")[1].strip()
        process.wait()
        if "outcome" not in batch[current]:
            batch[current].update(outcome="error", seen=f"process ended with {process.returncode}: {' | '.join(other)}")
            return current + 1
        return len(batch)


def _read(stream: Any, lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def run_all(batches: list[list[dict[str, Any]]], slots: int, dry: bool, until: float) -> None:
    waiting: queue.SimpleQueue[list[dict[str, Any]]] = queue.SimpleQueue()
    for batch in batches:
        waiting.put(batch)
    threads = [Slot(waiting, dry, until) for _ in range(slots)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def accepted_jobs(count: int, seed: int, dry: bool) -> list[dict[str, Any]]:
    sizes = ("small",) if dry else ("any", "many")
    return [{"seed": seed + i, "size": sizes[i % len(sizes)], "mutation": None} for i in range(count)]


def mutant_jobs(count: int, seed: int, dry: bool) -> list[dict[str, Any]]:
    """Mutants, the same number of each kind of change as far as that goes."""
    rng = random.Random(seed)
    done: collections.Counter[tuple[str, str]] = collections.Counter()
    jobs = []
    for i in range(count):
        pipeline = draw(seed + 100_000 + i, "small")
        plan = pipeline.schedule.plan(pipeline.dtypes)
        found = mutations_of(plan)
        rng.shuffle(found)
        found.sort(key=lambda m: done[m.rule, m.operation])
        mutation = next(m for m in found if changes_something(plan, m, pipeline))
        done[mutation.rule, mutation.operation] += 1
        change = {"rule": mutation.rule, "operation": mutation.operation, "only": mutation.only, "by": mutation.by}
        jobs.append(
            {"seed": pipeline.seed, "size": "small" if dry else "many", "mutation": change, "text": str(mutation)}
        )
    return jobs


def changes_something(plan: Any, mutation: Any, pipeline: Any) -> bool:
    """Whether any warp executes other operations than without the mutation."""
    entries = (lambda isa: kernel_main(isa, pipeline.schedule), mutation.entry(pipeline.schedule))
    before, after = (record(plan, entry, pipeline.plan_shapes()) for entry in entries)
    return before != after


def summary(jobs: list[dict[str, Any]]) -> dict[str, int]:
    return dict(collections.Counter(job.get("outcome", "out of time") for job in jobs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for reality.json")
    parser.add_argument("--accepted", type=int, default=200)
    parser.add_argument("--rejected", type=int, default=40, help="mutants that the checker rejects")
    parser.add_argument(
        "--sanitize", type=int, default=8, help="accepted pipelines run again under compute-sanitizer, if it is there"
    )
    parser.add_argument("--seconds", type=float, default=300, help="stop giving out work after this long")
    parser.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    start = time.monotonic()
    until = start + options.seconds

    accepted = accepted_jobs(options.accepted, options.seed, options.dry)
    batches = [accepted[i :: options.jobs] for i in range(min(options.jobs, len(accepted)))]
    run_all(batches, options.jobs, options.dry, start + 0.5 * options.seconds)
    wrong = [job for job in accepted if job.get("outcome") not in ("right", "not run", None)]
    took = time.monotonic() - start
    print(f"accepted: {summary(accepted)} in {took:.0f} s", flush=True)

    # Some mutants change nothing that matters, and the checker says so: draw twice as many as are wanted.
    mutants = mutant_jobs(2 * options.rejected, options.seed, options.dry)
    tried = mutants[: options.rejected]
    slots = max(1, options.jobs // 2)  # a kernel that hangs shares the GPU with the others until it is killed
    run_all([[job] for job in tried], slots, options.dry, until)
    missing = options.rejected - sum(job.get("outcome") not in ("not run", None) for job in tried)
    if missing > 0 and time.monotonic() < until:
        extra = mutants[options.rejected : options.rejected + 2 * missing]
        run_all([[job] for job in extra], slots, options.dry, until)
        tried = tried + extra
    rejected = [job for job in tried if job.get("outcome") != "not run"]
    for job in rejected:
        if job.get("outcome") == "right":
            job["outcome"] = "got away"
    print(f"rejected: {summary(rejected)}; {len(tried) - len(rejected)} mutants were accepted and not run", flush=True)

    sanitized: list[dict[str, Any]] = []
    if not options.dry and options.sanitize and shutil.which("compute-sanitizer"):
        for i, tool in enumerate(("memcheck", "synccheck")):
            jobs = accepted_jobs(options.sanitize // 2, options.seed + 50 * i, False)
            sanitized += [{**job, "size": "small", "tool": tool} for job in jobs]
        run_all([[job] for job in sanitized], 4, False, until)
        print(
            f"compute-sanitizer: {[(job.get('tool'), job.get('outcome'), job.get('sanitizer')) for job in sanitized]}"
        )

    elif not options.dry and options.sanitize:
        print("compute-sanitizer: not found")
    for job in accepted:
        if job.get("outcome") == "not run":
            print(f"REFUSED: seed {job['seed']} {job.get('pipeline')}: {job.get('kinds')} {job.get('message')}")
    for job in wrong:
        print(f"WRONG: seed {job['seed']} {job.get('pipeline')}: {job.get('outcome')}, {job.get('seen')}")
    for job in rejected:
        print(
            f"{job.get('outcome', 'out of time'):10} {job['text']:55} {','.join(job.get('kinds', []))}: {job.get('seen', '')}"
        )
    result = {
        "dry": options.dry,
        "seconds": round(time.monotonic() - start, 1),
        "accepted": {"summary": summary(accepted), "jobs": accepted},
        "rejected": {"summary": summary(rejected), "jobs": rejected},
        "sanitized": sanitized,
    }
    for jobs in (accepted, rejected, sanitized):
        jobs[:] = [{name: value for name, value in job.items() if value not in (None, "", [])} for job in jobs]
    text = json.dumps(result, separators=(",", ":")).replace('{"seed"', '\n{"seed"')  # a job a line
    with open(os.path.join(options.out, "reality.json"), "w") as file:
        file.write(text + "\n")
    print(f"{result['seconds']} s in all; written to {options.out}/reality.json")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
