"""One process of `reality.py`: takes jobs one after another and prints a line of JSON at each step.

    python -m tests.oracle.reality_worker [--dry] JOBS      # JOBS: a JSON list of {"seed", "size", "mutation" (or null)}

Lines: {"step": "start" | "launching" | "done", "job": index, ...}. "launching" comes when all that is left to do is the
kernel, so that whoever watches knows that silence after it is a kernel that hangs.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from tests.oracle.mutations import Mutation
from tests.oracle.one_run import check_program
from tests.oracle.plain import plainly
from tests.oracle.random_pipelines import Pipeline, draw
from tmapipe.errors import DeadlockError, HazardError
from tmapipe.kernel import kernel_main
from tmapipe.prove import check_schedule

__all__ = ["check", "run_compiled", "run_model"]

RUNS = 6  # launches of an accepted pipeline
MUTANT_RUNS = 24  # and of a mutant, to give bad timing a chance


def check(pipeline: Pipeline, mutation: Mutation | None) -> dict[str, Any]:
    """The checker's verdict: of every trip count, or for a mutant of a problem with more turns than slots, on one cluster."""
    start = time.perf_counter()
    if mutation is None:
        report = check_schedule(pipeline.schedule, pipeline.dtypes)
    else:
        plan = pipeline.schedule.plan(pipeline.dtypes)
        shapes = draw(pipeline.seed, "laps").plan_shapes()
        report = check_program(plan, mutation.entry(pipeline.schedule), shapes, 1, name=pipeline.text)
    return {
        "ok": report.ok,
        "trips": report.trips,
        "kinds": sorted(kind.name for kind in report.kinds()),
        "message": report.errors[0].message if report.errors else "",
        "check_seconds": round(time.perf_counter() - start, 3),
    }


def run_compiled(pipeline: Pipeline, mutation: Mutation | None, launching: Any, runs: int) -> tuple[str, str]:
    """Compiles for the GPU and launches *runs* times, on two sets of inputs in turn, each time into a poisoned output. Calls
    *launching* in between. Returns ("right" or "corrupted" or "error", what was seen)."""
    from tmapipe.gpu.build import build
    from tmapipe.gpu.launch import adopt

    _mutate_gpu(mutation)
    inputs = [pipeline.inputs("cuda", number) for number in (0, 1)]
    plan = pipeline.schedule.plan(pipeline.dtypes)
    ranks = {name: len(shape) for name, shape in pipeline.shapes.items()}
    adopt(
        pipeline.schedule, build(pipeline.schedule, plan, ranks), ranks
    )  # no kernel that is kept, which has no mutation
    torch.cuda.synchronize()
    launching()
    first: list[Any] = [None, None]
    for run in range(runs):
        which = run % 2
        out = pipeline.poisoned("cuda")
        try:
            pipeline.schedule(*inputs[which], out=out)
            torch.cuda.synchronize()
        except RuntimeError as error:
            return "error", f"launch {run}: {str(error).splitlines()[0]}"
        if first[which] is None:
            first[which] = out
            wrong = pipeline.wrong(out, inputs[which])
            if wrong:
                return "corrupted", f"launch {run}: {wrong}"
        elif not torch.equal(out.view(torch.uint8), first[which].view(torch.uint8)):
            return "corrupted", f"launch {run}: {pipeline.wrong(out, inputs[which]) or 'other bits than before'}"
    return "right", f"{runs} launches, bit-identical"


def compile_only(pipeline: Pipeline, mutation: Mutation | None) -> None:
    from tmapipe.gpu.build import build

    _mutate_gpu(mutation)
    plan = pipeline.schedule.plan(pipeline.dtypes)
    build(pipeline.schedule, plan, {name: len(shape) for name, shape in pipeline.shapes.items()})


def _mutate_gpu(mutation: Mutation | None) -> None:
    """From here on this process builds kernels with the mutation in them."""
    from tmapipe.gpu import build
    from tmapipe.gpu import isa as emission

    build.emit = emission.emit if mutation is None else lambda program, isa: emission.emit(program, mutation.on(isa))


def run_model(pipeline: Pipeline, mutation: Mutation | None) -> tuple[str, str]:
    """The same on the CPU model, in a few orders: "right", "corrupted" (a hazard or a wrong result) or "hung"."""
    from tmapipe.bind.tensors import bind
    from tmapipe.model import Machine

    plan = pipeline.schedule.plan(pipeline.dtypes)
    mutated = None if mutation is None else mutation.entry(pipeline.schedule)
    entry = mutated or (lambda isa: kernel_main(isa, pipeline.schedule))
    inputs = pipeline.inputs("cpu", 0)
    for policy, seed in (("fair", 0), ("random", 1), ("random", 2), ("late", 3)):
        out = pipeline.poisoned("cpu")
        bound = bind(pipeline.schedule, tuple(inputs), {}, out)
        try:
            Machine(plan, policy=policy, seed=seed).run(plainly(entry), bound.arrays(), 2)
        except DeadlockError as error:
            return "hung", f"{policy} order: {str(error).splitlines()[1].strip()}"
        except HazardError as error:
            return "corrupted", f"{policy} order: {error}"
        wrong = pipeline.wrong(out, inputs)
        if wrong:
            return "corrupted", f"{policy} order: {wrong}"
    return "right", "4 orders"


def work(job: dict[str, Any], dry: bool, say: Any) -> None:
    """One job: draw, check, and run what the checker's verdict asks for (mutants that it rejects, pipelines it accepts)."""
    mutation = Mutation(**job["mutation"]) if job["mutation"] else None
    pipeline = draw(job["seed"], job["size"])
    small = pipeline if job["size"] == "small" else draw(job["seed"], "small")
    verdict = check(small, mutation)
    say("checked", pipeline=pipeline.text, **verdict)
    if verdict["ok"] != (mutation is None):
        say("done", outcome="not run", seen="the checker's verdict is not the one to be tried")
        return
    start = time.perf_counter()
    if dry:
        compile_only(pipeline, mutation)
        say("launching")
        outcome, seen = run_model(small, mutation)
    else:
        outcome, seen = run_compiled(
            pipeline, mutation, lambda: say("launching"), RUNS if mutation is None else MUTANT_RUNS
        )
    say("done", outcome=outcome, seen=seen, run_seconds=round(time.perf_counter() - start, 2))


def main() -> None:
    dry = "--dry" in sys.argv
    for index, job in enumerate(json.loads(sys.argv[-1])):

        def say(step: str, index: int = index, **facts: Any) -> None:
            print(json.dumps({"step": step, "job": index, **facts}), flush=True)

        say("start")
        try:
            work(job, dry, say)
        except Exception as error:  # reported as this job's outcome; the next job goes on
            say("done", outcome="error", seen=f"{type(error).__name__}: {str(error)[:300]}")


if __name__ == "__main__":
    main()
